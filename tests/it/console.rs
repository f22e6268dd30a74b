//! The console: what a browser finds at `/`, and a tool that is called from a form.

use serde_json::json;
use weir_tests::stub::Offer;
use weir_tests::{Browser, Gateway, Request, Stub};

async fn gateway(more: &str) -> (Gateway, Stub) {
    let stub = Stub::offering(Offer { tools: vec!["echo".into(), "secret".into()], ..Offer::default() }).await;
    let gateway = Gateway::start(&format!("{more}{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

fn calls(stub: &Stub) -> usize {
    stub.asked("tools/call").len()
}

#[tokio::test]
async fn a_tool_is_called_from_a_form() {
    let (gateway, stub) = gateway("").await;
    let mut browser = Browser::new();
    let first = browser.open(&gateway.url("/")).await;
    assert_eq!(first.status, 200, "{}", first.text);
    for text in
        ["stub", "healthy", "2 tools", "connect/stub/tools", "Claude Code", &gateway.url("/mcp"), "vscode:mcp/install"]
    {
        assert!(first.text.contains(text), "{text}: {}", first.text);
    }
    let tools = browser.open(&gateway.url("/connect/stub/tools")).await;
    assert!(tools.text.contains("tools?name=echo"), "{}", tools.text);
    assert!(tools.text.contains("<code>weir disable stub</code><br>enabled = false"), "{}", tools.text);
    let tool = browser.open(&gateway.url("/connect/stub/tools?name=echo")).await;
    let (to, mut fields) = tool.form("call");
    fields.push(("arg.message".into(), "<i>hi</i>".into()));
    let done = browser.submit(&to, &fields).await;
    assert!(done.text.contains(">Result<") && done.text.contains("&lt;i&gt;hi&lt;/i&gt;"), "{}", done.text);
    assert_eq!(calls(&stub), 1);
    let seen = stub.asked("tools/call");
    assert_eq!(seen[0].message()["params"]["arguments"], json!({ "message": "<i>hi</i>" }));
    let after = browser.open(&gateway.url("/")).await;
    assert!(!first.text.contains("Your last calls") && after.text.contains("Your last calls"), "{}", after.text);
    assert!(after.text.contains("<h2>echo</h2><p>stub · ok · "), "{}", after.text);
    assert!(first.text.len() < 150 * 1024 && done.text.len() < 150 * 1024);
}

#[tokio::test]
async fn a_form_of_another_page_calls_nothing() {
    let (gateway, stub) = gateway("").await;
    let mut browser = Browser::new();
    let tool = browser.open(&gateway.url("/connect/stub/tools")).await;
    assert_eq!(tool.status, 200);
    let tool = browser.open(&gateway.url("/connect/stub/tools?name=echo")).await;
    let (to, fields) = tool.form("call");
    let with = |name: &str, value: &str| {
        let mut fields = fields.clone();
        fields.retain(|(known, _)| known != name);
        fields.push((name.into(), value.into()));
        fields
    };
    assert_eq!(browser.submit(&to, &with("key", "another")).await.status, 403);
    assert_eq!(Browser::new().submit(&to, &fields).await.status, 403, "another browser");
    assert_eq!(browser.submit(&to, &with("tool", "nothing")).await.status, 404);
    assert_eq!(browser.submit(&gateway.url("/connect/nothing/call"), &fields).await.status, 404);
    let refused = browser.submit(&to, &with("arguments", "[")).await;
    assert!(calls(&stub) <= 1, "{}", refused.text);
    let rebound = Request::get("/").header("accept", "text/html").header("host", "rebound.example");
    assert_eq!(rebound.send(gateway.address()).await.status, 403);
}

#[tokio::test]
async fn the_rules_hold_for_forms() {
    let rule = "[[access.rules]]\nname = \"some\"\ntools = [\"echo\"]\n\n";
    let (gateway, stub) = gateway(rule).await;
    let mut browser = Browser::new();
    let tools = browser.open(&gateway.url("/connect/stub/tools")).await;
    assert!(tools.text.contains("echo") && !tools.text.contains("secret"), "{}", tools.text);
    assert_eq!(browser.open(&gateway.url("/connect/stub/tools?name=secret")).await.status, 404);
    let tool = browser.open(&gateway.url("/connect/stub/tools?name=echo")).await;
    let (to, mut fields) = tool.form("call");
    fields.retain(|(name, _)| name != "tool");
    fields.push(("tool".into(), "secret".into()));
    assert_eq!(browser.submit(&to, &fields).await.status, 404);
    assert_eq!(calls(&stub), 0);
}

#[tokio::test]
async fn what_is_down_says_why_and_is_tried_again() {
    let stub = Stub::start().await;
    let (address, down) = (stub.address(), stub.config("stub"));
    drop(stub);
    let gateway = Gateway::start(&down).await;
    let mut browser = Browser::new();
    gateway.settle(&["stub"], "error").await;
    let first = browser.open(&gateway.url("/")).await;
    assert!(first.text.contains("class=\"bad\""), "{}", first.text);
    assert!(first.text.contains("Try again"), "{}", first.text);
    let _stub = Stub::at(address, Offer::default()).await;
    let told = browser.press(&first, "stub/retry").await;
    assert!(told.text.contains("reaches for stub again"), "{}", told.text);
    gateway.healthy(&["stub"]).await;
}

#[tokio::test]
async fn programs_are_told_where_the_endpoints_are() {
    let (gateway, _stub) = gateway("").await;
    let response = Request::get("/").header("accept", "application/json").send(gateway.address()).await;
    assert_eq!(response.status, 404);
    assert!(String::from_utf8_lossy(&response.bytes().await).contains("/mcp"));
}

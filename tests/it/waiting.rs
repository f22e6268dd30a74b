//! What is listed of upstreams that wait for a login: a tool that leads to it, for those who can give it.

use serde_json::{Value, json};
use weir_tests::terminal::{auth, ended};
use weir_tests::{Authority, Browser, Client, Gateway, Issuer, Stub, wait::until};

const AUDIENCE: &str = "https://weir.example/mcp";
/// What the log says of an upstream that waits for its login.
const WAITS: &str = r#""message":"upstream needs a sign-in","upstream":"team""#;

/// An upstream `name` that wants a login of this owner, and the lines that make it one.
async fn guarded(authority: &Authority, name: &str, owner: &str) -> (Stub, String) {
    let stub = authority.upstream().await;
    let config = format!("{}auth = \"oauth\"\nowner = \"{owner}\"\n", stub.config(name));
    (stub, config)
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result}"))
}

#[tokio::test]
async fn a_tool_leads_to_the_sign_in_until_there_is_one() {
    let authority = Authority::start(3600);
    let (stub, config) = guarded(&authority, "github", "shared").await;
    let gateway = Gateway::start(&config).await;
    until("it waits", || gateway.log().contains("needs a sign-in")).await;
    let legacy = Client::legacy(&gateway, "/mcp").await;
    let modern = Client::modern(&gateway, "/mcp");
    for client in [&legacy, &modern] {
        assert_eq!(client.tools().await, ["github__sign_in"]);
        let told = client.call("github__sign_in", json!({})).await;
        assert!(told["isError"] == true && text(&told).contains(&gateway.url("/connect")), "{told}");
    }
    let mut stream = legacy.stream().await;

    let mut browser = Browser::new();
    let page = browser.open(&gateway.url("/connect")).await;
    browser.press(&page, "connect/github/login").await;
    while stream.next_message().await.unwrap()["method"] != "notifications/tools/list_changed" {}
    for client in [&legacy, &modern] {
        let tools = client.tools().await;
        assert!(
            tools.contains(&"github__echo".to_owned()) && !tools.contains(&"github__sign_in".to_owned()),
            "{tools:?}"
        );
        // Who has listed it before may call it yet.
        let told = client.call("github__sign_in", json!({})).await;
        assert!(told["isError"] == false && text(&told).contains("Signed in at `github`"), "{told}");
    }
    assert!(stub.asked("tools/call").is_empty(), "it is no tool of the upstream");

    let (code, said) = ended(auth(&gateway, &["logout", "github"])).await;
    assert_eq!(code, Some(0), "{said}");
    while stream.next_message().await.unwrap()["method"] != "notifications/tools/list_changed" {}
    for client in [&legacy, &modern] {
        assert_eq!(client.tools().await, ["github__sign_in"]);
    }
}

#[tokio::test]
async fn a_tool_is_listed_for_those_who_can_sign_in() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let (_own, own) = guarded(&authority, "own", "principal").await;
    let (_team, team) = guarded(&authority, "team", "shared").await;
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
    let proved = Gateway::start(&format!("{auth}{own}{team}")).await;
    until("it waits", || proved.log().contains(WAITS)).await;
    let ada = Client::legacy_with(&proved, "/mcp", &issuer.token("ada", AUDIENCE), &json!({})).await;
    assert_eq!(ada.tools().await, ["own__sign_in"], "what all share is the operator's to give");
    let told = ada.call("own__sign_in", json!({})).await;
    assert!(told["isError"] == true && text(&told).contains("/connect?ticket="), "{told}");

    let port = weir_tests::peer::free_port();
    let open = Gateway::start_on(&format!("0.0.0.0:{port}"), &format!("allow_unauthenticated = true\n{team}")).await;
    until("it waits", || open.log().contains(WAITS)).await;
    let anybody = Client::legacy(&open, "/mcp").await;
    assert!(anybody.tools().await.is_empty(), "nobody is known there");
}

#[tokio::test]
async fn a_call_of_the_tool_waits_for_the_sign_in() {
    let authority = Authority::start(3600);
    let (stub, config) = guarded(&authority, "github", "shared").await;
    let gateway = Gateway::start(&config).await;
    let client = Client::modern(&gateway, "/mcp");
    let opens = json!({ "elicitation": { "url": {} } });
    let address = gateway.address();
    let ask = |more: Value| {
        let mut params = json!({ "name": "github__sign_in", "arguments": {} });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (id, request) = client.request_with("tools/call", weir_tests::client::with_meta(params.clone(), &opens));
        let request = client.dressed(request, "tools/call", &params);
        async move { weir_tests::client::answer(request.send(address).await, id).await }
    };
    let asked = ask(json!({})).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let state = asked["result"]["requestState"].clone();
    let back = json!({ "requestState": state, "inputResponses": { "sign_in_github": { "action": "accept" } } });
    let mut browser = Browser::new();
    let sign_in = async {
        let page = browser.open(&gateway.url("/connect")).await;
        browser.press(&page, "connect/github/login").await
    };
    let (done, _) = tokio::join!(ask(back), sign_in);
    assert!(text(&done["result"]).contains("Signed in at `github`"), "{done}");
    assert!(stub.asked("tools/call").is_empty());
}

#[tokio::test]
async fn a_login_that_its_upstream_throws_out_is_asked_for_again() {
    let authority = Authority::start(3600);
    let (_stub, config) = guarded(&authority, "github", "shared").await;
    // Without a refresh token a 401 means that somebody has to sign in.
    let gateway = Gateway::start(&(config + "oauth = { scopes = [\"mcp:read\"] }\n")).await;
    let mut browser = Browser::new();
    let page = browser.open(&gateway.url("/connect")).await;
    let page = browser.press(&page, "connect/github/login").await;
    assert!(page.text.contains("Signed in at github"), "{}", page.text);
    gateway.healthy(&["github"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    assert_eq!(text(&client.call("github__echo", json!({ "message": "hi" })).await), "hi");

    let told = client.call("github__refuse", json!({})).await;
    assert!(told["isError"] == true && text(&told).contains("has ended, and it needs a new sign-in"), "{told}");
    let page = browser.open(&gateway.url("/connect")).await;
    assert!(page.text.contains("the login has ended"), "{}", page.text);
    let told = client.call("github__sign_in", json!({})).await;
    assert!(told["isError"] == true && text(&told).contains(&gateway.url("/connect")), "{told}");

    let page = browser.press(&page, "connect/github/login").await;
    assert!(page.text.contains("Signed in at github") && !page.text.contains("has ended"), "{}", page.text);
    let told = client.call("github__sign_in", json!({})).await;
    assert!(told["isError"] == false && text(&told).contains("Signed in"), "{told}");
}

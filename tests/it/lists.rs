//! Lists of upstreams that fail, change in silence, have no end, or clash.

use serde_json::{Value, json};
use tempfile::TempDir;
use weir_tests::paths;
use weir_tests::peer::Launch;
use weir_tests::stub::{Offer, Stub};
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Client, Gateway};

/// Waits until a client is shown these tools.
async fn shows(client: &Client, expected: &[&str]) {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let tools = client.tools().await;
        if tools == expected {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "{expected:?} are not shown but {tools:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn error(gateway: &Gateway) -> Value {
    gateway.readiness().await.1["upstreams"][0]["error"].clone()
}

#[tokio::test]
async fn a_list_that_fails_is_asked_for_again() {
    let stub = Stub::offering(Offer { tools: vec!["echo".into()], modern: false, ..Offer::default() }).await;
    stub.fail("tools/list", usize::MAX);
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.settle(&["stub"], "degraded").await;
    assert_eq!(error(&gateway).await, "`tools/list` answered with error -32603");
    let client = Client::legacy(&gateway, "/mcp").await;
    assert!(client.tools().await.is_empty());
    stub.fail("tools/list", 0);
    shows(&client, &["stub__echo"]).await;
    gateway.healthy(&["stub"]).await;
    assert_eq!(error(&gateway).await, Value::Null);
    let log = gateway.log();
    assert_eq!(log.matches("some of its lists cannot be had").count(), 1, "{log}");
}

#[tokio::test]
async fn the_last_list_stays_while_it_cannot_be_had() {
    let offer = |tool: &str| Offer { tools: vec![tool.into()], modern: false, ..Offer::default() };
    let stub = Stub::offering(offer("echo")).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    until("the upstream is listened to", || stub.listeners() > 0).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    stub.fail("tools/list", 2);
    stub.offer(offer("other"));
    stub.announce("notifications/tools/list_changed");
    gateway.settle(&["stub"], "degraded").await;
    assert_eq!(client.tools().await, ["stub__echo"]);
    shows(&client, &["stub__other"]).await;
    gateway.healthy(&["stub"]).await;
}

#[tokio::test]
async fn an_upstream_that_forgets_every_session_is_left_in_peace() {
    let stub = Stub::offering(Offer { modern: false, forgets: true, ..Offer::default() }).await;
    let begun = std::time::Instant::now();
    let _gateway = Gateway::start(&stub.config("stub")).await;
    until("it is opened four times", || stub.sessions_opened() >= 4).await;
    // The second time comes at once; a second and two later, but for a quarter, the others.
    assert!(begun.elapsed() >= std::time::Duration::from_millis(2250), "{:?}", begun.elapsed());
}

fn listing(file: &std::path::Path) -> String {
    let script = paths::peers("listing_server.py");
    Launch::new(&paths::python(), [script.to_str().unwrap(), file.to_str().unwrap()]).config("listing")
}

#[tokio::test]
async fn a_process_whose_list_fails_is_asked_again() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("tools");
    let gateway = Gateway::start(&listing(&file)).await;
    gateway.settle(&["listing"], "degraded").await;
    let client = Client::legacy(&gateway, "/mcp").await;
    assert!(client.tools().await.is_empty());
    std::fs::write(&file, "one two").unwrap();
    shows(&client, &["listing__one", "listing__two"]).await;
    gateway.healthy(&["listing"]).await;
    assert_eq!(error(&gateway).await, Value::Null);
    gateway.has_children(0).await;
}

#[tokio::test]
async fn lists_of_a_process_are_asked_for_again_when_it_is_used() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("tools");
    std::fs::write(&file, "old").unwrap();
    let gateway = Gateway::start(&listing(&file)).await;
    gateway.healthy(&["listing"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    assert_eq!(client.tools().await, ["listing__old"]);
    std::fs::write(&file, "new").unwrap();
    let end = tokio::time::Instant::now() + 2 * PATIENCE;
    while client.tools().await != ["listing__new"] {
        assert!(tokio::time::Instant::now() < end, "the new tool is never listed");
        // Each client has a process of its own, which is started here.
        let other = Client::legacy(&gateway, "/mcp").await;
        other.call("listing__old", json!({})).await;
        other.close().await;
    }
}

#[tokio::test]
async fn an_address_of_two_upstreams_is_said_once_whoever_comes_and_goes() {
    let offer = |uris: &[&str]| {
        let entries: Vec<Value> = uris.iter().map(|uri| json!({ "uri": uri, "name": "r" })).collect();
        let (lists, capabilities) = (json!({ "resources/list": entries }), json!({ "resources": {} }));
        Offer { lists, capabilities, modern: false, ..Offer::default() }
    };
    let (first, second) = (Stub::offering(offer(&["x://1"])).await, Stub::offering(offer(&["x://1"])).await);
    let gateway = Gateway::start(&(first.config("first") + &second.config("second"))).await;
    gateway.healthy(&["first", "second"]).await;
    until("the upstream is listened to", || first.listeners() > 0).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    for uris in [&["y://1"][..], &["x://1"], &["y://1"], &["x://1", "x://2"]] {
        first.offer(offer(uris));
        first.announce("notifications/resources/list_changed");
        let end = tokio::time::Instant::now() + PATIENCE;
        while client.list("resources/list", "resources").await[0]["uri"] != uris[0] {
            assert!(tokio::time::Instant::now() < end, "{uris:?} are never listed");
        }
    }
    let log = gateway.log();
    assert_eq!(log.matches("offered by an earlier upstream too").count(), 1, "{log}");
}

#[tokio::test]
async fn a_list_that_turns_in_circles_is_left() {
    let stub = Stub::offering(Offer { circles: true, page: 2, ..Offer::default() }).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    assert!(stub.asked("tools/list").len() < 10, "{} pages", stub.asked("tools/list").len());
    let client = Client::legacy(&gateway, "/mcp").await;
    assert_eq!(client.tools().await.len(), 5, "each tool once");
    let warnings = gateway.readiness().await.1["upstreams"][0]["warnings"].to_string();
    assert!(warnings.contains("gives the same cursor again"), "{warnings}");
}

//! Interceptors (SEP-2624): those of a real MCP server decide about calls through Weir, and a component of Weir is a server of
//! interceptors.

use serde_json::{Value, json};
use weir_tests::{Client, Gateway, Peer, Stub, paths};

/// An upstream whose calls the interceptors at a URL decide about.
fn guarded(stub: &Stub, name: &str, url: &str, more: &str) -> String {
    let policy = format!("[[upstreams.{name}.policies]]\ninterceptor = {url:?}\n{more}\n");
    stub.config(name) + &policy
}

async fn both_eras(gateway: &Gateway) -> [Client; 2] {
    [Client::modern(gateway, "/mcp"), Client::legacy(gateway, "/mcp").await]
}

async fn echo(client: &Client, upstream: &str, message: &str) -> (String, bool) {
    let result = client.call(&format!("{upstream}__echo"), json!({ "message": message })).await;
    let text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    (text, result["isError"] == true)
}

fn received(stub: &Stub) -> Value {
    stub.asked("tools/call").last().map(|seen| seen.message()["params"]["arguments"].clone()).unwrap_or_default()
}

#[tokio::test]
async fn interceptors_of_a_server_in_either_era_refuse_and_change_calls_and_results() {
    for era in ["legacy", "modern", "both"] {
        let (guard, stub) = (Peer::fixture(era).await, Stub::start().await);
        let config = guarded(&stub, "all", &guard.url(), "")
            + &guarded(
                &stub,
                "one",
                &guard.url(),
                "settings = { names = [\"no-deletes\"], config = { word = \"drop\" } }",
            )
            + &guarded(&stub, "wrong", &guard.url(), "settings = { names = [\"no-such\"] }");
        let gateway = Gateway::start(&config).await;
        gateway.healthy(&["all", "one", "wrong"]).await;
        for client in both_eras(&gateway).await {
            assert_eq!(echo(&client, "all", "hello").await, ("HELLO!".to_owned(), false), "{era}");
            assert_eq!(received(&stub)["message"], "HELLO");
            let calls = stub.asked("tools/call").len();
            let refusal = "refused by interceptor `no-deletes`: nothing is deleted here";
            // It is checked after it was changed.
            assert_eq!(echo(&client, "all", "rm -rf /").await.0, "RM -RF /!");
            assert_eq!(echo(&client, "one", "drop all").await, (refusal.to_owned(), true), "{era}");
            assert_eq!(echo(&client, "one", "keep all").await, ("keep all".to_owned(), false), "{era}");
            assert_eq!(stub.asked("tools/call").len(), calls + 2, "a refused call goes nowhere");
            let (text, failed) = echo(&client, "wrong", "hello").await;
            assert!(failed && text.contains("weir:interceptor"), "{text}");
        }
        gateway.logs("has no `no-such`").await;
        gateway.logs("as a try").await;
    }
}

#[tokio::test]
async fn an_interceptor_server_that_is_away_refuses_calls_unless_the_configuration_says_otherwise() {
    let (guard, stub) = (Peer::fixture("legacy").await, Stub::start().await);
    let (url, port) = (guard.url(), guard.address().port());
    let config = guarded(&stub, "strict", &url, "") + &guarded(&stub, "lenient", &url, "on_failure = \"skip\"");
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["strict", "lenient"]).await;
    let client = Client::modern(&gateway, "/mcp");
    assert_eq!(echo(&client, "strict", "hello").await.0, "HELLO!");
    drop(guard);
    let (text, failed) = echo(&client, "strict", "hello").await;
    assert!(failed && text.contains("weir:interceptor"), "{text}");
    gateway.logs("cannot be asked").await;
    assert_eq!(echo(&client, "lenient", "hello").await, ("hello".to_owned(), false));
    // A server that is back knows nothing of the session that it had.
    let _guard = Peer::fixture_at(port, "legacy").await;
    assert_eq!(echo(&client, "strict", "hello").await, ("HELLO!".to_owned(), false));
}

#[tokio::test]
async fn a_component_is_a_server_of_interceptors_behind_weir() {
    let weir = paths::weir();
    let command = format!("command = {weir:?}\nargs = [\"policy\", \"serve\", \"weir:redact\"]\n");
    let served = Gateway::start(&format!("[upstreams.guard]\n{command}")).await;
    served.healthy(&["guard"]).await;
    let listed = Client::modern(&served, "/mcp/guard").ask("interceptors/list", json!({})).await;
    let names: Vec<_> = listed["result"]["interceptors"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["redact-validator", "redact-mutator"], "{listed}");
    let stub = Stub::start().await;
    let gateway = Gateway::start(&guarded(&stub, "guarded", &served.url("/mcp/guard"), "")).await;
    gateway.healthy(&["guarded"]).await;
    for client in both_eras(&gateway).await {
        let (text, failed) = echo(&client, "guarded", "mail jane@example.com").await;
        assert_eq!((text.as_str(), failed), ("mail [email]", false));
        assert_eq!(received(&stub)["message"], "mail jane@example.com");
    }
}

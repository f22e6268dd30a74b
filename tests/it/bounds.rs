//! What Weir keeps and does for one session: each has a bound that is not a key of the configuration.

use serde_json::{Value, json};
use weir_tests::client::answer;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Stub};

/// The requests of one session that may run at upstreams without sessions.
const WORK: usize = 256;

/// The resources that one modern client may watch.
const WATCHED: usize = 256;

/// A third of what the addresses of watched resources may have together, and a little more.
const LONG_ADDRESS: usize = 90 * 1024;

fn offer(legacy: bool, modern: bool) -> Offer {
    let capabilities = json!({ "logging": {}, "resources": { "subscribe": true } });
    Offer { capabilities, legacy, modern, listens: true, ..Offer::default() }
}

async fn gateway(offer: Offer) -> (Gateway, Stub) {
    let stub = Stub::offering(offer).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

fn address(number: usize) -> Value {
    json!({ "uri": format!("x://{number}/{}", "y".repeat(LONG_ADDRESS)) })
}

#[tokio::test]
async fn a_session_has_so_many_requests_running_at_an_upstream_without_sessions() {
    let (gateway, stub) = gateway(offer(false, true)).await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    let call = || client.request("tools/call", json!({ "name": "hold", "arguments": { "message": "held" } }));
    let running: Vec<_> = (0..WORK)
        .map(|_| {
            let ((id, request), address) = (call(), gateway.address());
            tokio::spawn(async move { answer(request.send(address).await, id).await })
        })
        .collect();
    until("all of them run", || stub.held() == WORK).await;
    let refused = client.send(call().1).await;
    assert_eq!(refused.status, 429);
    let why = refused.json().await["error"]["message"].to_string();
    assert!(why.contains("this session has 256 requests running already"), "{why}");
    let other = Client::legacy(&gateway, "/mcp/stub").await;
    other.call("echo", json!({ "message": "another session" })).await;
    stub.release(WORK);
    for one in running {
        assert_eq!(one.await.unwrap()["result"]["content"][0]["text"], "held");
    }
    client.call("echo", json!({ "message": "there is room again" })).await;
}

#[tokio::test]
async fn a_log_level_that_is_longer_than_any_is_not_remembered() {
    for (padding, told) in [(0, 1), (70 * 1024, 0)] {
        let (gateway, stub) = gateway(offer(true, false)).await;
        let client = Client::legacy(&gateway, "/mcp").await;
        let level = json!({ "level": "debug", "_meta": { "padding": "x".repeat(padding) } });
        client.result("logging/setLevel", level).await;
        // The upstream is opened for this session only now.
        client.call("stub__echo", json!({ "message": "hi" })).await;
        assert_eq!(stub.asked("logging/setLevel").len(), told);
    }
}

#[tokio::test]
async fn a_session_watches_as_many_bytes_of_addresses_as_it_may_at_a_modern_upstream() {
    let (gateway, _stub) = gateway(offer(false, true)).await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    for number in 0..2 {
        client.result("resources/subscribe", address(number)).await;
    }
    let refused = client.ask("resources/subscribe", address(2)).await;
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("upstream `stub`") && why.contains("watches as many resources as it may"), "{why}");
    client.result("resources/unsubscribe", address(0)).await;
    client.result("resources/subscribe", address(2)).await;
}

#[tokio::test]
async fn a_session_has_as_many_bytes_of_addresses_watched_on_as_it_may_at_a_legacy_upstream() {
    let (gateway, stub) = gateway(offer(true, false)).await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    for number in 0..3 {
        client.result("resources/subscribe", address(number)).await;
    }
    let at = stub.address();
    drop(stub);
    until("the address is free", || std::net::TcpListener::bind(at).is_ok()).await;
    let again = Stub::at(at, offer(true, false)).await;
    client.call("echo", json!({ "message": "in a new session" })).await;
    let asked: Vec<Value> = again.asked("resources/subscribe").iter().map(|seen| seen.message()).collect();
    assert_eq!(asked.iter().map(|message| &message["params"]).collect::<Vec<_>>(), [&address(0), &address(1)]);
}

#[tokio::test]
async fn a_modern_client_watches_as_many_resources_as_it_may_at_a_legacy_upstream() {
    let (gateway, stub) = gateway(offer(true, false)).await;
    let client = Client::modern(&gateway, "/mcp/stub");
    let all: Vec<String> = (0..WATCHED + 10).map(|number| format!("x://{number}")).collect();
    let wish = json!({ "notifications": { "resourceSubscriptions": all } });
    let mut events = client.send(client.request("subscriptions/listen", wish).1).await.events();
    let granted = events.next_message().await.unwrap()["params"]["notifications"]["resourceSubscriptions"].take();
    assert_eq!(granted, json!(all[..WATCHED]));
    assert_eq!(stub.asked("resources/subscribe").len(), WATCHED);
}

//! An upstream that is gone for some seconds, as when it is restarted.

use serde_json::json;
use tokio::task::JoinSet;
use weir_tests::client::answer;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Stub};

#[tokio::test]
async fn its_tools_stay_on_offer_and_calls_say_that_it_is_gone() {
    let offer = Offer { modern: false, ..Offer::default() };
    let stub = Stub::offering(offer.clone()).await;
    let address = stub.address();
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let clients = [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")];
    let tools = clients[0].tools().await;
    assert!(tools.contains(&"stub__echo".to_owned()), "{tools:?}");

    drop(stub);
    // It has been tried twice by then.
    gateway.settle(&["stub"], "error").await;
    let call = json!({ "name": "stub__echo", "arguments": { "message": "hello" } });
    for client in &clients {
        assert_eq!(client.tools().await, tools);
        // The model is told: it may wait, or take another tool.
        let answer = client.ask("tools/call", call.clone()).await;
        let why = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let (cause, standing) = why.split_once(" (").unwrap_or_else(|| panic!("{why}"));
        assert_eq!(
            cause,
            "upstream `stub` cannot be reached: no connection: refused; check its url and that it is running"
        );
        assert!(standing.starts_with("state `error`; Weir tries again in ") && standing.ends_with(" s)"), "{why}");
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        // Nobody but a model reads the results of tools.
        let other = client.ask("prompts/get", json!({ "name": "stub__none" })).await;
        assert!(other["error"].is_object(), "{other}");
    }

    let _stub = Stub::at(address, offer).await;
    for client in &clients {
        assert_eq!(client.result("tools/call", call.clone()).await["content"][0]["text"], "hello");
    }
}

#[tokio::test]
async fn a_limit_of_weir_on_connections_is_no_outage_of_the_upstream() {
    let stub = Stub::start().await;
    let limits = "timeouts = { probe_interval = \"1s\" }\n";
    let gateway = Gateway::start(&format!("limits.upstream.connections = 10\n{}{limits}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let (held, address) = (Client::modern(&gateway, "/mcp/stub"), gateway.address());
    let mut calls = JoinSet::new();
    for _ in 0..12 {
        let (id, request) = held.request("tools/call", json!({ "name": "hold", "arguments": {} }));
        calls.spawn(async move { answer(request.send(address).await, id).await });
    }
    let refused = calls.join_next().await.unwrap().unwrap();
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains("`limits.upstream.connections`"), "{refused}");
    let mut clients = Vec::new();
    // More than it takes to open a breaker.
    for _ in 0..7 {
        let client = Client::legacy(&gateway, "/mcp").await;
        let refused = client.ask("tools/call", json!({ "name": "stub__echo", "arguments": { "message": "m" } })).await;
        let why = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
        assert!(why.contains("`limits.upstream.connections`"), "{refused}");
        clients.push(client);
    }
    let (_, readiness) = gateway.readiness().await;
    assert_eq!(weir_tests::gateway::state(&readiness, "stub"), Some("healthy"), "{readiness}");
    stub.release(10);
    until("the calls are over", || stub.held() == 0).await;
    for client in &clients {
        client.call("stub__echo", json!({ "message": "m" })).await;
    }
    assert!(!gateway.log().contains("breaker opened"), "{}", gateway.log());
}

//! Real servers that are restarted, forget their sessions or close their streams: clients do not notice.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_tests::peer::Launch;
use weir_tests::restart::RestartableServer;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, LEGACY, Peer, Stub};

async fn adds(client: &Client, tool: &str) {
    let result = client.call(tool, json!({ "a": 2, "b": 3 })).await;
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains('5'), "{result}");
}

/// Clients of both eras call a tool before and after a restart.
async fn survives(mut server: RestartableServer) {
    let gateway = Gateway::start(&server.config("a")).await;
    gateway.healthy(&["a"]).await;
    let clients = [Client::legacy(&gateway, "/mcp/a").await, Client::modern(&gateway, "/mcp/a")];
    let merged = Client::legacy(&gateway, "/mcp").await;
    for round in 0..2 {
        for client in &clients {
            adds(client, server.tool).await;
        }
        adds(&merged, &format!("a__{}", server.tool)).await;
        if round == 0 {
            server.restart().await;
        }
    }
    gateway.healthy(&["a"]).await;
}

#[tokio::test]
async fn a_server_of_streamable_http_may_be_restarted() {
    survives(RestartableServer::everything("streamableHttp", "/mcp").await).await;
}

#[tokio::test]
async fn a_server_of_http_and_sse_may_be_restarted() {
    survives(RestartableServer::everything("sse", "/sse").await).await;
}

#[tokio::test]
async fn a_supergateway_may_be_restarted() {
    survives(RestartableServer::supergateway().await).await;
}

/// It has one process for all its sessions, and tells each of them whatever that says.
#[tokio::test]
async fn what_supergateway_tells_everybody_is_heard_by_who_asked() {
    let mut server = RestartableServer::supergateway().await;
    let gateway = Gateway::start(&server.config("a")).await;
    gateway.healthy(&["a"]).await;
    // All of them count their ids from the same number on.
    let legacy = [Client::legacy(&gateway, "/mcp/a").await, Client::legacy(&gateway, "/mcp/a").await];
    let merged = Client::legacy(&gateway, "/mcp").await;
    let modern = Client::modern(&gateway, "/mcp/a");
    for round in 0..2 {
        gateway.healthy(&["a"]).await;
        for step in 0..10 {
            tokio::join!(
                sum(&legacy[0], "get-sum", 1000, step),
                sum(&legacy[1], "get-sum", 2000, step),
                sum(&merged, "a__get-sum", 3000, step),
                sum(&modern, "get-sum", 4000, step),
            );
        }
        if round == 0 {
            server.restart().await;
        }
    }
}

async fn sum(client: &Client, tool: &str, a: u64, b: u64) {
    let result = client.call(tool, json!({ "a": a, "b": b })).await;
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains(&(a + b).to_string()), "{a} + {b}: {result}");
}

#[tokio::test]
async fn a_python_server_may_be_restarted() {
    survives(RestartableServer::python("python_server.py", "streamable-http").await).await;
}

#[tokio::test]
async fn a_fastmcp_server_may_be_restarted() {
    survives(RestartableServer::python("fastmcp_server.py", "http").await).await;
}

#[tokio::test]
async fn a_process_that_dies_is_started_again() {
    let gateway = Gateway::start(&Launch::everything().config("a")).await;
    gateway.healthy(&["a"]).await;
    let client = Client::legacy(&gateway, "/mcp/a").await;
    adds(&client, "get-sum").await;
    for (id, _) in gateway.children() {
        kill_process(Pid::from_raw(id.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
    gateway.has_children(0).await;
    // A list may be asked for again, should the end not have been noticed yet.
    client.tools().await;
    adds(&client, "get-sum").await;
}

#[tokio::test]
async fn a_call_whose_stream_is_closed_on_purpose_has_its_answer() {
    let fixture = Peer::fixture("legacy").await;
    let gateway = Gateway::start(&fixture.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    let text = |result: &Value| result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    let expected = "The answer arrived after the stream was resumed.";
    let native = Client::legacy(&gateway, "/mcp/fixture").await;
    assert_eq!(text(&native.call("test_reconnection", json!({})).await), expected);
    let merged = Client::legacy(&gateway, "/mcp").await;
    assert_eq!(text(&merged.call("fixture__test_reconnection", json!({})).await), expected);
    let modern = Client::modern(&gateway, "/mcp/fixture");
    assert_eq!(text(&modern.call("test_reconnection", json!({})).await), expected);
    // Without ids, as the server has it for older clients, nothing is closed.
    let older = Client::legacy_at(gateway.address(), "/mcp/fixture", "2025-06-18", &json!({})).await;
    assert_eq!(text(&older.call("test_reconnection", json!({})).await), expected);
    assert_ne!(LEGACY, "2025-06-18");
}

#[tokio::test]
async fn a_real_server_of_http_and_sse_is_found_by_itself() {
    let server = RestartableServer::everything("sse", "/sse").await;
    let gateway = Gateway::start(&server.config("a")).await;
    gateway.healthy(&["a"]).await;
    let (_, ready) = gateway.readiness().await;
    assert_eq!(ready["upstreams"][0]["transport"], "sse");
    adds(&Client::legacy(&gateway, "/mcp/a").await, server.tool).await;
    adds(&Client::legacy(&gateway, "/mcp").await, &format!("a__{}", server.tool)).await;
    let advice = r#"add type = \"sse\""#;
    gateway.logs(advice).await;
    let log = gateway.log();
    assert_eq!(log.matches(advice).count(), 1, "{log}");
    assert_eq!(log.matches("ERROR").count(), 0, "{log}");
}

/// A client may listen and never call: it does not notice either.
#[tokio::test]
async fn who_only_listens_hears_a_server_that_was_restarted() {
    for path in ["/mcp/stub", "/mcp"] {
        let offer = || Offer {
            modern: false,
            capabilities: json!({ "logging": {}, "resources": { "subscribe": true } }),
            lists: json!({ "resources/list": [{ "uri": "stub://watched", "name": "watched" }] }),
            ..Offer::default()
        };
        let stub = Stub::offering(offer()).await;
        let at = stub.address();
        let gateway = Gateway::start(&stub.config("stub")).await;
        gateway.healthy(&["stub"]).await;
        let client = Client::legacy(&gateway, path).await;
        client.result("logging/setLevel", json!({ "level": "warning" })).await;
        client.result("resources/subscribe", json!({ "uri": "stub://watched" })).await;
        if path == "/mcp" {
            client.call("stub__echo", json!({ "message": "opens its session" })).await;
        }
        let mut events = client.stream().await;
        until("the client hears the server", || stub.listeners_called("weir-tests") == 1).await;
        drop(stub);
        until("the address is free", || std::net::TcpListener::bind(at).is_ok()).await;
        let again = Stub::at(at, offer()).await;
        until("it hears the new one", || again.listeners_called("weir-tests") == 1).await;
        for method in ["logging/setLevel", "resources/subscribe"] {
            assert_eq!(again.asked(method).len(), 1, "{path}: {method} is said again");
        }
        let missed = events.next_message().await.unwrap();
        assert_eq!(missed["method"], "notifications/resources/updated", "{path}: what it may have missed: {missed}");
        assert_eq!(missed["params"]["uri"], "stub://watched");
        let said = json!({ "level": "error", "data": "after the restart" });
        again.say(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": said }).to_string());
        let heard = events.next_message().await.unwrap();
        assert_eq!(heard["params"]["data"], "after the restart", "{path}: {heard}");
    }
}

/// A server that has just started may refuse what it takes a moment later.
#[tokio::test]
async fn what_a_restarted_server_refuses_is_said_again() {
    let offer = || Offer {
        modern: false,
        capabilities: json!({ "logging": {}, "resources": { "subscribe": true } }),
        lists: json!({ "resources/list": [{ "uri": "stub://watched", "name": "watched" }] }),
        ..Offer::default()
    };
    for (times, is_taken) in [(1, true), (100, false)] {
        let stub = Stub::offering(offer()).await;
        let at = stub.address();
        let gateway = Gateway::start(&stub.config("stub")).await;
        gateway.healthy(&["stub"]).await;
        let client = Client::legacy(&gateway, "/mcp/stub").await;
        client.result("logging/setLevel", json!({ "level": "warning" })).await;
        client.result("resources/subscribe", json!({ "uri": "stub://watched" })).await;
        let mut events = client.stream().await;
        until("the client hears the server", || stub.listeners_called("weir-tests") == 1).await;
        drop(stub);
        until("the address is free", || std::net::TcpListener::bind(at).is_ok()).await;
        let again = Stub::at(at, offer()).await;
        again.fail("resources/subscribe", times);
        again.fail("logging/setLevel", 1);
        let missed = events.next_message().await.unwrap();
        assert_eq!(missed["method"], "notifications/resources/updated", "{missed}");
        until("the level is said again", || again.asked("logging/setLevel").len() == 2).await;
        if is_taken {
            until("it is said again", || again.asked("resources/subscribe").len() == 2).await;
            continue;
        }
        gateway.logs("the subscription to stub://watched is not taken in a new session: not this time").await;
        assert_eq!(again.asked("resources/subscribe").len(), 4);
        let told = events.next_message().await.unwrap();
        assert_eq!((&told["method"], &told["params"]["level"]), (&json!("notifications/message"), &json!("warning")));
        assert!(told["params"]["data"].as_str().unwrap().contains("stub://watched: not this time"), "{told}");
    }
}

#[tokio::test]
async fn an_upstream_is_asked_as_often_as_it_is_configured() {
    let stub = Stub::start().await;
    let config = stub.config("stub") + "timeouts = { probe_interval = \"1s\" }\n";
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["stub"]).await;
    let before = stub.asked("server/discover").len();
    until("it is asked three times more", || stub.asked("server/discover").len() >= before + 3).await;
}

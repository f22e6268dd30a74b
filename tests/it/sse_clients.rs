//! Clients of HTTP+SSE: the same session as any legacy client has, carried by one stream and the POSTs beside it.

use std::collections::HashSet;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::driver::{Choice, Target, Visitor, common, inspect, visit};
use weir_tests::peer::Launch;
use weir_tests::process::runs;
use weir_tests::sse::SseClient;
use weir_tests::wait::until;
use weir_tests::{Gateway, Peer, Request, Stub};

async fn stubbed() -> (Gateway, Stub) {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

/// Upstreams of every transport, and what their own clients see of them.
async fn compare(visitor: Visitor) {
    let (http, sse) = tokio::join!(Peer::fixture("legacy"), Peer::fixture_sse());
    let config = http.config("http") + &sse.config("sse").replace("/mcp", "/sse");
    let gateway = Gateway::start(&(config + &Launch::fixture("legacy").config("stdio"))).await;
    gateway.healthy(&["http", "sse", "stdio"]).await;
    let (tool, none) = ("test_multiple_content_types", json!({}));
    let direct = visit(visitor, Choice::Legacy, &http.url(), tool, &none).await.unwrap();
    for path in ["/sse/http", "/sse/sse", "/sse/stdio", "/mcp/http"] {
        let through = visit(visitor, Choice::Legacy, Target::Sse(&gateway.url(path)), tool, &none).await;
        assert_eq!(through.map(common), Ok(common(direct.clone())), "{visitor:?} at {path}");
    }
    for path in ["/sse", "/mcp"] {
        let tool = format!("stdio__{tool}");
        let through = visit(visitor, Choice::Legacy, Target::Sse(&gateway.url(path)), &tool, &none).await.unwrap();
        assert_eq!(through["call"], direct["call"], "{visitor:?} at {path}");
        assert_eq!(through["tools"].as_array().unwrap().len(), 3 * direct["tools"].as_array().unwrap().len());
    }
}

#[tokio::test]
async fn sdk1() {
    compare(Visitor::Sdk1).await;
}

#[tokio::test]
async fn sdk2() {
    compare(Visitor::Sdk2).await;
}

#[tokio::test]
async fn python() {
    compare(Visitor::Python).await;
}

#[tokio::test]
async fn a_proxy_may_put_a_prefix_before_all_addresses() {
    let (gateway, _stub) = stubbed().await;
    let proxy = Peer::prefix(&gateway.url(""), "/tools/weir").await;
    let url = |path: &str| format!("http://{}/tools/weir{path}", proxy.address());
    for visitor in [Visitor::Sdk1, Visitor::Python] {
        for path in ["/sse", "/sse/stub", "/mcp", "/mcp/stub"] {
            let tool = if path.ends_with("stub") { "echo" } else { "stub__echo" };
            let hello = json!({ "message": path });
            for target in [Target::Sse(&url(path)), Target::Http(&url(&path.replace("sse", "mcp")))] {
                let seen = visit(visitor, Choice::Legacy, target, tool, &hello).await.unwrap();
                assert_eq!(seen["call"]["content"][0]["text"], path, "{visitor:?} at {path}: {seen}");
            }
        }
    }
}

#[tokio::test]
async fn inspector() {
    let gateway = Gateway::start(&Launch::everything().config("everything")).await;
    gateway.healthy(&["everything"]).await;
    let arguments = ["--tool-name", "echo", "--tool-arg", "message=hello"];
    let url = gateway.url("/sse/everything");
    let answer = inspect(Choice::Legacy, Target::Sse(&url), "tools/call", &arguments).await.unwrap();
    assert_eq!(answer["content"][0]["text"], "Echo: hello", "{answer}");
}

#[tokio::test]
async fn each_address_of_a_stream_has_one_to_post_to_beside_it() {
    let (gateway, _stub) = stubbed().await;
    for path in ["/sse", "/sse/", "/mcp", "/mcp/"] {
        let mut client = SseClient::connect(gateway.address(), path, &json!({})).await;
        assert_eq!(client.call("stub__echo", json!({ "message": path })).await, path);
    }
    for path in ["/sse/stub", "/mcp/stub"] {
        let mut client = SseClient::connect(gateway.address(), path, &json!({})).await;
        assert_eq!(client.call("echo", json!({ "message": path })).await, path);
        // Clients of mcp-hub post at the root.
        client.post_to = client.post_to.replace(&path[..5], "/");
        assert_eq!(client.call("echo", json!({ "message": "root" })).await, "root");
    }
}

#[tokio::test]
async fn calls_run_at_the_same_time_and_one_can_be_cancelled() {
    let (gateway, stub) = stubbed().await;
    let mut client = SseClient::connect(gateway.address(), "/sse", &json!({})).await;
    let hold = |message: &str| json!({ "name": "stub__hold", "arguments": { "message": message } });
    let first = client.send("tools/call", hold("first")).await;
    let second = client.send("tools/call", hold("second")).await;
    until("both run", || stub.held() == 2).await;
    assert_eq!(client.call("stub__echo", json!({ "message": "between" })).await, "between");

    client
        .say(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": first } }))
        .await;
    until("the cancel arrives", || !stub.asked("notifications/cancelled").is_empty()).await;
    stub.release(2);
    // What was cancelled has no result any more, however late.
    let answer = client.find(|message| message.get("result").is_some()).await;
    assert_eq!(answer["id"], second);
}

#[tokio::test]
async fn questions_and_progress_come_on_the_stream() {
    let fixture = Peer::fixture("legacy").await;
    let config = fixture.config("http") + &Launch::fixture("legacy").config("stdio");
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["http", "stdio"]).await;
    for (path, prefix) in [("/sse/http", ""), ("/sse/stdio", ""), ("/sse", "http__"), ("/sse", "stdio__")] {
        for tool in ["test_elicitation", "elicitation_on_the_other_stream"] {
            let mut client = SseClient::connect(gateway.address(), path, &json!({ "elicitation": {} })).await;
            let call = json!({ "name": format!("{prefix}{tool}"), "arguments": { "message": "Who are you?" } });
            let id = client.send("tools/call", call).await;
            let question = client.find(|message| message["method"] == "elicitation/create").await;
            let content = json!({ "username": "ada", "email": "a@example.com" });
            let result = json!({ "action": "accept", "content": content });
            client.say(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })).await;
            let answer = client.answer(id).await;
            let said = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
            assert!(said.contains("\"username\":\"ada\""), "{tool} at {path}: {answer}");
        }
        let mut client = SseClient::connect(gateway.address(), path, &json!({})).await;
        let name = format!("{prefix}test_tool_with_progress");
        let call = json!({ "name": name, "arguments": {}, "_meta": { "progressToken": "t" } });
        let id = client.send("tools/call", call).await;
        for progress in [0, 50, 100] {
            let told = client.find(|message| message["method"] == "notifications/progress").await;
            assert_eq!(told["params"]["progress"], json!(progress), "{path}");
        }
        assert!(client.answer(id).await.get("result").is_some());
    }
}

#[tokio::test]
async fn what_an_upstream_says_of_its_own_accord_comes_on_the_stream() {
    let (gateway, stub) = stubbed().await;
    let mut one = SseClient::connect(gateway.address(), "/sse/stub", &json!({})).await;
    let mut all = SseClient::connect(gateway.address(), "/sse", &json!({})).await;
    all.call("stub__echo", json!({ "message": "opens the upstream" })).await;
    until("the upstream is heard for both", || stub.listeners_called("weir-tests") == 2).await;
    stub.announce("notifications/weir-tests");
    for client in [&mut one, &mut all] {
        client.find(|message| message["method"] == "notifications/weir-tests").await;
    }
}

#[tokio::test]
async fn a_session_ends_with_its_stream() {
    let (gateway, stub) = stubbed().await;
    let before: HashSet<_> = stub.sessions().into_iter().collect();
    let mut client = SseClient::connect(gateway.address(), "/sse/stub", &json!({})).await;
    client.send("tools/call", json!({ "name": "hold", "arguments": { "message": "never" } })).await;
    until("the call runs", || stub.held() == 1).await;
    assert_eq!(client.call("echo", json!({ "message": "hi" })).await, "hi");
    let post_to = client.post_to.clone();
    drop(client);
    until("the upstream's session ends", || stub.sessions().iter().all(|id| before.contains(id))).await;
    until("so does the call", || stub.broken_off() == 1).await;
    let late = Request::post(&post_to, r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#);
    let response = gateway.send(late).await;
    assert_eq!(response.status, 404);
    assert_eq!(response.json().await["error"]["code"], -32001);
}

#[tokio::test]
async fn its_processes_end_with_its_stream_too() {
    let gateway = Gateway::start(&Launch::everything().config("everything")).await;
    gateway.healthy(&["everything"]).await;
    let before: HashSet<u32> = gateway.children().into_iter().map(|(id, _)| id).collect();
    let mut client = SseClient::connect(gateway.address(), "/sse", &json!({})).await;
    client.call("everything__echo", json!({ "message": "hi" })).await;
    let own = gateway.children().into_iter().map(|(id, _)| id).find(|id| !before.contains(id)).unwrap();
    drop(client);
    until("the process ends", || !runs(own)).await;
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused_as_anywhere() {
    let (gateway, _stub) = stubbed().await;
    let client = SseClient::connect(gateway.address(), "/sse", &json!({})).await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let to = |path: &str| Request::post(path, ping);
    let here = client.post_to.as_str();
    let post = |body: &'static str| Request::post(here, body);
    let modern = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let modern = post(modern).header("mcp-protocol-version", "2026-07-28").header("mcp-method", "tools/list");
    let rows = [
        (to("/messages"), 400, -32600),
        (to("/messages?sessionId="), 404, -32001),
        (to("/messages?sessionId=0123456789abcdef0123456789abcdef"), 404, -32001),
        (to("/sse?sessionId=x"), 405, -32600),
        (Request::get("/messages"), 405, -32600),
        (Request::new("DELETE", "/sse"), 405, -32600),
        (Request::get("/sse").header("accept", "text/html"), 406, -32600),
        (Request::get("/sse/nobody").header("accept", "text/event-stream"), 404, -32600),
        (post("{"), 400, -32700),
        (post("7"), 400, -32600),
        (Request::new("POST", here).header("content-type", "text/plain").body(ping), 415, -32600),
        (Request::post(here, "x".repeat(5 << 20)), 413, -32600),
        (post(r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#), 400, -32600),
        (post(ping).header("mcp-protocol-version", "1900-01-01"), 400, -32000),
        (modern, 400, -32600),
        (post(ping).header("origin", "http://evil.example.com"), 403, -32600),
        (post(ping).header("host", "evil.example.com"), 403, -32600),
        (Request::get("/sse").header("host", "evil.example.com"), 403, -32600),
        // A client of Streamable HTTP that has lost its session.
        (
            Request::get("/mcp").header("accept", "text/event-stream").header("mcp-protocol-version", "2025-11-25"),
            400,
            -32600,
        ),
        (Request::get("/mcp").header("accept", "text/html, */*;q=0.8"), 400, -32600),
    ];
    for (at, (request, status, code)) in rows.into_iter().enumerate() {
        let response = gateway.send(request).await;
        assert_eq!(response.status, status, "row {at}");
        assert_eq!(response.json().await["error"]["code"], code, "row {at}");
    }
}

#[tokio::test]
async fn messages_out_of_order_are_answered_on_the_stream() {
    let (gateway, _stub) = stubbed().await;
    let mut client = SseClient::open(gateway.address(), "/sse").await;
    assert_eq!(client.ask("ping", json!({})).await["result"], json!({}));
    assert_eq!(client.ask("tools/list", json!({})).await["error"]["code"], -32600);

    let mut client = SseClient::connect(gateway.address(), "/sse", &json!({})).await;
    assert_eq!(client.ask("initialize", json!({})).await["error"]["code"], -32600);
    let batch = json!([
        { "jsonrpc": "2.0", "id": 11, "method": "ping" },
        { "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 999 } },
        { "jsonrpc": "2.0", "id": 12, "method": "tools/list" },
    ]);
    client.say(&batch).await;
    let mut answered = HashSet::new();
    while answered.len() < 2 {
        answered.insert(client.events.next_message().await.unwrap()["id"].as_u64().unwrap());
    }
    assert_eq!(answered, HashSet::from([11, 12]));
}

#[tokio::test]
async fn there_are_no_more_streams_than_sessions() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("limits.sessions = 2\n{}", stub.config("stub"))).await;
    let silent = SseClient::open(gateway.address(), "/sse").await;
    let _other = SseClient::open(gateway.address(), "/sse").await;
    let third = || gateway.send(Request::get("/sse").header("accept", "text/event-stream"));
    assert_eq!(third().await.status, 503);
    drop(silent);
    let mut status = 503;
    while status == 503 {
        status = third().await.status;
    }
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_stream_says_when_to_come_back_before_the_gateway_ends_it() {
    let (mut gateway, _stub) = stubbed().await;
    let mut client = SseClient::connect(gateway.address(), "/sse", &json!({})).await;
    gateway.signal(Signal::TERM);
    let last = client.events.next().await.unwrap();
    assert!(last.retry.is_some(), "{last:?}");
    assert_eq!(client.events.next().await, None);
    assert_eq!(gateway.end().await.code(), Some(0));
}

/// What a page's browser asks, and what it then reads.
#[tokio::test]
async fn pages_that_may_call_can_read_the_answers() {
    let stub = Stub::start().await;
    let gateway =
        Gateway::start(&format!("allowed_origins = [\"https://app.example.com\"]\n{}", stub.config("stub"))).await;
    let ask = |origin: &str| {
        Request::new("OPTIONS", "/mcp")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "content-type,mcp-protocol-version,mcp-param-region")
    };
    for origin in ["https://app.example.com", "http://localhost:6274"] {
        let response = gateway.send(ask(origin)).await;
        assert_eq!(response.status, 204);
        assert_eq!(response.header("access-control-allow-origin"), Some(origin));
        let headers = response.header("access-control-allow-headers").unwrap();
        assert!(headers.contains("mcp-param-region"), "{headers}");
        let methods = response.header("access-control-allow-methods").unwrap();
        assert!(methods.contains("DELETE"), "{methods}");

        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "page", "version": "1" } } });
        let response = gateway.send(Request::post("/mcp", body.to_string()).header("origin", origin)).await;
        assert_eq!(response.header("access-control-allow-origin"), Some(origin));
        assert_eq!(response.header("vary"), Some("Origin"));
        assert!(response.header("access-control-expose-headers").unwrap().contains("mcp-session-id"));
    }
    let refused = gateway.send(ask("https://evil.example.com")).await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None));
    let plain = gateway.send(Request::new("OPTIONS", "/mcp")).await;
    assert_eq!((plain.status, plain.header("access-control-allow-origin")), (405, None));
    let stream = gateway
        .send(Request::get("/sse").header("accept", "text/event-stream").header("origin", "http://localhost:1"))
        .await;
    assert_eq!(stream.header("access-control-allow-origin"), Some("http://localhost:1"));
    let body: Value = gateway.send(Request::get("/nowhere").header("origin", "http://localhost:1")).await.json().await;
    assert!(body["error"]["message"].as_str().unwrap().contains("/sse"), "{body}");
}

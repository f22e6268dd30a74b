//! Shares: a caller takes no more than its own of what all share, is told which limit it has reached, and nobody else
//! notices. Callers without a token are told apart by their addresses.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use weir_tests::client::{answer, initialize, with_meta};
use weir_tests::peer::Launch;
use weir_tests::stub::Offer;
use weir_tests::wait::{until, until_some};
use weir_tests::{Client, Gateway, Issuer, LEGACY, Peer, Request, Response, Stub};

/// Another caller.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// One that listens.
const LISTENING: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

fn hello(path: &str) -> Request {
    initialize(path, LEGACY, &json!({}))
}

/// Status and message of a refusal, and that it says when to come again.
async fn refused(response: Response) -> (u16, String) {
    assert!(response.header("retry-after").is_some(), "{:?}", response.headers);
    let status = response.status;
    (status, response.json().await["error"]["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn an_address_has_a_share_of_sessions() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("limits.principal.sessions = 2\n{}", stub.config("stub"))).await;
    let first = Client::legacy(&gateway, "/mcp").await;
    let _second = Client::legacy(&gateway, "/mcp/stub").await;
    for path in ["/mcp", "/mcp/stub"] {
        let (status, why) = refused(gateway.send(hello(path)).await).await;
        assert_eq!(status, 429);
        assert_eq!(why, "this caller has 2 sessions already, as many as `limits.principal.sessions` allows");
    }
    let stream = gateway.send(Request::get("/sse").header("accept", "text/event-stream")).await;
    assert_eq!(refused(stream).await.0, 429, "a stream of HTTP+SSE is a session too");
    assert_eq!(hello("/mcp").send_from(OTHER, gateway.address()).await.status, 200);
    first.close().await;
    Client::legacy(&gateway, "/mcp").await;
}

#[tokio::test]
async fn a_principal_has_a_share_of_sessions_wherever_it_calls_from() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let audience = "https://weir.example/mcp";
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{audience}\"\n", issuer.issuer());
    let config = format!("limits.principal.sessions = 1\n{auth}{}", stub.config("stub"));
    let gateway = Gateway::start(&config).await;
    let tokens = ["ada", "eve"].map(|subject| issuer.token(subject, audience));
    let greet = |token: &str| hello("/mcp").header("authorization", &format!("Bearer {token}"));
    assert_eq!(gateway.send(greet(&tokens[0])).await.status, 200);
    assert_eq!(greet(&tokens[0]).send_from(OTHER, gateway.address()).await.status, 429);
    assert_eq!(gateway.send(greet(&tokens[1])).await.status, 200, "another principal at the same address");
}

#[tokio::test]
async fn what_a_session_keeps_of_its_client_is_bounded() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let padded = |size: usize| {
        let info = json!({ "name": "x".repeat(size), "version": "1" });
        let params = json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        gateway.send(Request::post("/mcp", body.to_string()))
    };
    assert_eq!(padded(60_000).await.status, 200);
    let refused = padded(70_000).await;
    assert_eq!(refused.status, 413);
    let why = refused.json().await["error"]["message"].to_string();
    assert!(why.contains("`initialize` is longer than 65536 bytes"), "{why}");
}

#[tokio::test]
async fn a_caller_has_a_share_of_processes() {
    let launch = Launch::fixture("legacy").config("old");
    let gateway = Gateway::start(&format!("limits.principal.processes = 2\n{launch}")).await;
    gateway.healthy(&["old"]).await;
    let first = Client::legacy(&gateway, "/mcp/old").await;
    let second = Client::legacy(&gateway, "/mcp").await;
    second.call("old__test_simple_text", json!({})).await;
    let (status, why) = refused(gateway.send(hello("/mcp/old")).await).await;
    assert_eq!(status, 429);
    assert_eq!(why, "this caller has 2 processes already, as many as `limits.principal.processes` allows");
    // A session at all of them begins without a process, and learns the same when it needs one.
    let third = Client::legacy(&gateway, "/mcp").await;
    let why = third.ask("tools/call", json!({ "name": "old__test_simple_text" })).await["error"]["message"].take();
    assert!(why.as_str().unwrap().contains("`limits.principal.processes`"), "{why}");
    // What Weir and others have is not of this share.
    assert_eq!(hello("/mcp/old").send_from(OTHER, gateway.address()).await.status, 200);
    first.close().await;
    third.call("old__test_simple_text", json!({})).await;
}

#[tokio::test]
async fn an_upstream_has_a_share_of_processes() {
    let config = Launch::fixture("legacy").config("old") + &Launch::fixture("legacy").config("also");
    let gateway = Gateway::start(&format!("limits.upstream.processes = 2\n{config}")).await;
    gateway.healthy(&["old", "also"]).await;
    // What Weir had for its lists has ended by then.
    gateway.has_children(0).await;
    let _clients = [Client::legacy(&gateway, "/mcp/old").await, Client::legacy(&gateway, "/mcp/old").await];
    let (status, why) = refused(gateway.send(hello("/mcp/old")).await).await;
    assert_eq!((status, why.contains("`limits.upstream.processes`") && why.contains("`old`")), (503, true), "{why}");
    Client::legacy(&gateway, "/mcp/also").await;
}

#[tokio::test]
async fn a_client_of_many_names_has_one_session_at_a_legacy_upstream() {
    const NAMES: usize = 50;
    let stub = Stub::offering(Offer { modern: false, ..Offer::default() }).await;
    let gateway = Gateway::start(&stub.config("old")).await;
    gateway.healthy(&["old"]).await;
    let before = stub.sessions_opened();
    for name in 0..NAMES {
        let info = json!({ "name": format!("client {name}"), "version": "1" });
        let params = json!({
            "_meta": { "io.modelcontextprotocol/clientInfo": info },
            "name": "echo",
            "arguments": { "message": "hi" },
        });
        let answered = Client::modern(&gateway, "/mcp/old").ask("tools/call", params).await;
        assert!(answered["result"].is_object(), "as client {name}: {answered}");
    }
    assert_eq!(stub.sessions_opened() - before, 1);
    assert!(!stub.sessions().iter().any(|client| client.starts_with("client")), "{:?}", stub.sessions());
}

/// Calls `hold` as a modern client that can be asked this, from this address.
fn holds(gateway: &Gateway, source: Ipv4Addr, capabilities: &Value) -> JoinHandle<Value> {
    let (client, address) = (Client::modern(gateway, "/mcp/old"), gateway.address());
    let params = json!({ "name": "hold", "arguments": { "message": "held" } });
    let (id, request) = client.request_with("tools/call", with_meta(params, capabilities));
    tokio::spawn(async move { answer(request.send_from(source, address).await, id).await })
}

#[tokio::test]
async fn shared_sessions_have_limits_in_all_for_a_caller_and_for_an_upstream() {
    for key in ["limits.pooled_sessions", "limits.principal.pooled_sessions", "limits.upstream.pooled_sessions"] {
        let stub = Stub::offering(Offer { modern: false, ..Offer::default() }).await;
        let gateway = Gateway::start(&format!("{key} = 1\n{}", stub.config("old"))).await;
        gateway.healthy(&["old"]).await;
        let first = holds(&gateway, Ipv4Addr::LOCALHOST, &json!({}));
        until("a shared session is in use", || stub.held() == 1).await;
        // Clients that can be asked something else do not share it.
        let refused = holds(&gateway, Ipv4Addr::LOCALHOST, &json!({ "elicitation": {} })).await.unwrap();
        assert!(refused["error"]["message"].as_str().is_some_and(|why| why.contains(&format!("`{key}`"))), "{refused}");
        let same = holds(&gateway, Ipv4Addr::LOCALHOST, &json!({}));
        until("the same kind of client shares it", || stub.held() == 2).await;
        let mut held = vec![first, same];
        if key.contains("principal") {
            held.push(holds(&gateway, OTHER, &json!({ "elicitation": {} })));
            until("another caller has a share of its own", || stub.held() == 3).await;
        }
        stub.release(held.len());
        for call in held {
            assert_eq!(call.await.unwrap()["result"]["content"][0]["text"], "held");
        }
        // One that nobody uses makes way.
        stub.release(1);
        let next = holds(&gateway, Ipv4Addr::LOCALHOST, &json!({ "elicitation": {} })).await.unwrap();
        assert_eq!(next["result"]["content"][0]["text"], "held", "{key}: {next}");
    }
}

/// Asks for a call whose upstream asks first; gives the answer, from this address.
async fn asks_first(gateway: &Gateway, source: Ipv4Addr) -> Value {
    let client = Client::modern(gateway, "/mcp/old");
    let params = json!({ "name": "test_elicitation", "arguments": { "message": "Who are you?" } });
    let (id, request) = client.request_with("tools/call", with_meta(params, &json!({ "elicitation": {} })));
    answer(request.send_from(source, gateway.address()).await, id).await
}

#[tokio::test]
async fn a_caller_has_a_share_of_calls_that_wait_for_input() {
    let peer = Peer::fixture("legacy").await;
    let gateway = Gateway::start(&format!("limits.principal.pending_inputs = 2\n{}", peer.config("old"))).await;
    gateway.healthy(&["old"]).await;
    for _ in 0..2 {
        let asked = asks_first(&gateway, Ipv4Addr::LOCALHOST).await;
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    }
    let refused = asks_first(&gateway, Ipv4Addr::LOCALHOST).await;
    let why = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
    assert!(why.contains("`limits.principal.pending_inputs`"), "{why}");
    let other = asks_first(&gateway, OTHER).await;
    assert_eq!(other["result"]["resultType"], "input_required", "{other}");
}

/// Sets the limit of open files of this process, which is this test's alone; what it starts inherits it.
fn allow_files(current: u64, maximum: Option<u64>) {
    let maximum = maximum.or(getrlimit(Resource::Nofile).maximum);
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
}

/// The soft limit of open files of a process.
fn files_of(process: u32) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_limit_of_open_files_is_raised_and_children_keep_their_own() {
    allow_files(200, None);
    let stays = Launch::new(Path::new("/bin/sh"), ["-c", "while read line; do :; done"]).config("old");
    let gateway = Gateway::start(&stays).await;
    until("the child runs", || !gateway.children().is_empty()).await;
    let (child, _) = gateway.children()[0];
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap();
    assert!(files_of(parent) > 200, "{}", files_of(parent));
    until("the child has the limit that Weir was given", || files_of(child) == 200).await;
}

#[tokio::test]
async fn connections_leave_files_for_upstreams() {
    const FILES: u64 = 400;
    let stub = Stub::start().await;
    allow_files(FILES, Some(FILES));
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    gateway.logs("250 connections of clients at once instead of 16384").await;
    // Streams of another address, which stay open while connections crowd in.
    let mut streams = Vec::new();
    for _ in 0..20 {
        let wish = json!({ "notifications": { "toolsListChanged": true } });
        let request = Client::modern(&gateway, "/mcp").request("subscriptions/listen", wish).1;
        let response = request.send_from(LISTENING, gateway.address()).await;
        assert_eq!(response.status, 200);
        let mut events = response.events();
        assert!(events.next_message().await.is_some(), "it is acknowledged");
        streams.push(events);
    }
    let mut idle = Vec::new();
    for _ in 0..150 {
        idle.push(TcpStream::connect(gateway.address()).await.unwrap());
    }
    let refused_here = || async {
        let request = Client::modern(&gateway, "/mcp/stub").request("tools/list", json!({})).1;
        // A connection that is turned away may close before all of the request is out.
        let response = request.try_send(gateway.address()).await.ok().filter(|response| response.status == 429)?;
        response.whole().await.map(|body| String::from_utf8_lossy(&body).into_owned())
    };
    let why = loop {
        if let Some(why) = refused_here().await {
            break why;
        }
    };
    assert!(why.contains("`limits.principal.connections`"), "{why}");
    // Others come in, and there is a way to the upstream for each.
    let mut calls = Vec::new();
    for _ in 0..50 {
        let (id, request) = Client::modern(&gateway, "/mcp/stub").request("tools/call", json!({ "name": "hold" }));
        let address = gateway.address();
        calls.push(tokio::spawn(async move { answer(request.send_from(OTHER, address).await, id).await }));
    }
    until("all calls are at the upstream", || stub.held() == calls.len()).await;
    stub.release(calls.len());
    for call in calls {
        assert!(call.await.unwrap()["result"].is_object());
    }
    for events in &mut streams {
        let next = tokio::time::timeout(Duration::from_millis(1), events.next_message()).await;
        assert!(next.is_err(), "a stream has ended or has something to say: {next:?}");
    }
    drop(idle);
    until_some("the address is let in again", || std::net::TcpStream::connect(gateway.address()).ok()).await;
}

//! Upstreams in trouble and clients in a hurry, through the whole gateway: what one of them does costs no other.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod trouble {
    pub(crate) mod gateway;
    pub(crate) mod peer;
}

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use trouble::{
    gateway::{Gateway, until},
    peer::{Peer, Script},
};

fn initialize(capabilities: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "test", "version": "1"}
    }})
}

fn call(name: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name}})
}

#[test]
fn what_one_client_says_does_not_decide_an_upstreams_era() {
    let peer = Peer::start(Script { modern: true, ..Script::default() });
    let gateway = Gateway::start(&peer.upstream("dual"));
    gateway.until_healthy(1);
    let refused = gateway.post("/mcp/dual", None, &initialize(&json!({"roots": 5})));
    assert!(refused.body.contains("does not accept this client's `initialize`"), "{}", refused.body);
    let opened = gateway.post("/mcp/dual", None, &initialize(&json!({})));
    assert!(opened.session.is_some(), "{}", opened.body);
}

#[test]
fn an_upstream_that_comes_late_is_there_for_clients_of_both_eras() {
    let late = Peer::reserve();
    let gateway = Gateway::start(&format!("[upstreams.late]\nurl = \"http://127.0.0.1:{late}/mcp\"\n"));
    gateway.until("error");
    let session = gateway.open("/mcp");
    assert_eq!(gateway.tools(&session), Vec::<String>::new());
    let _peer = Peer::start_at(late, Script { modern: true, ..Script::default() });
    gateway.until_healthy(1);
    until("a legacy client sees it", || gateway.tools(&session) == ["late__echo"]);
}

#[test]
fn a_lost_session_is_opened_once_for_all_calls_that_lost_it() {
    let peer = Peer::start(Script::default());
    let gateway = Arc::new(Gateway::start(&peer.upstream("a")));
    gateway.until_healthy(1);
    let session = gateway.open("/mcp/a");
    let keepers = peer.sessions().len() - 1;
    peer.forget_all_but(keepers);
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (gateway, session) = (Arc::clone(&gateway), session.clone());
            thread::spawn(move || gateway.post("/mcp/a", Some(&session), &call("echo")).body)
        })
        .collect();
    for call in calls {
        let body = call.join().unwrap();
        assert!(body.contains("\"result\""), "{body}");
    }
    assert_eq!(peer.sessions().len(), keepers + 1);
}

#[test]
fn a_lost_session_is_understood_in_all_words_for_it() {
    let error =
        r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#;
    let cases = [
        (400, error),
        (400, "Invalid or missing session ID"),
        (404, "Session not found"),
        (503, "No active SSE connection for session 1"),
    ];
    for lost in cases {
        let peer = Peer::start(Script { lost: Some(lost), ..Script::default() });
        let gateway = Gateway::start(&peer.upstream("a"));
        gateway.until_healthy(1);
        let session = gateway.open("/mcp/a");
        peer.forget_all_but(peer.sessions().len() - 1);
        let body = gateway.post("/mcp/a", Some(&session), &call("echo")).body;
        assert!(body.contains("\"result\""), "{lost:?}: {body}");
    }
}

#[test]
fn a_method_that_is_not_known_is_no_lost_session() {
    let unknown = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no such method"}}"#;
    let peer = Peer::start(Script { lost: Some((404, unknown)), ..Script::default() });
    let gateway = Gateway::start(&peer.upstream("a"));
    gateway.until_healthy(1);
    let session = gateway.open("/mcp/a");
    let opened = peer.opened();
    peer.forget_all_but(peer.sessions().len() - 1);
    let answer = gateway.post("/mcp/a", Some(&session), &call("echo"));
    assert!(answer.body.contains("no such method"), "{}", answer.body);
    assert_eq!(peer.opened(), opened);
}

#[test]
fn a_stream_is_opened_again_in_a_new_upstream_session() {
    let peer = Peer::start(Script::default());
    let gateway = Gateway::start(&peer.upstream("a"));
    gateway.until_healthy(1);
    let session = gateway.open("/mcp/a");
    peer.forget_all_but(peer.sessions().len() - 1);
    drop(gateway.listen("/mcp/a", &session));
}

#[test]
fn a_session_that_ends_while_an_upstream_is_opened_leaves_nothing() {
    let peer = Peer::start(Script::default());
    let gateway = Arc::new(Gateway::start(&peer.upstream("a")));
    gateway.until_healthy(1);
    let session = gateway.open("/mcp");
    let before = peer.sessions().len();
    peer.change(|script| script.hold_initialize = true);
    let called = thread::spawn({
        let (gateway, session) = (Arc::clone(&gateway), session.clone());
        move || gateway.post("/mcp", Some(&session), &call("a__echo")).body
    });
    until("the upstream is being opened", || peer.held() > 0);
    let ended = thread::spawn({
        let (gateway, session) = (Arc::clone(&gateway), session.clone());
        move || gateway.delete("/mcp", &session)
    });
    let ping = json!({"jsonrpc": "2.0", "id": 4, "method": "ping"});
    until("the session is over", || gateway.post("/mcp", Some(&session), &ping).status == 404);
    peer.change(|script| script.hold_initialize = false);
    assert_eq!(ended.join().unwrap(), 200);
    assert!(called.join().unwrap().contains("ended its session"));
    until("the upstream session is ended too", || peer.sessions().len() == before);
}

#[test]
fn a_call_that_is_given_up_while_an_upstream_is_opened_leaves_nothing() {
    let peer = Peer::start(Script::default());
    let gateway = Gateway::start(&peer.upstream("a"));
    gateway.until_healthy(1);
    let session = gateway.open("/mcp");
    let before = peer.sessions().len();
    peer.change(|script| script.hold_initialize = true);
    let connection = gateway.send("/mcp", Some(&session), &call("a__echo"));
    until("the upstream is being opened", || peer.held() > 0);
    drop(connection);
    gateway.until_logged("\"status\":499");
    peer.change(|script| script.hold_initialize = false);
    until("it is open", || peer.sessions().len() > before);
    assert_eq!(gateway.delete("/mcp", &session), 200);
    until("the upstream session is ended", || peer.sessions().len() == before);
}

#[test]
fn a_gateway_that_stops_ends_its_streams_and_its_sessions() {
    let peer = Peer::start(Script::default());
    let mut gateway = Gateway::start(&peer.upstream("a"));
    gateway.until_healthy(1);
    let session = gateway.open("/mcp");
    gateway.post("/mcp", Some(&session), &call("a__echo"));
    let _stream = gateway.listen("/mcp", &session);
    assert!(peer.sessions().len() >= 2);
    let start = Instant::now();
    assert!(gateway.stop().success());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(peer.sessions().len(), 0);
}

#[test]
fn a_list_that_fails_costs_no_other() {
    let peer = Peer::start(Script { bad_prompts: true, ..Script::default() });
    let gateway = Gateway::start(&peer.upstream("a"));
    gateway.until("`prompts/list` answered with error -32603");
    gateway.until("degraded");
    assert_eq!(gateway.tools(&gateway.open("/mcp")), ["a__echo"]);
}

#[test]
fn an_upstream_that_is_silent_on_its_stream_is_there_all_the_same() {
    let peer = Peer::start(Script { silent_stream: true, ..Script::default() });
    let gateway = Gateway::start(&format!("[defaults.timeouts]\nlist = \"300ms\"\n{}", peer.upstream("a")));
    gateway.until_healthy(1);
    assert_eq!(gateway.tools(&gateway.open("/mcp")), ["a__echo"]);
}

#[test]
fn an_answer_without_an_answer_is_an_error() {
    let peer = Peer::start(Script { empty_answers: true, ..Script::default() });
    let gateway = Gateway::start(&peer.upstream("a"));
    gateway.until_healthy(1);
    let answer = gateway.post("/mcp", Some(&gateway.open("/mcp")), &call("a__echo"));
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("status 202 without an answer"), "{}", answer.body);
}

#[test]
fn an_answer_that_breaks_off_is_in_the_log() {
    let peer = Peer::start(Script { half_answers: true, ..Script::default() });
    let gateway = Gateway::start(&peer.upstream("a"));
    gateway.until_healthy(1);
    // A client that goes away would be the reason.
    let _connection = gateway.send("/mcp", Some(&gateway.open("/mcp")), &call("a__echo"));
    gateway.until_logged("\"error\":\"broke off before it answered: ");
}

#[test]
fn an_upstream_that_ends_its_stream_at_once_is_not_opened_again_and_again() {
    let peer = Peer::start(Script { short_stream: true, ..Script::default() });
    let gateway = Gateway::start(&peer.upstream("a"));
    gateway.until_healthy(1);
    // Longer than it takes to come back for the lists; the other way round there is nothing to wait for.
    thread::sleep(Duration::from_secs(2));
    assert_eq!(peer.opened(), 1);
}

//! How the whole gateway finds the way to an upstream, against servers that answer as real ones were seen to.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

#[path = "fallback/gateway.rs"]
mod gateway;
#[path = "fallback/resume.rs"]
mod resume;
#[path = "fallback/server.rs"]
mod server;
#[path = "fallback/stream.rs"]
mod stream;

use gateway::Gateway;
use server::{Does, Server};

const ADVICE: &str = "add type = \"sse\"";
const RIGHT: &str = "bearer = { env = \"RIGHT\" }";
const WRONG: &str = "bearer = { env = \"WRONG\" }";
const NOT_FOUND: Does = Does::Say(404, "<pre>Cannot POST /mcp</pre>");

/// The upstream is reached over `transport`, calls work, and the operator is told what there is to tell.
async fn reaches(server: &Server, more: &str, transport: &str, advised: bool) {
    let gateway = Gateway::start(&server.config(more)).await;
    assert_eq!(gateway.transport().await, transport);
    gateway.client().await.echoes("hello").await;
    assert_eq!(gateway.lines(ADVICE).len(), usize::from(advised));
    assert_eq!(gateway.count("ERROR"), 0);
}

/// The upstream is not reached; what the operator is told as an error, once.
async fn fails(server: &Server, more: &str) -> String {
    let gateway = Gateway::start(&server.config(more)).await;
    let why = gateway.failure().await;
    assert_eq!((gateway.count("ERROR"), gateway.count("INFO")), (1, 0), "{why}");
    why
}

/// The upstream asks for a credential, and there is a login to be had: one quiet line with what to do.
async fn wants_login(server: &Server) {
    let gateway = Gateway::start(&server.config("")).await;
    let line = gateway.logged("upstream needs a sign-in").await;
    let command = line["fields"]["command"].as_str().unwrap();
    assert!(command.starts_with("weir auth login u --config /"), "{command}");
    assert_eq!((gateway.count("ERROR"), gateway.count("INFO")), (0, 1), "{line}");
}

#[tokio::test]
async fn a_server_of_streamable_http_is_reached_by_it() {
    let server = Server::start(Does::Serve, Does::Say(405, "")).await;
    reaches(&server, "", "http", false).await;
}

#[tokio::test]
async fn a_server_of_both_is_reached_over_streamable_http() {
    let server = Server::start(Does::Serve, Does::Serve).await;
    reaches(&server, "", "http", false).await;
    assert!(server.seen().iter().all(|seen| !seen.path.contains("messages")));
}

#[tokio::test]
async fn a_server_of_http_and_sse_is_reached_after_any_no() {
    let legacy = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Server not initialized"}}"#;
    for post in [NOT_FOUND, Does::Say(405, ""), Does::Say(400, "bad request"), Does::Say(400, legacy)] {
        let server = Server::start(post, Does::Serve).await;
        reaches(&server, "", "sse", true).await;
    }
}

#[tokio::test]
async fn an_error_of_the_modern_era_is_no_reason_to_leave_the_transport() {
    let modern = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no","data":{"supported":["2027-01-01"],"requested":"2026-07-28"}}}"#;
    let server = Server::start(Does::Say(400, modern), Does::Serve).await;
    let why = fails(&server, "").await;
    assert!(why.contains("speaks MCP but refused to begin (400)"), "{why}");
    assert!(!server.saw("GET", ""));
}

#[tokio::test]
async fn a_walk_that_ends_nowhere_names_both_failures() {
    let server = Server::start(NOT_FOUND, Does::Say(405, "")).await;
    let why = fails(&server, "").await;
    assert!(why.contains("404") && why.contains("405"), "{why}");
}

#[tokio::test]
async fn a_credential_opens_either_transport() {
    let server = Server::start(Does::Guard, Does::Say(405, "")).await;
    reaches(&server, RIGHT, "http", false).await;
    let server = Server::start(NOT_FOUND, Does::Guard).await;
    reaches(&server, RIGHT, "sse", true).await;
    let bare = |head: &str| !head.contains("authorization: Bearer right");
    assert!(server.seen().iter().all(|seen| !bare(&seen.head)), "GET and every POST carry it");
}

#[tokio::test]
async fn a_refused_credential_leaves_the_other_transport() {
    let server = Server::start(Does::Guard, Does::Serve).await;
    reaches(&server, WRONG, "sse", true).await;
}

#[tokio::test]
async fn a_walk_that_needs_a_credential_says_so_once_and_quietly() {
    for (post, get) in [(Does::Guard, Does::Say(404, "")), (NOT_FOUND, Does::Guard), (Does::Guard, Does::Guard)] {
        let server = Server::start(post, get).await;
        wants_login(&server).await;
        let why = fails(&server, WRONG).await;
        assert!(why.contains("refused the token from env WRONG (401"), "{why}");
        assert!(server.saw("GET", ""));
    }
}

#[tokio::test]
async fn a_pinned_transport_is_the_only_one_tried() {
    let server = Server::start(NOT_FOUND, Does::Serve).await;
    fails(&server, "type = \"http\"").await;
    assert!(server.saw("POST", "") && !server.saw("GET", ""));
    let server = Server::start(Does::Serve, NOT_FOUND).await;
    fails(&server, "type = \"sse\"").await;
    assert!(server.saw("GET", "") && !server.saw("POST", ""));
    let server = Server::start(Does::Serve, Does::Serve).await;
    reaches(&server, "type = \"sse\"", "sse", false).await;
}

#[tokio::test]
async fn an_outage_is_no_reason_to_leave_the_transport() {
    for post in [Does::Say(500, ""), Does::Say(503, "try later"), Does::Silence] {
        let server = Server::start(post, Does::Serve).await;
        fails(&server, "timeouts = { read = \"500ms\" }").await;
        assert!(!server.saw("GET", ""));
    }
    let nobody = Server::start(Does::Serve, Does::Serve).await;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = nobody.config("").replace(&nobody.address.to_string(), &format!("127.0.0.1:{port}"));
    let gateway = Gateway::start(&config).await;
    assert!(gateway.failure().await.contains("refused"));
}

#[tokio::test]
async fn digits_in_a_text_are_no_refusal() {
    let server = Server::start(Does::Say(404, "status 401 Unauthorized"), Does::Serve).await;
    let gateway = Gateway::start(&server.config("")).await;
    assert_eq!(gateway.transport().await, "sse");
    let client = gateway.client().await;
    let answer = client.call("gpt-4o-1401", "hello").await;
    assert_eq!(answer["error"]["message"], "the model answered with status 401");
    client.echoes("still there").await;
    assert!(gateway.lines("upstream needs a sign-in").is_empty());
}

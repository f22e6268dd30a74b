//! Versions 2024-11-05 to 2025-11-25. Where the specification is silent, the answer is what its own SDKs give.

use serde_json::{Value, json};
use weir_tests::client::initialize;
use weir_tests::{Client, LEGACY, MODERN, Request};

use super::Expected::{Anything, Error, Nothing, Result, That};
use super::{BODY_LIMIT, Endpoint, Row, row};

const UNKNOWN: &str = "6f1e0a5c-0000-4000-8000-000000000000";

pub(super) fn rows(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let mut rows = accepted(client);
    rows.extend(origins(client));
    rows.extend(sessions(client, endpoint));
    rows.extend(headers(client, endpoint));
    rows.extend(bodies(client, endpoint));
    rows.extend(methods(client, endpoint));
    rows
}

fn accepted(client: &Client) -> Vec<Row> {
    let list = |client: &Client| client.request("tools/list", json!({})).1;
    let notification = message(json!({ "method": "notifications/cancelled", "params": { "requestId": 999 } }));
    let answer = message(json!({ "id": 999, "result": {} }));
    vec![
        row("a request", list(client), &[200], Result),
        row("a ping", client.request("ping", json!({})).1, &[200], Result),
        row("a notification", client.post(notification), &[202], Nothing),
        row("an answer to nothing", client.post(answer), &[202], Nothing),
        row("no version is the session's", list(client).without("mcp-protocol-version"), &[200], Result),
        row(
            "an older version of the same era",
            list(client).header("mcp-protocol-version", "2025-06-18"),
            &[200, 400],
            Anything,
        ),
    ]
}

fn origins(client: &Client) -> Vec<Row> {
    let list = || client.request("tools/list", json!({})).1;
    vec![
        row("an Origin elsewhere", list().header("origin", "https://evil.example.com"), &[403], Anything),
        row("an opaque Origin", list().header("origin", "null"), &[403], Anything),
        row(
            "an Origin that only looks local",
            list().header("origin", "http://localhost.evil.example"),
            &[403],
            Anything,
        ),
        row("an Origin on loopback", list().header("origin", "http://localhost:3000"), &[200], Result),
        row("a Host elsewhere", list().header("host", "evil.example.com"), &[403, 421], Anything),
        row("a Host that only looks local", list().header("host", "127.0.0.1.evil.example"), &[403, 421], Anything),
        row("a local Host by name", list().header("host", "localhost:8080"), &[200], Result),
        row("a local Host of IPv6", list().header("host", "[::1]:8080"), &[200], Result),
    ]
}

fn sessions(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let path = endpoint.path.as_str();
    let list = || client.request("tools/list", json!({})).1;
    let notification = || client.post(message(json!({ "method": "notifications/initialized" })));
    let stream = || Request::get(path).header("accept", "text/event-stream").header("mcp-protocol-version", LEGACY);
    let delete = || Request::new("DELETE", path).header("mcp-protocol-version", LEGACY);
    vec![
        row("a request without a session", list().without("mcp-session-id"), &[400], Anything),
        row("a notification without a session", notification().without("mcp-session-id"), &[400], Anything),
        row("a stream without a session", stream(), &[400], Anything),
        row("an end without a session", delete(), &[400], Anything),
        row("a request in an unknown session", list().header("mcp-session-id", UNKNOWN), &[404], Anything),
        row("a notification in an unknown session", notification().header("mcp-session-id", UNKNOWN), &[404], Anything),
        row("a stream of an unknown session", stream().header("mcp-session-id", UNKNOWN), &[404], Anything),
        row("the end of an unknown session", delete().header("mcp-session-id", UNKNOWN), &[404], Anything),
        row("a session id of strange characters", list().header("mcp-session-id", "\u{e9}"), &[400, 404], Anything),
        row("a very long session id", list().header("mcp-session-id", &"a".repeat(4096)), &[400, 404, 431], Anything),
        row(
            "a second initialize",
            initialize(path, LEGACY, &json!({})).header("mcp-session-id", client.session_id()),
            &[400],
            Error(-32600),
        ),
    ]
}

fn headers(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let list = || client.request("tools/list", json!({})).1;
    let stream = || {
        Request::get(&endpoint.path)
            .header("mcp-session-id", client.session_id())
            .header("mcp-protocol-version", LEGACY)
    };
    vec![
        row("a version that never was", list().header("mcp-protocol-version", "1999-01-01"), &[400], Anything),
        row("a version that is none", list().header("mcp-protocol-version", "nonsense"), &[400], Anything),
        row("a client that takes no stream", list().header("accept", "application/json"), &[406], Anything),
        row("a client that takes no JSON", list().header("accept", "text/event-stream"), &[406], Anything),
        row("a stream for a client that takes none", stream().header("accept", "application/json"), &[406], Anything),
        row("a body of another type", list().header("content-type", "text/plain"), &[415], Anything),
        row("a body of no type", list().without("content-type"), &[415], Anything),
        row("a type with a charset", list().header("content-type", "application/json; charset=utf-8"), &[200], Result),
        row("a type in capitals", list().header("content-type", "Application/JSON"), &[200], Result),
    ]
}

fn bodies(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let greeting =
        json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "a", "version": "1" } });
    let batch = json!([
        { "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting },
        { "jsonrpc": "2.0", "id": 2, "method": "ping" },
    ]);
    let too_large = message(json!({ "id": 1, "method": "ping", "params": { "padding": "x".repeat(BODY_LIMIT) } }));
    vec![
        row("no body", client.post(""), &[400], Error(-32700)),
        row("half a body", client.post(r#"{"jsonrpc":"2.0","#), &[400], Error(-32700)),
        row("two bodies", client.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"} {}"#), &[400], Error(-32700)),
        row("bytes that are no text", client.post(vec![0xff, 0xfe, 0x00]), &[400], Error(-32700)),
        row("a text", client.post(r#""ping""#), &[400], Error(-32600)),
        row("an empty object", client.post("{}"), &[400], Error(-32600)),
        row("an empty batch", client.post("[]"), &[400], Error(-32600)),
        row("another JSON-RPC", client.post(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#), &[400], Error(-32600)),
        row("an id that is null", client.post(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#), &[400], Error(-32600)),
        row(
            "an id that is an object",
            client.post(r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#),
            &[400],
            Error(-32600),
        ),
        row("a method that is a number", client.post(r#"{"jsonrpc":"2.0","id":1,"method":7}"#), &[400], Error(-32600)),
        row("an initialize in a batch", Request::post(&endpoint.path, batch.to_string()), &[400], Error(-32600)),
        row("a body that is too large", client.post(too_large), &[413], Anything),
        row("a method that nobody knows", client.request("weir-tests/none", json!({})).1, &[200], Error(-32601)),
    ]
}

fn methods(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let other = |method| Request::new(method, &endpoint.path).header("mcp-session-id", client.session_id());
    let names_all = |response: &weir_tests::Response| {
        let allowed = response.header("allow").unwrap_or_default();
        ["GET", "POST", "DELETE"].iter().all(|method| allowed.contains(method))
    };
    let modern =
        json!({ "protocolVersion": MODERN, "capabilities": {}, "clientInfo": { "name": "a", "version": "1" } });
    let future = message(json!({ "id": 1, "method": "initialize", "params": modern }));
    vec![
        row("PUT", other("PUT"), &[405], That(names_all)),
        row("PATCH", other("PATCH"), &[405], That(names_all)),
        row(
            "a new session where all is well",
            initialize(&endpoint.path, LEGACY, &json!({})),
            &[200],
            That(|response| {
                let id = response.header("mcp-session-id").unwrap_or_default();
                id.len() >= 22 && id.bytes().all(|byte| (0x21..=0x7e).contains(&byte))
            }),
        ),
        row("a handshake for a version to come", Request::post(&endpoint.path, future), &[200], Result),
    ]
}

fn message(mut rest: Value) -> String {
    rest["jsonrpc"] = json!("2.0");
    rest.to_string()
}

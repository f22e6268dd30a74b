//! Version 2026-07-28.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weir_tests::client::{modern_headers, with_meta};
use weir_tests::{Client, LEGACY, MODERN, Request};

use super::Expected::{Anything, Error, Nothing, Result, That};
use super::{Endpoint, Row, row};

pub(super) fn rows(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let mut rows = accepted(client, endpoint);
    rows.extend(claims(endpoint));
    rows.extend(mirrors(client, endpoint));
    rows.extend(parameters(client, endpoint));
    rows.extend(methods(client, endpoint));
    rows.extend(requests(client, endpoint));
    rows
}

fn accepted(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let list = || client.request("tools/list", json!({})).1;
    let params = with_meta(json!({ "requestId": 999 }), &json!({}));
    let body = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    let notification = Request::post(&endpoint.path, body.to_string());
    let no_session = |response: &weir_tests::Response| response.header("mcp-session-id").is_none();
    vec![
        row("a request", list(), &[200], Result),
        row("a discovery", client.request("server/discover", json!({})).1, &[200], Result),
        row("a notification", modern_headers(notification, "notifications/cancelled", &params), &[202], Nothing),
        row("a session id is ignored", list().header("mcp-session-id", "of-another-era"), &[200], That(no_session)),
        row("an event id is ignored", list().header("last-event-id", "7"), &[200], Result),
        row("an Origin elsewhere", list().header("origin", "https://evil.example.com"), &[403], Anything),
        row("an Origin on loopback", list().header("origin", "http://127.0.0.1:3000"), &[200], Result),
        row("a Host elsewhere", list().header("host", "evil.example.com"), &[403, 421], Anything),
    ]
}

/// What the body says of itself, in `_meta`.
fn claims(endpoint: &Endpoint) -> Vec<Row> {
    let version = "io.modelcontextprotocol/protocolVersion";
    let capabilities = "io.modelcontextprotocol/clientCapabilities";
    let list = |meta: Value, header: &str| {
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": { "_meta": meta } });
        Request::post(&endpoint.path, body.to_string())
            .header("mcp-protocol-version", header)
            .header("mcp-method", "tools/list")
    };
    let bare = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#;
    let bare =
        Request::post(&endpoint.path, bare).header("mcp-protocol-version", MODERN).header("mcp-method", "tools/list");
    vec![
        row("no params at all", bare, &[400], Error(-32602)),
        row("an empty _meta", list(json!({}), MODERN), &[400], Error(-32602)),
        row("no version in _meta", list(json!({ capabilities: {} }), MODERN), &[400], Error(-32602)),
        row("no capabilities in _meta", list(json!({ version: MODERN }), MODERN), &[400], Error(-32602)),
        row(
            "capabilities that are a list",
            list(json!({ version: MODERN, capabilities: [] }), MODERN),
            &[400],
            Error(-32602),
        ),
        row("a version that is a number", list(json!({ version: 1, capabilities: {} }), MODERN), &[400], Anything),
        row(
            "a version that never was",
            list(json!({ version: "1900-01-01", capabilities: {} }), "1900-01-01"),
            &[400],
            Error(-32022),
        ),
        row(
            "a legacy version that claims to be modern",
            list(json!({ version: LEGACY, capabilities: {} }), LEGACY),
            &[400],
            Error(-32022),
        ),
        row(
            "no client info, which nobody may demand",
            list(json!({ version: MODERN, capabilities: {} }), MODERN),
            &[200],
            Result,
        ),
    ]
}

/// The headers that must say what the body says.
fn mirrors(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let list = || client.request("tools/list", json!({})).1;
    let tool = format!("{}test_simple_text", endpoint.prefix);
    let call = || client.request("tools/call", json!({ "name": tool, "arguments": {} })).1;
    let read = || client.request("resources/read", json!({ "uri": "test://static-text" })).1;
    let prompt = format!("{}test_simple_prompt", endpoint.prefix);
    let get = || client.request("prompts/get", json!({ "name": prompt })).1;
    let encoded = format!("=?base64?{}?=", STANDARD.encode(&tool));
    let wrong = format!("=?base64?{}?=", STANDARD.encode("another"));
    vec![
        row("no version", list().without("mcp-protocol-version"), &[400], Error(-32020)),
        row("another version", list().header("mcp-protocol-version", LEGACY), &[400], Error(-32020)),
        row("no method", list().without("mcp-method"), &[400], Error(-32020)),
        row("another method", list().header("mcp-method", "prompts/list"), &[400], Error(-32020)),
        row("the method in capitals", list().header("mcp-method", "TOOLS/LIST"), &[400], Error(-32020)),
        row("the method between spaces", list().header("mcp-method", "  tools/list  "), &[200], Result),
        row("a tool with its name", call(), &[200], Result),
        row("a tool without its name", call().without("mcp-name"), &[400], Error(-32020)),
        row("a tool with another name", call().header("mcp-name", "another"), &[400], Error(-32020)),
        row("a name in Base64", call().header("mcp-name", &encoded), &[200], Result),
        row("another name in Base64", call().header("mcp-name", &wrong), &[400], Error(-32020)),
        row("a name in broken Base64", call().header("mcp-name", "=?base64?SGVsbG8?="), &[400], Error(-32020)),
        row("a resource with its URI", read(), &[200], Result),
        row("a resource without its URI", read().without("mcp-name"), &[400], Error(-32020)),
        row("a resource with another URI", read().header("mcp-name", "test://other"), &[400], Error(-32020)),
        row("a prompt with its name", get(), &[200], Result),
        row("a prompt without its name", get().without("mcp-name"), &[400], Error(-32020)),
    ]
}

/// Parameters of a tool that travel in a header too, and what the upstream itself refuses.
fn parameters(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let call = |tool: &str, arguments: Value| {
        let name = format!("{}{tool}", endpoint.prefix);
        client.request("tools/call", json!({ "name": name, "arguments": arguments })).1
    };
    let region = || call("test_x_mcp_header", json!({ "region": "north" }));
    vec![
        row("a parameter with its header", region().header("mcp-param-region", "north"), &[200], Result),
        row("a parameter without its header", region(), &[400], Error(-32020)),
        row("a parameter with another header", region().header("mcp-param-region", "south"), &[400], Error(-32020)),
        row("a capability that is needed", call("test_missing_capability", json!({})), &[400], Error(-32021)),
        row("a tool that nobody has", call("none", json!({})), &[200, 400], Error(-32602)),
    ]
}

fn methods(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let ask = |method: &str| client.request(method, json!({ "uri": "test://watched-resource", "level": "info" })).1;
    let mut rows = vec![
        row("initialize", ask("initialize"), &[404], Error(-32601)),
        row("ping", ask("ping"), &[404], Error(-32601)),
        row("logging/setLevel", ask("logging/setLevel"), &[404], Error(-32601)),
        row("resources/subscribe", ask("resources/subscribe"), &[404], Error(-32601)),
        row("resources/unsubscribe", ask("resources/unsubscribe"), &[404], Error(-32601)),
        row("tasks/list", ask("tasks/list"), &[404], Error(-32601)),
        row("tasks/result", client.request("tasks/result", json!({ "taskId": "1" })).1, &[404], Error(-32601)),
        row("a method that nobody knows", ask("weir-tests/none"), &[404], Error(-32601)),
    ];
    let missing = client.request("resources/read", json!({ "uri": "test://none" })).1;
    rows.push(row("a resource that nobody has", missing, &[200, 400], Error(-32602)));
    let put = Request::new("PUT", &endpoint.path).header("mcp-protocol-version", MODERN);
    rows.push(row("PUT", put, &[405], Anything));
    rows
}

fn requests(client: &Client, endpoint: &Endpoint) -> Vec<Row> {
    let params = with_meta(json!({}), &json!({}));
    let element = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params });
    let batch =
        |elements: Value| modern_headers(Request::post(&endpoint.path, elements.to_string()), "tools/list", &params);
    let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" });
    let list = || client.request("tools/list", json!({})).1;
    vec![
        row("a batch", batch(json!([element])), &[400], Error(-32600)),
        row("a batch of both eras", batch(json!([ping, element])), &[400], Error(-32600)),
        row("half a body", list().body(r#"{"jsonrpc":"2.0","#), &[400], Error(-32700)),
        row("a body of another type", list().header("content-type", "text/plain"), &[415], Anything),
    ]
}

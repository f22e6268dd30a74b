//! The answers of the bench's server as bytes, head and body together, so that each goes out in one write.

use crate::messages::{BURST_EVENTS, Era};
use serde_json::json;
use std::io::Write as _;

/// The result of `server/discover`.
pub(super) const DISCOVERED: &str = r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":600000,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"bench","version":"1"}}}"#;

/// The results of `tools/list`, by era and number of tools.
pub(super) struct Lists {
    pub(super) legacy_20: String,
    pub(super) legacy_500: String,
    pub(super) modern_20: String,
    pub(super) modern_500: String,
}

impl Default for Lists {
    fn default() -> Self {
        Self {
            legacy_20: list(Era::Legacy, 20),
            legacy_500: list(Era::Legacy, 500),
            modern_20: list(Era::Modern, 20),
            modern_500: list(Era::Modern, 500),
        }
    }
}

/// What the token endpoint gives (RFC 6749 §5.1).
pub(super) const TOKEN: &str =
    r#"{"access_token":"not-a-secret-but-as-long-as-they-usually-are","token_type":"Bearer","expires_in":86400}"#;

/// What it is called as an authorization server.
pub(super) fn issuer(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// What the authorization server says of itself (RFC 8414 §2).
pub(super) fn authority(port: u16) -> String {
    let issuer = issuer(port);
    json!({
        "issuer": issuer,
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "grant_types_supported": ["client_credentials"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic"],
    })
    .to_string()
}

/// A response with a JSON document.
pub(super) fn document(out: &mut Vec<u8>, text: &str) {
    let length = text.len().to_string();
    put(out, &["HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ", &length, "\r\n\r\n", text]);
}

/// A response without a body.
pub(super) fn empty(out: &mut Vec<u8>, status: &str) {
    put(out, &["HTTP/1.1 ", status, "\r\ncontent-length: 0\r\n\r\n"]);
}

/// What a message stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A response of its own.
    Http,
    /// An event of a stream that is open already.
    Event,
    /// A line.
    Line,
}

/// A JSON-RPC error.
pub(super) fn error(out: &mut Vec<u8>, framing: Framing, status: &str, id: &str, code: i32, message: &str) {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#);
    whole(out, framing, status, "", &[&body]);
}

/// A result that was built before.
pub(super) fn result(out: &mut Vec<u8>, framing: Framing, id: &str, result: &str) {
    whole(out, framing, "200 OK", "", &[BEFORE_ID, id, BEFORE_RESULT, result, "}"]);
}

/// The answer to `initialize`, with a session of that number.
pub(super) fn initialized(out: &mut Vec<u8>, framing: Framing, id: &str, session: u64) {
    let result =
        r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}}"#;
    let header = format!("mcp-session-id: bench-{session:016x}\r\n");
    whole(out, framing, "200 OK", &header, &[BEFORE_ID, id, BEFORE_RESULT, result, "}"]);
}

/// The payload of the call, a JSON string, as the only content.
pub(super) fn echo(out: &mut Vec<u8>, framing: Framing, era: Era, id: &str, payload: &str) {
    let parts = [BEFORE_ID, id, BEFORE_RESULT, before_text(era), payload, "}]}}"];
    whole(out, framing, "200 OK", "", &parts);
}

/// Progress and then the result, all in one write; as a response, a stream of events, each in a chunk of its own.
pub(super) fn burst(out: &mut Vec<u8>, framing: Framing, era: Era, id: &str, token: Option<&str>) {
    let http = framing == Framing::Http;
    if http {
        put(out, &["HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"]);
        put(out, &["cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"]);
    }
    let event = |out: &mut Vec<u8>, parts: &[&str]| {
        if http {
            let length = EVENT.len() + 2 + parts.iter().map(|part| part.len()).sum::<usize>();
            // Writing to a Vec cannot fail.
            let _ = write!(out, "{length:x}\r\n");
            whole(out, Framing::Event, "", "", parts);
            put(out, &["\r\n"]);
        } else {
            whole(out, framing, "", "", parts);
        }
    };
    for step in 1..=BURST_EVENTS {
        let Some(token) = token else { break };
        let progress = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{step},"total":{BURST_EVENTS},"message":"indexed part {step} of the repository"}}}}"#
        );
        event(out, &[&progress]);
    }
    event(out, &[BEFORE_ID, id, BEFORE_RESULT, before_text(era), "\"done\"}]}}"]);
    if http {
        put(out, &["0\r\n\r\n"]);
    }
}

const EVENT: &str = "event: message\ndata: ";
const BEFORE_ID: &str = r#"{"jsonrpc":"2.0","id":"#;
const BEFORE_RESULT: &str = r#","result":"#;

fn before_text(era: Era) -> &'static str {
    match era {
        Era::Legacy => r#"{"content":[{"type":"text","text":"#,
        Era::Modern => r#"{"resultType":"complete","content":[{"type":"text","text":"#,
    }
}

fn put(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
}

/// One message; status and headers are those of a response.
fn whole(out: &mut Vec<u8>, framing: Framing, status: &str, headers: &str, parts: &[&str]) {
    match framing {
        Framing::Http => {
            let length: usize = parts.iter().map(|part| part.len()).sum();
            put(out, &["HTTP/1.1 ", status, "\r\ncontent-type: application/json\r\n", headers]);
            let _ = write!(out, "content-length: {length}\r\n\r\n");
        }
        Framing::Event => put(out, &[EVENT]),
        Framing::Line => {}
    }
    put(out, parts);
    match framing {
        Framing::Http => {}
        Framing::Event => put(out, &["\n\n"]),
        Framing::Line => put(out, &["\n"]),
    }
}

/// Tools of about 600 bytes each, as real servers have them; the first two are the ones that can be called.
fn list(era: Era, count: usize) -> String {
    let names = ["echo", "burst"].map(String::from).into_iter();
    let names = names.chain((2..).map(|number| format!("search_repository_{number:03}")));
    let tools: Vec<_> = names.take(count).map(|name| tool(&name)).collect();
    let mut result = json!({ "tools": tools });
    if era == Era::Modern {
        result["resultType"] = json!("complete");
        result["ttlMs"] = json!(600_000);
        result["cacheScope"] = json!("public");
    }
    result.to_string()
}

fn tool(name: &str) -> serde_json::Value {
    json!({
        "name": name,
        "title": "Search a repository",
        "description": "Searches the files of one repository for a text or a pattern and returns the matching lines with \
            their paths, most relevant first. Prefer a narrow path: a search over everything is slow.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "payload": { "type": "string", "description": "What to look for" },
                "path": { "type": "string", "description": "Folder to stay in" },
                "limit": { "type": "integer", "minimum": 1, "maximum": 100, "default": 20 },
                "pattern": { "type": "boolean" }
            },
            "required": ["payload"]
        },
        "annotations": { "readOnlyHint": true, "openWorldHint": false }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_have_the_size_of_real_ones() {
        let size = list(Era::Legacy, 500).len() / 500;
        assert!((550..=650).contains(&size), "{size} bytes for each tool");
    }
}

//! What the load generator says, and what it accepts as an answer.
//!
//! A request is built once; between two sends only the ten digits of its id change in place. Each answer is checked for its
//! id, its kind and its size, a stream for every event it must hold; the first answer of a connection is read in full.

use crate::wire::Message;
use memchr::memmem;
use serde_json::Value;
use std::fmt;
use std::net::SocketAddr;
use thiserror::Error;

pub(crate) use weir_mcp::Era;

/// Progress events in the answer of the tool `burst`, before the result.
pub(crate) const BURST_EVENTS: usize = 10;
/// Ids have ten digits from here on, so that a new one fits where the old one stood.
const FIRST_ID: u64 = 1_000_000_000;
/// No tool of the bench's server is smaller in a list, in bytes.
const LEAST_TOOL: usize = 400;

/// What one call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// `tools/call` of `echo` with a payload of so many bytes.
    Call(usize),
    /// `tools/list` of so many tools.
    List(usize),
    /// `tools/call` of `burst`.
    Burst,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(bytes) if bytes % 1024 == 0 => write!(f, "call {} KiB", bytes / 1024),
            Self::Call(bytes) => write!(f, "call {bytes} B"),
            Self::List(tools) => write!(f, "list {tools}"),
            Self::Burst => f.write_str("burst"),
        }
    }
}

/// Where calls go: an address, the path there, what stands before a tool's name on that path, and whose token they bring.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    pub(crate) prefix: &'static str,
    pub(crate) token: Option<String>,
    /// Another gateway at the same store.
    pub(crate) other: Option<SocketAddr>,
}

impl Target {
    /// The header with the token, if there is one.
    fn authorization(&self) -> String {
        self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default()
    }
}

/// Why an answer does not count.
#[derive(Debug, Error, PartialEq)]
pub(crate) enum AnswerError {
    #[error("status {status}: {body}")]
    Status { status: u16, body: String },
    #[error("no result with the id of the request: {0}")]
    NoResult(String),
    #[error("the answer has {0} bytes, too few for what was asked")]
    Short(usize),
    #[error("{lost} of {BURST_EVENTS} progress events lost or out of order")]
    EventsLost { lost: usize },
    #[error("the first answer is wrong: {0}")]
    Wrong(&'static str),
}

/// A request as bytes, ready to be sent again and again.
pub(crate) struct Request {
    bytes: Vec<u8>,
    id_places: Vec<usize>,
    id: u64,
}

impl Request {
    /// A POST of `body` in which every `{ID}` is replaced by an id.
    pub(crate) fn post(target: &Target, headers: &str, body: &str) -> Self {
        let body = body.replace("{ID}", &FIRST_ID.to_string());
        let bytes = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\naccept: application/json, \
             text/event-stream\r\n{}{headers}content-length: {}\r\n\r\n{body}",
            target.path,
            target.address,
            target.authorization(),
            body.len()
        )
        .into_bytes();
        let id_places = memmem::find_iter(&bytes, FIRST_ID.to_string().as_bytes()).collect();
        Self { bytes, id_places, id: FIRST_ID }
    }

    /// The bytes with the next id in place.
    pub(crate) fn next(&mut self) -> &[u8] {
        self.id += 1;
        let digits = self.id.to_string();
        for place in &self.id_places {
            self.bytes[*place..*place + digits.len()].copy_from_slice(digits.as_bytes());
        }
        &self.bytes
    }

    /// The id that was sent last.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

/// The request of `workload`; a legacy one travels in `session`.
pub(crate) fn request(target: &Target, era: Era, workload: Workload, session: Option<&str>) -> Request {
    let (method, name, arguments) = match workload {
        Workload::Call(bytes) => ("tools/call", "echo", format!(r#"{{"payload":"{}"}}"#, "x".repeat(bytes))),
        Workload::List(_) => ("tools/list", "", String::new()),
        Workload::Burst => ("tools/call", "burst", r#"{"payload":"x"}"#.to_owned()),
    };
    let mut meta = Vec::new();
    if workload == Workload::Burst {
        meta.push(r#""progressToken":{ID}"#);
    }
    if era == Era::Modern {
        meta.push(r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#);
        meta.push(r#""io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}"#);
        meta.push(r#""io.modelcontextprotocol/clientCapabilities":{}"#);
    }
    let mut params = Vec::new();
    let mut headers = match era {
        Era::Legacy => legacy_headers(session),
        Era::Modern => format!("mcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\n"),
    };
    if !name.is_empty() {
        params.push(format!(r#""name":"{}{name}","arguments":{arguments}"#, target.prefix));
        if era == Era::Modern {
            headers.push_str(&format!("mcp-name: {}{name}\r\n", target.prefix));
        }
    }
    if !meta.is_empty() {
        params.push(format!(r#""_meta":{{{}}}"#, meta.join(",")));
    }
    let params = params.join(",");
    Request::post(
        target,
        &headers,
        &format!(r#"{{"jsonrpc":"2.0","id":{{ID}},"method":"{method}","params":{{{params}}}}}"#),
    )
}

/// The first message of a legacy session.
pub(crate) fn initialize(target: &Target) -> Request {
    let params = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}"#;
    Request::post(target, "", &format!(r#"{{"jsonrpc":"2.0","id":{{ID}},"method":"initialize","params":{params}}}"#))
}

/// The second message of a legacy session.
pub(crate) fn initialized(target: &Target, session: Option<&str>) -> Request {
    let body = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    Request::post(target, &legacy_headers(session), body)
}

/// The last message of a legacy session.
pub(crate) fn delete(target: &Target, session: &str) -> Vec<u8> {
    let headers = target.authorization() + &legacy_headers(Some(session));
    format!("DELETE {} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", target.path, target.address).into_bytes()
}

/// The request that opens the stream of notifications of a legacy session.
pub(crate) fn listen(target: &Target, session: Option<&str>) -> Vec<u8> {
    let headers = target.authorization() + &legacy_headers(session);
    let Target { path, address, .. } = target;
    format!("GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\n{headers}\r\n").into_bytes()
}

fn legacy_headers(session: Option<&str>) -> String {
    let session = session.map(|id| format!("mcp-session-id: {id}\r\n")).unwrap_or_default();
    format!("mcp-protocol-version: 2025-11-25\r\n{session}")
}

/// Checks what can be checked without reading the whole answer.
pub(crate) fn check(workload: Workload, id: u64, answer: &Message<'_>) -> Result<(), AnswerError> {
    if answer.status() != 200 {
        return Err(AnswerError::Status { status: answer.status(), body: start_of(answer.body) });
    }
    let mut progress = 0;
    let mut result = false;
    if answer.is_event_stream() {
        for data in events(answer.body) {
            match progress_of(data, id) {
                Some(step) if step == progress + 1 => progress = step,
                Some(_) => {}
                None => result |= is_result(data, id),
            }
        }
    } else {
        result = is_result(answer.body, id);
    }
    if !result {
        return Err(AnswerError::NoResult(start_of(answer.body)));
    }
    let least = match workload {
        Workload::Call(bytes) => bytes,
        Workload::List(tools) => tools * LEAST_TOOL,
        Workload::Burst => 0,
    };
    if answer.body.len() < least {
        return Err(AnswerError::Short(answer.body.len()));
    }
    if workload == Workload::Burst && progress != BURST_EVENTS {
        return Err(AnswerError::EventsLost { lost: BURST_EVENTS - progress.min(BURST_EVENTS) });
    }
    Ok(())
}

/// Checks everything; for the first answer of a connection.
pub(crate) fn check_fully(workload: Workload, id: u64, answer: &Message<'_>) -> Result<(), AnswerError> {
    check(workload, id, answer)?;
    let last = if answer.is_event_stream() { events(answer.body).last().unwrap_or_default() } else { answer.body };
    let value: Value = serde_json::from_slice(last).map_err(|_| AnswerError::Wrong("not JSON"))?;
    if value["id"] != id {
        return Err(AnswerError::Wrong("another id"));
    }
    let right = match workload {
        Workload::Call(bytes) => value["result"]["content"][0]["text"].as_str().is_some_and(|text| text.len() == bytes),
        Workload::List(tools) => value["result"]["tools"].as_array().is_some_and(|list| list.len() == tools),
        Workload::Burst => value["result"]["content"][0]["text"] == "done",
    };
    if right { Ok(()) } else { Err(AnswerError::Wrong("not what was asked for")) }
}

/// The data lines of an event stream. The bench's server never splits a message over two.
fn events(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:")).map(|data| data.trim_ascii())
}

fn progress_of(data: &[u8], token: u64) -> Option<usize> {
    memmem::find(data, br#""notifications/progress""#)?;
    memmem::find(data, token.to_string().as_bytes())?;
    let digits = &data[memmem::find(data, br#""progress":"#)? + br#""progress":"#.len()..];
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

fn is_result(message: &[u8], id: u64) -> bool {
    memmem::find(message, br#""result":"#).is_some() && memmem::find(message, id.to_string().as_bytes()).is_some()
}

fn start_of(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned()
}

#[cfg(test)]
mod tests;

//! What the MCP servers have in common that Weir itself is on standard input and output: the demo, and policies that are
//! served as interceptors. Each message says in which era it is.

use std::io;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_mcp::{
    Era,
    answer::{INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, UNSUPPORTED_VERSION},
    era::MODERN_VERSIONS,
    method,
};

const CLAIM: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 4 * 1024 * 1024;

/// What a line of a client is.
pub enum Incoming {
    /// Nothing that wants an answer.
    Nothing,
    /// What cannot be read, with its answer.
    Refused(Value),
    /// The client no longer waits for the answer to this id.
    Cancelled(Value),
    /// A request.
    Request(StdioRequest),
}

/// A request of a client.
pub struct StdioRequest {
    /// Its id.
    pub id: Value,
    /// Its method.
    pub method: String,
    /// Its `params`; null if there are none.
    pub params: Value,
    /// The era that it claims.
    pub era: Era,
}

/// A JSON-RPC error.
pub struct Failure {
    /// Its code.
    pub code: i64,
    /// One sentence.
    pub message: String,
    /// Its `data`.
    pub data: Option<Value>,
}

impl Incoming {
    /// What a line is.
    #[must_use]
    pub fn read(line: &[u8]) -> Self {
        let Ok(mut message) = serde_json::from_slice::<Value>(line) else {
            return Self::Refused(error(&Value::Null, Failure::new(PARSE_ERROR, "not JSON")));
        };
        let Some(method) = message["method"].as_str().filter(|_| message["jsonrpc"] == "2.0").map(str::to_owned) else {
            let is_answer = message.get("result").or(message.get("error")).is_some();
            let refusal = || error(&Value::Null, Failure::new(INVALID_REQUEST, "not a JSON-RPC 2.0 message"));
            return if is_answer { Self::Nothing } else { Self::Refused(refusal()) };
        };
        let (id, params) = (message["id"].take(), message["params"].take());
        match &*method {
            method::CANCELLED => Self::Cancelled(params["requestId"].clone()),
            _ if id.is_null() => Self::Nothing,
            _ => match era(&params) {
                Ok(era) => Self::Request(StdioRequest { id, method, params, era }),
                Err(failure) => Self::Refused(error(&id, failure)),
            },
        }
    }
}

impl StdioRequest {
    /// The answer, with what every result carries in the modern era, and what those carry that may be cached (2026-07-28).
    #[must_use]
    pub fn answered(&self, outcome: Result<Value, Failure>, server_info: &Value) -> Value {
        let mut result = match outcome {
            Ok(result) => result,
            Err(failure) => return error(&self.id, failure),
        };
        if self.era == Era::Modern {
            let method = &*self.method;
            result["resultType"] = json!("complete");
            result["_meta"] = json!({ SERVER_INFO: server_info });
            if method == method::DISCOVER || method == method::RESOURCES_READ || method::is_list(method) {
                // Nothing here ever changes, and it is the same for everybody.
                result["ttlMs"] = json!(3_600_000);
                result["cacheScope"] = json!("public");
            }
        }
        json!({"jsonrpc": "2.0", "id": self.id, "result": result})
    }
}

impl Failure {
    /// An error without `data`.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

/// The next line that is not blank; none at the end. `line` is what it is read into. One that is too long is empty: a part
/// of it could be a message of its own.
///
/// # Errors
///
/// When the stream breaks.
pub async fn next_line<'a>(
    stdin: &mut (impl AsyncBufRead + Unpin),
    line: &'a mut Vec<u8>,
) -> io::Result<Option<&'a [u8]>> {
    loop {
        line.clear();
        if (&mut *stdin).take(MAX_LINE).read_until(b'\n', line).await? == 0 {
            return Ok(None);
        }
        let is_whole = line.ends_with(b"\n") || (line.len() as u64) < MAX_LINE;
        if is_whole && !line.trim_ascii().is_empty() {
            return Ok(Some(line));
        }
        if !is_whole {
            while !line.ends_with(b"\n") {
                line.clear();
                if (&mut *stdin).take(MAX_LINE).read_until(b'\n', line).await? == 0 {
                    break;
                }
            }
            line.clear();
            return Ok(Some(line));
        }
    }
}

/// Writes a message on a line of its own.
///
/// # Errors
///
/// When the stream breaks.
pub async fn write_line(stdout: &mut (impl AsyncWrite + Unpin), message: &Value) -> io::Result<()> {
    stdout.write_all(format!("{message}\n").as_bytes()).await?;
    stdout.flush().await
}

/// The era of a request, which is modern if it claims a version in `_meta`.
fn era(params: &Value) -> Result<Era, Failure> {
    let meta = &params["_meta"];
    match meta.get(CLAIM) {
        None => Ok(Era::Legacy),
        Some(version) if !MODERN_VERSIONS.iter().any(|known| version == known) => Err(Failure {
            data: Some(json!({"supported": MODERN_VERSIONS, "requested": version})),
            ..Failure::new(UNSUPPORTED_VERSION, "Unsupported protocol version")
        }),
        Some(_) if !meta[CAPABILITIES].is_object() => {
            Err(Failure::new(INVALID_PARAMS, format!("`_meta` lacks `{CAPABILITIES}`")))
        }
        Some(_) => Ok(Era::Modern),
    }
}

fn error(id: &Value, failure: Failure) -> Value {
    let mut body = Map::from_iter([("code".into(), failure.code.into()), ("message".into(), failure.message.into())]);
    body.extend(failure.data.map(|data| ("data".into(), data)));
    json!({"jsonrpc": "2.0", "id": id, "error": body})
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[tokio::test]
    async fn no_part_of_a_line_that_is_too_long_is_a_message() {
        let hidden = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}";
        let padding = " ".repeat(usize::try_from(MAX_LINE).unwrap());
        let lines = format!("{padding}{hidden}{padding}x\n\n{hidden}\n{padding}");
        let (mut stdin, mut line) = (lines.as_bytes(), Vec::new());
        assert_eq!(next_line(&mut stdin, &mut line).await.unwrap(), Some(&b""[..]));
        assert_eq!(next_line(&mut stdin, &mut line).await.unwrap(), Some(format!("{hidden}\n").as_bytes()));
        assert_eq!(next_line(&mut stdin, &mut line).await.unwrap(), Some(&b""[..]));
        assert_eq!(next_line(&mut stdin, &mut line).await.unwrap(), None);
        assert!(matches!(Incoming::read(b""), Incoming::Refused(_)));
    }
}

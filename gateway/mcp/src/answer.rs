//! Messages that Weir writes itself, and the error codes it may write.

use bytes::Bytes;

use crate::json;

/// The bytes are not JSON (JSON-RPC 2.0 §5.1).
pub const PARSE_ERROR: i64 = -32700;
/// JSON, but not a message (JSON-RPC 2.0 §5.1).
pub const INVALID_REQUEST: i64 = -32600;
/// The method does not exist here (JSON-RPC 2.0 §5.1).
pub const METHOD_NOT_FOUND: i64 = -32601;
/// Wrong parameters; also an unknown tool, prompt, cursor, and since 2026-07-28 an unknown resource.
pub const INVALID_PARAMS: i64 = -32602;
/// The fault is on this side (JSON-RPC 2.0 §5.1).
pub const INTERNAL: i64 = -32603;
/// What legacy servers use for faults of the transport.
pub const SERVER_ERROR: i64 = -32000;
/// An unknown resource, up to 2025-11-25; must not be sent to modern clients.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// The user must visit a URL first (2025-11-25 only); must not be sent to modern clients.
pub const URL_ELICITATION_REQUIRED: i64 = -32042;
/// A required header is absent, malformed or disagrees with the body (2026-07-28).
pub const HEADER_MISMATCH: i64 = -32020;
/// The client did not declare a capability that this request needs (2026-07-28).
pub const MISSING_CAPABILITY: i64 = -32021;
/// The version is not spoken here; `data` has `supported` and `requested` (2026-07-28).
pub const UNSUPPORTED_VERSION: i64 = -32022;

/// An error response. `id` and `data` are raw JSON; without an id it says `null`.
pub fn error(id: Option<&[u8]>, code: i64, message: &str, data: Option<&str>) -> Bytes {
    let message = json::quote(message);
    let (before, data) = data.map_or(("", ""), |data| (",\"data\":", data));
    let rest = format!(",\"error\":{{\"code\":{code},\"message\":{message}{before}{data}}}}}");
    join(&[b"{\"jsonrpc\":\"2.0\",\"id\":", id.unwrap_or(b"null"), rest.as_bytes()])
}

/// A response. `id` and `raw_result` are raw JSON.
pub fn result(id: &[u8], raw_result: &[u8]) -> Bytes {
    join(&[b"{\"jsonrpc\":\"2.0\",\"id\":", id, b",\"result\":", raw_result, b"}"])
}

/// A request of Weir's own. `id` and `raw_params` are raw JSON.
pub fn request(id: &[u8], method: &str, raw_params: Option<&[u8]>) -> Bytes {
    called(&[b"\"id\":", id, b","], method, raw_params)
}

/// A notification of Weir's own. `raw_params` is raw JSON.
pub fn notification(method: &str, raw_params: Option<&[u8]>) -> Bytes {
    called(&[], method, raw_params)
}

fn called(id: &[&[u8]], method: &str, raw_params: Option<&[u8]>) -> Bytes {
    let method = json::quote(method);
    let before: &[u8] = if raw_params.is_some() { b",\"params\":" } else { b"" };
    let head: &[u8] = b"{\"jsonrpc\":\"2.0\",";
    let tail: [&[u8]; 5] = [b"\"method\":", method.as_bytes(), before, raw_params.unwrap_or_default(), b"}"];
    join(&[&[head], id, &tail].concat())
}

fn join(parts: &[&[u8]]) -> Bytes {
    parts.concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Message};

    #[test]
    fn what_is_written_can_be_read() {
        let message = Message::parse(error(Some(b"\"a\""), INVALID_PARAMS, "no \"x\"\n", Some("{\"k\":1}"))).unwrap();
        assert_eq!(
            (message.kind(), message.id(), message.error_code()),
            (Kind::Error, Some(&b"\"a\""[..]), Some(-32602))
        );
        let nameless = error(None, PARSE_ERROR, "bad", None);
        assert_eq!(&nameless[..], br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"bad"}}"#);
        assert_eq!(Message::parse(nameless).unwrap().id(), None);
        assert_eq!(&result(b"1", b"{}")[..], br#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(&request(b"1", "ping", None)[..], br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        assert_eq!(&notification("a", Some(b"{}"))[..], br#"{"jsonrpc":"2.0","method":"a","params":{}}"#);
    }
}

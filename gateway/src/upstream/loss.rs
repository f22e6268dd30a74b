//! How servers say that they no longer know a session.
//!
//! Streamable HTTP has 404 for it (MCP 2025-11-25, basic/transports, "Session Management"), HTTP+SSE nothing. Real servers
//! also answer 400, 500 or 503 and say in words what is gone; in all of these the message was not looked at. So it is where
//! a server has become one of the modern era, which misses the headers or the version of that era.

use bytes::Bytes;
use weir_mcp::{Message, answer, message::Kind};

/// How much of a body is searched for words, in bytes.
const SEARCHED: usize = 64 * 1024;

/// Whether an answer with this status may be about the session.
pub(super) const fn may_be(status: u16) -> bool {
    matches!(status, 400 | 404 | 410 | 503)
}

/// Whether the answer to a message of a session says that the session is gone. The body may also be the answer itself.
pub(super) fn in_answer(status: u16, body: &[u8]) -> bool {
    let error = error_code(body);
    match status {
        // A method that is not known is an answer, whatever its status.
        404 => error != Some(answer::METHOD_NOT_FOUND),
        410 => true,
        400 if matches!(error, Some(answer::HEADER_MISMATCH | answer::UNSUPPORTED_VERSION)) => true,
        // An error of the call has another code, and may hold any words.
        400 | 503 => error.is_none_or(is_of_transport) && mentions(body, &["session", "not initialized"]),
        _ => false,
    }
}

/// Whether what a POST beside the stream of HTTP+SSE was turned away with says so. No answer to a call comes here.
pub(super) fn beside_stream(status: u16, body: &[u8]) -> bool {
    match status {
        404 | 410 => true,
        400 | 500 | 503 => mentions(body, &["session", "transport", "connection"]),
        _ => false,
    }
}

fn error_code(body: &[u8]) -> Option<i64> {
    let message = Message::parse(Bytes::copy_from_slice(head(body))).ok()?;
    (message.kind() == Kind::Error).then(|| message.error_code()).flatten()
}

/// Codes that servers use for what never reached a handler.
const fn is_of_transport(code: i64) -> bool {
    code == answer::INVALID_REQUEST || matches!(code, -32099..=-32000)
}

fn mentions(body: &[u8], words: &[&str]) -> bool {
    let text = String::from_utf8_lossy(head(body)).to_ascii_lowercase();
    words.iter().any(|word| text.contains(word))
}

fn head(body: &[u8]) -> &[u8] {
    body.get(..SEARCHED).unwrap_or(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i64, text: &str) -> Vec<u8> {
        format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":{code},"message":"{text}"}}}}"#).into_bytes()
    }

    #[test]
    fn a_lost_session_is_told_from_an_answer() {
        for (status, body) in [
            (404, Vec::new()),
            (404, error(-32001, "Session not found")),
            (404, error(-32600, "Not Found: Invalid or expired session ID")),
            (410, Vec::new()),
            (400, error(-32000, "Bad Request: No valid session ID provided")),
            (400, error(-32000, "Bad Request: Server not initialized")),
            (400, b"Invalid or missing session ID".to_vec()),
            (400, error(-32022, "Unsupported protocol version")),
            (400, error(-32020, "Bad Request: Mcp-Method header is required")),
            (503, b"No active SSE connection for session 1".to_vec()),
        ] {
            assert!(may_be(status) && in_answer(status, &body), "{status} {}", String::from_utf8_lossy(&body));
        }
        for (status, body) in [
            (404, error(-32601, "Method not found")),
            (400, error(-32602, "session_name is missing")),
            (400, br#"{"jsonrpc":"2.0","id":1,"result":{"text":"missing argument"}}"#.to_vec()),
            (400, b"Could not parse message".to_vec()),
            (400, error(-32021, "Missing required client capability")),
            (503, b"Gateway is shutting down".to_vec()),
            (503, error(-32603, "Too many open sessions")),
            (422, b"session".to_vec()),
        ] {
            assert!(!in_answer(status, &body), "{status} {}", String::from_utf8_lossy(&body));
        }
    }

    #[test]
    fn beside_a_stream_more_words_mean_it() {
        assert!(beside_stream(404, b""));
        assert!(beside_stream(400, b"No active transport found for sessionId"));
        assert!(beside_stream(400, b"Invalid session ID"));
        assert!(beside_stream(500, b"SSE connection not established"));
        assert!(beside_stream(503, b"No active SSE connection for session 1"));
        assert!(!beside_stream(400, b"Could not parse message"));
        assert!(!beside_stream(503, b"try again later"));
        assert!(!beside_stream(422, b"session"));
    }
}

//! Before the first step: knocking without a credential, to be refused. What an upstream says then is where the way to a
//! token begins, and a sign-in that no call has asked for has not heard it yet.

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{Challenge, Http, HttpError};

/// What an upstream says to somebody without a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It wants one; with its challenge that a token answers, if it sends one.
    Refused(Option<Challenge>),
    /// Something else, with this status. It may let some requests through and not others.
    Answered(u16),
}

/// What most servers protect, though some say hello to everybody. One of the legacy era refuses it without a session, and
/// before that for want of a token.
const LIST: &str = r#"{"jsonrpc":"2.0","id":0,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"weir","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}}}"#;
/// The first words of a client that can do nothing.
const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"weir","version":"0"}}}"#;

/// Asks the upstream at `url` without a credential: as Streamable HTTP does, and if it does not know that, as HTTP+SSE.
///
/// # Errors
/// If it cannot be reached, or must not be.
pub async fn probe(http: &Http, url: &Url) -> Result<Probed, HttpError> {
    let posted = HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream")),
    ]);
    let mut listed = posted.clone();
    listed.insert("mcp-protocol-version", HeaderValue::from_static("2026-07-28"));
    listed.insert("mcp-method", HeaderValue::from_static("tools/list"));
    let got = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("text/event-stream"))]);
    let requests = [(Method::POST, listed, LIST), (Method::POST, posted, HELLO), (Method::GET, got, "")];
    let mut answered = 0;
    for (method, headers, body) in requests {
        let answer = http.request(method, url, headers, Some(body.into())).await?;
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED {
            return Ok(Probed::Refused(challenge(answer.headers())));
        }
        answered = status.as_u16();
        if status.is_success() {
            break;
        }
    }
    Ok(Probed::Answered(answered))
}

fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    Challenge::token(headers.get_all(header::WWW_AUTHENTICATE).iter().map(HeaderValue::as_bytes))
}

//! Before the first step: knocking without a credential, to be refused. What an upstream says then is where the way to a
//! token begins, and a sign-in that no call has asked for has not heard it yet.

use http::{HeaderMap, Method, Request, StatusCode, header};
use url::Url;

use crate::{Challenge, Http, HttpError};

/// What an upstream says to somebody without a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It wants one; with its `Bearer` challenge, if it sends one.
    Refused(Option<Challenge>),
    /// Something else, with this status. It may let some requests through and not others.
    Answered(u16),
}

/// The first words of a client that can do nothing.
const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"weir","version":"0"}}}"#;

/// Asks the upstream at `url` without a credential: as Streamable HTTP does, and if it does not know that, as HTTP+SSE.
///
/// # Errors
/// If it cannot be reached, or must not be.
pub async fn probe(http: &Http, url: &Url) -> Result<Probed, HttpError> {
    let posted = Request::builder()
        .method(Method::POST)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream")
        .body(HELLO.as_bytes().to_vec());
    let got = Request::builder().header(header::ACCEPT, "text/event-stream").body(Vec::new());
    let mut answered = 0;
    for request in [posted, got].into_iter().flatten() {
        let (status, headers) = http.head_of(url, request).await?;
        if status == StatusCode::UNAUTHORIZED {
            return Ok(Probed::Refused(challenge(&headers)));
        }
        answered = status.as_u16();
        if status.is_success() {
            break;
        }
    }
    Ok(Probed::Answered(answered))
}

fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    Challenge::bearer(headers.get_all(header::WWW_AUTHENTICATE).iter().map(header::HeaderValue::as_bytes))
}

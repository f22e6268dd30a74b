//! Every refusal that the server makes by itself: status, JSON-RPC code and words, in one place.

use weir_mcp::{Message, ParseError, answer, classify::Rejection};

use crate::{credential::TokenStoreError, proxy::Answer};

use super::{listen::BodyError, origin_check};

/// 403: Host or Origin.
pub(super) fn forbidden(why: &origin_check::OriginRefusal) -> Answer {
    plain(403, answer::INVALID_REQUEST, &why.to_string())
}

/// 404: nothing lives at this path.
pub(super) fn no_such_path(path: &str, names: impl FnOnce() -> Vec<String>) -> Answer {
    let text = match path.strip_prefix("/mcp/").or_else(|| path.strip_prefix("/sse/")) {
        Some(_) => match names().join(", ") {
            none if none.is_empty() => "no upstream or toolset has this name".to_owned(),
            all => format!("no upstream or toolset has this name; there are: {all}"),
        },
        None => "nothing is here; MCP is at /mcp and /mcp/<upstream>, HTTP+SSE at /sse and /sse/<upstream>".to_owned(),
    };
    plain(404, answer::INVALID_REQUEST, &text)
}

/// 405.
pub(super) fn method(allow: &'static str) -> Answer {
    Answer { allow: Some(allow), ..plain(405, answer::INVALID_REQUEST, "this method is not allowed here") }
}

/// 406.
pub(super) fn not_acceptable(wanted: &str) -> Answer {
    plain(406, answer::INVALID_REQUEST, &format!("the Accept header must list {wanted}"))
}

/// 415.
pub(super) fn not_json() -> Answer {
    plain(415, answer::INVALID_REQUEST, "the Content-Type must be application/json")
}

/// 413 and other ends of a body.
pub(super) fn body(why: &BodyError, limit: usize) -> Answer {
    match why {
        BodyError::TooLarge => plain(
            413,
            answer::INVALID_REQUEST,
            &format!("the body is over {limit} bytes; `limits.body` sets the limit"),
        ),
        BodyError::Full(full) => Answer::full(None, full),
        BodyError::TimedOut => plain(
            408,
            answer::INVALID_REQUEST,
            "the body took longer than `limits.body_timeout` allows, or paused too long",
        ),
        BodyError::BrokenOff => plain(400, answer::INVALID_REQUEST, "the body broke off"),
    }
}

/// 400: not JSON, or not JSON-RPC.
pub(super) fn malformed(why: &ParseError) -> Answer {
    plain(400, why.code(), &why.to_string())
}

/// What the era's own rules say.
pub(super) fn rejected(why: &Rejection, id: Option<&[u8]>) -> Answer {
    Answer::whole(why.status, answer::error(id, why.code, &why.message, why.data.as_deref()))
}

/// 400: a request that needs a session and names none.
pub(super) fn session_missing() -> Answer {
    plain(400, answer::INVALID_REQUEST, "Mcp-Session-Id is missing; begin with initialize")
}

/// 404: a session that is not, or not any more.
pub(super) fn session_unknown() -> Answer {
    plain(404, SESSION_NOT_FOUND, "Session not found; begin again with initialize")
}

/// 503: the store does not say which gateway has a session, or cannot be told.
pub(super) fn store_away(why: &TokenStoreError) -> Answer {
    tracing::debug!(error = %why, "a session cannot be looked up");
    plain(503, answer::INTERNAL, "the store of sessions is away; try again in some seconds")
}

/// 503: the store cannot be told of a session.
pub(super) fn session_not_shared(id: Option<&[u8]>) -> Answer {
    let text = "the store of sessions is away, and no session can begin; try again in some seconds";
    Answer::whole(503, answer::error(id, answer::INTERNAL, text, None))
}

/// 503: a session is at another gateway, which cannot be reached.
pub(super) fn gateway_away(why: &str) -> Answer {
    tracing::debug!(error = why, "the gateway that has a session cannot be reached");
    plain(503, answer::INTERNAL, "the gateway that has this session cannot be reached; try again in some seconds")
}

/// 502: the gateway that ran a request is gone, and nobody knows how far it came.
pub(super) fn gateway_lost(id: Option<&[u8]>) -> Answer {
    Answer::whole(502, answer::error(id, answer::INTERNAL, GATEWAY_LOST, None))
}

/// What becomes of a call whose gateway dies.
pub(super) const GATEWAY_LOST: &str = "the gateway that ran this call has ended, and the call may have run";

/// 400: a POST of HTTP+SSE that names no stream.
pub(super) fn stream_missing() -> Answer {
    plain(400, answer::INVALID_REQUEST, "sessionId is missing from the query; GET /sse names the address to post to")
}

/// 404: a stream that is not, or not any more.
pub(super) fn stream_unknown() -> Answer {
    plain(404, SESSION_NOT_FOUND, "Session not found; a session of HTTP+SSE ends with its stream: open it again")
}

/// 400: a message of an era that HTTP+SSE cannot carry.
pub(super) fn stream_is_legacy() -> Answer {
    plain(400, answer::INVALID_REQUEST, "HTTP+SSE carries no version after 2025-11-25; POST to /mcp instead")
}

/// 503: more requests than one stream may have.
pub(super) fn stream_is_busy() -> Answer {
    plain(503, answer::INTERNAL, "too many requests of this session run already; wait for their answers")
}

/// 503: no id can be made for a stream.
pub(super) fn no_randomness() -> Answer {
    plain(503, answer::INTERNAL, "the system has no randomness to give")
}

/// A request that came before `initialize`, on a transport without status codes for it.
pub(super) fn not_introduced(request: &Message) -> Answer {
    Answer::whole(400, answer::error(request.id(), answer::INVALID_REQUEST, "begin with initialize", None))
}

/// A request on a stream at which something else is served now, or nothing.
pub(super) fn stream_is_over(request: &Message) -> Answer {
    let text = "the configuration has changed, and this session is over; open the stream again";
    Answer::whole(404, answer::error(request.id(), SESSION_NOT_FOUND, text, None))
}

/// 400: `initialize` where a session is already, or among others.
pub(super) fn second_initialize(id: Option<&[u8]>) -> Answer {
    let text = "initialize must come alone and without Mcp-Session-Id";
    Answer::whole(400, answer::error(id, answer::INVALID_REQUEST, text, None))
}

/// 400: a batch that is too long.
pub(super) fn batch_too_long(most: usize) -> Answer {
    plain(400, answer::INVALID_REQUEST, &format!("a batch may hold {most} messages"))
}

/// What the SDKs use for an unknown session, from the range that the legacy era leaves open.
const SESSION_NOT_FOUND: i64 = -32001;

fn plain(status: u16, code: i64, text: &str) -> Answer {
    Answer::whole(status, answer::error(None, code, text, None))
}

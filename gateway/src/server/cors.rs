//! Pages in browsers that are hosts (the Fetch standard, "CORS protocol"): what lets one from another origin call Weir.
//!
//! The `origin_check` has already turned away every origin that is not of this machine or configured, so each
//! that gets here is told that it may. No cookies are in play, and a page can hold no session but one it has opened.

use crate::http::{HeaderName, HeaderValue};

use super::listen::HttpExchange;

const ALLOW_ORIGIN: HeaderName = HeaderName::from_static("access-control-allow-origin");
const ALLOW_METHODS: HeaderName = HeaderName::from_static("access-control-allow-methods");
const ALLOW_HEADERS: HeaderName = HeaderName::from_static("access-control-allow-headers");
const EXPOSE_HEADERS: HeaderName = HeaderName::from_static("access-control-expose-headers");
const MAX_AGE: HeaderName = HeaderName::from_static("access-control-max-age");
const VARY: HeaderName = HeaderName::from_static("vary");

/// For a page that does not say which headers it wants to send.
const USUAL: HeaderValue = HeaderValue::from_static(
    "accept, authorization, content-type, dpop, last-event-id, mcp-method, mcp-name, mcp-protocol-version, mcp-session-id, \
     x-api-key",
);

/// What every answer to a page says.
pub(super) fn add(exchange: &HttpExchange, head: &mut Vec<(HeaderName, HeaderValue)>) {
    let Some(origin) = exchange.value("origin") else { return };
    head.push((ALLOW_ORIGIN, origin.clone()));
    head.push((EXPOSE_HEADERS, HeaderValue::from_static("mcp-session-id, www-authenticate, dpop-nonce")));
    head.push((VARY, HeaderValue::from_static("Origin")));
}

/// Answers the question of a browser whether a page may call; the call itself is judged when it comes.
pub(super) async fn preflight(exchange: &mut HttpExchange) {
    let mut head = Vec::with_capacity(6);
    add(exchange, &mut head);
    head.push((ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE")));
    // Tools may name headers of their own (`Mcp-Param-*`), so there is no list of all.
    let wanted = exchange.value("access-control-request-headers").filter(|wanted| is_list(wanted.as_bytes()));
    head.push((ALLOW_HEADERS, wanted.cloned().unwrap_or(USUAL)));
    head.push((MAX_AGE, HeaderValue::from_static("7200")));
    exchange.respond(204, &head, bytes::Bytes::new()).await;
}

/// Whether a page asks whether it may call, rather than calling.
pub(super) fn is_preflight(exchange: &HttpExchange) -> bool {
    exchange.method() == "OPTIONS"
        && exchange.value("origin").is_some()
        && exchange.value("access-control-request-method").is_some()
}

/// Names of headers with commas between, of a sane length.
fn is_list(text: &[u8]) -> bool {
    text.len() <= 4096 && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_, ".contains(byte))
}

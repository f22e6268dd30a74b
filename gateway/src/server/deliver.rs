//! Answers on the wire.

use std::time::Instant;

use bytes::Bytes;
use tokio::sync::watch;
use weir_mcp::answer;

use crate::{
    http::{self, HeaderName, HeaderValue},
    relay::{Answer, Body, CLIENT_GONE},
    upstream::{JsonBody, SendError},
};

use super::{cors, events, listen::Exchange};

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Writes a short text.
pub(super) async fn text(exchange: &mut Exchange, status: u16, text: &'static str) {
    exchange.respond(status, &[(http::CONTENT_TYPE, TEXT)], Bytes::from_static(text.as_bytes())).await;
}

/// Writes JSON that is all here.
pub(super) async fn json(exchange: &mut Exchange, status: u16, body: Bytes) {
    exchange.respond(status, &[(http::CONTENT_TYPE, JSON)], body).await;
}

/// Writes a document that every page may read which may call.
pub(super) async fn document(exchange: &mut Exchange, body: Bytes) {
    let mut head = Vec::with_capacity(4);
    cors::add(exchange, &mut head);
    head.push((http::CONTENT_TYPE, JSON));
    exchange.respond(200, &head, body).await;
}

/// Writes an answer as it comes, and the log's line after it.
pub(super) async fn deliver(exchange: &mut Exchange, answer: Answer, draining: watch::Receiver<bool>) {
    let Answer { mut status, session, allow, body, mut record } = answer;
    let mut head: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(6);
    if let Some(session) = session {
        head.push((http::MCP_SESSION_ID, session));
    }
    if let Some(allow) = allow {
        head.push((http::ALLOW, HeaderValue::from_static(allow)));
    }
    if matches!(status, 429 | 503) {
        head.push((http::RETRY_AFTER, HeaderValue::from_static("5")));
    }
    // A page that may not call may not read why either.
    if status != 403 {
        cors::add(exchange, &mut head);
    }
    match body {
        Body::Empty => exchange.respond(status, &head, Bytes::new()).await,
        Body::Whole(parts) => whole(exchange, status, head, parts).await,
        Body::Json(body, deadline) => match coming(exchange, status, head, body, deadline).await {
            Ok(()) => {}
            Err(Unfinished::Gone) => status = CLIENT_GONE,
            Err(why) => {
                if let Some(record) = &mut record {
                    record.failure = Some(why.to_string());
                }
            }
        },
        Body::Events(delivery) => events::deliver(exchange, status, head, delivery, draining).await,
    }
    if let Some(record) = record {
        record.finish(status, exchange.sent());
    }
}

async fn whole(exchange: &mut Exchange, status: u16, mut head: Vec<(HeaderName, HeaderValue)>, parts: [Bytes; 3]) {
    head.push((http::CONTENT_TYPE, JSON));
    let [first, second, third] = parts;
    if second.is_empty() && third.is_empty() {
        exchange.respond(status, &head, first).await;
        return;
    }
    let length = first.len() + second.len() + third.len();
    if length <= JOINED {
        let mut joined = Vec::with_capacity(length);
        for part in [first, second, third] {
            joined.extend_from_slice(&part);
        }
        exchange.respond(status, &head, joined.into()).await;
        return;
    }
    exchange.start(status, &head, Some(length)).await;
    for part in [first, second, third] {
        if !exchange.write(part).await {
            return;
        }
    }
    exchange.end().await;
}

/// Up to here copying parts together is cheaper than writing them one by one, in bytes.
const JOINED: usize = 128 * 1024;

/// Passes on JSON as it comes; the error says why it did not come to its end.
async fn coming(
    exchange: &mut Exchange,
    status: u16,
    mut head: Vec<(HeaderName, HeaderValue)>,
    mut body: JsonBody,
    deadline: Instant,
) -> Result<(), Unfinished> {
    head.push((http::CONTENT_TYPE, JSON));
    let length = body.length();
    let first = match piece(exchange, &mut body, deadline).await {
        Ok(first) => first.unwrap_or_default(),
        Err(why) => {
            // Nothing is out yet, so the client can still be told.
            let message = answer::error(None, answer::INTERNAL, &format!("the upstream's answer: {why}"), None);
            exchange.respond(502, &head, message).await;
            return Err(why);
        }
    };
    if length == Some(first.len()) {
        exchange.respond(status, &head, first).await;
        // Read to its end, so that the upstream's connection can be used again.
        drop(body.chunk().await);
        return Ok(());
    }
    exchange.start(status, &head, length).await;
    let mut next = Some(first);
    while let Some(bytes) = next {
        if !exchange.write(bytes).await {
            return Err(Unfinished::Gone);
        }
        next = match piece(exchange, &mut body, deadline).await {
            Ok(next) => next,
            Err(why) => {
                exchange.cut();
                return Err(why);
            }
        };
    }
    exchange.end().await;
    Ok(())
}

/// Why an answer did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Unfinished {
    #[error("the client is gone")]
    Gone,
    #[error("broke off: {0}")]
    Broken(#[from] SendError),
    #[error("took longer than `timeouts.overall`")]
    Late,
}

/// The next piece, as long as there is time and a client.
async fn piece(exchange: &mut Exchange, body: &mut JsonBody, deadline: Instant) -> Result<Option<Bytes>, Unfinished> {
    tokio::select! {
        biased;
        piece = body.chunk() => Ok(piece?),
        () = exchange.gone() => Err(Unfinished::Gone),
        () = tokio::time::sleep_until(deadline.into()) => Err(Unfinished::Late),
    }
}

//! Answers on the wire.

use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    http::{self, HeaderName, HeaderValue},
    proxy::{Answer, Body, CLIENT_GONE},
};

use super::{cors, events, listen::HttpExchange};

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Writes a short text.
pub(super) async fn text(exchange: &mut HttpExchange, status: u16, text: &'static str) {
    exchange.respond(status, &[(http::CONTENT_TYPE, TEXT)], Bytes::from_static(text.as_bytes())).await;
}

/// Writes JSON that is all here.
pub(super) async fn json(exchange: &mut HttpExchange, status: u16, body: Bytes) {
    exchange.respond(status, &[(http::CONTENT_TYPE, JSON)], body).await;
}

/// Writes a document that every page may read which may call.
pub(super) async fn document(exchange: &mut HttpExchange, body: Bytes) {
    let mut head = Vec::with_capacity(4);
    cors::add(exchange, &mut head);
    head.push((http::CONTENT_TYPE, JSON));
    exchange.respond(200, &head, body).await;
}

/// Writes an answer as it comes, and the log's line after it.
pub(super) async fn deliver(exchange: &mut HttpExchange, answer: Answer, draining: watch::Receiver<bool>) {
    let Answer { mut status, session, allow, retry_after, body, mut record } = answer;
    let mut head: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(6);
    if let Some(session) = session {
        head.push((http::MCP_SESSION_ID, session));
    }
    if let Some(allow) = allow {
        head.push((http::ALLOW, HeaderValue::from_static(allow)));
    }
    if matches!(status, 429 | 503) {
        head.push((http::RETRY_AFTER, HeaderValue::from(retry_after.unwrap_or(5))));
    }
    // A page that may not call may not read why either.
    if status != 403 {
        cors::add(exchange, &mut head);
    }
    match body {
        Body::Empty => exchange.respond(status, &head, Bytes::new()).await,
        Body::Whole(parts) => whole(exchange, status, head, parts).await,
        Body::Json(pending) => {
            let gathered = tokio::select! {
                biased;
                gathered = pending.gather() => Some(gathered),
                () = exchange.gone() => None,
            };
            match gathered {
                Some(mut answer) => {
                    status = answer.status;
                    if let Some(record) = &mut record {
                        record.came_to(&mut answer);
                        record.release();
                    }
                    whole(exchange, status, head, [answer.message, Bytes::new(), Bytes::new()]).await;
                }
                None => status = CLIENT_GONE,
            }
        }
        Body::Events(delivery) => events::deliver(exchange, status, head, delivery, draining).await,
    }
    if let Some(record) = record {
        record.finish(status, exchange.sent());
    }
}

async fn whole(exchange: &mut HttpExchange, status: u16, mut head: Vec<(HeaderName, HeaderValue)>, parts: [Bytes; 3]) {
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

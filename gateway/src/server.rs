//! What is in front: HTTP, or the standard input and output of a program ([`stdio`]).
//!
//! Over HTTP, [`listen`] holds pingora; [`guard`] turns away what a browser was tricked into sending, [`cors`] lets in the
//! pages that may, [`callers`] those who prove who they are; [`post`] sorts messages by era and session; [`sse`] serves clients of HTTP+SSE; [`deliver`] writes
//! answers and [`events`] those that are streams. Every refusal is made in [`refusal`].

pub mod callers;
pub mod client_metadata;
pub mod connect;
mod cors;
mod deliver;
mod events;
pub mod guard;
mod health;
pub mod listen;
mod messages;
mod post;
mod refusal;
mod slow;
mod sse;
pub mod stdio;

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    relay::{Answer, Relay},
    session::Endpoint,
};

use callers::Callers;
use connect::Connect;
use guard::Guard;
use listen::{Exchange, Handler};

/// What answers requests.
pub struct App {
    relay: Arc<Relay>,
    guard: Guard,
    callers: Callers,
    connect: Connect,
    /// The longest body that is read, in bytes.
    body_limit: usize,
    draining: watch::Sender<bool>,
    /// Those of HTTP+SSE.
    streams: sse::Streams,
}

/// What lives at a path.
enum Place {
    /// Streamable HTTP.
    Mcp(Endpoint),
    /// The streams of HTTP+SSE.
    Sse(Endpoint),
    /// Where messages go beside them.
    Messages,
}

impl App {
    /// An app over a relay.
    #[must_use]
    pub fn new(relay: Arc<Relay>, guard: Guard, callers: Callers, connect: Connect, body_limit: usize) -> Self {
        let draining = watch::Sender::new(false);
        Self { relay, guard, callers, connect, body_limit, draining, streams: sse::Streams::default() }
    }

    /// Says in `/readyz` that no new work should come, and ends the streams that would never end by themselves.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// What lives at a path. A POST beside a stream goes to the folder that the stream's address is in.
    fn place(&self, path: &str, query: Option<&str>) -> Option<Place> {
        if sse::is_beside(path) && (path == "/messages" || sse::session_id(query).is_some()) {
            return Some(Place::Messages);
        }
        match path.strip_prefix("/sse") {
            Some(rest) => self.endpoint(rest).map(Place::Sse),
            None => self.endpoint(path.strip_prefix("/mcp")?).map(Place::Mcp),
        }
    }

    /// Which part of Weir the rest of a path names.
    fn endpoint(&self, rest: &str) -> Option<Endpoint> {
        match rest.strip_prefix('/') {
            None if rest.is_empty() => Some(Endpoint::All),
            None => None,
            Some("") => Some(Endpoint::All),
            Some(name) => self.relay.catalog().position(name).map(Endpoint::One),
        }
    }

    /// The answer to a request; none if it is written already.
    async fn answer(self: &Arc<Self>, exchange: &mut Exchange) -> Option<Answer> {
        if let Err(refusal) = self.guard.admit(exchange.host(), exchange.header("origin")) {
            return Some(refusal::forbidden(&refusal));
        }
        if cors::is_preflight(exchange) {
            cors::preflight(exchange).await;
            return None;
        }
        if exchange.method() == "GET"
            && let Some(metadata) = self.callers.metadata(exchange)
        {
            deliver::document(exchange, metadata).await;
            return None;
        }
        if exchange.method() == "GET"
            && let Some(document) = self.connect.client_metadata(exchange.path())
        {
            deliver::document(exchange, document).await;
            return None;
        }
        // Before anything is said of what there is.
        let beside = self.streams.beside(exchange.path(), exchange.query());
        if !self.callers.admit(exchange, beside.as_deref()).await {
            return None;
        }
        let Some(place) = self.place(exchange.path(), exchange.query()) else {
            return Some(refusal::no_such_path(exchange.path(), self.relay.catalog().upstreams()));
        };
        Some(match (exchange.method(), place) {
            ("GET", Place::Mcp(endpoint)) if wants_stream(exchange) => return self.stream(endpoint, exchange).await,
            ("GET", Place::Sse(_)) if !accepts_events(exchange) => refusal::not_acceptable("text/event-stream"),
            ("GET", Place::Sse(endpoint)) => return self.stream(endpoint, exchange).await,
            ("POST", Place::Mcp(endpoint)) => self.post(endpoint, exchange).await,
            ("GET", Place::Mcp(endpoint)) => self.get(endpoint, exchange).await,
            ("DELETE", Place::Mcp(endpoint)) => self.delete(endpoint, exchange).await,
            ("POST", Place::Messages) => self.post_beside(exchange).await,
            (_, Place::Mcp(_)) => refusal::method("GET, POST, DELETE"),
            (_, Place::Sse(_)) => refusal::method("GET"),
            (_, Place::Messages) => refusal::method("POST"),
        })
    }
}

/// Whether a GET comes from a client of HTTP+SSE that was given the one URL. A client of Streamable HTTP has been told a
/// session and a version by the time it listens, and a browser that shows a page asks for other things first.
fn wants_stream(exchange: &Exchange) -> bool {
    let accepts = |range: &str| weir_mcp::headers::is_event_stream(range);
    exchange.value("mcp-session-id").is_none()
        && exchange.value("mcp-protocol-version").is_none()
        && exchange.header("accept").is_some_and(|accept| accept.split(',').any(accepts))
}

fn accepts_events(exchange: &Exchange) -> bool {
    weir_mcp::headers::accepts_events(exchange.header("accept").unwrap_or("*/*"))
}

impl Handler for App {
    async fn handle(self: &Arc<Self>, exchange: &mut Exchange) {
        match exchange.path() {
            "/healthz" => deliver::text(exchange, 200, "ok\n").await,
            "/readyz" => {
                // The body names upstreams, which is nothing for a page that was rebound.
                if let Err(refusal) = self.guard.admit(exchange.host(), exchange.header("origin")) {
                    let refused = refusal::forbidden(&refusal);
                    return deliver::deliver(exchange, refused, self.draining.subscribe()).await;
                }
                let names = !self.callers.are_proved();
                let (status, body) = health::ready(self.relay.catalog(), *self.draining.borrow(), names);
                deliver::json(exchange, status, body).await;
            }
            // Boxed: calls go another way, and would have room for all that is awaited there.
            path if connect::is_page(path) => Box::pin(self.connect(exchange)).await,
            _ => {
                if let Some(answer) = self.answer(exchange).await {
                    deliver::deliver(exchange, answer, self.draining.subscribe()).await;
                }
            }
        }
    }
}

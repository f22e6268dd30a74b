//! What is in front: HTTP, or the standard input and output of a program ([`stdio`]).
//!
//! The [`process`] is a pingora server, and [`listen`] its listeners. [`origin_check`] turns away what a browser was tricked
//! into sending, [`cors`] lets in the pages that may, [`authn`] those who prove who they are. [`authorization`] issues tokens. [`post`] sorts messages by era
//! and session; [`session_owner`] passes on what another gateway has. [`sse`] serves clients of HTTP+SSE. [`admin`] answers operators. [`deliver`] writes answers, and [`events`] those that are streams. Every refusal is made in [`refusal`].

pub mod admin;
pub mod admin_port;
pub mod authn;
pub mod authorization;
pub mod client_metadata;
pub mod connect;
mod cors;
mod deliver;
mod session_owner;
mod events;
mod health;
pub mod listen;
mod messages;
mod metrics;
pub mod notify;
pub mod origin_check;
mod post;
pub mod process;
mod refusal;
mod slow;
mod sse;
pub mod stdio;
pub mod upgrade;

use std::{sync::Arc, time::Instant};

use tokio::sync::watch;

use crate::{
    access::Toolset,
    caller::Caller,
    http,
    proxy::{Answer, Proxy},
    session::Endpoint,
    task::on_heap,
    telemetry::{AuthRecord, Refusals},
};

pub use session_owner::ReplicaPort;

use authn::Authenticator;
use authorization::AuthorizationServer;
use connect::Connect;
use listen::{Handler, HttpExchange};
use origin_check::OriginCheck;
use session_owner::{ForwardedHeaders, Sought, Whereabouts, WithCopy};

/// What answers requests.
pub struct App {
    proxy: Arc<Proxy>,
    origin_check: OriginCheck,
    authn: Authenticator,
    connect: Connect,
    /// What issues tokens for Weir's own endpoints, if Weir does.
    authorization: Option<AuthorizationServer>,
    draining: watch::Sender<bool>,
    /// Those of HTTP+SSE.
    streams: sse::SseStreams,
    /// What goes along with requests to other gateways.
    forwarded: ForwardedHeaders,
    refusals: Refusals,
}

/// What lives at a path.
enum ServedPath {
    /// Streamable HTTP.
    Mcp(Endpoint),
    /// The streams of HTTP+SSE.
    Sse(Endpoint),
    /// Where messages go beside them.
    Messages,
}

impl App {
    /// An app over a proxy.
    pub fn new(
        proxy: Arc<Proxy>,
        origin_check: OriginCheck,
        authn: Authenticator,
        connect: Connect,
        authorization: Option<AuthorizationServer>,
    ) -> Self {
        let draining = watch::Sender::new(false);
        let (streams, forwarded, refusals) =
            (sse::SseStreams::default(), ForwardedHeaders::default(), Refusals::default());
        Self { proxy, origin_check, authn, connect, authorization, draining, streams, forwarded, refusals }
    }

    /// Says in `/readyz` that no new work should come, and ends the streams that would never end by themselves.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Has the log know that a request was refused before anybody knew what it is.
    fn note_refusal(&self, exchange: &HttpExchange, what: &str, why: &impl ToString) {
        let Some(suppressed) = self.refusals.admit(Instant::now()) else { return };
        let caller = exchange.caller().map(|caller| caller.principal());
        let record = AuthRecord::of(caller, Some(exchange.peer().ip()));
        AuthRecord { suppressed: Some(suppressed).filter(|count| *count > 0), ..record }
            .refused(what, &why.to_string());
    }

    /// What lives at a path. A POST beside a stream goes to the folder that the stream's address is in.
    fn place(&self, exchange: &HttpExchange) -> Option<ServedPath> {
        let (path, query, caller) = (exchange.path(), exchange.query(), exchange.caller());
        if sse::is_beside(path) && (path == "/messages" || sse::session_id(query).is_some()) {
            return Some(ServedPath::Messages);
        }
        match path.strip_prefix("/sse") {
            Some(rest) => self.endpoint(rest, caller).map(ServedPath::Sse),
            None => self.endpoint(path.strip_prefix("/mcp")?, caller).map(ServedPath::Mcp),
        }
    }

    /// Which part of Weir the rest of a path names.
    fn endpoint(&self, rest: &str, caller: Option<&Arc<Caller>>) -> Option<Endpoint> {
        match rest {
            "" | "/" => Some(Endpoint::Merged(Arc::clone(Toolset::all()))),
            rest => self.proxy.endpoint(rest.strip_prefix('/')?, caller),
        }
    }

    /// The answer to a request; none if it is written already.
    async fn answer(self: &Arc<Self>, exchange: &mut HttpExchange) -> Option<Answer> {
        if let Err(refusal) = self.origin_check.admit(exchange.host(), exchange.header(&http::ORIGIN)) {
            self.note_refusal(exchange, "origin refused", &refusal);
            return Some(refusal::forbidden(&refusal));
        }
        if cors::is_preflight(exchange) {
            cors::preflight(exchange).await;
            return None;
        }
        if exchange.method() == "GET"
            && let Some(metadata) = self.authn.metadata(exchange)
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
        if Box::pin(self.authorization(exchange)).await {
            return None;
        }
        // Before anything is said of what there is.
        let mut beside = self.streams.beside(exchange.path(), exchange.query());
        // Boxed, as what follows it: few requests are for what another gateway has.
        let sought = self.proxy.registry().map(|registry| (registry, self.sought(exchange)));
        if let Some((registry, Sought::Elsewhere(wanted))) = &sought
            && beside.is_none()
        {
            beside = Box::pin(registry.stream_path(wanted.stream())).await;
        }
        if !self.authn.admit(exchange, beside.as_deref()).await {
            return None;
        }
        let _hold = match sought {
            None => None,
            Some((_, Sought::Here(hold))) => hold,
            Some((_, Sought::Elsewhere(wanted))) => {
                if let Some(copy) = self.copy_for(&wanted, exchange) {
                    return self.answer_admitted(exchange, Some(copy)).await;
                }
                match on_heap(|| self.at_owner(wanted, exchange)).await {
                    Whereabouts::Here(hold) => hold,
                    Whereabouts::Answered => return None,
                    Whereabouts::Refused(answer) => return Some(*answer),
                }
            }
        };
        self.answer_admitted(exchange, None).await
    }

    /// The same once it is known who sent it. `copy` is of a session that another gateway has.
    async fn answer_admitted(self: &Arc<Self>, exchange: &mut HttpExchange, copy: Option<WithCopy>) -> Option<Answer> {
        let Some(place) = self.place(exchange) else {
            return Some(refusal::no_such_path(exchange.path(), || self.proxy.endpoints(exchange.caller())));
        };
        Some(match (exchange.method(), place) {
            ("GET", ServedPath::Mcp(endpoint)) if wants_stream(exchange) => {
                return self.stream(endpoint, exchange).await;
            }
            ("GET", ServedPath::Sse(_)) if !accepts_events(exchange) => refusal::not_acceptable("text/event-stream"),
            ("GET", ServedPath::Sse(endpoint)) => return self.stream(endpoint, exchange).await,
            ("POST", ServedPath::Mcp(endpoint)) => return self.post(&endpoint, exchange, copy).await,
            ("GET", ServedPath::Mcp(endpoint)) => return self.get(&endpoint, exchange, copy).await,
            ("DELETE", ServedPath::Mcp(endpoint)) => self.delete(&endpoint, exchange).await,
            ("POST", ServedPath::Messages) => self.post_beside(exchange).await,
            (_, ServedPath::Mcp(_)) => refusal::method("GET, POST, DELETE"),
            (_, ServedPath::Sse(_)) => refusal::method("GET"),
            (_, ServedPath::Messages) => refusal::method("POST"),
        })
    }
}

/// Whether a GET comes from a client of HTTP+SSE that was given the one URL. A client of Streamable HTTP has been told a
/// session and a version by the time it listens, and a browser that shows a page asks for other things first.
fn wants_stream(exchange: &HttpExchange) -> bool {
    let accepts = |range: &str| weir_mcp::headers::is_event_stream(range);
    exchange.value("mcp-session-id").is_none()
        && exchange.value("mcp-protocol-version").is_none()
        && exchange.header(&http::ACCEPT).is_some_and(|accept| accept.split(',').any(accepts))
}

fn accepts_events(exchange: &HttpExchange) -> bool {
    weir_mcp::headers::accepts_events(exchange.header(&http::ACCEPT).unwrap_or("*/*"))
}

impl Handler for App {
    async fn handle(self: &Arc<Self>, exchange: &mut HttpExchange) {
        match exchange.path() {
            "/healthz" => deliver::text(exchange, 200, "ok\n").await,
            "/readyz" => {
                // The body names upstreams, which is nothing for a page that was rebound.
                if let Err(refusal) = self.origin_check.admit(exchange.host(), exchange.header(&http::ORIGIN)) {
                    let refused = refusal::forbidden(&refusal);
                    return deliver::deliver(exchange, refused, self.draining.subscribe()).await;
                }
                let names = !self.authn.are_proved();
                let (status, body) =
                    health::ready(self.proxy.catalog(), &self.connect.store_standing(), *self.draining.borrow(), names);
                deliver::json(exchange, status, body).await;
            }
            // Boxed: calls go another way, and would have room for all that is awaited there.
            path if connect::is_page(path) || connect::is_console(exchange) => Box::pin(self.browser(exchange)).await,
            _ => {
                if let Some(answer) = self.answer(exchange).await {
                    deliver::deliver(exchange, answer, self.draining.subscribe()).await;
                }
            }
        }
    }
}

//! Requests for what another gateway has: a legacy session, a stream of HTTP+SSE, a call that waits for its client's
//! answers, or a browser that has signed in there.
//!
//! The request goes to that gateway as it came, with who its caller has proved to be in place of what proves it. The answer
//! comes back as it is. When the other gateway is gone, a session is taken over and the request answered here. Nothing is
//! sent twice: what the other gateway may have seen is answered with an error that says so.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_mcp::{Era, InboundRequest, Message, classify::classify_bare, message::Kind};

use crate::{
    caller::{Caller, CallerRecord},
    credential::Replica,
    http::{HeaderName, HeaderValue, Method, Request, Response},
    proxy::Answer,
    replica::{MISDIRECTED, ReplicaError, Replicas},
    session::{Claim, SessionRegistry},
};

use super::{
    App, connect, deliver,
    listen::{Handler, HttpExchange},
    post, refusal, sse,
};

/// How often another gateway may be faster to take a session over.
const TRIES: usize = 3;

/// What one gateway tells another of a request.
const FORWARDED: HeaderName = HeaderName::from_static("weir-forwarded");

/// Headers that are of one connection, or prove to this gateway who calls. Browsers are known there by their cookies.
const KEPT_HERE: [&str; 14] = [
    "authorization",
    "connection",
    "content-length",
    "date",
    "dpop",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "weir-forwarded",
    "x-api-key",
];

/// Where a request is answered.
pub(super) enum Whereabouts {
    /// Here.
    Here,
    /// Another gateway has answered it.
    Answered,
    /// Nowhere, for this reason.
    Refused(Box<Answer>),
}

impl Whereabouts {
    fn refused(answer: Answer) -> Self {
        Self::Refused(Box::new(answer))
    }
}

/// What a request is for.
pub(super) struct Wanted {
    id: Vec<u8>,
    /// Whether another gateway can go on with it.
    is_session: bool,
}

/// What goes along with a request.
#[derive(Serialize, Deserialize)]
struct Forwarded {
    /// The gateway that is meant.
    to: String,
    /// Who sent it; none where everybody may.
    caller: Option<CallerRecord>,
    /// When what they have shown is no longer good, in milliseconds since 1970.
    ends: Option<u64>,
    /// Where it came from.
    peer: SocketAddr,
    /// What it called Weir by.
    host: Option<String>,
}

impl Wanted {
    /// The stream of HTTP+SSE that it is for.
    pub(super) fn stream(&self) -> Option<&[u8]> {
        (!self.is_session).then_some(&self.id)
    }
}

impl Forwarded {
    fn new(exchange: &HttpExchange, to: &Replica) -> Self {
        let since = |end: SystemTime| end.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self {
            to: to.id.clone(),
            caller: exchange.caller().map(|caller| CallerRecord::with_token(caller)),
            ends: exchange.ends().map(|end| u64::try_from(since(end)).unwrap_or(u64::MAX)),
            peer: exchange.peer(),
            host: exchange.host().map(str::to_owned),
        }
    }

    fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).ok()?)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    fn of(exchange: &HttpExchange) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(exchange.value(FORWARDED.as_str())?).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

impl App {
    /// What a request is for that is not here, and may be at another gateway.
    pub(super) fn wanted(&self, exchange: &HttpExchange) -> Option<Wanted> {
        if sse::is_beside(exchange.path()) {
            let id = sse::session_id(exchange.query())?;
            return (!self.streams.has(id)).then(|| Wanted { id: sse::registered(id), is_session: false });
        }
        let id = exchange.value("mcp-session-id")?.as_bytes();
        let is_legacy = matches!(classify_bare(&post::claims(exchange)), Ok(Era::Legacy));
        let is_here = || self.proxy.sessions().get(id, |_| true).is_some();
        (is_legacy && !is_here()).then(|| Wanted { id: id.to_vec(), is_session: true })
    }

    /// Finds out where a request is answered, and has it answered there.
    pub(super) async fn at_owner(&self, wanted: Wanted, exchange: &mut HttpExchange) -> Whereabouts {
        let Some(registry) = self.proxy.registry() else { return Whereabouts::Here };
        for _ in 0..TRIES {
            let record = match registry.find(&wanted.id).await {
                Ok(Some(record)) => record,
                Ok(None) => return Whereabouts::Here,
                Err(why) => return Whereabouts::refused(refusal::store_away(&why)),
            };
            if let Some(owner) = &record.owner {
                match self.carry(registry.replicas(), owner, exchange).await {
                    Some(whereabouts) => return whereabouts,
                    None if !wanted.is_session => return Whereabouts::Here,
                    None => {}
                }
            }
            let endpoint = |name: &str, caller: Option<&Arc<Caller>>| self.proxy.endpoint_of(name, caller);
            match registry.claim(record, self.proxy.sessions(), endpoint).await {
                Ok(Claim::Taken(_) | Claim::Unfit) => return Whereabouts::Here,
                Ok(Claim::Lost) => {}
                Err(why) => return Whereabouts::refused(refusal::store_away(&why)),
            }
        }
        Whereabouts::refused(refusal::gateway_away("several gateways want its session at once"))
    }

    /// Has the gateway answer a request at which its call waits for answers.
    pub(super) async fn at_waiting_call(
        &self,
        registry: &SessionRegistry,
        message: &Message,
        exchange: &mut HttpExchange,
    ) -> Whereabouts {
        let Some(gateway) = self.proxy.waits_at(message) else { return Whereabouts::Here };
        let Some(gateway) = registry.replicas().other(&gateway).await else { return Whereabouts::Here };
        exchange.keep_body(message.bytes().clone());
        self.carry(registry.replicas(), &gateway, exchange).await.unwrap_or(Whereabouts::Here)
    }

    /// Answers a browser, at the gateway that knows it.
    pub(super) async fn browser(&self, exchange: &mut HttpExchange) {
        if let Some(registry) = self.proxy.registry()
            && let Some(gateway) = self.connect.gateway_of(exchange)
            && let Some(gateway) = registry.replicas().other(&gateway).await
        {
            match self.carry(registry.replicas(), &gateway, exchange).await {
                Some(Whereabouts::Answered) => return,
                Some(Whereabouts::Refused(answer)) => {
                    return deliver::deliver(exchange, *answer, self.draining.subscribe()).await;
                }
                Some(Whereabouts::Here) | None => {}
            }
        }
        self.connect(exchange).await;
    }

    /// Has another gateway answer a request. None if that gateway is gone.
    async fn carry(&self, replicas: &Replicas, owner: &Replica, exchange: &mut HttpExchange) -> Option<Whereabouts> {
        // It was here until now, and is over.
        if owner == replicas.me() {
            return Some(Whereabouts::Here);
        }
        if replicas.is_replaced_by_me(owner) {
            return None;
        }
        let body = match exchange.method() {
            "POST" => match exchange.read_body(self.proxy.snapshot().limits().body).await {
                Ok(body) => Some(body),
                Err(why) => {
                    return Some(Whereabouts::refused(refusal::body(&why, self.proxy.snapshot().limits().body)));
                }
            },
            _ => None,
        };
        if let Some(body) = &body {
            // For whoever answers it here after all.
            exchange.keep_body(body.clone());
        }
        let sent = tokio::select! {
            sent = send(replicas, owner, exchange, body.clone()) => sent,
            () = replicas.lost(owner) => Err(ReplicaError::Lost),
        };
        match sent {
            Ok(response) => {
                pass_on(response, exchange, replicas.lost(owner)).await;
                Some(Whereabouts::Answered)
            }
            Err(ReplicaError::Gone) => None,
            Err(why @ ReplicaError::Unreachable(_)) => match replicas.is_serving(owner).await {
                Ok(false) => None,
                Ok(true) | Err(_) => Some(Whereabouts::refused(refusal::gateway_away(&why.to_string()))),
            },
            Err(why @ (ReplicaError::BrokenOff(_) | ReplicaError::Lost)) => {
                tracing::warn!(
                    gateway = owner.address,
                    "a request was lost with the gateway that has its session: {why}"
                );
                let message = body.and_then(|body| match InboundRequest::parse(body) {
                    Ok(InboundRequest::Single(message)) if message.kind() == Kind::Request => Some(message),
                    _ => None,
                });
                let id = message.as_ref().and_then(|message| message.id());
                Some(Whereabouts::refused(refusal::gateway_lost(id)))
            }
        }
    }
}

/// Sends a request to another gateway; the head of the answer. Whoever drops this before gives the request up.
async fn send(
    replicas: &Replicas,
    owner: &Replica,
    exchange: &HttpExchange,
    body: Option<Bytes>,
) -> Result<Response, ReplicaError> {
    let goes_along = |(name, _): &(&HeaderName, &HeaderValue)| !KEPT_HERE.contains(&name.as_str());
    let mut headers: Vec<(HeaderName, HeaderValue)> =
        exchange.headers().filter(goes_along).map(|(name, value)| (name.clone(), value.clone())).collect();
    headers.extend(Forwarded::new(exchange, owner).header().map(|value| (FORWARDED, value)));
    let path = match exchange.query() {
        Some(query) => format!("{}?{query}", exchange.path()),
        None => exchange.path().to_owned(),
    };
    let method = Method::from_bytes(exchange.method().as_bytes()).unwrap_or(Method::GET);
    replicas.send(owner, &path, Request { method, headers: &headers, body }).await
}

/// Passes an answer on as it comes.
async fn pass_on(mut response: Response, exchange: &mut HttpExchange, lost: impl Future<Output = ()>) {
    let goes_along = |(name, _): &(&HeaderName, &HeaderValue)| !KEPT_HERE.contains(&name.as_str());
    let headers: Vec<(HeaderName, HeaderValue)> =
        response.headers().filter(goes_along).map(|(name, value)| (name.clone(), value.clone())).collect();
    let length = response.content_length();
    // A stream rests as long as nothing happens.
    response.set_read_timeout(None);
    exchange.start(response.status(), &headers, length).await;
    let mut lost = std::pin::pin!(lost);
    loop {
        let chunk = tokio::select! {
            chunk = response.chunk() => chunk,
            () = exchange.gone() => return,
            () = &mut lost => return exchange.cut(),
        };
        match chunk {
            Ok(Some(chunk)) => {
                if !exchange.write(chunk).await {
                    return;
                }
            }
            Ok(None) => return exchange.end().await,
            Err(_) => return exchange.cut(),
        }
    }
}

/// What answers other gateways.
pub struct ReplicaPort {
    app: Arc<App>,
    me: Replica,
}

impl ReplicaPort {
    /// Answers what is meant for this gateway.
    #[must_use]
    pub const fn new(app: Arc<App>, me: Replica) -> Self {
        Self { app, me }
    }
}

impl Handler for ReplicaPort {
    async fn handle(self: &Arc<Self>, exchange: &mut HttpExchange) {
        let forwarded = Forwarded::of(exchange).filter(|forwarded| forwarded.to == self.me.id);
        // One that is not here is not looked for a second time.
        let Some(forwarded) = forwarded.filter(|_| self.app.wanted(exchange).is_none()) else {
            return exchange.respond(MISDIRECTED, &[], Bytes::new()).await;
        };
        let Forwarded { caller, ends, peer, host, .. } = forwarded;
        let ends = ends.and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
        exchange.speak_for(peer, host, caller.map(CallerRecord::caller), ends);
        if connect::is_page(exchange.path()) || connect::is_console(exchange) {
            return self.app.connect(exchange).await;
        }
        if let Some(answer) = self.app.answer_admitted(exchange).await {
            deliver::deliver(exchange, answer, self.app.draining.subscribe()).await;
        }
    }
}

//! Requests for what another gateway has: a legacy session, a stream of HTTP+SSE, a call that waits for its client's
//! answers, or a browser that has signed in there.
//!
//! The request goes to that gateway as it came, with who its caller has proved to be in place of what proves it. The answer
//! comes back as it is. When the other gateway is gone, a session is taken over and the request answered here. What the other
//! gateway may have seen is sent again only if it may run twice, and else answered with an error that says so.

mod copies;
mod forwarded;

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use weir_mcp::{Era, InboundRequest, Message, classify::classify_bare, message::Kind, method::safe_to_repeat};

use crate::{
    caller::Caller,
    credential::{Replica, SessionRecord},
    http::{CONTENT_TYPE, HeaderName, HeaderValue, Method, Request, Response},
    proxy::{Answer, CLIENT_GONE},
    replica::{ANSWERED_BY, MISDIRECTED, ReplicaError, Replicas},
    session::{Claim, OWNER_KNOWN, SessionHold, SessionRegistry},
};

pub(super) use copies::WithCopy;
use copies::{COPIED_AT, FOR_COPY, NOTED};
use forwarded::FORWARDED;
pub(super) use forwarded::Written as ForwardedHeaders;

use super::{
    App, connect, deliver, events,
    listen::{Handler, HttpExchange},
    post, refusal, sse,
};

/// How often another gateway may be faster to take a session over.
const TRIES: usize = 3;

/// How many gateways are asked to take over a session of one that ends, or to cancel a call that may run there.
const SUCCESSORS: usize = 8;

/// Headers that are of one connection, or prove to this gateway who calls. Browsers are known there by their cookies.
const KEPT_HERE: [&str; 16] = [
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
    "weir-copied-at",
    "weir-for-copy",
    "weir-forwarded",
    "x-api-key",
];

/// What is passed on. The answer to HEAD has a length and no body, which no client of Weir reads.
const PASSED_ON: [&str; 3] = ["GET", "POST", "DELETE"];

/// Where a request is answered.
pub(super) enum Whereabouts {
    /// Here. A session stays until the hold is dropped.
    Here(Option<SessionHold>),
    /// Another gateway has answered it.
    Answered,
    /// Nowhere, for this reason.
    Refused(Box<Answer>),
}

impl Whereabouts {
    fn refused(answer: Answer) -> Self {
        Self::Refused(Box::new(answer))
    }

    fn away(why: &str) -> Self {
        Self::refused(refusal::gateway_away(why))
    }
}

/// What came of sending a request to another gateway.
enum Carried {
    /// It is known where it is answered.
    Done(Whereabouts),
    /// That gateway is gone, and has not seen it, or it may run twice.
    Gone,
    /// That gateway serves, and has not seen it: it cannot be reached.
    Unreached(ReplicaError),
    /// The connection broke, and it may run twice.
    Again,
}

/// What another gateway is sent a request for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SentFor {
    /// For what it has.
    Owner,
    /// The same, and there is another try where the request is lost.
    OwnerAgain,
    /// For a call that it runs with a copy.
    Copy,
}

/// What a request is for, as far as this gateway knows.
pub(super) enum Sought {
    /// It is here, or nowhere. A session stays until the hold is dropped.
    Here(Option<SessionHold>),
    /// It may be at another gateway.
    Elsewhere(Wanted),
}

/// What may be at another gateway.
pub(super) struct Wanted {
    id: Vec<u8>,
    /// Whether another gateway can go on with it.
    is_session: bool,
}

impl Wanted {
    /// The stream of HTTP+SSE that it is for.
    pub(super) fn stream(&self) -> Option<&[u8]> {
        (!self.is_session).then_some(&self.id)
    }
}

impl App {
    /// What a request is for, and whether that is here.
    pub(super) fn sought(&self, exchange: &HttpExchange) -> Sought {
        if !PASSED_ON.contains(&exchange.method()) {
            return Sought::Here(None);
        }
        if sse::is_beside(exchange.path()) {
            let id = sse::session_id(exchange.query()).filter(|id| sse::may_be_id(id) && !self.streams.has(id));
            let wanted = id.map(|id| Wanted { id: sse::registered(id), is_session: false });
            return wanted.map_or(Sought::Here(None), Sought::Elsewhere);
        }
        let Some(id) = exchange.value("mcp-session-id") else { return Sought::Here(None) };
        if let Some(hold) = self.proxy.sessions().hold(id.as_bytes()) {
            return Sought::Here(Some(hold));
        }
        match classify_bare(&post::claims(exchange)) {
            Ok(Era::Legacy) => Sought::Elsewhere(Wanted { id: id.as_bytes().to_vec(), is_session: true }),
            _ => Sought::Here(None),
        }
    }

    /// Finds out where a request is answered, and has it answered there.
    pub(super) async fn at_owner(&self, wanted: Wanted, exchange: &mut HttpExchange) -> Whereabouts {
        let Some(registry) = self.proxy.registry() else { return Whereabouts::Here(None) };
        if let Some((owner, _)) = registry.owner(&wanted.id) {
            let carried = self.carry(registry.replicas(), &owner, exchange, SentFor::OwnerAgain).await;
            if !matches!(carried, Carried::Done(_)) {
                registry.forget_owner(&wanted.id);
            }
            match carried {
                Carried::Done(whereabouts) => return whereabouts,
                Carried::Unreached(why) => return Whereabouts::away(&why.to_string()),
                // Its record says who has it by now.
                Carried::Again | Carried::Gone => {}
            }
        }
        for attempt in 1..=TRIES {
            let read = Instant::now();
            let record = match registry.find(&wanted.id).await {
                Ok(Some(record)) => record,
                Ok(None) => return Whereabouts::Here(None),
                Err(why) => return Whereabouts::refused(refusal::store_away(&why)),
            };
            // Where this gateway is the owner, the session is over, or comes here in this moment.
            if let Some(owner) = record.owner.as_ref().filter(|owner| *owner != registry.replicas().me()) {
                let sent_for = if attempt < TRIES { SentFor::OwnerAgain } else { SentFor::Owner };
                match self.carry(registry.replicas(), owner, exchange, sent_for).await {
                    Carried::Done(whereabouts) => {
                        if matches!(whereabouts, Whereabouts::Answered) {
                            // A stream may have been open for long.
                            let is_fresh = exchange.method() == "POST" && read.elapsed() < OWNER_KNOWN;
                            let copy = (wanted.is_session && is_fresh).then(|| self.copy_of(&record)).flatten();
                            registry.set_owner(&wanted.id, owner.clone(), read, copy);
                        }
                        return whereabouts;
                    }
                    Carried::Unreached(why) => return Whereabouts::away(&why.to_string()),
                    Carried::Again => continue,
                    Carried::Gone => {}
                }
            }
            if !wanted.is_session {
                return Whereabouts::Here(None);
            }
            if *self.draining.borrow() {
                return self.at_successor(registry, &wanted, exchange).await;
            }
            if let Some(whereabouts) = self.claim(registry, &wanted, record).await {
                return whereabouts;
            }
        }
        Whereabouts::away("several gateways want its session at once")
    }

    /// Has one of the gateways that stay take a session over, for this one ends.
    async fn at_successor(
        &self,
        registry: &SessionRegistry,
        wanted: &Wanted,
        exchange: &mut HttpExchange,
    ) -> Whereabouts {
        registry.left(&wanted.id).await;
        for gateway in registry.replicas().others().await.iter().take(SUCCESSORS) {
            if let Carried::Done(whereabouts) =
                self.carry(registry.replicas(), gateway, exchange, SentFor::OwnerAgain).await
            {
                return whereabouts;
            }
        }
        Whereabouts::away("this gateway ends")
    }

    /// Takes a session over. None if another gateway has been faster, or has been left it meanwhile.
    async fn claim(&self, registry: &SessionRegistry, wanted: &Wanted, record: SessionRecord) -> Option<Whereabouts> {
        let sessions = self.proxy.sessions();
        let endpoint = |name: &str, caller: Option<&Arc<Caller>>| self.proxy.endpoint_of(name, caller);
        let upstream = |name: &str| self.proxy.upstream(name);
        match registry.claim(&wanted.id, record, sessions, endpoint, upstream).await {
            Ok(Claim::Taken) => {
                let hold = sessions.hold(&wanted.id)?;
                self.proxy.go_on(hold.session());
                Some(Whereabouts::Here(Some(hold)))
            }
            Ok(Claim::Unfit) => Some(Whereabouts::Here(None)),
            Ok(Claim::Lost) => None,
            Ok(Claim::Full(full)) => Some(Whereabouts::away(&full.to_string())),
            Err(why) => Some(Whereabouts::refused(refusal::store_away(&why))),
        }
    }

    /// Has the gateway answer a request at which its call waits for answers.
    pub(super) async fn at_waiting_call(
        &self,
        replicas: &Replicas,
        message: &Message,
        exchange: &mut HttpExchange,
    ) -> Whereabouts {
        let Some(gateway) = self.proxy.waits_at(message) else { return Whereabouts::Here(None) };
        let Some(gateway) = replicas.other(&gateway).await else { return Whereabouts::Here(None) };
        exchange.keep_body(message.bytes().clone());
        match self.carry(replicas, &gateway, exchange, SentFor::Owner).await {
            Carried::Done(whereabouts) => whereabouts,
            Carried::Unreached(why) => Whereabouts::away(&why.to_string()),
            Carried::Gone | Carried::Again => Whereabouts::Here(None),
        }
    }

    /// Answers a browser, at the gateway that knows it.
    pub(super) async fn browser(&self, exchange: &mut HttpExchange) {
        if let Some(registry) = self.proxy.registry()
            && PASSED_ON.contains(&exchange.method())
            && let Some(gateway) = self.connect.gateway_of(exchange)
            && let Some(gateway) = registry.replicas().other(&gateway).await
        {
            match self.carry(registry.replicas(), &gateway, exchange, SentFor::Owner).await {
                Carried::Done(Whereabouts::Answered) => return,
                Carried::Done(Whereabouts::Refused(answer)) => {
                    return deliver::deliver(exchange, *answer, self.draining.subscribe()).await;
                }
                Carried::Unreached(why) => {
                    let refused = refusal::gateway_away(&why.to_string());
                    return deliver::deliver(exchange, refused, self.draining.subscribe()).await;
                }
                Carried::Done(Whereabouts::Here(_)) | Carried::Gone | Carried::Again => {}
            }
        }
        self.connect(exchange).await;
    }

    /// Has another gateway answer a request. One that is lost with it and may run twice is left to be sent again, where
    /// there is to be another try.
    async fn carry(
        &self,
        replicas: &Replicas,
        owner: &Replica,
        exchange: &mut HttpExchange,
        sent_for: SentFor,
    ) -> Carried {
        if replicas.is_replaced_by_me(owner) {
            return Carried::Gone;
        }
        let refused = |answer| Carried::Done(Whereabouts::refused(answer));
        let limit = if connect::is_page(exchange.path()) { connect::FORM } else { self.proxy.snapshot().limits().body };
        let body = match exchange.method() {
            "POST" => match exchange.read_body(limit).await {
                Ok(body) => Some(body),
                Err(why) => return refused(refusal::body(&why, limit)),
            },
            _ => None,
        };
        if let Some(body) = &body {
            // For whoever answers it here after all.
            exchange.keep_body(body.clone());
        }
        let passed_on = PassedOn::of(exchange, self.forwarded.header(exchange, owner), sent_for);
        let sent = tokio::select! {
            sent = passed_on.send(replicas, owner, body.clone()) => sent,
            () = replicas.lost(owner) => Err(ReplicaError::Lost),
            // In the modern era that cancels the call, and then its own gateway has to see it.
            () = exchange.gone() => return refused(Answer::empty(CLIENT_GONE)),
        };
        match sent {
            Ok(response) => {
                self.pass_back(response, exchange, replicas.lost(owner)).await;
                Carried::Done(Whereabouts::Answered)
            }
            Err(ReplicaError::Gone) => Carried::Gone,
            Err(why @ ReplicaError::Unreachable(_)) => match replicas.is_serving(owner).await {
                Ok(false) => Carried::Gone,
                Ok(true) | Err(_) => Carried::Unreached(why),
            },
            // What it runs may be asked for again, once it is known to be gone.
            Err(ReplicaError::BrokenOff(_) | ReplicaError::Lost) if sent_for == SentFor::Copy => Carried::Gone,
            Err(why @ (ReplicaError::BrokenOff(_) | ReplicaError::Lost)) => {
                let request = body.and_then(|body| match InboundRequest::parse(body) {
                    Ok(InboundRequest::Single(message)) if message.kind() == Kind::Request => Some(message),
                    _ => None,
                });
                if may_run_twice(exchange, request.as_ref()) {
                    match why {
                        ReplicaError::Lost => return Carried::Gone,
                        _ if sent_for == SentFor::OwnerAgain => return Carried::Again,
                        _ => {}
                    }
                }
                tracing::warn!(
                    gateway = owner.address,
                    "a request was lost with the gateway that has its session: {why}"
                );
                refused(refusal::gateway_lost(request.as_ref().and_then(|message| message.id())))
            }
        }
    }
}

/// Whether a request does no harm where another gateway may have begun it: a stream is opened again, a session ends once, and
/// what only reads reads again.
fn may_run_twice(exchange: &HttpExchange, request: Option<&Message>) -> bool {
    match exchange.method() {
        "GET" | "DELETE" => true,
        _ => request.is_some_and(|message| safe_to_repeat(message.method())),
    }
}

/// A request as another gateway is sent it.
struct PassedOn {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl PassedOn {
    fn of(exchange: &HttpExchange, forwarded: Option<HeaderValue>, sent_for: SentFor) -> Self {
        let mut headers = travelling(exchange.headers());
        headers.extend((sent_for == SentFor::Copy).then_some((FOR_COPY, HeaderValue::from_static("1"))));
        headers.extend(forwarded.map(|value| (FORWARDED, value)));
        let path = match exchange.query() {
            Some(query) => format!("{}?{query}", exchange.path()),
            None => exchange.path().to_owned(),
        };
        Self { method: Method::from_bytes(exchange.method().as_bytes()).unwrap_or(Method::GET), path, headers }
    }

    /// The head of the answer. Whoever drops this before gives the request up.
    async fn send(&self, replicas: &Replicas, owner: &Replica, body: Option<Bytes>) -> Result<Response, ReplicaError> {
        let request = Request { method: self.method.clone(), headers: &self.headers, body };
        replicas.send(owner, &self.path, request).await
    }
}

fn travelling<'h>(headers: impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)>) -> Vec<(HeaderName, HeaderValue)> {
    let travels = headers.filter(|(name, _)| !KEPT_HERE.contains(&name.as_str()));
    travels.map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl App {
    /// Passes an answer back as it comes.
    async fn pass_back(&self, mut response: Response, exchange: &mut HttpExchange, lost: impl Future<Output = ()>) {
        let headers = travelling(response.headers());
        let is_stream = |value: &HeaderValue| value.as_bytes().starts_with(b"text/event-stream");
        let is_stream = exchange.method() == "GET" && response.header(&CONTENT_TYPE).is_some_and(is_stream);
        let length = response.content_length();
        // A stream rests as long as nothing happens.
        response.set_read_timeout(None);
        exchange.start(response.status(), &headers, length).await;
        let mut lost = std::pin::pin!(lost);
        let mut draining = self.draining.subscribe();
        loop {
            let chunk = tokio::select! {
                chunk = response.chunk() => chunk,
                () = exchange.gone() => return,
                () = &mut lost => return exchange.cut(),
                // The client opens it again elsewhere.
                () = events::turns_true(&mut draining), if is_stream => {
                    exchange.end_with(Bytes::from_static(events::RETRY)).await;
                    return;
                }
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

    /// Holds the session of a request that another gateway has passed on, if it is for one.
    ///
    /// # Errors
    ///
    /// The answer, where it cannot be answered here: 421 if it is meant for somebody else.
    async fn hold(&self, exchange: &HttpExchange) -> Result<Option<SessionHold>, Answer> {
        let Some(registry) = self.proxy.registry() else { return Ok(None) };
        for _ in 0..TRIES {
            let wanted = match self.sought(exchange) {
                Sought::Here(hold) => return Ok(hold),
                Sought::Elsewhere(wanted) => wanted,
            };
            let found = registry.find(&wanted.id).await.map_err(|why| refusal::store_away(&why))?;
            let record = found.ok_or_else(refusal::session_unknown)?;
            let (is_draining, me) = (*self.draining.borrow(), registry.replicas().me());
            match &record.owner {
                _ if !wanted.is_session => return Err(Answer::empty(MISDIRECTED)),
                // It is on its way out. Whoever took it over now would not have what this gateway writes of it yet.
                Some(owner) if owner == me && is_draining => {
                    registry.left(&wanted.id).await;
                    continue;
                }
                // It comes here in this moment, or has half come.
                Some(owner) if owner == me => {}
                // A gateway that ends has left it.
                None if !is_draining => {}
                _ => return Err(Answer::empty(MISDIRECTED)),
            }
            match self.claim(registry, &wanted, record).await {
                Some(Whereabouts::Here(hold)) => return Ok(hold),
                Some(Whereabouts::Refused(answer)) => return Err(*answer),
                Some(Whereabouts::Answered) | None => {}
            }
        }
        Err(refusal::gateway_away("its session comes and goes"))
    }
}

/// What answers other gateways.
pub struct ReplicaPort {
    app: Arc<App>,
    me: Replica,
    senders: forwarded::Read,
}

impl ReplicaPort {
    /// Answers what is meant for this gateway.
    #[must_use]
    pub fn new(app: Arc<App>, me: Replica) -> Self {
        Self { app, me, senders: forwarded::Read::default() }
    }
}

impl Handler for ReplicaPort {
    async fn handle(self: &Arc<Self>, exchange: &mut HttpExchange) {
        let Some(sender) = self.senders.sender(exchange).filter(|sender| sender.to == self.me.id) else {
            let me = HeaderValue::from_str(&self.me.id).ok().map(|id| (ANSWERED_BY, id));
            return exchange.respond(MISDIRECTED, me.as_slice(), Bytes::new()).await;
        };
        let held = match exchange.value(FOR_COPY.as_str()) {
            Some(_) => match self.app.held_copy(exchange) {
                Some(copy) => Ok((None, Some(copy))),
                None => Err(Answer::empty(MISDIRECTED)),
            },
            None => Box::pin(self.app.hold(exchange)).await.map(|hold| (hold, None)),
        };
        let (hold, copy) = match held {
            Ok(held) => held,
            Err(refusal) => return deliver::deliver(exchange, refusal, self.app.draining.subscribe()).await,
        };
        if let Some(gateway) = exchange.header(COPIED_AT.as_str()) {
            let noted = self.app.note_copy(hold.as_ref(), sender.caller.as_ref(), gateway).await;
            return exchange.respond(if noted { NOTED } else { MISDIRECTED }, &[], Bytes::new()).await;
        }
        exchange.speak_for(sender.peer, sender.host.clone(), sender.caller.clone(), sender.ends);
        if connect::is_page(exchange.path()) || connect::is_console(exchange) {
            return self.app.connect(exchange).await;
        }
        let answer = self.app.answer_admitted(exchange, copy).await;
        // A stream of the session's own is none of its calls.
        drop(hold);
        if let Some(answer) = answer {
            deliver::deliver(exchange, answer, self.app.draining.subscribe()).await;
        }
    }
}

//! Calls that this gateway runs with a copy of another's session, and what is for calls that others run so.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{InboundRequest, Message, method};

use crate::{
    caller::Caller,
    credential::SessionRecord,
    http::{self, HeaderName, HeaderValue, Method, Request},
    proxy::Answer,
    replica::MISDIRECTED,
    session::{Endpoint, Session, SessionHold},
};

use super::{
    super::{App, listen::HttpExchange, post, refusal},
    Carried, SentFor, Wanted, Whereabouts,
    forwarded::FORWARDED,
};

/// In a request to a gateway that runs calls with a copy of the session: it is for one of these.
pub(super) const FOR_COPY: HeaderName = HeaderName::from_static("weir-for-copy");

/// In a request to the gateway of a session: the id of the one that runs calls with a copy from now on.
pub(super) const COPIED_AT: HeaderName = HeaderName::from_static("weir-copied-at");

/// The status with which the gateway of a session has noted that.
pub(super) const NOTED: u16 = 204;

/// A copy of a session that another gateway has, which stays until this is dropped.
pub(in crate::server) struct WithCopy {
    pub(in crate::server) hold: SessionHold,
    /// Whether that gateway has passed on what came for it.
    pub(in crate::server) is_passed_on: bool,
}

impl WithCopy {
    /// The session, if it was opened at this endpoint by the same caller.
    pub(in crate::server) fn session(&self, endpoint: &Endpoint, exchange: &HttpExchange) -> Option<&Arc<Session>> {
        let session = self.hold.session();
        (session.endpoint == *endpoint && session.is_of(exchange.caller())).then_some(session)
    }
}

impl App {
    /// What a message can be answered with here, though its session is at another gateway that has answered lately.
    pub(in crate::server) fn copy_for(&self, wanted: &Wanted, exchange: &HttpExchange) -> Option<WithCopy> {
        if !wanted.is_session || exchange.method() != "POST" || *self.draining.borrow() {
            return None;
        }
        let (_, copy) = self.proxy.registry()?.owner(&wanted.id)?;
        Some(WithCopy { hold: copy?, is_passed_on: false })
    }

    /// Makes a copy of a session that another gateway has.
    pub(super) fn copy_of(&self, record: &SessionRecord) -> Option<Arc<Session>> {
        let endpoint = |name: &str, caller: Option<&Arc<Caller>>| self.proxy.endpoint_of(name, caller);
        let upstream = |name: &str| self.proxy.upstream(name);
        self.proxy.registry()?.copied(record, self.proxy.sessions(), endpoint, upstream)
    }

    /// Runs a call with a copy, and has the gateway of the session answer all else. No answer if it is written already.
    pub(in crate::server) async fn with_copy(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        exchange: &mut HttpExchange,
        inbound: InboundRequest,
        copy: WithCopy,
    ) -> Option<Answer> {
        let session = copy.session(endpoint, exchange).cloned();
        let body = match inbound {
            InboundRequest::Single(message) if copy.is_passed_on => {
                let Some(session) = session.filter(|session| session.concerns(&message)) else {
                    return Some(Answer::empty(MISDIRECTED));
                };
                let context = post::context_in(&session, exchange, message);
                return Some(self.handle_message(exchange, &context).await);
            }
            InboundRequest::Single(message) => {
                let body = message.bytes().clone();
                if let Some(session) = session.filter(|session| session.may_run(&message)) {
                    let context = post::context_in(&session, exchange, message);
                    let answer = self.alone(exchange, &session, &context).await;
                    if !answer.is_at_owner() {
                        return Some(answer);
                    }
                    session.leave_to_owner(&context.message);
                }
                body
            }
            InboundRequest::Batch(messages) => {
                post::array(&messages.iter().map(|message| message.bytes().clone()).collect::<Vec<_>>())
            }
        };
        exchange.keep_body(body.clone());
        let wanted = Wanted { id: copy.hold.session().id.as_bytes().to_vec(), is_session: true };
        match self.at_owner(wanted, exchange).await {
            // It has come here.
            Whereabouts::Here(_hold) => match InboundRequest::parse(body) {
                Ok(inbound) => self.legacy(endpoint, exchange, inbound).await,
                Err(why) => Some(refusal::malformed(&why)),
            },
            Whereabouts::Answered => None,
            Whereabouts::Refused(answer) => Some(*answer),
        }
    }

    /// Tells the gateway of a session that calls run here with a copy, so that it passes on what is for them.
    pub(in crate::server) async fn tell_owner(&self, copy: &Session, exchange: &HttpExchange) {
        let Some(registry) = self.proxy.registry() else { return };
        let owner = match registry.owner(copy.id.as_bytes()) {
            Some((owner, _)) => owner,
            None => match registry.find(copy.id.as_bytes()).await.ok().flatten().and_then(|record| record.owner) {
                Some(owner) => Arc::new(owner),
                None => return,
            },
        };
        if !copy.is_untold(&owner) {
            return;
        }
        let Ok(me) = HeaderValue::from_str(&registry.replicas().me().id) else { return };
        let forwarded = self.forwarded.header(exchange, &owner).map(|value| (FORWARDED, value));
        let headers = [(http::MCP_SESSION_ID, copy.id.clone()), (COPIED_AT, me)].into_iter().chain(forwarded);
        let headers: Vec<_> = headers.collect();
        let request = Request { method: Method::POST, headers: &headers, body: Some(Bytes::new()) };
        match registry.replicas().send(&owner, exchange.path(), request).await {
            Ok(response) if response.status() == NOTED => copy.set_told(&owner),
            // What is for the call does not reach it, and it runs to its end or to its time limit.
            Ok(response) => {
                tracing::debug!(status = response.status(), "the gateway of a session was not told of a call")
            }
            Err(why) => tracing::debug!("the gateway of a session was not told of a call: {why}"),
        }
    }

    /// Notes that calls of a session run with a copy at another gateway; whether the session is here, and the caller's.
    pub(super) async fn note_copy(&self, hold: Option<&SessionHold>, caller: Option<&Arc<Caller>>, at: &str) -> bool {
        let session = hold.map(SessionHold::session).filter(|session| session.is_of(caller));
        let (Some(session), Some(registry)) = (session, self.proxy.registry()) else { return false };
        let Some(gateway) = registry.replicas().other(at).await else { return false };
        session.runs_copied_at(gateway);
        true
    }

    /// Holds the copy that another gateway has passed a message on to.
    pub(super) fn held_copy(&self, exchange: &HttpExchange) -> Option<WithCopy> {
        let id = exchange.value(http::MCP_SESSION_ID.as_str())?;
        let hold = self.proxy.registry()?.held_copy(id.as_bytes())?;
        Some(WithCopy { hold, is_passed_on: true })
    }

    /// Has the gateways that run calls of a session with copies answer what is for one of those; nothing if none has it.
    pub(in crate::server) async fn at_copies(
        &self,
        session: &Session,
        message: Option<&Message>,
        exchange: &mut HttpExchange,
    ) -> Option<Whereabouts> {
        let registry = self.proxy.registry()?;
        let (replicas, mut gateways) = (registry.replicas(), session.copied_at());
        if message.is_some_and(|message| message.method() == method::CANCELLED) {
            // Calls that are not slow are not told of.
            let others = replicas.others().await.into_iter().take(super::SUCCESSORS);
            gateways.extend(others.filter(|other| !gateways.contains(other)).collect::<Vec<_>>());
        }
        for gateway in gateways {
            // This one may have run some before the session came here.
            if gateway != *replicas.me() && replicas.other(&gateway.id).await.is_none() {
                continue;
            }
            if let Some(message) = message {
                exchange.keep_body(message.bytes().clone());
            }
            if let Carried::Done(done) = self.carry(replicas, &gateway, exchange, SentFor::Copy).await {
                return Some(done);
            }
        }
        None
    }
}

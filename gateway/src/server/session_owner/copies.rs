//! Calls that this gateway runs with a copy of another's session, and what is for calls that others run so.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::oneshot;
use weir_mcp::{InboundRequest, Message, method};

use crate::{
    caller::Caller,
    credential::{Replica, SessionRecord},
    http::{self, HeaderName, HeaderValue, Method, Request},
    proxy::Answer,
    replica::MISDIRECTED,
    session::{Endpoint, Session, SessionHold, SessionRegistry},
};

use super::{
    super::{App, listen::HttpExchange, post, refusal},
    Carried, PassedOn, SentFor, Wanted, Whereabouts,
    forwarded::FORWARDED,
};

/// In a request to a gateway that runs calls with a copy of the session: it is for one of these.
pub(super) const FOR_COPY: HeaderName = HeaderName::from_static("weir-for-copy");

/// In a request to the gateway of a session: the id of the one that runs calls with a copy from now on.
pub(super) const COPIED_AT: HeaderName = HeaderName::from_static("weir-copied-at");

/// The status with which the gateway of a session has noted that.
pub(super) const NOTED: u16 = 204;

/// The status with which a gateway has taken a message for a call that it runs with a copy.
const TAKEN: u16 = 202;

/// How long another gateway may take to note or to take something.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// How often it is told that calls run yet.
const TOLD_AGAIN: Duration = Duration::from_secs(30);

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

    /// Tells the gateway of a session that calls run here with a copy, so that it passes on what is for them; and again as
    /// long as some run, so that it keeps the session. Ends once it has heard.
    pub(in crate::server) fn tell_owner(
        &self,
        copy: &Arc<Session>,
        exchange: &HttpExchange,
    ) -> impl Future<Output = ()> + use<> {
        let (heard, hears) = oneshot::channel::<()>();
        if let Some(owner) = copy.owner()
            && !copy.tells(true)
        {
            let (proxy, copy, path) = (Arc::clone(&self.proxy), Arc::clone(copy), exchange.path().to_owned());
            let forwarded = self.forwarded.header(exchange, &owner);
            tokio::spawn(async move {
                let mut heard = Some(heard);
                while let Some(registry) = proxy.registry() {
                    let told = tell(registry, &owner, (&copy, &path), forwarded.clone());
                    drop(tokio::time::timeout(TOLD_WITHIN, told).await);
                    heard.take();
                    tokio::time::sleep(TOLD_AGAIN).await;
                    if !copy.is_busy() {
                        break;
                    }
                }
                copy.tells(false);
            });
        }
        async move { drop(hears.await) }
    }

    /// Notes that calls of a session run with a copy at another gateway; whether the session is here, and the caller's.
    pub(super) async fn note_copy(&self, hold: Option<&SessionHold>, caller: Option<&Arc<Caller>>, at: &str) -> bool {
        let session = hold.map(SessionHold::session).filter(|session| session.is_of(caller));
        let (Some(session), Some(registry)) = (session, self.proxy.registry()) else { return false };
        let Some(gateway) = registry.replicas().other(at).await else { return false };
        session.runs_copied_at(gateway);
        true
    }

    /// Holds the copy that another gateway has passed a message on to; or the session, of which the process that has taken
    /// over has a copy.
    pub(super) fn held_copy(&self, exchange: &HttpExchange) -> Option<WithCopy> {
        let id = exchange.value(http::MCP_SESSION_ID.as_str())?.as_bytes();
        let hold = match self.proxy.registry() {
            Some(registry) => registry.held_copy(id),
            None => self.proxy.sessions().hold(id),
        };
        Some(WithCopy { hold: hold?, is_passed_on: true })
    }

    /// Passes a message on to the gateways that run calls of a session with copies; whether one of them has taken it.
    pub(in crate::server) async fn passed_to_copies(
        &self,
        session: &Session,
        message: &Message,
        exchange: &HttpExchange,
    ) -> bool {
        let Some(replicas) = self.proxy.replicas() else { return false };
        let mut gateways = session.copied_at();
        if message.method() == method::CANCELLED && self.proxy.registry().is_some() {
            // Calls that are not slow are not told of.
            let others = replicas.others().await.into_iter().take(super::SUCCESSORS);
            gateways.extend(others.filter(|other| !gateways.contains(other)).collect::<Vec<_>>());
        }
        for gateway in gateways {
            // This one may have run some before the session came here.
            if gateway != *replicas.me() && replicas.other(&gateway.id).await.is_none() {
                continue;
            }
            let passed_on = PassedOn::of(exchange, self.forwarded.header(exchange, &gateway), SentFor::Copy);
            let sent = passed_on.send(replicas, &gateway, Some(message.bytes().clone()));
            let taken = tokio::time::timeout(TOLD_WITHIN, sent).await;
            if taken.is_ok_and(|taken| taken.is_ok_and(|response| response.status() == TAKEN)) {
                return true;
            }
        }
        false
    }

    /// Has the gateways that run calls of a session with copies go on with a stream; nothing if none that serves has it.
    pub(in crate::server) async fn stream_of_copy(
        &self,
        session: &Session,
        exchange: &mut HttpExchange,
    ) -> Option<Whereabouts> {
        let (replicas, mut unreached) = (self.proxy.replicas()?, None);
        for gateway in session.copied_at() {
            if gateway != *replicas.me() && replicas.other(&gateway.id).await.is_none() {
                continue;
            }
            match self.carry(replicas, &gateway, exchange, SentFor::Copy).await {
                Carried::Done(done) => return Some(done),
                Carried::Unreached(why) => unreached = Some(Whereabouts::away(&why.to_string())),
                Carried::Gone | Carried::Again => {}
            }
        }
        unreached
    }
}

/// Tells once.
async fn tell(
    registry: &SessionRegistry,
    owner: &Replica,
    (copy, path): (&Session, &str),
    forwarded: Option<HeaderValue>,
) {
    let Ok(me) = HeaderValue::from_str(&registry.replicas().me().id) else { return };
    let headers = [(http::MCP_SESSION_ID, copy.id.clone()), (COPIED_AT, me)];
    let headers: Vec<_> = headers.into_iter().chain(forwarded.map(|value| (FORWARDED, value))).collect();
    let request = Request { method: Method::POST, headers: &headers, body: Some(Bytes::new()) };
    match registry.replicas().send(owner, path, request).await {
        Ok(response) if response.status() == NOTED => {}
        // What is for the call does not reach it, and it runs to its end or to its time limit.
        Ok(response) => tracing::debug!(status = response.status(), "the gateway of a session was not told of a call"),
        Err(why) => tracing::debug!("the gateway of a session was not told of a call: {why}"),
    }
}

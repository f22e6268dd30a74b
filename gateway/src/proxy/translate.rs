//! Clients and upstreams of different eras.
//!
//! A modern client reaches a legacy upstream through sessions that Weir keeps for all clients of its kind
//! ([`pool`], [`mod@shared_session`]). Each of its requests becomes a legacy one and each answer a modern one ([`call`]);
//! `server/discover` is answered from the upstream's `initialize`, and `subscriptions/listen` is fed by what the session
//! says ([`subscription`]). A closed answer is the modern way to cancel, so it becomes `notifications/cancelled`.
//!
//! What a legacy upstream asks in the middle of a call becomes an answer that asks; until the client calls again with
//! what it was asked for, the upstream's call waits ([`pending_input`]) and the client holds its sealed number ([`sealed_state`](crate::sealed_state)).
//!
//! A legacy client reaches a modern upstream the other way round: what the session remembers goes into each request
//! ([`sessionless`]), an answer that asks becomes questions to the client and then the same request again ([`input_loop`]),
//! and one subscription for each session brings what the upstream says of its own accord ([`subscriber`]).
//!
//! What is rewritten in a message is decided in [`weir_mcp::translate`]; long lists are rewritten once ([`list_cache`]).

mod call;
mod shared_session;
mod pending_input;
mod pool;
mod list_cache;
mod input_loop;
mod sessionless;
mod subscription;
mod subscriber;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use weir_mcp::{
    Era, Field, answer, method,
    translate::{self, Asks},
};

use crate::{caller::Caller, upstream::ConnectError};

use super::{
    Answer, AnswerStream, Body, CallLog, Proxy, RequestContext, answer::outcome, deadline::Deadline, route::Target,
};

pub(super) use call::{TranslatedCall, TranslatedStream};
pub(super) use input_loop::{ClientMessage, StreamItem};
pub(super) use list_cache::ListCache;
pub(super) use pending_input::PendingInput;
pub(super) use pool::SharedSessionPool;
pub(super) use subscription::TranslatedSubscription;

use call::bound;
use shared_session::{SessionOpener, SharedSession};

/// The result that says nothing.
const EMPTY: Bytes = Bytes::from_static(b"{}");

/// What becomes of a modern request to a legacy upstream.
pub(super) enum TranslatedRequest {
    /// Weir has the answer.
    Answered(Box<Answer>),
    /// It is ready to be sent.
    Call(Box<TranslatedCall>),
}

impl From<Answer> for TranslatedRequest {
    fn from(answer: Answer) -> Self {
        Self::Answered(Box::new(answer))
    }
}

impl Proxy {
    /// Takes a modern request to a legacy upstream.
    pub(super) async fn translate(
        &self,
        context: &RequestContext,
        target: &Target,
        record: &mut CallLog,
    ) -> Result<TranslatedRequest, ConnectError> {
        let message = &context.message;
        if message.raw(Field::RequestState).is_some() && translate::may_ask(message.method()) {
            return Ok(self.resume(context, target, record).await.into());
        }
        if method::route(message.method()) == method::Route::Task {
            let text = "this upstream has no tasks of the modern era";
            return Ok(Answer::error(Era::Modern, message, answer::METHOD_NOT_FOUND, text).into());
        }
        if let Some(refusal) = self.check_headers(context, target, Era::Legacy) {
            return Ok(refusal.into());
        }
        let asks = Asks::of_request(message);
        let session = self.session(context, target.upstream, asks, 0).await?;
        match message.method() {
            method::DISCOVER => Ok(Answer::result(message, translate::discovered(session.said())).into()),
            method::LISTEN => {
                let subscription = TranslatedSubscription::open(session, message).await;
                let body = Body::Events(Box::new(AnswerStream::subscribed(subscription)));
                let answer = Answer { status: 200, session: None, allow: None, body, record: None };
                Ok(answer.into())
            }
            _ => {
                let lease = self.lease(context, target.upstream, asks, session).await?;
                if message.raw(Field::LogLevel).is_some() && lease.session.can(&["logging"]) {
                    lease.session.talk().await;
                }
                let original = target.message(context).map_err(|why| ConnectError::Stopped(why.to_string()))?;
                let call = TranslatedCall::new(context, target.upstream, &original, lease, &self.list_cache);
                let call = call.map_err(|why| ConnectError::Stopped(why.to_string()))?;
                Ok(TranslatedRequest::Call(Box::new(call)))
            }
        }
    }

    /// The answer to a call whose headers do not repeat its arguments as they should (MCP 2026-07-28, basic/transports).
    /// Who has no headers cannot check them: legacy upstreams and child processes. What the upstream lists in this era
    /// tells which are due.
    pub(super) fn check_headers(&self, context: &RequestContext, target: &Target, era: Era) -> Option<Answer> {
        let tool = target.name.as_deref().filter(|_| context.message.method() == method::TOOLS_CALL)?;
        let arguments = context.message.raw(Field::Arguments).unwrap_or(b"{}");
        for mirrored in self.catalog.mirrored(context.caller.as_ref(), target.upstream, era, tool).iter() {
            let mut given = context.headers.iter().filter(|(name, _)| name.as_str() == mirrored.header);
            let value = given.next().map(|(_, value)| String::from_utf8_lossy(value.as_bytes()));
            if given.next().is_some() || !mirrored.agrees(arguments, value.as_deref()) {
                let why = format!("the {} header and the arguments disagree", mirrored.header);
                return Some(Answer::error(Era::Modern, &context.message, answer::HEADER_MISMATCH, &why));
            }
        }
        None
    }

    /// Goes on with a call that waited for its client's answers.
    async fn resume(&self, context: &RequestContext, target: &Target, record: &mut CallLog) -> Answer {
        let (message, upstream) = (&context.message, self.upstream(target.upstream));
        let deadline = Deadline::of(upstream, Instant::now());
        // The state was sealed for what the upstream was sent, which has the upstream's own names.
        let native = target.message(context).unwrap_or_else(|_| message.clone());
        let bound = bound(context.caller.as_ref(), upstream.name(), &native);
        let Some(mut running) = self.pending.take(message, &bound) else {
            let text = "requestState is not valid here, or no longer; call again without it";
            return Answer::error(Era::Modern, message, answer::INVALID_PARAMS, text);
        };
        running.call.continue_as(message);
        running.answer(message.raw(Field::InputResponses).unwrap_or(b"{}")).await;
        record.attempts = 1;
        match TranslatedStream::new(running, &self.pending).answer(deadline, record).await {
            Ok(answer) => answer,
            Err(why) => {
                let failure = why.into();
                record.fail(outcome(&failure), failure.to_string());
                Answer::failed(message, upstream.name(), &failure)
            }
        }
    }

    /// Ends the legacy sessions of modern clients that nobody used for `idle`.
    pub async fn reap(&self, idle: std::time::Duration) {
        self.pending.reap();
        self.pool.reap(idle).await;
    }

    /// Ends all of them.
    pub async fn stop(&self) {
        self.pending.stop();
        self.pool.stop().await;
    }

    async fn session(
        &self,
        context: &RequestContext,
        place: usize,
        asks: Asks,
        number: usize,
    ) -> Result<Arc<SharedSession>, ConnectError> {
        let caller = context.caller.as_ref();
        let open = || {
            let (upstream, catalog) = (Arc::clone(self.upstream(place)), Arc::clone(&self.catalog));
            let opener = SessionOpener { caller: caller.cloned(), principal: Arc::clone(&context.principal) };
            async move { SharedSession::open(opener, &upstream, &catalog, place, asks).await }
        };
        let key = pool::SharedSessionKey { upstream: place, whose: Caller::apart(caller), asks, number };
        let session = self.pool.get(key, (&context.principal, self.upstream(place).name()), open).await?;
        session.meet(caller);
        Ok(session)
    }

    /// A request's place in a session: alone, if its client may be asked and there are lines enough.
    async fn lease(
        &self,
        context: &RequestContext,
        place: usize,
        asks: Asks,
        first: Arc<SharedSession>,
    ) -> Result<shared_session::SessionLease, ConnectError> {
        let lines = match first.channel() {
            // Another session would lead to the same process.
            channel if channel.is_shared() => 1,
            channel => pool::SIDE_BY_SIDE[usize::from(!channel.has_request_streams())],
        };
        let method = context.message.method();
        if asks == Asks::default() || !translate::may_ask(method) {
            return Ok(first.lease(method));
        }
        let mut taken = Vec::new();
        let mut session = first;
        for number in 1..=lines {
            if let Some(lease) = session.lease_alone(method) {
                return Ok(lease);
            }
            taken.push(Arc::clone(&session));
            if number < lines {
                session = self.session(context, place, asks, number).await?;
            }
        }
        // A question comes in its own call's stream nearly always, where there is one; elsewhere it would be refused.
        let shared = session.channel().has_request_streams() || session.channel().is_shared();
        let free = if shared { None } else { self.pending.make_way(&taken) };
        Ok(free.and_then(|free| free.lease_alone(method)).unwrap_or_else(|| session.lease(method)))
    }
}

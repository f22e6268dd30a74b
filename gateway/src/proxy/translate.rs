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
mod input_loop;
mod list_cache;
mod pending_input;
mod pool;
mod sessionless;
mod shared_session;
mod subscriber;
mod subscription;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use weir_flow::Failure;
use weir_mcp::{
    Era, Field, ParseError, answer, method,
    translate::{self, Asks},
};

use crate::{
    caller::Caller,
    upstream::{ConnectError, Reply, SendError, Upstream},
};

use super::{
    Answer, AnswerStream, CallLog, Proxy, RequestContext,
    attempt::Attempt,
    deadline::Deadline,
    drive::{CallDriver, Codec, Stop},
    route::Target,
};

pub(super) use call::TranslatedStream;
pub(super) use input_loop::{InputItem, InputStream, Reporter};
pub(super) use list_cache::ListCache;
pub(super) use pending_input::{PendingInput, gateway_of};
pub(super) use pool::{SharedSessionPool, SharedSessions};
pub(super) use subscription::TranslatedSubscription;

use call::{TranslatedCall, bound};
use shared_session::{SessionOpener, SharedSession};

/// The result that says nothing.
const EMPTY: Bytes = Bytes::from_static(b"{}");

/// A modern request on its way to a legacy upstream.
struct ToLegacy<'a> {
    proxy: &'a Proxy,
    context: &'a RequestContext,
    target: &'a Target,
    call: Option<Box<TranslatedCall>>,
}

impl Codec for ToLegacy<'_> {
    /// A lease in a session that clients share, and the request in its words.
    async fn open(&mut self) -> Result<(), Stop> {
        let (proxy, context, target) = (self.proxy, self.context, self.target);
        let message = &context.message;
        let asks = Asks::of_request(message);
        let session = proxy.session(context, &target.upstream, asks, 0).await?;
        match message.method() {
            method::DISCOVER => Err(Answer::result(message, translate::discovered(session.said())).into()),
            method::LISTEN => {
                let subscription = TranslatedSubscription::open(session, message).await;
                let stream = AnswerStream::subscribed(subscription).until(target.superseded.clone());
                Err(Answer::events(stream).into())
            }
            _ => {
                let lease = proxy.lease(context, &target.upstream, asks, session).await?;
                if message.raw(Field::LogLevel).is_some() && lease.session.can(&["logging"]) {
                    lease.session.talk().await;
                }
                let unreadable = |why: ParseError| Stop::Failed(Failure::Unreachable(why.to_string()));
                let original = target.message(context).map_err(unreadable)?;
                let call = TranslatedCall::new(context, &original, lease, &proxy.list_cache);
                self.call = Some(Box::new(call.map_err(unreadable)?));
                Ok(())
            }
        }
    }

    async fn send(&mut self, attempt: &Attempt<'_>) -> Result<Reply, SendError> {
        match &self.call {
            Some(call) => call.send(attempt).await,
            None => Err(SendError::Unsent("no connection".into())),
        }
    }

    fn failed(&mut self, why: &SendError) {
        if let Some(call) = &self.call {
            call.failed(why);
        }
    }
}

impl From<Answer> for Stop {
    fn from(answer: Answer) -> Self {
        Self::Answered(Box::new(answer))
    }
}

impl Proxy {
    /// Takes a modern request to a legacy upstream and back.
    pub(super) async fn to_legacy(
        self: &Arc<Self>,
        context: &RequestContext,
        target: &Target,
        record: &mut CallLog,
    ) -> Result<Answer, Stop> {
        let (message, upstream) = (&context.message, &target.upstream);
        let deadline = Deadline::of(upstream, Instant::now());
        if message.raw(Field::RequestState).is_some() && translate::may_ask(message.method()) {
            return self.resume(context, target, deadline, record).await;
        }
        if method::route(message.method()) == method::Route::Task {
            let text = "this upstream has no tasks of the modern era";
            return Ok(Answer::error(Era::Modern, message, answer::METHOD_NOT_FOUND, text));
        }
        if let Some(refusal) = self.check_headers(context, target, Era::Legacy) {
            return Ok(refusal);
        }
        let driver = CallDriver::new(upstream, context.caller.as_ref(), message.method(), upstream.timeouts.overall);
        let driver = driver.traced(record.span.as_ref());
        let mut codec = ToLegacy { proxy: self, context, target, call: None };
        let reply = driver.drive(&mut codec, &mut record.attempts).await?;
        match codec.call {
            Some(call) => call.deliver(reply, &self.pending, deadline, record).await.map_err(|why| lost(upstream, why)),
            None => Err(Stop::Failed(Failure::NotMcp("nothing".into()))),
        }
    }

    /// The answer to a call whose headers do not repeat its arguments as they should (MCP 2026-07-28, basic/transports).
    /// Who has no headers cannot check them: legacy upstreams and child processes. What the upstream lists in this era
    /// tells which are due.
    pub(super) fn check_headers(&self, context: &RequestContext, target: &Target, era: Era) -> Option<Answer> {
        let tool = target.name.as_deref().filter(|_| context.message.method() == method::TOOLS_CALL)?;
        let arguments = context.message.raw(Field::Arguments).unwrap_or(b"{}");
        for mirrored in self.catalog.mirrored(context.caller.as_ref(), &target.upstream, era, tool).iter() {
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
    async fn resume(
        &self,
        context: &RequestContext,
        target: &Target,
        deadline: Deadline,
        record: &mut CallLog,
    ) -> Result<Answer, Stop> {
        let (message, upstream) = (&context.message, &target.upstream);
        // The state was sealed for what the upstream was sent, which has the upstream's own names.
        let native = target.message(context).unwrap_or_else(|_| message.clone());
        let bound = bound(context.caller.as_ref(), upstream.name(), &native);
        let Some(mut running) = self.pending.take(message, &bound) else {
            let text = "requestState is not valid here, or no longer; call again without it";
            return Ok(Answer::error(Era::Modern, message, answer::INVALID_PARAMS, text));
        };
        running.call.continue_as(message);
        running.answer(message.raw(Field::InputResponses).unwrap_or(b"{}")).await;
        record.attempts = 1;
        let answer = TranslatedStream::new(running, &self.pending).answer(deadline, record).await;
        answer.map_err(|why| lost(upstream, why))
    }

    /// Ends the legacy sessions of modern clients that nobody used for `idle`.
    pub async fn reap(&self, idle: std::time::Duration) {
        self.pending.reap();
        self.pool.reap(idle).await;
    }

    /// Ends all of them, and the time of what reloads have left.
    pub async fn stop(&self) {
        self.stopping.send_replace(true);
        self.pending.stop();
        self.pool.stop().await;
    }

    async fn session(
        &self,
        context: &RequestContext,
        upstream: &Arc<Upstream>,
        asks: Asks,
        number: usize,
    ) -> Result<Arc<SharedSession>, ConnectError> {
        let caller = context.caller.as_ref();
        let open = || {
            let (upstream, catalog) = (Arc::clone(upstream), Arc::clone(&self.catalog));
            let opener = SessionOpener { caller: caller.cloned(), principal: Arc::clone(&context.principal) };
            async move { SharedSession::open(opener, &upstream, &catalog, asks).await }
        };
        let key =
            pool::SharedSessionKey { upstream: upstream.key().clone(), whose: Caller::apart(caller), asks, number };
        let session = self.pool.get(key, &context.principal, open).await?;
        session.meet(caller);
        Ok(session)
    }

    /// A request's place in a session: alone, if its client may be asked and there are sessions enough.
    async fn lease(
        &self,
        context: &RequestContext,
        upstream: &Arc<Upstream>,
        asks: Asks,
        first: Arc<SharedSession>,
    ) -> Result<shared_session::SessionLease, ConnectError> {
        let most = match &first.channel {
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
        for number in 1..=most {
            if let Some(lease) = session.lease_alone(method) {
                return Ok(lease);
            }
            taken.push(Arc::clone(&session));
            if number < most {
                session = self.session(context, upstream, asks, number).await?;
            }
        }
        // A question comes in its own call's stream nearly always, where there is one; elsewhere it would be refused.
        let shared = session.channel.has_request_streams() || session.channel.is_shared();
        let free = if shared { None } else { self.pending.make_way(&taken) };
        Ok(free.and_then(|free| free.lease_alone(method)).unwrap_or_else(|| session.lease(method)))
    }
}

/// A reply that was lost on its way.
fn lost(upstream: &Upstream, why: SendError) -> Stop {
    Stop::Failed(match why {
        SendError::TimedOut => Failure::TimedOut(upstream.timeouts.overall),
        why => why.into(),
    })
}

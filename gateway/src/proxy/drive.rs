//! The way of a request to its upstream and back.
//!
//! [`Proxy::drive`] chooses by the eras of client and upstream how the request is put ([`Codec`]). [`CallDriver::drive`] is
//! the one loop over [`weir_flow::call`]: nowhere else is a request sent again, or lost.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use weir_flow::{CallStep, Failure, Verdict, call};
use weir_mcp::{Era, method};

use crate::{
    caller::Caller,
    credential::Needed,
    quota::Reached,
    session::{RunningGuard, RunningRequest},
    task::{self, on_heap},
    telemetry::{CallOutcome, CallSpan},
    upstream::{Channel, ConnectError, CredentialError, Outgoing, Reply, ReplyBody, SendError, Status, Upstream},
};

use super::{
    Answer, AnswerStream, Body, CallLog, Proxy, RequestContext,
    answer::{limited, outcome},
    attempt::{Attempt, AttemptSpans},
    deadline::Deadline,
    legacy,
    pending_answer::PendingAnswer,
    route::Target,
    sign_in::told,
};

/// How a request is put to an upstream: the channel that it takes, and what goes out on it.
pub(super) trait Codec: Send {
    /// Finds a channel.
    fn open(&mut self) -> impl Future<Output = Result<(), Stop>> + Send;

    /// Sends the request on it.
    fn send(&mut self, attempt: &Attempt<'_>) -> impl Future<Output = Result<Reply, SendError>> + Send;

    /// Takes note of a failure: what the next attempt must not rely on.
    fn failed(&mut self, why: &SendError);
}

/// Why a request has no reply.
pub(super) enum Stop {
    /// It came to nothing.
    Failed(Failure),
    /// Nobody is there, or a limit of Weir leaves no connection, which may be over in a moment.
    Outage(SendError),
    /// Weir has the answer.
    Answered(Box<Answer>),
    /// Somebody must sign in first.
    SignIn(Box<Needed>),
    /// A limit is reached.
    Full(Reached),
    /// The upstream speaks the other era only. It has not looked at the request.
    OtherEra,
}

/// One request on its way to its reply.
pub(super) struct CallDriver<'a> {
    upstream: &'a Arc<Upstream>,
    caller: Option<&'a Arc<Caller>>,
    start: Instant,
    /// How long after the start there must be a reply.
    limit: Duration,
    repeatable: bool,
    /// None if the call is not traced.
    span: Option<&'a Arc<CallSpan>>,
}

impl From<ConnectError> for Stop {
    fn from(why: ConnectError) -> Self {
        match why {
            ConnectError::OtherEra { .. } => Self::OtherEra,
            ConnectError::AtOwner => Self::Answered(Box::new(Answer::at_owner())),
            ConnectError::SignIn(needed) => Self::SignIn(needed),
            ConnectError::Full(reached) => Self::Full(reached),
            ConnectError::Outage(why) => Self::Outage(SendError::Unsent(why)),
            ConnectError::Limit(why) => Self::Outage(SendError::Full(why)),
            ConnectError::Silent(why) => Self::Failed(Failure::Unreachable(why)),
            ConnectError::Crashed { why, after } => {
                let why = format!("{why}; the next one may start in {} s", after.as_secs() + 1);
                Self::Failed(Failure::NotConnected(why))
            }
            why => Self::Failed(Failure::NotConnected(why.to_string())),
        }
    }
}

impl<'a> CallDriver<'a> {
    pub(super) fn new(
        upstream: &'a Arc<Upstream>,
        caller: Option<&'a Arc<Caller>>,
        method: &str,
        limit: Duration,
    ) -> Self {
        let repeatable = method::safe_to_repeat(method);
        Self { upstream, caller, start: Instant::now(), limit, repeatable, span: None }
    }

    /// The same with a span for each attempt, if the call has one.
    pub(super) const fn traced(self, span: Option<&'a Arc<CallSpan>>) -> Self {
        Self { span, ..self }
    }

    /// Takes the request to the head of its reply, unless the upstream's breaker is open. `attempts` counts how often it
    /// was sent.
    pub(super) async fn drive(&self, codec: &mut impl Codec, attempts: &mut u32) -> Result<Reply, Stop> {
        let admitted = self.upstream.admit().map_err(Stop::Failed)?;
        let driven = self.attempts(codec, attempts).await;
        admitted.end(self.verdict(&driven), || match &driven {
            Err(Stop::Failed(failure)) => failure.to_string(),
            Ok(reply) => format!("answered with status {}", reply.status),
            Err(_) => String::new(),
        });
        driven
    }

    /// What the end of the call says of the upstream.
    ///
    /// Each caller of a personal upstream has a credential of their own there, and Weir has none to ask it with. So
    /// there only failed connections count: what one caller's calls come to is not the others' trouble.
    fn verdict(&self, driven: &Result<Reply, Stop>) -> Verdict {
        if !self.upstream.is_shared() {
            return Verdict::Unknown;
        }
        let down = if self.upstream.is_personal { Verdict::Unknown } else { Verdict::Down };
        match driven {
            Ok(Reply { status: 502..=504, .. }) => down,
            Ok(_) => Verdict::Up,
            Err(Stop::Failed(Failure::Unreachable(_))) => Verdict::Down,
            Err(Stop::Failed(Failure::BrokenOff(_) | Failure::Unavailable(_))) => down,
            Err(Stop::Failed(Failure::Busy(busy))) if busy.status == 503 => down,
            // A call that had next to no time says nothing.
            Err(Stop::Failed(Failure::TimedOut(_))) if self.limit >= self.upstream.timeouts.overall / 2 => down,
            Err(_) => Verdict::Unknown,
        }
    }

    async fn attempts(&self, codec: &mut impl Codec, attempts: &mut u32) -> Result<Reply, Stop> {
        let before = *attempts;
        let (mut credential, mut spans) = (None, AttemptSpans::new(self.span));
        let mut step = call::begin(self.limit, self.repeatable);
        loop {
            step = match step {
                CallStep::Choose(mut state) => {
                    let refusal = state.take_refusal();
                    // The first one is chosen when the call begins.
                    let left = if refusal.is_some() { self.left() } else { self.limit };
                    let chosen = self.upstream.credential_within(left, self.caller, refusal).await;
                    credential = chosen.map_err(Stop::from)?;
                    state.chosen()
                }
                CallStep::Open(state) => {
                    spans.open();
                    // What is being opened for others too goes on without this call.
                    match tokio::time::timeout(self.left(), codec.open()).await {
                        Ok(Ok(())) => state.opened(),
                        Ok(Err(Stop::Outage(why))) => {
                            spans.fail(&why);
                            state.failed(why, self.start.elapsed())
                        }
                        Ok(Err(stop)) => {
                            spans.stop(&stop);
                            return Err(stop);
                        }
                        Err(_) => {
                            spans.fail(&SendError::TimedOut);
                            return Err(Stop::Failed(Failure::TimedOut(self.limit)));
                        }
                    }
                }
                CallStep::Attempt(state) => {
                    *attempts = before + state.number();
                    let attempt = Attempt { credential: credential.as_ref(), trace: spans.send() };
                    match self.attempt(codec, &attempt).await {
                        Ok(reply) => {
                            spans.reply(reply.status);
                            return Ok(reply);
                        }
                        Err(sent) => {
                            spans.fail(&sent);
                            state.ended(sent, self.start.elapsed())
                        }
                    }
                }
                CallStep::Wait(state) if !self.upstream.take_retry() => state.give_up(),
                CallStep::Wait(state) => {
                    tokio::time::sleep(state.pause()).await;
                    state.over()
                }
                CallStep::Fail(failure) => return Err(Stop::Failed(failure)),
            }
        }
    }

    async fn attempt(&self, codec: &mut impl Codec, attempt: &Attempt<'_>) -> Result<Reply, SendError> {
        match tokio::time::timeout(self.left(), codec.send(attempt)).await {
            Ok(Ok(Reply { status, body: ReplyBody::Empty, .. })) => Err(match SendError::of_status(status) {
                SendError::NotMcp(what) => SendError::NotMcp(format!("{what} without an answer")),
                why => why,
            }),
            Ok(Ok(mut reply)) => {
                if let Some(credential) = attempt.credential.filter(|_| reply.status < 300) {
                    credential.accept();
                }
                reply.renew_for(self.upstream, self.caller);
                Ok(reply)
            }
            Ok(Err(why)) => {
                codec.failed(&why);
                Err(why)
            }
            Err(_) => Err(SendError::TimedOut),
        }
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }
}

impl From<CredentialError> for Stop {
    fn from(why: CredentialError) -> Self {
        match why {
            CredentialError::SignIn(needed) => Self::SignIn(needed),
            why => Self::Failed(Failure::Policy(format!("has no credential: {why}"))),
        }
    }
}

impl Proxy {
    /// Takes a request to one upstream and back, unless its client cancels it before the answer has begun.
    pub(super) async fn drive(
        self: &Arc<Self>,
        context: &RequestContext,
        target: &mut Target,
        record: &mut CallLog,
    ) -> Answer {
        // From here on the client may cancel by this id.
        let running = context.session.as_ref().and_then(|session| session.run(&context.message, &target.upstream));
        let run = running.as_ref().map(|running| Arc::clone(&running.run));
        target.run.clone_from(&run);
        let answer = {
            // Pinned here, for `select!` would move it, and it is large.
            let answer = std::pin::pin!(self.answer_of(context, target, running, record));
            tokio::select! {
                // A request that is not out yet must not go out any more, so the cancellation is looked at first.
                biased;
                () = task::or_never(run.as_deref().map(RunningRequest::cancelled)) => None,
                answer = answer => Some(answer),
            }
        };
        answer.unwrap_or_else(|| {
            record.fail(CallOutcome::Cancelled, "cancelled by the client");
            Answer::events(AnswerStream::nothing())
        })
    }

    /// The one place where the eras of client and upstream decide how a request is put.
    async fn answer_of(
        self: &Arc<Self>,
        context: &RequestContext,
        target: &Target,
        mut running: Option<RunningGuard>,
        record: &mut CallLog,
    ) -> Answer {
        let (upstream, start) = (&target.upstream, Instant::now());
        let mut era = upstream.only_other(context.era).unwrap_or(context.era);
        // What an upstream speaks is learned anew once, where it was another or another version of it before.
        for _ in 0..2 {
            let stopped = match (context.era, era) {
                (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => {
                    self.same_era(context, target, &mut running, start, record).await
                }
                // Boxed: few calls are translated, and every call would carry their state.
                (Era::Modern, Era::Legacy) => on_heap(|| self.to_legacy(context, target, record)).await,
                (Era::Legacy, Era::Modern) => {
                    on_heap(|| self.to_modern(context, target, &mut running, start, record)).await
                }
            };
            match stopped {
                Ok(answer) => return answer,
                Err(Stop::OtherEra) => era = era.other(),
                Err(stop) => return self.stopped(context, upstream, stop, running.as_ref(), record).await,
            }
        }
        self.stopped(context, upstream, Stop::OtherEra, running.as_ref(), record).await
    }

    /// The answer to a request that has no reply.
    pub(super) async fn stopped(
        &self,
        context: &RequestContext,
        upstream: &Arc<Upstream>,
        stop: Stop,
        running: Option<&RunningGuard>,
        record: &mut CallLog,
    ) -> Answer {
        let failure = match stop {
            Stop::Answered(answer) => return *answer,
            Stop::SignIn(needed) => return Box::pin(self.ask_to_sign_in(context, &needed, record)).await,
            Stop::Full(reached) => {
                record.fail(limited(reached.status()), reached.to_string());
                return Answer::full(context.message.id(), &reached);
            }
            Stop::Failed(failure) => failure,
            Stop::Outage(why) => why.into(),
            Stop::OtherEra => Failure::Policy("speaks one era of MCP at one time and the other at another".into()),
        };
        if let (Failure::TimedOut(_), Some(running)) = (&failure, running) {
            legacy::cancel(upstream, running);
        }
        record.fail(outcome(&failure), failure.to_string());
        match &failure {
            // Nothing was sent. A model that reads why can wait, or take another tool.
            Failure::Shed { .. } => told(context, &format!("upstream `{}` {failure}", upstream.name()), true),
            Failure::Unreachable(_) => {
                told(context, &format!("upstream `{}` {failure}{}", upstream.name(), standing(upstream)), true)
            }
            failure => Answer::failed(&context.message, upstream.name(), failure),
        }
    }

    /// Takes a request to an upstream of its client's own era.
    async fn same_era(
        self: &Arc<Self>,
        context: &RequestContext,
        target: &Target,
        running: &mut Option<RunningGuard>,
        start: Instant,
        record: &mut CallLog,
    ) -> Result<Answer, Stop> {
        let upstream = &target.upstream;
        let limit = upstream.timeouts.overall;
        let driver = CallDriver::new(upstream, context.caller.as_ref(), context.message.method(), limit);
        let driver = driver.traced(record.span.as_ref());
        let mut codec = SameEra { proxy: self, context, target, channel: None };
        let reply = driver.drive(&mut codec, &mut record.attempts).await?;
        remember(context, target);
        Ok(self.passed(context, target, reply, running.take(), Deadline::of(upstream, start)))
    }

    /// An upstream's reply on its way to a client of the same era.
    fn passed(
        &self,
        context: &RequestContext,
        target: &Target,
        reply: Reply,
        running: Option<RunningGuard>,
        deadline: Deadline,
    ) -> Answer {
        let Reply { status, body, .. } = reply;
        let (upstream, asked) = (&target.upstream, target.asked.clone());
        let body = match body {
            ReplyBody::Empty => Body::Empty,
            ReplyBody::Json(json) => {
                Body::Json(Box::new(PendingAnswer::new(context, (json, status), upstream, asked, running, deadline)))
            }
            ReplyBody::Events(events) => {
                let endless = method::is_endless(context.message.method());
                let deadline = (!endless).then_some(deadline);
                let stream = AnswerStream::relayed(context, &self.catalog, upstream, events, asked, running, deadline);
                Body::Events(Box::new(stream.until(target.superseded.clone())))
            }
        };
        Answer { status, session: None, allow: None, retry_after: None, body, record: None }
    }

    /// Sends what needs no answer.
    pub(super) async fn pass_on(self: &Arc<Self>, context: &RequestContext, target: &Target) {
        let upstream = &target.upstream;
        let Ok(credential) = upstream.credential(context.caller.as_ref(), None).await else { return };
        let channel = match &context.session {
            // What concerns an upstream session that is gone means nothing to a new one.
            Some(session) => session.channels.get(upstream),
            None => upstream.lease_modern(context.caller.as_ref()).await.ok(),
        };
        let Some(channel) = channel else { return };
        let mut codec = SameEra { proxy: self, context, target, channel: Some(channel) };
        let attempt = Attempt { credential: credential.as_ref(), trace: None };
        let sent = tokio::time::timeout(upstream.timeouts.list, codec.send(&attempt)).await;
        if let Err(why) = sent.unwrap_or(Err(SendError::TimedOut)) {
            tracing::debug!(upstream = upstream.name(), method = context.message.method(), error = %why, "message not taken");
        }
    }
}

/// The state of an upstream that cannot be reached, and when Weir tries it again.
fn standing(upstream: &Upstream) -> String {
    let Status { state, retry, .. } = upstream.status();
    match retry.map(|at| at.saturating_duration_since(Instant::now()).as_secs() + 1) {
        Some(after) => format!(" (state `{state}`; Weir tries again in {after} s)"),
        None => format!(" (state `{state}`)"),
    }
}

/// A request as its client sent it, but for names.
struct SameEra<'a> {
    proxy: &'a Arc<Proxy>,
    context: &'a RequestContext,
    target: &'a Target,
    channel: Option<Channel>,
}

impl Codec for SameEra<'_> {
    /// The client's own session at the upstream, or what modern calls share.
    async fn open(&mut self) -> Result<(), Stop> {
        let (context, upstream) = (self.context, &self.target.upstream);
        let channel = match &context.session {
            Some(session) => self.proxy.open_channel(session, upstream).await?,
            None => upstream.lease_modern(context.caller.as_ref()).await?,
        };
        if context.era == Era::Modern
            && !channel.carries_headers()
            && let Some(refusal) = self.proxy.check_headers(context, self.target, Era::Modern)
        {
            return Err(Stop::Answered(Box::new(refusal)));
        }
        self.channel = Some(channel);
        Ok(())
    }

    async fn send(&mut self, attempt: &Attempt<'_>) -> Result<Reply, SendError> {
        let Some(channel) = &self.channel else { return Err(SendError::Unsent("no connection".into())) };
        let outgoing = Outgoing {
            era: self.context.era,
            message: &self.context.message,
            body: self.target.body.clone(),
            name: self.target.name.as_deref(),
            version: self.context.version.as_ref(),
            headers: &self.context.headers,
            ticket: self.target.run.as_ref().map(|run| &run.ticket),
            credential: attempt.credential,
            trace: attempt.trace.as_ref(),
        };
        channel.send(outgoing).await
    }

    fn failed(&mut self, why: &SendError) {
        if let (SendError::SessionLost | SendError::BrokenOff(_), Some(session)) = (why, &self.context.session)
            && let Some(channel) = &self.channel
            && (!channel.alive() || *why == SendError::SessionLost)
        {
            session.channels.forget(&self.target.upstream, channel);
        }
    }
}

/// Remembers what a legacy client watches and from which severity on it wants the log, so that both go on when the upstream
/// has lost its session.
fn remember(context: &RequestContext, target: &Target) {
    let watches = match context.message.method() {
        method::SET_LEVEL => {
            context.session.iter().for_each(|session| session.set_level(&context.message));
            return;
        }
        method::SUBSCRIBE => true,
        method::UNSUBSCRIBE => false,
        _ => return,
    };
    let native = target.name.clone().or_else(|| context.message.uri().map(|uri| uri.into_owned()));
    if let (Some(session), Some(uri)) = (&context.session, native) {
        session.watch(target.upstream.key(), uri, watches);
    }
}

//! The driver of [`weir_flow::Call`]: asks it what to do, does it, and tells it what came of it.

use std::{sync::Arc, time::Instant};

use weir_flow::{Action, CallFlow, Failure, Sent, facts::Refusal};
use weir_mcp::{Era, Message, method};

use crate::{
    credential::Needed,
    session::{RunningGuard, RunningRequest},
    telemetry::CallOutcome,
    upstream::{self, Channel, ConnectError, Credential, CredentialError, Outgoing, Reply, SendError, Upstream},
};

use super::{
    Answer, AnswerStream, Body, CallLog, Proxy, RequestContext,
    answer::outcome,
    deadline::Deadline,
    pending_answer::PendingAnswer,
    route::Target,
    translate::{self, TranslatedRequest},
};

/// What a call has in hand.
#[derive(Default)]
struct DriverState {
    credential: Option<Credential>,
    channel: Option<Channel>,
    reply: Option<Reply>,
    /// The upstream was taken for one of the other era, and is none.
    turned: bool,
    /// The call in the words of an upstream of the other era.
    translated: Option<Box<translate::TranslatedCall>>,
}

/// A call on its way to one upstream.
struct CallDriver<'a> {
    proxy: &'a Arc<Proxy>,
    context: &'a RequestContext,
    target: Target,
    upstream: &'a Arc<Upstream>,
    start: Instant,
    hand: DriverState,
    /// The request among those of its session that run.
    running: Option<RunningGuard>,
    /// Which step is next.
    call: CallFlow,
    record: &'a mut CallLog,
}

impl Proxy {
    /// Takes a request to one upstream and back, unless its client cancels it before the answer has begun.
    pub(super) async fn drive(
        self: &Arc<Self>,
        context: &RequestContext,
        mut target: Target,
        record: &mut CallLog,
    ) -> Answer {
        // From here on the client may cancel by this id.
        let running = context.session.as_ref().and_then(|session| session.run(&context.message, target.upstream));
        let run = running.as_ref().map(|running| Arc::clone(&running.run));
        target.run.clone_from(&run);
        let answer = {
            // Pinned here, for `select!` would move it, and it is large.
            let attempts = std::pin::pin!(self.attempts(context, target, running, record));
            tokio::select! {
                // A request that is not out yet must not go out any more, so the cancellation is looked at first.
                biased;
                () = cancelled(run.as_deref()) => None,
                answer = attempts => Some(answer),
            }
        };
        answer.unwrap_or_else(|| {
            record.fail(CallOutcome::Cancelled, "cancelled by the client");
            cancelled_answer()
        })
    }

    async fn attempts(
        self: &Arc<Self>,
        context: &RequestContext,
        target: Target,
        running: Option<RunningGuard>,
        record: &mut CallLog,
    ) -> Answer {
        let (upstream, start) = (self.upstream(target.upstream), Instant::now());
        let call = CallFlow::new(upstream.overall_timeout(), method::safe_to_repeat(context.message.method()));
        let hand = DriverState::default();
        let mut drive = CallDriver { proxy: self, context, target, upstream, start, hand, running, call, record };
        loop {
            let done = match drive.call.poll_action() {
                Action::Choose(refused) => drive.choose(refused).await,
                Action::Open => drive.open().await,
                Action::Attempt => {
                    drive.attempt().await;
                    None
                }
                Action::Wait(pause) => {
                    tokio::time::sleep(pause).await;
                    drive.call.handle_pause();
                    None
                }
                Action::Deliver => return drive.deliver().await,
                Action::Fail(failure) => return drive.failed(failure),
            };
            if let Some(answer) = done {
                return answer;
            }
        }
    }

    /// An upstream's reply on its way to a client of the same era.
    fn passed(&self, drive: &mut CallDriver<'_>, reply: Reply, deadline: Deadline) -> Answer {
        let Reply { status, body, .. } = reply;
        let (context, upstream, asked) = (drive.context, drive.upstream, drive.target.asked.take());
        let body = match body {
            upstream::ReplyBody::Empty => Body::Empty,
            upstream::ReplyBody::Json(json) => {
                let running = drive.running.take();
                Body::Json(Box::new(PendingAnswer::new(context, (json, status), upstream, asked, running, deadline)))
            }
            upstream::ReplyBody::Events(events) => {
                let deadline = (!method::is_endless(context.message.method())).then_some(deadline);
                let (from, running) = ((drive.target.upstream, upstream), drive.running.take());
                let delivery = AnswerStream::relayed(context, &self.catalog, from, events, asked, running, deadline);
                Body::Events(Box::new(delivery))
            }
        };
        Answer { status, session: None, allow: None, body, record: None }
    }

    /// Sends what needs no answer.
    pub(super) async fn pass_on(&self, context: &RequestContext, target: Target) {
        let upstream = self.upstream(target.upstream);
        let Ok(credential) = upstream.credential(context.caller.as_ref(), None).await else { return };
        let channel = match &context.session {
            // What concerns an upstream session that is gone means nothing to a new one.
            Some(session) => session.channels.get(target.upstream),
            None => upstream.open_modern(context.caller.as_ref()).await.ok(),
        };
        let Some(channel) = channel else { return };
        let hand = DriverState { credential, channel: Some(channel), ..DriverState::default() };
        let sent = tokio::time::timeout(upstream.list_timeout(), attempt(context, &target, &hand)).await;
        if let Err(why) = sent.unwrap_or(Err(SendError::TimedOut)) {
            tracing::debug!(upstream = upstream.name(), method = context.message.method(), %why, "message not taken");
        }
    }

    /// The way to an upstream for this client: its session's own, or what modern calls share.
    async fn open(self: &Arc<Self>, context: &RequestContext, place: usize) -> Result<Channel, ConnectError> {
        let upstream = self.upstream(place);
        match &context.session {
            Some(session) => self.open_channel(session, place).await,
            None => upstream.open_modern(context.caller.as_ref()).await,
        }
    }

    /// Learns from a failure what the next attempt must not rely on.
    fn after_failure(&self, context: &RequestContext, place: usize, hand: &DriverState, why: &SendError) {
        if let Some(translated) = &hand.translated {
            translated.failed(why);
        }
        if let (SendError::SessionLost | SendError::BrokenOff(_), Some(session)) = (why, &context.session)
            && let Some(channel) = &hand.channel
            && (!channel.alive() || *why == SendError::SessionLost)
        {
            session.channels.forget(place, channel);
        }
    }
}

impl CallDriver<'_> {
    /// Has a credential chosen; gives the answer, if somebody must sign in first.
    async fn choose(&mut self, refused: Option<Refusal>) -> Option<Answer> {
        // The first one is chosen when the call begins.
        let left = match refused {
            None => self.upstream.overall_timeout(),
            Some(_) => self.call.left(self.start.elapsed()),
        };
        match self.upstream.credential_within(left, self.context.caller.as_ref(), refused).await {
            Ok(credential) => {
                self.hand.credential = credential;
                self.call.handle_chosen();
            }
            Err(CredentialError::SignIn(needed)) => return Some(self.ask_to_sign_in(&needed).await),
            Err(why) => self.call.handle_failure(Failure::Policy(format!("has no credential: {why}"))),
        }
        None
    }

    /// Opens the way to the upstream; gives the answer, if it is there without one.
    async fn open(&mut self) -> Option<Answer> {
        let left = self.call.left(self.start.elapsed());
        // What is being opened for others too goes on without this call.
        let opened = tokio::time::timeout(left, self.proxy.open(self.context, self.target.upstream));
        let Ok(opened) = opened.await else {
            self.call.handle_failure(Failure::TimedOut(self.upstream.overall_timeout()));
            return None;
        };
        match opened {
            Ok(channel) => {
                if self.context.era == Era::Modern
                    && !channel.carries_headers()
                    && let Some(refusal) = self.proxy.check_headers(self.context, &self.target, Era::Modern)
                {
                    return Some(refusal);
                }
                self.hand.channel = Some(channel);
                self.call.handle_open();
                None
            }
            // Boxed: few calls are translated, and every call would carry its state.
            Err(ConnectError::OtherEra { wanted, other }) => Box::pin(self.cross(wanted, other)).await,
            Err(why) => self.not_open(why).await,
        }
    }

    /// Goes on with an upstream of the other era.
    async fn cross(&mut self, wanted: Era, other: Era) -> Option<Answer> {
        match (wanted, &self.context.session) {
            (Era::Modern, _) => match self.proxy.translate(self.context, &self.target, self.record).await {
                Ok(TranslatedRequest::Call(translated)) => {
                    self.hand.translated = Some(translated);
                    self.call.handle_open();
                }
                Ok(TranslatedRequest::Answered(answer)) => return Some(*answer),
                Err(why) => return self.not_open(why).await,
            },
            (Era::Legacy, Some(session)) if !self.hand.turned => {
                let answer =
                    self.proxy.in_input_loop(self.context, &self.target, session, self.start, self.record).await;
                // None if it speaks the client's era after all.
                self.hand.turned = answer.is_none();
                return answer;
            }
            (Era::Legacy, _) => {
                let text = format!("speaks the {other} era of MCP at one time and not at another");
                self.call.handle_failure(Failure::Policy(text));
            }
        }
        None
    }

    async fn not_open(&mut self, why: ConnectError) -> Option<Answer> {
        match why {
            ConnectError::SignIn(needed) => Some(self.ask_to_sign_in(&needed).await),
            ConnectError::Full(full) => {
                self.record.fail(CallOutcome::Refused, full.to_string());
                Some(Answer::full(self.context.message.id(), &full))
            }
            why => {
                self.call.handle_failure(Failure::Unreachable(why.to_string()));
                None
            }
        }
    }

    async fn ask_to_sign_in(&mut self, needed: &Needed) -> Answer {
        Box::pin(self.proxy.ask_to_sign_in(self.context, needed, self.record)).await
    }

    async fn attempt(&mut self) {
        let left = self.call.left(self.start.elapsed());
        let sent = match tokio::time::timeout(left, attempt(self.context, &self.target, &self.hand)).await {
            Ok(Ok(Reply { status, body: upstream::ReplyBody::Empty, .. })) => {
                Sent::NotMcp(format!("status {status} without an answer"))
            }
            Ok(Ok(mut reply)) => {
                if let Some(credential) = self.hand.credential.as_ref().filter(|_| reply.status < 300) {
                    credential.accept();
                }
                reply.renew_for(self.upstream, self.context.caller.as_ref());
                self.hand.reply = Some(reply);
                Sent::Answered
            }
            Ok(Err(why)) => {
                self.proxy.after_failure(self.context, self.target.upstream, &self.hand, &why);
                why.into()
            }
            Err(_) => Sent::TimedOut,
        };
        self.call.handle_sent(sent, self.start.elapsed());
        self.record.attempts = self.call.attempts();
    }

    /// The answer that has come, on its way to the client.
    async fn deliver(&mut self) -> Answer {
        note_watch(self.context, &self.target);
        let (proxy, deadline) = (self.proxy, Deadline::of(self.upstream, self.start));
        let delivered = match (self.hand.reply.take(), self.hand.translated.take()) {
            (Some(reply), Some(translated)) => {
                Box::pin(translated.deliver(reply, &proxy.pending, deadline, self.record)).await
            }
            (Some(reply), None) => return proxy.passed(self, reply, deadline),
            (None, _) => Err(SendError::NotMcp("nothing".into())),
        };
        delivered.unwrap_or_else(|why| {
            self.failed(match why {
                SendError::TimedOut => Failure::TimedOut(self.upstream.overall_timeout()),
                why => why.into(),
            })
        })
    }

    fn failed(&mut self, failure: Failure) -> Answer {
        if let (Failure::TimedOut(_), Some(running)) = (&failure, &self.running) {
            cancel(self.upstream, running);
        }
        self.record.fail(outcome(&failure), failure.to_string());
        Answer::failed(&self.context.message, self.upstream.name(), &failure)
    }
}

/// Tells an upstream, in the background, that nobody waits for a request of a legacy client any more.
pub(super) fn cancel(upstream: &Arc<Upstream>, running: &RunningGuard) {
    let session = running.session();
    let Some(channel) = session.channels.get(running.run.upstream) else { return };
    let Ok(message) = Message::parse(running.cancellation("it has timed out")) else { return };
    let (upstream, caller, run) = (Arc::clone(upstream), session.caller(), Arc::clone(&running.run));
    tokio::spawn(async move {
        let tell = upstream.tell_of(caller.as_ref(), &channel, &message, Some(&run.ticket));
        drop(tokio::time::timeout(upstream.list_timeout(), tell).await);
    });
}

/// Remembers what a legacy client watches, so that it is watched on when the upstream has lost its session.
fn note_watch(context: &RequestContext, target: &Target) {
    let watches = match context.message.method() {
        method::SUBSCRIBE => true,
        method::UNSUBSCRIBE => false,
        _ => return,
    };
    let native = target.name.clone().or_else(|| context.message.uri().map(|uri| uri.into_owned()));
    if let (Some(session), Some(uri)) = (&context.session, native) {
        session.watch(target.upstream, uri, watches);
    }
}

/// Resolves when the client cancels its request.
async fn cancelled(run: Option<&RunningRequest>) {
    match run {
        Some(run) => run.cancelled().await,
        None => std::future::pending().await,
    }
}

/// What is left to say to a client that has cancelled its request: nothing, on a stream that ends.
fn cancelled_answer() -> Answer {
    let body = Body::Events(Box::new(AnswerStream::nothing()));
    Answer { status: 200, session: None, allow: None, body, record: None }
}

async fn attempt(context: &RequestContext, target: &Target, hand: &DriverState) -> Result<Reply, SendError> {
    if let Some(translated) = &hand.translated {
        return translated.send(hand.credential.as_ref()).await;
    }
    let Some(channel) = &hand.channel else { return Err(SendError::Unsent("no connection".into())) };
    let outgoing = Outgoing {
        era: context.era,
        message: &context.message,
        body: target.body.clone(),
        name: target.name.as_deref(),
        version: context.version.as_ref(),
        headers: &context.headers,
        ticket: target.run.as_ref().map(|run| &run.ticket),
        credential: hand.credential.as_ref(),
    };
    channel.send(outgoing).await
}

//! The driver of [`weir_flow::Call`]: asks it what to do, does it, and tells it what came of it.

use std::{sync::Arc, time::Instant};

use weir_flow::{
    Action, Call, Failure, Sent,
    facts::{Refusal, Transport},
};
use weir_mcp::{Era, Message, method};

use crate::{
    login::Needed,
    observe::Outcome,
    session::{Run, Running},
    upstream::{self, Channel, ConnectError, Credential, CredentialError, Outgoing, Reply, SendError, Upstream},
};

use super::{
    Answer, Body, Delivery, Inquiry, Record, Relay,
    answer::outcome,
    deadline::Deadline,
    pending::Pending,
    route::Leg,
    translate::{self, Translated},
};

/// What a call has in hand.
#[derive(Default)]
struct Hand {
    credential: Option<Credential>,
    channel: Option<Channel>,
    reply: Option<Reply>,
    /// The upstream was taken for one of the other era, and is none.
    turned: bool,
    /// The call in the words of an upstream of the other era.
    translated: Option<Box<translate::Call>>,
}

/// A call on its way to one upstream.
struct Drive<'a> {
    relay: &'a Arc<Relay>,
    inquiry: &'a Inquiry,
    leg: Leg,
    upstream: &'a Arc<Upstream>,
    start: Instant,
    hand: Hand,
    /// The request among those of its session that run.
    running: Option<Running>,
    /// Which step is next.
    call: Call,
    record: &'a mut Record,
}

impl Relay {
    /// Takes a request to one upstream and back, unless its client cancels it before the answer has begun.
    pub(super) async fn drive(self: &Arc<Self>, inquiry: &Inquiry, mut leg: Leg, record: &mut Record) -> Answer {
        // From here on the client may cancel by this id.
        let running = inquiry.session.as_ref().and_then(|session| session.run(&inquiry.message, leg.upstream));
        let run = running.as_ref().map(|running| Arc::clone(&running.run));
        leg.run.clone_from(&run);
        let answer = {
            // Pinned here, for `select!` would move it, and it is large.
            let attempts = std::pin::pin!(self.attempts(inquiry, leg, running, record));
            tokio::select! {
                // A request that is not out yet must not go out any more, so the cancellation is looked at first.
                biased;
                () = cancelled(run.as_deref()) => None,
                answer = attempts => Some(answer),
            }
        };
        answer.unwrap_or_else(|| {
            record.fail(Outcome::Cancelled, "cancelled by the client");
            cancelled_answer()
        })
    }

    async fn attempts(
        self: &Arc<Self>,
        inquiry: &Inquiry,
        leg: Leg,
        running: Option<Running>,
        record: &mut Record,
    ) -> Answer {
        let (upstream, start) = (self.upstream(leg.upstream), Instant::now());
        let call = Call::new(upstream.overall_timeout(), method::safe_to_repeat(inquiry.message.method()));
        let hand = Hand::default();
        let mut drive = Drive { relay: self, inquiry, leg, upstream, start, hand, running, call, record };
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
    fn passed(&self, drive: &mut Drive<'_>, reply: Reply, deadline: Deadline) -> Answer {
        let Reply { status, body, .. } = reply;
        let (inquiry, upstream, asked) = (drive.inquiry, drive.upstream, drive.leg.asked.take());
        let body = match body {
            upstream::Body::Empty => Body::Empty,
            upstream::Body::Json(json) => {
                let running = drive.running.take();
                Body::Json(Box::new(Pending::new(inquiry, (json, status), upstream, asked, running, deadline)))
            }
            upstream::Body::Events(events) => {
                let deadline = (!method::is_endless(inquiry.message.method())).then_some(deadline);
                let (from, running) = ((drive.leg.upstream, upstream), drive.running.take());
                let delivery = Delivery::relayed(inquiry, &self.catalog, from, events, asked, running, deadline);
                Body::Events(Box::new(delivery))
            }
        };
        Answer { status, session: None, allow: None, body, record: None }
    }

    /// Sends what needs no answer.
    pub(super) async fn pass_on(&self, inquiry: &Inquiry, leg: Leg) {
        let upstream = self.upstream(leg.upstream);
        let Ok(credential) = upstream.credential(inquiry.caller.as_ref(), None).await else { return };
        let channel = match &inquiry.session {
            // What concerns an upstream session that is gone means nothing to a new one.
            Some(session) => session.lines.get(leg.upstream),
            None => upstream.open_modern(inquiry.caller.as_ref()).await.ok(),
        };
        let Some(channel) = channel else { return };
        let hand = Hand { credential, channel: Some(channel), ..Hand::default() };
        let sent = tokio::time::timeout(upstream.list_timeout(), attempt(inquiry, &leg, &hand)).await;
        if let Err(why) = sent.unwrap_or(Err(SendError::TimedOut)) {
            tracing::debug!(upstream = upstream.name(), method = inquiry.message.method(), %why, "message not taken");
        }
    }

    /// The way to an upstream for this client: its session's own, or what modern calls share.
    async fn open(self: &Arc<Self>, inquiry: &Inquiry, place: usize) -> Result<Channel, ConnectError> {
        let upstream = self.upstream(place);
        match &inquiry.session {
            Some(session) => self.open_line(session, place).await,
            None => upstream.open_modern(inquiry.caller.as_ref()).await,
        }
    }

    /// Learns from a failure what the next attempt must not rely on.
    fn after_failure(&self, inquiry: &Inquiry, place: usize, hand: &Hand, why: &SendError) {
        if let Some(translated) = &hand.translated {
            translated.failed(why);
        }
        if let (SendError::SessionLost | SendError::BrokenOff(_), Some(session)) = (why, &inquiry.session)
            && let Some(channel) = &hand.channel
            && (!channel.alive() || *why == SendError::SessionLost)
        {
            session.lines.forget(place, channel);
        }
    }
}

impl Drive<'_> {
    /// Has a credential chosen; gives the answer, if somebody must sign in first.
    async fn choose(&mut self, refused: Option<Refusal>) -> Option<Answer> {
        // The first one is chosen when the call begins.
        let left = match refused {
            None => self.upstream.overall_timeout(),
            Some(_) => self.call.left(self.start.elapsed()),
        };
        match self.upstream.credential_within(left, self.inquiry.caller.as_ref(), refused).await {
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
        let opened = tokio::time::timeout(left, self.relay.open(self.inquiry, self.leg.upstream));
        let Ok(opened) = opened.await else {
            self.call.handle_failure(Failure::TimedOut(self.upstream.overall_timeout()));
            return None;
        };
        match opened {
            Ok(channel) => {
                if self.inquiry.era == Era::Modern
                    && channel.transport() == Transport::Stdio
                    && let Some(refusal) = self.relay.check_headers(self.inquiry, &self.leg, Era::Modern)
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
        match (wanted, &self.inquiry.session) {
            (Era::Modern, _) => match self.relay.translate(self.inquiry, &self.leg, self.record).await {
                Ok(Translated::Call(translated)) => {
                    self.hand.translated = Some(translated);
                    self.call.handle_open();
                }
                Ok(Translated::Answered(answer)) => return Some(*answer),
                Err(why) => return self.not_open(why).await,
            },
            (Era::Legacy, Some(session)) if !self.hand.turned => {
                let answer = self.relay.in_rounds(self.inquiry, &self.leg, session, self.start, self.record).await;
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
                self.record.fail(Outcome::Refused, full.to_string());
                Some(Answer::full(self.inquiry.message.id(), &full))
            }
            why => {
                self.call.handle_failure(Failure::Unreachable(why.to_string()));
                None
            }
        }
    }

    async fn ask_to_sign_in(&mut self, needed: &Needed) -> Answer {
        Box::pin(self.relay.ask_to_sign_in(self.inquiry, needed, self.record)).await
    }

    async fn attempt(&mut self) {
        let left = self.call.left(self.start.elapsed());
        let sent = match tokio::time::timeout(left, attempt(self.inquiry, &self.leg, &self.hand)).await {
            Ok(Ok(Reply { status, body: upstream::Body::Empty, .. })) => {
                Sent::NotMcp(format!("status {status} without an answer"))
            }
            Ok(Ok(mut reply)) => {
                if let Some(credential) = self.hand.credential.as_ref().filter(|_| reply.status < 300) {
                    credential.accept();
                }
                reply.renew_for(self.upstream, self.inquiry.caller.as_ref());
                self.hand.reply = Some(reply);
                Sent::Answered
            }
            Ok(Err(why)) => {
                self.relay.after_failure(self.inquiry, self.leg.upstream, &self.hand, &why);
                why.into()
            }
            Err(_) => Sent::TimedOut,
        };
        self.call.handle_sent(sent, self.start.elapsed());
        self.record.attempts = self.call.attempts();
    }

    /// The answer that has come, on its way to the client.
    async fn deliver(&mut self) -> Answer {
        note_watch(self.inquiry, &self.leg);
        let (relay, deadline) = (self.relay, Deadline::of(self.upstream, self.start));
        let delivered = match (self.hand.reply.take(), self.hand.translated.take()) {
            (Some(reply), Some(translated)) => {
                Box::pin(translated.deliver(reply, &relay.parked, deadline, self.record)).await
            }
            (Some(reply), None) => return relay.passed(self, reply, deadline),
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
        Answer::failed(&self.inquiry.message, self.upstream.name(), &failure)
    }
}

/// Tells an upstream, in the background, that nobody waits for a request of a legacy client any more.
pub(super) fn cancel(upstream: &Arc<Upstream>, running: &Running) {
    let session = running.session();
    let Some(channel) = session.lines.get(running.run.upstream) else { return };
    let Ok(message) = Message::parse(running.cancellation("it has timed out")) else { return };
    let (upstream, caller, run) = (Arc::clone(upstream), session.caller(), Arc::clone(&running.run));
    tokio::spawn(async move {
        let tell = upstream.tell_of(caller.as_ref(), &channel, &message, Some(&run.ticket));
        drop(tokio::time::timeout(upstream.list_timeout(), tell).await);
    });
}

/// Remembers what a legacy client watches, so that it is watched on when the upstream has lost its session.
fn note_watch(inquiry: &Inquiry, leg: &Leg) {
    let watches = match inquiry.message.method() {
        method::SUBSCRIBE => true,
        method::UNSUBSCRIBE => false,
        _ => return,
    };
    let native = leg.name.clone().or_else(|| inquiry.message.uri().map(|uri| uri.into_owned()));
    if let (Some(session), Some(uri)) = (&inquiry.session, native) {
        session.watch(leg.upstream, uri, watches);
    }
}

/// Resolves when the client cancels its request.
async fn cancelled(run: Option<&Run>) {
    match run {
        Some(run) => run.cancelled().await,
        None => std::future::pending().await,
    }
}

/// What is left to say to a client that has cancelled its request: nothing, on a stream that ends.
fn cancelled_answer() -> Answer {
    let body = Body::Events(Box::new(Delivery::nothing()));
    Answer { status: 200, session: None, allow: None, body, record: None }
}

async fn attempt(inquiry: &Inquiry, leg: &Leg, hand: &Hand) -> Result<Reply, SendError> {
    if let Some(translated) = &hand.translated {
        return translated.send(hand.credential.as_ref()).await;
    }
    let Some(channel) = &hand.channel else { return Err(SendError::Unsent("no connection".into())) };
    let outgoing = Outgoing {
        era: inquiry.era,
        message: &inquiry.message,
        body: leg.body.clone(),
        name: leg.name.as_deref(),
        version: inquiry.version.as_ref(),
        headers: &inquiry.headers,
        ticket: leg.run.as_ref().map(|run| &run.ticket),
        credential: hand.credential.as_ref(),
    };
    channel.send(outgoing).await
}

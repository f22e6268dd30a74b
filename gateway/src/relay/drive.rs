//! The driver of [`weir_flow::Call`]: asks it what to do, does it, and tells it what came of it.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use weir_flow::{Action, Call, Failure, Sent};
use weir_mcp::{
    Era, Kind, Message, method,
    public::{self, Asked},
};

use crate::{
    session::{Run, Running},
    upstream::{self, Channel, ConnectError, Credential, CredentialError, JsonBody, Outgoing, Reply, SendError},
};

use super::{
    Answer, Body, Delivery, Inquiry, Record, Relay,
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
            record.failure = Some("cancelled by the client".into());
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
        let upstream = self.upstream(leg.upstream);
        let start = Instant::now();
        let mut call = Call::new(upstream.overall_timeout(), method::safe_to_repeat(inquiry.message.method()));
        let mut hand = Hand::default();
        let failure = loop {
            match call.poll_action() {
                Action::Choose(refused) => match upstream.credential(inquiry.caller.as_ref(), refused).await {
                    Ok(credential) => {
                        hand.credential = credential;
                        call.handle_chosen();
                    }
                    Err(CredentialError::SignIn(needed)) => {
                        return Box::pin(self.ask_to_sign_in(inquiry, &needed, record)).await;
                    }
                    Err(why) => call.handle_failure(Failure::Policy(format!("has no credential: {why}"))),
                },
                Action::Open => match self.open(inquiry, leg.upstream).await {
                    Ok(channel) => {
                        hand.channel = Some(channel);
                        call.handle_open();
                    }
                    Err(ConnectError::OtherEra { wanted: Era::Modern, .. }) => {
                        // Boxed, here and below: few calls are translated, and every call would carry its state.
                        match Box::pin(self.translate(inquiry, &leg)).await {
                            Ok(Translated::Call(translated)) => {
                                hand.translated = Some(translated);
                                call.handle_open();
                            }
                            Ok(Translated::Answered(answer)) => return *answer,
                            Ok(Translated::Resumed(answer)) => {
                                record.attempts = 1;
                                return *answer;
                            }
                            Err(ConnectError::SignIn(needed)) => {
                                return Box::pin(self.ask_to_sign_in(inquiry, &needed, record)).await;
                            }
                            Err(why) => call.handle_failure(Failure::Unreachable(why.to_string())),
                        }
                    }
                    Err(ConnectError::OtherEra { wanted: Era::Legacy, other }) => {
                        if let Some(session) = inquiry.session.as_ref().filter(|_| !hand.turned) {
                            match Box::pin(self.in_rounds(inquiry, &leg, session, start, record)).await {
                                Some(answer) => return answer,
                                // It speaks the client's era after all.
                                None => hand.turned = true,
                            }
                        } else {
                            let text = format!("speaks the {other} era of MCP at one time and not at another");
                            call.handle_failure(Failure::Policy(text));
                        }
                    }
                    Err(ConnectError::SignIn(needed)) => {
                        return Box::pin(self.ask_to_sign_in(inquiry, &needed, record)).await;
                    }
                    Err(why) => call.handle_failure(Failure::Unreachable(why.to_string())),
                },
                Action::Attempt => {
                    let left = call.left(start.elapsed());
                    let sent = match tokio::time::timeout(left, attempt(inquiry, &leg, &hand)).await {
                        Ok(Ok(Reply { status, body: upstream::Body::Empty, .. })) => {
                            Sent::NotMcp(format!("status {status} without an answer"))
                        }
                        Ok(Ok(reply)) => {
                            hand.reply = Some(reply);
                            Sent::Answered
                        }
                        Ok(Err(why)) => {
                            self.after_failure(inquiry, leg.upstream, &hand, &why);
                            why.into()
                        }
                        Err(_) => Sent::TimedOut,
                    };
                    call.handle_sent(sent, start.elapsed());
                    record.attempts = call.attempts();
                }
                Action::Wait(pause) => {
                    tokio::time::sleep(pause).await;
                    call.handle_pause();
                }
                Action::Deliver => break None,
                Action::Fail(failure) => break Some(failure),
            }
        };
        if failure.is_none() {
            note_watch(inquiry, &leg);
        }
        match (failure, hand.reply, hand.translated) {
            (None, Some(reply), Some(translated)) => {
                let deadline = start + upstream.overall_timeout();
                match Box::pin(translated.deliver(reply, &self.parked, deadline)).await {
                    Ok(answer) => answer,
                    Err(why) => failed(inquiry, upstream.name(), why.into(), record),
                }
            }
            (None, Some(reply), None) => {
                match self.passed(inquiry, leg, reply, running, start + upstream.overall_timeout()).await {
                    Ok(answer) => answer,
                    Err(why) => failed(inquiry, upstream.name(), why.into(), record),
                }
            }
            (failure, _, _) => {
                let failure = failure.unwrap_or_else(|| Failure::NotMcp("nothing".into()));
                failed(inquiry, upstream.name(), failure, record)
            }
        }
    }

    /// An upstream's reply on its way to a client of the same era.
    async fn passed(
        &self,
        inquiry: &Inquiry,
        leg: Leg,
        reply: Reply,
        running: Option<Running>,
        deadline: Instant,
    ) -> Result<Answer, SendError> {
        let upstream = self.upstream(leg.upstream);
        let Reply { status, body, .. } = reply;
        let (status, body) = match body {
            upstream::Body::Json(json) if (inquiry.era, status) == (Era::Legacy, 404) => {
                (200, Box::pin(answered(json, deadline)).await?)
            }
            body => (status, body),
        };
        let body = match (body, &leg.asked) {
            (upstream::Body::Empty, _) => Body::Empty,
            (upstream::Body::Json(json), None) => Body::Json(json, deadline),
            (upstream::Body::Json(json), Some(asked)) => {
                let bytes = Box::pin(named(json, deadline, upstream.name(), asked)).await?;
                Body::Whole([bytes, Bytes::new(), Bytes::new()])
            }
            (upstream::Body::Events(events), _) => {
                let deadline = (!method::is_endless(inquiry.message.method())).then_some(deadline);
                let from = (leg.upstream, &**upstream);
                let delivery = Delivery::relayed(inquiry, &self.catalog, from, events, leg.asked, running, deadline);
                Body::Events(Box::new(delivery))
            }
        };
        Ok(Answer { status, session: None, allow: None, body, record: None })
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

fn failed(inquiry: &Inquiry, upstream: &str, failure: Failure, record: &mut Record) -> Answer {
    record.failure = Some(failure.to_string());
    Answer::failed(&inquiry.message, upstream, &failure)
}

/// What came with a 404 as an answer like any other: to a client with a session that status would say that its session is
/// gone (2025-11-25, basic/transports).
async fn answered(json: JsonBody, deadline: Instant) -> Result<upstream::Body, SendError> {
    let gathered = tokio::time::timeout_at(deadline.into(), json.gather()).await;
    let bytes = gathered.unwrap_or(Err(SendError::TimedOut))?;
    let is_answer = |message: &Message| matches!(message.kind(), Kind::Response | Kind::Error);
    if !Message::parse(bytes.clone()).as_ref().is_ok_and(is_answer) {
        return Err(SendError::NotMcp("status 404".into()));
    }
    Ok(upstream::Body::Json(JsonBody::Whole(bytes)))
}

/// A whole answer in which Weir's names stand in place of the upstream's.
async fn named(json: JsonBody, deadline: Instant, upstream: &str, asked: &Asked) -> Result<Bytes, SendError> {
    let gathered = tokio::time::timeout_at(deadline.into(), json.gather()).await;
    let bytes = gathered.unwrap_or(Err(SendError::TimedOut))?;
    let message = Message::parse(bytes.clone()).map_err(|why| SendError::NotMcp(why.to_string()))?;
    Ok(public::outward(&message, upstream, asked).unwrap_or(bytes))
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

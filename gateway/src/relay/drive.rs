//! The driver of [`weir_flow::Call`]: asks it what to do, does it, and tells it what came of it.

use std::{sync::Arc, time::Instant};

use weir_flow::{Action, Call, Failure, Sent};
use weir_mcp::{Era, method};

use crate::upstream::{Channel, ConnectError, Credential, Outgoing, Reply, SendError};

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
    /// Takes a request to one upstream and back.
    pub(super) async fn drive(self: &Arc<Self>, inquiry: &Inquiry, mut leg: Leg, record: &mut Record) -> Answer {
        let upstream = self.upstream(leg.upstream);
        let start = Instant::now();
        let mut call = Call::new(upstream.overall_timeout(), method::safe_to_repeat(inquiry.message.method()));
        let mut hand = Hand::default();
        // From here on the client may cancel by this id.
        let running = match (&inquiry.session, inquiry.message.id()) {
            (Some(session), Some(id)) => Some(session.run(id, leg.upstream)),
            _ => None,
        };
        leg.ticket = running.as_ref().map(|running| Arc::clone(&running.ticket));
        let failure = loop {
            match call.poll_action() {
                Action::Choose(refused) => match upstream.credential(refused).await {
                    Ok(credential) => {
                        hand.credential = credential;
                        call.handle_chosen();
                    }
                    Err(why) => call.handle_failure(Failure::Policy(format!("has no credential: {why}"))),
                },
                Action::Open => match self.open(inquiry, leg.upstream).await {
                    Ok(channel) => {
                        hand.channel = Some(channel);
                        call.handle_open();
                    }
                    Err(ConnectError::OtherEra { wanted: Era::Modern, .. }) => {
                        match self.translate(inquiry, &leg).await {
                            Ok(Translated::Call(translated)) => {
                                hand.translated = Some(translated);
                                call.handle_open();
                            }
                            Ok(Translated::Answered(answer)) => return *answer,
                            Ok(Translated::Resumed(answer)) => {
                                record.attempts = 1;
                                return *answer;
                            }
                            Err(why) => call.handle_failure(Failure::Unreachable(why)),
                        }
                    }
                    Err(ConnectError::OtherEra { wanted: Era::Legacy, other }) => {
                        if let Some(session) = inquiry.session.as_ref().filter(|_| !hand.turned) {
                            match self.in_rounds(inquiry, &leg, session, start, record).await {
                                Some(answer) => return answer,
                                // It speaks the client's era after all.
                                None => hand.turned = true,
                            }
                        } else {
                            let text = format!("speaks the {other} era of MCP at one time and not at another");
                            call.handle_failure(Failure::Policy(text));
                        }
                    }
                    Err(why) => call.handle_failure(Failure::Unreachable(why.to_string())),
                },
                Action::Attempt => {
                    let left = call.left(start.elapsed());
                    let sent = match tokio::time::timeout(left, attempt(inquiry, &leg, &hand)).await {
                        Ok(Ok(Reply { status, body: crate::upstream::Body::Empty, .. })) => {
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
        match (failure, hand.reply, hand.translated) {
            (None, Some(reply), Some(translated)) => {
                match translated.deliver(reply, &self.parked, start + upstream.overall_timeout()).await {
                    Ok(answer) => answer,
                    Err(why) => failed(inquiry, upstream.name(), why.into(), record),
                }
            }
            (None, Some(reply), None) => {
                let Reply { status, body, .. } = reply;
                let body = match body {
                    crate::upstream::Body::Empty => Body::Empty,
                    crate::upstream::Body::Json(json) => Body::Json(json, start + upstream.overall_timeout()),
                    crate::upstream::Body::Events(events) => {
                        let deadline =
                            (!method::is_endless(inquiry.message.method())).then(|| start + upstream.overall_timeout());
                        Body::Events(Box::new(Delivery::relayed(
                            inquiry,
                            &self.catalog,
                            (leg.upstream, upstream),
                            events,
                            running,
                            deadline,
                        )))
                    }
                };
                Answer { status, session: None, allow: None, body, record: None }
            }
            (failure, _, _) => {
                let failure = failure.unwrap_or_else(|| Failure::NotMcp("nothing".into()));
                failed(inquiry, upstream.name(), failure, record)
            }
        }
    }

    /// Sends what needs no answer.
    pub(super) async fn pass_on(&self, inquiry: &Inquiry, leg: Leg) {
        let upstream = self.upstream(leg.upstream);
        let Ok(credential) = upstream.credential(None).await else { return };
        let channel = match &inquiry.session {
            // What concerns an upstream session that is gone means nothing to a new one.
            Some(session) => session.lines.get(leg.upstream),
            None => upstream.open_modern().await.ok(),
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
            None => upstream.open_modern().await,
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

fn failed(inquiry: &Inquiry, upstream: &str, failure: Failure, record: &mut Record) -> Answer {
    record.failure = Some(failure.to_string());
    Answer::failed(&inquiry.message, upstream, &failure)
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
        ticket: leg.ticket.as_deref(),
        credential: hand.credential.as_ref(),
    };
    channel.send(outgoing).await
}

//! Clients and upstreams of different eras.
//!
//! A modern client reaches a legacy upstream through sessions that Weir keeps for all clients of its kind
//! ([`pool`], [`mod@line`]). Each of its requests becomes a legacy one and each answer a modern one ([`call`]);
//! `server/discover` is answered from the upstream's `initialize`, and `subscriptions/listen` is fed by what the session
//! says ([`subscription`]). A closed answer is the modern way to cancel, so it becomes `notifications/cancelled`.
//!
//! What a legacy upstream asks in the middle of a call becomes an answer that asks; until the client calls again with
//! what it was asked for, the upstream's call waits ([`parked`]) and the client holds its sealed number ([`seal`]).
//!
//! What is rewritten in a message is decided in [`weir_mcp::translate`].

mod call;
mod line;
mod parked;
mod pool;
mod seal;
mod subscription;

use std::{sync::Arc, time::Instant};

use weir_mcp::{Era, Field, Message, answer, method, translate};

use super::{Answer, Body, Delivery, Inquiry, Relay, route::Leg};

pub(super) use call::{Call, Stream};
pub(super) use parked::Parked;
pub(super) use pool::Pool;
pub(super) use subscription::Subscription;

use call::bound_at;
use line::Line;

/// What becomes of a modern request to a legacy upstream.
pub(super) enum Translated {
    /// Weir has the answer.
    Answered(Box<Answer>),
    /// It is ready to be sent.
    Call(Box<Call>),
}

impl From<Answer> for Translated {
    fn from(answer: Answer) -> Self {
        Self::Answered(Box::new(answer))
    }
}

impl Relay {
    /// Takes a modern request to a legacy upstream.
    pub(super) async fn translate(&self, inquiry: &Inquiry, leg: &Leg) -> Result<Translated, String> {
        let message = &inquiry.message;
        if message.raw(Field::RequestState).is_some() && translate::may_ask(message.method()) {
            return Ok(self.resume(inquiry, leg).await.into());
        }
        if method::route(message.method()) == method::Route::Task {
            let text = "this upstream has no tasks of the modern era";
            return Ok(Answer::error(Era::Modern, message, answer::METHOD_NOT_FOUND, text).into());
        }
        let line = self.line(inquiry, leg.upstream).await?;
        match message.method() {
            method::DISCOVER => Ok(Answer::result(message, translate::discovered(line.said())).into()),
            method::LISTEN => {
                let subscription = Subscription::open(line, message).await;
                let body = Body::Events(Box::new(Delivery::subscribed(subscription)));
                let answer = Answer { status: 200, session: None, allow: None, body, record: None };
                Ok(answer.into())
            }
            _ => {
                if message.raw(Field::LogLevel).is_some() && line.can(&["logging"]) {
                    line.talk().await;
                }
                let call =
                    Call::new(inquiry, leg.body.clone(), line.seat(message.method())).map_err(|why| why.to_string())?;
                Ok(Translated::Call(Box::new(call)))
            }
        }
    }

    /// Goes on with a call that waited for its client's answers.
    async fn resume(&self, inquiry: &Inquiry, leg: &Leg) -> Answer {
        let (message, upstream) = (&inquiry.message, self.upstream(leg.upstream));
        let deadline = Instant::now() + upstream.overall_timeout();
        // The state was sealed for what the upstream was sent, which has the upstream's own names.
        let native = Message::parse(leg.body.clone()).unwrap_or_else(|_| message.clone());
        let Some(mut running) = self.parked.take(message, &bound_at(upstream.name(), &native)) else {
            let text = "requestState is not valid here, or no longer; call again without it";
            return Answer::error(Era::Modern, message, answer::INVALID_PARAMS, text);
        };
        running.call.continue_as(message);
        running.answer(message.raw(Field::InputResponses).unwrap_or(b"{}")).await;
        match Stream::new(running, &self.parked).answer(deadline).await {
            Ok(answer) => answer,
            Err(why) => Answer::failed(message, upstream.name(), &why.into()),
        }
    }

    /// Ends the legacy sessions of modern clients that nobody used for `idle`.
    pub async fn reap(&self, idle: std::time::Duration) {
        self.parked.reap();
        self.pool.reap(idle).await;
    }

    /// Ends all of them.
    pub async fn stop(&self) {
        self.parked.stop();
        self.pool.stop().await;
    }

    async fn line(&self, inquiry: &Inquiry, place: usize) -> Result<Arc<Line>, String> {
        let introduction = translate::Introduction::of(&inquiry.message);
        let open = || Line::open(self.upstream(place), &self.catalog, place, &introduction);
        self.pool.get(place, &introduction, open).await
    }
}

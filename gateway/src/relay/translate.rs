//! Clients and upstreams of different eras.
//!
//! A modern client reaches a legacy upstream through sessions that Weir keeps for all clients of its kind
//! ([`pool`], [`mod@line`]). Each of its requests becomes a legacy one and each answer a modern one ([`call`]);
//! `server/discover` is answered from the upstream's `initialize`, and `subscriptions/listen` is fed by what the session
//! says ([`subscription`]). A closed answer is the modern way to cancel, so it becomes `notifications/cancelled`.
//!
//! What a legacy upstream asks in the middle of a call becomes an answer that asks; until the client calls again with
//! what it was asked for, the upstream's call waits ([`parked`]) and the client holds its sealed number ([`seal`](crate::seal)).
//!
//! A legacy client reaches a modern upstream the other way round: what the session remembers goes into each request
//! ([`sessionless`]), an answer that asks becomes questions to the client and then the same request again ([`rounds`]),
//! and one subscription for each session brings what the upstream says of its own accord ([`watch`]).
//!
//! What is rewritten in a message is decided in [`weir_mcp::translate`]; long lists are rewritten once ([`repeated`]).

mod call;
mod line;
mod parked;
mod pool;
mod repeated;
mod rounds;
mod sessionless;
mod subscription;
mod watch;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use weir_mcp::{
    Era, Field, answer, method,
    translate::{self, Asks},
};

use crate::{
    caller::Caller,
    upstream::{Channel, ConnectError},
};

use super::{Answer, Body, Delivery, Inquiry, Record, Relay, answer::outcome, deadline::Deadline, route::Leg};

pub(super) use call::{Call, Stream};
pub(super) use parked::Parked;
pub(super) use pool::Pool;
pub(super) use repeated::Repeated;
pub(super) use rounds::{Piece, Said};
pub(super) use subscription::Subscription;

use call::bound;
use line::{Line, Opener};

/// The result that says nothing.
const EMPTY: Bytes = Bytes::from_static(b"{}");

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
    pub(super) async fn translate(
        &self,
        inquiry: &Inquiry,
        leg: &Leg,
        record: &mut Record,
    ) -> Result<Translated, ConnectError> {
        let message = &inquiry.message;
        if message.raw(Field::RequestState).is_some() && translate::may_ask(message.method()) {
            return Ok(self.resume(inquiry, leg, record).await.into());
        }
        if method::route(message.method()) == method::Route::Task {
            let text = "this upstream has no tasks of the modern era";
            return Ok(Answer::error(Era::Modern, message, answer::METHOD_NOT_FOUND, text).into());
        }
        if let Some(refusal) = self.check_headers(inquiry, leg, Era::Legacy) {
            return Ok(refusal.into());
        }
        let asks = Asks::of_request(message);
        let line = self.line(inquiry, leg.upstream, asks, 0).await?;
        match message.method() {
            method::DISCOVER => Ok(Answer::result(message, translate::discovered(line.said())).into()),
            method::LISTEN => {
                let subscription = Subscription::open(line, message).await;
                let body = Body::Events(Box::new(Delivery::subscribed(subscription)));
                let answer = Answer { status: 200, session: None, allow: None, body, record: None };
                Ok(answer.into())
            }
            _ => {
                let seat = self.seat(inquiry, leg.upstream, asks, line).await?;
                if message.raw(Field::LogLevel).is_some() && seat.line.can(&["logging"]) {
                    seat.line.talk().await;
                }
                let original = leg.message(inquiry).map_err(|why| ConnectError::Stopped(why.to_string()))?;
                let call = Call::new(inquiry, leg.upstream, &original, seat, &self.repeated);
                let call = call.map_err(|why| ConnectError::Stopped(why.to_string()))?;
                Ok(Translated::Call(Box::new(call)))
            }
        }
    }

    /// The answer to a call whose headers do not repeat its arguments as they should (MCP 2026-07-28, basic/transports).
    /// Who has no headers cannot check them: legacy upstreams and child processes. What the upstream lists in this era
    /// tells which are due.
    pub(super) fn check_headers(&self, inquiry: &Inquiry, leg: &Leg, era: Era) -> Option<Answer> {
        let tool = leg.name.as_deref().filter(|_| inquiry.message.method() == method::TOOLS_CALL)?;
        let arguments = inquiry.message.raw(Field::Arguments).unwrap_or(b"{}");
        for mirrored in self.catalog.mirrored(inquiry.caller.as_ref(), leg.upstream, era, tool).iter() {
            let mut given = inquiry.headers.iter().filter(|(name, _)| name.as_str() == mirrored.header);
            let value = given.next().map(|(_, value)| String::from_utf8_lossy(value.as_bytes()));
            if given.next().is_some() || !mirrored.agrees(arguments, value.as_deref()) {
                let why = format!("the {} header and the arguments disagree", mirrored.header);
                return Some(Answer::error(Era::Modern, &inquiry.message, answer::HEADER_MISMATCH, &why));
            }
        }
        None
    }

    /// Goes on with a call that waited for its client's answers.
    async fn resume(&self, inquiry: &Inquiry, leg: &Leg, record: &mut Record) -> Answer {
        let (message, upstream) = (&inquiry.message, self.upstream(leg.upstream));
        let deadline = Deadline::of(upstream, Instant::now());
        // The state was sealed for what the upstream was sent, which has the upstream's own names.
        let native = leg.message(inquiry).unwrap_or_else(|_| message.clone());
        let bound = bound(inquiry.caller.as_ref(), upstream.name(), &native);
        let Some(mut running) = self.parked.take(message, &bound) else {
            let text = "requestState is not valid here, or no longer; call again without it";
            return Answer::error(Era::Modern, message, answer::INVALID_PARAMS, text);
        };
        running.call.continue_as(message);
        running.answer(message.raw(Field::InputResponses).unwrap_or(b"{}")).await;
        record.attempts = 1;
        match Stream::new(running, &self.parked).answer(deadline, record).await {
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
        self.parked.reap();
        self.pool.reap(idle).await;
    }

    /// Ends all of them.
    pub async fn stop(&self) {
        self.parked.stop();
        self.pool.stop().await;
    }

    async fn line(
        &self,
        inquiry: &Inquiry,
        place: usize,
        asks: Asks,
        number: usize,
    ) -> Result<Arc<Line>, ConnectError> {
        let caller = inquiry.caller.as_ref();
        let open = || {
            let (upstream, catalog) = (Arc::clone(self.upstream(place)), Arc::clone(&self.catalog));
            let opener = Opener { caller: caller.cloned(), principal: Arc::clone(&inquiry.principal) };
            async move { Line::open(opener, &upstream, &catalog, place, asks).await }
        };
        let key = pool::Key { upstream: place, whose: Caller::apart(caller), asks, number };
        let line = self.pool.get(key, (&inquiry.principal, self.upstream(place).name()), open).await?;
        line.meet(caller);
        Ok(line)
    }

    /// A request's place in a line: alone, if its client may be asked and there are lines enough.
    async fn seat(
        &self,
        inquiry: &Inquiry,
        place: usize,
        asks: Asks,
        first: Arc<Line>,
    ) -> Result<line::Seat, ConnectError> {
        let lines = match first.channel() {
            Channel::Http { .. } => pool::SIDE_BY_SIDE[0],
            Channel::Sse { .. } | Channel::Stdio { shared: false, .. } => pool::SIDE_BY_SIDE[1],
            // Another line would lead to the same process.
            Channel::Stdio { shared: true, .. } => 1,
        };
        let method = inquiry.message.method();
        if asks == Asks::default() || !translate::may_ask(method) {
            return Ok(first.seat(method));
        }
        let mut taken = Vec::new();
        let mut line = first;
        for number in 1..=lines {
            if let Some(seat) = line.seat_alone(method) {
                return Ok(seat);
            }
            taken.push(Arc::clone(&line));
            if number < lines {
                line = self.line(inquiry, place, asks, number).await?;
            }
        }
        // Over HTTP a question comes in its own call's stream nearly always; elsewhere it would be refused.
        let shared = matches!(line.channel(), Channel::Http { .. } | Channel::Stdio { shared: true, .. });
        let free = if shared { None } else { self.parked.make_way(&taken) };
        Ok(free.and_then(|free| free.seat_alone(method)).unwrap_or_else(|| line.seat(method)))
    }
}

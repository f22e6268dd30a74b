//! Waiting for the answer to a legacy request, with an eye on its client.
//!
//! A client that loses its connection before anything came has no event id to come back with. So one that knows how to
//! resume a stream is answered with a stream as soon as a call turns out to be slow, whatever the upstream will answer.
//!
//! The answers come pinned: the state of a call is large, and whoever takes it by value moves it.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use weir_mcp::{answer as error, sse::KEEP_ALIVE};

use crate::{
    proxy::{Answer, AnswerStream, Body, CLIENT_GONE, KeepStream},
    session::{ReplayWriter, Session, SessionHold},
};

use super::{App, events, listen::HttpExchange, messages::Messages, refusal::GATEWAY_LOST};

/// How long a call runs before Weir looks whether its client is still there. Most answers are quicker than that is worth.
const QUICK: Duration = Duration::from_millis(250);

/// How much longer before a stream is begun.
const SLOW: Duration = Duration::from_millis(750);

/// An answer, unless the client goes away first.
///
/// Then the work is dropped: in the modern era that is how a client cancels (MCP 2026-07-28, basic/utilities/cancellation),
/// and the upstream is told so; in the legacy era it is not, and the upstream works on.
pub(super) async fn while_there(
    exchange: &mut HttpExchange,
    mut answer: Pin<&mut impl Future<Output = Answer>>,
) -> Answer {
    if let Ok(answer) = timeout(QUICK, &mut answer).await {
        return answer;
    }
    tokio::select! {
        answer = answer => answer,
        () = exchange.gone() => Answer::empty(CLIENT_GONE),
    }
}

/// An answer for a client that can resume a stream; `id` is the request's.
pub(super) async fn resumable(
    app: &App,
    exchange: &mut HttpExchange,
    session: &Arc<Session>,
    id: &[u8],
    mut answer: Pin<&mut impl Future<Output = Answer>>,
) -> Answer {
    match timeout(QUICK, &mut answer).await {
        Ok(answer) => {
            if session.is_copy() && matches!(answer.body, Body::Events(_)) {
                Box::pin(app.tell_owner(session, exchange)).await;
            }
            kept(answer, session)
        }
        // Boxed: few calls are slow, and every call would have room for it.
        Err(_) => Box::pin(streamed(app, exchange, session, id, answer)).await,
    }
}

/// The same for a call that is slow.
async fn streamed(
    app: &App,
    exchange: &mut HttpExchange,
    session: &Arc<Session>,
    id: &[u8],
    mut answer: Pin<&mut impl Future<Output = Answer>>,
) -> Answer {
    if session.is_copy() {
        // It is told beside the call.
        drop(app.tell_owner(session, exchange));
    }
    let mut writer = ReplayWriter::answer(&session.streams, session.version());
    if !writer.primes() {
        return kept(while_there(exchange, answer).await, session);
    }
    tokio::select! {
        answer = &mut answer => return kept(answer, session),
        () = exchange.gone() => return Answer::empty(CLIENT_GONE),
        () = sleep(SLOW) => {}
    }
    events::start_own(exchange).await;
    let lost = || Some(error::error(Some(id), error::INTERNAL, GATEWAY_LOST, None));
    let mut is_here = exchange.write(writer.begin(lost)).await;
    let mut left = None;
    let (mut over, mut draining) = (session.ended(), app.draining.subscribe());
    let answer = loop {
        if !is_here && left.is_none() {
            exchange.leave().await;
            left = writer.leave();
            if left.is_none() {
                return Answer::empty(CLIENT_GONE);
            }
        }
        is_here &= !writer.is_taken_over();
        tokio::select! {
            biased;
            answer = &mut answer => break answer,
            () = exchange.gone(), if is_here => is_here = false,
            () = sleep(events::KEEP_ALIVE), if is_here => {
                is_here = exchange.write(Bytes::from_static(KEEP_ALIVE)).await;
            }
            () = events::turns_true(&mut over), if !is_here => return Answer::empty(CLIENT_GONE),
            () = events::turns_true(&mut draining), if !is_here && !session.is_handed_over() => {
                return Answer::empty(CLIENT_GONE);
            }
        }
    };
    let keep = KeepStream::Begun(SessionHold::new(session), Box::new(writer));
    match answer {
        Answer { body: Body::Events(delivery), .. } => Answer::events(delivery.keep(keep)),
        whole => {
            let message = match whole.is_at_owner() {
                // It is too late to have another gateway answer, and the next one is answered there.
                true => Some(error::error(Some(id), error::INTERNAL, "nothing was sent; call again", None)),
                false => Box::pin(Messages::of(whole).next()).await,
            };
            let broken = || error::error(Some(id), error::INTERNAL, "the upstream's answer broke off", None);
            Answer::events(AnswerStream::ready(message.unwrap_or_else(broken)).keep(keep))
        }
    }
}

/// The same answer, whose stream can be resumed if it is one.
fn kept(mut answer: Answer, session: &Arc<Session>) -> Answer {
    if let Body::Events(delivery) = &mut answer.body {
        delivery.keep = KeepStream::Answer(Arc::clone(session));
    }
    answer
}

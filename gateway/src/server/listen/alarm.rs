//! A timer that is set anew for every request and yet seldom touches the runtime's wheel.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is kept for the life of a connection.
///
/// A deadline mostly moves away, request by request. The timer is left where it is then, and moved on when it goes off
/// too early: once in a while, not once for each request.
pub(super) struct Alarm(Pin<Box<Sleep>>);

impl Alarm {
    pub(super) fn new(deadline: Instant) -> Self {
        Self(Box::pin(sleep_until(deadline)))
    }

    /// Ready when the deadline is past.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        if deadline < self.0.deadline() {
            self.0.as_mut().reset(deadline);
        }
        while self.0.as_mut().poll(context).is_ready() {
            if self.0.deadline() >= deadline {
                return Poll::Ready(());
            }
            self.0.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

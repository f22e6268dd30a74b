//! The end of a body that nobody reads any more: most often a last chunk without content, which comes a moment later.
//!
//! Who has the answer out of an event stream needs nothing of what follows it, but the connection is worth keeping. So the
//! end is read on the side: what is here at once, and the rest when a connection is next looked for. No task waits for it.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pingora_core::protocols::{Stream, http::client::HttpSession};

use super::response::{is_done, kept};

/// How much may still come before the end, in bytes. A server that has more to say is not waited for.
const MOST: usize = 4 * 1024;

/// A body of which only the end is missing.
pub(super) struct Drain {
    session: Box<HttpSession>,
    more: usize,
}

/// How far it has come.
pub(super) enum DrainProgress {
    /// The end is read. The connection may carry another request, for as long as the server has promised.
    Ended(Stream, Option<Duration>),
    /// It is not here yet.
    Later(Drain),
    /// The connection is of no more use.
    Over,
}

impl Drain {
    pub(super) fn new(session: Box<HttpSession>) -> Self {
        Self { session, more: MOST }
    }

    /// Reads what is here, without waiting.
    pub(super) fn read(mut self) -> DrainProgress {
        // Nobody is woken: it is looked at again when a connection is needed, or has grown old.
        let mut context = Context::from_waker(Waker::noop());
        while !is_done(&mut self.session) {
            let read = pin!(self.session.read_response_body()).poll(&mut context);
            match read {
                Poll::Ready(Ok(Some(bytes))) if bytes.len() <= self.more => self.more -= bytes.len(),
                Poll::Ready(Ok(None)) => break,
                Poll::Ready(_) => return DrainProgress::Over,
                Poll::Pending => return DrainProgress::Later(self),
            }
        }
        match pin!(kept(self.session)).poll(&mut context) {
            Poll::Ready(Some((stream, promised))) => DrainProgress::Ended(stream, promised),
            Poll::Ready(None) | Poll::Pending => DrainProgress::Over,
        }
    }
}

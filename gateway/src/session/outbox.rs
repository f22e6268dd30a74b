//! What waits for a session's own stream.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio::sync::Notify;

use super::lock;

/// How many messages wait for a client that is not listening; the oldest go first.
const WAITING: usize = 256;

/// How many bytes they may have together, unless the newest alone has more.
const MAX_BYTES: usize = 1024 * 1024;

/// Messages on their way to one client.
#[derive(Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    filled: Notify,
    /// Who has it: odd while somebody does, and more each time.
    turn: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

/// The right to empty an outbox; one stream at a time has it.
pub struct Taken {
    outbox: Arc<Outbox>,
    turn: u64,
}

impl Outbox {
    /// Adds a message.
    pub fn push(&self, message: Bytes) {
        let mut waiting = lock(&self.waiting);
        while waiting.messages.len() >= WAITING || waiting.bytes + message.len() > MAX_BYTES {
            if waiting.pop().is_none() {
                break;
            }
        }
        waiting.bytes += message.len();
        waiting.messages.push_back(message);
        drop(waiting);
        self.filled.notify_one();
    }

    /// Takes the outbox for a stream; none if another stream has it.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Option<Taken> {
        let free = self.turn.load(Ordering::Acquire);
        let is_free = free.is_multiple_of(2);
        let taken = is_free && self.turn.compare_exchange(free, free + 1, Ordering::AcqRel, Ordering::Acquire).is_ok();
        taken.then(|| Taken { outbox: Arc::clone(self), turn: free + 1 })
    }

    /// Takes the outbox, also from the stream that has it: its client has come back on another connection.
    #[must_use]
    pub fn take_over(self: &Arc<Self>) -> Taken {
        let next = |turn: u64| turn + 1 + turn % 2;
        // The closure always gives a value.
        let before = self.turn.fetch_update(Ordering::AcqRel, Ordering::Acquire, |turn| Some(next(turn))).unwrap_or(0);
        self.filled.notify_waiters();
        Taken { outbox: Arc::clone(self), turn: next(before) }
    }

    /// Whether a stream empties it.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        !self.turn.load(Ordering::Acquire).is_multiple_of(2)
    }
}

impl Waiting {
    fn pop(&mut self) -> Option<Bytes> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        Some(message)
    }
}

impl Taken {
    /// The next message, waiting for one; none when another stream has taken over.
    pub async fn next(&self) -> Option<Bytes> {
        loop {
            let mut filled = pin!(self.outbox.filled.notified());
            filled.as_mut().enable();
            if self.outbox.turn.load(Ordering::Acquire) != self.turn {
                // What woke this one may have been meant for the other.
                self.outbox.filled.notify_one();
                return None;
            }
            if let Some(message) = lock(&self.outbox.waiting).pop() {
                return Some(message);
            }
            filled.await;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let turn = &self.outbox.turn;
        // Not if another stream has taken over.
        let _ = turn.compare_exchange(self.turn, self.turn + 1, Ordering::AcqRel, Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_nobody_reads_is_bounded_and_the_newest_stay() {
        let outbox = Arc::new(Outbox::default());
        for _ in 0..3 {
            outbox.push(Bytes::from(vec![b'x'; MAX_BYTES / 2]));
        }
        outbox.push(Bytes::from_static(b"last"));
        assert_eq!(lock(&outbox.waiting).messages.len(), 2);
        let Some(taken) = outbox.take() else { panic!("nobody else has it") };
        assert!(outbox.take().is_none());
        assert_eq!(taken.next().await.map(|message| message.len()), Some(MAX_BYTES / 2));
        assert_eq!(taken.next().await, Some(Bytes::from_static(b"last")));
        assert_eq!(lock(&outbox.waiting).bytes, 0);
        for _ in 0..2 * WAITING {
            outbox.push(Bytes::from_static(b"x"));
        }
        assert_eq!(lock(&outbox.waiting).messages.len(), WAITING);
        outbox.push(Bytes::from(vec![b'x'; 2 * MAX_BYTES]));
        assert_eq!(lock(&outbox.waiting).messages.len(), 1, "one that is larger than the bound goes alone");
    }

    #[tokio::test]
    async fn one_stream_has_it_and_another_may_take_over() {
        let outbox = Arc::new(Outbox::default());
        let Some(first) = outbox.take() else { panic!("nobody has it") };
        let waits = tokio::spawn(async move {
            let ended = first.next().await;
            (first, ended)
        });
        tokio::task::yield_now().await;
        let second = outbox.take_over();
        let Ok((first, ended)) = waits.await else { panic!("it does not panic") };
        assert_eq!(ended, None);
        drop(first);
        assert!(outbox.is_taken() && outbox.take().is_none(), "the second has it still");
        outbox.push(Bytes::from_static(b"x"));
        assert_eq!(second.next().await, Some(Bytes::from_static(b"x")));
        drop(second);
        assert!(!outbox.is_taken());
        drop(outbox.take_over());
        assert!(outbox.take().is_some());
    }
}

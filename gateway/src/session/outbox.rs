//! What waits for a session's own stream.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
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
    taken: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

/// The right to empty an outbox; one stream at a time has it.
pub struct Taken(Arc<Outbox>);

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
        let free = !self.taken.swap(true, Ordering::AcqRel);
        free.then(|| Taken(Arc::clone(self)))
    }

    /// Whether a stream empties it.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
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
    /// The next message, waiting for one.
    pub async fn next(&self) -> Bytes {
        loop {
            if let Some(message) = lock(&self.0.waiting).pop() {
                return message;
            }
            self.0.filled.notified().await;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
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
        assert_eq!(taken.next().await.len(), MAX_BYTES / 2);
        assert_eq!(taken.next().await, "last");
        assert_eq!(lock(&outbox.waiting).bytes, 0);
        for _ in 0..2 * WAITING {
            outbox.push(Bytes::from_static(b"x"));
        }
        assert_eq!(lock(&outbox.waiting).messages.len(), WAITING);
        outbox.push(Bytes::from(vec![b'x'; 2 * MAX_BYTES]));
        assert_eq!(lock(&outbox.waiting).messages.len(), 1, "one that is larger than the bound goes alone");
    }
}

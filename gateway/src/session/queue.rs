//! What waits for a session's own stream.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How many messages wait for a client that is not listening; the oldest go first.
const WAITING: usize = 256;

/// How many bytes they may have together, unless the newest alone has more.
const MAX_BYTES: usize = 1024 * 1024;

/// Messages on their way to one client.
#[derive(Default)]
pub struct MessageQueue {
    waiting: Mutex<QueuedMessage>,
    filled: Notify,
    /// Who has it: odd while somebody does, and more each time.
    turn: AtomicU64,
}

#[derive(Default)]
struct QueuedMessage {
    messages: VecDeque<Bytes>,
    bytes: usize,
}

/// The right to empty an queue; one stream at a time has it.
#[must_use]
pub struct QueueConsumer {
    queue: Arc<MessageQueue>,
    turn: u64,
}

impl MessageQueue {
    /// Adds a message.
    pub fn push(&self, message: Bytes) {
        let mut waiting = self.waiting.lock();
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

    /// Takes the queue for a stream; none if another stream has it.
    pub fn take(self: &Arc<Self>) -> Option<QueueConsumer> {
        let free = self.turn.load(Ordering::Acquire);
        let is_free = free.is_multiple_of(2);
        let taken = is_free && self.turn.compare_exchange(free, free + 1, Ordering::AcqRel, Ordering::Acquire).is_ok();
        taken.then(|| QueueConsumer { queue: Arc::clone(self), turn: free + 1 })
    }

    /// Takes the queue, also from the stream that has it: its client has come back on another connection.
    pub fn take_over(self: &Arc<Self>) -> QueueConsumer {
        let next = |turn: u64| turn + 1 + turn % 2;
        // The closure always gives a value.
        let before = self.turn.fetch_update(Ordering::AcqRel, Ordering::Acquire, |turn| Some(next(turn))).unwrap_or(0);
        self.filled.notify_waiters();
        QueueConsumer { queue: Arc::clone(self), turn: next(before) }
    }

    /// Whether a stream empties it.
    pub fn is_taken(&self) -> bool {
        !self.turn.load(Ordering::Acquire).is_multiple_of(2)
    }
}

impl QueuedMessage {
    fn pop(&mut self) -> Option<Bytes> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        Some(message)
    }
}

impl QueueConsumer {
    /// The next message, waiting for one; none when another stream has taken over.
    pub async fn next(&self) -> Option<Bytes> {
        loop {
            let mut filled = pin!(self.queue.filled.notified());
            filled.as_mut().enable();
            if self.queue.turn.load(Ordering::Acquire) != self.turn {
                // What woke this one may have been meant for the other.
                self.queue.filled.notify_one();
                return None;
            }
            if let Some(message) = self.queue.waiting.lock().pop() {
                return Some(message);
            }
            filled.await;
        }
    }
}

impl Drop for QueueConsumer {
    fn drop(&mut self) {
        let turn = &self.queue.turn;
        // Not if another stream has taken over.
        let _ = turn.compare_exchange(self.turn, self.turn + 1, Ordering::AcqRel, Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_nobody_reads_is_bounded_and_the_newest_stay() {
        let queue = Arc::new(MessageQueue::default());
        for _ in 0..3 {
            queue.push(Bytes::from(vec![b'x'; MAX_BYTES / 2]));
        }
        queue.push(Bytes::from_static(b"last"));
        assert_eq!(queue.waiting.lock().messages.len(), 2);
        let Some(taken) = queue.take() else { panic!("nobody else has it") };
        assert!(queue.take().is_none());
        assert_eq!(taken.next().await.map(|message| message.len()), Some(MAX_BYTES / 2));
        assert_eq!(taken.next().await, Some(Bytes::from_static(b"last")));
        assert_eq!(queue.waiting.lock().bytes, 0);
        for _ in 0..2 * WAITING {
            queue.push(Bytes::from_static(b"x"));
        }
        assert_eq!(queue.waiting.lock().messages.len(), WAITING);
        queue.push(Bytes::from(vec![b'x'; 2 * MAX_BYTES]));
        assert_eq!(queue.waiting.lock().messages.len(), 1, "one that is larger than the bound goes alone");
    }

    #[tokio::test]
    async fn one_stream_has_it_and_another_may_take_over() {
        let queue = Arc::new(MessageQueue::default());
        let Some(first) = queue.take() else { panic!("nobody has it") };
        let waits = tokio::spawn(async move {
            let ended = first.next().await;
            (first, ended)
        });
        tokio::task::yield_now().await;
        let second = queue.take_over();
        let Ok((first, ended)) = waits.await else { panic!("it does not panic") };
        assert_eq!(ended, None);
        drop(first);
        assert!(queue.is_taken() && queue.take().is_none(), "the second has it still");
        queue.push(Bytes::from_static(b"x"));
        assert_eq!(second.next().await, Some(Bytes::from_static(b"x")));
        drop(second);
        assert!(!queue.is_taken());
        drop(queue.take_over());
        assert!(queue.take().is_some());
    }
}

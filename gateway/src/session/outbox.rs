//! What waits for a session's GET stream.

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

/// Messages on their way to one client.
#[derive(Default)]
pub struct Outbox {
    messages: Mutex<VecDeque<Bytes>>,
    filled: Notify,
    taken: AtomicBool,
}

/// The right to empty an outbox; one stream at a time has it.
pub struct Taken(Arc<Outbox>);

impl Outbox {
    /// Adds a message.
    pub fn push(&self, message: Bytes) {
        let mut messages = lock(&self.messages);
        if messages.len() >= WAITING {
            messages.pop_front();
        }
        messages.push_back(message);
        drop(messages);
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

impl Taken {
    /// The next message, waiting for one.
    pub async fn next(&self) -> Bytes {
        loop {
            if let Some(message) = lock(&self.0.messages).pop_front() {
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

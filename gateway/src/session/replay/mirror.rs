//! A copy of what is kept, for the store: another gateway goes on with it when this one is gone.
//!
//! The copy is behind by what waits here. What finds no room here has no copy: a client that comes back for it elsewhere is
//! told that its answer is lost. Nothing waits for the store.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use tokio::sync::mpsc;

/// How many events wait for the store.
const WAITING: usize = 4096;

/// How many bytes they have together.
const WAITING_BYTES: usize = 16 << 20;

/// A change of what is kept.
pub struct MirroredEvent {
    /// What the store calls the session.
    pub session: Arc<str>,
    /// The stream.
    pub stream: u32,
    /// The number of the event in it.
    pub number: u64,
    /// The message; none that is kept no longer.
    pub data: Option<Bytes>,
}

/// Where copies go, once there is a store for them.
#[derive(Default)]
pub(super) struct Mirror {
    queue: OnceLock<mpsc::Sender<MirroredEvent>>,
    waiting: Arc<AtomicUsize>,
}

/// What waits for the store.
pub struct MirrorQueue {
    queue: mpsc::Receiver<MirroredEvent>,
    waiting: Arc<AtomicUsize>,
}

impl Mirror {
    /// From now on copies are made. None if they are already.
    pub(super) fn open(&self) -> Option<MirrorQueue> {
        let (sender, queue) = mpsc::channel(WAITING);
        self.queue.set(sender).ok()?;
        Some(MirrorQueue { queue, waiting: Arc::clone(&self.waiting) })
    }

    /// Whether nothing waits for the store.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.get().is_none_or(|queue| queue.capacity() == queue.max_capacity())
    }

    pub(super) fn push(&self, event: MirroredEvent) {
        let Some(queue) = self.queue.get() else { return };
        let size = event.data.as_ref().map_or(0, Bytes::len);
        if self.waiting.fetch_add(size, Ordering::Relaxed) + size > WAITING_BYTES || queue.try_send(event).is_err() {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
        }
    }
}

impl MirrorQueue {
    /// The next change. Cancel-safe.
    pub async fn next(&mut self) -> Option<MirroredEvent> {
        let event = self.queue.recv().await?;
        self.waiting.fetch_sub(event.data.as_ref().map_or(0, Bytes::len), Ordering::Relaxed);
        Some(event)
    }
}

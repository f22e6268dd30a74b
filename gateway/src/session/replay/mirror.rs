//! A copy of what is kept, for the store: another gateway goes on with it when this one is gone.
//!
//! The copy is behind by what waits here. What finds no room here has no copy: a client that comes back for it elsewhere is
//! told that its answer is lost. Nothing waits for the store.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::{counters::EVENTS_NOT_COPIED, telemetry::LogThrottle};

/// How many queues there are. All events of a session are in one, so their order stays.
const QUEUES: usize = 8;

/// How many events of each wait for the store.
const WAITING: usize = 1024;

/// How many bytes all have together.
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

/// What is in a queue.
enum Queued {
    Event(MirroredEvent),
    /// Dropped once all before it has been copied.
    Flush(oneshot::Sender<()>),
}

/// Where copies go, once there is a store for them.
#[derive(Default)]
pub(super) struct Mirror {
    queues: OnceLock<Vec<mpsc::Sender<Queued>>>,
    waiting: Arc<AtomicUsize>,
    told: LogThrottle,
}

/// What waits for the store.
pub struct MirrorQueue {
    queue: mpsc::Receiver<Queued>,
    waiting: Arc<AtomicUsize>,
}

impl Mirror {
    /// From now on copies are made. Nothing if they are already.
    pub(super) fn open(&self) -> Vec<MirrorQueue> {
        let (senders, queues) = (0..QUEUES).map(|_| mpsc::channel(WAITING)).unzip::<_, _, Vec<_>, Vec<_>>();
        if self.queues.set(senders).is_err() {
            return Vec::new();
        }
        queues.into_iter().map(|queue| MirrorQueue { queue, waiting: Arc::clone(&self.waiting) }).collect()
    }

    fn queue(&self, session: &str) -> Option<&mpsc::Sender<Queued>> {
        let place = session.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        self.queues.get()?.get(place % QUEUES)
    }

    /// Waits until all is copied that there is of a session.
    pub(super) async fn flush(&self, session: &str) {
        let Some(queue) = self.queue(session) else { return };
        let (flushed, all) = oneshot::channel();
        // A queue that nobody reads any more has nothing to wait for.
        if queue.send(Queued::Flush(flushed)).await.is_ok() {
            let _ = all.await;
        }
    }

    pub(super) fn push(&self, event: MirroredEvent) {
        let Some(queue) = self.queue(&event.session) else { return };
        let size = event.data.as_ref().map_or(0, Bytes::len);
        let is_kept = event.data.is_some();
        let has_room = self.waiting.fetch_add(size, Ordering::Relaxed) + size <= WAITING_BYTES;
        if has_room && queue.try_send(Queued::Event(event)).is_ok() {
            return;
        }
        self.waiting.fetch_sub(size, Ordering::Relaxed);
        if is_kept {
            EVENTS_NOT_COPIED.fetch_add(1, Ordering::Relaxed);
            if self.told.is_due() {
                tracing::warn!(
                    "the store is too slow for copies of event streams; some cannot be resumed at other gateways"
                );
            }
        }
    }
}

impl MirrorQueue {
    /// The next change. Cancel-safe.
    pub async fn next(&mut self) -> Option<MirroredEvent> {
        loop {
            match self.queue.recv().await? {
                Queued::Event(event) => {
                    self.waiting.fetch_sub(event.data.as_ref().map_or(0, Bytes::len), Ordering::Relaxed);
                    return Some(event);
                }
                Queued::Flush(flushed) => drop(flushed),
            }
        }
    }
}

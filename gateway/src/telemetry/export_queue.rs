//! Spans and records of the log that wait for their collector. Whoever adds one waits for nothing.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How many of them wait at most, and how many bytes they have.
const MOST: usize = 8192;
const MOST_BYTES: usize = 8 << 20;

/// How many of them a request to a collector has at most. With so many it is sent at once.
pub const BATCH: usize = 512;

/// The spans of this process.
pub static SPANS: ExportQueue = ExportQueue::new();

/// The log of this process, where a collector gets it.
pub static LOGS: ExportQueue = ExportQueue::new();

/// Items in the order in which they came, each in JSON.
pub struct ExportQueue {
    waiting: Mutex<WaitingItems>,
    filled: Notify,
    dropped: AtomicU64,
}

struct WaitingItems {
    items: VecDeque<Bytes>,
    bytes: usize,
}

impl ExportQueue {
    const fn new() -> Self {
        Self {
            waiting: Mutex::new(WaitingItems { items: VecDeque::new(), bytes: 0 }),
            filled: Notify::const_new(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Adds an item, in place of the oldest ones if there are too many.
    pub(super) fn push(&self, item: Bytes) {
        let mut waiting = self.waiting.lock();
        waiting.bytes += item.len();
        waiting.items.push_back(item);
        let mut dropped = 0;
        while waiting.items.len() > MOST || waiting.bytes > MOST_BYTES {
            waiting.pop();
            dropped += 1;
        }
        let is_batch = waiting.items.len().is_multiple_of(BATCH);
        drop(waiting);
        if dropped > 0 {
            self.note_dropped(dropped);
        }
        if is_batch {
            self.filled.notify_one();
        }
    }

    /// Takes the oldest items, at most `most`.
    pub fn take(&self, most: usize) -> Vec<Bytes> {
        let mut waiting = self.waiting.lock();
        let count = most.min(waiting.items.len());
        (0..count).filter_map(|_| waiting.pop()).collect()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.lock().items.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Resolves when there are enough for a request.
    pub async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Counts items that no collector gets.
    pub fn note_dropped(&self, count: u64) {
        self.dropped.fetch_add(count, Relaxed);
    }

    /// How many items were dropped since the start of the process.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl WaitingItems {
    fn pop(&mut self) -> Option<Bytes> {
        let item = self.items.pop_front()?;
        self.bytes -= item.len();
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_items_are_kept_within_number_and_size() {
        let queue = ExportQueue::new();
        for number in 0..MOST + 3 {
            queue.push(number.to_string().into());
        }
        assert_eq!((queue.len(), queue.dropped()), (MOST, 3));
        assert_eq!(queue.take(2), ["3", "4"]);
        queue.push(vec![0; MOST_BYTES].into());
        assert_eq!((queue.len(), queue.dropped()), (1, MOST as u64 + 1));
        queue.push(vec![0; MOST_BYTES + 1].into());
        assert!(queue.is_empty());
    }
}

//! The last lines of the log, for operators who ask for them, and the next ones for those who follow.

use std::{
    collections::VecDeque,
    sync::{LazyLock, Mutex, PoisonError},
};

use bytes::Bytes;
use tokio::sync::broadcast;

/// How much is kept, in bytes.
const KEPT: usize = 256 * 1024;

/// How many batches a follower may be behind.
const BEHIND: usize = 16;

/// The log of this process.
static RECENT: LazyLock<RecentLines> = LazyLock::new(RecentLines::new);

/// Whole lines, in the batches in which they were written.
struct RecentLines {
    batches: Mutex<VecDeque<Bytes>>,
    news: broadcast::Sender<Bytes>,
}

/// Lines as they come, and before them those that there are already.
pub struct LogFollower {
    /// The last lines until now.
    pub recent: Vec<Bytes>,
    news: broadcast::Receiver<Bytes>,
}

/// Keeps lines, in place of the oldest ones.
pub(super) fn keep(batch: Bytes) {
    RECENT.keep(batch);
}

/// The last lines, and whatever comes.
#[must_use]
pub fn follow() -> LogFollower {
    RECENT.follow()
}

impl RecentLines {
    fn new() -> Self {
        Self { batches: Mutex::default(), news: broadcast::Sender::new(BEHIND) }
    }

    fn keep(&self, batch: Bytes) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = batch.len().saturating_sub(KEPT);
        let start = if cut == 0 { 0 } else { cut + memchr::memchr(b'\n', &batch[cut..]).map_or(0, |end| end + 1) };
        batches.push_back(batch.slice(start..));
        while batches.iter().map(Bytes::len).sum::<usize>() > KEPT {
            batches.pop_front();
        }
        // Nobody may be following.
        drop(self.news.send(batch));
    }

    fn follow(&self) -> LogFollower {
        // Under the lock nothing comes in between.
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        LogFollower { recent: batches.iter().cloned().collect(), news: self.news.subscribe() }
    }
}

impl LogFollower {
    /// The next lines; what a follower was too slow for is said in a line of its own. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        match self.news.recv().await {
            Ok(lines) => Some(lines),
            Err(broadcast::error::RecvError::Lagged(count)) => {
                Some(format!("weir: {count} batches of lines are left out here: they came too fast\n").into())
            }
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_kept_and_the_next_ones_follow() {
        let lines = RecentLines::new();
        let line = |number: usize| Bytes::from(format!("{number:07}\n").repeat(1024));
        for number in 0..100 {
            lines.keep(line(number));
        }
        let mut follower = lines.follow();
        let kept: usize = follower.recent.iter().map(Bytes::len).sum();
        assert_eq!((kept, follower.recent.last()), (KEPT, Some(&line(99))));
        lines.keep(line(100));
        assert_eq!(follower.next().await, Some(line(100)));
        for number in 0..=BEHIND {
            lines.keep(line(number));
        }
        let told = follower.next().await.unwrap();
        assert!(told.starts_with(b"weir: 1 batches"), "{told:?}");
        assert_eq!(follower.next().await, Some(line(1)), "and goes on");
    }

    #[test]
    fn of_a_batch_that_is_too_long_the_last_whole_lines_are_kept() {
        let lines = RecentLines::new();
        lines.keep(Bytes::from("a line of some length\n".repeat(KEPT / 10)));
        let recent = lines.follow().recent.concat();
        assert!(recent.len() <= KEPT && recent.starts_with(b"a line") && recent.ends_with(b"\n"), "{}", recent.len());
    }
}

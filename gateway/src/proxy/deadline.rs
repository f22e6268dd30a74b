//! When a call must be over: progress puts that off, up to a limit of its own.

use std::time::{Duration, Instant};

use crate::upstream::Upstream;

/// The moment by which a call must have its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) at: Instant,
    /// How long a call may go on without progress.
    overall: Duration,
    /// What progress cannot put off.
    pub(super) last: Instant,
}

impl Deadline {
    /// For a call to an upstream that began at `start`.
    pub(super) fn of(upstream: &Upstream, start: Instant) -> Self {
        Self::new(start, upstream.timeouts.overall, upstream.timeouts.progress)
    }

    fn new(start: Instant, overall: Duration, progress: Duration) -> Self {
        Self { at: start + overall, overall, last: start + overall.max(progress) }
    }

    /// The call makes progress.
    pub(super) fn put_off(&mut self) {
        self.put_off_at(Instant::now());
    }

    fn put_off_at(&mut self, now: Instant) {
        self.at = self.at.max(self.last.min(now + self.overall));
    }

    /// The configuration key that ends the call.
    pub(super) fn key(&self) -> &'static str {
        if self.at == self.last { "timeouts.progress` and `timeouts.overall" } else { "timeouts.overall" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_puts_the_end_off_up_to_its_own_limit() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut deadline = Deadline::new(start, 10 * second, 25 * second);
        assert_eq!(deadline.at, start + 10 * second);
        deadline.put_off_at(start + 8 * second);
        assert_eq!(deadline.at, start + 18 * second);
        deadline.put_off_at(start + 17 * second);
        assert_eq!(deadline.at, start + 25 * second);
        let mut short = Deadline::new(start, 10 * second, second);
        short.put_off_at(start + 9 * second);
        assert_eq!(short.at, start + 10 * second, "the limit never shortens a call");
    }
}

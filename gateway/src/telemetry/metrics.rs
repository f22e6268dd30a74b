//! Counters of calls. Counting takes no lock and looks nothing up: each upstream holds its own.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::CallOutcome;

/// Upper bounds of the latency histogram, in milliseconds. Slower calls are in a bucket without a bound.
const BOUNDS: [u64; 13] = [1, 3, 5, 10, 30, 50, 100, 300, 1_000, 3_000, 10_000, 30_000, 120_000];

/// The calls that Weir answered or refused before they had an upstream.
pub static OWN_CALLS: CallMetrics = CallMetrics::new();

/// The finished calls of one upstream, since it was last configured.
#[derive(Debug)]
pub struct CallMetrics {
    outcomes: [AtomicU64; CallOutcome::ALL.len()],
    attempts: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

/// How long calls took.
#[derive(Debug, PartialEq)]
pub struct Latency {
    /// All of them together.
    pub seconds: f64,
    /// How many.
    pub count: u64,
    /// The upper bound in seconds, and how many calls are in this bucket alone. The last bound is [`f64::MAX`].
    pub buckets: Vec<(f64, u64)>,
}

impl CallMetrics {
    pub(crate) const fn new() -> Self {
        Self {
            outcomes: [const { AtomicU64::new(0) }; CallOutcome::ALL.len()],
            attempts: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BOUNDS.len() + 1],
            microseconds: AtomicU64::new(0),
        }
    }

    /// Counts a finished call that was sent `attempts` times. `took` is none of a stream that ends when its client likes.
    pub fn count(&self, outcome: CallOutcome, attempts: u32, took: Option<Duration>) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
        self.attempts.fetch_add(attempts.into(), Relaxed);
        let Some(took) = took else { return };
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| bound * 1_000 < microseconds);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.microseconds.fetch_add(microseconds, Relaxed);
    }

    /// How many calls came to what.
    pub fn outcomes(&self) -> impl Iterator<Item = (CallOutcome, u64)> {
        CallOutcome::ALL.into_iter().map(|outcome| (outcome, self.outcomes[outcome as usize].load(Relaxed)))
    }

    /// How often Weir sent a request or tried to.
    pub fn attempts(&self) -> u64 {
        self.attempts.load(Relaxed)
    }

    /// How long the calls took.
    pub fn latency(&self) -> Latency {
        #[allow(clippy::cast_precision_loss, reason = "after 285 years of calls")]
        let seconds = |count: u64, unit: f64| count as f64 / unit;
        let bounds = BOUNDS.into_iter().map(|bound| seconds(bound, 1e3)).chain([f64::MAX]);
        let buckets: Vec<_> = bounds.zip(self.buckets.iter().map(|count| count.load(Relaxed))).collect();
        Latency {
            seconds: seconds(self.microseconds.load(Relaxed), 1e6),
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_where_it_belongs() {
        let calls = CallMetrics::new();
        calls.count(CallOutcome::Ok, 1, Some(Duration::from_millis(1)));
        calls.count(CallOutcome::ToolError, 2, Some(Duration::from_micros(1_001)));
        calls.count(CallOutcome::Failed, 3, Some(Duration::from_secs(1_000)));
        calls.count(CallOutcome::Cancelled, 1, None);
        let counted = calls.outcomes().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        assert_eq!(
            counted,
            [(CallOutcome::Ok, 1), (CallOutcome::ToolError, 1), (CallOutcome::Cancelled, 1), (CallOutcome::Failed, 1)]
        );
        assert_eq!(calls.attempts(), 7);
        let latency = calls.latency();
        assert_eq!((latency.count, latency.seconds), (3, 1_000.002_001));
        assert_eq!(latency.buckets[..2], [(0.001, 1), (0.003, 1)]);
        assert_eq!(latency.buckets.last(), Some(&(f64::MAX, 1)));
    }

    #[test]
    fn each_outcome_has_its_own_counter() {
        for (place, outcome) in CallOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
        }
    }
}

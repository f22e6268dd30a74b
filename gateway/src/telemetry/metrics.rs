//! Counters of calls and policies. Counting takes no lock and looks nothing up: each upstream and policy holds its own.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::CallOutcome;

/// Upper bounds of the latency histogram, in milliseconds. Slower calls are in a bucket without a bound.
const BOUNDS: [u64; 13] = [1, 3, 5, 10, 30, 50, 100, 300, 1_000, 3_000, 10_000, 30_000, 120_000];

/// The calls that Weir answered or refused before they had an upstream.
pub static OWN_CALLS: CallMetrics = CallMetrics::new();

/// The questions to each policy, by their name in the configuration.
static POLICIES: Mutex<BTreeMap<String, Arc<PolicyMetrics>>> = Mutex::new(BTreeMap::new());

/// The questions to one policy. They are counted across reloads.
#[derive(Debug, Default)]
pub struct PolicyMetrics {
    decisions: AtomicU64,
    failures: AtomicU64,
    waiting: AtomicU64,
    disabled: AtomicU64,
    entries_shadowed: AtomicU64,
    microseconds: AtomicU64,
}

/// The finished calls of one upstream, since it was last configured.
#[derive(Debug)]
pub struct CallMetrics {
    outcomes: [AtomicU64; CallOutcome::ALL.len()],
    attempts: AtomicU64,
    shadowed: AtomicU64,
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

impl PolicyMetrics {
    /// Those of the policy of this name.
    pub fn of(policy: &str) -> Arc<Self> {
        Arc::clone(POLICIES.lock().entry(policy.to_owned()).or_default())
    }

    /// Those of all policies, by name.
    pub fn all() -> Vec<(String, Arc<Self>)> {
        POLICIES.lock().iter().map(|(name, policy)| (name.clone(), Arc::clone(policy))).collect()
    }

    /// Counts a question that the policy works on since `start`.
    pub fn count(&self, start: Instant) {
        self.decisions.fetch_add(1, Relaxed);
        let microseconds = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Relaxed);
    }

    /// Counts a question without a usable answer.
    pub fn fail(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// Notes that the policy is disabled at one upstream more, or less.
    pub fn disable(&self, is_disabled: bool) {
        if is_disabled {
            self.disabled.fetch_add(1, Relaxed);
        } else {
            self.disabled.fetch_sub(1, Relaxed);
        }
    }

    /// Counts an entry of a list that the policy would have hidden or changed if it were not in shadow mode.
    pub fn count_shadowed_entry(&self) {
        self.entries_shadowed.fetch_add(1, Relaxed);
    }

    /// The result of what is waited for; meanwhile one question more waits.
    pub async fn wait<T>(&self, until: impl Future<Output = T>) -> T {
        struct Waiting<'a>(&'a AtomicU64);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        self.waiting.fetch_add(1, Relaxed);
        let _waiting = Waiting(&self.waiting);
        until.await
    }

    /// The entries of lists that the policy would have hidden or changed, each time that a list was fetched.
    pub fn entries_shadowed(&self) -> u64 {
        self.entries_shadowed.load(Relaxed)
    }

    /// The questions that the policy worked on.
    pub fn decisions(&self) -> u64 {
        self.decisions.load(Relaxed)
    }

    /// The questions without a usable answer.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// The questions that wait for an instance now.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// The upstreams at which the policy is disabled now.
    pub fn disabled(&self) -> u64 {
        self.disabled.load(Relaxed)
    }

    /// The time that the policy took for all its questions.
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.microseconds.load(Relaxed))
    }
}

impl CallMetrics {
    pub(crate) const fn new() -> Self {
        Self {
            outcomes: [const { AtomicU64::new(0) }; CallOutcome::ALL.len()],
            attempts: AtomicU64::new(0),
            shadowed: AtomicU64::new(0),
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

    /// Counts a finished call that rules or policies in shadow mode would have decided otherwise.
    pub fn count_shadowed(&self) {
        self.shadowed.fetch_add(1, Relaxed);
    }

    /// How many calls came to what.
    pub fn outcomes(&self) -> impl Iterator<Item = (CallOutcome, u64)> {
        CallOutcome::ALL.into_iter().map(|outcome| (outcome, self.outcomes[outcome as usize].load(Relaxed)))
    }

    /// How often Weir sent a request or tried to.
    pub fn attempts(&self) -> u64 {
        self.attempts.load(Relaxed)
    }

    /// How many calls rules or policies in shadow mode would have decided otherwise.
    pub fn shadowed(&self) -> u64 {
        self.shadowed.load(Relaxed)
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

impl Latency {
    /// The upper bound in seconds of the bucket that this share of the calls does not go over; none if there were no calls,
    /// or if that bucket has no bound.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "after 285 years of calls")]
        let wanted = self.count as f64 * share;
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|(_, count)| {
            seen += count;
            #[allow(clippy::cast_precision_loss, reason = "as above")]
            let reached = seen as f64 >= wanted;
            seen > 0 && reached
        });
        bucket.map(|(bound, _)| *bound).filter(|bound| *bound < f64::MAX)
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
        assert_eq!([0.3, 0.5, 0.99].map(|share| latency.quantile(share)), [Some(0.001), Some(0.003), None]);
        assert_eq!(CallMetrics::new().latency().quantile(0.5), None);
    }

    #[test]
    fn each_outcome_has_its_own_counter() {
        for (place, outcome) in CallOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
        }
    }
}

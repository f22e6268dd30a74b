//! Counters of what is rare, each by a name from the configuration. Metrics of calls are in [`crate::telemetry::metrics`].

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

/// How often each limit refused something, by its key below `limits`.
pub static LIMITS_REACHED: Counters = Counters::new();

/// The tokens that Weir renewed or obtained for an upstream, by how that ended.
pub static TOKEN_RENEWALS: Counters = Counters::new();

/// How often the lists of an upstream were fetched for all callers, by how that ended.
pub static LIST_REFRESHES: Counters = Counters::new();

/// The processes that Weir started for an upstream.
pub static PROCESS_STARTS: Counters = Counters::new();

/// The processes of an upstream that ended by themselves.
pub static PROCESS_EXITS: Counters = Counters::new();

/// The calls that would be traced if there were fewer.
pub static CALLS_NOT_TRACED: AtomicU64 = AtomicU64::new(0);

/// The events of streams that a shared store has no copy of.
pub static EVENTS_NOT_COPIED: AtomicU64 = AtomicU64::new(0);

/// Counters of one kind, by a name from the configuration and a fixed word. They last as long as the process.
#[derive(Debug)]
pub struct Counters(Mutex<BTreeMap<(String, &'static str), Arc<AtomicU64>>>);

impl Counters {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The counter of this name and word, to be held by who counts often. It is exported from now on.
    pub fn counter(&self, name: &str, word: &'static str) -> Arc<AtomicU64> {
        Arc::clone(self.0.lock().entry((name.to_owned(), word)).or_default())
    }

    /// Counts one.
    pub fn count(&self, name: &str, word: &'static str) {
        self.counter(name, word).fetch_add(1, Relaxed);
    }

    /// All of them.
    pub fn values(&self) -> Vec<(String, &'static str, u64)> {
        let all = self.0.lock();
        all.iter().map(|((name, word), count)| (name.clone(), *word, count.load(Relaxed))).collect()
    }
}

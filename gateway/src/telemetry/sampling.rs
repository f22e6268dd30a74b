//! Which calls are traced. It is decided once, when a call begins: by its client where that sends a trace context and the
//! configuration lets it decide, else by chance. Beyond so many in a second no call is traced, whoever wants it; and beyond
//! half of that none with one token, so that nobody takes all.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use crate::{
    config::TelemetryConfig,
    counters::CALLS_NOT_TRACED,
    rate::{Pace, SECOND},
};

use super::{CallId, TraceParent};

/// Which share of the calls is traced that clients do not decide of, in 1/2³², and one more; zero if no call is traced.
static SAMPLE: AtomicU64 = AtomicU64::new(0);

/// Whether a client that sends a trace context decides of its calls.
static PARENT_BASED: AtomicBool = AtomicBool::new(true);

/// Whether spans say who called.
static WITH_PRINCIPAL: AtomicBool = AtomicBool::new(false);

/// What each traced call takes of a second, in nanoseconds.
static EACH: AtomicU64 = AtomicU64::new(0);

/// The calls of all callers.
static ALL: Pace = Pace::new();

/// From now on traces the calls that a configuration wants; without one no call.
pub fn sample(config: Option<&TelemetryConfig>) {
    if let Some(config) = config {
        WITH_PRINCIPAL.store(config.principal, Relaxed);
        PARENT_BASED.store(config.parent_based, Relaxed);
        EACH.store(each(config.traces_per_second), Relaxed);
    }
    SAMPLE.store(config.map_or(0, |config| config.sample + 1), Relaxed);
}

/// Whether spans say who called.
pub(super) fn with_principal() -> bool {
    WITH_PRINCIPAL.load(Relaxed)
}

/// Whether a call of somebody is traced that begins now.
pub(super) fn is_sampled(parent: Option<&TraceParent>, call: CallId, caller: Option<&Pace>, now: Instant) -> bool {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let Some(share) = SAMPLE.load(Relaxed).checked_sub(1) else { return false };
    let is_wanted = match parent {
        Some(parent) if PARENT_BASED.load(Relaxed) => parent.is_sampled(),
        _ => u64::from(call.chance()) < share,
    };
    if !is_wanted {
        return false;
    }
    let (now, each) = (now.saturating_duration_since(*BEGAN), EACH.load(Relaxed));
    let has_room = caller.is_none_or(|caller| caller.take(now, twice(each))) && ALL.take(now, each);
    if !has_room {
        CALLS_NOT_TRACED.fetch_add(1, Relaxed);
    }
    has_room
}

/// What each takes of a second, in nanoseconds.
fn each(per_second: usize) -> u64 {
    SECOND / u64::try_from(per_second.max(1)).unwrap_or(u64::MAX)
}

/// What each with one token takes: half may be with it, and one always.
fn twice(each: u64) -> u64 {
    (2 * each).min(SECOND)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_caller_may_have_half_and_always_one() {
        for (per_second, expected) in [(1, 1), (2, 1), (8, 4), (1000, 500)] {
            let (caller, each) = (Pace::new(), each(per_second));
            let taken = (0..per_second).filter(|_| caller.take(Duration::ZERO, twice(each))).count();
            assert_eq!(taken, expected, "of {per_second}");
        }
    }
}

//! How many calls each principal has made today. A day is one of UTC.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How many principals are counted at once. The calls of others are not: it is for those whom an issuer vouches for.
const MOST: usize = 100_000;

/// The calls of a day, of which each principal may have so many.
pub struct DayBudget {
    limit: usize,
    counts: Mutex<DayCounts>,
}

#[derive(Default)]
struct DayCounts {
    /// Since 1970.
    day: u64,
    calls: HashMap<Arc<str>, CallCount>,
}

#[derive(Clone, Copy, Default)]
struct CallCount {
    /// What is written, by this process and by others.
    written: u64,
    /// What is not written yet.
    unwritten: u64,
}

impl DayBudget {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, counts: Mutex::default() }
    }

    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// Counts one call; or says how long it is to midnight.
    pub(super) fn take(&self, principal: &Arc<str>, now: SystemTime) -> Result<(), Duration> {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut counts = self.at(since.as_secs() / DAY.as_secs());
        if counts.calls.len() >= MOST && !counts.calls.contains_key(principal) {
            return Ok(());
        }
        let count = counts.calls.entry(Arc::clone(principal)).or_default();
        if count.written.saturating_add(count.unwritten) >= self.limit as u64 {
            return Err(DAY - Duration::from_secs(since.as_secs() % DAY.as_secs()));
        }
        count.unwritten += 1;
        Ok(())
    }

    /// The day, and what is not written yet of it. An address is nobody whom an issuer vouches for, and is not written down.
    #[must_use]
    pub fn unwritten(&self) -> (u64, Vec<(Arc<str>, u64)>) {
        let counts = self.counts();
        let is_new = |(principal, count): (&Arc<str>, &CallCount)| {
            (count.unwritten > 0 && principal.contains('\n')).then(|| (Arc::clone(principal), count.unwritten))
        };
        (counts.day, counts.calls.iter().filter_map(is_new).collect())
    }

    /// Notes what is written of a principal by now, of which `added` comes from here.
    pub fn note(&self, day: u64, principal: &str, written: u64, added: u64) {
        let mut counts = self.at(day);
        if counts.day != day || (counts.calls.len() >= MOST && !counts.calls.contains_key(principal)) {
            return;
        }
        let count = counts.calls.entry(principal.into()).or_default();
        count.written = written;
        count.unwritten = count.unwritten.saturating_sub(added);
    }

    /// The counts of this day. A later day begins with none.
    fn at(&self, day: u64) -> MutexGuard<'_, DayCounts> {
        let mut counts = self.counts();
        if day > counts.day {
            *counts = DayCounts { day, calls: HashMap::new() };
        }
        counts
    }

    fn counts(&self) -> MutexGuard<'_, DayCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The day of a point in time, since 1970.
#[must_use]
pub fn day(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / DAY.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_lasts_for_a_day_and_counts_what_others_have_written() {
        let budget = DayBudget::new(3);
        let (ada, eve): (Arc<str>, Arc<str>) = ("https://id.example\nada".into(), "192.0.2.1".into());
        let noon = UNIX_EPOCH + 20_000 * DAY + DAY / 2;
        budget.note(day(noon), &ada, 1, 0);
        assert_eq!(budget.take(&ada, noon), Ok(()));
        assert_eq!(budget.take(&ada, noon), Ok(()));
        assert_eq!(budget.take(&ada, noon), Err(DAY / 2));
        assert_eq!(budget.take(&eve, noon), Ok(()));
        assert_eq!(budget.unwritten(), (20_000, vec![(Arc::clone(&ada), 2)]));
        // It was written, with a call that another process has let through.
        budget.note(20_000, &ada, 4, 2);
        assert_eq!(budget.unwritten(), (20_000, Vec::new()));
        assert_eq!(budget.take(&ada, noon), Err(DAY / 2));
        assert_eq!(budget.take(&ada, noon + DAY), Ok(()));
        // What is noted of yesterday says nothing of today.
        budget.note(20_000, &ada, 9, 0);
        assert_eq!(budget.take(&ada, noon + DAY), Ok(()));
    }
}

//! How many calls each principal has made today. A day is one of UTC.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::RwLock;

use crate::{
    config::{Limits, own_shares},
    quota::OwnShare,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How many principals are counted at once. The calls of others are not: it is for those whom an issuer vouches for.
const MOST: usize = 100_000;

/// The calls of a day, of which each principal may have so many. Those of whom there is no limit are not counted.
pub struct DayBudget {
    limits: RwLock<DayLimits>,
    counts: Mutex<DayCounts>,
}

struct DayLimits {
    /// Of each principal.
    principal: Option<usize>,
    /// Of those who have another one.
    own: HashMap<Arc<str>, OwnShare>,
}

/// A principal has had its calls of today.
pub(super) struct DayIsOver {
    pub(super) limit: usize,
    /// What says so, if it is a limit of its own.
    pub(super) key: Option<Arc<str>>,
    /// How long it is to midnight.
    pub(super) retry: Duration,
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
    pub(super) fn new(limits: &Limits) -> Self {
        Self { limits: RwLock::new(DayLimits::of(limits)), counts: Mutex::default() }
    }

    /// Puts other limits in force. What was counted stays.
    pub(super) fn resize(&self, limits: &Limits) {
        *self.limits.write() = DayLimits::of(limits);
    }

    /// Whether anybody's calls are counted.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        let limits = self.limits.read();
        limits.principal.is_some() || !limits.own.is_empty()
    }

    /// Counts one call, if the principal has a limit.
    pub(super) fn take(&self, principal: &Arc<str>, now: SystemTime) -> Result<(), DayIsOver> {
        let (limit, key) = {
            let limits = self.limits.read();
            let own = limits.own.get(principal);
            let Some(limit) = own.map(|own| own.limit).or(limits.principal) else { return Ok(()) };
            (limit, own.map(|own| Arc::clone(&own.key)))
        };
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut counts = self.at(since.as_secs() / DAY.as_secs());
        if counts.calls.len() >= MOST && !counts.calls.contains_key(principal) {
            return Ok(());
        }
        let count = counts.calls.entry(Arc::clone(principal)).or_default();
        if count.written.saturating_add(count.unwritten) >= limit as u64 {
            let retry = DAY - Duration::from_secs(since.as_secs() % DAY.as_secs());
            return Err(DayIsOver { limit, key, retry });
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

impl DayLimits {
    fn of(limits: &Limits) -> Self {
        let own = own_shares(&limits.own.keys, "calls_per_day", |own| own.calls_per_day);
        Self { principal: limits.calls_per_day, own }
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
    use crate::config::{NamedLimits, OwnLimits, OwnNumbers, key_principal};

    #[test]
    fn a_budget_lasts_for_a_day_and_counts_what_others_have_written() {
        let budget = DayBudget::new(&Limits { calls_per_day: Some(3), ..Limits::default() });
        let take = |principal: &Arc<str>, now| budget.take(principal, now).map_err(|over| over.retry);
        let (ada, eve): (Arc<str>, Arc<str>) = ("https://id.example\nada".into(), "192.0.2.1".into());
        let noon = UNIX_EPOCH + 20_000 * DAY + DAY / 2;
        budget.note(day(noon), &ada, 1, 0);
        assert_eq!(take(&ada, noon), Ok(()));
        assert_eq!(take(&ada, noon), Ok(()));
        assert_eq!(take(&ada, noon), Err(DAY / 2));
        assert_eq!(take(&eve, noon), Ok(()));
        assert_eq!(budget.unwritten(), (20_000, vec![(Arc::clone(&ada), 2)]));
        // It was written, with a call that another process has let through.
        budget.note(20_000, &ada, 4, 2);
        assert_eq!(budget.unwritten(), (20_000, Vec::new()));
        assert_eq!(take(&ada, noon), Err(DAY / 2));
        assert_eq!(take(&ada, noon + DAY), Ok(()));
        // What is noted of yesterday says nothing of today.
        budget.note(20_000, &ada, 9, 0);
        assert_eq!(take(&ada, noon + DAY), Ok(()));
    }

    #[test]
    fn a_key_may_have_a_budget_of_its_own_and_a_reload_changes_it() {
        let numbers = OwnNumbers { calls_per_day: Some(1), ..OwnNumbers::default() };
        let keys = vec![OwnLimits { whose: key_principal("ci"), table: "limits.keys.ci".into(), numbers }];
        let own = NamedLimits { keys, ..NamedLimits::default() };
        let budget = DayBudget::new(&Limits { own, ..Limits::default() });
        let (ci, ada): (Arc<str>, Arc<str>) = (key_principal("ci"), "https://id.example\nada".into());
        let noon = UNIX_EPOCH + 20_000 * DAY + DAY / 2;
        assert!(budget.take(&ci, noon).is_ok() && (0..9).all(|_| budget.take(&ada, noon).is_ok()));
        let over = budget.take(&ci, noon).err().map(|over| (over.limit, over.key));
        assert_eq!(over, Some((1, Some("limits.keys.ci.calls_per_day".into()))));
        assert_eq!(budget.unwritten().1.len(), 1, "nobody counts who has no limit");
        budget.resize(&Limits { calls_per_day: Some(2), ..Limits::default() });
        assert!(budget.take(&ci, noon).is_ok() && budget.take(&ci, noon).is_err());
        budget.resize(&Limits::default());
        assert!(budget.take(&ci, noon).is_ok() && !budget.is_limited());
    }
}

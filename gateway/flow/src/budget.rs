//! How often the calls to one upstream may be sent again, all together.
//!
//! Each call earns a part of a retry. So an outage adds a fifth to the load, and does not multiply it. A reserve that
//! fills with time lets upstreams with few calls have retries too. (Finagle and tower have the same budget.)

use std::time::Duration;

/// How much of a retry a call earns, in thousandths.
const PER_CALL: u32 = 200;

/// What a retry costs, in thousandths.
const RETRY: u32 = 1000;

/// How many retries may be saved up, in thousandths.
const MOST: u32 = 100 * RETRY;

/// How many retries the reserve holds, and how many come back each second.
const RESERVE: u32 = 30;
const RESERVE_PER_SECOND: u32 = 3;

/// The retries that are left to the calls of one upstream. Times are since it was made.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    /// In thousandths.
    earned: u32,
    reserve: u32,
    /// Up to when the reserve has been filled.
    filled: Duration,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { earned: 0, reserve: RESERVE, filled: Duration::ZERO }
    }
}

impl RetryBudget {
    /// Takes note of new calls.
    pub fn earn(&mut self, calls: u32) {
        self.earned = self.earned.saturating_add(calls.saturating_mul(PER_CALL)).min(MOST);
    }

    /// Takes one retry, if there is one.
    #[must_use]
    pub fn take(&mut self, now: Duration) -> bool {
        self.fill(now);
        if let Some(left) = self.earned.checked_sub(RETRY) {
            self.earned = left;
            return true;
        }
        self.reserve.checked_sub(1).map(|left| self.reserve = left).is_some()
    }

    /// How many retries there are.
    pub const fn left(&self) -> u32 {
        self.earned / RETRY + self.reserve
    }

    fn fill(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.filled).as_secs();
        let came = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(RESERVE_PER_SECOND);
        self.reserve = self.reserve.saturating_add(came).min(RESERVE);
        self.filled = self.filled.saturating_add(Duration::from_secs(seconds));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_idle_upstream_has_its_reserve_again() {
        let mut budget = RetryBudget::default();
        assert_eq!((0..200).filter(|_| budget.take(Duration::ZERO)).count(), 30);
        assert_eq!((0..200).filter(|_| budget.take(Duration::from_millis(1500))).count(), 3);
        assert_eq!((0..200).filter(|_| budget.take(Duration::from_secs(3600))).count(), 30);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn retries_are_a_fifth_of_the_calls_and_the_reserve(
            steps in prop::collection::vec((0..2_000_u64, 0..50_u32, 0..50_u32), 1..100),
        ) {
            let (mut budget, mut now) = (RetryBudget::default(), Duration::ZERO);
            let (mut calls, mut taken) = (0_u64, 0_u64);
            for (pause, came, wanted) in steps {
                now += Duration::from_millis(pause);
                budget.earn(came);
                calls += u64::from(came);
                taken += (0..wanted).filter(|_| budget.take(now)).count() as u64;
                prop_assert!(taken <= calls / 5 + 30 + now.as_secs() * 3, "{taken} of {calls}");
                prop_assert!(budget.left() <= 130);
            }
        }
    }
}

//! Whether an upstream is given calls, or a policy is run.
//!
//! ```text
//! closed ── TRIP failures in a row ──→ open ── the pause is over ──→ probing
//!    ↑                                  ↑                              │  │
//!    │                                  └─── the probe fails ──────────┘  │
//!    └──────────────── any answer ────────────────────────────────────────┘
//! ```
//!
//! While it is open, calls are shed. One call at a time is the probe, and each probe that fails makes the pause longer.
//! A probe that is slow is no failure: after [`PATIENCE`] the next call is a probe too.

use std::time::Duration;

use crate::Backoff;

/// So many calls fail in a row, and the breaker of an upstream opens. One call makes up to [`MAX_ATTEMPTS`](crate::call::MAX_ATTEMPTS).
pub const TRIP: u32 = 5;

/// How long other calls wait for the answer to a probe.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The breaker of one upstream or policy. Times are since it was made.
#[derive(Clone, Debug)]
pub struct Breaker {
    trip: u32,
    failures: u32,
    open: Option<OpenBreaker>,
    backoff: Backoff,
}

#[derive(Clone, Copy, Debug)]
struct OpenBreaker {
    /// When the next probe may go.
    until: Duration,
    is_probing: bool,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It goes.
    Pass,
    /// It goes, and decides whether others may.
    Probe,
    /// It fails at once. The next probe may go after this time.
    Shed(Duration),
}

/// What the end of a call says of its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It answers.
    Up,
    /// It does not.
    Down,
    /// Nothing: the call was cancelled or refused, or failed for a reason of its caller or of Weir.
    Unknown,
}

/// How the breaker changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerEvent {
    /// Calls are shed from now on.
    Opened {
        /// How many failed in a row.
        failures: u32,
        /// When the first probe may go.
        after: Duration,
    },
    /// A probe failed.
    StillOpen {
        /// When the next may go.
        after: Duration,
    },
    /// Calls pass again.
    Closed,
}

/// The same as an operator is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls are shed.
    Open,
    /// Calls are shed but for one.
    Probing,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new(TRIP, Backoff::CONNECT)
    }
}

impl Breaker {
    /// Opens after `trip` failures in a row, for the pauses of `backoff`.
    pub const fn new(trip: u32, backoff: Backoff) -> Self {
        Self { trip, failures: 0, open: None, backoff }
    }

    /// Decides about a call at `now`.
    pub fn admit(&mut self, now: Duration) -> Admission {
        match &mut self.open {
            None => Admission::Pass,
            Some(open) if now < open.until => Admission::Shed(open.until.saturating_sub(now)),
            Some(open) => {
                *open = OpenBreaker { until: now.saturating_add(PATIENCE), is_probing: true };
                Admission::Probe
            }
        }
    }

    /// Takes note of how a call ended that was admitted. `random` is uniform over its range.
    pub fn ended(
        &mut self,
        admission: Admission,
        verdict: Verdict,
        now: Duration,
        random: u32,
    ) -> Option<BreakerEvent> {
        let is_probe = admission == Admission::Probe;
        match (verdict, &mut self.open) {
            (Verdict::Up, open) => {
                let was_open = open.take().is_some();
                self.failures = 0;
                self.backoff.reset();
                was_open.then_some(BreakerEvent::Closed)
            }
            (Verdict::Down, None) => {
                self.failures = self.failures.saturating_add(1);
                (self.failures >= self.trip).then(|| {
                    let after = self.pause(now, random);
                    BreakerEvent::Opened { failures: self.failures, after }
                })
            }
            (Verdict::Down, Some(_)) if is_probe => {
                self.failures = self.failures.saturating_add(1);
                Some(BreakerEvent::StillOpen { after: self.pause(now, random) })
            }
            // The next call is the probe.
            (Verdict::Unknown, Some(open)) if is_probe => {
                *open = OpenBreaker { until: now, is_probing: false };
                None
            }
            // What began before the breaker opened says nothing new.
            (Verdict::Down | Verdict::Unknown, _) => None,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> BreakerState {
        match self.open {
            None => BreakerState::Closed,
            Some(OpenBreaker { is_probing: false, .. }) => BreakerState::Open,
            Some(OpenBreaker { is_probing: true, .. }) => BreakerState::Probing,
        }
    }

    /// How many calls failed in a row.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    fn pause(&mut self, now: Duration, random: u32) -> Duration {
        let after = self.backoff.pause(None, random);
        self.open = Some(OpenBreaker { until: now.saturating_add(after), is_probing: false });
        after
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict() -> impl Strategy<Value = Verdict> {
        prop::sample::select(vec![Verdict::Up, Verdict::Down, Verdict::Unknown])
    }

    fn opened(now: Duration) -> Breaker {
        let mut breaker = Breaker::default();
        for failures in 1..=TRIP {
            let event = breaker.ended(Admission::Pass, Verdict::Down, now, 0);
            assert_eq!(event.is_some(), failures == TRIP, "{failures}: {event:?}");
        }
        breaker
    }

    #[test]
    fn an_answer_between_failures_keeps_it_closed() {
        let mut breaker = Breaker::default();
        for _ in 0..10 * TRIP {
            assert_eq!(breaker.ended(Admission::Pass, Verdict::Down, Duration::ZERO, 0), None);
            assert_eq!(breaker.ended(Admission::Pass, Verdict::Unknown, Duration::ZERO, 0), None);
            assert_eq!(breaker.ended(Admission::Pass, Verdict::Up, Duration::ZERO, 0), None);
        }
    }

    #[test]
    fn a_probe_that_says_nothing_leaves_its_place_to_the_next() {
        let now = Duration::from_secs(60);
        let mut breaker = opened(Duration::ZERO);
        assert_eq!(breaker.admit(now), Admission::Probe);
        assert_eq!(breaker.admit(now), Admission::Shed(PATIENCE));
        assert_eq!(breaker.ended(Admission::Probe, Verdict::Unknown, now, 0), None);
        assert_eq!((breaker.state(), breaker.admit(now)), (BreakerState::Open, Admission::Probe));
        assert_eq!(breaker.admit(now + PATIENCE), Admission::Probe, "a slow probe holds up nobody for longer");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Calls begin and end in any order. The model is a plain count and the time of the next probe.
        #[test]
        fn calls_are_shed_only_while_it_is_open(
            steps in prop::collection::vec((0..8_000_u64, any::<bool>(), verdict(), any::<usize>(), any::<u32>()), 1..200),
        ) {
            let (mut breaker, mut now) = (Breaker::default(), Duration::ZERO);
            let (mut running, mut failures, mut open) = (Vec::new(), 0, None::<Duration>);
            for (pause, begins, verdict, which, random) in steps {
                now += Duration::from_millis(pause);
                if begins || running.is_empty() {
                    let admission = breaker.admit(now);
                    let expected = match open {
                        None => Admission::Pass,
                        Some(until) if now < until => Admission::Shed(until - now),
                        Some(_) => Admission::Probe,
                    };
                    prop_assert_eq!(admission, expected);
                    match admission {
                        Admission::Shed(_) => continue,
                        Admission::Probe => open = Some(now + PATIENCE),
                        Admission::Pass => {}
                    }
                    running.push(admission);
                    continue;
                }
                let admission = running.swap_remove(which % running.len());
                let event = breaker.ended(admission, verdict, now, random);
                let is_probe = admission == Admission::Probe;
                match verdict {
                    Verdict::Up => {
                        prop_assert_eq!(event, open.take().map(|_| BreakerEvent::Closed));
                        failures = 0;
                    }
                    Verdict::Down if open.is_none() || is_probe => {
                        failures += 1;
                        match event {
                            Some(BreakerEvent::Opened { failures: counted, after }) => {
                                prop_assert!(open.is_none() && counted == failures && failures >= TRIP);
                                open = Some(now + after);
                            }
                            Some(BreakerEvent::StillOpen { after }) => {
                                prop_assert!(open.is_some() && after <= Backoff::CONNECT.cap() * 5 / 4);
                                open = Some(now + after);
                            }
                            event => prop_assert!(event.is_none() && open.is_none() && failures < TRIP),
                        }
                    }
                    Verdict::Down => prop_assert_eq!(event, None),
                    Verdict::Unknown => {
                        prop_assert_eq!(event, None);
                        open = open.map(|until| if is_probe { now } else { until });
                    }
                }
                prop_assert_eq!(breaker.state() == BreakerState::Closed, open.is_none());
                prop_assert_eq!(breaker.failures(), failures);
            }
        }
    }
}

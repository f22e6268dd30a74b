//! Whether a `calls` policy is run. One that traps, loops or overgrows time and again is disabled for a pause.
//!
//! A caller may send what the policy traps at. So traps of one signed-in caller in a row count as one: they disable the
//! policy for nobody else.

use std::time::Instant;

use parking_lot::Mutex;
use weir_flow::{Admission, Backoff, Breaker, BreakerEvent, BreakerState, Verdict, facts::Principal};

use super::PolicyFault;

/// So many questions in a row end in a trap, and the policy is disabled.
const TRAPS: u32 = 20;

/// The breaker of one policy at one upstream.
pub(super) struct PolicyBreaker {
    start: Instant,
    state: Mutex<PolicyBreakerState>,
}

struct PolicyBreakerState {
    breaker: Breaker,
    /// The signed-in caller whose question was the last to end in a trap.
    caller: Option<(Option<String>, String)>,
    /// When the policy was disabled, and the last trap.
    opened: Instant,
    why: String,
}

impl PolicyBreaker {
    pub(super) fn new(now: Instant) -> Self {
        let breaker = Breaker::new(TRAPS, Backoff::POLICY);
        Self {
            start: now,
            state: Mutex::new(PolicyBreakerState { breaker, caller: None, opened: now, why: String::new() }),
        }
    }

    /// Lets a question reach the policy.
    ///
    /// # Errors
    ///
    /// While the policy is disabled.
    pub(super) fn admit(&self, now: Instant) -> Result<Admission, PolicyFault> {
        let mut state = self.state.lock();
        match state.breaker.admit(now - self.start) {
            Admission::Shed(after) => Err(PolicyFault::Disabled {
                since: now - state.opened,
                failures: state.breaker.failures(),
                why: state.why.clone(),
                after,
            }),
            admission => Ok(admission),
        }
    }

    /// Takes note of how a question ended that was let through: with which fault, if with one.
    pub(super) fn end(
        &self,
        admission: Admission,
        caller: Option<&Principal>,
        fault: Option<&PolicyFault>,
        now: Instant,
    ) -> Option<BreakerEvent> {
        let mut state = self.state.lock();
        let verdict = match fault {
            None | Some(PolicyFault::Malformed(_)) => Verdict::Up,
            Some(PolicyFault::Trapped(_) | PolicyFault::TimedOut | PolicyFault::OutOfMemory) => Verdict::Down,
            Some(_) => Verdict::Unknown,
        };
        let mut counted = verdict;
        if verdict == Verdict::Down {
            state.why = fault.map(ToString::to_string).unwrap_or_default();
            let signed_in = caller.filter(|caller| caller.issuer.is_some());
            let caller = signed_in.map(|caller| (caller.issuer.clone(), caller.subject.clone()));
            // A probe too: who traps at each of them keeps nobody else from the policy.
            if caller.is_some() && caller == state.caller {
                counted = Verdict::Unknown;
            }
            state.caller = caller;
        }
        let random = getrandom::u32().unwrap_or_default();
        let event = state.breaker.ended(admission, counted, now - self.start, random);
        match event {
            Some(BreakerEvent::Opened { .. }) => state.opened = now,
            Some(BreakerEvent::Closed) => state.caller = None,
            _ => {}
        }
        event
    }

    /// Whether the policy is disabled.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().breaker.state() != BreakerState::Closed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TRAP: PolicyFault = PolicyFault::TimedOut;

    fn ada() -> Principal {
        Principal::named("ada", Some("https://login.example".into()))
    }

    /// How many questions in a row end in a trap before one is not let through; at most 100.
    fn traps(breaker: &PolicyBreaker, callers: &[Option<Principal>], now: Instant) -> usize {
        let questions = callers.iter().cycle().take(100);
        let asked = questions.take_while(|caller| match breaker.admit(now) {
            Ok(admission) => {
                breaker.end(admission, caller.as_ref(), Some(&TRAP), now);
                true
            }
            Err(_) => false,
        });
        asked.count()
    }

    #[test]
    fn a_policy_is_disabled_after_traps_in_a_row_and_runs_again_after_a_probe() {
        let now = Instant::now();
        let breaker = PolicyBreaker::new(now);
        assert_eq!(traps(&breaker, &[None], now), TRAPS as usize);
        let Err(PolicyFault::Disabled { failures, after, .. }) = breaker.admit(now + Duration::from_secs(1)) else {
            panic!("it is disabled")
        };
        assert!(failures == TRAPS && after < Duration::from_secs(13), "{after:?}");
        // Each probe that fails makes the pause longer, to minutes.
        let mut now = now;
        for _ in 0..8 {
            now += Duration::from_secs(375);
            assert_eq!(breaker.admit(now).ok(), Some(Admission::Probe));
            assert!(matches!(
                breaker.end(Admission::Probe, None, Some(&TRAP), now),
                Some(BreakerEvent::StillOpen { .. })
            ));
        }
        assert!(breaker.admit(now + Duration::from_secs(220)).is_err() && breaker.is_open());
        now += Duration::from_secs(376);
        assert_eq!(breaker.admit(now).ok(), Some(Admission::Probe));
        assert_eq!(breaker.end(Admission::Probe, None, None, now), Some(BreakerEvent::Closed));
        assert_eq!((breaker.admit(now).ok(), breaker.is_open()), (Some(Admission::Pass), false));
    }

    #[test]
    fn one_signed_in_caller_disables_a_policy_for_nobody() {
        let now = Instant::now();
        let eve = Principal::named("eve", ada().issuer);
        assert_eq!(traps(&PolicyBreaker::new(now), &[Some(ada())], now), 100);
        assert_eq!(traps(&PolicyBreaker::new(now), &[Some(ada()), Some(eve)], now), TRAPS as usize);
        assert_eq!(traps(&PolicyBreaker::new(now), &[Some(Principal::named("local", None))], now), TRAPS as usize);
    }

    #[test]
    fn one_signed_in_caller_keeps_a_policy_from_nobody_by_failing_probes() {
        let mut now = Instant::now();
        let breaker = PolicyBreaker::new(now);
        let eve = Principal::named("eve", ada().issuer);
        assert_eq!(traps(&breaker, &[Some(eve), Some(ada())], now), TRAPS as usize);
        now += Duration::from_secs(13);
        for _ in 0..5 {
            assert_eq!(breaker.admit(now).ok(), Some(Admission::Probe));
            assert_eq!(breaker.end(Admission::Probe, Some(&ada()), Some(&TRAP), now), None);
        }
        assert_eq!(breaker.admit(now).ok(), Some(Admission::Probe));
        assert_eq!(breaker.end(Admission::Probe, None, None, now), Some(BreakerEvent::Closed));
    }

    #[test]
    fn an_answer_between_traps_keeps_a_policy_running() {
        let now = Instant::now();
        let breaker = PolicyBreaker::new(now);
        for fault in [TRAP, TRAP, TRAP, PolicyFault::TooBusy, PolicyFault::Malformed("it is empty".into())]
            .iter()
            .cycle()
            .take(500)
        {
            let Ok(admission) = breaker.admit(now) else { panic!("it is not disabled") };
            breaker.end(admission, None, Some(fault), now);
        }
    }
}

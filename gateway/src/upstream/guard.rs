//! What keeps an upstream in trouble from all of its calls: the breaker and the retry budget that its calls share.
//!
//! Weir's own probe decides too: when the breaker opens, an open upstream is asked at once, and an answer closes it. So a
//! tool that fails each time does not keep callers from the others.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Instant,
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_flow::{Admission, Breaker, BreakerEvent, BreakerState, Failure, Observation, RetryBudget, Trouble, Verdict};

use super::Upstream;

/// The `error_class` of an upstream whose calls fail.
const CLASS: &str = "calls";

/// The breaker and the retry budget of one upstream.
pub(super) struct CallGuard {
    /// Whether the breaker is closed and no call has failed since the last answer: all that most calls look at.
    is_quiet: AtomicBool,
    /// Calls that have not been earned from yet.
    calls: AtomicU32,
    start: Instant,
    state: Mutex<GuardState>,
    /// Tells that Weir should ask the upstream now.
    suspected: Notify,
}

#[derive(Default)]
struct GuardState {
    breaker: Breaker,
    budget: RetryBudget,
    /// How the last call failed.
    why: String,
}

/// Where the breaker and the budget of an upstream stand.
#[derive(Clone, Copy, Debug)]
pub struct GuardReport {
    /// Whether calls pass.
    pub breaker: BreakerState,
    /// How many retries its calls have left.
    pub retries: u32,
}

/// A call that goes to its upstream. Dropped without an end, it says nothing of the upstream.
pub struct AdmittedCall<'a> {
    upstream: &'a Upstream,
    admission: Admission,
}

impl Default for CallGuard {
    fn default() -> Self {
        Self {
            is_quiet: AtomicBool::new(true),
            calls: AtomicU32::new(0),
            start: Instant::now(),
            state: Mutex::default(),
            suspected: Notify::new(),
        }
    }
}

impl CallGuard {
    /// Resolves when the upstream should be asked whether it answers.
    pub(super) async fn suspected(&self) {
        self.suspected.notified().await;
    }
}

impl Upstream {
    /// Lets a call go to it.
    ///
    /// # Errors
    ///
    /// While the breaker is open.
    pub fn admit(&self) -> Result<AdmittedCall<'_>, Failure> {
        self.guard.calls.fetch_add(1, Ordering::Relaxed);
        let mut admission = Admission::Pass;
        if !self.guard.is_quiet.load(Ordering::Acquire) {
            let mut state = self.guard.state.lock();
            admission = state.breaker.admit(self.guard.start.elapsed());
            if let Admission::Shed(after) = admission {
                return Err(Failure::Shed { failures: state.breaker.failures(), why: state.why.clone(), after });
            }
        }
        Ok(AdmittedCall { upstream: self, admission })
    }

    /// Takes a retry for one of its calls; false if they have had all that they may have.
    pub fn take_retry(&self) -> bool {
        let mut state = self.guard.state.lock();
        state.budget.earn(self.guard.calls.swap(0, Ordering::Relaxed));
        state.budget.take(self.guard.start.elapsed())
    }

    /// Takes note that it has answered Weir.
    pub fn note_answer(&self) {
        self.note_end(Admission::Pass, Verdict::Up, "");
    }

    /// Where its breaker and its budget stand.
    pub fn guard(&self) -> GuardReport {
        let state = self.guard.state.lock();
        GuardReport { breaker: state.breaker.state(), retries: state.budget.left() }
    }

    fn note_end(&self, admission: Admission, verdict: Verdict, why: &str) {
        if verdict == Verdict::Up && self.guard.is_quiet.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.guard.state.lock();
        let random = getrandom::u32().unwrap_or_default();
        let event = state.breaker.ended(admission, verdict, self.guard.start.elapsed(), random);
        if verdict == Verdict::Down {
            why.clone_into(&mut state.why);
        }
        let is_quiet = state.breaker.state() == BreakerState::Closed && state.breaker.failures() == 0;
        self.guard.is_quiet.store(is_quiet, Ordering::Release);
        if let Some(event) = event {
            // Under the lock: of two changes the later one must be observed last.
            self.handle(event, why);
        }
    }

    /// Says how the breaker changed.
    fn handle(&self, event: BreakerEvent, why: &str) {
        let upstream = self.name();
        let retry = match event {
            BreakerEvent::Opened { failures, after } => {
                let retry_ms = after.as_millis();
                tracing::warn!(upstream, failures, retry_ms, error = why, "breaker opened, calls fail at once");
                self.guard.suspected.notify_one();
                after
            }
            BreakerEvent::StillOpen { after } => {
                tracing::debug!(upstream, retry_ms = after.as_millis(), error = why, "probe failed");
                after
            }
            BreakerEvent::Closed => {
                tracing::info!(upstream, "breaker closed, calls pass again");
                return self.observe(Observation::Calls(None));
            }
        };
        let trouble = Trouble::new(CLASS, format!("its calls fail: it {why}"));
        self.observe(Observation::Calls(Some(Trouble { retry: Some(Instant::now() + retry), ..trouble })));
    }
}

impl AdmittedCall<'_> {
    /// Takes note of how the call ended; `why` if the upstream failed it.
    pub fn end(mut self, verdict: Verdict, why: impl FnOnce() -> String) {
        let admission = std::mem::replace(&mut self.admission, Admission::Pass);
        match verdict {
            Verdict::Down => self.upstream.note_end(admission, verdict, &why()),
            Verdict::Up | Verdict::Unknown => self.upstream.note_end(admission, verdict, ""),
        }
    }
}

impl Drop for AdmittedCall<'_> {
    fn drop(&mut self) {
        if self.admission == Admission::Probe {
            self.upstream.note_end(Admission::Probe, Verdict::Unknown, "");
        }
    }
}

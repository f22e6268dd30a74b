//! One request on its way to an upstream and back.
//!
//! ```text
//! Choose ─→ Open ─→ Attempt ─→ answered ────────────→ Deliver        (no way back from here)
//!    ↑        ↑        ├─ 401 twice, or 403 for want of scopes once ─→ Choose
//!    │        │        ├─ session gone, first time ─→ Open
//!    │        └────────├─ never sent ─→ Wait ─→ Open
//!    └─────────────────├─ broken off ─→ Open, if it is safe to repeat
//!                      └─ anything else ─────────────→ Fail
//! ```

use std::time::Duration;

use crate::facts::{Challenge, Refusal};

/// How many attempts one call may make.
pub const MAX_ATTEMPTS: u32 = 4;

/// The pause before the second attempt; it grows fourfold each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The life of one request.
#[derive(Debug)]
pub struct CallFlow {
    state: CallState,
    attempts: u32,
    deadline: Duration,
    repeatable: bool,
    refusals: u32,
    reopened: bool,
}

#[derive(Debug)]
enum CallState {
    Choose(Option<Refusal>),
    Open,
    Attempt,
    Wait(Duration),
    Deliver,
    Fail(Failure),
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Get the credential for this call, knowing what was refused before.
    Choose(Option<Refusal>),
    /// Get a connection and, in the legacy era, an upstream session.
    Open,
    /// Send the request.
    Attempt,
    /// Pause for this long, then [`Call::handle_pause`].
    Wait(Duration),
    /// Hand the answer to the client as it comes.
    Deliver,
    /// Tell the client.
    Fail(Failure),
}

/// How an attempt to send ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// An answer has begun.
    Answered,
    /// 401 or 403 with a challenge.
    Refused(Refusal),
    /// The upstream does not know the session (any more); it did not look at the request.
    SessionLost,
    /// The request never reached the upstream; the text says why.
    Unsent(String),
    /// The connection ended after the request may have arrived; the text says how.
    BrokenOff(String),
    /// No answer in time.
    TimedOut,
    /// An answer that is not MCP; the text says what came instead.
    NotMcp(String),
}

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// The connection ended before an answer.
    #[error("broke off before it answered: {0}; the call may have run and was not repeated")]
    BrokenOff(String),
    /// The deadline passed; zero where it is not known which.
    #[error("did not answer {}", within(*.0))]
    TimedOut(Duration),
    /// The credential was refused, or there was none.
    #[error("refused the call with status {status}{}", if *.credential { ": its credential is not accepted" } else { ": it needs a credential, see `auth` in the configuration" })]
    Refused {
        /// 401 or 403.
        status: u16,
        /// Whether a credential went along.
        credential: bool,
        /// What the server asked for.
        challenge: Challenge,
    },
    /// The upstream forgot its session again at once.
    #[error("ended its session twice in a row")]
    SessionLost,
    /// The answer was not MCP.
    #[error("did not answer in MCP: {0}")]
    NotMcp(String),
    /// A policy stopped the call or could not decide.
    #[error("{0}")]
    Policy(String),
}

fn within(deadline: Duration) -> String {
    if deadline.is_zero() { "in time".into() } else { format!("within {} s (`timeouts.overall`)", deadline.as_secs()) }
}

impl CallFlow {
    /// A call that must have its answer within `deadline`; `repeatable` if it may safely run twice.
    #[must_use]
    pub const fn new(deadline: Duration, repeatable: bool) -> Self {
        Self { state: CallState::Choose(None), attempts: 0, deadline, repeatable, refusals: 0, reopened: false }
    }

    /// What to do now.
    #[must_use]
    pub fn poll_action(&self) -> Action {
        match &self.state {
            CallState::Choose(refusal) => Action::Choose(refusal.clone()),
            CallState::Open => Action::Open,
            CallState::Attempt => Action::Attempt,
            CallState::Wait(pause) => Action::Wait(*pause),
            CallState::Deliver => Action::Deliver,
            CallState::Fail(failure) => Action::Fail(failure.clone()),
        }
    }

    /// How many attempts were made.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// What is left of the deadline.
    #[must_use]
    pub const fn left(&self, elapsed: Duration) -> Duration {
        self.deadline.saturating_sub(elapsed)
    }

    /// The credential is at hand, or none is needed.
    pub fn handle_chosen(&mut self) {
        self.step(|state| matches!(state, CallState::Choose(_)), CallState::Open);
    }

    /// The connection is open.
    pub fn handle_open(&mut self) {
        self.step(|state| matches!(state, CallState::Open), CallState::Attempt);
    }

    /// The pause is over.
    pub fn handle_pause(&mut self) {
        self.step(|state| matches!(state, CallState::Wait(_)), CallState::Open);
    }

    /// Something the call needs cannot be had: ends it, unless its answer is already on the way.
    pub fn handle_failure(&mut self, failure: Failure) {
        if !matches!(self.state, CallState::Deliver) {
            self.state = CallState::Fail(failure);
        }
    }

    /// An attempt ended at `elapsed` since the start.
    pub fn handle_sent(&mut self, sent: Sent, elapsed: Duration) {
        if !matches!(self.state, CallState::Attempt | CallState::Open) {
            return;
        }
        self.attempts += 1;
        self.state = match sent {
            Sent::Answered => CallState::Deliver,
            Sent::Refused(refusal) if self.may_choose(&refusal) => {
                self.refusals += 1;
                CallState::Choose(Some(refusal))
            }
            Sent::Refused(Refusal { status, credential, challenge }) => {
                CallState::Fail(Failure::Refused { status, credential: credential.is_some(), challenge })
            }
            Sent::SessionLost if self.reopened => CallState::Fail(Failure::SessionLost),
            Sent::SessionLost => {
                self.reopened = true;
                CallState::Open
            }
            Sent::Unsent(why) => self.again(elapsed, Failure::Unreachable(why)),
            Sent::BrokenOff(how) if self.repeatable => self.again(elapsed, Failure::BrokenOff(how)),
            Sent::BrokenOff(how) => CallState::Fail(Failure::BrokenOff(how)),
            Sent::TimedOut => CallState::Fail(Failure::TimedOut(self.deadline)),
            Sent::NotMcp(what) => CallState::Fail(Failure::NotMcp(what)),
        };
    }

    /// Whether a refusal may be answered with another credential. Of a 401 to that one too the policy is told, for it may
    /// know what helps; the third ends the call.
    fn may_choose(&self, refusal: &Refusal) -> bool {
        let most = if refusal.status == 401 { 2 } else { u32::from(refusal.wants_scopes()) };
        self.refusals < most
    }

    fn again(&self, elapsed: Duration, failure: Failure) -> CallState {
        let pause = FIRST_PAUSE * 4_u32.pow(self.attempts.saturating_sub(1).min(4));
        if self.attempts >= MAX_ATTEMPTS || self.left(elapsed) <= pause {
            CallState::Fail(failure)
        } else {
            CallState::Wait(pause)
        }
    }

    fn step(&mut self, from: impl Fn(&CallState) -> bool, to: CallState) {
        if from(&self.state) {
            self.state = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);
    const AT: Duration = Duration::from_millis(5);

    fn sending(repeatable: bool) -> CallFlow {
        let mut call = CallFlow::new(DEADLINE, repeatable);
        assert_eq!(call.poll_action(), Action::Choose(None));
        call.handle_chosen();
        assert_eq!(call.poll_action(), Action::Open);
        call.handle_open();
        assert_eq!(call.poll_action(), Action::Attempt);
        call
    }

    fn refusal(status: u16) -> Refusal {
        Refusal { status, credential: Some(1), challenge: Challenge::default() }
    }

    #[test]
    fn nothing_is_repeated_once_the_answer_has_begun() {
        let mut call = sending(true);
        call.handle_sent(Sent::Answered, AT);
        assert_eq!(call.poll_action(), Action::Deliver);
        for late in
            [Sent::BrokenOff("reset".into()), Sent::SessionLost, Sent::Unsent("x".into()), Sent::Refused(refusal(401))]
        {
            call.handle_sent(late, AT);
            assert_eq!(call.poll_action(), Action::Deliver);
        }
        call.handle_failure(Failure::BrokenOff("reset".into()));
        call.handle_pause();
        call.handle_open();
        assert_eq!(call.poll_action(), Action::Deliver);
        assert_eq!(call.attempts(), 1);
    }

    #[test]
    fn what_may_have_run_is_repeated_only_if_that_is_safe() {
        let mut unsafe_call = sending(false);
        unsafe_call.handle_sent(Sent::BrokenOff("reset".into()), AT);
        assert_eq!(unsafe_call.poll_action(), Action::Fail(Failure::BrokenOff("reset".into())));

        let mut safe_call = sending(true);
        safe_call.handle_sent(Sent::BrokenOff("reset".into()), AT);
        assert_eq!(safe_call.poll_action(), Action::Wait(FIRST_PAUSE));
        safe_call.handle_pause();
        assert_eq!(safe_call.poll_action(), Action::Open);
    }

    #[test]
    fn what_never_left_is_tried_again_with_growing_pauses() {
        let mut call = CallFlow::new(DEADLINE, false);
        call.handle_chosen();
        let mut pauses = Vec::new();
        loop {
            call.handle_sent(Sent::Unsent("refused".into()), AT);
            match call.poll_action() {
                Action::Wait(pause) => pauses.push(pause.as_millis()),
                action => {
                    assert_eq!(action, Action::Fail(Failure::Unreachable("refused".into())));
                    break;
                }
            }
            call.handle_pause();
        }
        assert_eq!(pauses, [100, 400, 1600]);
        assert_eq!(call.attempts(), MAX_ATTEMPTS);
    }

    #[test]
    fn no_pause_outlives_the_deadline() {
        let mut call = sending(true);
        call.handle_sent(Sent::BrokenOff("reset".into()), DEADLINE);
        assert_eq!(call.poll_action(), Action::Fail(Failure::BrokenOff("reset".into())));
    }

    #[test]
    fn a_new_credential_for_each_of_two_refusals() {
        let mut call = sending(false);
        for _ in 0..2 {
            call.handle_sent(Sent::Refused(refusal(401)), AT);
            assert_eq!(call.poll_action(), Action::Choose(Some(refusal(401))));
            call.handle_chosen();
            call.handle_open();
        }
        call.handle_sent(Sent::Refused(refusal(401)), AT);
        assert!(matches!(call.poll_action(), Action::Fail(Failure::Refused { status: 401, .. })));
    }

    #[test]
    fn a_want_of_scopes_is_answered_with_a_new_credential_once() {
        let more = Refusal {
            challenge: Challenge { error: Some("insufficient_scope".into()), ..Challenge::default() },
            ..refusal(403)
        };
        let mut call = sending(false);
        call.handle_sent(Sent::Refused(more.clone()), AT);
        assert_eq!(call.poll_action(), Action::Choose(Some(more.clone())));
        call.handle_chosen();
        call.handle_open();
        call.handle_sent(Sent::Refused(more), AT);
        assert!(matches!(call.poll_action(), Action::Fail(Failure::Refused { status: 403, .. })));
        let mut call = sending(false);
        call.handle_sent(Sent::Refused(refusal(403)), AT);
        assert!(matches!(call.poll_action(), Action::Fail(Failure::Refused { status: 403, .. })));
    }

    #[test]
    fn a_lost_session_is_opened_again_once() {
        let mut call = sending(false);
        call.handle_sent(Sent::SessionLost, AT);
        assert_eq!(call.poll_action(), Action::Open);
        call.handle_open();
        call.handle_sent(Sent::SessionLost, AT);
        assert_eq!(call.poll_action(), Action::Fail(Failure::SessionLost));
    }

    #[test]
    fn a_policys_no_ends_the_call() {
        let mut call = CallFlow::new(DEADLINE, true);
        call.handle_failure(Failure::Policy("no".into()));
        assert_eq!(call.poll_action(), Action::Fail(Failure::Policy("no".into())));
    }
}

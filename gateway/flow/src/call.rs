//! One request on its way to an upstream and back.
//!
//! ```text
//! Choose ─→ Open ─→ Attempt ─→ answered ────────────→ the answer      (no way back from here)
//!    ↑        ↑        ├─ 401 twice, or 403 for want of scopes once ─→ Choose
//!    │        │        ├─ session gone, first time ─→ Open
//!    │        └────────├─ never sent, or turned away for a moment ─→ Wait ─→ Open
//!    └─────────────────├─ broken off, 502 to 504 ─→ Wait, if it is safe to repeat
//!                      └─ anything else ─────────────→ Fail
//! ```
//!
//! Each step consumes the state before it, so a step that does not fit cannot be written down. A call that is answered is
//! no state any more: nothing can repeat it.

use std::time::Duration;

use crate::{
    Backoff,
    facts::{Challenge, Outcome, Refusal},
};

/// How many attempts one call may make: tries to find a channel and to send the request, together.
pub const MAX_ATTEMPTS: u32 = 4;

/// How long a call waits at most where its upstream names the time (`Retry-After`, RFC 9110 §10.2.3). For more than that
/// its client should know.
pub const MAX_HINT: Duration = Duration::from_secs(10);

/// What the driver does next.
#[must_use]
#[derive(Debug)]
pub enum CallStep {
    /// Get the credential for this call, knowing what was refused before.
    Choose(ChooseCredential),
    /// Get a channel and, in the legacy era, an upstream session.
    Open(OpenChannel),
    /// Send the request.
    Attempt(SendAttempt),
    /// Pause before the channel is looked for again.
    Wait(RetryPause),
    /// Tell the client.
    Fail(Failure),
}

/// A call that needs a credential.
#[derive(Debug)]
pub struct ChooseCredential {
    call: CallState,
    refusal: Option<Refusal>,
}

/// A call that needs a channel.
#[derive(Debug)]
pub struct OpenChannel(CallState);

/// A call that has all that it takes to be sent.
#[derive(Debug)]
pub struct SendAttempt(CallState);

/// A call that waits before it is sent again.
#[derive(Debug)]
pub struct RetryPause {
    call: CallState,
    pause: Duration,
    failure: Failure,
}

/// What a call remembers of its attempts.
#[derive(Debug)]
struct CallState {
    attempts: u32,
    deadline: Duration,
    repeatable: bool,
    refusals: u32,
    reopened: bool,
}

/// Why a message could not be sent or its answer not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// 401 or 403 with a challenge.
    #[error("status {}", .0.status)]
    Refused(Refusal),
    /// The upstream does not know the session (any more); it did not look at the message.
    #[error("the session is gone")]
    SessionLost,
    /// The message never reached the upstream; the text says why.
    #[error("{0}")]
    Unsent(String),
    /// Weir sends as many requests to the upstream as it may; the text names the limit.
    #[error("{0}")]
    Full(String),
    /// The upstream was too busy to look at the message, and said when to come back.
    #[error("{0}")]
    Busy(Busy),
    /// 502, 503 or 504: whoever answered says that the upstream is not there.
    #[error("status {0}")]
    Unavailable(u16),
    /// The connection ended after the message may have arrived; the text says how.
    #[error("{0}")]
    BrokenOff(String),
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// Another status that means trouble at the server, or an answer that is not MCP; the text says what came instead.
    #[error("{0}")]
    NotMcp(String),
}

/// How a server turns requests away for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("status {status}, and asks to be called again in {} s", after.as_secs())]
pub struct Busy {
    /// 429 or 503.
    pub status: u16,
    /// When to come back (`Retry-After`).
    pub after: Duration,
}

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// No connection, for a reason that says nothing of the upstream: a limit, a credential, a policy, the configuration.
    #[error("cannot be reached: {0}")]
    NotConnected(String),
    /// The breaker is open.
    #[error("is not called for {} s: {failures} calls in a row failed, the last because it {why}", after.as_secs() + 1)]
    Shed {
        /// How many calls failed in a row.
        failures: u32,
        /// How the last of them failed.
        why: String,
        /// When the next call may go.
        after: Duration,
    },
    /// 502, 503 or 504.
    #[error("did not answer in MCP: status {0}")]
    Unavailable(u16),
    /// Too many requests, each time.
    #[error("is busy: it answers with {0}")]
    Busy(Busy),
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

/// A call that must have its answer within `deadline`; `repeatable` if it may safely run twice.
pub const fn begin(deadline: Duration, repeatable: bool) -> CallStep {
    let call = CallState { attempts: 0, deadline, repeatable, refusals: 0, reopened: false };
    CallStep::Choose(ChooseCredential { call, refusal: None })
}

impl ChooseCredential {
    /// What was refused before.
    pub fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// The credential is at hand, or none is needed.
    pub fn chosen(self) -> CallStep {
        CallStep::Open(OpenChannel(self.call))
    }
}

impl OpenChannel {
    /// The channel is open.
    pub fn opened(self) -> CallStep {
        CallStep::Attempt(SendAttempt(self.0))
    }

    /// There was no channel, at `elapsed` since the start of the call; that may be over in a moment.
    pub fn failed(self, why: SendError, elapsed: Duration) -> CallStep {
        let mut call = self.0;
        call.attempts += 1;
        call.again(elapsed, None, why.into())
    }
}

impl RetryPause {
    /// How long to pause.
    pub const fn pause(&self) -> Duration {
        self.pause
    }

    /// The pause is over.
    pub fn over(self) -> CallStep {
        CallStep::Open(OpenChannel(self.call))
    }

    /// The request is not to be sent again.
    pub fn give_up(self) -> CallStep {
        CallStep::Fail(self.failure)
    }
}

impl SendAttempt {
    /// How many attempts there are with this one.
    pub const fn number(&self) -> u32 {
        self.0.attempts + 1
    }

    /// The attempt ended without an answer, at `elapsed` since the start of the call.
    pub fn ended(self, sent: SendError, elapsed: Duration) -> CallStep {
        let mut call = self.0;
        call.attempts += 1;
        match sent {
            SendError::Refused(refusal) if call.may_choose(&refusal) => {
                call.refusals += 1;
                CallStep::Choose(ChooseCredential { call, refusal: Some(refusal) })
            }
            SendError::SessionLost if !call.reopened => {
                call.reopened = true;
                CallStep::Open(OpenChannel(call))
            }
            SendError::Busy(busy) => call.again(elapsed, Some(busy.after), sent.into()),
            SendError::Unsent(_) | SendError::Full(_) => call.again(elapsed, None, sent.into()),
            SendError::BrokenOff(_) | SendError::Unavailable(_) if call.repeatable => {
                call.again(elapsed, None, sent.into())
            }
            SendError::TimedOut => CallStep::Fail(Failure::TimedOut(call.deadline)),
            sent => CallStep::Fail(sent.into()),
        }
    }
}

impl SendError {
    /// A status with which no answer in MCP came.
    pub fn of_status(status: u16) -> Self {
        match status {
            502..=504 => Self::Unavailable(status),
            status => Self::NotMcp(format!("status {status}")),
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Refused(Refusal { status, credential, challenge }) => {
                Self::Refused { status, credential: credential.is_some(), challenge }
            }
            SendError::SessionLost => Self::SessionLost,
            SendError::Unsent(why) => Self::Unreachable(why),
            SendError::Full(why) => Self::NotConnected(why),
            SendError::Busy(busy) => Self::Busy(busy),
            SendError::Unavailable(status) => Self::Unavailable(status),
            SendError::BrokenOff(how) => Self::BrokenOff(how),
            SendError::TimedOut => Self::TimedOut(Duration::ZERO),
            SendError::NotMcp(what) => Self::NotMcp(what),
        }
    }
}

impl From<SendError> for Outcome {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Refused(refusal) if refusal.status == 401 => Self::Unauthorized(refusal.challenge),
            SendError::Refused(refusal) => Self::Forbidden(refusal.challenge),
            SendError::SessionLost => Self::Unsupported(404),
            SendError::Unsent(why) | SendError::Full(why) => Self::Unreachable(why),
            SendError::Busy(busy) => Self::of_status(busy.status),
            SendError::Unavailable(status) => Self::of_status(status),
            SendError::BrokenOff(_) => Self::ConnectionTerminated,
            SendError::TimedOut => Self::TimedOut,
            SendError::NotMcp(what) => Self::NotMcp(what),
        }
    }
}

impl CallState {
    /// Whether a refusal may be answered with another credential. Of a 401 to that one too the policy is told, for it may
    /// know what helps; the third ends the call.
    fn may_choose(&self, refusal: &Refusal) -> bool {
        let most = if refusal.status == 401 { 2 } else { u32::from(refusal.wants_scopes()) };
        self.refusals < most
    }

    fn again(self, elapsed: Duration, hint: Option<Duration>, failure: Failure) -> CallStep {
        // No two calls fail after the same number of nanoseconds; the factor (2³² ÷ φ) spreads them over all of `u32`.
        let random = elapsed.subsec_nanos().wrapping_mul(0x9e37_79b9);
        let pause = Backoff::CALL.after(self.attempts.saturating_sub(1)).pause(hint, random);
        if self.attempts >= MAX_ATTEMPTS || self.deadline.saturating_sub(elapsed) <= pause {
            CallStep::Fail(failure)
        } else {
            CallStep::Wait(RetryPause { call: self, pause, failure })
        }
    }
}

#[cfg(test)]
mod tests;

//! One attempt at an upstream, and its span where the call is traced.

use std::{borrow::Cow, sync::Arc, time::SystemTime};

use weir_flow::Failure;

use crate::{
    telemetry::{CallSpan, TraceParent},
    upstream::{Credential, SendError},
};

use super::drive::Stop;

/// What goes along with a request.
pub(super) struct Attempt<'a> {
    /// The credential to place.
    pub(super) credential: Option<&'a Credential>,
    /// The span that the upstream is told to have called; none if the call is not traced.
    pub(super) trace: Option<TraceParent>,
}

/// The spans of the attempts of one call. An attempt begins when a channel is looked for, and does not end with the head of
/// its reply but with the call.
pub(super) struct AttemptSpans<'a> {
    span: Option<&'a Arc<CallSpan>>,
    /// When a channel was looked for that nothing is sent on yet.
    opening: Option<SystemTime>,
}

impl<'a> AttemptSpans<'a> {
    pub(super) const fn new(span: Option<&'a Arc<CallSpan>>) -> Self {
        Self { span, opening: None }
    }

    /// A channel is looked for.
    pub(super) fn open(&mut self) {
        if self.span.is_some() {
            self.opening = Some(SystemTime::now());
        }
    }

    /// The request is sent: the ids that it has to name.
    pub(super) fn send(&mut self) -> Option<TraceParent> {
        self.span?.begin_attempt(self.opening.take().unwrap_or_else(SystemTime::now))
    }

    /// A reply has begun.
    pub(super) fn reply(&self, status: u16) {
        if let Some(span) = self.span {
            span.reply(status);
        }
    }

    /// The attempt has ended without a reply, or no channel was found.
    pub(super) fn fail(&mut self, why: &SendError) {
        if self.span.is_some() {
            self.end(kind(why), &why.to_string());
        }
    }

    /// No channel was found. That somebody must sign in, or that Weir has the answer, is no attempt.
    pub(super) fn stop(&mut self, stop: &Stop) {
        if let (Some(_), Stop::Failed(failure)) = (self.span, stop) {
            let kind = match failure {
                Failure::TimedOut(_) => "timeout",
                Failure::Policy(_) => "policy",
                _ => "unreachable",
            };
            self.end(kind.into(), &failure.to_string());
        }
    }

    fn end(&mut self, kind: Cow<'static, str>, why: &str) {
        let Some(span) = self.span else { return };
        if let Some(start) = self.opening.take() {
            span.begin_attempt(start);
        }
        span.fail_attempt(kind, why);
    }
}

/// What kind of failure it is (`error.type`): the status of HTTP where there is one, else one of few words.
fn kind(why: &SendError) -> Cow<'static, str> {
    let status = match why {
        SendError::Refused(refusal) => refusal.status,
        SendError::Busy(busy) => busy.status,
        SendError::Unavailable(status) => *status,
        SendError::SessionLost => return "session_lost".into(),
        SendError::Unsent(_) => return "unreachable".into(),
        SendError::Full(_) => return "limit".into(),
        SendError::BrokenOff(_) => return "broken_off".into(),
        SendError::TimedOut => return "timeout".into(),
        SendError::NotMcp(_) => return "protocol".into(),
    };
    status.to_string().into()
}

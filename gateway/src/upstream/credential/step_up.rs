//! How often an upstream may have a token made that allows more, whatever its policy says.
//!
//! An upstream that always wants one scope more would send its user to sign in for ever, and Weir to the authorization
//! server with every call (MCP 2026-07-28, "Step-Up Authorization": few retries, then it is a lasting refusal). Calls that
//! go well in between say nothing: a list may be free, and its tools not.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// How many steps there may be within [`WITHIN`]. A server that names its scopes one after the other needs as many as it has
/// kinds of tools; a person who signs in more often than this is being led in a circle.
const MOST: usize = 3;

/// Within which time.
const WITHIN: Duration = Duration::from_secs(600);

/// The steps for the credential of one owner; `T` tells one token from the next.
pub(super) struct StepUpLimiter<T>(Mutex<VecDeque<(Instant, T)>>);

impl<T> Default for StepUpLimiter<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: PartialEq> StepUpLimiter<T> {
    /// Whether a token may be replaced by one that allows more. As long as there is no other token it is the same step,
    /// however often it is asked for.
    pub(super) fn take(&self, token: T, now: Instant) -> bool {
        let mut steps = self.0.lock();
        while steps.front().is_some_and(|(at, _)| now.duration_since(*at) >= WITHIN) {
            steps.pop_front();
        }
        if steps.back().is_some_and(|(_, last)| *last == token) {
            return true;
        }
        if steps.len() >= MOST {
            return false;
        }
        steps.push_back((now, token));
        true
    }
}

/// What is said when there were too many.
pub(super) fn too_many(upstream: &str, scope: Option<&str>) -> String {
    let scope = scope.filter(|scope| !scope.is_empty() && scope.len() <= 200 && !scope.contains(char::is_control));
    let asked = scope.map_or_else(String::new, |scope| format!(" (now {scope})"));
    format!(
        "{upstream} has asked for more scopes {MOST} times within {} minutes and does so again{asked}; give it all that it \
         needs with `oauth.scopes`, or ask its owner",
        WITHIN.as_secs() / 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_stepped_up_once_and_not_too_many_in_a_row() {
        let (steps, start) = (StepUpLimiter::default(), Instant::now());
        for token in 0..3 {
            for _ in 0..10 {
                assert!(steps.take(token, start), "{token}");
            }
        }
        assert!(steps.take(2, start), "it is the same step");
        assert!(!steps.take(3, start));
        assert!(!steps.take(3, start + WITHIN - Duration::from_secs(1)));
        assert!(steps.take(3, start + WITHIN));
    }
}

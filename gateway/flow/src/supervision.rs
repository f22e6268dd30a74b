//! Where an upstream stands, from all that is known of it.
//!
//! Several look at an upstream: those who keep its lists, in each era; the probe that asks whether it still answers; and
//! the breaker of its calls. Each says what it has seen ([`Observation`]). Here is decided what that comes to, so that no
//! word of one wipes out another's.
//!
//! ```text
//! configured → connecting → healthy ⇄ degraded → error
//!                  ↓            ↑________________|
//!        auth_required, auth_expired
//! ```
//!
//! An upstream that was reached is `degraded` when it is lost, and an `error` once it cannot be reached again. While it is
//! reached, it is `degraded` for as long as anybody has something against it.

use std::{fmt, time::Instant};

/// The state of an upstream's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamState {
    /// Known from the configuration, not tried yet.
    #[default]
    Configured,
    /// Being reached.
    Connecting,
    /// Answers.
    Healthy,
    /// Answered before, does not now; or answers, but not everything.
    Degraded,
    /// Cannot be reached; tried again from time to time.
    Error,
    /// Wants a credential that it has not been given.
    AuthRequired,
    /// The login that opened it has ended; wants a new one.
    AuthExpired,
}

/// What is wrong, and how one knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What kind of failure it is, in one word.
    pub class: &'static str,
    /// What was seen.
    pub why: String,
    /// When it is tried again; none if it is being tried.
    pub retry: Option<Instant>,
}

/// What somebody has seen of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Weir begins to reach it.
    Reaching,
    /// Weir has its lists, but for those that are in trouble.
    Reached(Option<Trouble>),
    /// Weir cannot reach it.
    Unreached(Trouble),
    /// It wants a login; `ended` if it had one.
    Unauthorized {
        /// Whether it had one.
        ended: bool,
        /// What it said.
        trouble: Trouble,
    },
    /// It wants a login of each caller, so Weir cannot reach it by itself. That is no failure.
    OfEachCaller(Trouble),
    /// How it stands in an era that only some clients speak.
    InOtherEra(Option<Trouble>),
    /// Whether it answers the probe.
    Probed(Option<Trouble>),
    /// The same in the era that only some clients speak.
    ProbedInOtherEra(Option<Trouble>),
    /// Whether the breaker holds its calls back.
    Calls(Option<Trouble>),
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// What it was.
    pub from: UpstreamState,
    /// What it is.
    pub to: UpstreamState,
}

/// All that is known of an upstream.
#[derive(Clone, Debug, Default)]
pub struct Supervision {
    reach: Reach,
    /// How often in a row it could not be reached.
    failures: u32,
    in_other_era: Option<Trouble>,
    probe: Option<Trouble>,
    probe_in_other_era: Option<Trouble>,
    calls: Option<Trouble>,
}

#[derive(Clone, Debug, Default)]
enum Reach {
    #[default]
    Untried,
    Begun,
    Open(Option<Trouble>),
    /// It was open before, and could not be opened again once.
    Lost(Trouble),
    Down(Trouble),
    Unauthorized {
        ended: bool,
        trouble: Trouble,
    },
}

impl Trouble {
    /// One without a time of the next try.
    pub fn new(class: &'static str, why: impl Into<String>) -> Self {
        Self { class, why: why.into(), retry: None }
    }
}

impl Supervision {
    /// Takes note of what was seen. Says how the state changed, if it did.
    pub fn handle(&mut self, seen: Observation) -> Option<Transition> {
        let from = self.state();
        match seen {
            Observation::Reaching if matches!(self.reach, Reach::Untried) => self.reach = Reach::Begun,
            Observation::Reaching => {}
            Observation::Reached(partly) => {
                (self.reach, self.failures, self.probe) = (Reach::Open(partly), 0, None);
            }
            Observation::Unreached(trouble) => {
                self.failures = self.failures.saturating_add(1);
                self.reach = match self.reach {
                    Reach::Open(_) => Reach::Lost(trouble),
                    _ => Reach::Down(trouble),
                };
            }
            Observation::Unauthorized { ended, trouble } => {
                self.failures = self.failures.saturating_add(1);
                self.reach = Reach::Unauthorized { ended, trouble };
            }
            Observation::OfEachCaller(trouble) => {
                (self.reach, self.failures) = (Reach::Unauthorized { ended: false, trouble }, 0);
            }
            Observation::InOtherEra(trouble) => (self.in_other_era, self.probe_in_other_era) = (trouble, None),
            Observation::ProbedInOtherEra(trouble) => self.probe_in_other_era = trouble,
            Observation::Probed(trouble) => self.probe = trouble,
            Observation::Calls(trouble) => self.calls = trouble,
        }
        let to = self.state();
        (from != to).then_some(Transition { from, to })
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> UpstreamState {
        match &self.reach {
            Reach::Untried => UpstreamState::Configured,
            Reach::Begun => UpstreamState::Connecting,
            Reach::Open(_) if self.trouble().is_none() => UpstreamState::Healthy,
            Reach::Open(_) | Reach::Lost(_) => UpstreamState::Degraded,
            Reach::Down(_) => UpstreamState::Error,
            Reach::Unauthorized { ended: true, .. } => UpstreamState::AuthExpired,
            Reach::Unauthorized { ended: false, .. } => UpstreamState::AuthRequired,
        }
    }

    /// What is wrong; of several the one that concerns most.
    #[must_use]
    pub fn trouble(&self) -> Option<&Trouble> {
        match &self.reach {
            Reach::Untried | Reach::Begun => None,
            Reach::Lost(trouble) | Reach::Down(trouble) | Reach::Unauthorized { trouble, .. } => Some(trouble),
            Reach::Open(partly) => {
                let all = [&self.calls, &self.probe, partly, &self.in_other_era, &self.probe_in_other_era];
                all.into_iter().find_map(Option::as_ref)
            }
        }
    }

    /// How often in a row it could not be reached.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

impl UpstreamState {
    /// Whether it wants a credential that there is not.
    #[must_use]
    pub const fn wants_login(self) -> bool {
        matches!(self, Self::AuthRequired | Self::AuthExpired)
    }
}

impl fmt::Display for UpstreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configured => "configured",
            Self::Connecting => "connecting",
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Error => "error",
            Self::AuthRequired => "auth_required",
            Self::AuthExpired => "auth_expired",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trouble(class: &'static str) -> Trouble {
        Trouble::new(class, class)
    }

    fn after(seen: impl IntoIterator<Item = Observation>) -> Supervision {
        let mut supervision = Supervision::default();
        for one in seen {
            supervision.handle(one);
        }
        supervision
    }

    fn class(supervision: &Supervision) -> Option<&'static str> {
        supervision.trouble().map(|trouble| trouble.class)
    }

    #[test]
    fn an_upstream_comes_and_goes() {
        use Observation::{Reached, Reaching, Unauthorized, Unreached};
        use UpstreamState::{AuthExpired, Configured, Connecting, Degraded, Error, Healthy};
        let mut supervision = Supervision::default();
        for (seen, from, to) in [
            (Reaching, Configured, Connecting),
            (Unreached(trouble("unreachable")), Connecting, Error),
            (Reached(None), Error, Healthy),
            (Unreached(trouble("unreachable")), Healthy, Degraded),
            (Unreached(trouble("unreachable")), Degraded, Error),
            (Reached(Some(trouble("lists"))), Error, Degraded),
            (Reached(None), Degraded, Healthy),
            (Unauthorized { ended: true, trouble: trouble("authentication") }, Healthy, AuthExpired),
            (Reached(None), AuthExpired, Healthy),
        ] {
            assert_eq!(supervision.handle(seen), Some(Transition { from, to }));
        }
        assert_eq!(supervision.handle(Reaching), None, "it is reached");
        assert_eq!(supervision.handle(Reached(None)), None, "it was healthy before");
    }

    #[test]
    fn nobody_wipes_out_what_another_has_seen() {
        use Observation::{Calls, InOtherEra, Probed, Reached, Unreached};
        let reached = || [Observation::Reaching, Reached(None)];
        let other = after(reached().into_iter().chain([InOtherEra(Some(trouble("unreachable")))]));
        assert_eq!((other.state(), class(&other)), (UpstreamState::Degraded, Some("unreachable")));
        // Its lists are in trouble, and then its calls fail.
        let mut both = after([Reached(Some(trouble("lists"))), Calls(Some(trouble("calls")))]);
        assert_eq!(class(&both), Some("calls"));
        both.handle(Reached(Some(trouble("lists"))));
        assert_eq!(class(&both), Some("calls"), "lists that come say nothing of calls");
        both.handle(Calls(None));
        assert_eq!((both.state(), class(&both)), (UpstreamState::Degraded, Some("lists")));
        // Whoever cannot be reached is not better for an answer in the other era.
        let mut gone =
            after(reached().into_iter().chain([Unreached(trouble("timeout")), Unreached(trouble("timeout"))]));
        gone.handle(InOtherEra(None));
        gone.handle(Probed(None));
        // Who is silent in the other era and is given up there is not silent for ever.
        let mut silent = after([Reached(None), Observation::ProbedInOtherEra(Some(trouble("timeout")))]);
        silent.handle(InOtherEra(None));
        assert_eq!(silent.state(), UpstreamState::Healthy);
        assert_eq!((gone.state(), gone.failures()), (UpstreamState::Error, 2));
    }

    fn observation() -> impl Strategy<Value = Observation> {
        let maybe = || prop_oneof![Just(None), Just(Some(trouble("lists"))), Just(Some(trouble("calls")))];
        prop_oneof![
            Just(Observation::Reaching),
            maybe().prop_map(Observation::Reached),
            Just(Observation::Unreached(trouble("unreachable"))),
            any::<bool>().prop_map(|ended| Observation::Unauthorized { ended, trouble: trouble("authentication") }),
            Just(Observation::OfEachCaller(trouble("authentication"))),
            maybe().prop_map(Observation::InOtherEra),
            maybe().prop_map(Observation::Probed),
            maybe().prop_map(Observation::ProbedInOtherEra),
            maybe().prop_map(Observation::Calls),
        ]
    }

    proptest! {
        /// Whatever is seen: who has trouble is not healthy, who has none is, and what is reached whole and well is healthy.
        #[test]
        fn a_state_has_its_reason(seen in proptest::collection::vec(observation(), 0..20)) {
            let mut supervision = after(seen);
            let fine = matches!(
                supervision.state(),
                UpstreamState::Configured | UpstreamState::Connecting | UpstreamState::Healthy
            );
            prop_assert_eq!(fine, supervision.trouble().is_none());
            for seen in [
                Observation::Calls(None),
                Observation::InOtherEra(None),
                Observation::Reached(None),
            ] {
                supervision.handle(seen);
            }
            prop_assert_eq!((supervision.state(), supervision.failures()), (UpstreamState::Healthy, 0));
        }
    }
}

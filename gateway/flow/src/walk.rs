//! Reaching an upstream: a `connection` policy says what to try, the gateway tries it, until one way works or none is left.

use std::time::Duration;

use crate::facts::{Attempt, Candidate, Outcome, Step, Transport, UpstreamFacts};

/// How many attempts one walk may make, whatever the policy says.
///
/// The longest walk of the shipped policy (two eras of one transport and a second transport, each once more with a
/// credential) takes six.
pub const MAX_ATTEMPTS: usize = 8;

/// One walk from "unknown" to "connected" or "given up".
#[derive(Debug)]
pub struct Negotiation {
    upstream: UpstreamFacts,
    deadline: Duration,
    history: Vec<Attempt>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    how: Candidate,
    credential: bool,
    since: Duration,
}

/// What the gateway does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NegotiationStep {
    /// Ask the policy again: the history has grown.
    Ask,
    /// Try this way.
    Attempt {
        /// The way.
        how: Candidate,
        /// Get a new credential first, because the last one (or none) was refused.
        authorize: bool,
    },
    /// This way works.
    Connected(Candidate),
    /// No way is left; the text is for the operator.
    Stop(String),
}

impl Negotiation {
    /// Starts a walk that must end within `deadline`.
    pub fn new(upstream: UpstreamFacts, deadline: Duration) -> Self {
        Self { upstream, deadline, history: Vec::new(), current: None }
    }

    /// The upstream, as the policy is told of it.
    pub fn upstream(&self) -> &UpstreamFacts {
        &self.upstream
    }

    /// What has been tried so far, oldest first.
    pub fn history(&self) -> &[Attempt] {
        &self.history
    }

    /// Takes the policy's answer at `elapsed` since the start.
    pub fn handle_step(&mut self, step: Step, elapsed: Duration) -> NegotiationStep {
        let (how, authorize) = match step {
            Step::Attempt(how) => (how, false),
            Step::Authorize(how) => (how, true),
            Step::Stop(why) => return NegotiationStep::Stop(why),
        };
        if elapsed >= self.deadline {
            let (seconds, key) = (self.deadline.as_secs(), self.deadline_key());
            return NegotiationStep::Stop(format!("given up after {seconds} s (`{key}`); {}", self.tried()));
        }
        if self.history.len() >= MAX_ATTEMPTS {
            return NegotiationStep::Stop(format!("given up after {MAX_ATTEMPTS} attempts; {}", self.tried()));
        }
        if !self.carries(how.transport) {
            return NegotiationStep::Stop(format!(
                "its policy asked for {}, which this upstream cannot be reached by",
                how.transport
            ));
        }
        NegotiationStep::Attempt { how, authorize }
    }

    /// Notes that an attempt begins at `elapsed`, with or without a credential.
    pub fn begin(&mut self, how: Candidate, credential: bool, elapsed: Duration) {
        self.current = Some(Current { how, credential, since: elapsed });
    }

    /// Takes the end of the attempt that [`begin`](Self::begin) noted.
    pub fn handle_outcome(&mut self, outcome: Outcome, elapsed: Duration) -> NegotiationStep {
        let Some(Current { how, credential, since }) = self.current.take() else { return NegotiationStep::Ask };
        let connected = outcome == Outcome::Connected;
        let duration_ms = u32::try_from(elapsed.saturating_sub(since).as_millis()).unwrap_or(u32::MAX);
        self.history.push(Attempt { transport: how.transport, era: how.era, credential, outcome, duration_ms });
        if connected { NegotiationStep::Connected(how) } else { NegotiationStep::Ask }
    }

    fn carries(&self, transport: Transport) -> bool {
        self.upstream.required_transport.is_none_or(|required| required == transport)
            && (transport == Transport::Stdio) == self.upstream.url.is_none()
    }

    /// The key of the configuration that the deadline is from.
    const fn deadline_key(&self) -> &'static str {
        if self.upstream.url.is_none() { "timeouts.start" } else { "timeouts.overall" }
    }

    fn tried(&self) -> String {
        let tried: Vec<String> = self.history.iter().map(|a| format!("{} ({})", a.transport, a.era)).collect();
        if tried.is_empty() { "nothing was tried".into() } else { format!("tried {}", tried.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use weir_mcp::Era;

    use super::*;

    const HTTP: Candidate = Candidate { transport: Transport::Http, era: Era::Modern };
    const DEADLINE: Duration = Duration::from_secs(10);

    fn upstream(url: Option<&str>, required_transport: Option<Transport>) -> UpstreamFacts {
        UpstreamFacts {
            account: None,
            name: "docs".into(),
            url: url.map(Into::into),
            required_transport,
            required_era: None,
            transports: vec![Transport::Http, Transport::Stdio],
            settings: "{}".into(),
        }
    }

    #[test]
    fn history_grows_until_connected() {
        let mut walk = Negotiation::new(upstream(Some("http://x/"), None), DEADLINE);
        let at = Duration::from_millis;
        assert_eq!(
            walk.handle_step(Step::Attempt(HTTP), at(0)),
            NegotiationStep::Attempt { how: HTTP, authorize: false }
        );
        walk.begin(HTTP, false, at(0));
        assert_eq!(walk.handle_outcome(Outcome::Unsupported(404), at(40)), NegotiationStep::Ask);
        assert_eq!(walk.history().first().map(|a| a.duration_ms), Some(40));
        walk.begin(HTTP, true, at(50));
        assert_eq!(walk.handle_outcome(Outcome::Connected, at(60)), NegotiationStep::Connected(HTTP));
    }

    #[test]
    fn a_policy_that_never_stops_is_stopped() {
        let mut walk = Negotiation::new(upstream(Some("http://x/"), None), DEADLINE);
        for _ in 0..MAX_ATTEMPTS {
            assert!(matches!(walk.handle_step(Step::Attempt(HTTP), Duration::ZERO), NegotiationStep::Attempt { .. }));
            walk.begin(HTTP, false, Duration::ZERO);
            walk.handle_outcome(Outcome::TimedOut, Duration::ZERO);
        }
        assert!(matches!(walk.handle_step(Step::Attempt(HTTP), Duration::ZERO), NegotiationStep::Stop(_)));
    }

    #[test]
    fn a_late_step_is_not_taken() {
        let mut walk = Negotiation::new(upstream(Some("http://x/"), None), DEADLINE);
        let late = walk.handle_step(Step::Attempt(HTTP), DEADLINE);
        assert_eq!(late, NegotiationStep::Stop("given up after 10 s (`timeouts.overall`); nothing was tried".into()));
        let mut child = Negotiation::new(upstream(None, None), DEADLINE);
        let stdio = Candidate { transport: Transport::Stdio, era: Era::Modern };
        let late = child.handle_step(Step::Attempt(stdio), DEADLINE);
        assert_eq!(late, NegotiationStep::Stop("given up after 10 s (`timeouts.start`); nothing was tried".into()));
    }

    #[test]
    fn a_policy_cannot_leave_the_configured_transport() {
        let stdio = Candidate { transport: Transport::Stdio, era: Era::Legacy };
        let sse = Candidate { transport: Transport::Sse, era: Era::Legacy };
        let mut remote = Negotiation::new(upstream(Some("http://x/"), Some(Transport::Http)), DEADLINE);
        assert!(matches!(remote.handle_step(Step::Attempt(stdio), Duration::ZERO), NegotiationStep::Stop(_)));
        assert!(matches!(remote.handle_step(Step::Authorize(sse), Duration::ZERO), NegotiationStep::Stop(_)));
        let mut child = Negotiation::new(upstream(None, None), DEADLINE);
        assert!(matches!(child.handle_step(Step::Attempt(HTTP), Duration::ZERO), NegotiationStep::Stop(_)));
        assert!(matches!(child.handle_step(Step::Attempt(stdio), Duration::ZERO), NegotiationStep::Attempt { .. }));
    }
}

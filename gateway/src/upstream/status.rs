//! Where an upstream stands, in words for an operator.

use std::time::Instant;

use weir_flow::{BreakerState, Observation, Supervision, UpstreamState, facts::Transport};
use weir_mcp::Era;

use super::{ServerIdentity, Upstream, UpstreamTransport, crashes::CRASHED};

/// Where an upstream stands.
#[derive(Clone, Debug)]
pub struct Status {
    /// The state.
    pub state: UpstreamState,
    /// When it got into that state.
    pub since: Instant,
    /// The era that opened it.
    pub era: Option<Era>,
    /// The transport that opened it.
    pub transport: Option<Transport>,
    /// How many tools it offers.
    pub tools: Option<usize>,
    /// What is wrong; none while it is healthy.
    pub error: Option<String>,
    /// What kind of failure that is.
    pub error_class: Option<&'static str>,
    /// How often in a row it could not be reached.
    pub failures: u32,
    /// When it is tried again; none while it is reached.
    pub retry: Option<Instant>,
    /// What is not shown of its lists.
    pub warnings: Vec<String>,
    /// What it says of itself.
    pub identity: ServerIdentity,
}

/// What Weir has found when it opened an upstream last.
#[derive(Clone, Debug, Default)]
pub struct Opened {
    /// The era that opened it.
    pub era: Option<Era>,
    /// The transport that opened it.
    pub transport: Option<Transport>,
    /// How many tools it offers.
    pub tools: Option<usize>,
    /// What is not shown of its lists.
    pub warnings: Vec<String>,
    /// What it says of itself.
    pub identity: ServerIdentity,
}

/// What is known of one upstream.
pub(super) struct StatusRecord {
    supervision: Supervision,
    since: Instant,
    opened: Opened,
}

impl Default for StatusRecord {
    fn default() -> Self {
        Self { supervision: Supervision::default(), since: Instant::now(), opened: Opened::default() }
    }
}

impl Upstream {
    /// Its state, for `/readyz`. That its processes keep ending is its state until the next one has started well.
    pub fn status(&self) -> Status {
        let mut status = self.status.lock().read();
        if let Some((state, why)) = self.held.lock().clone() {
            (status.state, status.error, status.error_class) = (state, Some(why), Some("policy"));
        }
        let now = Instant::now();
        if let UpstreamTransport::Stdio { crashes, .. } = &self.way
            && let Some((crash_loop, of_principal)) = crashes.worst(now)
            && (crash_loop.until > now || !of_principal && status.state != UpstreamState::Healthy)
        {
            status.state = if of_principal { UpstreamState::Degraded } else { UpstreamState::Error };
            status.since = crash_loop.since.unwrap_or(status.since);
            (status.error, status.error_class) = (Some(crash_loop.why), Some(CRASHED));
            (status.failures, status.retry) = (crash_loop.count, status.retry.max(Some(crash_loop.until)));
        }
        status
    }

    /// Whether nothing is wrong with it. One that each caller signs in to is well while its calls pass.
    pub fn is_well(&self) -> bool {
        match self.status().state {
            UpstreamState::Healthy => true,
            UpstreamState::AuthRequired => self.is_personal && self.guard().breaker == BreakerState::Closed,
            _ => false,
        }
    }

    /// Takes note of what somebody has seen of it: the only way to change its state.
    pub fn observe(&self, seen: Observation) {
        let mut record = self.status.lock();
        if let Some(changed) = record.supervision.handle(seen) {
            record.since = Instant::now();
            let error = record.supervision.trouble().map(|trouble| trouble.why.as_str());
            tracing::debug!(upstream = self.name(), from = %changed.from, to = %changed.to, error, "state changed");
        }
    }

    /// Takes note of what Weir has found when it opened it.
    pub fn note_opened(&self, opened: Opened) {
        self.status.lock().opened = opened;
    }
}

impl StatusRecord {
    fn read(&self) -> Status {
        let Opened { era, transport, tools, warnings, identity } = self.opened.clone();
        let trouble = self.supervision.trouble();
        Status {
            state: self.supervision.state(),
            since: self.since,
            era,
            transport,
            tools,
            error: trouble.map(|trouble| trouble.why.clone()),
            error_class: trouble.map(|trouble| trouble.class),
            failures: self.supervision.failures(),
            retry: trouble.and_then(|trouble| trouble.retry),
            warnings,
            identity,
        }
    }
}

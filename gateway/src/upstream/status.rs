//! Where an upstream stands, in words for an operator.

use std::{fmt, time::Instant};

use weir_flow::facts::Transport;
use weir_mcp::Era;

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
    /// Answered before, does not now; being reached again.
    Degraded,
    /// Cannot be reached; tried again from time to time.
    Error,
    /// Wants a credential that it has not been given.
    AuthRequired,
    /// The login that opened it has ended; wants a new one.
    AuthExpired,
}

impl UpstreamState {
    /// Whether it wants a credential that there is not.
    pub const fn wants_login(self) -> bool {
        matches!(self, Self::AuthRequired | Self::AuthExpired)
    }
}

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
    /// What went wrong last; none while it is healthy.
    pub error: Option<String>,
    /// What kind of failure that is.
    pub error_class: Option<&'static str>,
    /// How often in a row it could not be reached.
    pub failures: u32,
    /// When it is tried again; none while it is reached.
    pub retry: Option<Instant>,
    /// What is not shown of its lists.
    pub warnings: Vec<String>,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            state: UpstreamState::default(),
            since: Instant::now(),
            era: None,
            transport: None,
            tools: None,
            error: None,
            error_class: None,
            failures: 0,
            retry: None,
            warnings: Vec::new(),
        }
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

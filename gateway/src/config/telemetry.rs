//! Where spans, metrics and the log are sent.

use std::time::Duration;

use super::{SafeUrl, Secret};

/// A collector of OpenTelemetry's traces, metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Its address for spans; none if calls are not traced.
    pub traces: Option<SafeUrl>,
    /// Its address for metrics; none if they are not sent.
    pub metrics: Option<SafeUrl>,
    /// Its address for the log; none if that is not sent.
    pub logs: Option<SafeUrl>,
    /// Headers for each request, names in lower case.
    pub headers: Vec<(String, Secret)>,
    /// What Weir is called there (`service.name`).
    pub service_name: String,
    /// Which share of the calls is traced that clients do not decide of, in 1/2³².
    pub sample: u64,
    /// Whether a client that sends a trace context decides of its calls.
    pub parent_based: bool,
    /// How many calls are traced in a second.
    pub traces_per_second: usize,
    /// Whether spans say who called.
    pub principal: bool,
    /// How often metrics are sent.
    pub interval: Duration,
}

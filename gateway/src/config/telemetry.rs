//! Where spans and metrics are sent.

use std::time::Duration;

use super::{SafeUrl, Secret};

/// A collector of OpenTelemetry's traces and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Its address for spans; none if calls are not traced.
    pub traces: Option<SafeUrl>,
    /// Its address for metrics; none if they are not sent.
    pub metrics: Option<SafeUrl>,
    /// Headers for each request, names in lower case.
    pub headers: Vec<(String, Secret)>,
    /// What Weir is called there (`service.name`).
    pub service_name: String,
    /// Which share of the calls without a trace context is traced, in 1/2³².
    pub sample: u64,
    /// Whether spans say who called.
    pub principal: bool,
    /// How often metrics are sent.
    pub interval: Duration,
}

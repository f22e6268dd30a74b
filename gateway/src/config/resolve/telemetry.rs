//! Where spans, metrics and the log are sent.

use std::time::Duration;

use super::{context::Context, http};
use crate::config::quantity::Period;
use crate::config::read::Setting;
use crate::config::value::{Count, Share};
use crate::config::written::Root;
use crate::config::{SafeUrl, TelemetryConfig};

/// How many calls are traced in a second unless the configuration says otherwise.
const TRACES_PER_SECOND: usize = 200;

/// How often metrics are sent unless the configuration says otherwise, as in OpenTelemetry's SDKs.
const INTERVAL: Duration = Duration::from_secs(60);

/// How often they may be sent.
const SHORTEST: Duration = Duration::from_secs(1);

pub(super) fn telemetry(root: &Root, context: &mut Context<'_, '_>) -> Option<TelemetryConfig> {
    const LIKE: &str = "endpoint = \"http://collector.example.com:4318\"";
    let at = root.telemetry.set()?.value.otlp.set()?;
    let written = &at.value;
    if matches!(written.endpoint, Setting::Absent) {
        context.report.add(at.key.clone(), "`otlp` needs an `endpoint`", Some(LIKE.to_owned()));
    }
    let headers = http::headers(&written.headers, None, context);
    let service_name = match written.service_name.set() {
        Some(name) => context.expand(name)?.value.expose().to_owned(),
        None => "weir".to_owned(),
    };
    let (traces, metrics, logs) = (written.traces.or(true), written.metrics.or(true), written.logs.or(false));
    if !traces && !metrics && !logs {
        let hint = "leave `otlp` out to send nothing".to_owned();
        context.report.add(at.key.clone(), "neither traces nor metrics nor the log are sent", Some(hint));
    }
    let interval = written.interval.or(Period(INTERVAL)).0;
    if let Some(at) = written.interval.set().filter(|_| interval < SHORTEST) {
        context.report.add(at.span.clone(), "metrics are sent once a second at most", Some("\"1s\"".to_owned()));
    }
    let endpoint = http::address(written.endpoint.set()?, LIKE, context)?;
    if http::has_credential(&written.headers) {
        http::warn_if_cleartext(&endpoint, &at.key, context);
    }
    let signal = |name: &str, is_sent: bool| is_sent.then(|| signal(&endpoint, name)).flatten();
    Some(TelemetryConfig {
        traces: signal("traces", traces),
        metrics: signal("metrics", metrics),
        logs: signal("logs", logs),
        headers,
        service_name,
        sample: written.sample.or(Share::ALL).0,
        traces_per_second: written.traces_per_second.or(Count(TRACES_PER_SECOND)).0,
        parent_based: written.parent_based.or(true),
        principal: written.principal.or(false),
        interval,
    })
}

/// The address of a signal below the endpoint (OTLP 1.5, "OTLP/HTTP Request").
fn signal(endpoint: &SafeUrl, name: &str) -> Option<SafeUrl> {
    endpoint.below(&["v1", name])
}

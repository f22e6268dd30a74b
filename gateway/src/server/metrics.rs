//! The counters of the gateway in the text format of `OpenMetrics` 1.0, which Prometheus reads.
//!
//! Labels hold names of the configuration and fixed words, nothing that a client sends. So there are as many time series
//! as the configuration makes.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelValue, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use weir_flow::UpstreamState;

use crate::{
    counters::{Counters, LIMITS_REACHED, PROCESS_EXITS, PROCESS_STARTS, TOKEN_RENEWALS},
    http::HeaderValue,
    quota::Quota,
    telemetry::metrics::{CallMetrics, OWN_CALLS, PolicyMetrics},
    upstream::Upstream,
};

use super::App;

pub(super) const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// All metrics of a gateway that has run for so long.
pub(super) fn text(app: &Arc<App>, uptime: Duration) -> Bytes {
    let mut registry = Registry::with_prefix("weir");
    registry.register_collector(Box::new(Scrape { app: Arc::clone(app), uptime }));
    let mut text = String::new();
    // Only a writer fails, and a string is none that does.
    encode(&mut text, &registry).unwrap_or_default();
    text.into()
}

/// What is read when Prometheus asks.
struct Scrape {
    app: Arc<App>,
    uptime: Duration,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").field("uptime", &self.uptime).finish_non_exhaustive()
    }
}

impl Collector for Scrape {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        gauge(&mut to, "uptime_seconds", "How long the gateway has run", [([("", ""); 0], self.uptime.as_secs())])?;
        let build = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
        gauge(&mut to, "build", "The version that runs; always 1", build)?;
        let snapshot = self.app.proxy.snapshot();
        let upstreams: Vec<&Upstream> = snapshot.upstreams().map(|upstream| &**upstream).collect();
        calls(&mut to, &upstreams)?;
        states(&mut to, &upstreams)?;
        let admission = self.app.proxy.admission();
        let quotas: Vec<&Quota> = admission.quotas().chain([self.app.proxy.sessions().quota()]).collect();
        limits(&mut to, &quotas)?;
        policies(&mut to)
    }
}

/// The finished calls of each upstream; those that Weir answered by itself have no name in `upstream`.
fn calls(to: &mut DescriptorEncoder<'_>, upstreams: &[&Upstream]) -> fmt::Result {
    let all = || upstreams.iter().map(|upstream| (upstream.name(), &upstream.calls)).chain([("", &OWN_CALLS)]);
    let outcomes = all().flat_map(|(upstream, calls)| {
        calls.outcomes().map(move |(outcome, count)| {
            ([("upstream", upstream), ("outcome", outcome.text()), ("blame", outcome.blame())], count)
        })
    });
    counter(to, "calls", "Finished calls", outcomes)?;
    let attempts = all().map(|(upstream, calls)| ([("upstream", upstream)], calls.attempts()));
    counter(to, "attempts", "Requests sent to upstreams or tried to", attempts)?;
    latency(to, all())
}

fn latency<'a>(to: &mut DescriptorEncoder<'_>, all: impl Iterator<Item = (&'a str, &'a CallMetrics)>) -> fmt::Result {
    let help = "From the end of the request to the end of the answer";
    let mut metric = to.encode_descriptor("call_duration_seconds", help, None, MetricType::Histogram)?;
    for (upstream, calls) in all {
        let latency = calls.latency();
        let labels = [("upstream", upstream)];
        metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
            latency.seconds,
            latency.count,
            &latency.buckets,
            None,
        )?;
    }
    Ok(())
}

/// How each upstream stands.
fn states(to: &mut DescriptorEncoder<'_>, upstreams: &[&Upstream]) -> fmt::Result {
    let statuses: Vec<_> = upstreams.iter().map(|upstream| (upstream.name(), upstream.status())).collect();
    let healthy = statuses
        .iter()
        .map(|(name, status)| ([("upstream", *name)], u64::from(status.state == UpstreamState::Healthy)));
    gauge(to, "upstream_healthy", "1 while the upstream is healthy, else 0", healthy)?;
    let failures = statuses.iter().map(|(name, status)| ([("upstream", *name)], u64::from(status.failures)));
    gauge(to, "upstream_failures", "How often in a row the upstream could not be reached", failures)?;
    let processes = upstreams.iter().map(|upstream| ([("upstream", upstream.name())], upstream.processes() as u64));
    gauge(to, "upstream_processes", "Child processes that run", processes)?;
    let upstream = |each: &Counters| each.values().into_iter().map(|(name, _, count)| ([("upstream", name)], count));
    let help = "Child processes that Weir started";
    counter(to, "upstream_process_starts", help, upstream(&PROCESS_STARTS))?;
    let help = "Child processes that ended by themselves";
    counter(to, "upstream_process_exits", help, upstream(&PROCESS_EXITS))?;
    let renewals = TOKEN_RENEWALS.values().into_iter();
    let renewals =
        renewals.map(|(name, outcome, count)| ([("upstream", name), ("outcome", outcome.to_owned())], count));
    counter(to, "token_renewals", "Tokens that Weir renewed or obtained for an upstream", renewals)
}

/// What policies were asked, and how long they took.
fn policies(to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all = PolicyMetrics::all();
    let each = |read: fn(&PolicyMetrics) -> u64| {
        all.iter().map(move |(name, policy)| ([("policy", name.as_str())], read(policy)))
    };
    counter(to, "policy_decisions", "Questions that a policy worked on", each(PolicyMetrics::decisions))?;
    counter(to, "policy_failures", "Questions without a usable answer", each(PolicyMetrics::failures))?;
    gauge(to, "policy_waiting", "Questions that wait for an instance", each(PolicyMetrics::waiting))?;
    let help = "How long a policy worked on its questions";
    let mut metric = to.encode_descriptor("policy_seconds", help, None, MetricType::Counter)?;
    for (name, policy) in &all {
        let labels = [("policy", name.as_str())];
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&policy.time().as_secs_f64(), None)?;
    }
    Ok(())
}

/// How much of what is limited is in use.
fn limits(to: &mut DescriptorEncoder<'_>, quotas: &[&Quota]) -> fmt::Result {
    let each = |read: fn(&Quota) -> u64| quotas.iter().map(move |quota| ([("limit", quota.name())], read(quota)));
    gauge(to, "limit_used", "How many there are", each(|quota| quota.used() as u64))?;
    let bounded = quotas.iter().filter(|quota| quota.shares().total != usize::MAX);
    let most = bounded.map(|quota| ([("limit", quota.name())], quota.shares().total as u64));
    gauge(to, "limit_maximum", "How many there may be in all", most)?;
    let reached = LIMITS_REACHED.values().into_iter().map(|(limit, _, count)| ([("limit", limit)], count));
    counter(to, "limit_reached", "How often a limit was reached", reached)
}

/// One metric, a value for each set of labels.
fn gauge<const N: usize, L: EncodeLabelValue>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'static str, L); N], u64)>,
) -> fmt::Result {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        // The trait is for signed numbers and fractions only.
        metric.encode_family(&labels)?.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
    }
    Ok(())
}

fn counter<const N: usize, L: EncodeLabelValue>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'static str, L); N], u64)>,
) -> fmt::Result {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

//! The counters of the gateway: in the text format of `OpenMetrics` 1.0, which Prometheus reads, and as OTLP has them.
//!
//! Labels hold names of the configuration and fixed words, nothing that a client sends. So there are as many time series
//! as the configuration makes.

mod otlp;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelValue, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::{
    counters::{
        CALLS_NOT_TRACED, Counters, EVENTS_NOT_COPIED, LIMITS_REACHED, LIST_REFRESHES, PROCESS_EXITS, PROCESS_STARTS,
        TOKEN_RENEWALS,
    },
    http::HeaderValue,
    quota::Quota,
    telemetry::{
        export_queue::{LOGS, SPANS},
        metrics::{CallMetrics, Latency, OWN_CALLS, PolicyMetrics},
    },
    upstream::Upstream,
};

use super::App;

use otlp::OtlpMetrics;

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

/// The same as OTLP has them. All exports name the same `start`: another one says that the sums begin anew.
pub(super) fn otlp(app: &Arc<App>, start: SystemTime, uptime: Duration) -> Vec<Value> {
    let mut metrics = OtlpMetrics::new(start);
    // Nothing is written there that may fail.
    Scrape { app: Arc::clone(app), uptime }.add_to(&mut metrics).unwrap_or_default();
    metrics.finish()
}

/// Where metrics go.
trait MetricSink {
    /// Adds one metric, with a value for each set of labels.
    fn add<const N: usize, L: EncodeLabelValue + AsRef<str>>(
        &mut self,
        metric: MetricName<'_>,
        values: impl IntoIterator<Item = ([(&'static str, L); N], MetricValue)>,
    ) -> fmt::Result;
}

/// What a metric is called, without `weir_` in front.
struct MetricName<'a> {
    kind: MetricType,
    name: &'a str,
    help: &'a str,
}

/// What a metric comes to for one set of labels.
enum MetricValue {
    Number(u64),
    Seconds(f64),
    Latency(Latency),
}

impl MetricSink for DescriptorEncoder<'_> {
    fn add<const N: usize, L: EncodeLabelValue + AsRef<str>>(
        &mut self,
        MetricName { kind, name, help }: MetricName<'_>,
        values: impl IntoIterator<Item = ([(&'static str, L); N], MetricValue)>,
    ) -> fmt::Result {
        let is_gauge = matches!(kind, MetricType::Gauge);
        let mut metric = self.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            let mut family = metric.encode_family(&labels)?;
            match value {
                // The trait is for signed numbers and fractions only.
                MetricValue::Number(value) if is_gauge => {
                    family.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
                }
                MetricValue::Number(value) => family.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
                MetricValue::Seconds(value) => family.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
                MetricValue::Latency(Latency { seconds, count, buckets }) => {
                    family.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }
}

/// What is read when somebody asks.
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
        self.add_to(&mut to)
    }
}

impl Scrape {
    fn add_to(&self, to: &mut impl MetricSink) -> fmt::Result {
        gauge(to, "uptime_seconds", "How long the gateway has run", [([("", ""); 0], self.uptime.as_secs())])?;
        if let Ok(runtime) = Handle::try_current() {
            let tasks = runtime.metrics().num_alive_tasks() as u64;
            gauge(to, "tasks", "Asynchronous tasks that have not ended", [([("", ""); 0], tasks)])?;
        }
        let build = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
        gauge(to, "build", "The version that runs; always 1", build)?;
        let snapshot = self.app.proxy.snapshot();
        let upstreams: Vec<&Upstream> = snapshot.upstreams().map(|upstream| &**upstream).collect();
        calls(to, &upstreams)?;
        states(to, &upstreams)?;
        let admission = self.app.proxy.admission();
        let quotas: Vec<&Quota> = admission.quotas().chain([self.app.proxy.sessions().quota()]).collect();
        limits(to, &quotas)?;
        for (name, help, count) in [
            ("spans_dropped", "Spans that no collector got", SPANS.dropped()),
            (
                "calls_not_traced",
                "Calls that are not traced because there are too many",
                CALLS_NOT_TRACED.load(Relaxed),
            ),
            ("logs_dropped", "Records of the log that no collector got", LOGS.dropped()),
            (
                "replay_events_not_copied",
                "Events of streams that the shared store has no copy of",
                EVENTS_NOT_COPIED.load(Relaxed),
            ),
        ] {
            counter(to, name, help, [([("", ""); 0], count)])?;
        }
        let waiting =
            [("spans", &SPANS), ("logs", &LOGS)].map(|(what, queue)| ([("signal", what)], queue.len() as u64));
        gauge(to, "export_waiting", "Spans and records of the log that wait for the collector", waiting)?;
        policies(to)
    }
}

/// The finished calls of each upstream; those that Weir answered by itself have no name in `upstream`.
fn calls(to: &mut impl MetricSink, upstreams: &[&Upstream]) -> fmt::Result {
    let all = || upstreams.iter().map(|upstream| (upstream.name(), &upstream.calls)).chain([("", &OWN_CALLS)]);
    let outcomes = all().flat_map(|(upstream, calls)| {
        calls.outcomes().map(move |(outcome, count)| {
            ([("upstream", upstream), ("outcome", outcome.text()), ("blame", outcome.blame())], count)
        })
    });
    counter(to, "calls", "Finished calls", outcomes)?;
    let attempts = all().map(|(upstream, calls)| ([("upstream", upstream)], calls.attempts()));
    counter(to, "attempts", "Requests sent to upstreams or tried to", attempts)?;
    let shadowed = all().map(|(upstream, calls)| ([("upstream", upstream)], calls.shadowed()));
    counter(to, "calls_shadowed", "Calls that shadow mode would have decided otherwise", shadowed)?;
    latency(to, all())
}

fn latency<'a>(to: &mut impl MetricSink, all: impl Iterator<Item = (&'a str, &'a CallMetrics)>) -> fmt::Result {
    let help = "From the end of the request to the end of the answer";
    let metric = MetricName { kind: MetricType::Histogram, name: "call_duration_seconds", help };
    to.add(metric, all.map(|(upstream, calls)| ([("upstream", upstream)], MetricValue::Latency(calls.latency()))))
}

/// How each upstream stands.
fn states(to: &mut impl MetricSink, upstreams: &[&Upstream]) -> fmt::Result {
    let statuses: Vec<_> = upstreams.iter().map(|upstream| (upstream.name(), upstream.status())).collect();
    let healthy = upstreams.iter().map(|upstream| ([("upstream", upstream.name())], u64::from(upstream.is_well())));
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
    let outcomes = |each: &Counters| {
        let each = each.values().into_iter();
        each.map(|(name, outcome, count)| ([("upstream", name), ("outcome", outcome.to_owned())], count))
    };
    let help = "How often the lists of an upstream were fetched for all callers";
    counter(to, "list_refreshes", help, outcomes(&LIST_REFRESHES))?;
    counter(to, "token_renewals", "Tokens that Weir renewed or obtained for an upstream", outcomes(&TOKEN_RENEWALS))
}

/// What policies were asked, and how long they took.
fn policies(to: &mut impl MetricSink) -> fmt::Result {
    let all = PolicyMetrics::all();
    let each = |read: fn(&PolicyMetrics) -> u64| {
        all.iter().map(move |(name, policy)| ([("policy", name.as_str())], read(policy)))
    };
    counter(to, "policy_decisions", "Questions that a policy worked on", each(PolicyMetrics::decisions))?;
    counter(to, "policy_failures", "Questions without a usable answer", each(PolicyMetrics::failures))?;
    gauge(to, "policy_waiting", "Questions that wait for an instance", each(PolicyMetrics::waiting))?;
    let help = "Upstreams at which a policy is disabled, because it traps time and again";
    gauge(to, "policy_disabled", help, each(PolicyMetrics::disabled))?;
    let help = "Entries of lists that a policy in shadow mode would have hidden or changed";
    counter(to, "policy_entries_shadowed", help, each(PolicyMetrics::entries_shadowed))?;
    let help = "How long a policy worked on its questions";
    let metric = MetricName { kind: MetricType::Counter, name: "policy_seconds", help };
    let seconds = |policy: &PolicyMetrics| MetricValue::Seconds(policy.time().as_secs_f64());
    to.add(metric, all.iter().map(|(name, policy)| ([("policy", name.as_str())], seconds(policy))))
}

/// How much of what is limited is in use.
fn limits(to: &mut impl MetricSink, quotas: &[&Quota]) -> fmt::Result {
    let each = |read: fn(&Quota) -> u64| quotas.iter().map(move |quota| ([("limit", quota.name())], read(quota)));
    gauge(to, "limit_used", "How many there are", each(|quota| quota.used() as u64))?;
    let bounded = quotas.iter().filter(|quota| quota.shares().total != usize::MAX);
    let most = bounded.map(|quota| ([("limit", quota.name())], quota.shares().total as u64));
    gauge(to, "limit_maximum", "How many there may be in all", most)?;
    let reached = LIMITS_REACHED.values().into_iter().map(|(limit, _, count)| ([("limit", limit)], count));
    counter(to, "limit_reached", "How often a limit was reached", reached)
}

/// One metric, a value for each set of labels.
fn gauge<const N: usize, L: EncodeLabelValue + AsRef<str>>(
    to: &mut impl MetricSink,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'static str, L); N], u64)>,
) -> fmt::Result {
    let values = values.into_iter().map(|(labels, value)| (labels, MetricValue::Number(value)));
    to.add(MetricName { kind: MetricType::Gauge, name, help }, values)
}

fn counter<const N: usize, L: EncodeLabelValue + AsRef<str>>(
    to: &mut impl MetricSink,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'static str, L); N], u64)>,
) -> fmt::Result {
    let values = values.into_iter().map(|(labels, value)| (labels, MetricValue::Number(value)));
    to.add(MetricName { kind: MetricType::Counter, name, help }, values)
}

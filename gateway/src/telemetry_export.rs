//! Sends spans and metrics to a collector of OpenTelemetry, beside the calls.
//!
//! No call waits for a collector. Spans wait for it in a bounded queue; the oldest are dropped when that is full. Metrics
//! are sums since the start, so the next request makes up for one that failed.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use weir_flow::Backoff;

use crate::{
    config::TelemetryConfig,
    http::{Error, HttpClient},
    otlp::{Collector, Rejected, Sent},
    task,
    telemetry::{
        LogThrottle,
        otlp::{metric_request, resource, trace_request},
        sample,
        span_queue::{BATCH, SPANS},
    },
};

/// How long a span waits for others, so that they are sent together.
const GATHER: Duration = Duration::from_secs(1);
/// How long the last spans may take, and how long the last metrics after them.
const LAST_SPANS: Duration = Duration::from_secs(3);
const LAST_METRICS: Duration = Duration::from_secs(2);

/// What reads the metrics of the gateway, each as OTLP has it.
pub type ReadMetrics = Arc<dyn Fn() -> Vec<Value> + Send + Sync>;

/// Sends what the configuration in force wants, until it is closed.
pub struct TelemetryExport {
    settings: TelemetrySettings,
    ended: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Puts another configuration in force. Clones are the same.
#[derive(Clone, Default)]
pub struct TelemetrySettings(Arc<watch::Sender<Option<TelemetryConfig>>>);

/// What one configuration sends.
struct Exporter {
    resource: Value,
    spans: Option<Signal>,
    metrics: Option<Signal>,
    read_metrics: ReadMetrics,
    interval: Duration,
    /// What a request was made of that is not taken yet.
    pending: Vec<Bytes>,
    /// How many spans a request has at most: fewer where the collector finds them too many.
    batch: usize,
    rejecting: LogThrottle,
}

/// One of the two, at its address.
struct Signal {
    collector: Collector,
    name: &'static str,
    next: Instant,
    backoff: Backoff,
    /// Whether the last request has failed, and whether the log was told so.
    is_failing: bool,
    was_told: bool,
}

impl TelemetrySettings {
    /// Puts a configuration in force; without one nothing is traced and nothing is sent.
    pub fn apply(&self, config: Option<TelemetryConfig>) {
        let traced = config.as_ref().filter(|config| config.traces.is_some());
        sample(traced.map(|config| config.sample), traced.is_some_and(|config| config.principal));
        self.0.send_if_modified(|now| std::mem::replace(now, config.clone()) != config);
    }
}

impl TelemetryExport {
    /// Begins to send what `settings` say, with the metrics that are read.
    pub fn start(settings: TelemetrySettings, read_metrics: ReadMetrics) -> Self {
        let (ended, over) = watch::channel(false);
        // Two processes of one service are told apart by it.
        let instance = format!("{:016x}", getrandom::u64().unwrap_or_default());
        let task = tokio::spawn(run(settings.0.subscribe(), over, read_metrics, instance));
        Self { settings, ended, task }
    }

    /// Sends what is left, if that takes no longer than [`LAST_SPANS`] and [`LAST_METRICS`].
    pub async fn close(self) {
        self.ended.send_replace(true);
        // A panic there is in the log.
        drop(self.task.await);
        drop(self.settings);
    }
}

async fn run(
    mut settings: watch::Receiver<Option<TelemetryConfig>>,
    ended: watch::Receiver<bool>,
    read_metrics: ReadMetrics,
    instance: String,
) {
    let mut pending = Vec::new();
    loop {
        let config = settings.borrow_and_update().clone();
        let made = config.map(|config| Exporter::new(&config, &read_metrics, &instance)).transpose();
        let mut exporter = made.unwrap_or_else(|why| {
            tracing::error!("the address of `telemetry.otlp` cannot be used: {why}");
            None
        });
        if let Some(exporter) = &mut exporter {
            exporter.pending = std::mem::take(&mut pending);
        }
        let work = task::or_never(exporter.as_mut().map(Exporter::run));
        let is_over = tokio::select! {
            over = task::until(ended.clone(), work) => over.is_none(),
            changed = settings.changed() => changed.is_err(),
        };
        let Some(mut exporter) = exporter else {
            if is_over {
                return;
            }
            continue;
        };
        if is_over || settings.borrow().is_none() {
            exporter.finish().await;
        }
        if is_over {
            return;
        }
        pending = exporter.pending;
    }
}

impl Exporter {
    fn new(config: &TelemetryConfig, read_metrics: &ReadMetrics, instance: &str) -> Result<Self, Error> {
        let client = HttpClient::new();
        let signal = |url, name| {
            let collector = Collector::new(url, &config.headers, client.clone())?;
            let (next, backoff) = (Instant::now(), Backoff::CONNECT);
            Ok::<_, Error>(Signal { collector, name, next, backoff, is_failing: false, was_told: false })
        };
        Ok(Self {
            resource: resource(&config.service_name, Some(instance)),
            spans: config.traces.as_ref().map(|url| signal(url, "spans")).transpose()?,
            metrics: config.metrics.as_ref().map(|url| signal(url, "metrics")).transpose()?,
            read_metrics: Arc::clone(read_metrics),
            interval: config.interval,
            pending: Vec::new(),
            batch: BATCH,
            rejecting: LogThrottle::default(),
        })
    }

    async fn run(&mut self) {
        loop {
            let spans = self.spans.as_ref().map(|signal| signal.next);
            let metrics = self.metrics.as_ref().map(|signal| signal.next);
            let is_free = self.spans.as_ref().is_some_and(|signal| !signal.is_failing);
            tokio::select! {
                () = task::or_never(spans.map(sleep_until)) => self.send_spans().await,
                () = SPANS.filled(), if is_free => self.send_spans().await,
                () = task::or_never(metrics.map(sleep_until)) => self.send_metrics().await,
            };
        }
    }

    /// Sends the spans of one request; false if there are none, or they have to wait. Spans that are given up make way for
    /// the next ones. What is dropped in the middle is sent again by the next call.
    async fn send_spans(&mut self) -> bool {
        let Some(signal) = &mut self.spans else { return false };
        signal.next = Instant::now() + GATHER;
        if self.pending.is_empty() {
            self.pending = SPANS.take(self.batch);
        }
        if self.pending.is_empty() {
            return false;
        }
        let count = self.pending.len().min(self.batch);
        let sent =
            signal.collector.post(trace_request(&self.resource, self.pending[..count].iter().map(|span| &span[..])));
        match sent.await {
            Sent::Taken(rejected) => {
                self.pending.drain(..count);
                if let Some(rejected) = rejected {
                    SPANS.note_dropped(rejected.count);
                    self.note_rejected("spans", &rejected);
                }
                self.succeed(|exporter| &mut exporter.spans);
                if !self.pending.is_empty() || SPANS.len() >= self.batch {
                    self.spans.iter_mut().for_each(|signal| signal.next = Instant::now());
                }
            }
            Sent::Refused { status: 413 } if count > 1 => {
                self.batch = count / 2;
                signal.next = Instant::now();
            }
            Sent::Refused { status } => self.give_up(count, &format!("status {status}")),
            // Any other status is one that OTLP does not let Weir try again.
            Sent::Failed { why, status: None | Some(429 | 502..=504), pause } => {
                signal.next = Instant::now() + signal.pause(pause);
                self.fail(|exporter| &mut exporter.spans, &why);
                return false;
            }
            Sent::Failed { why, .. } => self.give_up(count, &why),
        }
        true
    }

    /// Sends the metrics; false if they are not taken.
    async fn send_metrics(&mut self) -> bool {
        let Some(signal) = &mut self.metrics else { return false };
        let now = Instant::now();
        signal.next = now + self.interval;
        let sent = signal.collector.post(metric_request(&self.resource, &(self.read_metrics)())).await;
        let (why, pause) = match sent {
            Sent::Taken(rejected) => {
                if let Some(rejected) = rejected {
                    self.note_rejected("metrics", &rejected);
                }
                self.succeed(|exporter| &mut exporter.metrics);
                return true;
            }
            Sent::Refused { status } => (format!("status {status}"), None),
            Sent::Failed { why, status, pause } => {
                (why, matches!(status, None | Some(429 | 502..=504)).then_some(pause))
            }
        };
        if let Some(pause) = pause {
            // Sooner than the next ones are due, but not sooner than the collector wants.
            signal.next = now + signal.pause(pause).min(self.interval.max(pause));
        }
        self.fail(|exporter| &mut exporter.metrics, &why);
        false
    }

    /// Sends what is left.
    async fn finish(&mut self) {
        let last_spans = async { while self.send_spans().await {} };
        drop(timeout(LAST_SPANS, last_spans).await);
        // Their collector may be another one.
        drop(timeout(LAST_METRICS, self.send_metrics()).await);
        let left = self.pending.len() + SPANS.len();
        if self.spans.is_some() && left > 0 {
            tracing::warn!("the collector of `telemetry.otlp` did not take the last {left} spans");
        }
    }

    /// Spans that no request can bring to the collector make room for others.
    fn give_up(&mut self, count: usize, why: &str) {
        self.pending.drain(..count);
        SPANS.note_dropped(count as u64);
        self.fail(|exporter| &mut exporter.spans, why);
    }

    fn succeed(&mut self, of: fn(&mut Self) -> &mut Option<Signal>) {
        let Some(signal) = of(self) else { return };
        signal.backoff.reset();
        signal.is_failing = false;
        if std::mem::take(&mut signal.was_told) {
            tracing::info!("the collector of `telemetry.otlp` takes {} again", signal.name);
        }
    }

    /// The log is told of a collector that fails once, and not of each signal.
    fn fail(&mut self, of: fn(&mut Self) -> &mut Option<Signal>, why: &str) {
        let is_known =
            [&self.spans, &self.metrics].into_iter().flatten().any(|signal| signal.is_failing && signal.was_told);
        let Some(signal) = of(self) else { return };
        signal.is_failing = true;
        if !is_known {
            signal.was_told = true;
            tracing::error!("the collector of `telemetry.otlp` does not take {}: {why}", signal.name);
        }
    }

    fn note_rejected(&self, what: &str, Rejected { count, why }: &Rejected) {
        if self.rejecting.is_due() {
            tracing::error!(count, "the collector of `telemetry.otlp` rejects {what}: {why}");
        }
    }
}

impl Signal {
    /// How long to wait after one more failure, and not less than the collector asks for.
    fn pause(&mut self, asked: Duration) -> Duration {
        asked.max(task::pause(&mut self.backoff))
    }
}

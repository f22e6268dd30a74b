//! Sends spans, the log and metrics to a collector of OpenTelemetry, beside the calls.
//!
//! No call waits for a collector. Spans and log records wait for it in bounded queues; the oldest are dropped when one is
//! full. What is logged while records are sent is sent with the next ones, and at most once in [`GATHER`]. Metrics
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
        self, LogThrottle, export_log,
        export_queue::{BATCH, ExportQueue, LOGS, SPANS},
        otlp::{LOG_REQUEST, RequestNames, TRACE_REQUEST, metric_request, request, resource},
        sample,
    },
};

/// How long an item waits for others, so that they are sent together.
const GATHER: Duration = Duration::from_secs(1);
/// How long the last spans and log records may take, and how long the last metrics after them.
const LAST_QUEUES: Duration = Duration::from_secs(3);
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
    /// The spans and the log.
    queued: [Option<QueuedSignal>; QUEUES],
    metrics: Option<Signal>,
    read_metrics: ReadMetrics,
    interval: Duration,
    rejecting: LogThrottle,
}

/// A signal whose items wait in a queue.
struct QueuedSignal {
    signal: Signal,
    queue: &'static ExportQueue,
    names: RequestNames,
    /// What a request was made of that is not taken yet.
    pending: Vec<Bytes>,
    /// How many items a request has at most: fewer where the collector finds them too many.
    batch: usize,
}

/// How many signals have a queue.
const QUEUES: usize = 2;

/// One signal, at its address.
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
        sample(config.as_ref().filter(|config| config.traces.is_some()));
        export_log(config.as_ref().is_some_and(|config| config.logs.is_some()));
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

    /// Sends what is left, if that takes no longer than [`LAST_QUEUES`] and [`LAST_METRICS`].
    pub async fn close(self) {
        telemetry::write_rest();
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
    let mut pending: [Vec<Bytes>; QUEUES] = Default::default();
    loop {
        let config = settings.borrow_and_update().clone();
        let made = config.map(|config| Exporter::new(&config, &read_metrics, &instance)).transpose();
        let mut exporter = made.unwrap_or_else(|why| {
            tracing::error!("the address of `telemetry.otlp` cannot be used: {why}");
            None
        });
        if let Some(exporter) = &mut exporter {
            for (queued, pending) in exporter.queued.iter_mut().zip(&mut pending) {
                queued.iter_mut().for_each(|queued| queued.pending = std::mem::take(pending));
            }
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
        pending = exporter.queued.map(|queued| queued.map(|queued| queued.pending).unwrap_or_default());
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
        let queued = |url: Option<_>, name, queue, names| {
            let signal = url.map(|url| signal(url, name)).transpose()?;
            let made = |signal| QueuedSignal { signal, queue, names, pending: Vec::new(), batch: BATCH };
            Ok::<_, Error>(signal.map(made))
        };
        Ok(Self {
            resource: resource(&config.service_name, Some(instance)),
            queued: [
                queued(config.traces.as_ref(), "spans", &SPANS, TRACE_REQUEST)?,
                queued(config.logs.as_ref(), "log records", &LOGS, LOG_REQUEST)?,
            ],
            metrics: config.metrics.as_ref().map(|url| signal(url, "metrics")).transpose()?,
            read_metrics: Arc::clone(read_metrics),
            interval: config.interval,
            rejecting: LogThrottle::default(),
        })
    }

    async fn run(&mut self) {
        loop {
            let [spans, logs] = self.queued.each_ref().map(|queued| queued.as_ref().map(|queued| queued.signal.next));
            let [span_room, log_room] =
                self.queued.each_ref().map(|queued| queued.as_ref().is_some_and(QueuedSignal::is_free));
            let metrics = self.metrics.as_ref().map(|signal| signal.next);
            tokio::select! {
                () = task::or_never(spans.map(sleep_until)) => self.send(0).await,
                () = SPANS.filled(), if span_room => self.send(0).await,
                () = task::or_never(logs.map(sleep_until)) => self.send(1).await,
                () = LOGS.filled(), if log_room => self.send(1).await,
                () = task::or_never(metrics.map(sleep_until)) => self.send_metrics().await,
            };
        }
    }

    /// Sends the items of one request; false if there are none, or they have to wait. Items that are given up make way for
    /// the next ones. What is dropped in the middle is sent again by the next call.
    async fn send(&mut self, at: usize) -> bool {
        let Some(queued) = &mut self.queued[at] else { return false };
        let (signal, queue) = (&mut queued.signal, queued.queue);
        signal.next = Instant::now() + GATHER;
        if queued.pending.is_empty() {
            queued.pending = queue.take(queued.batch);
        }
        if queued.pending.is_empty() {
            return false;
        }
        let count = queued.pending.len().min(queued.batch);
        let body = request(queued.names, &self.resource, &queued.pending[..count]);
        match signal.collector.post(body).await {
            Sent::Taken(rejected) => {
                queued.pending.drain(..count);
                let name = signal.name;
                if !queued.pending.is_empty() || queue.len() >= queued.batch {
                    signal.next = Instant::now();
                }
                signal.succeed();
                if let Some(rejected) = rejected {
                    queue.note_dropped(rejected.count);
                    self.note_rejected(name, &rejected);
                }
            }
            Sent::Refused { status: 413 } if count > 1 => {
                queued.batch = count / 2;
                signal.next = Instant::now();
            }
            Sent::Refused { status } => self.give_up(at, count, &format!("status {status}")),
            // Any other status is one that OTLP does not let Weir try again.
            Sent::Failed { why, status: None | Some(429 | 502..=504), pause } => {
                signal.next = Instant::now() + signal.pause(pause);
                self.fail(Some(at), &why);
                return false;
            }
            Sent::Failed { why, .. } => self.give_up(at, count, &why),
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
                self.metrics.iter_mut().for_each(Signal::succeed);
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
        self.fail(None, &why);
        false
    }

    /// Sends what is left.
    async fn finish(&mut self) {
        let last = async {
            for at in 0..QUEUES {
                while self.send(at).await {}
            }
        };
        drop(timeout(LAST_QUEUES, last).await);
        // Their collector may be another one.
        drop(timeout(LAST_METRICS, self.send_metrics()).await);
        for queued in self.queued.iter().flatten() {
            let (left, name) = (queued.pending.len() + queued.queue.len(), queued.signal.name);
            if left > 0 {
                tracing::warn!("the collector of `telemetry.otlp` did not take the last {left} {name}");
            }
        }
    }

    /// Items that no request can bring to the collector make room for others.
    fn give_up(&mut self, at: usize, count: usize, why: &str) {
        if let Some(queued) = &mut self.queued[at] {
            queued.pending.drain(..count);
            queued.queue.note_dropped(count as u64);
        }
        self.fail(Some(at), why);
    }

    /// The log is told of a collector that fails once, and not of each signal: of a queue, or of the metrics.
    fn fail(&mut self, at: Option<usize>, why: &str) {
        let queued = self.queued.iter().flatten().map(|queued| &queued.signal);
        let is_known = queued.chain(&self.metrics).any(|signal| signal.is_failing && signal.was_told);
        let signal = match at {
            Some(at) => self.queued[at].as_mut().map(|queued| &mut queued.signal),
            None => self.metrics.as_mut(),
        };
        let Some(signal) = signal else { return };
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

impl QueuedSignal {
    const fn is_free(&self) -> bool {
        !self.signal.is_failing
    }
}

impl Signal {
    fn succeed(&mut self) {
        self.backoff.reset();
        self.is_failing = false;
        if std::mem::take(&mut self.was_told) {
            tracing::info!("the collector of `telemetry.otlp` takes {} again", self.name);
        }
    }

    /// How long to wait after one more failure, and not less than the collector asks for.
    fn pause(&mut self, asked: Duration) -> Duration {
        asked.max(task::pause(&mut self.backoff))
    }
}

//! Sends the records of the audit log to a collector of OpenTelemetry, beside the calls.
//!
//! What is read is the file, so a collector that is away for a day costs nothing but the disk, and what was made before a
//! crash is sent after it. A record may come twice, then with the same number (`weir.seq`).

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use bytes::Bytes;
use serde::Deserialize;
use tokio::{
    runtime::Builder,
    sync::watch,
    time::{sleep, timeout},
};
use weir_flow::Backoff;

use crate::{
    config::{AuditConfig, OtlpConfig, Secret},
    http::{
        CONTENT_TYPE, Error, HeaderName, HeaderValue, HttpClient, HttpTarget, HttpTimeouts, Method, Request, Response,
    },
    task,
    telemetry::{
        LogThrottle,
        audit::{AuditBatch, AuditReader, otlp_request},
        printable,
    },
};

/// How often the log is looked at, and how long a collector may take.
const LOOK: Duration = Duration::from_secs(1);
const TIMEOUTS: HttpTimeouts = HttpTimeouts { connect: Duration::from_secs(10), read: Duration::from_secs(30) };
/// The longest answer that is read, in bytes, and the longest pause that a collector may ask for.
const ANSWER: usize = 64 * 1024;
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How long the last records may take.
const LAST: Duration = Duration::from_secs(5);

/// Sends records to one collector.
pub struct AuditExporter {
    client: HttpClient,
    target: HttpTarget,
    headers: Vec<(HeaderName, HeaderValue)>,
    path: PathBuf,
    /// None until the log can be read.
    reader: Option<AuditReader>,
    /// What was read and is not taken yet.
    pending: Option<Arc<AuditBatch>>,
    trouble: LogThrottle,
    /// Records that the collector has refused, and the log was not told of.
    refused: u64,
    refusing: LogThrottle,
    /// Whether the collector has failed, and the log was told so.
    failing: bool,
}

/// Sends what is left when it is dropped, if that takes no longer than [`LAST`].
#[must_use]
pub struct AuditExport {
    ended: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for AuditExport {
    fn drop(&mut self) {
        self.ended.send_replace(true);
        // A panic there is in the log.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// What became of a request.
enum Sent {
    Taken,
    /// These records cannot be taken, now or later.
    Refused(String),
    /// Later they may be.
    Failed(String, Option<Duration>),
}

/// What a collector says of records that it has not taken although it answers with 200.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Answer {
    partial_success: Option<PartialSuccess>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialSuccess {
    /// A text or a number.
    rejected_log_records: serde_json::Value,
    error_message: String,
}

impl AuditExporter {
    /// What sends the records of a log from now on, and those that were left when the last process ended.
    ///
    /// # Errors
    ///
    /// If the address cannot be used.
    pub fn new(config: &AuditConfig, otlp: &OtlpConfig, client: HttpClient) -> Result<Self, Error> {
        let header = |(name, value): &(String, Secret)| {
            let mut value = HeaderValue::from_str(value.expose()).ok()?;
            value.set_sensitive(true);
            Some((name.parse().ok()?, value))
        };
        let mut headers: Vec<_> = otlp.headers.iter().filter_map(header).collect();
        headers.push((CONTENT_TYPE, HeaderValue::from_static("application/json")));
        let target = client.target(otlp.url.as_url(), TIMEOUTS)?;
        let mut new = Self {
            client,
            target,
            headers,
            path: config.path.clone(),
            reader: None,
            pending: None,
            trouble: LogThrottle::default(),
            refused: 0,
            refusing: LogThrottle::default(),
            failing: false,
        };
        // Now, for it begins where the log ends when it is opened first.
        new.open();
        Ok(new)
    }

    /// Begins, on a thread of its own: files are read there, and it outlasts the log.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(self) -> io::Result<AuditExport> {
        let (ended, told) = watch::channel(false);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            runtime.block_on(self.run(told));
            // A name that is being looked up is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("audit-export".to_owned()).spawn(run)?;
        Ok(AuditExport { ended, thread: Some(thread) })
    }

    async fn run(mut self, ended: watch::Receiver<bool>) {
        task::until(ended, async {
            loop {
                if !self.send_next().await {
                    sleep(LOOK).await;
                }
            }
        })
        .await;
        let last = async { while self.send_next().await {} };
        if timeout(LAST, last).await.is_err() {
            tracing::warn!("the last audit records are sent when Weir is started again");
        }
    }

    fn open(&mut self) {
        match AuditReader::open(self.path.clone()) {
            Ok(reader) => self.reader = Some(reader),
            Err(why) => self.unreadable(&why),
        }
    }

    fn unreadable(&self, why: &io::Error) {
        if self.trouble.is_due() {
            tracing::error!("the audit log cannot be read, and is not sent: {why}");
        }
    }

    /// Sends the next records; false if there are none. What is dropped in the middle is sent again by the next call.
    async fn send_next(&mut self) -> bool {
        let Some(batch) = self.next_batch() else { return false };
        self.send(&batch.lines).await;
        self.pending = None;
        if let Some(reader) = &self.reader
            && let Err(why) = reader.keep(batch.last)
            && self.trouble.is_due()
        {
            tracing::error!("audit records may be sent twice: how far they were sent cannot be written: {why}");
        }
        true
    }

    fn next_batch(&mut self) -> Option<Arc<AuditBatch>> {
        if let Some(pending) = &self.pending {
            return Some(Arc::clone(pending));
        }
        if self.reader.is_none() {
            self.open();
        }
        let batch = match self.reader.as_mut()?.next_batch() {
            Ok(batch) if batch.lines.is_empty() => return None,
            Ok(batch) => batch,
            Err(why) => {
                self.unreadable(&why);
                return None;
            }
        };
        if batch.missing > 0 {
            let count = batch.missing;
            tracing::error!(count, "audit records were removed before the collector took them; see `audit.keep`");
        }
        Some(Arc::clone(self.pending.insert(Arc::new(batch))))
    }

    /// Sends records until they are taken, or can never be.
    async fn send(&mut self, lines: &[Vec<u8>]) {
        // Of a request that is refused the first half goes first, so what is at the end comes next.
        let mut left = vec![lines];
        let mut backoff = Backoff::CONNECT;
        while let Some(lines) = left.pop() {
            match self.post(lines).await {
                Sent::Taken => {
                    backoff.reset();
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("the collector takes audit records again");
                    }
                }
                Sent::Refused(_) if lines.len() > 1 => {
                    let (first, second) = lines.split_at(lines.len() / 2);
                    left.extend([second, first]);
                }
                Sent::Refused(why) => self.note_refused(&why),
                Sent::Failed(why, pause) => {
                    left.push(lines);
                    if !std::mem::replace(&mut self.failing, true) || self.trouble.is_due() {
                        tracing::error!("audit records wait for the collector of `audit.otlp`: {why}");
                    }
                    let pause = pause.unwrap_or_default().min(LONGEST_PAUSE);
                    sleep(pause.max(task::pause(&mut backoff))).await;
                }
            }
        }
    }

    /// A collector that refuses all it gets does not fill the log.
    fn note_refused(&mut self, why: &str) {
        self.refused += 1;
        if self.refusing.is_due() {
            let count = std::mem::take(&mut self.refused);
            tracing::error!(count, "the collector refuses audit records, which are not sent: {why}");
        }
    }

    async fn post(&self, lines: &[Vec<u8>]) -> Sent {
        let body = Some(Bytes::from(otlp_request(lines.iter().map(Vec::as_slice))));
        let request = Request { method: Method::POST, headers: &self.headers, body };
        let response = match self.client.send(&self.target, request).await {
            Ok(response) => response,
            Err(why) => return Sent::Failed(why.to_string(), None),
        };
        match response.status() {
            200..=299 => Self::note_rejected(response).await,
            // What a collector can never take (OTLP 1.5, "OTLP/HTTP Response").
            status @ (400 | 413 | 422) => Sent::Refused(format!("status {status}")),
            status => Sent::Failed(format!("status {status}"), response.retry_after()),
        }
    }

    /// Records that are rejected one by one come to nothing if they are sent again.
    async fn note_rejected(response: Response) -> Sent {
        // It has taken them, whatever becomes of its answer.
        let Ok(Ok(body)) = timeout(TIMEOUTS.read, response.collect(ANSWER)).await else { return Sent::Taken };
        // An answer in Protocol Buffers, or none, says nothing of that.
        let answer: Answer = serde_json::from_slice(&body).unwrap_or_default();
        let partial = answer.partial_success.unwrap_or_default();
        let rejected = &partial.rejected_log_records;
        let count = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or_default();
        if count > 0 {
            let why = printable(&partial.error_message);
            tracing::error!(count, "the collector rejects audit records, which are not sent again: {why}");
        }
        Sent::Taken
    }
}

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

use tokio::{
    runtime::Builder,
    sync::watch,
    time::{sleep, timeout},
};
use weir_flow::Backoff;

use crate::{
    config::{AuditConfig, OtlpConfig},
    http::{Error, HttpClient},
    otlp::{Collector, Rejected, Sent},
    task,
    telemetry::{
        LogThrottle,
        audit::{AuditBatch, AuditReader, otlp_request},
    },
};

/// How often the log is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long the last records may take.
const LAST: Duration = Duration::from_secs(5);

/// Sends records to one collector.
pub struct AuditExporter {
    collector: Collector,
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

impl AuditExporter {
    /// What sends the records of a log from now on, and those that were left when the last process ended.
    ///
    /// # Errors
    ///
    /// If the address cannot be used.
    pub fn new(config: &AuditConfig, otlp: &OtlpConfig, client: HttpClient) -> Result<Self, Error> {
        let mut new = Self {
            collector: Collector::new(&otlp.url, &otlp.headers, client)?,
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
            match self.collector.post(otlp_request(lines.iter().map(Vec::as_slice))).await {
                Sent::Taken(rejected) => {
                    if let Some(Rejected { count, why }) = rejected {
                        tracing::error!(count, "the collector rejects audit records, which are not sent again: {why}");
                    }
                    backoff.reset();
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("the collector takes audit records again");
                    }
                }
                Sent::Refused { .. } if lines.len() > 1 => {
                    let (first, second) = lines.split_at(lines.len() / 2);
                    left.extend([second, first]);
                }
                Sent::Refused { status } => self.note_refused(status),
                Sent::Failed { why, pause, .. } => {
                    left.push(lines);
                    if !std::mem::replace(&mut self.failing, true) || self.trouble.is_due() {
                        tracing::error!("audit records wait for the collector of `audit.otlp`: {why}");
                    }
                    sleep(pause.max(task::pause(&mut backoff))).await;
                }
            }
        }
    }

    /// A collector that refuses all it gets does not fill the log.
    fn note_refused(&mut self, status: u16) {
        self.refused += 1;
        if self.refusing.is_due() {
            let count = std::mem::take(&mut self.refused);
            tracing::error!(count, "the collector refuses audit records, which are not sent: status {status}");
        }
    }
}

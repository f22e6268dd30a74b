//! The audit log: who called what, and what Weir decided, in a file that shows whether somebody has changed it.
//!
//! There is one log in a process, as there is one [`tracing`] subscriber: a record is made wherever the log has a line.
//! The names of fields are those of the line; what the chain needs is called as in the draft of an audit record for MCP
//! (SEP-3004): `seq` aside, `previous_hash`, `occurred_at`, `event_type` and `principal_id`.
//!
//! # What it shows
//!
//! Each record holds the hash of the line before, so that a change, a gap and another order show ([`verify()`]). Whoever can
//! write the file can write all of it anew; so the number and the hash of the last record are told to the log when a file
//! is complete and when the process ends, and `verify` looks for such an anchor.
//!
//! # Arguments
//!
//! A record holds an HMAC of a call's arguments. A plain hash would tell them to everybody who can guess: there are few
//! ticket numbers, and few names of branches. The key is beside the log and not in it, so a copy of the log tells
//! nothing; the same arguments have the same digest, so that calls can be compared.

mod chain;
mod export;
mod follow;
mod otlp;
mod queue;
mod read;
mod record;
mod verify;

use std::{
    borrow::Cow,
    cell::Cell,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use bytes::Bytes;
use ring::hmac;
use weir_mcp::{Field, Message};

use super::format;
use crate::config::{AuditArguments, AuditConfig};

use chain::AuditChain;
pub use chain::Head;
pub use export::{ExportFilter, ExportFormat, ParseSinceError, Since, export, find_call};
pub use follow::{AuditBatch, AuditReader};
pub use otlp::request as otlp_request;
use queue::AuditQueue;
pub use read::LogLines;
pub use record::Record;
pub use verify::{Anchor, ChainReport, verify};

/// How many bytes of arguments a record holds at most.
const ARGUMENTS: usize = 64 * 1024;
/// Up to so many bytes a call's message is kept until its arguments are digested.
const KEPT: usize = 4096;

static LOG: OnceLock<AuditLog> = OnceLock::new();

struct AuditLog {
    queue: Arc<AuditQueue>,
    key: hmac::Key,
    arguments: AuditArguments,
    refuse: bool,
}

/// Has the rest written when it is dropped.
#[must_use]
pub struct AuditFlush(Arc<AuditQueue>);

/// Why there is no audit log.
#[derive(Debug, thiserror::Error)]
#[error("the audit log {path} cannot be opened: {why}")]
pub struct AuditError {
    path: PathBuf,
    why: io::Error,
}

/// What a record says of a call's arguments.
#[derive(Clone)]
pub struct RecordedArguments {
    /// None if it is made when the record is: small arguments are kept for that.
    digest: Option<hmac::Tag>,
    raw: Option<Bytes>,
}

/// Starts the audit log of this process.
///
/// # Errors
///
/// When its folder or its key cannot be had, or the process has one already. That the file cannot be written is no error:
/// it is treated as it would be later.
pub fn start(config: &AuditConfig) -> Result<AuditFlush, AuditError> {
    let error = |why| AuditError { path: config.path.clone(), why };
    let (chain, key) = AuditChain::new(config).map_err(error)?;
    let queue = AuditQueue::start(config.sync, chain).map_err(error)?;
    let log = AuditLog { queue: Arc::clone(&queue), key, arguments: config.arguments, refuse: config.refuse };
    let flush = AuditFlush(queue);
    match LOG.set(log) {
        Ok(()) => Ok(flush),
        Err(_) => Err(error(io::Error::other("this process has an audit log already"))),
    }
}

impl Drop for AuditFlush {
    fn drop(&mut self) {
        super::write_rest();
        self.0.close();
    }
}

/// Records what happens now, if there is an audit log. Waits for nothing.
pub fn write(event_type: &str, fill: impl FnOnce(&mut Record<'_>)) {
    write_at(SystemTime::now(), event_type, fill);
}

/// The same for what happened at this time.
pub(super) fn write_at(at: SystemTime, event_type: &str, fill: impl FnOnce(&mut Record<'_>)) {
    thread_local! {
        static BODY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let Some(log) = LOG.get() else { return };
    let mut body = BODY.take();
    body.clear();
    let mut record = Record::begin(&mut body, at, event_type);
    fill(&mut record);
    record.end();
    log.queue.push(&body);
    BODY.set(body);
}

/// Why new calls are refused now: they cannot be recorded, and the configuration says that they must be.
#[must_use]
pub fn refusal() -> Option<String> {
    let why = LOG.get().filter(|log| log.refuse)?.queue.failure()?;
    Some(format!("calls cannot be recorded in the audit log now: {why}; see `audit.on_failure`"))
}

/// Why records cannot be written now, whatever follows from that.
#[must_use]
pub fn failure() -> Option<String> {
    LOG.get()?.queue.failure()
}

impl RecordedArguments {
    /// What is to be recorded of the arguments of a request, or of the URI that it reads; none without an audit log.
    #[must_use]
    pub fn of(message: &Message) -> Option<Self> {
        let log = LOG.get()?;
        let arguments = message.raw(Field::Arguments).or_else(|| message.raw(Field::Uri))?;
        let is_small = message.bytes().len() <= KEPT;
        let is_told = log.arguments == AuditArguments::Full && arguments.len() <= ARGUMENTS;
        Some(Self {
            digest: (!is_small).then(|| hmac::sign(&log.key, arguments)),
            raw: (is_small || is_told).then(|| message.bytes().slice_ref(arguments)),
        })
    }

    /// Whether they are kept although they are not small.
    #[must_use]
    pub fn are_large(&self) -> bool {
        self.raw.as_ref().is_some_and(|raw| raw.len() > KEPT)
    }

    /// Adds them to a record.
    pub fn record(&self, record: &mut Record<'_>) {
        let Some(log) = LOG.get() else { return };
        let raw = self.raw.as_deref();
        if let Some(digest) = self.digest.or_else(|| Some(hmac::sign(&log.key, raw?))) {
            record.digest("arguments_digest", "hmac-sha256", digest.as_ref());
        }
        if let Some(raw) = raw.filter(|_| log.arguments == AuditArguments::Full) {
            record.json("arguments", raw);
        }
    }
}

impl fmt::Debug for RecordedArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedArguments").finish_non_exhaustive()
    }
}

/// The lines of a log, newest file last: of the last `count` those that are there, and what follows them.
///
/// # Errors
///
/// If a file cannot be read.
pub fn tail(path: &Path, count: usize) -> io::Result<(Vec<Vec<u8>>, LogLines)> {
    let mut files = read::open(path)?;
    let mut last: Vec<Vec<u8>> = Vec::new();
    let mut now = None;
    while let Some(mut file) = files.pop().filter(|_| now.is_none() || last.len() < count) {
        let mut lines = std::collections::VecDeque::new();
        while let Some(line) = file.lines.next_line()? {
            if lines.len() + last.len() == count {
                lines.pop_front();
            }
            if lines.len() + last.len() < count {
                lines.push_back(line);
            }
        }
        last.splice(0..0, lines);
        now.get_or_insert(file.lines);
    }
    Ok((last, now.ok_or(io::ErrorKind::NotFound)?))
}

/// A line as a terminal may show it; none if it is no record.
#[must_use]
pub fn shown(line: &[u8]) -> Option<Cow<'_, [u8]>> {
    read::AuditEntry::read(line).map(|_| format::json(line))
}

/// The log goes on in a new file: the lines of that, if what was read is not at `path` any more.
///
/// # Errors
///
/// If the file cannot be opened.
pub fn follow(path: &Path, lines: &LogLines) -> io::Result<Option<LogLines>> {
    if lines.is_at(path) || !path.exists() {
        return Ok(None);
    }
    std::fs::File::open(path).map(|file| Some(LogLines::new(file)))
}

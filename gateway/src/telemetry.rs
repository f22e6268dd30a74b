//! What an operator sees: the log, and one line in it for each call.
//!
//! A line never holds a header value, a token, an argument or a result. What [`CallRecord`] has of arguments is for the
//! [`audit`] log, which is fed from the same places as the log.

mod approval;
pub mod audit;
mod auth;
mod call;
pub mod export_queue;
mod format;
mod json_layer;
mod live;
pub mod metrics;
pub mod otlp;
mod otlp_log;
mod panics;
mod printable;
mod put;
pub mod recent;
mod sampling;
mod span;
pub mod step;
mod trace;
mod writer;

use std::{
    io::IsTerminal,
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

pub use approval::ApprovalRecord;
pub use auth::{AuthRecord, Refusals};
pub use call::{CallId, CallOutcome, CallRecord, NEEDS_SIGN_IN};
use json_layer::JsonLayer;
pub use live::{LiveView, terminal_size};
use otlp_log::OtlpLayer;
pub use otlp_log::export_log;
pub use printable::{printable, printable_json, printable_text};
pub use put::now;
pub use sampling::sample;
pub use span::CallSpan;
pub use trace::{TRACEPARENT, TraceParent};
use writer::Buffered;
pub use writer::Flush;

/// What writes records that still wait.
static BEFORE_END: OnceLock<fn()> = OnceLock::new();

/// Has this called before the log or the audit log is closed: it writes the records that still wait.
pub fn before_end(write_rest: fn()) {
    // There is one such place in a process.
    BEFORE_END.get_or_init(|| write_rest);
}

/// Writes the records that still wait, for whoever takes their lines and spans at the end.
pub fn write_rest() {
    if let Some(write_rest) = BEFORE_END.get() {
        write_rest();
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object for each line.
    Json,
}

/// Starts the log on standard error: for people on a terminal, JSON otherwise.
///
/// `RUST_LOG` chooses what is written, and `default` without it. Lines are written in batches, and dropped while nobody
/// reads them; the returned guard has the rest written when it is dropped. A panic is a line of the log too.
#[must_use]
pub fn start(default: &str) -> Flush {
    start_as(None, default, None)
}

/// The same; `filter` chooses what is written before `RUST_LOG` does, and `format` how.
#[must_use]
pub fn start_as(filter: Option<&str>, default: &str, format: Option<LogFormat>) -> Flush {
    let filter = match filter {
        Some(filter) => EnvFilter::new(filter),
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default)),
    };
    let terminal = std::io::stderr().is_terminal();
    let is_text = format.map_or(terminal, |format| format == LogFormat::Text);
    let (writer, flush) = Buffered::stderr();
    let shared = writer.shared();
    let registry = tracing_subscriber::registry().with(filter).with(OtlpLayer);
    let text = || fmt::layer().fmt_fields(format::text()).with_target(false);
    let started = match (is_text, terminal) {
        (true, true) => registry.with(text().with_timer(format::ShortClock).with_writer(writer)).try_init(),
        (true, false) => registry.with(text().with_ansi(false).with_writer(writer)).try_init(),
        (false, _) => registry.with(JsonLayer(writer.shared())).try_init(),
    };
    // A second start in one process (a test) keeps the first log.
    if started.is_ok() {
        panics::log(shared);
    }
    flush
}

/// Something that the log is told at most once in a while, however often it happens.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<Option<Instant>>);

impl LogThrottle {
    /// Whether it is to be said again: not if it was within the last minute.
    #[must_use]
    pub fn is_due(&self) -> bool {
        const PAUSE: Duration = Duration::from_secs(60);
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = said.is_none_or(|at| at.elapsed() >= PAUSE);
        if due {
            *said = Some(Instant::now());
        }
        due
    }
}

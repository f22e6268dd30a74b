//! What an operator sees: the log, and one line in it for each call.
//!
//! A line never holds a header value, a token, an argument or a result: [`CallRecord`] has no field for one.

mod auth;
mod format;
mod panics;
mod printable;
mod writer;

use std::{
    io::IsTerminal,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};
use weir_mcp::Era;

pub use auth::{AuthRecord, Refusals};
pub use printable::printable;
use writer::Buffered;
pub use writer::Flush;

/// How much of a name that a client sent goes into the log, in characters.
const NAME_IN_LOG: usize = 128;

/// Starts the log on standard error: for people on a terminal, JSON otherwise.
///
/// `RUST_LOG` chooses what is written; the default is `info`. Lines are written in batches, and dropped while nobody
/// reads them; the returned guard has the rest written when it is dropped. A panic is a line of the log too.
#[must_use]
pub fn start(default: &str) -> Flush {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let terminal = std::io::stderr().is_terminal();
    let (writer, flush) = Buffered::stderr(!terminal);
    let shared = writer.shared();
    let registry = tracing_subscriber::registry().with(filter);
    let started = if terminal {
        registry.with(fmt::layer().fmt_fields(format::text()).with_writer(writer).with_target(false)).try_init()
    } else {
        registry.with(fmt::layer().json().with_writer(writer)).try_init()
    };
    // A second start in one process (a test) keeps the first log.
    if started.is_ok() {
        panics::log(shared);
    }
    flush
}

/// Something that the log is told at most once in a while, however often it happens.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
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

/// Why a call came to nothing whose caller, or somebody else, has to sign in first.
pub const NEEDS_SIGN_IN: &str = "needs a sign-in";

/// Why a call came to nothing whose client knows a session that is over, as after a restart of the gateway: it begins anew.
pub const UNKNOWN_SESSION: &str = "there is no such session";

/// One finished call, for the log.
#[derive(Clone, Debug)]
pub struct CallRecord<'a> {
    /// The upstream that answered; `-` if Weir did.
    pub upstream: &'a str,
    /// The JSON-RPC method.
    pub method: &'a str,
    /// The tool, prompt or resource asked for; a resource's address without its query.
    pub name: &'a str,
    /// The client's era.
    pub era: Era,
    /// The HTTP status of the answer.
    pub status: u16,
    /// How often the request was sent.
    pub attempts: u32,
    /// From the end of the request to the end of the answer.
    pub took: Duration,
    /// Why the call failed; none if it did not.
    pub failure: Option<&'a str>,
}

impl CallRecord<'_> {
    /// Writes the line.
    pub fn write(&self) {
        let Self { upstream, method, era, status, attempts, failure, .. } = self;
        let name = shown(self.name);
        let ms = self.took.as_secs_f64() * 1000.0;
        let ms = (ms * 1000.0).round() / 1000.0;
        match failure {
            None => tracing::info!(target: "weir::call", upstream, method, name, %era, status, attempts, ms, "call"),
            // Nothing is broken: somebody is asked to do something, and told so elsewhere.
            Some(why) if matches!(*why, NEEDS_SIGN_IN | UNKNOWN_SESSION) => {
                tracing::info!(target: "weir::call", upstream, method, name, %era, status, attempts, ms, why, "call");
            }
            Some(why) => {
                tracing::error!(target: "weir::call", upstream, method, name, %era, status, attempts, ms, why, "call failed");
            }
        }
    }
}

/// A client's name for something, fit for a log: bounded, and without the query of an address, which may hold a secret.
fn shown(name: &str) -> &str {
    let name = if name.contains("://") { name.split(['?', '#']).next().unwrap_or(name) } else { name };
    name.char_indices().nth(NAME_IN_LOG).and_then(|(end, _)| name.get(..end)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn names_in_the_log_are_bounded_and_without_queries() {
        assert_eq!(shown("echo"), "echo");
        assert_eq!(shown("https://x.test/doc?token=secret#a"), "https://x.test/doc");
        assert_eq!(shown(&"é".repeat(500)).chars().count(), 128);
    }
}

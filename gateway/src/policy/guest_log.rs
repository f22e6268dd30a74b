//! What a guest writes into the log: the lines of the capability, and what it prints where WASI gives it something to print
//! to, a panic's message for one. Bounded, one line each, and without the secrets that it was given to read.

use std::{
    borrow::Cow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{self, AsyncWrite};
use tracing::Level;
use wasmtime_wasi::{
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamResult},
};
use weir_mcp::json;

use super::{
    bindings::weir::policy::log,
    convert::one_line,
    limits::{LINE, LINES, LINES_PER_SECOND, PRINTED},
};

/// The secrets that a guest may read, by name.
pub(super) type Readable = Arc<[(String, String)]>;

/// The lines that a question logs.
pub(super) struct GuestLines {
    policy: Arc<str>,
    upstream: String,
    rate: Arc<GuestLogRate>,
    pub(super) secrets: Readable,
    printed: Option<Printed>,
    written: u32,
    dropped: u32,
}

/// How many lines a policy logged in the second that runs.
#[derive(Default)]
pub(super) struct GuestLogRate(Mutex<Option<(Instant, u32)>>);

/// What a guest has printed, up to [`PRINTED`]; it takes the rest as well, and forgets it.
#[derive(Clone, Default)]
pub(super) struct Printed(Arc<Mutex<Vec<u8>>>);

impl GuestLines {
    pub(super) fn new(policy: Arc<str>, upstream: &str, rate: Arc<GuestLogRate>, secrets: Readable) -> Self {
        Self { policy, upstream: one_line(upstream, LINE), rate, secrets, printed: None, written: 0, dropped: 0 }
    }

    /// Where to print to; none if nobody would see it.
    pub(super) fn printed(&mut self) -> Option<Printed> {
        if tracing::enabled!(target: "policy", Level::DEBUG) {
            self.printed = Some(Printed::default());
        }
        self.printed.clone()
    }

    pub(super) fn write(&mut self, level: log::Level, message: &str) {
        if self.written >= LINES || !self.rate.allows(Instant::now()) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        self.written += 1;
        self.event(level, &one_line(&redacted(message, &self.secrets), LINE));
    }

    /// The macros of `tracing` want the level as a constant.
    fn event(&self, level: log::Level, message: &str) {
        let (policy, upstream) = (&*self.policy, &*self.upstream);
        match level {
            log::Level::Error => tracing::error!(target: "policy", policy, upstream, "{message}"),
            log::Level::Warn => tracing::warn!(target: "policy", policy, upstream, "{message}"),
            log::Level::Info => tracing::info!(target: "policy", policy, upstream, "{message}"),
            log::Level::Debug => tracing::debug!(target: "policy", policy, upstream, "{message}"),
        }
    }
}

impl Drop for GuestLines {
    fn drop(&mut self) {
        if let Some(printed) = self.printed.take() {
            let printed = printed.take();
            let printed = String::from_utf8_lossy(&printed);
            // Before it is split: a secret may have several lines.
            for line in redacted(&printed, &self.secrets).lines().filter(|line| !line.trim().is_empty()) {
                self.write(log::Level::Debug, line);
            }
        }
        if self.dropped > 0 && self.rate.allows(Instant::now()) {
            self.event(
                log::Level::Warn,
                &format!("{} lines of this policy were dropped: it logs too much", self.dropped),
            );
        }
    }
}

impl GuestLogRate {
    /// Counts a line, and says whether it may be written.
    fn allows(&self, now: Instant) -> bool {
        let mut window = self.0.lock();
        match &mut *window {
            Some((start, lines)) if now.saturating_duration_since(*start) < Duration::from_secs(1) => {
                *lines = lines.saturating_add(1);
                *lines <= LINES_PER_SECOND
            }
            window => {
                *window = Some((now, 1));
                true
            }
        }
    }
}

/// A guest's text without the secrets that it has read, as far as it says them as they are, or quoted.
pub(super) fn redacted<'a>(text: &'a str, secrets: &[(String, String)]) -> Cow<'a, str> {
    /// What is shorter is no secret, and may well be part of a word.
    const SHORTEST: usize = 4;
    let mut text = Cow::Borrowed(text);
    for (name, secret) in secrets.iter().filter(|(_, secret)| secret.len() >= SHORTEST) {
        let quoted = json::quote(secret);
        for form in [secret, quoted.trim_matches('"')] {
            if text.contains(form) {
                text = Cow::Owned(text.replace(form, &format!("[secret {name}]")));
            }
        }
    }
    text
}

impl Printed {
    fn put(&self, bytes: &[u8]) {
        let mut kept = self.0.lock();
        let room = PRINTED - kept.len();
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl IsTerminal for Printed {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Printed {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for Printed {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.put(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(PRINTED)
    }
}

#[async_trait::async_trait]
impl Pollable for Printed {
    async fn ready(&mut self) {}
}

impl AsyncWrite for Printed {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.put(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

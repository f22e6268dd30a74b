//! An upstream MCP server as a child process: one JSON message per line on its standard input and output.
//!
//! Several clients may share one process. Each request travels under an id and a progress token of our own, and what
//! comes back finds its exchange by them (`routes`). One task owns the process from birth to reaping (`life`).
//!
//! No orphans: the child leads a process group of its own, and the group is killed when the owning task ends for any
//! reason, a panic or the end of the runtime included. A gateway that is itself killed with SIGKILL runs no code; then
//! the child reads the end of its standard input, which the protocol makes the signal to exit. (`PR_SET_PDEATHSIG`
//! would cover a child that ignores it, but needs unsafe code between fork and exec.) A process that leaves the group
//! with `setsid` is out of reach; a container is the remedy.

mod command;
mod inbox;
mod life;
mod outbox;
mod pipe;
mod routes;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::watch;
use tracing::warn;
use weir_mcp::{Message, method};

pub use command::Command;
use inbox::Inbox;
use outbox::Outbox;
use routes::Routes;

/// The longest line that is read from a process, in bytes. A server that exceeds it is stopped, because nothing
/// after the cut could be told apart.
pub const MAX_LINE: usize = 16 * 1024 * 1024;

/// What can go wrong with a process. Neither arguments nor environment nor any part of a message is ever inside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StdioError {
    /// No such program.
    #[error("`{program}` was not found; install it, or set `command` to its full path (PATH is searched)")]
    NotFound {
        /// As the configuration names it.
        program: String,
    },
    /// The file is there but its first line names an interpreter that is not.
    #[error("`{program}` is there, but the interpreter or loader it needs is not; look at its first line")]
    NoInterpreter {
        /// As the configuration names it.
        program: String,
    },
    /// The file is there but may not be run.
    #[error("`{program}` may not be executed; make it executable (chmod +x) or start it through its interpreter")]
    NotExecutable {
        /// As the configuration names it.
        program: String,
    },
    /// The working directory is missing or not a directory.
    #[error("the working directory `{cwd}` does not exist; create it or correct `cwd`")]
    NoDirectory {
        /// As the configuration names it.
        cwd: String,
    },
    /// A zero byte in the program's name, an argument or the environment.
    #[error("`command`, `args` and `env` must not contain zero bytes")]
    ZeroByte,
    /// The system refused for another reason.
    #[error("the process could not be started: {0}")]
    Spawn(io::ErrorKind),
    /// The process ended by itself.
    #[error("the server process ended ({status}); what it wrote to stderr is in the log")]
    Exited {
        /// Its exit code or signal.
        status: ExitStatus,
    },
    /// The process lives, but closed its standard input or output.
    #[error("the server process closed its standard input or output")]
    Closed,
    /// The process wrote a line longer than [`MAX_LINE`].
    #[error("the server process wrote a line of more than {} MiB and was stopped", MAX_LINE / 1024 / 1024)]
    LineTooLong,
    /// The process left its standard input unread for 30 s although there was more to read than a pipe holds.
    #[error("the server process stopped reading its standard input and was stopped")]
    Stuck,
    /// We stopped the process.
    #[error("the server process was stopped")]
    Stopped,
    /// Whoever reads this exchange did not keep up with the messages that arrived for it.
    #[error("more messages arrived for this request than were read; the request was given up")]
    Overflow,
    /// The message has no id to be answered under, or the edit failed.
    #[error("not a message that can be sent here")]
    NotSendable,
}

/// What happens to a request whose [`Exchange`] is dropped before the answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDrop {
    /// The process is told with `notifications/cancelled` (modern era: a client that is gone has cancelled).
    Cancel,
    /// The process works on; its answer is thrown away (legacy era: a broken stream is no cancellation).
    Abandon,
}

/// Names one request on its process; see [`Exchange::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeKey(u64);

/// A running server process. Clones are handles to the same process; when the last one is dropped the process is
/// stopped, even if an [`Exchange`] is still open.
#[derive(Clone)]
pub struct Process {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    /// Tells the owning task to stop; it also sees when this is dropped.
    stop: watch::Sender<bool>,
    /// Closed by the owning task when all is over.
    done: watch::Receiver<()>,
}

/// What the handles, the exchanges and the owning task have in common.
struct Shared {
    name: Arc<str>,
    routes: Routes,
    outbox: Outbox,
    unsolicited: Inbox,
    unsolicited_taken: AtomicBool,
    unsolicited_lost: AtomicBool,
    ended: watch::Sender<Option<StdioError>>,
}

impl Shared {
    fn new(name: &str, outbox: Outbox) -> Self {
        Self {
            name: name.into(),
            routes: Routes::default(),
            outbox,
            unsolicited: Inbox::default(),
            unsolicited_taken: AtomicBool::new(false),
            unsolicited_lost: AtomicBool::new(false),
            ended: watch::Sender::new(None),
        }
    }

    async fn send(&self, message: Bytes) -> Result<(), StdioError> {
        if self.outbox.send(message).await.is_ok() {
            return Ok(());
        }
        // The pipe is known to be closed a little before the reason is.
        let mut ended = self.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        Err(reason.unwrap_or(StdioError::Closed))
    }

    fn deliver(&self, message: Message) {
        let Some(stray) = self.routes.route(message) else {
            return;
        };
        let kept_all = self.unsolicited.push_over_oldest(stray);
        if !kept_all && !self.unsolicited_lost.swap(true, Ordering::Relaxed) {
            warn!(upstream = &*self.name, "sends more unasked-for messages than are read; the oldest are dropped");
        }
    }

    /// Ends every exchange and refuses new ones. The first reason stays.
    fn end(&self, reason: StdioError) {
        self.outbox.close();
        let reason = self.routes.end(reason);
        self.unsolicited.fail(reason.clone());
        self.ended.send_replace(Some(reason));
    }
}

impl Process {
    /// Starts `command` as the upstream called `name` (which appears in the log).
    ///
    /// # Errors
    /// Says what to correct in the configuration. A program that starts and fails at once is no error here; the
    /// first request gets [`StdioError::Exited`].
    pub async fn spawn(name: &str, command: &Command) -> Result<Self, StdioError> {
        let (outbox, lines) = Outbox::new();
        let shared = Arc::new(Shared::new(name, outbox));
        let (stop, stop_seen) = watch::channel(false);
        let (done_sender, done) = watch::channel(());
        let leader = life::Leader::spawn(command)?;
        tokio::spawn(life::own(leader, lines, Arc::clone(&shared), stop_seen, done_sender));
        Ok(Self { handle: Arc::new(Handle { shared, stop, done }) })
    }

    /// Sends a request under an id and progress token of our own and returns where its messages arrive.
    ///
    /// # Errors
    /// If the message is no request, or the process is gone.
    pub async fn request(&self, message: &Message, on_drop: OnDrop) -> Result<Exchange, StdioError> {
        let shared = &self.handle.shared;
        let (key, inbox) = shared.routes.start(message)?;
        // `initialize` must not be cancelled (2025-11-25, basic/utilities/cancellation).
        let on_drop = if message.method() == method::INITIALIZE { OnDrop::Abandon } else { on_drop };
        // Made before the line is sent, so that a caller that gives up while it waits leaves nothing behind.
        let mut exchange = Exchange { shared: Arc::clone(shared), key, inbox, on_drop, sent: false };
        shared.send(routes::outgoing(message, key)).await?;
        exchange.sent = true;
        Ok(exchange)
    }

    /// Sends a notification, or the answer to a request of the server, as it is.
    ///
    /// # Errors
    /// If the process is gone.
    pub async fn notify(&self, message: &Message) -> Result<(), StdioError> {
        self.handle.shared.send(message.bytes().clone()).await
    }

    /// Sends the client's `notifications/cancelled`, its `requestId` replaced by the one the process knows. Does
    /// nothing if the request has been answered. The exchange stays open until it is dropped.
    ///
    /// # Errors
    /// If the message has no `requestId`, or the process is gone.
    pub async fn cancel(&self, exchange: ExchangeKey, cancelled: &Message) -> Result<(), StdioError> {
        let shared = &self.handle.shared;
        let line = routes::cancelled(cancelled, exchange)?;
        if shared.routes.mark_cancelled(exchange) {
            shared.send(line).await?;
        }
        Ok(())
    }

    /// Takes the messages of the server that belong to no running exchange. One consumer at a time: `None` while
    /// another one has them. What arrives while nobody listens is kept up to a bound, then the oldest are dropped.
    pub fn unsolicited(&self) -> Option<Unsolicited> {
        let shared = &self.handle.shared;
        let taken = shared.unsolicited_taken.swap(true, Ordering::AcqRel);
        (!taken).then(|| Unsolicited { shared: Arc::clone(shared) })
    }

    /// Whether a request runs on it.
    pub fn busy(&self) -> bool {
        self.handle.shared.routes.any()
    }

    /// Whether both are handles to one process.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Whether anybody else holds a handle to it.
    pub(super) fn is_held(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }

    /// Whether the process can still take requests, as far as is known now.
    pub fn alive(&self) -> bool {
        !self.handle.shared.outbox.is_closed()
    }

    /// Ends the process and waits until it is reaped: closes its standard input, after 2 s sends SIGTERM to its
    /// group, after 2 s more SIGKILL. Running exchanges end with [`StdioError::Stopped`]. May be called again.
    pub async fn stop(&self) {
        self.handle.stop.send_replace(true);
        let mut done = self.handle.done.clone();
        // Nothing is ever sent; the only end is that the owning task drops its side.
        while done.changed().await.is_ok() {}
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("name", &self.handle.shared.name).field("alive", &self.alive()).finish()
    }
}

/// One request on its way. Dropping it before the answer came does what its [`OnDrop`] says.
pub struct Exchange {
    shared: Arc<Shared>,
    key: ExchangeKey,
    inbox: Arc<Inbox>,
    on_drop: OnDrop,
    sent: bool,
}

impl Exchange {
    /// The next message that belongs to this request, ids and tokens as the client knows them: its progress, other
    /// notifications and requests of the server that it caused, and last its response or error; then `None`.
    /// Safe to use in `select!`.
    ///
    /// # Errors
    /// When the process is gone or this exchange was not read fast enough. An error is final.
    pub async fn next(&mut self) -> Result<Option<Message>, StdioError> {
        self.inbox.next().await
    }

    /// Names this request to [`Process::cancel`].
    pub fn key(&self) -> ExchangeKey {
        self.key
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let runs = self.shared.routes.remove(self.key);
        if runs && self.sent && self.on_drop == OnDrop::Cancel {
            self.shared.outbox.send_now(routes::cancellation(self.key));
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Messages of the server that belong to no running exchange; see [`Process::unsolicited`].
pub struct Unsolicited {
    shared: Arc<Shared>,
}

impl Unsolicited {
    /// The next message. Safe to use in `select!`.
    ///
    /// # Errors
    /// When the process is gone.
    pub async fn next(&mut self) -> Result<Message, StdioError> {
        match self.shared.unsolicited.next().await {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(StdioError::Closed),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Unsolicited {
    fn drop(&mut self) {
        self.shared.unsolicited_taken.store(false, Ordering::Release);
    }
}

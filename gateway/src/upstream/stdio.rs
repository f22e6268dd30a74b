//! An upstream MCP server as a child process: one JSON message per line on its standard input and output.
//!
//! Several clients may share one process ([`multiplex`]). One task owns the process from birth to reaping (`life`).
//!
//! No orphans: the child leads a process group of its own, and the group is killed when the owning task ends for any
//! reason, a panic or the end of the runtime included. A gateway that is itself killed with SIGKILL runs no code; then
//! the child reads the end of its standard input, which the protocol makes the signal to exit. (`PR_SET_PDEATHSIG`
//! would cover a child that ignores it, but needs unsafe code between fork and exec.) A process that leaves the group
//! with `setsid` is out of reach; a container is the remedy.

mod command;
mod confinement;
mod life;
mod write_queue;
mod pipe;
mod startup;

#[cfg(test)]
mod tests;

use std::io;
use std::process::ExitStatus;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use tokio::sync::watch;
use weir_mcp::Message;

use super::multiplex::{self, Multiplex, MultiplexExchange, MultiplexTransport};
pub use super::multiplex::{ExchangeKey, OnDrop, Whose};
use super::{SendError, crashes::CrashRecord, reply::too_long};
use crate::{
    counters::{PROCESS_EXITS, PROCESS_STARTS},
    quota::Permit,
};
pub use command::StdioCommand;
pub use confinement::Confinement;
use startup::Startup;
use write_queue::WriteQueue;

/// What can go wrong with a process. Neither arguments nor environment nor any part of a message is ever inside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StdioError {
    /// No such program.
    #[error("`{0}` was not found; install it, or set `command` to its full path (PATH is searched)")]
    NotFound(String),
    /// The file is there but its first line names an interpreter that is not.
    #[error("`{0}` is there, but the interpreter or loader it needs is not; look at its first line")]
    NoInterpreter(String),
    /// The file is there but may not be run.
    #[error("`{0}` may not be executed; make it executable (chmod +x) or start it through its interpreter")]
    NotExecutable(String),
    /// The working directory is missing or not a directory.
    #[error("the working directory `{0}` does not exist; create it or correct `cwd`")]
    NoDirectory(String),
    /// A zero byte in the program's name, an argument or the environment.
    #[error("`command`, `args` and `env` must not contain zero bytes")]
    ZeroByte,
    /// The system refused for another reason.
    #[error("the process could not be started: {0}")]
    Spawn(io::ErrorKind),
    /// The process ended by itself.
    #[error("the server process ended ({0}); what it wrote to stderr is in the log")]
    Exited(ExitStatus),
    /// The process ended, and seems to have reached a limit.
    #[error("the server process ended ({0}); it seems to have reached `{1}`; what it wrote to stderr is in the log")]
    LimitReached(ExitStatus, &'static str),
    /// The process lives, but closed its standard input or output.
    #[error("the server process closed its standard input or output")]
    Closed,
    /// The process left its standard input unread for 30 s although there was more to read than a pipe holds.
    #[error("the server process stopped reading its standard input and was stopped")]
    Stuck,
    /// We stopped the process.
    #[error("the server process was stopped")]
    Stopped,
}

/// A running server process. Clones are handles to the same process; when the last one is dropped the process is
/// stopped, even if an [`MultiplexExchange`] is still open.
#[derive(Clone)]
pub struct Process {
    handle: Arc<ProcessHandle>,
}

struct ProcessHandle {
    shared: Arc<ProcessShared>,
    /// Tells the owning task to stop; it also sees when this is dropped.
    stop: watch::Sender<bool>,
    /// Closed by the owning task when all is over.
    done: watch::Receiver<()>,
}

/// What the handles, the exchanges and the owning task have in common.
struct ProcessShared {
    multiplex: Multiplex,
    outbox: WriteQueue,
    startup: Startup,
    crashes: CrashRecord,
    /// Whether it has been noted in the log that the server leaves answers unread.
    unread: AtomicBool,
    ended: watch::Sender<Option<StdioError>>,
}

impl ProcessShared {
    fn new(name: &str, outbox: WriteQueue, command: &StdioCommand, crashes: CrashRecord) -> Self {
        let (multiplex, startup) =
            (Multiplex::new(name, 0, command.limit), Startup::new(command.hidden(), command.limits));
        let ended = watch::Sender::new(None);
        Self { multiplex, outbox, startup, crashes, unread: AtomicBool::new(false), ended }
    }

    fn name(&self) -> &Arc<str> {
        self.multiplex.name()
    }

    async fn send(&self, message: Bytes) -> Result<(), SendError> {
        if self.outbox.send(message).await.is_ok() {
            return Ok(());
        }
        // The pipe is known to be closed a little before the reason is.
        let mut ended = self.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        Err(reason.unwrap_or(StdioError::Closed).into())
    }

    /// Takes in a message of the process.
    fn hear(&self, line: pipe::PipeLine) {
        self.startup.hear();
        let message = match line {
            pipe::PipeLine::Message(message) => message,
            pipe::PipeLine::TooLong { start, end, limit } => {
                return self.multiplex.pass_over(&start, &end, too_long(limit));
            }
        };
        if let Some(answer) = self.multiplex.deliver(message)
            && !self.outbox.offer(answer)
            && !self.unread.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(upstream = &**self.name(), "asks more than it reads the answers to; they are dropped");
        }
    }

    /// Notes that the process has ended by itself.
    fn crashed(&self, why: String) {
        PROCESS_EXITS.count(self.name(), "");
        if let Some(pause) = self.crashes.ended(why) {
            let (upstream, pause) = (&**self.name(), format_args!("{:.1} s", pause.as_secs_f32()).to_string());
            tracing::warn!(
                upstream,
                pause,
                "the server process keeps ending soon after its start; the next start waits"
            );
        }
    }

    /// Ends every exchange and refuses new ones. The first reason stays.
    fn end(&self, reason: StdioError) {
        self.outbox.close();
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert_with(|| reason.clone());
            is_first
        });
        self.multiplex.end(reason.into());
    }
}

impl MultiplexTransport for ProcessShared {
    fn multiplex(&self) -> &Multiplex {
        &self.multiplex
    }

    fn send_now(self: Arc<Self>, message: Bytes) {
        self.outbox.send_now(message);
    }
}

impl Process {
    /// Starts `command` as the upstream called `name` (which appears in the log). The permit is given back when the process
    /// is gone. If the process ends by itself, that is noted in `crashes`.
    ///
    /// # Errors
    /// Says what to correct in the configuration. A program that starts and fails at once is no error here; the
    /// first request is told so.
    pub(super) async fn spawn(
        name: &str,
        command: &StdioCommand,
        permit: Permit,
        crashes: CrashRecord,
    ) -> Result<Self, StdioError> {
        let (outbox, lines) = WriteQueue::new();
        let shared = Arc::new(ProcessShared::new(name, outbox, command, crashes));
        let (stop, stop_seen) = watch::channel(false);
        let (done_sender, done) = watch::channel(());
        let leader = life::Leader::spawn(command, permit)?;
        PROCESS_STARTS.count(name, "");
        let limits = (command.limit, command.limits);
        tokio::spawn(life::own((leader, limits.0, limits.1), lines, Arc::clone(&shared), stop_seen, done_sender));
        Ok(Self { handle: Arc::new(ProcessHandle { shared, stop, done }) })
    }

    /// Sends a request under an id and progress token of our own and returns where its messages arrive.
    ///
    /// # Errors
    /// If the message is no request, or the process is gone.
    pub async fn request(
        &self,
        message: &Message,
        on_drop: OnDrop,
        whose: Whose,
    ) -> Result<MultiplexExchange, SendError> {
        let shared = &self.handle.shared;
        let exchange = MultiplexExchange::start(Arc::clone(shared) as _, message, on_drop, whose)?;
        if shared.multiplex.spares(message) {
            shared.multiplex.answer_here(exchange.key());
            return Ok(exchange);
        }
        shared.send(multiplex::outgoing(message, exchange.key())).await?;
        Ok(exchange.sent())
    }

    /// Sends a notification, or the answer to a request of the server, as it is.
    ///
    /// # Errors
    /// If the process is gone.
    pub async fn notify(&self, message: &Message) -> Result<(), SendError> {
        self.handle.shared.send(message.bytes().clone()).await
    }

    /// Sends the client's `notifications/cancelled`, its `requestId` replaced by the one the process knows. Does
    /// nothing if the request has been answered. The exchange stays open until it is dropped.
    ///
    /// # Errors
    /// If the message has no `requestId`, or the process is gone.
    pub async fn cancel(&self, exchange: ExchangeKey, cancelled: &Message) -> Result<(), SendError> {
        let shared = &self.handle.shared;
        let line = multiplex::cancelled(cancelled, exchange)?;
        if shared.multiplex.mark_cancelled(exchange) {
            shared.send(line).await?;
        }
        Ok(())
    }

    /// What its requests share.
    pub(super) fn stream(&self) -> Arc<dyn MultiplexTransport> {
        Arc::clone(&self.handle.shared) as _
    }

    /// Why it takes no more requests, once it does not.
    pub(super) fn end(&self) -> Option<StdioError> {
        self.handle.shared.ended.borrow().clone()
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

    /// Whether the process has read the first that was written to it, as far as the system tells.
    pub(super) fn has_read(&self) -> bool {
        self.handle.shared.startup.has_read()
    }

    /// Resolves when it has.
    pub(super) async fn reads(&self) {
        self.handle.shared.startup.reads().await;
    }

    /// The last lines that it wrote to standard error, if it has not answered yet.
    pub(super) fn last_lines(&self) -> Option<String> {
        self.handle.shared.startup.last_lines()
    }

    /// Notes that it has ended by itself before it answered anything.
    pub(super) fn failed_to_start(&self, why: String) {
        if self.handle.shared.startup.is_starting() {
            self.handle.shared.crashed(why);
        }
    }

    /// What is closed when all of its group is gone.
    pub(super) fn done(&self) -> watch::Receiver<()> {
        self.handle.done.clone()
    }

    /// Ends the process and waits until it is reaped: closes its standard input, after 2 s sends SIGTERM to its
    /// group, after 2 s more SIGKILL, or after 15 s more if it has not answered yet. Running exchanges end with
    /// [`StdioError::Stopped`]. May be called again.
    pub async fn stop(&self) {
        self.handle.stop.send_replace(true);
        let mut done = self.handle.done.clone();
        // Nothing is ever sent; the only end is that the owning task drops its side.
        while done.changed().await.is_ok() {}
    }
}

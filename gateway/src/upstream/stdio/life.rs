//! The task that owns a process from birth to reaping, and the ladder by which it ends.
//!
//! A process that has not answered yet may be a package manager in the middle of an installation. npm rolls back on
//! SIGTERM and leaves a damaged cache on SIGKILL, so a process that is starting gets much more time between the two.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, warn};

use crate::{config::ProcessLimits, open_files, quota::Permit};

use super::command::StdioCommand;
use super::confinement::reached;
use super::write_queue::QueueReader;
use super::{ProcessShared, StdioError, pipe};

/// Between closing standard input and SIGTERM, and between SIGTERM and SIGKILL.
const STEP: Duration = Duration::from_secs(2);
/// Between SIGTERM and SIGKILL where a process has not answered yet.
const CLEAN_UP: Duration = Duration::from_secs(15);
/// A process that closes a pipe is usually about to exit; its status tells more than the pipe.
const EXIT_FOLLOWS: Duration = Duration::from_millis(200);
/// For the last output after the exit. Only a process that inherited the pipes can make it last that long.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The process that we started, which leads a process group of its own.
pub(super) struct Leader {
    /// As long as the child is not reaped, nobody else can get this id, so signals to the group hit no stranger.
    group: Pid,
    reaped: bool,
    child: Child,
    child_changed: unix::Signal,
    pipes: Option<(ChildStdin, ChildStdout, ChildStderr)>,
    _permit: Permit,
}

impl Leader {
    pub(super) fn spawn(command: &StdioCommand, permit: Permit) -> Result<Self, StdioError> {
        // Before the child exists, so that not even an instant exit is missed.
        // A missing program is an error of the configuration; `weir exec` could only say so on standard error.
        if command.confinement().confines() && !command.found() {
            return Err(command.explain(&io::ErrorKind::NotFound.into()));
        }
        let child_changed = unix::signal(SignalKind::child()).map_err(|error| StdioError::Spawn(error.kind()))?;
        let mut child = command.prepared().spawn().map_err(|error| command.explain(&error))?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or(StdioError::Closed)?;
        if command.limits.open_files.is_none() {
            open_files::give_back(group);
        }
        let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
        let pipes = pipes.map(|((stdin, stdout), stderr)| (stdin, stdout, stderr));
        Ok(Self { group, reaped: false, child, child_changed, pipes, _permit: permit })
    }

    /// Waits until the process has exited, without reaping it.
    async fn exited(&mut self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Ok(None) = waitid(WaitId::Pid(self.group), options) {
            self.child_changed.recv().await;
        }
    }

    fn signal(&self, signal: Signal) {
        // Fails only if the whole group is gone.
        let _ = kill_process_group(self.group, signal);
    }

    /// Ends the group, whose standard input is closed by now, and reaps the leader.
    async fn end(&mut self, outputs: &mut JoinSet<()>, starting: bool) -> Option<ExitStatus> {
        let _ = timeout(STEP, self.exited()).await;
        // Also where the leader is gone: its own children may not be.
        self.signal(Signal::TERM);
        let end = Instant::now() + if starting { CLEAN_UP } else { STEP };
        if timeout_at(end, self.exited()).await.is_err() {
            self.signal(Signal::KILL);
        }
        // Whatever holds the pipes open is of the group, and may still be cleaning up.
        let last_words = Instant::now() + LAST_WORDS;
        let end = if starting { end.max(last_words) } else { last_words };
        let _ = timeout_at(end, async { while outputs.join_next().await.is_some() {} }).await;
        self.signal(Signal::KILL);
        // Not even SIGKILL ends a process that hangs inside the kernel; tokio reaps it later.
        let status = timeout(STEP, self.child.wait()).await.ok()?.ok()?;
        self.reaped = true;
        Some(status)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
        }
    }
}

/// Runs until the process has ended, is asked to stop, or loses its last handle; then makes sure that it is gone.
pub(super) async fn own(
    (mut leader, limit, limits): (Leader, usize, ProcessLimits),
    lines: QueueReader,
    shared: Arc<ProcessShared>,
    mut stop: watch::Receiver<bool>,
    _done: watch::Sender<()>,
) {
    let ending = EndWithTask(shared);
    let shared = &ending.0;
    let Some((mut stdin, stdout, stderr)) = leader.pipes.take() else {
        return;
    };

    let mut outputs = JoinSet::new();
    let (output_ended, output_end) = oneshot::channel();
    let reader = Arc::clone(shared);
    outputs.spawn(async move {
        let end = pipe::read_messages(stdout, (Arc::clone(reader.name()), limit), |line| reader.hear(line)).await;
        let _ = output_ended.send(end);
    });
    let logger = Arc::clone(shared);
    outputs.spawn(async move { pipe::log_stderr(stderr, logger.name(), &logger.startup).await });

    let startup = &shared.startup;
    let input = stdin.as_fd().try_clone_to_owned().ok();
    let reason = tokio::select! {
        _ = stop.wait_for(|stop| *stop) => StdioError::Stopped,
        end = output_end => end.unwrap_or(StdioError::Closed),
        end = pipe::write_lines(&mut stdin, lines, pipe::WRITE_LIMIT, || startup.wrote()) => end,
        () = leader.exited() => StdioError::Closed,
        never = startup.watch(input) => never,
    };
    startup.look(&stdin);
    drop(stdin);

    let exit_likely = reason == StdioError::Closed && timeout(EXIT_FOLLOWS, leader.exited()).await.is_ok();
    if !exit_likely {
        shared.end(reason.clone());
    }
    let status = leader.end(&mut outputs, shared.startup.is_starting()).await;
    if let Some(status) = status {
        let last_lines = shared.startup.all_last_lines();
        let end = match reached(&limits, status, shared.startup.complaint()) {
            Some(key) => StdioError::LimitReached(status, key),
            None => StdioError::Exited(status),
        };
        if reason != StdioError::Stopped && !shared.startup.is_starting() {
            shared.crashed(crash(&end, &last_lines));
        }
        shared.end(end);
        debug!(upstream = &**shared.name(), %status, "the server process is gone");
    } else {
        warn!(upstream = &**shared.name(), "the server process does not even end on SIGKILL; it is left to the system");
    }
}

/// How a process ended that had answered before, for the operator.
fn crash(end: &StdioError, last_lines: &str) -> String {
    let how = match end {
        StdioError::LimitReached(status, key) => format!("{status}, it seems to have reached `{key}`"),
        StdioError::Exited(status) => status.to_string(),
        end => end.to_string(),
    };
    let mut text = format!("the server process ended soon after its start ({how})");
    if !last_lines.is_empty() {
        text.push_str("; its standard error ends with: ");
        text.push_str(last_lines);
    }
    text
}

/// Ends the exchanges with the task, should it panic or be aborted.
struct EndWithTask(Arc<ProcessShared>);

impl Drop for EndWithTask {
    fn drop(&mut self) {
        self.0.end(StdioError::Stopped);
    }
}

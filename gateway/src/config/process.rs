//! An upstream that is a child process.

use std::path::PathBuf;

use super::{Secret, SystemUser};

/// An upstream that Weir starts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StdioReach {
    /// The program, looked up in `PATH` unless it has a separator in it.
    pub command: String,
    /// Its arguments.
    pub args: Vec<Secret>,
    /// Environment variables for it alone.
    pub env: Vec<(String, Secret)>,
    /// The names of Weir's own variables that it gets too, beside the few that every program gets.
    pub inherit: Vec<String>,
    /// What of these no message may show: what they refer to, and the value of each variable.
    pub secrets: Vec<Secret>,
    /// The directory it runs in; the configuration's own unless the file says otherwise. Absolute.
    pub cwd: PathBuf,
    /// Whether one process serves all clients.
    pub shared: bool,
    /// The command that starts it, and that command's arguments; empty if Weir starts it itself.
    pub wrapper: Vec<Secret>,
    /// The user that it runs as; none for Weir's own.
    pub user: Option<SystemUser>,
    /// What each of its processes may take.
    pub limits: ProcessLimits,
}

/// What one process may take; none is as much as the system allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Private writable memory, in bytes.
    pub memory: Option<u64>,
    /// Processor time from its start to its end, in seconds.
    pub cpu_seconds: Option<u64>,
    /// Open files, sockets and pipes.
    pub open_files: Option<u64>,
    /// Processes and threads of its user.
    pub processes: Option<u64>,
}

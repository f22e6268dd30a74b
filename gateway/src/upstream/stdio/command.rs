//! What to start, with which environment, and why it did not start.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::config::{ProcessLimits, SystemUser, inherited_variables};

use super::{Confinement, StdioError};

/// A program and how to start it. Arguments and environment may be secret: `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct StdioCommand {
    /// A path, or a name that is looked up in `PATH`.
    pub program: String,
    /// Its arguments, the program itself not among them.
    pub args: Vec<String>,
    /// Set over what it inherits.
    pub env: Vec<(String, String)>,
    /// The names of variables that it inherits beside a few harmless ones (`PATH`, `HOME` and the like).
    pub inherit: Vec<String>,
    /// Where it runs; `None` is our own working directory.
    pub cwd: Option<PathBuf>,
    /// Whose home and name it sees; none for Weir's own.
    pub user: Option<SystemUser>,
    /// What its process may take.
    pub limits: ProcessLimits,
    /// What of all this no message may show, whatever the program writes.
    pub secrets: Vec<String>,
    /// The longest line that is read from it, in bytes.
    pub limit: usize,
}

impl fmt::Debug for StdioCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").field("program", &self.program).finish_non_exhaustive()
    }
}

impl StdioCommand {
    /// Ready to spawn: pipes on all three streams, a process group of its own, killed when it is dropped.
    pub(super) fn prepared(&self) -> tokio::process::Command {
        let confinement = self.confinement();
        let mut command = if confinement.confines() {
            let mut command = tokio::process::Command::new(own_program());
            command.arg("exec").args(confinement.options()).arg("--").arg(&self.program);
            command
        } else {
            tokio::process::Command::new(&self.program)
        };
        command
            .args(&self.args)
            .env_clear()
            .envs(inherited_variables(&self.inherit))
            .envs(self.of_user())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        command
    }

    /// What it is confined to before it begins.
    pub(super) fn confinement(&self) -> Confinement {
        Confinement { user: self.user.as_ref().map(|user| user.name.clone()), limits: self.limits }
    }

    /// The system says "no such file" for a missing program, a missing directory and a missing interpreter alike.
    pub(super) fn explain(&self, error: &io::Error) -> StdioError {
        let program = || self.program.clone();
        if let Some(cwd) = self.cwd.as_deref().filter(|cwd| !cwd.is_dir()) {
            return StdioError::NoDirectory(cwd.display().to_string());
        }
        match error.kind() {
            io::ErrorKind::NotFound if self.found() => StdioError::NoInterpreter(program()),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StdioError::NotFound(program()),
            io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => StdioError::NotExecutable(program()),
            io::ErrorKind::InvalidInput => StdioError::ZeroByte,
            kind => StdioError::Spawn(kind),
        }
    }

    /// Whether the program is where it is looked for.
    pub(super) fn found(&self) -> bool {
        if self.program.contains('/') {
            let base = self.cwd.as_deref().unwrap_or(Path::new(""));
            return base.join(&self.program).is_file();
        }
        let configured = self.env.iter().rev().find(|(name, _)| name == "PATH");
        let path = configured.map_or_else(|| env::var_os("PATH"), |(_, value)| Some(value.into()));
        path.is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(&self.program).is_file()))
    }

    /// What no message may show: also what it inherits by name, such as a proxy's address with a password in it.
    pub(super) fn hidden(&self) -> Vec<String> {
        let inherited = self.inherit.iter().filter_map(|name| env::var(name).ok());
        self.secrets.iter().cloned().chain(inherited).collect()
    }

    /// The variables that tell of the user.
    fn of_user(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        self.user.iter().flat_map(|user| {
            let name = OsStr::new(&user.name);
            [("HOME", user.home.as_os_str()), ("LOGNAME", name), ("USER", name), ("SHELL", user.shell.as_os_str())]
        })
    }
}

/// The program that runs now; on Linux also where its file has been replaced.
fn own_program() -> PathBuf {
    let linked = PathBuf::from("/proc/self/exe");
    if cfg!(target_os = "linux") { linked } else { env::current_exe().unwrap_or(linked) }
}

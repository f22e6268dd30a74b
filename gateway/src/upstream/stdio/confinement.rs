//! What a program is confined to before it begins: a user, and limits on what its process may take.
//!
//! Both are set by the process that becomes the program, so that no instruction of it runs without them. Code between
//! fork and exec is unsafe in a program with threads. So Weir starts itself once more, with no threads yet, and that
//! process takes the limits, becomes the user and then the program (`weir exec`).

use std::{
    ffi::OsString,
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, ExitStatus},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::ProcessLimits;

/// SIGXCPU, which a process gets that has used its processor time.
const SIGXCPU: i32 = rustix::process::Signal::XCPU.as_raw();
/// After SIGXCPU a process may use this many seconds to end, before it gets SIGKILL.
const LAST_SECONDS: u64 = 5;

/// A user and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// The name of the user; none for Weir's own.
    pub user: Option<String>,
    /// What the process may take.
    pub limits: ProcessLimits,
}

impl Confinement {
    /// Whether there is anything to do before the program begins.
    pub(super) fn confines(&self) -> bool {
        *self != Self::default()
    }

    /// What `weir exec` is told.
    pub(super) fn options(&self) -> Vec<String> {
        let ProcessLimits { memory, cpu_seconds, open_files, processes } = self.limits;
        let limits = [("memory", memory), ("cpu", cpu_seconds), ("open-files", open_files), ("processes", processes)];
        let limits = limits.into_iter().filter_map(|(name, limit)| Some(format!("--{name}={}", limit?)));
        self.user.iter().map(|user| format!("--user={user}")).chain(limits).collect()
    }

    /// Becomes the program. Returns only if that fails, with the reason.
    #[must_use]
    pub fn become_program(&self, program: &str, args: &[OsString]) -> io::Error {
        match self.take() {
            Ok(()) => Command::new(program).args(args).exec(),
            Err(error) => error,
        }
    }

    fn take(&self) -> io::Result<()> {
        let ProcessLimits { memory, cpu_seconds, open_files, processes } = self.limits;
        limit(Resource::Cpu, cpu_seconds, LAST_SECONDS)?;
        limit(Resource::Nofile, open_files, 0)?;
        limit(Resource::Nproc, processes, 0)?;
        limit(Resource::Data, memory, 0)?;
        self.user.as_deref().map_or(Ok(()), become_user)
    }
}

/// Limits this process and those that it starts; `more` is between the limit and what the system enforces at once.
fn limit(resource: Resource, limit: Option<u64>, more: u64) -> io::Result<()> {
    let Some(limit) = limit else { return Ok(()) };
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let limits = Rlimit { current: Some(limit.min(most)), maximum: Some((limit + more).min(most)) };
    Ok(setrlimit(resource, limits)?)
}

/// Takes the groups and the ids of a user, for ever: no program that this process starts can take others.
#[cfg(target_os = "linux")]
fn become_user(name: &str) -> io::Result<()> {
    use nix::unistd::{User, initgroups, setgid, setuid};
    let gone = || io::Error::other(format!("this system has no user `{name}`"));
    let user = User::from_name(name)?.ok_or_else(gone)?;
    initgroups(&std::ffi::CString::new(name)?, user.gid)?;
    setgid(user.gid)?;
    setuid(user.uid)?;
    nix::sys::prctl::set_no_new_privs()?;
    Ok(())
}

/// No configuration with a user is taken here.
#[cfg(not(target_os = "linux"))]
fn become_user(_: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The limit that a process seems to have reached which ended in this way and has `complained`: the key.
///
/// Only SIGXCPU is a proof. A process without memory, files or threads is told so by the system, and ends as it likes.
pub(super) fn reached(
    limits: &ProcessLimits,
    status: ExitStatus,
    complained: Option<&'static str>,
) -> Option<&'static str> {
    let out_of_time = limits.cpu_seconds.is_some() && status.signal() == Some(SIGXCPU);
    if out_of_time { Some("process_limits.cpu_time") } else { complained.filter(|_| !status.success()) }
}

/// The limit that a line of standard error complains of: the key.
pub(super) fn complaint(limits: &ProcessLimits, line: &str) -> Option<&'static str> {
    if *limits == ProcessLimits::default() {
        return None;
    }
    let line = line.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| line.contains(word));
    let out_of_memory = ["out of memory", "memoryerror", "allocate", "allocation fail", "enomem", "bad_alloc"];
    let out_of_processes = ["resource temporarily unavailable", "can't start new thread", "eagain", "cannot fork"];
    if limits.open_files.is_some() && says(&["too many open files", "emfile"]) {
        Some("process_limits.open_files")
    } else if limits.processes.is_some() && says(&out_of_processes) {
        Some("process_limits.processes")
    } else if limits.memory.is_some() && says(&out_of_memory) {
        Some("process_limits.memory")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_real_programs_tell_which_limit_it_was() {
        let all = ProcessLimits { memory: Some(1), cpu_seconds: Some(1), open_files: Some(1), processes: Some(1) };
        for (line, key) in [
            ("# Fatal process out of memory: Failed to reserve virtual memory for CodeRange", "process_limits.memory"),
            (
                "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
                "process_limits.memory",
            ),
            ("MemoryError", "process_limits.memory"),
            ("terminate called after throwing an instance of 'std::bad_alloc'", "process_limits.memory"),
            ("OSError: [Errno 24] Too many open files: '/dev/null'", "process_limits.open_files"),
            ("Error: EMFILE: too many open files, open 'x'", "process_limits.open_files"),
            ("RuntimeError: can't start new thread", "process_limits.processes"),
            ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "process_limits.processes"),
        ] {
            assert_eq!(complaint(&all, line), Some(key), "{line}");
            assert_eq!(complaint(&ProcessLimits::default(), line), None, "there is no such limit");
        }
        assert_eq!(complaint(&all, "Server running on stdio"), None);
        assert_eq!(reached(&all, ExitStatus::from_raw(SIGXCPU), None), Some("process_limits.cpu_time"));
        assert_eq!(reached(&all, ExitStatus::from_raw(0), Some("process_limits.memory")), None, "it ended well");
        let failed = ExitStatus::from_raw(1 << 8);
        assert_eq!(reached(&all, failed, Some("process_limits.memory")), Some("process_limits.memory"));
    }
}

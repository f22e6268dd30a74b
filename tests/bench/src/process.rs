//! A process under test: started on a free port, watched from outside, and always ended.

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::time::ClockId;
use nix::unistd::Pid;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(3);

/// How many lines of a failed start are told.
const LAST_WORDS: usize = 20;

/// A child process that ends with its owner.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts `command`. Its output is thrown away: a log that is written costs what it costs, but nobody reads it here.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        // The piped input is closed when this process ends, however it ends; our own servers stop then.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("cannot start {}", shown(command)))?;
        Ok(Self { child })
    }

    /// The process and everything it has started, but for the bench's own server.
    pub(crate) fn family(&self) -> Result<Family> {
        let parents = parents()?;
        let mut members = vec![self.pid()];
        let mut next = 0;
        while let Some(parent) = members.get(next).copied() {
            members.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child).filter(is_anothers));
            next += 1;
        }
        Ok(Family { members })
    }

    /// An error if the process has ended already.
    pub(crate) fn still_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the process ended by itself: {status}"),
        }
    }

    /// How many instructions it has run, as callgrind counts them. Each look leaves a profile in `dir` of what was run since
    /// the last one.
    pub(crate) fn instructions(&self, dir: &Path) -> Result<f64> {
        let name = format!("{PROFILE}{}", self.pid());
        let dumped = Command::new("callgrind_control").args(["--dump", &self.pid().to_string()]).output()?;
        ensure!(dumped.status.success(), "callgrind_control: {}", String::from_utf8_lossy(&dumped.stderr));
        let mut total = 0.0;
        for entry in std::fs::read_dir(dir)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&name) {
                let profile = std::fs::read_to_string(entry.path())?;
                let line = profile.lines().find_map(|line| line.strip_prefix("totals:"));
                total += line.and_then(|count| count.trim().parse::<f64>().ok()).unwrap_or_default();
            }
        }
        ensure!(total > 0.0, "no profile in {}", dir.display());
        Ok(total)
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

/// What the names of profiles begin with.
const PROFILE: &str = "callgrind.out.";

/// The same command, whose instructions are counted.
pub(crate) fn counted(command: &Command, dir: &Path) -> Command {
    let mut counted = Command::new("valgrind");
    counted.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}/{PROFILE}%p", dir.display()));
    counted.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            counted.env(name, value);
        }
    }
    counted
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // A failure here means that the process is gone, which is the aim.
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGTERM);
        let start = Instant::now();
        while start.elapsed() < END_LIMIT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes whose cost is counted together.
pub(crate) struct Family {
    members: Vec<i32>,
}

impl Family {
    /// CPU time used since they started, in microseconds, threads that have ended included.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let mut total = Duration::ZERO;
        for pid in &self.members {
            let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(*pid)).context("the process under test is gone")?;
            total += Duration::from(clock.now()?);
        }
        Ok(total.as_secs_f64() * 1e6)
    }

    /// Resident memory, bytes.
    pub(crate) fn resident(&self) -> Result<u64> {
        let mut total = 0;
        for pid in &self.members {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
            total += kibibytes.ok_or_else(|| anyhow!("no VmRSS for process {pid}"))? * 1024;
        }
        Ok(total)
    }
}

/// An address on loopback that is free now.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Ends this process when its standard input closes, so that it does not outlive the bench.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}

/// What `command` writes in its first moments. For a subject that did not start: its output is thrown away otherwise.
pub(crate) fn last_words(command: &mut Command, dir: &Path) -> Result<String> {
    let file = dir.join("last-words");
    let mut process = Process { child: command.stderr(File::create(&file)?).spawn()? };
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) && process.still_running().is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(process);
    let said = String::from_utf8_lossy(&std::fs::read(&file)?).into_owned();
    let lines: Vec<_> = said.lines().take(LAST_WORDS).collect();
    Ok(lines.join("\n"))
}

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Whether a process runs another program than this one.
fn is_anothers(pid: &i32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok() != std::env::current_exe().ok()
}

/// Every process with its parent.
fn parents() -> Result<Vec<(i32, i32)>> {
    let mut pairs = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // The name in brackets may hold anything; state and parent follow the last bracket.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        pairs.extend(parent.map(|parent| (pid, parent)));
    }
    Ok(pairs)
}

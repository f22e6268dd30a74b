//! Child processes of a test: their output is kept, they end with the test, and what they leave behind can be counted.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::wait::until_some;

/// A child process in a group of its own. Dropping it kills the group.
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Mutex<Output>>,
    /// Who reads what it prints, on each stream.
    readers: [JoinHandle<()>; 2],
}

/// What a process has printed.
#[derive(Default)]
struct Output {
    /// Whole lines, of both streams.
    lines: String,
    /// The line of each stream that has no end yet.
    rest: [Vec<u8>; 2],
}

impl Process {
    /// Starts `command`; what it prints on either stream is kept.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: &str, command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let output = Arc::<Mutex<Output>>::default();
        let readers = [
            keep(0, child.stdout.take().expect("stdout is piped"), &output),
            keep(1, child.stderr.take().expect("stderr is piped"), &output),
        ];
        Self { name: name.to_owned(), child, output, readers }
    }

    /// Every line it has printed until now.
    pub fn output(&self) -> String {
        lock(&self.output).lines.clone()
    }

    /// The same with the lines that have no end yet.
    pub fn shown(&self) -> String {
        let output = lock(&self.output);
        let rest = output.rest.iter().map(|rest| String::from_utf8_lossy(rest));
        std::iter::once(output.lines.as_str().into()).chain(rest).collect()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child is ours")
    }

    /// Sends it `signal`, and nobody else.
    pub fn signal(&self, signal: Signal) {
        kill_process(pid(self.id()), signal).expect("the child is ours and not yet waited for");
    }

    /// Waits until it has ended by itself. What it printed is read by then.
    ///
    /// # Panics
    /// When that takes too long, with its output.
    pub async fn end(&mut self) -> ExitStatus {
        let what = format!("{} ends; it said:\n{}", self.name, self.shown());
        until_some(&what, || self.ended().filter(|_| self.is_read())).await
    }

    /// Whether all that it and those that it has started will ever print has been read.
    fn is_read(&self) -> bool {
        self.readers.iter().all(JoinHandle::is_finished)
    }

    /// Looks through its lines, from the first, for one that `find` can use; waits until there is one.
    ///
    /// # Panics
    /// When it ends before, or takes too long; with its output.
    pub async fn says<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let name = self.name.clone();
        let patience = format!("{name} says {what}");
        let found = until_some(&patience, || {
            let ended = self.ended().filter(|_| self.is_read());
            let output = self.output();
            match (output.lines().find_map(&find), ended) {
                (Some(found), _) => Some(Ok(found)),
                (None, Some(status)) => Some(Err((status, output))),
                (None, None) => None,
            }
        });
        match found.await {
            Ok(found) => found,
            Err((status, output)) => panic!("{name} ended with {status} before it said {what}:\n{output}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = kill_process_group(pid(self.child.id()), Signal::KILL);
            let _ = self.child.wait();
        }
        if thread::panicking() {
            let output = self.shown();
            eprintln!("--- {} said:\n{output}--- end of {}", self.name, self.name);
        }
    }
}

/// The same command without what lets root read and write where nobody may: the rights of files apply to it, as to
/// everybody else.
pub fn without_rights(command: &Command) -> Command {
    if !rustix::process::geteuid().is_root() {
        return again(Command::new(command.get_program()), command);
    }
    let mut humble = Command::new("setpriv");
    humble.arg("--bounding-set=-dac_override,-dac_read_search").arg(command.get_program());
    again(humble, command)
}

fn again(mut new: Command, command: &Command) -> Command {
    new.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => new.env(name, value),
            None => new.env_remove(name),
        };
    }
    new
}

/// The processes that `parent` has started and that still run, and theirs, as (id, command line). Zombies do not run.
pub fn descendants(parent: u32) -> Vec<(u32, String)> {
    let all = processes();
    let mut family = vec![parent];
    let mut index = 0;
    while let Some(&ancestor) = family.get(index) {
        family.extend(all.iter().filter(|process| process.parent == ancestor).map(|process| process.id));
        index += 1;
    }
    all.into_iter()
        .filter(|process| process.id != parent && family.contains(&process.id) && process.state != 'Z')
        .map(|process| (process.id, command_line(process.id)))
        .collect()
}

/// Whether a process runs: it exists and is not a zombie.
pub fn runs(id: u32) -> bool {
    status(id).is_some_and(|status| status.state != 'Z')
}

struct Status {
    id: u32,
    parent: u32,
    state: char,
}

fn processes() -> Vec<Status> {
    let entries = fs::read_dir("/proc").expect("these tests need /proc");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(status).collect()
}

/// Reads /proc/ID/stat. The name of the program stands in parentheses and may hold any character.
fn status(id: u32) -> Option<Status> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Status { id, parent, state })
}

fn command_line(id: u32) -> String {
    fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default().replace('\0', " ")
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(id.cast_signed()).expect("a process id is not zero")
}

fn keep(which: usize, mut stream: impl Read + Send + 'static, output: &Arc<Mutex<Output>>) -> JoinHandle<()> {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut chunk) {
            let mut output = lock(&output);
            let Output { lines, rest } = &mut *output;
            rest[which].extend_from_slice(&chunk[..length]);
            let whole = rest[which].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            lines.push_str(&String::from_utf8_lossy(&rest[which][..whole]));
            rest[which].drain(..whole);
        }
        let mut output = lock(&output);
        let rest = std::mem::take(&mut output.rest[which]);
        output.lines.push_str(&String::from_utf8_lossy(&rest));
    })
}

fn lock(output: &Mutex<Output>) -> std::sync::MutexGuard<'_, Output> {
    output.lock().expect("no reader panics")
}

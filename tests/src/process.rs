//! Child processes of a test: their output is kept, they end with the test, and what they leave behind can be counted.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::wait::until_some;

/// A child process in a group of its own. Dropping it kills the group.
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Mutex<String>>,
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
        let output = Arc::new(Mutex::new(String::new()));
        keep(child.stdout.take().expect("stdout is piped"), &output);
        keep(child.stderr.take().expect("stderr is piped"), &output);
        Self { name: name.to_owned(), child, output }
    }

    /// Everything it has printed until now.
    pub fn output(&self) -> String {
        self.output.lock().expect("no reader panics").clone()
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

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When that takes too long, with its output.
    pub async fn end(&mut self) -> ExitStatus {
        let (name, output) = (self.name.clone(), Arc::clone(&self.output));
        let child = &mut self.child;
        let what = format!("{name} ends; it said:\n{}", output.lock().expect("no reader panics"));
        until_some(&what, || child.try_wait().expect("the child is ours")).await
    }

    /// Looks through its lines, from the first, for one that `find` can use; waits until there is one.
    ///
    /// # Panics
    /// When it ends before, or takes too long; with its output.
    pub async fn says<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let name = self.name.clone();
        let patience = format!("{name} says {what}");
        let found = until_some(&patience, || {
            let ended = self.ended();
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
            let output = self.output();
            eprintln!("--- {} said:\n{output}--- end of {}", self.name, self.name);
        }
    }
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

fn keep(stream: impl Read + Send + 'static, output: &Arc<Mutex<String>>) {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            output.lock().expect("no reader panics").push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    });
}

//! Secrets that a program prints, such as `vault kv get`.
//!
//! A command runs only where a configuration is loaded, never for a call. The configuration is looked at every two
//! seconds, so a secret is fetched anew soon after its `refresh` is over. Until then, while the command runs again and
//! while it fails, Weir uses what it printed last. Only the first run is waited for.

use std::{
    collections::HashMap,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{LazyLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use zeroize::Zeroizing;

use super::{Secret, inherit};

/// How long a command may run.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most that a command may print, in bytes.
const MAX_OUTPUT: u64 = 64 << 10;
/// How long to wait until a command that failed runs again.
const RETRY: Duration = Duration::from_secs(15);
/// How many commands a process keeps the output of.
const MAX_COMMANDS: usize = 64;
/// How long what a command has printed may take to arrive when all of it has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often to look whether a command has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What the commands of this process printed last.
static OUTPUTS: LazyLock<Mutex<HashMap<SecretCommand, Output>>> = LazyLock::new(Mutex::default);

/// A program that prints a secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecretCommand {
    /// A path, or a name that is looked up in `PATH`.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The names of variables that it inherits beside a few harmless ones.
    pub inherit: Vec<String>,
    /// Where it runs.
    pub folder: PathBuf,
    /// How long Weir uses what it printed before it runs again.
    pub refresh: Duration,
}

/// What a command printed, and when it runs again.
struct Output {
    secret: Secret,
    due: Instant,
    /// Whether the command runs again.
    running: bool,
    /// When a configuration last referred to it.
    used: Instant,
}

impl SecretCommand {
    /// What it printed last in this process. Runs nothing.
    pub(super) fn last(&self) -> Option<Secret> {
        Some(OUTPUTS.lock().get(self)?.secret.clone())
    }

    /// What it printed last. If that is older than `refresh`, the command runs again in the background. Blocks only
    /// while it runs for the first time.
    ///
    /// # Errors
    /// Why it gave nothing, without anything that it printed.
    pub(super) fn fetch(&self) -> Result<Secret, String> {
        let now = Instant::now();
        let mut outputs = OUTPUTS.lock();
        if let Some(output) = outputs.get_mut(self) {
            output.used = now;
            if now >= output.due && !output.running {
                let command = self.clone();
                // It ends when the command has, or is killed.
                let started = thread::Builder::new().name("secret".to_owned()).spawn(move || command.renew());
                output.running = started.is_ok();
                if let Err(why) = started {
                    output.due = now + RETRY.min(self.refresh);
                    self.tell(&why.to_string());
                }
            }
            return Ok(output.secret.clone());
        }
        drop(outputs);
        let secret = self.run()?;
        let mut outputs = OUTPUTS.lock();
        if outputs.len() >= MAX_COMMANDS && !outputs.contains_key(self) {
            let unused = outputs.iter().min_by_key(|(_, output)| output.used).map(|(command, _)| command.clone());
            unused.map(|command| outputs.remove(&command));
        }
        let due = Instant::now() + self.refresh;
        outputs.insert(self.clone(), Output { secret: secret.clone(), due, running: false, used: now });
        Ok(secret)
    }

    /// Runs it again. What it printed last stays while it fails.
    fn renew(&self) {
        let result = self.run();
        if let Err(why) = &result {
            self.tell(why);
        }
        let pause = if result.is_err() { RETRY.min(self.refresh) } else { self.refresh };
        if let Some(output) = OUTPUTS.lock().get_mut(self) {
            (output.due, output.running) = (Instant::now() + pause, false);
            result.into_iter().for_each(|secret| output.secret = secret);
        }
    }

    fn tell(&self, why: &str) {
        tracing::warn!(command = %self.program, "a secret cannot be fetched anew: {why}. Weir uses the last one");
    }

    /// An upstream has refused what it printed last: it runs again soon.
    pub(super) fn refused(&self) {
        if let Some(output) = OUTPUTS.lock().get_mut(self) {
            output.due = output.due.min(Instant::now() + RETRY);
        }
    }

    fn run(&self) -> Result<Secret, String> {
        let mut child = self.spawn().map_err(|why| why.to_string())?;
        let output = child.stdout.take().map(read_in_background).ok_or("its output cannot be read")?;
        let in_time = has_ended(&child, Instant::now() + TIMEOUT);
        // Its own children may hold on to what they have open.
        kill_group(&child);
        let status = child.wait().map_err(|why| why.to_string())?;
        if !in_time {
            return Err(format!("it did not end within {} seconds", TIMEOUT.as_secs()));
        }
        let bytes = output.recv_timeout(LAST_WORDS).map_err(|_| "its output did not end")?;
        let bytes = bytes.map_err(|why| why.to_string())?;
        if bytes.len() as u64 > MAX_OUTPUT {
            return Err(format!("it printed more than {} KiB", MAX_OUTPUT >> 10));
        }
        if !status.success() {
            return Err(format!("it ended with {status}; run it by hand to see why"));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| "it printed no UTF-8 text")?;
        Ok(Secret::new(text.to_owned()))
    }

    /// Its standard error may hold what is secret, and goes nowhere.
    fn spawn(&self) -> io::Result<Child> {
        Command::new(&self.program)
            .args(&self.args)
            .current_dir(&self.folder)
            .env_clear()
            .envs(inherit::variables(&self.inherit))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
    }
}

fn read_in_background(output: impl Read + Send + 'static) -> mpsc::Receiver<io::Result<Zeroizing<Vec<u8>>>> {
    let (sender, receiver) = mpsc::channel();
    // It ends when the group of the command is killed, at the latest.
    thread::spawn(move || {
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT as usize + 1));
        let read = output.take(MAX_OUTPUT + 1).read_to_end(&mut bytes);
        drop(sender.send(read.map(|_| bytes)));
    });
    receiver
}

/// Whether it ends before `end`. Its id stays its own, because nothing is reaped.
fn has_ended(child: &Child, end: Instant) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while let Some(id) = pid(child)
        && let Ok(None) = waitid(WaitId::Pid(id), options)
    {
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn kill_group(child: &Child) {
    if let Some(group) = pid(child) {
        // Fails only if the whole group is gone.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use std::{
        fs,
        os::unix::fs::PermissionsExt,
        path::{Path, PathBuf},
        time::{Duration, Instant},
    };

    use super::{OUTPUTS, SecretCommand};

    /// Waits for what a thread does.
    fn until(condition: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < end, "waited in vain");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn shell(folder: &Path, script: &str, refresh: Duration) -> SecretCommand {
        SecretCommand {
            program: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            inherit: Vec::new(),
            folder: folder.to_owned(),
            refresh,
        }
    }

    #[test]
    fn a_command_runs_again_when_its_output_is_old_and_the_last_one_stays_while_it_fails() {
        let folder = tempfile::tempdir().unwrap();
        let counting = "echo x >> runs; cat token";
        fs::write(folder.path().join("token"), "first\n").unwrap();
        let command = shell(folder.path(), counting, Duration::from_secs(3600));
        assert!(command.last().is_none(), "nothing runs for a call");
        let runs = || fs::read_to_string(folder.path().join("runs")).unwrap().lines().count();
        for _ in 0..3 {
            assert_eq!(command.fetch().unwrap().expose(), "first\n");
        }
        assert_eq!(runs(), 1);
        fs::write(folder.path().join("token"), "second\n").unwrap();
        let expire = || OUTPUTS.lock().get_mut(&command).unwrap().due = Instant::now();
        let renewed = || until(|| !OUTPUTS.lock()[&command].running);
        expire();
        assert_eq!(command.fetch().unwrap().expose(), "first\n", "nobody waits for it");
        renewed();
        assert_eq!(command.fetch().unwrap().expose(), "second\n");
        fs::remove_file(folder.path().join("token")).unwrap();
        expire();
        for _ in 0..3 {
            assert_eq!(command.fetch().unwrap().expose(), "second\n");
            renewed();
        }
        assert_eq!(runs(), 3, "a command that fails does not run each time");
        assert_eq!(command.last().unwrap().expose(), "second\n");
    }

    #[test]
    fn a_command_that_hangs_holds_up_nobody_who_knows_its_last_output() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo x >> runs; test ! -e hang || sleep 1000; echo token";
        let command = shell(folder.path(), script, Duration::from_secs(3600));
        assert_eq!(command.fetch().unwrap().expose(), "token\n");
        fs::write(folder.path().join("hang"), "").unwrap();
        OUTPUTS.lock().get_mut(&command).unwrap().due = Instant::now();
        for _ in 0..3 {
            assert_eq!(command.fetch().unwrap().expose(), "token\n");
            assert!(OUTPUTS.lock()[&command].running, "it hangs, and nobody has waited");
        }
        let runs = || fs::read_to_string(folder.path().join("runs")).unwrap().lines().count();
        until(|| runs() >= 2);
        assert_eq!(runs(), 2, "one at a time");
        assert!(OUTPUTS.lock()[&command].running, "it still hangs");
    }

    #[test]
    fn what_a_command_prints_is_bounded_and_in_no_error() {
        let folder = tempfile::tempdir().unwrap();
        for (script, why) in [
            ("echo s3cr3t; echo s3cr3t >&2; exit 3", "it ended with exit status: 3; run it by hand to see why"),
            ("head -c 70000 /dev/zero", "it printed more than 64 KiB"),
            ("printf '\\377'", "it printed no UTF-8 text"),
        ] {
            assert_eq!(shell(folder.path(), script, Duration::MAX).fetch().unwrap_err(), why);
        }
        let absent = SecretCommand { program: "/nowhere/at/all".to_owned(), ..shell(folder.path(), "", Duration::MAX) };
        assert!(absent.fetch().unwrap_err().contains("No such file"));
    }

    #[test]
    fn a_command_gets_the_variables_that_are_named_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("print");
        fs::write(&script, "#!/bin/sh\nsleep 1000 &\necho ${CARGO_PKG_NAME-none} $! > seen\necho token\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        let script = script.to_str().unwrap().to_owned();
        let refresh = Duration::from_secs(1);
        let command = SecretCommand { program: script, args: Vec::new(), ..shell(folder.path(), "", refresh) };
        let seen = || fs::read_to_string(folder.path().join("seen")).unwrap();
        assert_eq!(command.fetch().unwrap().expose(), "token\n");
        assert!(seen().starts_with("none "), "{}", seen());
        let naming = SecretCommand { inherit: vec!["CARGO_PKG_NAME".to_owned()], ..command };
        assert_eq!(naming.fetch().unwrap().expose(), "token\n");
        assert!(seen().starts_with("mcp-weir "), "{}", seen());
        let job = PathBuf::from("/proc").join(seen().split_whitespace().last().unwrap());
        // A process that was killed takes a moment to go, and may stay as a zombie until its new parent looks.
        let end = Instant::now() + Duration::from_secs(30);
        let runs = || fs::read_to_string(job.join("stat")).is_ok_and(|state| !state.contains(") Z "));
        while runs() {
            assert!(Instant::now() < end, "the job of the command still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

//! Secrets that take a while to get: what a program prints, such as `vault kv get`, and what is in the login store.
//!
//! They are fetched only where a configuration is loaded, never for a call. The configuration is looked at every two
//! seconds, so a secret is fetched anew soon after its time is over. Until then, while it is fetched again and while
//! that fails, Weir uses the last one. Only the first time is waited for.

use std::{
    collections::HashMap,
    fmt,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use zeroize::Zeroizing;

use super::{LoginStore, Secret, inherit};

/// How long a command may run.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most that a command may print, in bytes.
const MAX_OUTPUT: u64 = 64 << 10;
/// How long to wait until a command that failed runs again.
const RETRY: Duration = Duration::from_secs(15);
/// How many secrets a process keeps.
const MAX_SECRETS: usize = 512;
/// How long Weir uses what was in the store before it looks again.
const STORED: Duration = Duration::from_secs(60);
/// How long what a command has printed may take to arrive when all of it has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often to look whether a command has ended.
const LOOK: Duration = Duration::from_millis(5);

/// What was fetched last in this process.
static LAST: LazyLock<Mutex<HashMap<FetchedSecret, LastSecret>>> = LazyLock::new(Mutex::default);

/// What reads the store.
static READER: OnceLock<StoreReader> = OnceLock::new();

/// Reads a secret that is in the store; why there is none, else.
type StoreReader = Box<dyn Fn(&StoredSecret) -> Result<Secret, String> + Send + Sync>;

/// Says what reads the store. The first word counts.
pub fn read_stored_secrets(reader: StoreReader) {
    drop(READER.set(reader));
}

/// Where a secret is fetched from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FetchedSecret {
    /// A program prints it.
    Command(SecretCommand),
    /// `weir secret set` has put it into the store.
    Stored(StoredSecret),
}

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

/// A secret in the login store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredSecret {
    /// What it is called there.
    pub name: String,
    /// The store.
    pub store: Arc<LoginStore>,
}

/// What was fetched, and when it is fetched again.
struct LastSecret {
    secret: Secret,
    due: Instant,
    /// Whether it is being fetched again.
    running: bool,
    /// When a configuration last referred to it.
    used: Instant,
}

impl FetchedSecret {
    /// What was fetched last in this process. Fetches nothing.
    pub(super) fn last(&self) -> Option<Secret> {
        Some(LAST.lock().get(self)?.secret.clone())
    }

    /// What was fetched last. If that is too old, it is fetched again in the background. Blocks only the first time.
    ///
    /// # Errors
    /// Why there is nothing, without anything that is secret.
    pub(super) fn fetch(&self) -> Result<Secret, String> {
        let now = Instant::now();
        let mut all = LAST.lock();
        if let Some(last) = all.get_mut(self) {
            last.used = now;
            if now >= last.due && !last.running {
                let source = self.clone();
                // It ends when the command has or is killed, or the store has answered.
                let started = thread::Builder::new().name("secret".to_owned()).spawn(move || source.renew());
                last.running = started.is_ok();
                if let Err(why) = started {
                    last.due = now + RETRY.min(self.refresh());
                    self.tell(&why.to_string());
                }
            }
            return Ok(last.secret.clone());
        }
        drop(all);
        let secret = self.run()?;
        let mut all = LAST.lock();
        if all.len() >= MAX_SECRETS && !all.contains_key(self) {
            let unused = all.iter().min_by_key(|(_, last)| last.used).map(|(source, _)| source.clone());
            unused.map(|source| all.remove(&source));
        }
        let due = Instant::now() + self.refresh();
        all.insert(self.clone(), LastSecret { secret: secret.clone(), due, running: false, used: now });
        Ok(secret)
    }

    /// Takes this for what was fetched last, so that a configuration can be tried before a secret is kept.
    pub fn assume(self, secret: Secret) {
        let (now, running) = (Instant::now(), false);
        let last = LastSecret { secret, due: now + self.refresh(), running, used: now };
        LAST.lock().insert(self, last);
    }

    /// Fetches it again. The last one stays while that fails.
    fn renew(&self) {
        let result = self.run();
        if let Err(why) = &result {
            self.tell(why);
        }
        let pause = if result.is_err() { RETRY.min(self.refresh()) } else { self.refresh() };
        if let Some(last) = LAST.lock().get_mut(self) {
            (last.due, last.running) = (Instant::now() + pause, false);
            result.into_iter().for_each(|secret| last.secret = secret);
        }
    }

    fn tell(&self, why: &str) {
        tracing::warn!(secret = %self, "a secret cannot be fetched anew: {why}. Weir uses the last one");
    }

    /// An upstream has refused the last one: it is fetched again soon.
    pub(super) fn refused(&self) {
        if let Some(last) = LAST.lock().get_mut(self) {
            last.due = last.due.min(Instant::now() + RETRY);
        }
    }

    fn refresh(&self) -> Duration {
        match self {
            Self::Command(command) => command.refresh,
            Self::Stored(_) => STORED,
        }
    }

    fn run(&self) -> Result<Secret, String> {
        match self {
            Self::Command(command) => command.run(),
            Self::Stored(stored) => READER.get().ok_or("nothing reads the store here")?(stored),
        }
    }
}

impl fmt::Display for FetchedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Its arguments are the operator's, and say where the secret is.
            Self::Command(command) => write!(f, "command {}", command.program),
            Self::Stored(stored) => write!(f, "the stored secret {}", stored.name),
        }
    }
}

impl SecretCommand {
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

    use super::{FetchedSecret, LAST, SecretCommand};

    /// Waits for what a thread does.
    fn until(condition: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < end, "waited in vain");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn shell(folder: &Path, script: &str, refresh: Duration) -> FetchedSecret {
        FetchedSecret::Command(command(folder, script, refresh))
    }

    fn command(folder: &Path, script: &str, refresh: Duration) -> SecretCommand {
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
        let expire = || LAST.lock().get_mut(&command).unwrap().due = Instant::now();
        let renewed = || until(|| !LAST.lock()[&command].running);
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
        LAST.lock().get_mut(&command).unwrap().due = Instant::now();
        for _ in 0..3 {
            assert_eq!(command.fetch().unwrap().expose(), "token\n");
            assert!(LAST.lock()[&command].running, "it hangs, and nobody has waited");
        }
        let runs = || fs::read_to_string(folder.path().join("runs")).unwrap().lines().count();
        until(|| runs() >= 2);
        assert_eq!(runs(), 2, "one at a time");
        assert!(LAST.lock()[&command].running, "it still hangs");
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
        let absent =
            SecretCommand { program: "/nowhere/at/all".to_owned(), ..command(folder.path(), "", Duration::MAX) };
        assert!(FetchedSecret::Command(absent).fetch().unwrap_err().contains("No such file"));
    }

    #[test]
    fn a_command_gets_the_variables_that_are_named_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("print");
        fs::write(&script, "#!/bin/sh\nsleep 1000 &\necho ${CARGO_PKG_NAME-none} $! > seen\necho token\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        let script = script.to_str().unwrap().to_owned();
        let refresh = Duration::from_secs(1);
        let printing = SecretCommand { program: script, args: Vec::new(), ..command(folder.path(), "", refresh) };
        let fetched = |command: &SecretCommand| FetchedSecret::Command(command.clone()).fetch();
        let seen = || fs::read_to_string(folder.path().join("seen")).unwrap();
        assert_eq!(fetched(&printing).unwrap().expose(), "token\n");
        assert!(seen().starts_with("none "), "{}", seen());
        let naming = SecretCommand { inherit: vec!["CARGO_PKG_NAME".to_owned()], ..printing };
        assert_eq!(fetched(&naming).unwrap().expose(), "token\n");
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

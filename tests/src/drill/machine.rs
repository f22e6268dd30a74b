//! What a gateway sees of its machine, and a drill can change: names of hosts, the clock, room on the disk.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// What fakes the clock of a program (Debian's `libfaketime`).
const FAKETIME: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"];

/// How large a file may become on the full disk, in bytes: none grows any more.
const FULL: &str = "4096";

/// A file of hosts that only the gateway sees, with one name beside localhost.
pub struct Hosts(TempDir);

impl Hosts {
    /// The name.
    pub const NAME: &str = "upstream.test";
    /// No forward proxy resolves it.
    pub const ENVIRONMENT: [(&str, &str); 2] = [("NO_PROXY", "*"), ("no_proxy", "*")];

    /// One whose name leads here; none where no process may have such a file.
    ///
    /// # Panics
    /// When no file can be written.
    #[must_use]
    pub fn new() -> Option<Self> {
        let hosts = Self(TempDir::new().expect("a temporary directory can be made"));
        hosts.lead_to("127.0.0.1");
        hosts.seen_by(&Command::new("true")).output().is_ok_and(|ended| ended.status.success()).then_some(hosts)
    }

    /// From now on the name has this address.
    ///
    /// # Panics
    /// When no file can be written.
    pub fn lead_to(&self, address: &str) {
        fs::write(self.file(), format!("127.0.0.1 localhost\n{address} {}\n", Self::NAME)).expect("it can be written");
    }

    /// The same command, which sees the file.
    #[must_use]
    pub fn seen_by(&self, command: &Command) -> Command {
        let mut inside = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            inside.arg("--map-root-user");
        }
        inside.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\""]).arg(self.file());
        behind(inside, command)
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("hosts")
    }
}

/// The clock that a gateway sees.
pub(super) struct Clock {
    folder: TempDir,
    library: &'static str,
}

impl Clock {
    /// What loads into a program to fake its clock; none where that is not installed.
    pub(super) fn library() -> Option<&'static str> {
        FAKETIME.into_iter().find(|path| Path::new(path).exists())
    }

    /// A clock that is right; none where none can be faked.
    pub(super) fn new() -> Option<Self> {
        let folder = TempDir::new().expect("a temporary directory can be made");
        let clock = Self { folder, library: Self::library()? };
        clock.set("+0");
        Some(clock)
    }

    /// Sets it forward or back, such as by `+1h`.
    pub(super) fn set(&self, time: &str) {
        fs::write(self.folder.path().join("clock"), time).expect("it can be written");
    }

    /// What a program sees it by.
    pub(super) fn environment(&self) -> [(&'static str, String); 4] {
        let file = self.folder.path().join("clock");
        [
            ("LD_PRELOAD", self.library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", file.to_str().expect("the path is text").to_owned()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}

/// The disk that a gateway writes to.
pub(super) struct Disk(());

impl Disk {
    /// What `[audit]` says where calls go on without records.
    pub(super) const AUDIT: &str = "audit = { path = \"log/audit.jsonl\", on_failure = \"continue\" }\n";

    /// None where no disk can be filled (`prlimit` of util-linux).
    pub(super) fn new() -> Option<Self> {
        limit(std::process::id(), "unlimited").then_some(Self(()))
    }

    /// The same command, which a write that is too long does not end.
    pub(super) fn seen_by(command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
        behind(shell, command)
    }

    /// From now on no file of this process can grow, or each can again.
    pub(super) fn fill(&self, id: u32, is_full: bool) {
        assert!(limit(id, if is_full { FULL } else { "unlimited" }), "the limit of a child can be changed");
    }
}

fn limit(id: u32, size: &str) -> bool {
    let mut command = Command::new("prlimit");
    command.args(["--pid", &id.to_string(), &format!("--fsize={size}:unlimited")]);
    command.output().is_ok_and(|ended| ended.status.success())
}

/// A program that starts another one, with its arguments and environment.
fn behind(mut program: Command, command: &Command) -> Command {
    program.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        program.env(name, value.unwrap_or_default());
    }
    program
}

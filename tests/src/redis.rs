//! Real servers of Redis or Valkey, on free ports: one, one with replicas and Sentinels, a Cluster.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::paths;
use crate::peer::free_port;
use crate::process::Process;
use crate::wait::until;

/// The user that a server of the tests knows, and its password.
pub const USER: &str = "weir";
/// See [`USER`].
pub const PASSWORD: &str = "hunter2-redis";

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

impl StoreKind {
    const fn program(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
        }
    }

    /// Whether the machine has it. A test that cannot run says so.
    #[must_use]
    pub fn is_there(self) -> bool {
        let is_there = Command::new(self.program()).arg("--version").output().is_ok();
        if !is_there {
            eprintln!("NOT CHECKED: there is no `{}` on this machine", self.program());
        }
        is_there
    }
}

/// A server that keeps what it has in a folder of its own, ended on drop.
pub struct Redis {
    kind: StoreKind,
    process: Option<Process>,
    port: u16,
    folder: TempDir,
    more: Vec<String>,
}

impl Redis {
    /// A server that everybody may use.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start() -> Self {
        Self::start_kind(StoreKind::Redis).await
    }

    /// The same of this kind.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_kind(kind: StoreKind) -> Self {
        Self::within(TempDir::new().unwrap(), kind, &[]).await
    }

    /// One whose only user is [`USER`], who may do what `docs/scaling.md` says that Weir needs.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn with_user() -> Self {
        let page = fs::read_to_string(paths::tests().join("../docs/scaling.md")).unwrap();
        let user = page.lines().find(|line| line.starts_with(&format!("user {USER} on >PASSWORD ")));
        let user = user.expect("the page has rules for the user").replace("PASSWORD", PASSWORD);
        let config = format!("user default off\n{user}\n");
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("users.acl"), config).unwrap();
        Self::within(folder, StoreKind::Redis, &["--aclfile", "users.acl"]).await
    }

    /// One with these options.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn with(more: &[&str]) -> Self {
        Self::within(TempDir::new().unwrap(), StoreKind::Redis, more).await
    }

    async fn within(folder: TempDir, kind: StoreKind, more: &[&str]) -> Self {
        let more = more.iter().map(|&word| word.to_owned()).collect();
        let mut server = Self { kind, process: None, port: free_port(), folder, more };
        server.restart().await;
        server
    }

    /// Starts it again after [`kill`](Self::kill), with what was on its disk.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn restart(&mut self) {
        let mut command = Command::new(self.kind.program());
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--appendonly", "yes"]);
        command.args(["--appendfsync", "always", "--save", "", "--dir"]).arg(self.folder.path()).args(&self.more);
        let mut process = Process::start(self.kind.program(), &mut command);
        process.says("that it is ready", |line| line.contains("Ready to accept connections").then_some(())).await;
        self.process = Some(process);
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops it where it is, so that it accepts connections and answers nothing.
    ///
    /// # Panics
    /// When it does not run.
    pub fn freeze(&self) {
        self.process.as_ref().unwrap().signal(Signal::STOP);
    }

    /// Has it go on.
    ///
    /// # Panics
    /// When it does not run.
    pub fn thaw(&self) {
        self.process.as_ref().unwrap().signal(Signal::CONT);
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What a command answers.
    ///
    /// # Panics
    /// When it cannot be asked.
    #[allow(clippy::must_use_candidate, reason = "many commands change something, and answer nothing of worth")]
    pub fn ask(&self, words: &[&str]) -> String {
        ask(self.port, words)
    }

    /// How often a command has run.
    ///
    /// # Panics
    /// When it cannot be asked.
    #[must_use]
    pub fn calls(&self, command: &str) -> u32 {
        let said = self.ask(&["info", "commandstats"]);
        let own = format!("cmdstat_{command}:calls=");
        let found = said.lines().find_map(|line| line.strip_prefix(&own)?.split(',').next()?.parse().ok());
        found.unwrap_or_default()
    }

    /// All that it has, as it is on its disk.
    ///
    /// # Panics
    /// When that cannot be read.
    #[must_use]
    pub fn disk(&self) -> Vec<u8> {
        let folder = self.folder.path().join("appendonlydir");
        let files = fs::read_dir(folder).unwrap();
        files.flat_map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
    }
}

/// What a command answers at the server on this port.
///
/// # Panics
/// When it cannot be asked.
#[allow(clippy::must_use_candidate, reason = "many commands change something, and answer nothing of worth")]
pub fn ask(port: u16, words: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(words).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Two servers, one the replica of the other, and three Sentinels that watch them.
pub struct Sentinels {
    /// The servers: the master first.
    pub servers: [Redis; 2],
    sentinels: Vec<(u16, Process)>,
    _folder: TempDir,
}

impl Sentinels {
    /// Starts them, and waits until each knows of the others.
    ///
    /// # Panics
    /// When that does not happen.
    pub async fn start() -> Self {
        Self::start_kind(StoreKind::Redis).await
    }

    /// The same of this kind.
    ///
    /// # Panics
    /// When that does not happen.
    pub async fn start_kind(kind: StoreKind) -> Self {
        let master = Redis::start_kind(kind).await;
        let replicates = ["--replicaof", "127.0.0.1", &master.port().to_string()];
        let replica = Redis::within(TempDir::new().unwrap(), kind, &replicates).await;
        let linked = || replica.ask(&["info", "replication"]).contains("master_link_status:up");
        until("the replica has what its master has", linked).await;
        let folder = TempDir::new().unwrap();
        let mut sentinels = Vec::new();
        for number in 0..3 {
            let (file, port) = (folder.path().join(format!("{number}.conf")), free_port());
            let config = format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {} 2\n\
                 sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n",
                master.port()
            );
            fs::write(&file, config).unwrap();
            let mut command = Command::new(kind.program());
            let mut process = Process::start("a Sentinel", command.arg(&file).arg("--sentinel"));
            process.says("what it watches", |line| line.contains("+monitor").then_some(())).await;
            sentinels.push((port, process));
        }
        let whole = |port: u16| {
            let said = ask(port, &["sentinel", "master", "main"]);
            let value = |name: &str| said.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
            value("num-slaves").as_deref() == Some("1") && value("num-other-sentinels").as_deref() == Some("2")
        };
        until("the Sentinels know each other", || sentinels.iter().all(|(port, _)| whole(*port))).await;
        Self { servers: [master, replica], sentinels, _folder: folder }
    }

    /// The URL of the service.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }

    /// The port of the server that is the master now, as the Sentinels have it.
    #[must_use]
    pub fn master(&self) -> Option<u16> {
        let said = ask(self.sentinels.first()?.0, &["sentinel", "get-master-addr-by-name", "main"]);
        said.lines().nth(1)?.parse().ok()
    }
}

/// Three nodes that have all slots between them.
pub struct Cluster {
    /// The nodes.
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Starts it, and waits until all of it serves.
    ///
    /// # Panics
    /// When that does not happen.
    pub async fn start() -> Self {
        Self::start_kind(StoreKind::Redis).await
    }

    /// The same of this kind.
    ///
    /// # Panics
    /// When that does not happen.
    pub async fn start_kind(kind: StoreKind) -> Self {
        let mut nodes = Vec::new();
        while nodes.len() < 3 {
            let (bus, timeout) = (free_port().to_string(), "2000");
            let words = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", timeout];
            nodes.push(Redis::within(TempDir::new().unwrap(), kind, &words).await);
        }
        let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]).args(&addresses).args(["--cluster-replicas", "0", "--cluster-yes"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let serves = |node: &Redis| node.ask(&["cluster", "info"]).contains("cluster_state:ok");
        until("all nodes serve", || nodes.iter().all(serves)).await;
        Self { nodes }
    }

    /// The URL of it, which names two of its nodes.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{},127.0.0.1:{}", self.nodes[0].port(), self.nodes[1].port())
    }
}

//! The commands of the pages. Each line of an `sh` block runs as it stands, in a scratch folder with `weir` on `PATH`. Each
//! command in a sentence is one that the program takes.
//!
//! `make` runs dry: CI runs `make test` itself, and the other targets take minutes. [`NOT_RUN`] lists the rest.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::spawn_blocking;
use weir_tests::authority::browse;
use weir_tests::process::Process;
use weir_tests::remote::Remote;
use weir_tests::{Authority, Stub, paths, terminal};

/// The commands that no test runs, and why.
const NOT_RUN: [(&str, &str); 16] = [
    (
        "UPDATE=1 cargo nextest run --workspace -E 'binary(commands) | binary(config) | binary(pages)'",
        "it rewrites files of the tree",
    ),
    (
        "UPDATE=1 cargo nextest run --workspace -E 'binary(bindings) | test(contract_types)'",
        "it rewrites files of the tree",
    ),
    ("cargo nextest run --workspace -E 'package(weir-tests) & test(sessions)'", "tests would wait for themselves"),
    ("cargo build --release --bin weir", "it takes minutes"),
    ("cargo install --locked wit-bindgen-cli@0.63.0 wasm-tools", "it takes minutes; `make go` installs them"),
    ("cargo test", "it tests what the reader of the page writes"),
    ("claude mcp add --transport http weir http://127.0.0.1:8080/mcp", "a program of the host"),
    ("codex mcp add weir --url http://127.0.0.1:8080/mcp", "a program of the host"),
    ("gemini mcp add --transport http weir http://127.0.0.1:8080/mcp", "a program of the host"),
    ("curl http://127.0.0.1:8080/readyz", "no test has a fixed port; `status` asks for the same"),
    ("curl --unix-socket PATH http://localhost/status", "`weir status` asks for the same"),
    ("weir status --watch", "it goes on until Ctrl-C"),
    ("weir top", "it needs a terminal, which the tests of `weir top` have"),
    ("weir logs --follow --upstream github --level warn", "it goes on until Ctrl-C"),
    ("ss -ltnp", "a tool of the system"),
    ("cargo deb --package mcp-weir", "a tool of the release workflow"),
];

#[tokio::test]
async fn every_command_in_a_block_runs() {
    let mut run = 0;
    for (page, commands) in blocks() {
        let scratch = Scratch::for_commands(&commands).await;
        for command in commands.iter().filter(|command| !command.starts_with("cargo ")) {
            scratch.run(&page, command).await;
            run += 1;
        }
    }
    assert!(run > 15, "the pages have only {run} commands in blocks");
}

/// The configuration of the README names the component that the command before it builds.
#[tokio::test]
async fn what_the_readme_builds_loads() {
    let commands: Vec<String> = blocks().into_iter().flat_map(|(_, commands)| commands).collect();
    for command in commands.iter().filter_map(|command| command.strip_prefix("cargo ")) {
        let mut cargo = Command::new("cargo");
        cargo.args(command.split(' ')).current_dir(root()).env_remove("CARGO_TARGET_DIR");
        // Other tests run beside it, and all it needs has been fetched for them.
        cargo.env("CARGO_BUILD_JOBS", "1").env("CARGO_NET_OFFLINE", "true");
        finish(format!("`cargo {command}`"), cargo).await;
    }
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut configurations = readme.split("```toml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    let policy = configurations.find(|block| block.contains("component =")).unwrap();
    let policy = policy.replace("/run/secrets/internal-key", "key");
    let policy = policy.replace("\"target/", &format!("\"{}/target/", root().display()));
    let internal = "[upstreams.internal]\nurl = \"http://127.0.0.1:9/mcp\"";
    let config = format!("cache_dir = {:?}\n{internal}\n{policy}", paths::cache());
    let scratch = Scratch::for_commands(&[]).await;
    fs::write(scratch.folder.path().join("key"), "value").unwrap();
    fs::write(scratch.folder.path().join("weir.toml"), config).unwrap();
    scratch.shell("the policy of the README".to_owned(), "weir check").await;
}

#[test]
fn every_command_in_a_sentence_is_one_that_the_program_takes() {
    let (mut taken, folder) = (0, tempfile::tempdir().unwrap());
    for (page, text) in pages() {
        for command in inline(&text).into_iter().filter(|command| !is_not_run(command)) {
            let output = match command.split_once(' ') {
                Some(("weir", arguments)) => {
                    // What follows `--` is another program's, and would not be asked for help.
                    let own = arguments.split(" -- ").next().unwrap();
                    let mut weir = Command::new(paths::weir());
                    weir.args(own.split(' ')).arg("--help").current_dir(folder.path()).output().unwrap()
                }
                Some(("make", targets)) => dry(targets).output().unwrap(),
                _ => panic!("{}: `{command}` is neither run nor in NOT_RUN", page.display()),
            };
            assert!(output.status.success(), "{}: `{command}`: {output:?}", page.display());
            taken += 1;
        }
    }
    assert!(taken > 15, "the pages have only {taken} commands in sentences");
}

#[test]
fn what_is_not_run_is_in_the_pages() {
    let pages: String = pages().into_iter().map(|(_, text)| text).collect();
    for (command, why) in NOT_RUN {
        assert!(pages.contains(command), "no page has `{command}` ({why}) any more");
    }
}

/// A folder with what the commands of a block need: a configuration, and somebody who signs in.
struct Scratch {
    folder: TempDir,
    remote: Remote,
    /// How many logins have shown a page.
    logins: AtomicUsize,
    /// What some commands ask.
    gateway: Option<Process>,
    /// The upstream that the commands name, and its authorization server.
    peers: (Stub, Authority),
}

impl Scratch {
    /// One with an upstream of the name that the commands sign in at.
    async fn for_commands(commands: &[String]) -> Self {
        let login = commands.iter().find_map(|command| command.strip_prefix("weir auth login "));
        let name = login.and_then(|login| login.split(' ').next());
        let accounts =
            if login.is_some_and(|login| login.contains("--as")) { "accounts = ['work', 'home']" } else { "" };
        let authority = Authority::start(3600);
        let upstream = authority.upstream().await;
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        symlink(paths::weir(), folder.path().join("bin/weir")).unwrap();
        symlink(paths::tests().with_file_name("guest"), folder.path().join("guest")).unwrap();
        let config = terminal::config(&upstream, &format!("auth = \"oauth\"\n{accounts}"));
        let config = config.replace("upstreams.u", &format!("upstreams.{}", name.unwrap_or("u")));
        let config = format!("listen = \"127.0.0.1:0\"\ncache_dir = {:?}\n{config}", paths::cache());
        fs::write(folder.path().join("weir.toml"), config).unwrap();
        let mut scratch = Self {
            folder,
            remote: Remote::new(),
            logins: AtomicUsize::new(0),
            gateway: None,
            peers: (upstream, authority),
        };
        scratch.serve(commands).await;
        scratch
    }

    /// Serves an upstream in good health, if there are commands that ask a gateway that runs, or its upstreams.
    async fn serve(&mut self, commands: &[String]) {
        const ASKING: [&str; 9] = [
            "weir status",
            "weir logs",
            "weir reload",
            "weir config",
            "weir test",
            "weir check --live",
            "weir tools ",
            "weir call ",
            "weir doctor",
        ];
        let mut asking =
            commands.iter().filter(|command| ASKING.iter().any(|asking| command.starts_with(asking))).peekable();
        if asking.peek().is_none() {
            return;
        }
        let named = |command: &'_ String| {
            let mut rest = ["status", "test", "tools", "call"].iter();
            let rest = rest.find_map(|asking| command.strip_prefix(&format!("weir {asking} ")))?;
            rest.split(' ').next().map(str::to_owned)
        };
        let named = asking.filter_map(named);
        let name = named.into_iter().find(|name| !name.starts_with('-')).unwrap_or_else(|| "u".to_owned());
        let upstream = Stub::start().await;
        let config = format!("listen = \"127.0.0.1:0\"\ncache_dir = {:?}\n{}", paths::cache(), upstream.config(&name));
        fs::write(self.folder.path().join("weir.toml"), config).unwrap();
        let mut gateway = Process::start("the gateway of the page", &mut self.command("weir serve"));
        gateway.says("that it is ready", |line| line.contains("ready for clients").then_some(())).await;
        (self.gateway, self.peers.0) = (Some(gateway), upstream);
    }

    /// Runs a command to its end, which is a good one.
    async fn run(&self, page: &Path, command: &str) {
        let what = format!("{}: `{command}`", page.display());
        match command.split_once(' ') {
            Some(("make", targets)) => finish(what, dry(targets)).await,
            _ => self.shell(what, command).await,
        }
    }

    async fn shell(&self, what: String, line: &str) {
        let mut process = Process::start(&what, &mut self.command(line));
        if line.starts_with("weir serve") {
            process.says("where it listens", |line| line.contains("listening on").then_some(())).await;
            process.signal(Signal::TERM);
        } else if line.starts_with("weir auth login") {
            let shown = browse(&self.remote.page(self.logins.fetch_add(1, Ordering::Relaxed)).await).await;
            assert!(shown.contains("Weir has what it needs"), "{what}: {shown}");
        }
        let status = process.end().await;
        assert!(status.success(), "{what} ended with {status}:\n{}", process.output());
    }

    /// A shell in this folder that becomes the command.
    fn command(&self, line: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {line}")]).current_dir(self.folder.path());
        command.env("PATH", format!("{}:{path}", self.folder.path().join("bin").display()));
        command.env("XDG_STATE_HOME", self.folder.path()).env("BROWSER", self.remote.browser()).env_remove("DISPLAY");
        command.envs(terminal::ENVIRONMENT);
        command
    }
}

/// Waits for a program of the system, which may compile something.
async fn finish(what: String, mut command: Command) {
    let output = spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What `make` would do.
fn dry(targets: &str) -> Command {
    let mut make = Command::new("sh");
    make.args(["-c", &format!("exec make --dry-run {targets}")]).current_dir(root());
    make
}

/// The commands of each `sh` block, and its page. Those of `first-policy.md` take a minute: the tests of policies run them.
fn blocks() -> Vec<(PathBuf, Vec<String>)> {
    let mut found = Vec::new();
    for (page, text) in pages().into_iter().filter(|(page, _)| !page.ends_with("first-policy.md")) {
        for block in text.split("```sh\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)) {
            let lines = block.lines().map(|line| line.split(" #").next().unwrap_or(line).trim());
            let commands = lines.filter(|line| !line.is_empty() && !is_not_run(line)).map(str::to_owned);
            found.push((page.clone(), commands.collect()));
        }
    }
    found
}

fn is_not_run(command: &str) -> bool {
    NOT_RUN.iter().any(|(listed, _)| *listed == command)
}

/// The commands between backticks, outside of blocks.
fn inline(text: &str) -> Vec<String> {
    const PROGRAMS: [&str; 9] = ["UPDATE=1", "cargo", "claude", "codex", "curl", "gemini", "make", "ss", "weir"];
    let prose: String = text.split("```").step_by(2).collect();
    let quoted = prose.split('`').skip(1).step_by(2).map(|span| span.split_whitespace().collect::<Vec<_>>());
    quoted.filter(|words| words.len() > 1 && PROGRAMS.contains(&words[0])).map(|words| words.join(" ")).collect()
}

fn pages() -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> =
        ["README.md", "SECURITY.md", "CONTRIBUTING.md"].iter().map(|name| root().join(name)).collect();
    for folder in ["docs", "docs/migrating"] {
        files.extend(fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    files.retain(|file| file.is_file());
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(&file).unwrap())).collect()
}

fn root() -> &'static Path {
    paths::tests().parent().unwrap()
}

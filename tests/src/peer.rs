//! The real servers, as upstreams.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::paths::{node, peers, python};
use crate::process::Process;
use crate::wait::until_some;

/// A real server on a free port of the loopback address.
pub struct Peer {
    address: SocketAddr,
    process: Process,
}

impl Peer {
    /// The conformance fixture; `era` is `both`, `legacy` or `modern`.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn fixture(era: &str) -> Self {
        Self::fixture_with(&["--era", era]).await
    }

    /// The same at a port that was free a moment ago.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn fixture_at(port: u16, era: &str) -> Self {
        Self::fixture_with(&["--era", era, "--port", &port.to_string()]).await
    }

    /// The same over HTTP+SSE, at `/sse`: legacy.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn fixture_sse() -> Self {
        Self::fixture_with(&["--sse"]).await
    }

    /// The conformance fixture without sessions in either era, at `createMcpHandler` of the TypeScript SDK.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn fixture_handler() -> Self {
        Self::fixture_with(&["--handler"]).await
    }

    /// `mcp-proxy` of npm in front of a process: both eras.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn npm_proxy(process: &Launch) -> Self {
        Self::on_free_port("mcp-proxy of npm", |port| {
            let mut proxy = Command::new(node());
            proxy.arg(peers("node_modules/.bin/mcp-proxy")).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
            proxy.arg("--").arg(&process.program).args(&process.arguments);
            proxy
        })
        .await
    }

    /// A reverse proxy that serves `origin` under the path `prefix`.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn prefix(origin: &str, prefix: &str) -> Self {
        let mut command = Command::new(node());
        command.arg(peers("prefix.mjs")).args([origin, prefix]);
        let mut process = Process::start("the proxy", &mut command);
        let port = process.says("its port", |line| line.strip_prefix("listening on ")?.parse().ok()).await;
        Self { address: loopback(port), process }
    }

    /// A forward proxy that takes every host for the server at `address`, and lets `user:hunter2` in.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn forward_proxy(address: SocketAddr) -> Self {
        let mut command = Command::new(node());
        command.arg(peers("forward_proxy.mjs")).arg(address.port().to_string());
        let mut process = Process::start("the forward proxy", &mut command);
        let port = process.says("its port", |line| line.strip_prefix("listening on ")?.parse().ok()).await;
        Self { address: loopback(port), process }
    }

    async fn fixture_with(arguments: &[&str]) -> Self {
        let mut command = Command::new(node());
        command.arg(peers("fixture/main.mjs")).args(arguments);
        let mut process = Process::start("the fixture", &mut command);
        let port = process.says("its port", |line| line.strip_prefix("listening on ")?.parse().ok()).await;
        Self { address: loopback(port), process }
    }

    /// `server-everything` of the specification's authors: legacy, with sessions.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn everything() -> Self {
        Self::on_free_port("server-everything", |port| {
            let mut command = Command::new(node());
            command.arg(peers("node_modules/.bin/mcp-server-everything")).arg("streamableHttp");
            command.env("PORT", port.to_string());
            command
        })
        .await
    }

    /// The same over HTTP+SSE, at `/sse`.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn everything_sse() -> Self {
        Self::on_free_port("server-everything over SSE", |port| {
            let mut command = Command::new(node());
            command.arg(peers("node_modules/.bin/mcp-server-everything")).arg("sse");
            command.env("PORT", port.to_string());
            command
        })
        .await
    }

    /// A server on the official Python SDK: both eras.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn python() -> Self {
        Self::on_free_port("the Python server", |port| python_server("python_server.py", "streamable-http", port)).await
    }

    /// What the conformance suite asks for, on the official Python SDK: both eras.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn python_fixture() -> Self {
        Self::on_free_port("the Python fixture", |port| {
            python_server("python_fixture/main.py", "streamable-http", port)
        })
        .await
    }

    /// The same over HTTP+SSE, at `/sse`: legacy.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn python_fixture_sse() -> Self {
        Self::on_free_port("the Python fixture over SSE", |port| python_server("python_fixture/main.py", "sse", port))
            .await
    }

    /// A server on FastMCP: both eras.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn fastmcp() -> Self {
        Self::on_free_port("the FastMCP server", |port| python_server("fastmcp_server.py", "http", port)).await
    }

    /// A server on FastMCP over HTTP+SSE, at `/sse`.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn fastmcp_sse() -> Self {
        Self::on_free_port("the FastMCP server over SSE", |port| python_server("fastmcp_server.py", "sse", port)).await
    }

    /// A collector of OpenTelemetry, which prints what it takes.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn collector() -> Self {
        Self::on_free_port("the collector", |port| {
            let mut command = Command::new(python());
            command.arg(peers("collector.py")).arg(port.to_string());
            command.arg(std::env::temp_dir().join(format!("weir-tests-collector-{port}.pid")));
            command
        })
        .await
    }

    /// Waits for a line that it prints; see [`Process::says`].
    ///
    /// # Panics
    /// When it does not print it.
    pub async fn says<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        self.process.says(what, find).await
    }

    /// All that it has written until now.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of its endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// The URL of its stream, for a server that speaks HTTP+SSE.
    pub fn sse_url(&self) -> String {
        format!("http://{}/sse", self.address)
    }

    /// The lines of a configuration that make it the upstream `name`.
    pub fn config(&self, name: &str) -> String {
        format!("[upstreams.{name}]\nurl = \"{}\"\n", self.url())
    }

    /// Ends it at once, as a crash would.
    pub fn kill(self) {
        drop(self.process);
    }

    /// For servers that have to be told their port. Somebody else may take it in between, hence more than one try.
    pub(crate) async fn on_free_port(name: &str, command: impl Fn(u16) -> Command) -> Self {
        const TRIES: usize = 3;
        for _ in 0..TRIES {
            let address = loopback(free_port());
            let mut process = Process::start(name, &mut command(address.port()));
            if accepts(name, &mut process, address).await {
                return Self { address, process };
            }
        }
        panic!("{name} did not start in {TRIES} tries");
    }
}

/// A server that the gateway starts itself.
pub struct Launch {
    program: String,
    arguments: Vec<String>,
}

impl Launch {
    /// The conformance fixture; `era` is `both`, `legacy` or `modern`.
    pub fn fixture(era: &str) -> Self {
        Self::new(&node(), [text(&peers("fixture/main.mjs")).as_str(), "--stdio", "--era", era])
    }

    /// `server-everything` of the specification's authors.
    pub fn everything() -> Self {
        Self::new(&node(), [text(&peers("node_modules/.bin/mcp-server-everything")).as_str(), "stdio"])
    }

    /// `server-filesystem` of the specification's authors, for `directory`.
    pub fn filesystem(directory: &Path) -> Self {
        let program = text(&peers("node_modules/.bin/mcp-server-filesystem"));
        Self::new(&node(), [program.as_str(), text(directory).as_str()])
    }

    /// A server on the official Python SDK.
    pub fn python() -> Self {
        Self::new(&python(), [text(&peers("python_server.py")).as_str(), "--transport", "stdio"])
    }

    /// What the conformance suite asks for, on the official Python SDK.
    pub fn python_fixture() -> Self {
        Self::new(&python(), ["-W", "ignore", text(&peers("python_fixture/main.py")).as_str(), "--transport", "stdio"])
    }

    /// A server on FastMCP.
    pub fn fastmcp() -> Self {
        Self::new(&python(), [text(&peers("fastmcp_server.py")).as_str(), "--transport", "stdio"])
    }

    /// Any program.
    pub fn new<'a>(program: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        Self { program: text(program), arguments: arguments.into_iter().map(str::to_owned).collect() }
    }

    /// The same, started by a script of the shell, which has it as its arguments: `sleep 1; exec "$@"`.
    #[must_use]
    pub fn by(&self, script: &str) -> Self {
        let arguments = self.arguments.iter().map(String::as_str);
        Self::new(Path::new("/bin/sh"), ["-c", script, "sh", &self.program].into_iter().chain(arguments))
    }

    /// The program and its arguments, as a JSON array.
    pub(crate) fn command(&self) -> Value {
        std::iter::once(&self.program).chain(&self.arguments).cloned().collect()
    }

    /// It, ready to be started by somebody else.
    pub fn prepared(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    /// The lines of a configuration that make it the upstream `name`.
    pub fn config(&self, name: &str) -> String {
        format!("[upstreams.{name}]\ncommand = {:?}\nargs = {:?}\n", self.program, self.arguments)
    }
}

/// A port that was free a moment ago, and that nobody gets who asks for any: it lies below those that are given out.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    /// The first of them, and how many there are.
    const FIRST: u16 = 12_000;
    const COUNT: u32 = 20_000;
    /// Each test is a process of its own: those that run at once begin at different ports.
    const APART: u32 = 37;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(APART);
    let next = || begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
    let mut ports = (0..COUNT).map(|_| FIRST + u16::try_from(next()).expect("it is less than there are"));
    let is_free = |port: &u16| TcpListener::bind(loopback(*port)).is_ok();
    ports.find(is_free).expect("there is a free port")
}

fn python_server(script: &str, transport: &str, port: u16) -> Command {
    let mut command = Command::new(python());
    command.arg(peers(script)).args(["--transport", transport, "--port", &port.to_string()]);
    command
}

/// Waits until `address` accepts connections; false if the process ends before.
async fn accepts(name: &str, process: &mut Process, address: SocketAddr) -> bool {
    let look = || match (process.ended(), TcpStream::connect(address)) {
        (Some(_), _) => Some(false),
        (None, Ok(_)) => Some(true),
        (None, Err(_)) => None,
    };
    until_some(&format!("{name} accepts connections"), look).await
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn text(path: &Path) -> String {
    path.to_str().expect("the path of this repository is UTF-8").to_owned()
}

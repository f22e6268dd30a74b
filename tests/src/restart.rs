//! Real servers that can be ended as a crash would, and started again in the same place.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;

use rustix::process::Signal;

use crate::paths;
use crate::peer::free_port;
use crate::process::Process;
use crate::wait::until;

/// A real server at a port of its own.
pub struct RestartableServer {
    /// A tool of it that adds two numbers.
    pub tool: &'static str,
    port: u16,
    path: &'static str,
    command: Command,
    process: Process,
}

impl RestartableServer {
    /// `server-everything`, its transport and the path of its endpoint.
    pub async fn everything(transport: &str, path: &'static str) -> Self {
        let port = free_port();
        let mut command = Command::new(paths::node());
        command.arg(paths::peers("node_modules/.bin/mcp-server-everything")).arg(transport);
        command.env("PORT", port.to_string());
        Self::start(port, path, "get-sum", command).await
    }

    /// One of the Python servers of these tests.
    pub async fn python(script: &str, transport: &str) -> Self {
        let port = free_port();
        let mut command = Command::new(paths::python());
        command.arg(paths::peers(script)).args(["--transport", transport, "--port", &port.to_string()]);
        Self::start(port, "/mcp", "add", command).await
    }

    /// `supergateway` over HTTP+SSE, with `server-everything` behind it.
    pub async fn supergateway() -> Self {
        let port = free_port();
        let behind = [paths::node(), paths::peers("node_modules/.bin/mcp-server-everything")];
        let behind = behind.map(|path| path.display().to_string()).join(" ") + " stdio";
        let mut command = Command::new(paths::node());
        command.arg(paths::peers("node_modules/.bin/supergateway")).args(["--stdio", &behind]);
        command.args(["--outputTransport", "sse", "--ssePath", "/sse", "--messagePath", "/message"]);
        command.args(["--logLevel", "none", "--port", &port.to_string()]);
        Self::start(port, "/sse", "get-sum", command).await
    }

    async fn start(port: u16, path: &'static str, tool: &'static str, mut command: Command) -> Self {
        let process = Process::start(path, &mut command);
        let server = Self { tool, port, path, command, process };
        server.accepts().await;
        server
    }

    /// Ends it as a crash would, and starts it again in the same place.
    pub async fn restart(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.end().await;
        self.process = Process::start(self.path, &mut self.command);
        self.accepts().await;
    }

    async fn accepts(&self) {
        let address = (Ipv4Addr::LOCALHOST, self.port);
        until("the server accepts connections", || TcpStream::connect(address).is_ok()).await;
    }

    /// The lines of a configuration that make it the upstream `name`.
    pub fn config(&self, name: &str) -> String {
        format!("[upstreams.{name}]\nurl = \"http://127.0.0.1:{}{}\"\n", self.port, self.path)
    }
}

//! A gateway under test.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::http::{Request, Response};
use crate::paths;
use crate::peer::free_port;
use crate::process::{Process, descendants, without_rights};
use crate::wait::{PATIENCE, until};

/// The log's message when an upstream waits for somebody to sign in, as JSON writes it.
pub const NEEDS_SIGN_IN: &str = "\"upstream needs a sign-in\"";
/// The log's message when the ways to an upstream are exhausted, as JSON writes it.
pub const UNREACHABLE: &str = "\"upstream cannot be reached\"";

/// A running gateway, killed on drop. After a failed test its log is printed.
pub struct Gateway {
    process: Process,
    address: SocketAddr,
    directory: Arc<TempDir>,
    /// Where it keeps its state: where the process before it did, after an upgrade.
    state: Arc<TempDir>,
    /// Where it was told to listen.
    listen: String,
}

impl Gateway {
    /// Starts a gateway with `config` on a free port, and waits until it listens.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn start(config: &str) -> Self {
        Self::start_with(config, &[]).await
    }

    /// The same on this port.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn start_at(port: u16, config: &str) -> Self {
        Self::start_at_with(port, config, &[]).await
    }

    /// The same, with environment variables on top of the test's own.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn start_at_with(port: u16, config: &str, environment: &[(&str, &str)]) -> Self {
        Self::started(&format!("127.0.0.1:{port}"), config, environment).await
    }

    /// The same on any address that this machine can be reached at, as this machine.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn start_on(address: &str, config: &str) -> Self {
        let mut gateway = Self::started(address, config, &[]).await;
        gateway.address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        gateway
    }

    /// The same, with environment variables on top of the test's own.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn start_with(config: &str, environment: &[(&str, &str)]) -> Self {
        Self::started("127.0.0.1:0", config, environment).await
    }

    /// The same as [`start_with`](Self::start_with), but what a file's mode forbids is forbidden, also to root.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn start_without_rights(config: &str, environment: &[(&str, &str)]) -> Self {
        Self::started_as("127.0.0.1:0", config, environment, |command| without_rights(&command)).await
    }

    /// The same as [`start_with`](Self::start_with), with its command changed by `how`.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn start_by(config: &str, environment: &[(&str, &str)], how: impl FnOnce(Command) -> Command) -> Self {
        // An upgrade needs the port to be known.
        Self::started_as(&format!("127.0.0.1:{}", free_port()), config, environment, how).await
    }

    /// A second gateway with `config`, which waits for the sockets of this one.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn upgrade(&self, config: &str) -> Self {
        self.upgrade_with(config, &[]).await
    }

    /// The same, with environment variables on top of the test's own.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn upgrade_with(&self, config: &str, environment: &[(&str, &str)]) -> Self {
        self.upgrade_by(config, environment, |command| command).await
    }

    /// The same, with its command changed by `how`.
    ///
    /// # Panics
    /// When it does not start, with what it said.
    pub async fn upgrade_by(
        &self,
        config: &str,
        environment: &[(&str, &str)],
        how: impl FnOnce(Command) -> Command,
    ) -> Self {
        let waiting = |mut command: Command| {
            command.arg("--upgrade");
            how(command)
        };
        Self::started_in(&self.address.to_string(), config, environment, Some(Arc::clone(&self.state)), waiting).await
    }

    async fn started(address: &str, config: &str, environment: &[(&str, &str)]) -> Self {
        Self::started_as(address, config, environment, |command| command).await
    }

    async fn started_as(
        address: &str,
        config: &str,
        environment: &[(&str, &str)],
        how: impl FnOnce(Command) -> Command,
    ) -> Self {
        Self::started_in(address, config, environment, None, how).await
    }

    async fn started_in(
        address: &str,
        config: &str,
        environment: &[(&str, &str)],
        state: Option<Arc<TempDir>>,
        how: impl FnOnce(Command) -> Command,
    ) -> Self {
        let directory = Arc::new(TempDir::new().expect("a temporary directory can be made"));
        let state = state.unwrap_or_else(|| Arc::clone(&directory));
        let file = directory.path().join("weir.toml");
        fs::write(&file, written(address, config)).expect("the configuration can be written");
        let mut command = Command::new(paths::weir());
        command.arg("serve").arg("--config").arg(&file);
        // No login of whoever runs the tests is of use to them.
        command.env("XDG_STATE_HOME", state.path()).envs(environment.iter().copied());
        let mut process = Process::start("the gateway", &mut how(command));
        let (listen, address) = (address.to_owned(), process.says("where it listens", listening).await);
        Self { process, address, directory, state, listen }
    }

    /// Writes another configuration over the one that it was started with.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn configure(&self, config: &str) {
        let file = self.directory.path().join("weir.toml");
        fs::write(file, written(&self.listen, config)).expect("the configuration can be written");
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The URL of `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The directory of its configuration.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Everything it has logged until now.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Waits until its log has `text` in it.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn logs(&self, text: &str) {
        until(&format!("the log has '{text}'"), || self.log().contains(text)).await;
    }

    /// Where it answers operators.
    pub fn socket(&self) -> PathBuf {
        self.state.path().join(format!("weir/admin-{}/socket", self.listen))
    }

    /// What Prometheus reads, without the head of the answer.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.socket()).expect("the socket can be opened");
        let request = b"GET /metrics HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).expect("the request can be sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the answer is text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("the answer has a head");
        assert!(head.contains("application/openmetrics-text"), "{head}");
        body.to_owned()
    }

    /// Sends `request`.
    pub async fn send(&self, request: Request) -> Response {
        request.send(self.address).await
    }

    /// The body of `/readyz` with its status.
    pub async fn readiness(&self) -> (u16, Value) {
        let response = self.send(Request::get("/readyz")).await;
        (response.status, response.json().await)
    }

    /// Waits until each of `upstreams` is healthy.
    ///
    /// # Panics
    /// When that takes too long, with the last state.
    pub async fn healthy(&self, upstreams: &[&str]) {
        self.settle(upstreams, "healthy").await;
    }

    /// Waits until each of `upstreams` is in the state `wanted`.
    ///
    /// # Panics
    /// When that takes too long, with the last state.
    pub async fn settle(&self, upstreams: &[&str], wanted: &str) {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (_, body) = self.readiness().await;
            if upstreams.iter().all(|name| state(&body, name) == Some(wanted)) {
                return;
            }
            assert!(tokio::time::Instant::now() < end, "not all of {upstreams:?} became {wanted}: {body:#}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// The processes that it has started and that still run, as (id, command line).
    pub fn children(&self) -> Vec<(u32, String)> {
        descendants(self.process.id())
    }

    /// Waits until it has as many running children as `count`.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn has_children(&self, count: usize) {
        until(&format!("the gateway has {count} children"), || self.children().len() == count).await;
    }

    /// Sends it `signal`, without waiting for what comes of it.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn end(&mut self) -> ExitStatus {
        self.process.end().await
    }

    /// How many descriptors it has open.
    ///
    /// # Panics
    /// When it has ended.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("the gateway runs").count()
    }

    /// How many of its asynchronous tasks have not ended.
    ///
    /// # Panics
    /// When it does not say.
    pub fn tasks(&self) -> usize {
        let metrics = self.metrics();
        let value = metrics.lines().find_map(|line| line.strip_prefix("weir_tasks{} ")).expect("tasks are counted");
        value.parse().expect("it is a number")
    }

    /// The kibibytes of memory it holds (`VmRSS`).
    ///
    /// # Panics
    /// When it has ended.
    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("the gateway runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
        line.trim().trim_end_matches(" kB").parse().expect("VmRSS is a number of kB")
    }
}

fn written(listen: &str, config: &str) -> String {
    format!("listen = {listen:?}\ncache_dir = {:?}\n{config}\n", paths::cache())
}

/// What `/readyz` says of the state of an upstream.
pub fn state<'a>(readiness: &'a Value, upstream: &str) -> Option<&'a str> {
    let upstreams = readiness["upstreams"].as_array()?;
    upstreams.iter().find(|entry| entry["name"] == upstream)?["state"].as_str()
}

/// The address in a line that says "listening", whether the line is meant for people or JSON.
fn listening(line: &str) -> Option<SocketAddr> {
    const HOST: &str = "127.0.0.1:";
    if !line.contains("listening") {
        return None;
    }
    let line = line.replace("0.0.0.0:", HOST);
    let port = &line[line.find(HOST)? + HOST.len()..];
    let digits = port.find(|c: char| !c.is_ascii_digit()).unwrap_or(port.len());
    format!("{HOST}{}", &port[..digits]).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_address_in_either_kind_of_line() {
        let lines = [
            r#"{"level":"INFO","fields":{"message":"listening","address":"127.0.0.1:41234"}}"#,
            "2026-11-21T07:00:00Z  INFO weir: listening on http://127.0.0.1:41234/mcp",
            "listening at 127.0.0.1:41234",
        ];
        for line in lines {
            assert_eq!(listening(line), Some("127.0.0.1:41234".parse().unwrap()), "{line}");
        }
        assert_eq!(listening("upstream 127.0.0.1:41234 is healthy"), None);
    }
}

//! The gateway as its own process, spoken to over plain sockets.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// No step takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running gateway, killed on drop.
pub(crate) struct Gateway {
    weir: Child,
    folder: PathBuf,
    address: String,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) session: Option<String>,
    pub(crate) body: String,
}

/// Waits until something is so.
pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

impl Gateway {
    pub(crate) fn start(config: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-trouble-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, log) = (folder.join("weir.toml"), folder.join("log"));
        fs::write(&file, format!("listen = \"127.0.0.1:0\"\n{config}")).unwrap();
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.arg("serve").arg("--config").arg(&file).stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
        let weir = weir.spawn().unwrap();
        let mut gateway = Self { weir, folder, address: String::new() };
        let listening = || gateway.log().split_once("listening on http://").map(|(_, rest)| rest.to_owned());
        until("the gateway listens", || listening().is_some_and(|rest| rest.contains('"')));
        let address = listening().unwrap().split('"').next().unwrap().to_owned();
        gateway.address = address;
        gateway
    }

    /// Waits until so many upstreams are healthy.
    pub(crate) fn until_healthy(&self, count: usize) {
        until("the upstreams are healthy", || self.ready().matches("\"healthy\"").count() == count);
    }

    /// Waits until `/readyz` tells of something.
    pub(crate) fn until(&self, text: &str) {
        until(text, || self.ready().contains(text));
    }

    /// Waits until the log tells of something.
    pub(crate) fn until_logged(&self, text: &str) {
        until(text, || self.log().contains(text));
    }

    /// Opens a session.
    pub(crate) fn open(&self, path: &str) -> String {
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        self.post(path, None, &message).session.unwrap()
    }

    /// The names on `/mcp`.
    pub(crate) fn tools(&self, session: &str) -> Vec<String> {
        let message = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"});
        let answer: Value = serde_json::from_str(&self.post("/mcp", Some(session), &message).body).unwrap();
        let tools = answer["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn post(&self, path: &str, session: Option<&str>, message: &Value) -> Answer {
        read(self.send(path, session, message))
    }

    /// Sends a message and leaves the answer.
    pub(crate) fn send(&self, path: &str, session: Option<&str>, message: &Value) -> TcpStream {
        self.request("POST", path, session, &message.to_string())
    }

    pub(crate) fn delete(&self, path: &str, session: &str) -> u16 {
        read(self.request("DELETE", path, Some(session), "")).status
    }

    /// Opens the GET stream.
    pub(crate) fn listen(&self, path: &str, session: &str) -> BufReader<TcpStream> {
        let mut stream = BufReader::new(self.request("GET", path, Some(session), ""));
        assert_eq!(head(&mut stream).status, 200);
        stream
    }

    /// Stops it as an operator does.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        let id = rustix::process::Pid::from_child(&self.weir);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.weir.wait().unwrap()
    }

    fn ready(&self) -> String {
        read(self.request("GET", "/readyz", None, "")).body
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap()
    }

    fn request(&self, method: &str, path: &str, session: Option<&str>, body: &str) -> TcpStream {
        let mut to = TcpStream::connect(&self.address).unwrap();
        to.set_read_timeout(Some(PATIENCE)).unwrap();
        let session = session.map_or_else(String::new, |id| format!("Mcp-Session-Id: {id}\r\n"));
        let length = body.len();
        write!(
            to,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{session}Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        to
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.weir.kill());
        drop(self.weir.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn head(from: &mut BufReader<TcpStream>) -> Answer {
    let mut answer = Answer { status: 0, session: None, body: String::new() };
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    answer.status = line.split(' ').nth(1).unwrap().parse().unwrap();
    loop {
        line.clear();
        from.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "mcp-session-id" => answer.session = Some(value.trim().to_owned()),
            // Keeps the length until the body is read.
            "content-length" => answer.body = value.trim().to_owned(),
            _ => {}
        }
    }
    answer
}

fn read(stream: TcpStream) -> Answer {
    let mut from = BufReader::new(stream);
    let mut answer = head(&mut from);
    let mut body = vec![0; answer.body.parse().unwrap()];
    from.read_exact(&mut body).unwrap();
    answer.body = String::from_utf8(body).unwrap();
    answer
}

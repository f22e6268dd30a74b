//! The gateway as a process, its log, and a legacy client of one upstream.

use std::{
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

/// No step takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A gateway with the upstream `u`.
pub(crate) struct Gateway {
    _weir: Child,
    folder: PathBuf,
    address: String,
    log: Arc<Mutex<Vec<Value>>>,
}

/// A session at a path, `/mcp/u` or `/mcp`.
pub(crate) struct Client<'a> {
    gateway: &'a Gateway,
    path: &'static str,
    session: String,
}

impl Gateway {
    pub(crate) async fn start(config: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("weir-fallback-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("weir.toml");
        std::fs::write(&file, format!("listen = \"127.0.0.1:0\"\n{config}")).unwrap();
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.args(["serve", "--config"]).arg(&file).env("RIGHT", super::server::TOKEN).env("WRONG", "wrong");
        weir.env("XDG_STATE_HOME", &folder).env("RUST_LOG", "info,weir::upstream::connect=debug");
        let mut weir = weir.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut lines = BufReader::new(weir.stderr.take().unwrap()).lines();
        let kept = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                kept.lock().unwrap().extend(serde_json::from_str::<Value>(&line));
            }
        });
        let mut gateway = Self { _weir: weir, folder, address: String::new(), log };
        let listening = gateway.logged("listening on http://").await;
        gateway.address = text(&listening).rsplit('/').next().unwrap().to_owned();
        gateway
    }

    /// The first line of the log with `part` in its message.
    pub(crate) async fn logged(&self, part: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.lines(part).first() {
                return line.clone();
            }
            assert!(Instant::now() < end, "no line with '{part}' in {:#?}", self.log.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// How often it has tried to reach the upstream until now.
    pub(crate) fn tries(&self) -> usize {
        self.lines("attempt").len()
    }

    /// Waits until it has tried once more than so many times.
    pub(crate) async fn tried(&self, tries: usize) {
        let end = Instant::now() + PATIENCE;
        while self.tries() <= tries {
            assert!(Instant::now() < end, "nobody has been looked for");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The lines of the log with `part` in their messages.
    pub(crate) fn lines(&self, part: &str) -> Vec<Value> {
        self.log.lock().unwrap().iter().filter(|line| text(line).contains(part)).cloned().collect()
    }

    /// How many lines of this level the upstream has in the log.
    pub(crate) fn count(&self, level: &str) -> usize {
        let of = |line: &&Value| line["level"] == level && line["fields"]["upstream"] == "u";
        self.log.lock().unwrap().iter().filter(of).count()
    }

    /// Waits until the upstream is healthy; the transport by which it is.
    pub(crate) async fn transport(&self) -> String {
        let line = self.logged("upstream is healthy").await;
        line["fields"]["transport"].as_str().unwrap().to_owned()
    }

    /// Waits until it is known that the upstream cannot be reached; why.
    pub(crate) async fn failure(&self) -> String {
        let line = self.logged("upstream cannot be reached").await;
        line["fields"]["error"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn client(&self) -> Client<'_> {
        self.client_at("/mcp/u").await
    }

    pub(crate) async fn client_at(&self, path: &str) -> Client<'_> {
        let path = if path == "/mcp" { "/mcp" } else { "/mcp/u" };
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let (head, body) = self.post(path, "", &initialize).await;
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = session.unwrap_or_else(|| panic!("no session: {body}")).to_owned();
        let client = Client { gateway: self, path, session };
        client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        client
    }

    /// The head, names in lower case, and the body of the answer.
    async fn post(&self, path: &str, header: &str, message: &Value) -> (String, String) {
        let body = message.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{header}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut socket = TcpStream::connect(&self.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.expect("in time").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let lower = |line: &str| {
            line.split_once(": ")
                .map_or(line.to_owned(), |(name, value)| format!("{}: {value}", name.to_ascii_lowercase()))
        };
        (head.lines().map(lower).collect::<Vec<_>>().join("\n"), body.to_owned())
    }
}

impl Client<'_> {
    /// Calls a tool with a message; the answer.
    pub(crate) async fn call(&self, tool: &str, message: &str) -> Value {
        let params = json!({"name": tool, "arguments": {"message": message}});
        let request = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
        messages(&self.post(&request).await).pop().unwrap_or_default()
    }

    /// Calls a tool that reports progress; all that it brings.
    pub(crate) async fn calls(&self, tool: &str) -> Vec<Value> {
        let params = json!({"name": tool, "arguments": {}, "_meta": {"progressToken": "t"}});
        messages(&self.post(&json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params})).await)
    }

    /// Opens the session's stream and waits until it has brought `count` messages of a method.
    pub(crate) async fn hears(&self, count: usize, method: &str) {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{}\r\n",
            self.path,
            self.header()
        );
        let mut socket = TcpStream::connect(&self.gateway.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let (mut heard, mut buffer) = (String::new(), [0; 4096]);
        let hearing = async {
            while messages(&heard).iter().filter(|message| message["method"] == method).count() < count {
                let length = socket.read(&mut buffer).await.unwrap();
                assert!(length > 0, "the stream ended: {heard}");
                heard.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
            }
        };
        tokio::time::timeout(PATIENCE, hearing).await.expect("in time");
    }

    /// Checks that calls work.
    pub(crate) async fn echoes(&self, message: &str) {
        let answer = self.call("echo", message).await;
        assert_eq!(answer["result"]["content"][0]["text"], message, "{answer}");
        assert_eq!(answer["id"], "c");
    }

    async fn post(&self, message: &Value) -> String {
        self.gateway.post(self.path, &self.header(), message).await.1
    }

    fn header(&self) -> String {
        format!("Mcp-Session-Id: {}\r\n", self.session)
    }
}

/// The messages in a body: JSON, or the lines of an event stream.
fn messages(body: &str) -> Vec<Value> {
    let lines = body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect()
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn text(line: &Value) -> &str {
    line["fields"]["message"].as_str().unwrap_or_default()
}

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

/// A session at `/mcp/u`.
pub(crate) struct Client<'a> {
    gateway: &'a Gateway,
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
        line["fields"]["why"].as_str().unwrap().to_owned()
    }

    /// Waits until it is known that the upstream wants a credential; what to do.
    pub(crate) async fn login(&self) -> String {
        let line = self.logged("upstream needs a credential").await;
        line["fields"]["why"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn client(&self) -> Client<'_> {
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let (head, answer) =
            self.post("", &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).await;
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = session.unwrap_or_else(|| panic!("no session: {answer}")).to_owned();
        let client = Client { gateway: self, session };
        let header = client.header();
        self.post(&header, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        client
    }

    /// The head, names in lower case, and the last message of the answer.
    async fn post(&self, header: &str, message: &Value) -> (String, Value) {
        let mut socket = TcpStream::connect(&self.address).await.unwrap();
        let body = message.to_string();
        let request = format!(
            "POST /mcp/u HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{header}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.expect("in time").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head: Vec<String> = head
            .lines()
            .map(|line| {
                line.split_once(": ")
                    .map_or(line.to_owned(), |(name, value)| format!("{}: {value}", name.to_ascii_lowercase()))
            })
            .collect();
        let message = body.lines().rev().map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let message = message.filter_map(|line| serde_json::from_str(line).ok()).find(Value::is_object);
        (head.join("\n"), message.unwrap_or_default())
    }
}

impl Client<'_> {
    /// Calls a tool with a message.
    pub(crate) async fn call(&self, tool: &str, message: &str) -> Value {
        let params = json!({"name": tool, "arguments": {"message": message}});
        let request = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
        self.gateway.post(&self.header(), &request).await.1
    }

    /// Checks that calls work.
    pub(crate) async fn echoes(&self, message: &str) {
        let answer = self.call("echo", message).await;
        assert_eq!(answer["result"]["content"][0]["text"], message, "{answer}");
        assert_eq!(answer["id"], "c");
    }

    fn header(&self) -> String {
        format!("Mcp-Session-Id: {}\r\n", self.session)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

fn text(line: &Value) -> &str {
    line["fields"]["message"].as_str().unwrap_or_default()
}

//! `weir connect` as a host sees it: a program whose input and output carry one message for each line.

use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use crate::client::{LEGACY, with_meta};
use crate::paths;
use crate::wait::within;

/// How a bridge ended.
pub struct Ended {
    /// Its exit code or signal.
    pub status: ExitStatus,
    /// The messages that were not heard yet.
    pub said: Vec<Value>,
    /// All that it said on standard error.
    pub log: String,
}

/// A running `weir connect`, killed on drop.
pub struct Bridge {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    log: Arc<Mutex<String>>,
    reader: JoinHandle<String>,
    /// What came while something else was looked for.
    waiting: Vec<Value>,
    next_id: u64,
}

impl Bridge {
    /// Starts one with these arguments.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// The same, with environment variables on top of the test's own.
    pub fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(paths::weir());
        command.arg("connect").args(arguments).envs(environment.iter().copied());
        Self::run(command)
    }

    /// Starts any program that does the same.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        let mut child = command.kill_on_drop(true).spawn().expect("the program can be started");
        let log = Arc::new(Mutex::new(String::new()));
        let (mut stderr, kept) = (child.stderr.take().expect("stderr is piped"), Arc::clone(&log));
        let reader = tokio::spawn(async move {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
                kept.lock().expect("no reader panics").push_str(&String::from_utf8_lossy(&chunk[..length]));
            }
            kept.lock().expect("no reader panics").clone()
        });
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        Self { child, stdin, stdout, log, reader, waiting: Vec::new(), next_id: 1 }
    }

    /// What it has said on standard error until now.
    ///
    /// # Panics
    /// Never, unless the reader did.
    pub fn log(&self) -> String {
        self.log.lock().expect("no reader panics").clone()
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it has ended.
    pub fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Writes bytes as they are.
    ///
    /// # Panics
    /// When it takes none.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        let stdin = self.stdin.as_mut().expect("the input is open");
        within("the bridge to read", stdin.write_all(bytes.as_ref())).await.expect("the bridge reads");
    }

    /// Says a message.
    pub async fn say(&mut self, message: &Value) {
        self.write(format!("{message}\n")).await;
    }

    /// Sends a request; gives its id.
    pub async fn request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        id
    }

    /// The answer to a request of the legacy era.
    pub async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        self.answer(&json!(id)).await
    }

    /// The answer to a request of the modern era.
    pub async fn ask_modern(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, with_meta(params, &json!({}))).await
    }

    /// Shakes hands; gives the answer to `initialize`.
    pub async fn shake_hands(&mut self, capabilities: Value) -> Value {
        let info = json!({ "name": "weir-tests", "version": "1" });
        let params = json!({ "protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": info });
        let answer = self.ask("initialize", params).await;
        if answer.get("result").is_some() {
            self.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        }
        answer
    }

    /// The next message.
    ///
    /// # Panics
    /// When none comes, or a line that is none.
    pub async fn hear(&mut self) -> Value {
        self.find("a message", |_| true).await
    }

    /// The response to `id`; what else comes is kept.
    pub async fn answer(&mut self, id: &Value) -> Value {
        let what = format!("an answer to {id}");
        self.find(&what, |message| message["id"] == *id && message.get("method").is_none()).await
    }

    /// The next message with this method; what else comes is kept.
    pub async fn called(&mut self, method: &str) -> Value {
        self.find(method, |message| message["method"] == method).await
    }

    /// The next line as it is.
    ///
    /// # Panics
    /// When none comes.
    pub async fn line(&mut self) -> String {
        let line = within("a line of the bridge", self.stdout.next_line()).await.expect("lines are text");
        line.expect("the bridge goes on")
    }

    /// Closes its input.
    pub fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Sends it `signal`.
    ///
    /// # Panics
    /// When it has ended.
    pub fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.id().cast_signed()).expect("a process id is not zero");
        kill_process(id, signal).expect("the child is ours and runs");
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// When that takes too long, or a line is no message.
    pub async fn end(mut self) -> Ended {
        while let Some(message) = self.next().await {
            self.waiting.push(message);
        }
        let status = within("the end of the bridge", self.child.wait()).await.expect("the child is ours");
        Ended { status, said: self.waiting, log: within("the end of its log", self.reader).await.unwrap_or_default() }
    }

    async fn find(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.waiting.iter().position(&is_it) {
            return self.waiting.remove(at);
        }
        loop {
            match self.next().await {
                Some(message) if is_it(&message) => return message,
                Some(message) => self.waiting.push(message),
                None => panic!("the bridge ended before {what} came; it said {:?} and {}", self.waiting, self.log()),
            }
        }
    }

    async fn next(&mut self) -> Option<Value> {
        let line = within("a line of the bridge", self.stdout.next_line()).await.expect("lines are text")?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("not a message: {error}: {line:?}")))
    }
}

//! Clients of both eras that call one upstream again and again, on the merged endpoint and on its own.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::Scale;
use crate::paths::{node, peers, python};
use crate::process::Process;
use crate::wait::{PATIENCE, until};
use crate::{Client, Gateway, LEGACY};

/// How many loads there were: no two calls have the same message.
static LOADS: AtomicU64 = AtomicU64::new(0);

/// What the clients call, and so what they must be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// The tool `echo`, which gives back its argument `message`.
    Echo,
    /// The tool `get-sum` of `server-everything`.
    Sum,
    /// A tool of `server-everything` that takes its time.
    Long,
    /// `resources/read` of a stub, which is safe to repeat. On the upstream's own endpoint.
    Read,
}

/// What calls may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tolerance {
    /// Each is answered right.
    Nothing,
    /// Each is answered, right or with an error that says why.
    Errors,
    /// The same; and those that the gateway has never seen, since it ends, are not answered.
    End,
    /// Each is answered, or its client is told that it is not: by a status of 5xx or a connection that breaks.
    Broken,
}

/// What the calls came to.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// How long each took that was answered right.
    pub(super) times: Vec<Duration>,
    /// How many were told of an error.
    pub(super) errors: usize,
    /// What is in the calls that have no answer.
    pub(super) unanswered: Vec<String>,
    /// What must not be.
    pub(super) failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.errors += other.errors;
        self.unanswered.extend(other.unanswered);
        self.failures.extend(other.failures);
    }
}

/// Running clients.
pub(super) struct Load {
    over: watch::Sender<bool>,
    clients: JoinSet<Tally>,
    /// How many calls of each client were answered right.
    right: Arc<[AtomicU64]>,
    sdks: Vec<Process>,
}

/// What one call came to.
enum Outcome {
    Right,
    Error(String),
    /// There is no answer, and the client knows.
    Broken(String),
    Unanswered(String),
    Wrong(String),
}

impl Probe {
    const fn is_on_merged(self) -> bool {
        !matches!(self, Self::Read)
    }

    /// The method, the parameters and what is in the right answer.
    fn call(self, prefix: &str, client: &str, number: u64) -> (&'static str, Value, String) {
        let (tool, arguments, expected) = match self {
            Self::Echo => {
                let message = format!("{client}-{number}-end");
                ("echo", json!({ "message": message }), message)
            }
            Self::Sum => ("get-sum", json!({ "a": 1_000_000, "b": number }), (1_000_000 + number).to_string()),
            Self::Long => {
                let arguments = json!({ "duration": 0.4, "steps": 4 });
                ("trigger-long-running-operation", arguments, "Duration: 0.4 seconds, Steps: 4".to_owned())
            }
            Self::Read => {
                let uri = format!("stub://{client}/{number}");
                return ("resources/read", json!({ "uri": uri.clone() }), uri);
            }
        };
        ("tools/call", json!({ "name": format!("{prefix}{tool}"), "arguments": arguments }), expected)
    }
}

impl Load {
    /// Starts `count` clients of an upstream; every other one is a legacy one.
    pub(super) async fn start(
        address: SocketAddr,
        scale: Scale,
        upstream: &str,
        probe: Probe,
        count: usize,
        tolerance: Tolerance,
    ) -> Self {
        let (over, told) = watch::channel(false);
        let right: Arc<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let mut clients = JoinSet::new();
        let load = LOADS.fetch_add(1, Ordering::SeqCst);
        for number in 0..count {
            let (path, prefix) = match number % 4 {
                0 | 1 if probe.is_on_merged() => ("/mcp".to_owned(), format!("{upstream}__")),
                _ => (format!("/mcp/{upstream}"), String::new()),
            };
            let client = match number % 2 {
                0 => Client::legacy_at(address, &path, LEGACY, &json!({})).await,
                _ => Client::modern_at(address, &path),
            };
            let (told, right) = (told.clone(), Arc::clone(&right));
            let name = format!("load-{load}-client-{number}");
            let calls = Calls { client, address, name, prefix, probe, tolerance, pace: scale.pace };
            clients.spawn(async move { calls.run(&told, &right[number]).await });
        }
        Self { over, clients, right, sdks: Vec::new() }
    }

    /// Lets clients on the official SDKs call the tool `echo` of `upstream` too.
    pub(super) async fn with_sdks(mut self, gateway: &Gateway, scale: Scale, upstream: &str) -> Self {
        let (url, tool, pause) = (gateway.url("/mcp"), format!("{upstream}__echo"), scale.pace.as_millis().to_string());
        let ways = [(node(), "load.mjs", "1"), (node(), "load.mjs", "2"), (python(), "load.py", "2")];
        for (program, script, sdk) in ways {
            let mut command = Command::new(program);
            command.arg(peers(&format!("clients/{script}"))).args([&url, &tool, &pause]);
            if script == "load.mjs" {
                command.args(["--sdk", sdk]);
            }
            if sdk == "2" {
                command.args(["--era", "modern"]);
            }
            let mut process = Process::start(&format!("{script} on SDK {sdk}"), &mut command);
            process.says("that it is connected", |line| (line == "connected").then_some(())).await;
            self.sdks.push(process);
        }
        self
    }

    /// Waits until each client has two right answers more; says how long that took.
    pub(super) async fn recovers(&self) -> Duration {
        let begin = Instant::now();
        let before: Vec<u64> = self.right.iter().map(|right| right.load(Ordering::SeqCst)).collect();
        let is_back = || self.right.iter().zip(&before).all(|(now, before)| now.load(Ordering::SeqCst) >= before + 2);
        until("every client has right answers again", is_back).await;
        begin.elapsed()
    }

    /// Ends the clients and their sessions.
    pub(super) async fn stop(mut self) -> Tally {
        self.over.send_replace(true);
        let mut all = Tally::default();
        while let Some(ended) = self.clients.join_next().await {
            match ended {
                Ok(tally) => all.add(tally),
                Err(panic) => all.failures.push(panic.to_string()),
            }
        }
        for mut sdk in self.sdks {
            sdk.signal(Signal::TERM);
            let said: Value = sdk.says("its calls", |line| serde_json::from_str(line).ok()).await;
            let right = said["right"].as_u64().unwrap_or_default();
            if right == 0 {
                all.failures.push(format!("a client on an SDK had no right answer: {said}"));
            }
            all.failures.extend(said["failures"].as_array().into_iter().flatten().map(Value::to_string));
            sdk.end().await;
        }
        all.times.sort_unstable();
        all
    }
}

/// One client and what it does.
struct Calls {
    client: Client,
    address: SocketAddr,
    name: String,
    prefix: String,
    probe: Probe,
    tolerance: Tolerance,
    pace: Duration,
}

impl Calls {
    async fn run(self, over: &watch::Receiver<bool>, right: &AtomicU64) -> Tally {
        let mut tally = Tally::default();
        for number in 0.. {
            if *over.borrow() {
                break;
            }
            let (method, params, expected) = self.probe.call(&self.prefix, &self.name, number);
            let begin = Instant::now();
            match self.exchange(method, params, &expected).await {
                Outcome::Right => {
                    tally.times.push(begin.elapsed());
                    right.fetch_add(1, Ordering::SeqCst);
                }
                Outcome::Error(_) if self.tolerance != Tolerance::Nothing => tally.errors += 1,
                Outcome::Broken(_) if self.tolerance == Tolerance::Broken => tally.errors += 1,
                Outcome::Broken(_) | Outcome::Unanswered(_) if self.tolerance == Tolerance::End => {
                    tally.unanswered.push(expected)
                }
                Outcome::Error(why) | Outcome::Broken(why) | Outcome::Unanswered(why) | Outcome::Wrong(why) => {
                    tally.failures.push(format!("{expected} at {}: {why}", self.address));
                }
            }
            sleep(self.pace).await;
        }
        // A modern client has no session, and the gateway may have ended.
        drop(self.client.closing().try_send(self.address).await);
        tally
    }

    /// Sends one request and reads everything that comes of it.
    async fn exchange(&self, method: &str, params: Value, expected: &str) -> Outcome {
        let (id, request) = self.client.request(method, params);
        let whole = async {
            let response = request.try_send(self.address).await.map_err(|why| why.to_string())?;
            let (status, is_stream) = (response.status, response.is_stream());
            let body = response.whole().await.ok_or("the answer broke off")?;
            Ok::<_, String>((status, is_stream, String::from_utf8_lossy(&body).into_owned()))
        };
        let (status, is_stream, body) = match timeout(PATIENCE, whole).await {
            Err(_) => return Outcome::Unanswered(format!("no answer within {PATIENCE:?}")),
            Ok(Err(why)) => return Outcome::Broken(why),
            Ok(Ok(whole)) => whole,
        };
        let messages = if is_stream {
            body.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?).ok()).collect()
        } else {
            Vec::from_iter(serde_json::from_str::<Value>(&body).ok())
        };
        let is_answer = |message: &&Value| message["id"] == json!(id) && message.get("method").is_none();
        let answers: Vec<_> = messages.iter().filter(is_answer).collect();
        let [answer] = answers[..] else {
            if answers.is_empty() && status >= 500 && self.tolerance == Tolerance::Broken {
                return Outcome::Broken(format!("status {status}"));
            }
            return Outcome::Wrong(format!("{} answers, with status {status}: {body}", answers.len()));
        };
        if answer["error"].is_object() || answer["result"]["isError"] == true {
            return Outcome::Error(answer.to_string());
        }
        match answer["result"].to_string().contains(expected) {
            true => Outcome::Right,
            false => Outcome::Wrong(format!("answered {answer}")),
        }
    }
}

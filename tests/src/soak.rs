//! Honest calls beside an upstream of every hostile kind: whether anybody but the callers of the hostile ones notices.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::hostile::{CHILDREN, FORGED, Harm, Hostile, TOOL, child};
use crate::{Client, Gateway, Stub};

/// Between two calls of one honest client.
const PACE: Duration = Duration::from_millis(40);

/// How long a client of a hostile upstream waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks at what the gateway holds.
const SAMPLE: Duration = Duration::from_secs(1);

/// What the gateway held at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Resident memory in KiB.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Child processes.
    pub processes: usize,
}

/// What a soak found.
#[derive(Debug)]
pub struct Findings {
    /// The time of each honest call while nobody called the hostile upstreams, sorted.
    pub before: Vec<Duration>,
    /// The same while everybody did.
    pub during: Vec<Duration>,
    /// How many calls of hostile upstreams were made.
    pub hostile: u64,
    /// What the gateway held, at each second of the second part.
    pub samples: Vec<Sample>,
    /// What went wrong for honest callers.
    pub failures: Vec<String>,
}

impl Findings {
    /// The medians of what the gateway held in the second and in the last quarter: the first one warms up.
    ///
    /// # Panics
    /// When there are fewer than four samples.
    #[must_use]
    pub fn held(&self) -> [Sample; 2] {
        let quarter = self.samples.len() / 4;
        assert!(quarter > 0, "the soak was too short for a comparison");
        let last = self.samples.len() - quarter;
        [median(&self.samples[quarter..2 * quarter]), median(&self.samples[last..])]
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, times) in [("alone", &self.before), ("beside hostile upstreams", &self.during)] {
            let [p50, p99] = [0.5, 0.99].map(|part| quantile(times, part));
            writeln!(f, "honest calls {what}: {}, p50 {p50:?}, p99 {p99:?}", times.len())?;
        }
        writeln!(f, "calls of hostile upstreams: {}", self.hostile)?;
        for (when, held) in ["second quarter", "last quarter"].iter().zip(self.held()) {
            writeln!(f, "{when}: {} KiB, {} descriptors, {} processes", held.memory, held.descriptors, held.processes)?;
        }
        writeln!(f, "failures of honest calls: {}", self.failures.len())?;
        self.failures.iter().take(10).try_for_each(|failure| writeln!(f, "  {failure}"))
    }
}

/// A gateway with two honest upstreams and one of each hostile kind.
pub struct Soak {
    gateway: Arc<Gateway>,
    _honest: Stub,
    _hostile: Vec<Hostile>,
    others: Others,
}

/// The threads of the hostile upstreams and their callers. They leave the processors to all else, as if they ran on other
/// machines: what they are busy with must not count as the time of honest calls.
struct Others(Option<Runtime>);

impl Others {
    fn new() -> Self {
        let give_way = || {
            rustix::process::nice(19).expect("giving way is allowed");
        };
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().on_thread_start(give_way).build();
        Self(Some(runtime.expect("threads can be started")))
    }

    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is there until the end").handle()
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.0.take().expect("it is dropped once").shutdown_background();
    }
}

impl Soak {
    /// Starts everything and waits until the honest upstreams are healthy.
    pub async fn start() -> Self {
        let (honest, others) = (Stub::start().await, Others::new());
        let mut hostile = Vec::new();
        for harm in Harm::ALL {
            hostile.push(others.handle().spawn(Hostile::start(harm)).await.expect("it starts"));
        }
        let mut config = honest.config("honest") + &child("piped", "honest");
        config.extend(hostile.iter().map(Hostile::config));
        config.extend(CHILDREN.map(|kind| child(kind, kind)));
        // A call that is never answered shall end within the soak.
        let gateway = Gateway::start(&format!("{config}\n[defaults]\ntimeouts = {{ overall = \"20s\" }}\n")).await;
        gateway.healthy(&["honest", "piped"]).await;
        Self { gateway: Arc::new(gateway), _honest: honest, _hostile: hostile, others }
    }

    /// Calls the honest upstreams for a while, then all of them for `time`.
    pub async fn run(&self, alone: Duration, time: Duration) -> Findings {
        let (before, mut failures, ..) = self.call(alone, false).await;
        let (during, more, hostile, samples) = self.call(time, true).await;
        failures.extend(more);
        Findings { before, during, hostile, samples, failures }
    }

    /// The log of the gateway.
    #[must_use]
    pub fn log(&self) -> String {
        self.gateway.log()
    }

    /// What the gateway holds.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn sample(&self) -> Sample {
        sample(&self.gateway)
    }

    async fn call(&self, time: Duration, hostile: bool) -> (Vec<Duration>, Vec<String>, u64, Vec<Sample>) {
        let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut honest = JoinSet::new();
        for (path, prefix) in [("/mcp", "honest__"), ("/mcp", "piped__"), ("/mcp/honest", ""), ("/mcp/piped", "")] {
            for legacy in [true, false] {
                let (gateway, over) = (Arc::clone(&self.gateway), Arc::clone(&over));
                honest.spawn(async move { call_honest(&gateway, path, &format!("{prefix}echo"), legacy, &over).await });
            }
        }
        let mut others = JoinSet::new();
        let names = Harm::ALL.map(Harm::name).into_iter().chain(CHILDREN).filter(|_| hostile);
        for name in names {
            let (gateway, calls) = (Arc::clone(&self.gateway), Arc::clone(&calls));
            others.spawn_on(async move { call_hostile(&gateway, name, &calls).await }, self.others.handle());
        }
        let (end, mut samples) = (Instant::now() + time, Vec::new());
        while Instant::now() < end {
            sleep(SAMPLE).await;
            samples.push(self.sample());
        }
        over.store(true, Ordering::SeqCst);
        let (mut times, mut failures) = (Vec::new(), Vec::new());
        while let Some(ended) = honest.join_next().await {
            match ended {
                Ok((took, failed)) => {
                    times.extend(took);
                    failures.extend(failed);
                }
                Err(panic) => failures.push(panic.to_string()),
            }
        }
        others.shutdown().await;
        times.sort_unstable();
        (times, failures, calls.load(Ordering::SeqCst), samples)
    }
}

async fn call_honest(
    gateway: &Gateway,
    path: &str,
    tool: &str,
    legacy: bool,
    over: &AtomicBool,
) -> (Vec<Duration>, Vec<String>) {
    let client = if legacy { Client::legacy(gateway, path).await } else { Client::modern(gateway, path) };
    // What a host holds open and reads all the time, and where a forged answer may come too.
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut reading = JoinSet::new();
    if legacy {
        let mut stream = client.stream().await;
        reading.spawn(async move {
            loop {
                match timeout(PATIENCE, stream.next_message()).await {
                    Ok(Some(message)) if is_answer(&message) => drop(tell.send(message)),
                    Ok(Some(_)) | Err(_) => {}
                    Ok(None) => return,
                }
            }
        });
    }
    let (mut times, mut failures) = (Vec::new(), Vec::new());
    // A host uses all its tools in one session: what the others say of their own accord comes on its stream.
    if legacy && path == "/mcp" {
        for harm in [Harm::ForgedAnswers, Harm::Questions, Harm::Notifications] {
            let tool = format!("{}__{TOOL}", harm.name());
            let (_, request) = client.request("tools/call", json!({ "name": tool, "arguments": {} }));
            drop(timeout(PATIENCE, request.try_send(gateway.address())).await);
        }
    }
    while !over.load(Ordering::SeqCst) {
        let wanted = format!("{tool} at {path}, call {}", times.len());
        let start = Instant::now();
        let answer = client.ask("tools/call", json!({ "name": tool, "arguments": { "message": wanted } })).await;
        times.push(start.elapsed());
        let text = &answer["result"]["content"][0]["text"];
        if *text != json!(wanted) {
            failures.push(format!("wanted {wanted:?}, got {answer}"));
        }
        while let Ok(message) = told.try_recv() {
            failures.push(format!("an answer on the stream of the session at {path}: {message}"));
        }
        if let Some(Err(broken)) = reading.try_join_next() {
            failures.push(format!("the stream of the session at {path} broke off: {broken}"));
        }
        sleep(PACE).await;
    }
    (times, failures)
}

/// Calls a hostile upstream in both eras on the merged and on its own endpoint; what comes of it is its own trouble,
/// as long as it is no answer to something else.
async fn call_hostile(gateway: &Gateway, name: &str, calls: &AtomicU64) {
    loop {
        for (path, tool) in [("/mcp".to_owned(), format!("{name}__{TOOL}")), (format!("/mcp/{name}"), TOOL.to_owned())]
        {
            for legacy in [true, false] {
                let attempt = async {
                    let client = match legacy {
                        true => try_legacy(gateway, &path).await?,
                        false => Client::modern(gateway, &path),
                    };
                    let (_, request) = client.request("tools/call", json!({ "name": tool, "arguments": {} }));
                    let response = request.try_send(gateway.address()).await.ok()?;
                    drop(response.whole().await);
                    if legacy {
                        drop(client.closing().try_send(gateway.address()).await);
                    }
                    Some(())
                };
                drop(timeout(PATIENCE, attempt).await);
                calls.fetch_add(1, Ordering::SeqCst);
                sleep(PACE).await;
            }
        }
    }
}

/// A legacy client, if it gets a session.
async fn try_legacy(gateway: &Gateway, path: &str) -> Option<Client> {
    Client::try_legacy_at(gateway.address(), path).await
}

fn is_answer(message: &Value) -> bool {
    message.get("method").is_none() || message.to_string().contains(FORGED)
}

/// What a gateway holds.
pub(crate) fn sample(gateway: &Gateway) -> Sample {
    Sample { memory: gateway.resident(), descriptors: gateway.descriptors(), processes: gateway.children().len() }
}

pub(crate) fn median(samples: &[Sample]) -> Sample {
    let middle = |mut values: Vec<u64>| {
        values.sort_unstable();
        values[values.len() / 2]
    };
    let count = |of: fn(&Sample) -> usize| middle(samples.iter().map(|sample| of(sample) as u64).collect());
    Sample {
        memory: middle(samples.iter().map(|sample| sample.memory).collect()),
        descriptors: count(|sample| sample.descriptors) as usize,
        processes: count(|sample| sample.processes) as usize,
    }
}

/// The time that this part of the sorted `times` stayed under.
#[must_use]
pub fn quantile(times: &[Duration], part: f64) -> Duration {
    let at = (times.len() as f64 * part) as usize;
    times.get(at.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

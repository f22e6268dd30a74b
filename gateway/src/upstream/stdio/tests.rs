//! Against real processes, most of them `tests/peer.py`, which does what the test tells it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod ends;
mod exchanges;
mod starting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::timeout;
use weir_mcp::Message;

use crate::config::ProcessLimits;
use crate::quota::{Permit, Quota, Shares};

use super::{
    CrashRecord, MultiplexExchange, OnDrop, Process, SendError, StdioCommand, StdioError, Whose,
    multiplex::UnsolicitedQueue,
};

/// No step of these tests takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The longest line.
const LIMIT: usize = 16 << 20;

fn peer(args: &[&str]) -> StdioCommand {
    let script = ["-c", include_str!("tests/peer.py")];
    command("python3", script.iter().chain(args))
}

fn command<'a>(program: &str, args: impl IntoIterator<Item = &'a &'a str>) -> StdioCommand {
    StdioCommand {
        program: program.into(),
        args: args.into_iter().map(ToString::to_string).collect(),
        env: Vec::new(),
        inherit: Vec::new(),
        cwd: None,
        user: None,
        limits: ProcessLimits::default(),
        secrets: Vec::new(),
        limit: LIMIT,
    }
}

async fn start(command: &StdioCommand) -> Process {
    Process::spawn("peer", command, permit(), crashes()).await.unwrap()
}

fn crashes() -> CrashRecord {
    CrashRecord { crashes: Arc::default(), whose: None, started: Instant::now() }
}

fn permit() -> Permit {
    Quota::new("processes", Shares { total: 1, principal: 1, upstream: 1 }).take_own(None)
}

fn message(value: &Value) -> Message {
    parsed(&value.to_string())
}

fn parsed(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn call(id: Value, method: &str, params: &Value) -> Message {
    message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

async fn ask(process: &Process, method: &str, params: &Value) -> MultiplexExchange {
    process.request(&call(json!(1), method, params), OnDrop::Cancel, Whose::Client).await.unwrap()
}

async fn next(exchange: &mut MultiplexExchange) -> Result<Option<Value>, SendError> {
    let message = timeout(PATIENCE, exchange.next()).await.expect("a message in time")?;
    Ok(message.map(|message| serde_json::from_slice(message.bytes()).unwrap()))
}

/// Everything that arrives, up to and with the answer.
async fn all(exchange: &mut MultiplexExchange) -> Result<Vec<Value>, SendError> {
    let mut messages = Vec::new();
    while let Some(message) = next(exchange).await? {
        messages.push(message);
    }
    Ok(messages)
}

async fn result(exchange: &mut MultiplexExchange) -> Result<Value, SendError> {
    Ok(all(exchange).await?.pop().unwrap()["result"].take())
}

/// Asks in vain: the reason why the process takes no more.
async fn refusal(process: &Process) -> SendError {
    let asked = process.request(&call(json!(1), "echo", &json!({"text": 1})), OnDrop::Cancel, Whose::Client).await;
    match asked {
        Ok(mut exchange) => next(&mut exchange).await.unwrap_err(),
        Err(error) => error,
    }
}

/// Takes what the process says of its own accord.
fn unasked(process: &Process) -> Option<UnsolicitedQueue> {
    UnsolicitedQueue::take(process.stream())
}

async fn stop(process: &Process) {
    timeout(PATIENCE, process.stop()).await.expect("stopped in time");
    assert!(!process.alive());
}

/// Waits until a process is gone, or dead and waiting for its parent.
async fn gone(pid: i64) {
    let stat = format!("/proc/{pid}/stat");
    let waited = timeout(PATIENCE, async {
        while let Ok(text) = std::fs::read_to_string(&stat) {
            if text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')) {
                break;
            }
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect("the process ends in time");
}

//! A small MCP server on standard input and output, so that Weir has something to serve before anything is installed.
//!
//! It speaks both eras, message by message. What it offers is in `offer`, what it answers in `answer`; here is the
//! loop: lines in, lines out, and the one tool that takes its time, which runs beside the others and can be cancelled.

mod answer;
mod offer;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::stdio_server::{next_line, write_line};

use answer::{Countdown, DemoAnswer};

/// Messages that may wait to be written.
const MAX_WAITING: usize = 64;

/// Serves until `stdin` ends; what still runs then is dropped.
///
/// # Errors
/// When a stream breaks.
pub async fn run(stdin: impl AsyncRead + Unpin, stdout: impl AsyncWrite + Unpin) -> io::Result<()> {
    let (out, messages) = mpsc::channel(MAX_WAITING);
    tokio::try_join!(read(stdin, out), write(stdout, messages))?;
    Ok(())
}

async fn read(stdin: impl AsyncRead + Unpin, out: mpsc::Sender<Value>) -> io::Result<()> {
    let mut stdin = BufReader::new(stdin);
    let mut line = Vec::new();
    let mut running = Countdowns::default();
    while let Some(line) = next_line(&mut stdin, &mut line).await? {
        running.carry_out(answer::answer(line), &out).await;
    }
    Ok(())
}

async fn write(mut stdout: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Value>) -> io::Result<()> {
    while let Some(message) = messages.recv().await {
        write_line(&mut stdout, &message).await?;
    }
    Ok(())
}

/// The countdowns under way, by request id. They end with this.
#[derive(Default)]
struct Countdowns {
    tasks: JoinSet<()>,
    by_id: HashMap<String, AbortHandle>,
}

impl Countdowns {
    async fn carry_out(&mut self, answer: DemoAnswer, out: &mpsc::Sender<Value>) {
        match answer {
            DemoAnswer::Nothing => {}
            DemoAnswer::Now(message) => send(out, message).await,
            DemoAnswer::Count(countdown) => {
                while self.tasks.try_join_next().is_some() {}
                self.by_id.retain(|_, task| !task.is_finished());
                let id = countdown.request.id.to_string();
                self.by_id.insert(id, self.tasks.spawn(count_down(countdown, out.clone())));
            }
            DemoAnswer::Cancel(id) => {
                if let Some(task) = self.by_id.remove(&id.to_string()) {
                    task.abort();
                }
            }
        }
    }
}

async fn count_down(countdown: Countdown, out: mpsc::Sender<Value>) {
    for done in 1..=countdown.from {
        tokio::time::sleep(countdown.pause).await;
        if let Some(token) = &countdown.token {
            let left = countdown.from - done;
            let params = json!({
                "progressToken": token, "progress": done, "total": countdown.from, "message": format!("{left} to go"),
            });
            send(&out, json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})).await;
        }
    }
    send(&out, countdown.finished()).await;
}

async fn send(out: &mpsc::Sender<Value>, message: Value) {
    // Fails only after writing has failed, which ends the server.
    let _ = out.send(message).await;
}

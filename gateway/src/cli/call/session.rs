//! The client's side of the pipes: requests one after the other, and what the server asks meanwhile.

use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf},
    time::{Instant, timeout_at},
};
use weir_mcp::{Kind, Message, era};

use super::{elicitation, progress::ProgressBar};
use crate::cli::terminal;

/// How many pages of a list are read.
const MAX_PAGES: usize = 1000;

/// "Method not found" (JSON-RPC 2.0 §5.1).
const METHOD_NOT_FOUND: i64 = -32601;

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum RequestError {
    /// The server, or Weir, answers with an error.
    #[error("{message} ({code})")]
    Answered {
        /// The code of JSON-RPC or MCP.
        code: i64,
        /// What it says.
        message: String,
        /// What comes with it; null if nothing does.
        data: Value,
    },
    /// There is no answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The other side has ended.
    #[error("the connection has ended before the answer")]
    Closed,
}

/// One session with a server.
pub(in crate::cli) struct ClientSession {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    input: WriteHalf<DuplexStream>,
    /// How long an answer may take without progress.
    limit: Duration,
    requests: u64,
    progress: ProgressBar,
}

impl ClientSession {
    pub(super) fn new(pipe: DuplexStream, limit: Duration) -> Self {
        let (output, input) = tokio::io::split(pipe);
        let lines = BufReader::new(output).lines();
        Self { lines, input, limit, requests: 0, progress: ProgressBar::default() }
    }

    /// Opens the session.
    pub(super) async fn begin(&mut self) -> Result<(), RequestError> {
        let params = json!({
            "protocolVersion": era::LATEST_LEGACY,
            "capabilities": { "elicitation": { "form": {}, "url": {} } },
            "clientInfo": { "name": "weir", "version": env!("CARGO_PKG_VERSION") },
        });
        let waiting = terminal::waiting("waiting for the server");
        self.request("initialize", &params).await?;
        drop(waiting);
        self.write(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string()).await
    }

    /// The entries of a list, up to the first that is `wanted`. A server that has no such list has none.
    pub(in crate::cli) async fn list(
        &mut self,
        method: &str,
        key: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Vec<Value>> {
        let (mut entries, mut params) = (Vec::new(), json!({}));
        for _ in 0..MAX_PAGES {
            let page = match self.request(method, &params).await {
                Err(RequestError::Answered { code: METHOD_NOT_FOUND, .. }) => return Ok(entries),
                page => page?,
            };
            let mut page: Value = serde_json::from_slice(&page)?;
            if let Value::Array(more) = page[key].take() {
                entries.extend(more);
            }
            match page["nextCursor"].take() {
                Value::String(cursor) if !entries.iter().any(&wanted) => params = json!({ "cursor": cursor }),
                _ => return Ok(entries),
            }
        }
        Err(anyhow!("the list of the server does not end after {MAX_PAGES} pages"))
    }

    /// The raw result of a request.
    pub(super) async fn request(&mut self, method: &str, params: &Value) -> Result<Bytes, RequestError> {
        let mut params = params.to_string();
        params.pop();
        self.request_raw(method, &params).await
    }

    /// The same for `params` whose closing brace is left out.
    pub(super) async fn request_raw(&mut self, method: &str, params: &str) -> Result<Bytes, RequestError> {
        self.requests += 1;
        let id = self.requests;
        let comma = if params.len() == 1 { "" } else { "," };
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}{comma}"_meta":{{"progressToken":{id}}}}}}}"#
        );
        let answer = async {
            self.write(&text).await?;
            self.answer(id).await
        };
        let answered = tokio::select! {
            answered = answer => answered,
            _ = tokio::signal::ctrl_c() => Err(RequestError::Interrupted),
        };
        self.progress.clear();
        if let Err(why @ (RequestError::Late(_) | RequestError::Interrupted)) = &answered
            && method != "initialize"
        {
            // The specification has no way to cancel `initialize`. If the pipe is gone, so is the request.
            let params = json!({ "requestId": id, "reason": why.to_string() });
            let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
            drop(self.write(&cancel.to_string()).await);
        }
        answered
    }

    /// Waits for the answer to a request. Progress puts off the end, and so does a question to the person here.
    async fn answer(&mut self, id: u64) -> Result<Bytes, RequestError> {
        let mut end = Instant::now() + self.limit;
        loop {
            let line = timeout_at(end, self.lines.next_line()).await.map_err(|_| RequestError::Late(self.limit))?;
            let Ok(Some(line)) = line else { return Err(RequestError::Closed) };
            let Ok(message) = Message::parse(Bytes::from(line)) else { continue };
            let params = || serde_json::from_slice::<Value>(message.params().unwrap_or(b"{}")).unwrap_or_default();
            match message.kind() {
                Kind::Response | Kind::Error if message.id() == Some(id.to_string().as_bytes()) => {
                    return result(&message);
                }
                Kind::Request => {
                    self.progress.clear();
                    self.serve(&message).await?;
                    if terminal::is_there() {
                        end = Instant::now() + self.limit;
                    }
                }
                Kind::Notification if message.method() == "notifications/progress" => {
                    self.progress.show(&params());
                    end = Instant::now() + self.limit;
                }
                // What is told beside the answer is of no use to one call.
                Kind::Response | Kind::Error | Kind::Notification => {}
            }
        }
    }

    /// Answers what the server asks.
    async fn serve(&mut self, request: &Message) -> Result<(), RequestError> {
        let id = String::from_utf8_lossy(request.id().unwrap_or(b"null"));
        let params = request.params().map_or(Bytes::from_static(b"{}"), |params| request.bytes().slice_ref(params));
        let answer = match request.method() {
            "elicitation/create" => json!({ "result": elicitation::answer(params).await }),
            "ping" => json!({ "result": {} }),
            method => json!({ "error": { "code": METHOD_NOT_FOUND, "message": format!("weir has no {method} here") } }),
        };
        let answer = answer.to_string();
        self.write(&format!(r#"{{"jsonrpc":"2.0","id":{id},{}"#, answer.trim_start_matches('{'))).await
    }

    async fn write(&mut self, line: &str) -> Result<(), RequestError> {
        let written = async {
            self.input.write_all(line.as_bytes()).await?;
            self.input.write_all(b"\n").await
        };
        written.await.map_err(|_| RequestError::Closed)
    }
}

/// The raw result of an answer.
fn result(answer: &Message) -> Result<Bytes, RequestError> {
    if let Some(result) = answer.result() {
        return Ok(answer.bytes().slice_ref(result));
    }
    let mut error: Value = serde_json::from_slice(answer.error().unwrap_or(b"{}")).unwrap_or_default();
    Err(RequestError::Answered {
        code: answer.error_code().unwrap_or_default(),
        message: error["message"].as_str().unwrap_or("an error without a message").to_owned(),
        data: error["data"].take(),
    })
}

//! A collector of OpenTelemetry that fails as a test wants it, which a real one does not.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::wait;

/// Takes records, spans and metrics until it is dropped.
pub struct Collector {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    server: AbortHandle,
}

#[derive(Default)]
struct Shared {
    /// What the next requests are answered with, and their `Retry-After`; nothing more is 200.
    answers: VecDeque<(u16, String, Option<u64>)>,
    /// Whether requests get no answer.
    stalls: bool,
    /// A record whose body has this is refused with 400, and every request that has it.
    poison: Option<String>,
    /// When requests came.
    asked: Vec<Instant>,
    /// The values of `authorization`, one for each request.
    tokens: Vec<String>,
    /// The lines of the audit log that were taken.
    taken: Vec<Value>,
    /// The records of the log that were taken.
    logs: Vec<Value>,
    /// The spans that were taken, each with its `resource`.
    spans: Vec<Value>,
    /// The metrics of each request.
    metrics: Vec<Vec<Value>>,
}

/// An attribute of a span, a data point or a resource, as text; empty if it has none.
pub fn attribute(of: &Value, key: &str) -> String {
    let mut attributes = of["attributes"].as_array().into_iter().flatten();
    let value = attributes.find(|attribute| attribute["key"] == key).map(|attribute| &attribute["value"]);
    let value = value.and_then(|value| value["stringValue"].as_str().or_else(|| value["intValue"].as_str()));
    value.unwrap_or_default().to_owned()
}

impl Collector {
    /// One on a free port.
    ///
    /// # Panics
    /// When there is none.
    pub async fn start() -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// One at this address.
    ///
    /// # Panics
    /// When it is not free.
    pub async fn at(address: SocketAddr) -> Self {
        let listener = wait::listener(address).await;
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<Mutex<Shared>>::default();
        let server = tokio::spawn(serve(listener, Arc::clone(&shared))).abort_handle();
        Self { address, shared, server }
    }

    /// Where it takes logs.
    pub fn url(&self) -> String {
        format!("http://{}/v1/logs", self.address)
    }

    /// Where it takes everything: the address without a path.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has the next request answered so, and not taken unless the status is 200.
    pub fn answer(&self, status: u16, body: &str) {
        self.lock().answers.push_back((status, body.to_owned(), None));
    }

    /// Answers the next request with 429, and wants the following one only after so many seconds.
    pub fn turn_away(&self, seconds: u64) {
        self.lock().answers.push_back((429, String::new(), Some(seconds)));
    }

    /// Takes requests and gives no answer.
    pub fn stall(&self) {
        self.lock().stalls = true;
    }

    /// Refuses each request that has this text in it.
    pub fn refuse(&self, text: &str) {
        self.lock().poison = Some(text.to_owned());
    }

    /// How many requests came.
    pub fn asked(&self) -> usize {
        self.lock().asked.len()
    }

    /// When they came.
    pub fn moments(&self) -> Vec<Instant> {
        self.lock().asked.clone()
    }

    /// The `authorization` of each request.
    pub fn tokens(&self) -> Vec<String> {
        self.lock().tokens.clone()
    }

    /// The records that it has taken, in order.
    pub fn taken(&self) -> Vec<Value> {
        self.lock().taken.clone()
    }

    /// The records of the log that it has taken, in order.
    pub fn logs(&self) -> Vec<Value> {
        self.lock().logs.clone()
    }

    /// The spans that it has taken, in order.
    pub fn spans(&self) -> Vec<Value> {
        self.lock().spans.clone()
    }

    /// The metrics of each request that it has taken.
    pub fn metrics(&self) -> Vec<Vec<Value>> {
        self.lock().metrics.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Mutex<Shared>>) {
    // What it has accepted ends with it.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        let answer = service_fn(move |request| respond(request, Arc::clone(&shared)));
        connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

async fn respond(
    request: hyper::Request<Incoming>,
    shared: Arc<Mutex<Shared>>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let token = request.headers().get("authorization").and_then(|token| token.to_str().ok()).unwrap_or_default();
    let token = token.to_owned();
    let body = request.into_body().collect().await.expect("the gateway sends what it announces").to_bytes();
    let body: Value = serde_json::from_slice(&body).expect("the gateway sends JSON");
    let answer = shared.lock().unwrap_or_else(PoisonError::into_inner).answer(token, &body);
    let (status, text, after) = match answer {
        Some(answer) => answer,
        None => std::future::pending().await,
    };
    let mut response = hyper::Response::builder().status(status).header("content-type", "application/json");
    if let Some(seconds) = after {
        response = response.header("retry-after", seconds);
    }
    Ok(response.body(Full::new(text.into())).expect("a status that a test gives is one"))
}

impl Shared {
    /// The answer to a request, and what is taken of it; none if it gets no answer.
    fn answer(&mut self, token: String, body: &Value) -> Option<(u16, String, Option<u64>)> {
        self.asked.push(Instant::now());
        self.tokens.push(token);
        if self.stalls {
            return None;
        }
        let answer = match self.answers.pop_front() {
            Some(answer) => answer,
            None if self.poison.as_ref().is_some_and(|poison| body.to_string().contains(poison)) => {
                (400, String::new(), None)
            }
            None => (200, "{}".to_owned(), None),
        };
        if answer.0 == 200 {
            self.take(body);
        }
        Some(answer)
    }

    fn take(&mut self, body: &Value) {
        if let Some(records) = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array() {
            for record in records {
                let line = record["body"]["stringValue"].as_str().expect("a record has a body");
                // Records of the audit log are JSON.
                match serde_json::from_str(line) {
                    Ok(line) => self.taken.push(line),
                    Err(_) => self.logs.push(record.clone()),
                }
            }
        } else if let Some(metrics) = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array() {
            self.metrics.push(metrics.clone());
        } else {
            let part = &body["resourceSpans"][0];
            let spans = part["scopeSpans"][0]["spans"].as_array().expect("a request has records, metrics or spans");
            self.spans.extend(spans.iter().map(|span| {
                let mut span = span.clone();
                span["resource"] = part["resource"].clone();
                span
            }));
        }
    }
}

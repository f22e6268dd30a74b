//! A collector of OpenTelemetry's logs that fails as a test wants it, which a real one does not.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// Takes records until it is dropped.
pub struct Collector {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    server: AbortHandle,
}

#[derive(Default)]
struct Shared {
    /// What the next requests are answered with; nothing more is 200.
    answers: VecDeque<(u16, String)>,
    /// A record whose body has this is refused with 400, and every request that has it.
    poison: Option<String>,
    /// How many requests came.
    asked: usize,
    /// The values of `authorization`, one for each request.
    tokens: Vec<String>,
    /// The lines of the audit log that were taken.
    taken: Vec<Value>,
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
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<Mutex<Shared>>::default();
        let server = tokio::spawn(serve(listener, Arc::clone(&shared))).abort_handle();
        Self { address, shared, server }
    }

    /// Where it takes logs.
    pub fn url(&self) -> String {
        format!("http://{}/v1/logs", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has the next request answered so, and not taken unless the status is 200.
    pub fn answer(&self, status: u16, body: &str) {
        self.lock().answers.push_back((status, body.to_owned()));
    }

    /// Refuses each request that has this text in it.
    pub fn refuse(&self, text: &str) {
        self.lock().poison = Some(text.to_owned());
    }

    /// How many requests came.
    pub fn asked(&self) -> usize {
        self.lock().asked
    }

    /// The `authorization` of each request.
    pub fn tokens(&self) -> Vec<String> {
        self.lock().tokens.clone()
    }

    /// The records that it has taken, in order.
    pub fn taken(&self) -> Vec<Value> {
        self.lock().taken.clone()
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
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    shared.asked += 1;
    shared.tokens.push(token);
    let (status, text) = match shared.answers.pop_front() {
        Some(answer) => answer,
        None if shared.poison.as_ref().is_some_and(|poison| body.to_string().contains(poison)) => (400, String::new()),
        None => (200, "{}".to_owned()),
    };
    if status == 200 {
        let records = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().expect("there are records");
        let lines = records.iter().map(|record| record["body"]["stringValue"].as_str().expect("a record has a body"));
        shared.taken.extend(lines.map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON")));
    }
    let response = hyper::Response::builder().status(status).header("content-type", "application/json");
    Ok(response.body(Full::new(text.into())).expect("a status that a test gives is one"))
}

//! A server that says what a test tells it to, for what no real one does on demand.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use url::{Url, form_urlencoded};

use crate::{AddressPolicy, Http, RequestLimits};

pub(crate) mod pair;

/// A server of this test.
pub(crate) struct Scripted {
    pub(crate) url: Url,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
    _task: JoinSet<()>,
}

/// A request that it got.
#[derive(Clone, Debug)]
pub(crate) struct SeenRequest {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

/// What it answers.
#[derive(Clone)]
pub(crate) struct ScriptedReply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Only when a permit is there.
    hold: Option<Arc<Semaphore>>,
    /// The connection stays open after this many bytes of the body.
    stop_after: Option<usize>,
}

impl Scripted {
    pub(crate) async fn start(script: impl Fn(&Url, &SeenRequest) -> ScriptedReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut task = JoinSet::new();
        let (script, list, own) = (Arc::new(script), Arc::clone(&seen), url.clone());
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (script, list, own) = (Arc::clone(&script), Arc::clone(&list), own.clone());
                connections.spawn(async move {
                    let _ = serve(stream, |request| {
                        list.lock().push(request.clone());
                        script(&own, &request)
                    })
                    .await;
                });
            }
        });
        Self { url, seen, _task: task }
    }

    pub(crate) fn at(&self, path: &str) -> Url {
        self.url.join(path).unwrap()
    }

    pub(crate) fn issuer(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Requests to a path, all of them if it is empty.
    pub(crate) fn seen(&self, path: &str) -> Vec<SeenRequest> {
        let seen = self.seen.lock();
        seen.iter().filter(|request| path.is_empty() || request.path == path).cloned().collect()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.seen("").into_iter().map(|request| request.path).collect()
    }
}

impl SeenRequest {
    pub(crate) fn form(&self, name: &str) -> Option<String> {
        form_urlencoded::parse(self.body.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl ScriptedReply {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), hold: None, stop_after: None }
    }

    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self { body: body.to_string().into_bytes(), ..Self::status(status) }.with("content-type", "application/json")
    }

    pub(crate) fn text(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::status(status) }
    }

    pub(crate) fn error(status: u16, code: &str) -> Self {
        Self::json(status, &serde_json::json!({ "error": code, "error_description": "hunter2 was wrong" }))
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn hold(self, hold: &Arc<Semaphore>) -> Self {
        Self { hold: Some(Arc::clone(hold)), ..self }
    }

    pub(crate) fn stop_after(self, bytes: usize) -> Self {
        Self { stop_after: Some(bytes), ..self }
    }
}

/// An address where nobody listens, and nobody else can begin to as long as the socket is there.
pub(crate) fn nobody(path: &str) -> (Url, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    (Url::parse(&format!("http://{}{path}", socket.local_addr().unwrap())).unwrap(), socket)
}

/// A client that may reach scripted servers.
pub(crate) fn http() -> Http {
    static FIRST: OnceLock<Http> = OnceLock::new();
    let first = FIRST.get_or_init(|| Http::new(AddressPolicy::default(), RequestLimits::default(), &[]).unwrap());
    first.with_reach(AddressPolicy { loopback: true, private: false }).unwrap()
}

async fn serve(stream: TcpStream, answer: impl FnOnce(SeenRequest) -> ScriptedReply) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let mut words = line.split_ascii_whitespace().map(str::to_owned);
    let path = words.nth(1).unwrap_or_default();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 || line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let reply = answer(SeenRequest { path, headers, body: String::from_utf8_lossy(&body).into_owned() });
    if let Some(hold) = &reply.hold {
        hold.acquire().await.unwrap().forget();
    }
    let mut head =
        format!("HTTP/1.1 {} x\r\nconnection: close\r\ncontent-length: {}\r\n", reply.status, reply.body.len());
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    match reply.stop_after {
        Some(bytes) => {
            stream.write_all(&reply.body[..bytes]).await?;
            stream.flush().await?;
            std::future::pending().await
        }
        None => stream.write_all(&reply.body).await?,
    }
    stream.shutdown().await
}

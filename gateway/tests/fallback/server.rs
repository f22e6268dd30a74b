//! A server that answers as it is told: Streamable HTTP at POST, HTTP+SSE at GET, or something else at either.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};

/// The token that [`Does::Guard`] wants.
pub(crate) const TOKEN: &str = "right";

/// What happens at one method of the address.
#[derive(Clone)]
pub(crate) enum Does {
    /// The transport that belongs there.
    Serve,
    /// A status and a body.
    Say(u16, &'static str),
    /// Nothing, ever.
    Silence,
    /// 401 without [`TOKEN`], 401 with another, and the transport with it.
    Guard,
}

/// How the stream of HTTP+SSE behaves.
#[derive(Clone)]
pub(crate) struct Stream {
    /// What comes first, `{id}` for the session's id and `{host}` for the address.
    pub(crate) begin: &'static str,
    /// Headers of the stream's response, each with its line end.
    pub(crate) head: &'static str,
    /// Whether a POST is answered.
    pub(crate) accepts: bool,
    /// The media type of a POST's answer that carries the answer to its message, instead of the stream.
    pub(crate) in_body: Option<&'static str>,
    /// Whether answers go to the streams of all sessions.
    pub(crate) broadcasts: bool,
    /// How a POST of a session that was forgotten is answered.
    pub(crate) lost: (u16, &'static str),
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            begin: "event: endpoint\ndata: /messages?sessionId={id}\n\n",
            head: "",
            accepts: true,
            in_body: None,
            broadcasts: false,
            lost: (404, "Could not find session"),
        }
    }
}

/// No step takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    running: AbortHandle,
}

struct Shared {
    host: String,
    post: Does,
    get: Does,
    stream: Stream,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    opened: usize,
    streams: HashMap<String, mpsc::UnboundedSender<String>>,
    forgotten: Vec<mpsc::UnboundedSender<String>>,
}

/// What came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) message: Value,
}

impl Server {
    pub(crate) async fn start(post: Does, get: Does) -> Self {
        Self::streaming(post, get, Stream::default()).await
    }

    pub(crate) async fn streaming(post: Does, get: Does, stream: Stream) -> Self {
        Self::at(([127, 0, 0, 1], 0).into(), post, get, stream).await
    }

    async fn at(address: SocketAddr, post: Does, get: Does, stream: Stream) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(64).unwrap();
        let address = listener.local_addr().unwrap();
        let host = address.to_string();
        let shared = Arc::new(Shared { host, post, get, stream, state: Mutex::default() });
        let accepting = Arc::clone(&shared);
        let running = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let shared = Arc::clone(&accepting);
                connections.spawn(async move { shared.serve(socket).await });
            }
        });
        Self { address, shared, running: running.abort_handle() }
    }

    /// Ends it with all its connections.
    pub(crate) async fn stop(&self) {
        self.running.abort();
        while !self.running.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    /// A new one in the place of this one, which is ended.
    pub(crate) async fn restart(&self) -> Self {
        self.replace(self.shared.post.clone(), self.shared.get.clone()).await
    }

    /// The same, with other behaviour.
    pub(crate) async fn replace(&self, post: Does, get: Does) -> Self {
        self.stop().await;
        Self::at(self.address, post, get, self.shared.stream.clone()).await
    }

    /// The lines that make it the upstream `u`.
    pub(crate) fn config(&self, more: &str) -> String {
        format!("[upstreams.u]\nurl = \"http://{}/mcp\"\n{more}\n", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.state.lock().unwrap().seen.clone()
    }

    /// Whether a message with this method came by this HTTP method; any if it is empty.
    pub(crate) fn saw(&self, http: &str, method: &str) -> bool {
        self.seen().iter().any(|seen| seen.method == http && (method.is_empty() || seen.message["method"] == method))
    }

    /// Waits until [`saw`](Self::saw) is true.
    pub(crate) async fn sees(&self, http: &str, method: &str) {
        let seen = async {
            while !self.saw(http, method) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.expect("it comes in time");
    }

    /// Forgets every session, but lets the streams stay open.
    pub(crate) fn forget(&self) {
        let mut state = self.shared.state.lock().unwrap();
        let forgotten = std::mem::take(&mut state.streams).into_values();
        state.forgotten.extend(forgotten);
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, socket: TcpStream) -> Option<()> {
        let mut socket = BufReader::new(socket);
        loop {
            let seen = read(&mut socket).await?;
            self.state.lock().unwrap().seen.push(seen.clone());
            let at_stream = seen.path.contains("messages");
            let does = match (seen.method.as_str(), at_stream) {
                ("GET", _) => &self.get,
                ("POST", false) => &self.post,
                ("POST", true) if matches!(self.get, Does::Guard) => &self.get,
                ("POST", true) => &Does::Serve,
                _ => &Does::Say(405, ""),
            };
            match does {
                Does::Guard if !seen.head.contains(&format!("authorization: Bearer {TOKEN}")) => {
                    answer(&mut socket, 401, "text/plain", "", "WWW-Authenticate: Bearer error=\"invalid_token\"\r\n")
                        .await?;
                }
                Does::Say(status, body) => {
                    let media = if body.starts_with('{') { "application/json" } else { "text/html" };
                    answer(&mut socket, *status, media, body, "").await?;
                }
                Does::Silence => std::future::pending().await,
                Does::Serve | Does::Guard if seen.method == "GET" => return self.stream(&mut socket).await,
                Does::Serve | Does::Guard if at_stream => self.post(&mut socket, &seen).await?,
                Does::Serve | Does::Guard => match reply(&seen.message) {
                    Some(reply) => answer(&mut socket, 200, "application/json", &reply, "").await?,
                    None => answer(&mut socket, 202, "text/plain", "", "").await?,
                },
            }
        }
    }

    async fn stream(&self, socket: &mut BufReader<TcpStream>) -> Option<()> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let id = {
            let mut state = self.state.lock().unwrap();
            state.opened += 1;
            let id = format!("s{}", state.opened);
            state.streams.insert(id.clone(), sender);
            id
        };
        let fill = |text: &str| text.replace("{id}", &id).replace("{host}", &self.host);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{}\r\n", fill(self.stream.head));
        socket.write_all((head + &fill(self.stream.begin)).as_bytes()).await.ok()?;
        let crlf = self.stream.begin.contains('\r');
        let mut bin = [0];
        loop {
            tokio::select! {
                event = events.recv() => {
                    let text = format!("event: message\ndata: {}\n\n: ping\n\n", event?);
                    let text = if crlf { text.replace('\n', "\r\n") } else { text };
                    socket.write_all(text.as_bytes()).await.ok()?;
                }
                // The client closed it.
                _ = socket.read(&mut bin) => {
                    self.state.lock().unwrap().streams.remove(&id);
                    return None;
                }
            }
        }
    }

    /// A POST beside a stream, where the answer goes.
    async fn post(&self, socket: &mut BufReader<TcpStream>, seen: &Seen) -> Option<()> {
        let session = seen.path.split("sessionId=").nth(1).unwrap_or_default();
        let stream = self.state.lock().unwrap().streams.get(session).cloned();
        let Some(stream) = stream else {
            let (status, body) = self.stream.lost;
            return answer(socket, status, "text/plain", body, "").await;
        };
        if seen.message["params"]["name"] == "die" {
            self.state.lock().unwrap().streams.remove(session);
        } else if let Some(reply) = reply(&seen.message) {
            if let Some(media) = self.stream.in_body {
                let events = media == "text/event-stream";
                let body = if events { format!("event: message\ndata: {reply}\n\n") } else { reply };
                return answer(socket, 200, media, &body, "").await;
            }
            let all = self.state.lock().unwrap().streams.values().cloned().collect();
            let to = if self.stream.broadcasts { all } else { vec![stream] };
            to.iter().for_each(|stream| drop(stream.send(reply.clone())));
        }
        if !self.stream.accepts {
            std::future::pending::<()>().await;
        }
        answer(socket, 202, "text/plain", "Accepted", "").await
    }
}

/// The answer of a legacy server with two tools.
fn reply(message: &Value) -> Option<String> {
    let id = message.get("id").filter(|_| message.get("method").is_some())?;
    let error = |code: i64, text: &str| json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}});
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": "2024-11-05",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted", "version": "1"},
        }),
        "tools/list" => json!({"tools": [
            {"name": "echo", "inputSchema": {"type": "object"}},
            {"name": "gpt-4o-1401", "inputSchema": {"type": "object"}},
        ]}),
        "tools/call" if message["params"]["name"] == "gpt-4o-1401" => {
            return Some(error(-32000, "the model answered with status 401").to_string());
        }
        "tools/call" => json!({"content": [{"type": "text", "text": message["params"]["arguments"]["message"]}]}),
        _ => return Some(error(-32601, "no such method").to_string()),
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
}

pub(crate) async fn read(socket: &mut BufReader<TcpStream>) -> Option<Seen> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if socket.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let length = head.to_ascii_lowercase();
    let length = length.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    socket.read_exact(&mut body).await.ok()?;
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    Some(Seen { method, path, message: serde_json::from_slice(&body).unwrap_or_default(), head })
}

pub(crate) async fn answer(
    socket: &mut BufReader<TcpStream>,
    status: u16,
    media: &str,
    body: &str,
    more: &str,
) -> Option<()> {
    let length = body.len();
    let text = format!("HTTP/1.1 {status} -\r\nContent-Type: {media}\r\nContent-Length: {length}\r\n{more}\r\n{body}");
    socket.write_all(text.as_bytes()).await.ok()
}

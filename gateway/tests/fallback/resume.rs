//! Streams of an upstream that end before they are over, and go on for the client as if nothing had happened.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::{gateway::Gateway, server};

const PROGRESS: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}"#;
const RESULT: &str = r#"{"jsonrpc":"2.0","id":"c","result":{"content":[{"type":"text","text":"done"}]}}"#;
const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a://b"}}"#;

/// One connection's part of a stream: what is sent before it ends.
#[derive(Clone, Copy)]
enum Part {
    /// Events, and an end by the book.
    Whole(&'static str),
    /// Events, and an end in the middle of the framing.
    Cut(&'static str),
    /// This status instead of a stream.
    Status(u16),
}

/// A legacy server with sessions; its streams end as the script says.
struct Peer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What a call is answered with, and then each GET that goes on.
    parts: VecDeque<Part>,
    /// What the stream of the session brings first.
    stream: Option<Part>,
    ended: Option<Instant>,
    resumed: Vec<(String, Duration)>,
    /// What those who took a stream up again showed.
    tokens: Vec<String>,
}

impl Peer {
    async fn start(stream: Option<Part>, parts: &[Part]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { parts: parts.iter().copied().collect(), stream, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let accepting = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let shared = Arc::clone(&accepting);
                tokio::spawn(async move { shared.serve(socket).await });
            }
        });
        Self { address, shared }
    }

    fn config(&self) -> String {
        format!("[upstreams.u]\nurl = \"http://{}/mcp\"\ntype = \"http\"\n", self.address)
    }

    /// The ids that streams went on after, and how long after their end.
    fn resumed(&self) -> Vec<(String, Duration)> {
        self.shared.state.lock().unwrap().resumed.clone()
    }

    fn ids(&self) -> Vec<String> {
        self.resumed().into_iter().map(|(id, _)| id).collect()
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, socket: TcpStream) -> Option<()> {
        let mut socket = BufReader::new(socket);
        loop {
            let seen = server::read(&mut socket).await?;
            let header = |wanted: &str| {
                seen.head.lines().find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    name.eq_ignore_ascii_case(wanted).then(|| value.to_owned())
                })
            };
            let last = header("last-event-id");
            let method = seen.message["method"].as_str().unwrap_or_default().to_owned();
            let part = {
                let mut state = self.state.lock().unwrap();
                if let (Some(id), Some(ended)) = (last, state.ended) {
                    state.resumed.push((id, ended.elapsed()));
                    state.tokens.extend(header("authorization"));
                    Some(state.parts.pop_front().unwrap_or(Part::Status(404)))
                } else if method == "tools/call" {
                    state.parts.pop_front()
                } else if seen.method == "GET" && state.stream.is_some() && seen.head.contains("mcp-session-id: mine") {
                    state.stream.take()
                } else {
                    None
                }
            };
            match part {
                Some(part) => {
                    let goes_on = send(&mut socket, part).await?;
                    self.state.lock().unwrap().ended = Some(Instant::now());
                    if !goes_on {
                        return None;
                    }
                }
                None if seen.method == "POST" => match reply(&seen.message) {
                    Some((head, body)) => server::answer(&mut socket, 200, "application/json", &body, head).await?,
                    None => server::answer(&mut socket, 202, "text/plain", "", "").await?,
                },
                None => server::answer(&mut socket, 405, "text/plain", "", "").await?,
            }
        }
    }
}

async fn send(socket: &mut BufReader<TcpStream>, part: Part) -> Option<bool> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (events, end, goes_on) = match part {
        Part::Whole(events) => (events, "0\r\n\r\n", true),
        Part::Cut(events) => (events, "", false),
        Part::Status(status) => {
            server::answer(socket, status, "text/plain", "", "").await?;
            return Some(true);
        }
    };
    let events = fill(events);
    socket.write_all(format!("{head}{:x}\r\n{events}\r\n{end}", events.len()).as_bytes()).await.ok()?;
    Some(goes_on)
}

fn fill(events: &str) -> String {
    events.replace("{progress}", PROGRESS).replace("{result}", RESULT).replace("{changed}", CHANGED)
}

fn reply(message: &Value) -> Option<(&'static str, String)> {
    let id = message.get("id").filter(|_| message.get("method").is_some())?;
    let (head, result) = match message["method"].as_str()? {
        "initialize" => (
            // The session of the tests' client, to tell it from the gateway's own.
            if message["params"]["clientInfo"]["name"] == "t" { "Mcp-Session-Id: mine\r\n" } else { "" },
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "resources": {"subscribe": true}},
                "serverInfo": {"name": "scripted", "version": "1"},
            }),
        ),
        "tools/list" => ("", json!({"tools": [{"name": "slow", "inputSchema": {"type": "object"}}]})),
        _ => {
            let error = json!({"code": -32601, "message": "no such method"});
            return Some(("", json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()));
        }
    };
    Some((head, json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()))
}

/// The messages that a call brings to a client at `path`, and the peer.
async fn called(path: &str, parts: &[Part]) -> (Vec<Value>, Peer) {
    let peer = Peer::start(None, parts).await;
    let gateway = Gateway::start(&peer.config()).await;
    gateway.transport().await;
    let tool = if path == "/mcp" { "u__slow" } else { "slow" };
    let messages = gateway.client_at(path).await.calls(tool).await;
    (messages, peer)
}

#[track_caller]
fn is_progress_and_result(messages: &[Value]) {
    let [progress, result] = messages else { panic!("{messages:?}") };
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(result["result"]["content"][0]["text"], "done");
    assert_eq!(result["id"], "c");
}

#[tokio::test]
async fn a_stream_that_breaks_goes_on_where_it_was() {
    let first = "id: 1\ndata: {progress}\n\n";
    let rest = "id: 2\ndata: {result}\n\n";
    let cases = [
        [Part::Cut(first), Part::Whole(rest)],
        [Part::Whole(first), Part::Whole(rest)],
        [Part::Cut("id: 1\ndata: {progress}\n\nid: 2\ndata: {\"jsonrpc\""), Part::Whole(rest)],
        // What came already is not delivered twice.
        [Part::Cut(first), Part::Whole("id: 1\ndata: {progress}\n\nid: 2\ndata: {result}\n\n")],
        [Part::Whole("id: 1\r\ndata: {progress}\r\n\r\n"), Part::Whole("id: 2\r\ndata: {result}\r\n\r\n")],
    ];
    for path in ["/mcp/u", "/mcp"] {
        for parts in cases {
            let (messages, peer) = called(path, &parts).await;
            is_progress_and_result(&messages);
            assert_eq!(peer.ids(), ["1"]);
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_closed_on_purpose_goes_on_when_the_server_wishes() {
    let parts = [
        Part::Whole("id: 0\nretry: 300\ndata:\n\n"),
        Part::Whole("id: 1\ndata: {progress}\n\n"),
        Part::Whole("id: 2\nretry: 20\ndata:\n\n"),
        Part::Whole("id: 3\ndata: {result}\n\n"),
    ];
    for path in ["/mcp/u", "/mcp"] {
        let (messages, peer) = called(path, &parts).await;
        let messages: Vec<_> = messages.into_iter().filter(Value::is_object).collect();
        is_progress_and_result(&messages);
        assert_eq!(peer.ids(), ["0", "1", "2"]);
        let waited: Vec<_> = peer.resumed().iter().map(|(_, waited)| waited.as_millis()).collect();
        assert!(waited[0] >= 290 && waited[1] >= 290, "{waited:?}");
    }
}

#[tokio::test]
async fn a_server_in_trouble_is_asked_again() {
    let parts = [
        Part::Whole("id: 1\nretry: 20\ndata: {progress}\n\n"),
        Part::Status(503),
        Part::Status(429),
        Part::Whole("id: 2\ndata: {result}\n\n"),
    ];
    let (messages, peer) = called("/mcp/u", &parts).await;
    is_progress_and_result(&messages);
    assert_eq!(peer.ids(), ["1", "1", "1"]);
}

/// A server may let a client wait for longer than its token is good.
#[tokio::test]
async fn a_stream_goes_on_with_the_credential_of_the_time() {
    let first = "id: 1\nretry: 20\ndata: {progress}\n\n";
    let more = "id: 2\nretry: 20\ndata: {progress}\n\n";
    let rest = "id: 3\ndata: {result}\n\n";
    let parts = [Part::Whole(first), Part::Status(401), Part::Whole(more), Part::Whole(rest)];
    let peer = Peer::start(None, &parts).await;
    let folder = std::env::temp_dir().join(format!("weir-resume-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let token = folder.join("token");
    std::fs::write(&token, "one").unwrap();
    let gateway = Gateway::start(&format!("{}bearer = {{ file = {token:?} }}\n", peer.config())).await;
    gateway.transport().await;
    std::fs::write(&token, "two").unwrap();
    let messages = gateway.client_at("/mcp/u").await.calls("slow").await;
    assert_eq!(messages.last().unwrap()["result"]["content"][0]["text"], "done", "{messages:?}");
    assert_eq!(peer.ids(), ["1", "1", "2"]);
    assert_eq!(peer.shared.state.lock().unwrap().tokens, ["Bearer one", "Bearer two", "Bearer two"]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn a_stream_that_is_refused_for_good_ends_with_an_error() {
    let first = "id: 1\nretry: 20\ndata: {progress}\n\n";
    let (messages, peer) = called("/mcp/u", &[Part::Whole(first), Part::Status(401), Part::Status(401)]).await;
    let text = messages.last().unwrap()["error"]["message"].as_str().unwrap_or_default();
    assert!(text.contains("its event stream ended"), "{messages:?}");
    assert!(peer.ids().len() < 3, "{:?}", peer.ids());
}

#[tokio::test]
async fn a_stream_that_cannot_go_on_ends_with_an_error() {
    let cases = [
        (&[Part::Whole("data: {progress}\n\n")][..], "its event stream ended before the answer", 0),
        (&[Part::Whole("id: 1\nretry: 20\ndata: {progress}\n\n"), Part::Status(405)], "status 405", 1),
        (&[Part::Whole("id: 1\nretry: 20\ndata: {progress}\n\n"), Part::Status(404)], "the session is gone", 1),
    ];
    for path in ["/mcp/u", "/mcp"] {
        for (parts, why, tries) in cases {
            let (messages, peer) = called(path, parts).await;
            let text = messages.last().unwrap()["error"]["message"].as_str().unwrap_or_default();
            assert!(text.contains(why), "{messages:?}");
            assert_eq!(messages.len(), 2, "{messages:?}");
            assert_eq!(peer.ids().len(), tries);
        }
    }
}

#[tokio::test]
async fn an_answer_ends_its_stream() {
    let (messages, peer) =
        called("/mcp/u", &[Part::Whole("id: 1\ndata: {progress}\n\nid: 2\ndata: {result}\n\n")]).await;
    is_progress_and_result(&messages);
    assert_eq!(peer.ids(), Vec::<String>::new());
}

#[tokio::test]
async fn the_stream_of_a_session_goes_on_too() {
    let stream = Some(Part::Whole("id: g1\nretry: 20\ndata: {changed}\n\n"));
    let peer =
        Peer::start(stream, &[Part::Cut("id: g2\ndata: {changed}\n\n"), Part::Whole("id: g3\ndata: {changed}\n\n")]);
    let peer = peer.await;
    let gateway = Gateway::start(&peer.config()).await;
    gateway.transport().await;
    gateway.client_at("/mcp/u").await.hears(3, "notifications/resources/updated").await;
    assert_eq!(peer.ids()[..2], ["g1", "g2"]);
}

//! A server that speaks both eras is spoken to in its client's own: what a client gets at `/mcp/<name>` is, byte for byte,
//! what the server gives it directly.

use std::net::SocketAddr;

use serde_json::Value;
use weir_tests::peer::Launch;
use weir_tests::{Bridge, Gateway, LEGACY, MODERN, Peer, Request};

/// What is asked of each server in each era, as method and params. Not every server has all of it; an error is an answer too.
const ASKED: [(&str, &str); 12] = [
    ("tools/list", "{}"),
    ("prompts/list", "{}"),
    ("resources/list", "{}"),
    ("resources/templates/list", "{}"),
    ("tools/call", r#"{"name":"echo","arguments":{"message":"é\\u0041"}}"#),
    ("tools/call", r#"{"name":"test_multiple_content_types","arguments":{}}"#),
    ("tools/call", r#"{"name":"none","arguments":{}}"#),
    ("resources/read", r#"{"uri":"test://static-text"}"#),
    ("resources/read", r#"{"uri":"none://x"}"#),
    ("prompts/get", r#"{"name":"hello"}"#),
    ("completion/complete", r#"{"ref":{"type":"ref/prompt","name":"none"},"argument":{"name":"a","value":"b"}}"#),
    ("vendor/none", "{}"),
];

#[derive(Clone, Copy, Debug)]
enum Era {
    Legacy,
    Modern,
}

impl Era {
    /// The requests with their methods and names, under ids from 1 on; the first is how the era begins.
    fn requests(self) -> Vec<(String, String)> {
        let begin = match self {
            Self::Legacy => {
                let info = r#""clientInfo":{"name":"weir-tests","version":"1"}"#;
                ("initialize", format!(r#"{{"protocolVersion":"{LEGACY}","capabilities":{{}},{info}}}"#))
            }
            Self::Modern => ("server/discover", "{}".to_owned()),
        };
        let asked = ASKED.iter().map(|(method, params)| (*method, (*params).to_owned()));
        let all = std::iter::once(begin).chain(asked).zip(1..);
        all.map(|((method, params), id)| (method.to_owned(), self.request(id, method, &params))).collect()
    }

    fn request(self, id: u32, method: &str, params: &str) -> String {
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#);
        match self {
            Self::Legacy => format!("{head}{params}}}"),
            Self::Modern => {
                let version = format!(r#""io.modelcontextprotocol/protocolVersion":"{MODERN}""#);
                let meta = format!(r#""_meta":{{{version},"io.modelcontextprotocol/clientCapabilities":{{}}}}"#);
                let comma = if params == "{}" { "" } else { "," };
                format!("{head}{}{comma}{meta}}}}}", params.strip_suffix('}').unwrap())
            }
        }
    }
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What came for each request: the messages as they were written.
type Heard = Vec<(String, Vec<String>)>;

async fn over_http(address: SocketAddr, path: &str, era: Era) -> Heard {
    let mut heard = Heard::new();
    let mut session: Option<String> = None;
    for (method, body) in era.requests() {
        let message: Value = serde_json::from_str(&body).unwrap();
        let mut request = Request::post(path, body);
        match era {
            Era::Legacy => {
                if let Some(session) = &session {
                    request = request.header("mcp-session-id", session);
                }
                if method != "initialize" {
                    request = request.header("mcp-protocol-version", LEGACY);
                }
            }
            Era::Modern => request = weir_tests::client::modern_headers(request, &method, &message["params"]),
        }
        let response = request.send(address).await;
        session = session.or(response.header("mcp-session-id").map(str::to_owned));
        let mut messages = Vec::new();
        if response.is_stream() {
            let mut events = response.events();
            while let Some(event) = events.next().await {
                messages.extend(Some(event.data).filter(|data| !data.is_empty()));
            }
        } else {
            messages.push(String::from_utf8(response.bytes().await.to_vec()).unwrap());
        }
        heard.push((message.to_string(), messages));
        if method == "initialize" {
            let mut initialized = Request::post(path, INITIALIZED).header("mcp-protocol-version", LEGACY);
            if let Some(session) = &session {
                initialized = initialized.header("mcp-session-id", session);
            }
            initialized.send(address).await;
        }
    }
    heard
}

async fn over_stdio(launch: &Launch, era: Era) -> Heard {
    let mut server = Bridge::run(launch.prepared());
    let mut heard = Heard::new();
    for (method, body) in era.requests() {
        server.write(format!("{body}\n")).await;
        let request: Value = serde_json::from_str(&body).unwrap();
        let mut messages = Vec::new();
        loop {
            let line = server.line().await;
            let message: Value = serde_json::from_str(&line).unwrap();
            messages.push(line);
            if message["id"] == request["id"] && message["method"].is_null() {
                break;
            }
        }
        heard.push((request.to_string(), messages));
        if method == "initialize" {
            server.write(format!("{INITIALIZED}\n")).await;
        }
    }
    heard
}

/// Compares what is heard of each upstream in both eras, and says all that differs at once.
fn compare(name: &str, era: Era, direct: &Heard, through: &Heard, wrong: &mut Vec<String>) {
    for ((request, direct), (_, through)) in direct.iter().zip(through) {
        if direct != through {
            wrong.push(format!("{name}, {era:?}: {request}\n  direct:  {direct:?}\n  through: {through:?}"));
        }
    }
}

#[tokio::test]
async fn over_streamable_http() {
    let python = Launch::python();
    let peers = tokio::join!(
        Peer::fixture("both"),
        Peer::fixture_handler(),
        Peer::python(),
        Peer::python_fixture(),
        Peer::fastmcp(),
        Peer::npm_proxy(&python),
    );
    let peers = [
        ("fixture", &peers.0),
        ("handler", &peers.1),
        ("python", &peers.2),
        ("python-fixture", &peers.3),
        ("fastmcp", &peers.4),
        ("npm-proxy", &peers.5),
    ];
    let config: String = peers.iter().map(|(name, peer)| peer.config(name)).collect();
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&peers.map(|(name, _)| name)).await;
    let mut wrong = Vec::new();
    for (name, peer) in peers {
        for era in [Era::Legacy, Era::Modern] {
            let direct = over_http(peer.address(), "/mcp", era).await;
            let through = over_http(gateway.address(), &format!("/mcp/{name}"), era).await;
            compare(name, era, &direct, &through, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each legacy session has a process of its own, which it begins; where processes are shared there is one for each era.
async fn compare_process(launch: &Launch) {
    let shared = format!("{}shared = true\n", launch.config("shared"));
    let gateway = Gateway::start(&(launch.config("own") + &shared)).await;
    gateway.healthy(&["own", "shared"]).await;
    let mut wrong = Vec::new();
    for era in [Era::Legacy, Era::Modern] {
        let direct = over_stdio(launch, era).await;
        for name in ["own", "shared"] {
            let through = over_http(gateway.address(), &format!("/mcp/{name}"), era).await;
            compare(name, era, &direct, &through, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_process_on_the_typescript_sdk() {
    compare_process(&Launch::fixture("both")).await;
}

#[tokio::test]
async fn a_process_on_the_python_sdk() {
    compare_process(&Launch::python()).await;
}

#[tokio::test]
async fn a_process_on_fastmcp() {
    compare_process(&Launch::fastmcp()).await;
}

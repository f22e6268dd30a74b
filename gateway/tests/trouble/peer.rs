//! An MCP server over HTTP that does what a test wants.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// How a peer behaves.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// Whether it speaks the modern era too.
    pub(crate) modern: bool,
    /// Whether `initialize` waits.
    pub(crate) hold_initialize: bool,
    /// Whether `prompts/list` fails.
    pub(crate) bad_prompts: bool,
    /// Whether a GET is never answered.
    pub(crate) silent_stream: bool,
    /// Whether the stream ends at once.
    pub(crate) short_stream: bool,
    /// Whether answers to calls break off in the middle.
    pub(crate) half_answers: bool,
    /// Whether calls get a 202.
    pub(crate) empty_answers: bool,
    /// What is said of a session that is not known; otherwise 404 with an error.
    pub(crate) lost: Option<(u16, &'static str)>,
}

#[derive(Default)]
struct State {
    script: Script,
    sessions: BTreeSet<u64>,
    next: u64,
    held: usize,
}

/// A running peer.
pub(crate) struct Peer {
    port: u16,
    state: Arc<(Mutex<State>, Condvar)>,
}

struct Request {
    method: String,
    session: Option<u64>,
    modern: bool,
    body: Value,
}

impl Peer {
    pub(crate) fn start(script: Script) -> Self {
        Self::start_at(0, script)
    }

    /// A port at which nothing listens.
    pub(crate) fn reserve() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    pub(crate) fn start_at(port: u16, script: Script) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new((Mutex::new(State { script, ..State::default() }), Condvar::new()));
        thread::spawn({
            let state = Arc::clone(&state);
            move || {
                for stream in listener.incoming() {
                    let state = Arc::clone(&state);
                    thread::spawn(move || serve(&state, &stream.unwrap()));
                }
            }
        });
        Self { port, state }
    }

    pub(crate) fn upstream(&self, name: &str) -> String {
        format!("[upstreams.{name}]\nurl = \"http://127.0.0.1:{}/mcp\"\n", self.port)
    }

    pub(crate) fn sessions(&self) -> BTreeSet<u64> {
        self.state.0.lock().unwrap().sessions.clone()
    }

    /// Keeps the first sessions and forgets the rest.
    pub(crate) fn forget_all_but(&self, count: usize) {
        let mut state = self.state.0.lock().unwrap();
        state.sessions = state.sessions.iter().copied().take(count).collect();
    }

    /// How many sessions were opened.
    pub(crate) fn opened(&self) -> u64 {
        self.state.0.lock().unwrap().next
    }

    /// How many `initialize` wait.
    pub(crate) fn held(&self) -> usize {
        self.state.0.lock().unwrap().held
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.state.0.lock().unwrap().script);
        self.state.1.notify_all();
    }
}

fn serve(state: &(Mutex<State>, Condvar), stream: &TcpStream) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        if request.method == "GET" {
            return listen(state, &request, stream);
        }
        let (status, head, body) = answer(state, &request);
        if status == 0 {
            drop(
                (&*stream)
                    .write_all(b"HTTP/1.1 200 x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"),
            );
            return;
        }
        // Text goes as it is.
        let (media, body) = match body {
            Value::Null => ("application/json", String::new()),
            Value::String(text) => ("text/plain", text),
            body => ("application/json", body.to_string()),
        };
        let length = body.len();
        let written = write!(
            &*stream,
            "HTTP/1.1 {status} x\r\nContent-Type: {media}\r\n{head}Content-Length: {length}\r\n\r\n{body}"
        );
        if written.is_err() {
            return;
        }
    }
}

fn listen(state: &(Mutex<State>, Condvar), request: &Request, mut stream: &TcpStream) {
    let known = state.0.lock().unwrap();
    let short = known.script.short_stream;
    let (silent, mine) = (known.script.silent_stream, request.session.is_some_and(|id| known.sessions.contains(&id)));
    drop(known);
    if !mine {
        drop(stream.write_all(b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n"));
        return;
    }
    if !silent {
        drop(stream.write_all(b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"));
    }
    if short {
        return;
    }
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    drop(stream.read(&mut [0]));
}

fn answer(state: &(Mutex<State>, Condvar), request: &Request) -> (u16, String, Value) {
    let mut known = state.0.lock().unwrap();
    let id = &request.body["id"];
    let result = |result: Value| (200, String::new(), json!({"jsonrpc": "2.0", "id": id, "result": result}));
    let error = |status, code| {
        let error = json!({"code": code, "message": "no"});
        (status, String::new(), json!({"jsonrpc": "2.0", "id": id, "error": error}))
    };
    if request.method == "DELETE" {
        known.sessions.remove(&request.session.unwrap_or_default());
        return (200, String::new(), Value::Null);
    }
    let capabilities = json!({"tools": {"listChanged": true}, "prompts": {}});
    let in_session = request.session.is_some_and(|id| known.sessions.contains(&id));
    let stateless = known.script.modern && request.modern;
    match request.body["method"].as_str().unwrap_or_default() {
        "server/discover" if known.script.modern => result(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities
        })),
        "initialize" if request.body["params"]["capabilities"]["roots"].is_number() => error(400, -32602),
        "initialize" => {
            known.held += 1;
            let mut known = state.1.wait_while(known, |state| state.script.hold_initialize).unwrap();
            known.held -= 1;
            known.next += 1;
            let session = known.next;
            known.sessions.insert(session);
            let info = json!({"name": "peer", "version": "1"});
            let opened =
                result(json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}));
            (200, format!("Mcp-Session-Id: {session}\r\n"), opened.2)
        }
        _ if !in_session && !stateless => match known.script.lost.filter(|_| request.session.is_some()) {
            None => error(404, -32001),
            Some((status, text)) => (status, String::new(), serde_json::from_str(text).unwrap_or_else(|_| text.into())),
        },
        _ if id.is_null() => (202, String::new(), Value::Null),
        "tools/list" => result(json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})),
        "prompts/list" if known.script.bad_prompts => error(200, -32603),
        "prompts/list" => result(json!({"prompts": []})),
        "tools/call" if known.script.half_answers => (0, String::new(), Value::Null),
        "tools/call" if known.script.empty_answers => (202, String::new(), Value::Null),
        "tools/call" => result(json!({"content": []})),
        _ => error(200, -32601),
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let method = line.split(' ').next().filter(|method| !method.is_empty())?.to_owned();
    let (mut session, mut length) = (None, 0);
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "mcp-session-id" => session = value.trim().parse().ok(),
            "content-length" => length = value.trim().parse().unwrap(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let modern = body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string();
    Some(Request { method, session, modern, body })
}

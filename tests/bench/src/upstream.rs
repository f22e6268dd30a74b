//! A fast MCP server of our own, so that what is measured is the proxy and not the server behind it.
//!
//! One thread, raw HTTP/1.1, every list built once at start. The path says who it is: `/legacy/20` speaks the legacy era and
//! lists 20 tools, `/modern/500` the modern one and 500; `/sse/20` is HTTP+SSE. It gives a token to whoever wants one, for
//! itself and for Weir. The same is had over standard input and output. It checks nothing that an honest client would not
//! need checked.

mod answers;
mod issuer;
mod stdio;

use crate::messages::Era;
use crate::wire::{Inbox, Message, WireError};
use answers::{Framing, Lists};
use issuer::Issuer;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

pub(crate) use stdio::serve as serve_stdio;

/// Serves on `127.0.0.1:port` until the process ends.
pub(crate) fn serve(port: u16) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let server = Arc::new(Server::new(port)?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let server = Arc::clone(&server);
            // A connection that breaks concerns its client only, which reports it.
            tokio::spawn(async move { drop(server.connection(stream).await) });
        }
    })
}

/// What the bench reads of a message; everything else is skipped.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<&'a str>,
    params: Option<Params<'a>>,
}

#[derive(Deserialize, Default)]
struct Params<'a> {
    name: Option<&'a str>,
    #[serde(borrow)]
    arguments: Option<Arguments<'a>>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<Meta<'a>>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, rename = "progressToken")]
    token: Option<&'a RawValue>,
}

struct Server {
    port: u16,
    issuer: Issuer,
    lists: Lists,
    sessions: AtomicU64,
    /// The streams of HTTP+SSE.
    streams: Mutex<HashMap<u64, mpsc::UnboundedSender<Vec<u8>>>>,
}

/// What a connection goes on with.
enum Next {
    /// The next request.
    Request,
    /// The stream of that number, for good.
    Stream(u64),
}

impl Server {
    fn new(port: u16) -> anyhow::Result<Self> {
        let issuer = Issuer::new(port)?;
        Ok(Self { port, issuer, lists: Lists::default(), sessions: AtomicU64::default(), streams: Mutex::default() })
    }

    async fn connection(&self, mut stream: TcpStream) -> Result<(), WireError> {
        let mut inbox = Inbox::default();
        let mut out = Vec::new();
        while let Some(message) = inbox.next(&mut stream).await? {
            out.clear();
            let next = self.answer(&message, &mut out);
            stream.write_all(&out).await?;
            if let Next::Stream(number) = next {
                return self.stream(number, stream).await;
            }
        }
        Ok(())
    }

    async fn stream(&self, number: u64, mut stream: TcpStream) -> Result<(), WireError> {
        let (sender, mut events) = mpsc::unbounded_channel::<Vec<u8>>();
        self.streams().insert(number, sender);
        while let Some(event) = events.recv().await {
            if stream.write_all(&event).await.is_err() {
                break;
            }
        }
        self.streams().remove(&number);
        Ok(())
    }

    fn streams(&self) -> std::sync::MutexGuard<'_, HashMap<u64, mpsc::UnboundedSender<Vec<u8>>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Next {
        let (verb, path) = message.method_and_path();
        let path = std::str::from_utf8(path).unwrap_or_default();
        if let Some(rest) = path.strip_prefix("/sse/") {
            return self.beside_stream(verb, rest, message.body, out);
        }
        // Its own authorization server, so that Weir can get a token.
        let said = match path {
            "/.well-known/oauth-authorization-server" => Some(answers::authority(self.port)),
            "/keys" => Some(self.issuer.keys()),
            "/token" => Some(answers::TOKEN.to_owned()),
            "/caller" => Some(self.issuer.token()),
            // What a collector says to what it has taken.
            "/v1/traces" | "/v1/metrics" => Some("{}".to_owned()),
            _ => None,
        };
        if let Some(said) = said {
            answers::document(out, &said);
            return Next::Request;
        }
        let (era, list) = match path {
            "/legacy/20" => (Era::Legacy, &self.lists.legacy_20),
            "/legacy/500" => (Era::Legacy, &self.lists.legacy_500),
            "/modern/20" => (Era::Modern, &self.lists.modern_20),
            "/modern/500" => (Era::Modern, &self.lists.modern_500),
            _ => {
                answers::empty(out, "404 Not Found");
                return Next::Request;
            }
        };
        match (verb, era) {
            (b"POST", _) => {
                let session = || self.sessions.fetch_add(1, Ordering::Relaxed);
                say(message.body, Framing::Http, era, list, session, out);
                if out.is_empty() {
                    answers::empty(out, "202 Accepted");
                }
            }
            (b"DELETE", Era::Legacy) => answers::empty(out, "200 OK"),
            _ => answers::empty(out, "405 Method Not Allowed"),
        }
        Next::Request
    }

    /// HTTP+SSE: `rest` is the number of tools and, for a POST, that of the stream.
    fn beside_stream(&self, verb: &[u8], rest: &str, body: &[u8], out: &mut Vec<u8>) -> Next {
        if verb == b"GET" {
            let number = self.sessions.fetch_add(1, Ordering::Relaxed);
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n");
            out.extend_from_slice(format!("event: endpoint\ndata: /sse/{rest}/{number}\n\n").as_bytes());
            return Next::Stream(number);
        }
        let (tools, number) = rest.split_once('/').unwrap_or_default();
        let list = if tools == "20" { &self.lists.legacy_20 } else { &self.lists.legacy_500 };
        let mut event = Vec::new();
        say(body, Framing::Event, Era::Legacy, list, || 0, &mut event);
        let streams = self.streams();
        let Some(stream) = number.parse().ok().and_then(|number: u64| streams.get(&number)) else {
            answers::empty(out, "404 Not Found");
            return Next::Request;
        };
        if !event.is_empty() {
            drop(stream.send(event));
        }
        answers::empty(out, "202 Accepted");
        Next::Request
    }
}

/// The answer to a message; nothing for a notification.
fn say(body: &[u8], framing: Framing, era: Era, list: &str, session: impl FnOnce() -> u64, out: &mut Vec<u8>) {
    let Ok(call) = serde_json::from_slice::<Call<'_>>(body) else {
        return answers::error(out, framing, "400 Bad Request", "null", -32700, "this is not a message");
    };
    let (Some(id), Some(method)) = (call.id.map(RawValue::get), call.method) else { return };
    match (method, era) {
        ("tools/call", _) => tool(framing, era, id, &call.params.unwrap_or_default(), out),
        ("tools/list", _) => answers::result(out, framing, id, list),
        ("initialize", Era::Legacy) => answers::initialized(out, framing, id, session()),
        ("ping", Era::Legacy) => answers::result(out, framing, id, "{}"),
        ("server/discover", Era::Modern) => answers::result(out, framing, id, answers::DISCOVERED),
        ("server/discover", Era::Legacy) => {
            answers::error(out, framing, "400 Bad Request", id, -32000, "server not initialized");
        }
        _ => answers::error(out, framing, "404 Not Found", id, -32601, "method not found"),
    }
}

fn tool(framing: Framing, era: Era, id: &str, params: &Params<'_>, out: &mut Vec<u8>) {
    match params.name {
        Some("echo") => {
            let payload = params.arguments.as_ref().and_then(|arguments| arguments.payload);
            answers::echo(out, framing, era, id, payload.map_or("\"\"", RawValue::get));
        }
        Some("burst") => {
            let token = params.meta.as_ref().and_then(|meta| meta.token);
            answers::burst(out, framing, era, id, token.map(RawValue::get));
        }
        _ => answers::error(out, framing, "200 OK", id, -32602, "unknown tool"),
    }
}

//! A fast MCP server of our own, so that what is measured is the proxy and not the server behind it.
//!
//! One thread, raw HTTP/1.1, every list built once at start. The path says who it is: `/legacy/20` speaks the legacy era and
//! lists 20 tools, `/modern/500` the modern one and 500. It checks nothing that an honest client would not need checked.

mod answers;

use crate::messages::Era;
use crate::wire::{Inbox, Message, WireError};
use answers::Lists;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Serves on `127.0.0.1:port` until the process ends.
pub(crate) fn serve(port: u16) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let server = Arc::new(Server::default());
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

#[derive(Default)]
struct Server {
    lists: Lists,
    sessions: AtomicU64,
}

impl Server {
    async fn connection(&self, mut stream: TcpStream) -> Result<(), WireError> {
        let mut inbox = Inbox::default();
        let mut out = Vec::new();
        while let Some(message) = inbox.next(&mut stream).await? {
            out.clear();
            self.answer(&message, &mut out);
            stream.write_all(&out).await?;
        }
        Ok(())
    }

    fn answer(&self, message: &Message<'_>, out: &mut Vec<u8>) {
        let (verb, path) = message.method_and_path();
        let (era, list) = match path {
            b"/legacy/20" => (Era::Legacy, &self.lists.legacy_20),
            b"/legacy/500" => (Era::Legacy, &self.lists.legacy_500),
            b"/modern/20" => (Era::Modern, &self.lists.modern_20),
            b"/modern/500" => (Era::Modern, &self.lists.modern_500),
            _ => return answers::empty(out, "404 Not Found"),
        };
        match (verb, era) {
            (b"POST", _) => {}
            (b"DELETE", Era::Legacy) => return answers::empty(out, "200 OK"),
            _ => return answers::empty(out, "405 Method Not Allowed"),
        }
        let Ok(call) = serde_json::from_slice::<Call<'_>>(message.body) else {
            return answers::error(out, "400 Bad Request", "null", -32700, "this is not a message");
        };
        let (Some(id), Some(method)) = (call.id.map(RawValue::get), call.method) else {
            return answers::empty(out, "202 Accepted");
        };
        match (method, era) {
            ("tools/call", _) => tool(era, id, &call.params.unwrap_or_default(), out),
            ("tools/list", _) => answers::result(out, id, list),
            ("initialize", Era::Legacy) => {
                answers::initialized(out, id, self.sessions.fetch_add(1, Ordering::Relaxed));
            }
            ("ping", Era::Legacy) => answers::result(out, id, b"{}"),
            ("server/discover", Era::Modern) => answers::result(out, id, answers::DISCOVERED),
            ("server/discover", Era::Legacy) => {
                answers::error(out, "400 Bad Request", id, -32000, "server not initialized");
            }
            _ => answers::error(out, "404 Not Found", id, -32601, "method not found"),
        }
    }
}

fn tool(era: Era, id: &str, params: &Params<'_>, out: &mut Vec<u8>) {
    match params.name {
        Some("echo") => {
            let payload = params.arguments.as_ref().and_then(|arguments| arguments.payload);
            answers::echo(out, era, id, payload.map_or("\"\"", RawValue::get));
        }
        Some("burst") => {
            let token = params.meta.as_ref().and_then(|meta| meta.token);
            answers::burst(out, era, id, token.map(RawValue::get));
        }
        _ => answers::error(out, "200 OK", id, -32602, "unknown tool"),
    }
}

//! The MCP server with the interceptors, over Streamable HTTP in whichever era it speaks.
//!
//! Each question has an instance of its own. So what is known of the server is kept in the store: its session, or that it
//! has none, and its list of interceptors.

use weir_policy::{
    capability::{
        http::{self, Method, Request},
        store::{self, Condition},
    },
    json::Json,
};

use crate::{answer, interceptor::Interceptor};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const META: &str = "io.modelcontextprotocol/";
/// How long a session is used, in seconds. One that the server has ended before is noticed.
const SESSION_TTL: u32 = 3600;
/// How long the list of interceptors is believed, in seconds.
const LIST_TTL: u32 = 60;
/// The pages of a list that are read.
const PAGES: usize = 3;

pub(crate) struct InterceptorServer<'a> {
    url: &'a str,
    /// Makes ids that no other request of the session has.
    call: String,
    asked: usize,
    connection: Option<Connection>,
}

#[derive(Clone)]
enum Connection {
    /// Each request stands alone.
    Modern,
    Session {
        id: Option<String>,
        version: String,
    },
}

/// What came over HTTP.
enum ServerReply {
    Result(Json, Option<String>),
    Error(String),
    /// Neither; the status.
    Status(u16),
}

impl<'a> InterceptorServer<'a> {
    /// The server that is asked about a part of a call.
    pub(crate) fn new(url: &'a str, call: String) -> Self {
        Self { url, call, asked: 0, connection: None }
    }

    /// Its interceptors.
    pub(crate) fn interceptors(&mut self) -> Result<Vec<Interceptor>, String> {
        let key = format!("list:{}", self.url);
        let (all, is_new) = match recalled(&key) {
            Some(kept) => (kept, false),
            None => (self.list()?, true),
        };
        let read = all.elements().iter().map(Interceptor::read).collect::<Result<Vec<_>, _>>();
        let read = read.map_err(|why| self.away(&format!("has a list that cannot be used: {why}")))?;
        if is_new {
            keep(&key, &all, LIST_TTL);
        }
        Ok(read.into_iter().flatten().collect())
    }

    /// The whole list: one that is not known to its end may lack the interceptor that would refuse.
    fn list(&mut self) -> Result<Json, String> {
        let (mut all, mut cursor) = (Vec::new(), None);
        for _ in 0..PAGES {
            let params = cursor.map_or(Json::from([]), |cursor: Json| Json::from([("cursor", cursor)]));
            let page = self.ask("interceptors/list", params)?;
            let Some(Json::Array(entries)) = page.get("interceptors") else {
                return Err(self.away("gives no list of interceptors"));
            };
            all.extend(entries.iter().cloned());
            cursor = page.get("nextCursor").filter(|cursor| cursor.as_text().is_some()).cloned();
            if cursor.is_none() {
                return Ok(Json::Array(all));
            }
        }
        Err(self.away(&format!("has a list of more than {PAGES} pages")))
    }

    /// The result of a request; or the error of the server, or why there is no answer.
    pub(crate) fn ask(&mut self, method: &str, params: Json) -> Result<Json, String> {
        let key = format!("session:{}", self.url);
        let known = self.connection.take().or_else(|| Connection::read(&recalled(&key)?));
        let is_known = known.is_some();
        let mut connection = match known {
            Some(connection) => connection,
            None => self.open()?,
        };
        let mut reply = self.post(&connection, method, params.clone())?;
        // The server has ended the session, or speaks another era by now.
        if is_known && matches!(reply, ServerReply::Status(400 | 404)) {
            connection = self.open()?;
            reply = self.post(&connection, method, params)?;
        }
        match reply {
            ServerReply::Result(result, _) => {
                if recalled(&key).as_ref() != Some(&connection.written()) {
                    keep(&key, &connection.written(), SESSION_TTL);
                }
                self.connection = Some(connection);
                Ok(result)
            }
            ServerReply::Error(text) => Err(text),
            ServerReply::Status(status) => Err(self.away(&format!("answers with status {status}"))),
        }
    }

    /// Begins a session, or finds that the server has none.
    fn open(&mut self) -> Result<Connection, String> {
        let client = Json::from([("name", "weir".into()), ("version", env!("CARGO_PKG_VERSION").into())]);
        let params = [("protocolVersion", LEGACY.into()), ("capabilities", [].into()), ("clientInfo", client)];
        let hello = Connection::Session { id: None, version: String::new() };
        let connection = match self.post(&hello, "initialize", params.into())? {
            ServerReply::Result(result, id) => {
                let version = result.get("protocolVersion").and_then(Json::as_text).unwrap_or(LEGACY).to_owned();
                let session = Connection::Session { id, version };
                self.notify(&session)?;
                session
            }
            // It may know no sessions. Whether it does speak the modern era shows with the next request.
            ServerReply::Error(_) | ServerReply::Status(400 | 404 | 405) => Connection::Modern,
            ServerReply::Status(status) => return Err(self.away(&format!("answers with status {status}"))),
        };
        Ok(connection)
    }

    fn notify(&self, session: &Connection) -> Result<(), String> {
        let message = Json::from([("jsonrpc", "2.0".into()), ("method", "notifications/initialized".into())]);
        self.send(session, "notifications/initialized", &message).map(drop)
    }

    fn post(&mut self, connection: &Connection, method: &str, mut params: Json) -> Result<ServerReply, String> {
        if let Connection::Modern = connection {
            let client = Json::from([("name", "weir".into()), ("version", env!("CARGO_PKG_VERSION").into())]);
            let meta = [("protocolVersion", MODERN.into()), ("clientInfo", client), ("clientCapabilities", [].into())];
            let meta = meta.map(|(name, value)| (format!("{META}{name}"), value));
            params.set("_meta", Json::Object(meta.into()));
        }
        self.asked += 1;
        let id = format!("{}-{}", self.call, self.asked);
        let message = Json::from([
            ("jsonrpc", "2.0".into()),
            ("id", id.as_str().into()),
            ("method", method.into()),
            ("params", params),
        ]);
        let response = self.send(connection, method, &message)?;
        let header = |wanted: &str| {
            response.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.as_str())
        };
        let is_stream = header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let session = header("mcp-session-id").map(str::to_owned);
        let body = String::from_utf8(response.body).unwrap_or_default();
        // An error that comes with another status is about the way to the server: its session, or its era.
        if !(200..=299).contains(&response.status) {
            return Ok(ServerReply::Status(response.status));
        }
        let Some(answer) = answer::find(&body, is_stream, &id) else {
            return Err(self.away("gives no answer to the request"));
        };
        Ok(match (answer.get("result"), answer.get("error")) {
            (Some(result), _) => ServerReply::Result(result.clone(), session),
            (None, error) => {
                let text = error.and_then(|error| error.get("message")?.as_text()).unwrap_or("without a message");
                ServerReply::Error(format!("{} answers with an error: {text}", self.url))
            }
        })
    }

    fn send(&self, connection: &Connection, method: &str, message: &Json) -> Result<http::Response, String> {
        let mut headers = vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("accept".to_owned(), "application/json, text/event-stream".to_owned()),
        ];
        match connection {
            Connection::Modern => {
                headers.push(("mcp-protocol-version".to_owned(), MODERN.to_owned()));
                headers.push(("mcp-method".to_owned(), method.to_owned()));
            }
            Connection::Session { id, version } => {
                headers.extend(id.clone().map(|id| ("mcp-session-id".to_owned(), id)));
                if !version.is_empty() {
                    headers.push(("mcp-protocol-version".to_owned(), version.clone()));
                }
            }
        }
        let body = message.to_string().into_bytes();
        let request = Request { method: Method::Post, url: self.url.to_owned(), headers, body, extensions: Vec::new() };
        http::send(&request).map_err(|why| self.away(&format!("cannot be asked: {why}")))
    }

    fn away(&self, what: &str) -> String {
        format!("the interceptor server {} {what}", self.url)
    }
}

impl Connection {
    fn read(kept: &Json) -> Option<Self> {
        let version = kept.get("version")?.as_text()?.to_owned();
        if version == MODERN {
            return Some(Self::Modern);
        }
        Some(Self::Session { id: kept.get("session").and_then(Json::as_text).map(str::to_owned), version })
    }

    fn written(&self) -> Json {
        match self {
            Self::Modern => Json::from([("version", MODERN.into())]),
            Self::Session { id, version } => {
                let id = id.as_deref().map_or(Json::Null, Json::from);
                Json::from([("version", version.as_str().into()), ("session", id)])
            }
        }
    }
}

fn recalled(key: &str) -> Option<Json> {
    let kept = store::get(key).ok().flatten()?;
    Json::parse(&String::from_utf8(kept.value).ok()?)
}

/// Where it cannot be kept, it is asked for again the next time.
fn keep(key: &str, value: &Json, ttl_seconds: u32) {
    let _ = store::set(key, value.to_string().as_bytes(), ttl_seconds, Condition::Always);
}

//! MCP clients of our own, one for each era, that show every message as it is.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use crate::events::Events;
use crate::gateway::Gateway;
use crate::http::{Request, Response};

/// The newest version of the legacy era.
pub const LEGACY: &str = "2025-11-25";
/// The oldest version of the modern era.
pub const MODERN: &str = "2026-07-28";

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
const INFO_KEY: &str = "io.modelcontextprotocol/clientInfo";

/// A client of either era at one endpoint.
pub struct Client {
    address: SocketAddr,
    path: String,
    token: Option<String>,
    /// What it calls itself with each request.
    name: Option<String>,
    session: Option<Session>,
    next_id: AtomicU64,
}

/// What a legacy client carries along.
struct Session {
    id: String,
    version: String,
    greeting: Value,
}

impl Client {
    /// A legacy client that has shaken hands.
    ///
    /// # Panics
    /// When the handshake fails.
    pub async fn legacy(gateway: &Gateway, path: &str) -> Self {
        Self::legacy_at(gateway.address(), path, LEGACY, &json!({})).await
    }

    /// The same, with the version and the capabilities that it asks for, at any server.
    ///
    /// # Panics
    /// When the handshake fails.
    pub async fn legacy_at(address: SocketAddr, path: &str, version: &str, capabilities: &Value) -> Self {
        Self::shaking_hands(address, path, initialize(path, version, capabilities), None).await
    }

    /// A legacy client that brings a token.
    ///
    /// # Panics
    /// When the handshake fails.
    pub async fn legacy_with(gateway: &Gateway, path: &str, token: &str, capabilities: &Value) -> Self {
        let hello = initialize(path, LEGACY, capabilities).header("authorization", &format!("Bearer {token}"));
        Self::shaking_hands(gateway.address(), path, hello, Some(token.to_owned())).await
    }

    /// A legacy client that calls itself so.
    ///
    /// # Panics
    /// When the handshake fails.
    pub async fn legacy_named(gateway: &Gateway, path: &str, name: &str) -> Self {
        Self::shaking_hands(gateway.address(), path, introduction(path, LEGACY, &json!({}), name), None).await
    }

    /// A modern client that calls itself so.
    pub fn modern_named(gateway: &Gateway, path: &str, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::modern(gateway, path) }
    }

    /// A legacy client, if the server opens a session.
    pub async fn try_legacy_at(address: SocketAddr, path: &str) -> Option<Self> {
        let response = initialize(path, LEGACY, &json!({})).try_send(address).await.ok()?;
        let id = response.header("mcp-session-id")?.to_owned();
        let session = Some(Session { id, version: LEGACY.to_owned(), greeting: Value::Null });
        Some(Self { address, path: path.to_owned(), token: None, name: None, session, next_id: AtomicU64::new(1) })
    }

    async fn shaking_hands(address: SocketAddr, path: &str, hello: Request, token: Option<String>) -> Self {
        let response = hello.send(address).await;
        assert_eq!(response.status, 200, "initialize at {path}");
        let id = response.header("mcp-session-id").expect("initialize gives a session id").to_owned();
        let greeting = answer(response, 0).await["result"].clone();
        let version = greeting["protocolVersion"].as_str().expect("the server chooses a version").to_owned();
        let session = Some(Session { id, version, greeting });
        let client = Self { address, path: path.to_owned(), token, name: None, session, next_id: AtomicU64::new(1) };
        let status = client.notify("notifications/initialized", json!({})).await;
        assert_eq!(status, 202, "notifications/initialized at {path}");
        client
    }

    /// A modern client, which needs no handshake.
    pub fn modern(gateway: &Gateway, path: &str) -> Self {
        Self::modern_at(gateway.address(), path)
    }

    /// The same, at any server.
    pub fn modern_at(address: SocketAddr, path: &str) -> Self {
        Self { address, path: path.to_owned(), token: None, name: None, session: None, next_id: AtomicU64::new(1) }
    }

    /// Brings this token from now on.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// The result of `initialize`.
    ///
    /// # Panics
    /// For a modern client.
    pub fn greeting(&self) -> &Value {
        &self.legacy_session().greeting
    }

    /// The id of the session.
    ///
    /// # Panics
    /// For a modern client.
    pub fn session_id(&self) -> &str {
        &self.legacy_session().id
    }

    /// The whole answer to a request: an object with `result` or `error`.
    ///
    /// # Panics
    /// When there is none.
    pub async fn ask(&self, method: &str, params: Value) -> Value {
        let (id, request) = self.request(method, params);
        answer(request.send(self.address).await, id).await
    }

    /// The result of a request.
    ///
    /// # Panics
    /// When it is an error.
    pub async fn result(&self, method: &str, params: Value) -> Value {
        let mut answer = self.ask(method, params).await;
        match answer.get_mut("result") {
            Some(result) => result.take(),
            None => panic!("{method} at {} failed: {answer}", self.path),
        }
    }

    /// Calls a tool; gives its result.
    ///
    /// # Panics
    /// When the answer is a JSON-RPC error.
    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// All items of a list, page by page.
    ///
    /// # Panics
    /// When a page is not a list of `key`, or there is no end to them.
    pub async fn list(&self, method: &str, key: &str) -> Vec<Value> {
        const TOO_MANY: usize = 100;
        let mut all = Vec::new();
        let mut params = json!({});
        for _ in 0..TOO_MANY {
            let mut page = self.result(method, params).await;
            let Value::Array(items) = page[key].take() else { panic!("{method} gave no array of {key}: {page}") };
            all.extend(items);
            match page.get("nextCursor") {
                None | Some(Value::Null) => return all,
                Some(cursor) => params = json!({ "cursor": cursor }),
            }
        }
        panic!("{method} at {} has more than {TOO_MANY} pages", self.path);
    }

    /// The names of all tools, in the order of the list.
    ///
    /// # Panics
    /// As [`Client::list`].
    pub async fn tools(&self) -> Vec<String> {
        texts(&self.list("tools/list", "tools").await, "name")
    }

    /// Sends a notification; gives the status.
    pub async fn notify(&self, method: &str, params: Value) -> u16 {
        let params = self.params(params);
        let body = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        let request = self.headers(Request::post(&self.path, body.to_string()), method, &params);
        request.send(self.address).await.status
    }

    /// A request that is ready to be sent, with its id.
    pub fn request(&self, method: &str, params: Value) -> (u64, Request) {
        self.request_with(method, self.params(params))
    }

    /// The same with these very `params`, to which a modern client adds nothing.
    pub fn request_with(&self, method: &str, params: Value) -> (u64, Request) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        (id, self.headers(Request::post(&self.path, body.to_string()), method, &params))
    }

    /// A POST of any body with this client's headers, those that mirror the body left out.
    pub fn post(&self, body: impl Into<bytes::Bytes>) -> Request {
        self.session_headers(Request::post(&self.path, body))
    }

    /// Sends any request to this client's server.
    pub async fn send(&self, request: Request) -> Response {
        request.send(self.address).await
    }

    /// Opens the stream for what the server sends on its own.
    ///
    /// # Panics
    /// When it is refused, and for a modern client.
    pub async fn stream(&self) -> Events {
        let request = Request::get(&self.path).header("accept", "text/event-stream");
        let response = self.session_headers(request).send(self.address).await;
        assert_eq!(response.status, 200, "GET {}", self.path);
        response.events()
    }

    /// Ends the session; gives the status.
    ///
    /// # Panics
    /// For a modern client.
    pub async fn close(&self) -> u16 {
        self.closing().send(self.address).await.status
    }

    /// The request that ends the session.
    pub fn closing(&self) -> Request {
        self.session_headers(Request::new("DELETE", &self.path))
    }

    fn legacy_session(&self) -> &Session {
        self.session.as_ref().expect("a modern client has no session")
    }

    /// A modern client adds to each request who it is.
    fn params(&self, params: Value) -> Value {
        if self.session.is_some() {
            return params;
        }
        let mut params = with_meta(params, &json!({}));
        if let Some(name) = &self.name {
            params["_meta"][INFO_KEY] = json!({ "name": name, "version": "1" });
        }
        params
    }

    /// Gives a request that was made elsewhere this client's headers.
    #[must_use]
    pub fn dressed(&self, request: Request, method: &str, params: &Value) -> Request {
        self.headers(request, method, params)
    }

    fn headers(&self, request: Request, method: &str, params: &Value) -> Request {
        match self.session {
            Some(_) => self.session_headers(request),
            None => modern_headers(self.bearing(request), method, params),
        }
    }

    fn bearing(&self, request: Request) -> Request {
        match &self.token {
            Some(token) => request.header("authorization", &format!("Bearer {token}")),
            None => request,
        }
    }

    fn session_headers(&self, request: Request) -> Request {
        let request = self.bearing(request);
        match &self.session {
            Some(session) => {
                request.header("mcp-session-id", &session.id).header("mcp-protocol-version", &session.version)
            }
            None => request.header("mcp-protocol-version", MODERN),
        }
    }
}

/// The request that opens a legacy session, with id 0.
pub fn initialize(path: &str, version: &str, capabilities: &Value) -> Request {
    introduction(path, version, capabilities, "weir-tests")
}

fn introduction(path: &str, version: &str, capabilities: &Value, name: &str) -> Request {
    let body = json!({
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": version,
            "capabilities": capabilities,
            "clientInfo": { "name": name, "version": "1" },
        },
    });
    Request::post(path, body.to_string())
}

/// `params` with the `_meta` keys that the modern era demands, beside any that are there.
///
/// # Panics
/// When `params` or its `_meta` is not an object.
pub fn with_meta(mut params: Value, capabilities: &Value) -> Value {
    let object = params.as_object_mut().expect("params are an object");
    let meta = object.entry("_meta").or_insert_with(|| Value::Object(Map::new()));
    meta[VERSION_KEY] = json!(MODERN);
    meta[CAPABILITIES_KEY] = capabilities.clone();
    params
}

/// The headers that mirror a modern body.
#[must_use]
pub fn modern_headers(request: Request, method: &str, params: &Value) -> Request {
    let request = request.header("mcp-protocol-version", MODERN).header("mcp-method", method);
    let name = match method {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        "tasks/get" | "tasks/update" | "tasks/cancel" => params["taskId"].as_str(),
        _ => None,
    };
    match name {
        Some(name) => request.header("mcp-name", name),
        None => request,
    }
}

/// The answer to the request `id` in a response, be it JSON or a stream.
///
/// # Panics
/// When it is not there.
pub async fn answer(response: Response, id: u64) -> Value {
    let status = response.status;
    if !response.is_stream() {
        let body = response.json().await;
        assert_eq!(body["id"], json!(id), "the answer has another id, with status {status}: {body}");
        return body;
    }
    let mut events = response.events();
    while let Some(message) = events.next_message().await {
        if message["id"] == json!(id) && message.get("method").is_none() {
            return message;
        }
    }
    panic!("the stream ended without an answer to request {id}");
}

/// The texts under `key` in each of `items`.
///
/// # Panics
/// When one has none.
pub fn texts(items: &[Value], key: &str) -> Vec<String> {
    let text = |item: &Value| item[key].as_str().unwrap_or_else(|| panic!("no {key} in {item}")).to_owned();
    items.iter().map(text).collect()
}

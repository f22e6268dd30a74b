//! A client of HTTP+SSE (2024-11-05) of our own: one stream, and POSTs beside it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::events::Events;
use crate::http::{Request, Response};

/// An open stream.
pub struct SseClient {
    /// Everything that comes, the answers of others of its requests included.
    pub events: Events,
    /// Where to post, as the stream's first event said.
    pub post_to: String,
    address: SocketAddr,
    next_id: AtomicU64,
}

impl SseClient {
    /// Opens the stream at `path`.
    ///
    /// # Panics
    /// When it is refused, or does not begin with an `endpoint`.
    pub async fn open(address: SocketAddr, path: &str) -> Self {
        let response = Request::get(path).header("accept", "text/event-stream").send(address).await;
        assert_eq!(response.status, 200, "GET {path}");
        let mut events = response.events();
        let first = events.next().await.expect("the stream begins with an event");
        assert_eq!(first.event.as_deref(), Some("endpoint"), "{first:?}");
        assert!(!first.data.starts_with('/'), "a reference that a proxy's prefix does not break: {}", first.data);
        // As a URL is resolved: beside what the path ends with.
        let folder = &path[..=path.rfind('/').expect("a path has a slash")];
        Self { events, post_to: format!("{folder}{}", first.data), address, next_id: AtomicU64::new(0) }
    }

    /// The same, with the handshake done.
    ///
    /// # Panics
    /// When the handshake fails.
    pub async fn connect(address: SocketAddr, path: &str, capabilities: &Value) -> Self {
        let mut client = Self::open(address, path).await;
        let info = json!({ "name": "weir-tests", "version": "1" });
        let params = json!({ "protocolVersion": "2024-11-05", "capabilities": capabilities, "clientInfo": info });
        let greeting = client.ask("initialize", params).await;
        assert!(greeting["result"]["protocolVersion"].is_string(), "{greeting}");
        client.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        client
    }

    /// From now on posts to another gateway.
    pub fn post_through(&mut self, address: SocketAddr) {
        self.address = address;
    }

    /// Posts any body.
    pub async fn post(&self, body: impl Into<bytes::Bytes>) -> Response {
        Request::post(&self.post_to, body).send(self.address).await
    }

    /// Posts a message that is expected to be taken.
    ///
    /// # Panics
    /// When it is not.
    pub async fn say(&self, message: &Value) {
        assert_eq!(self.post(message.to_string()).await.status, 202, "{message}");
    }

    /// Sends a request and gives its id; the answer comes on the stream.
    pub async fn send(&self, method: &str, params: Value) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        id
    }

    /// The answer to a request; what comes before it is dropped.
    ///
    /// # Panics
    /// When the stream ends before.
    pub async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        self.answer(id).await
    }

    /// The text that a call of a tool gives.
    ///
    /// # Panics
    /// When it gives none.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await;
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("no text in {answer}")).to_owned()
    }

    /// The next message that is the answer to the request `id`.
    ///
    /// # Panics
    /// When the stream ends before.
    pub async fn answer(&mut self, id: u64) -> Value {
        self.find(|message| message["id"] == json!(id) && message.get("method").is_none()).await
    }

    /// The next message that `fits`.
    ///
    /// # Panics
    /// When the stream ends before.
    pub async fn find(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.events.next_message().await.expect("the stream goes on");
            if fits(&message) {
                return message;
            }
        }
    }
}

//! An upstream inside the test: it remembers every request, and can be slow, silent, broken or long-winded on demand.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use self::body::Body;
use crate::wait;

mod answer;
mod body;
mod door;
mod modern;
mod sse;

/// What a stub offers.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The names of its tools, in order. Some names do something special, see [`Stub`].
    pub tools: Vec<String>,
    /// How many tools fit on a page of `tools/list`.
    pub page: usize,
    /// Whether the last page leads to the second.
    pub circles: bool,
    /// Whether it answers legacy clients.
    pub legacy: bool,
    /// Whether it answers modern clients.
    pub modern: bool,
    /// The result of the method `weir-tests/raw`, byte by byte.
    pub raw: String,
    /// What it declares beside its tools.
    pub capabilities: Value,
    /// The `_meta` of its tools.
    pub tool_meta: Value,
    /// The header that the argument `message` of `regional` is repeated in, without `Mcp-Param-`.
    pub param: &'static str,
    /// Whether modern clients can listen for changes.
    pub listens: bool,
    /// What it lists, entry by entry, of what these methods list: `{"prompts/list": [...]}`.
    pub lists: Value,
    /// Whether it forgets each legacy session as soon as it is open.
    pub forgets: bool,
    /// Whether it opens for nobody, and lets nobody listen, before [`Stub::release`].
    pub waits: bool,
    /// Who may share its lists, in the modern era.
    pub cache_scope: &'static str,
    /// What it says to requests of the legacy and of the modern era, where it does not answer them.
    pub refusals: [(i64, &'static str); 2],
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            tools: ["echo", "hold", "burst", "fail", "refuse"].map(str::to_owned).to_vec(),
            page: 100,
            circles: false,
            legacy: true,
            modern: true,
            raw: "{}".to_owned(),
            capabilities: json!({}),
            tool_meta: json!({}),
            param: "Region",
            listens: false,
            lists: json!({}),
            forgets: false,
            waits: false,
            cache_scope: "private",
            refusals: [(-32000, "wrong era"); 2],
        }
    }
}

/// A scripted upstream. Any tool gives back the text of its argument `message`, except
/// - `hold`, which answers only after [`Stub::release`];
/// - `burst`, which sends ten progress notifications and the result in one write;
/// - `steps`, which sends three and then the result, each but the first only after [`Stub::release`];
/// - `stutter`, which sends progress that goes back and forth before the result;
/// - `task`, whose answer is a task instead;
/// - `busy`, which answers 429 once for each message, with its argument `after` as `Retry-After`;
/// - `missing`, which answers 404 with an error of JSON-RPC;
/// - `stop`, whose stream ends before the answer;
/// - `forge`, which says what its arguments tell it to, by raw text in which `$ID` and `$TOKEN` stand for those of the request: `body`
///   for an answer in JSON with the status `status`, or `events` for a stream, where `wait` stands for [`Stub::release`];
/// - `regional`, which in the modern era wants its argument in a header too;
/// - `visit`, which in the modern era asks its client to visit an address first, and gives back what came of it;
/// - `fail`, which answers 500 with the message as the body;
/// - `refuse`, which answers 401.
pub struct Stub {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: AbortHandle,
}

/// A request that a stub got.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The HTTP method.
    pub method: Method,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, byte by byte.
    pub body: Bytes,
}

impl Seen {
    /// The message in the body; null if there is none, or none that fits into the types of this test.
    pub fn message(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The method and the id of the message. Nothing else is looked at, so numbers may be larger than any type.
    pub fn envelope(&self) -> Envelope {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The value of a header, if it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The outside of a message.
#[derive(Debug, Default, Deserialize)]
pub struct Envelope {
    /// The id of a request or an answer.
    pub id: Option<Value>,
    /// The method of a request or a notification.
    pub method: Option<String>,
}

struct Shared {
    /// Who may come in; everybody if there is none.
    door: Option<door::Door>,
    offer: Mutex<Offer>,
    seen: Mutex<Vec<Seen>>,
    sessions: Mutex<Sessions>,
    subscriptions: Mutex<Vec<modern::Subscription>>,
    holds: Mutex<Holds>,
    release: Semaphore,
    /// How many more requests of a method it answers with an error.
    failing: Mutex<HashMap<String, usize>>,
}

#[derive(Default)]
struct Sessions {
    open: Vec<Session>,
    opened: usize,
}

struct Session {
    id: String,
    /// What the client calls itself.
    client: String,
    /// Where to send what the client did not ask for, once it listens.
    stream: Option<mpsc::UnboundedSender<Bytes>>,
}

#[derive(Clone, Copy, Default)]
struct Holds {
    now: usize,
    broken_off: usize,
}

impl Stub {
    /// Starts one with the default offer.
    pub async fn start() -> Self {
        Self::offering(Offer::default()).await
    }

    /// Starts one with its own offer.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn offering(offer: Offer) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), offer).await
    }

    /// Starts one that lets in only whoever brings a token of `issuer` for it, whose signatures are checked with `keys`, a
    /// JWK set (RFC 7517). It says so as RFC 9728 wants it.
    pub async fn behind(issuer: &str, keys: Value) -> Self {
        let door = door::Door::new(issuer, keys);
        Self::made((Ipv4Addr::LOCALHOST, 0).into(), Offer::default(), Some(door)).await
    }

    /// Lets in only whoever has this scope too.
    ///
    /// # Panics
    /// When it has no door.
    pub fn demand(&self, scope: &str) {
        self.shared.door.as_ref().expect("it asks for tokens").demand(scope);
    }

    /// Takes the tokens of another issuer from now on, and no others; says so too.
    ///
    /// # Panics
    /// When it has no door.
    pub fn trust(&self, issuer: &str, keys: Value) {
        self.shared.door.as_ref().expect("it asks for tokens").trust(issuer, keys);
    }

    /// Names another issuer first from now on, though it takes no token of it.
    ///
    /// # Panics
    /// When it has no door.
    pub fn name(&self, issuer: &str) {
        self.shared.door.as_ref().expect("it asks for tokens").name(issuer);
    }

    /// Takes no token of anybody, until it is told otherwise.
    ///
    /// # Panics
    /// When it has no door.
    pub fn shut(&self, shut: bool) {
        self.shared.door.as_ref().expect("it asks for tokens").shut(shut);
    }

    /// Wants one scope more for every call than its token has.
    ///
    /// # Panics
    /// When it has no door.
    pub fn be_greedy(&self) {
        self.shared.door.as_ref().expect("it asks for tokens").be_greedy();
    }

    /// Sets its clock ahead of everybody else's, by so many seconds.
    ///
    /// # Panics
    /// When it has no door.
    pub fn hurry(&self, seconds: u64) {
        self.shared.door.as_ref().expect("it asks for tokens").hurry(seconds);
    }

    /// Takes none of the tokens any more that it has been shown until now.
    ///
    /// # Panics
    /// When it has no door.
    pub fn revoke(&self) {
        self.shared.door.as_ref().expect("it asks for tokens").revoke(self.tokens());
    }

    /// The tokens that it has been shown.
    pub fn tokens(&self) -> Vec<String> {
        let bearer = |seen: &Seen| Some(seen.header("authorization")?.strip_prefix("Bearer ")?.to_owned());
        self.seen().iter().filter_map(bearer).collect()
    }

    /// Starts one at an address, where another may have been before.
    ///
    /// # Panics
    /// When the address stays taken.
    pub async fn at(address: SocketAddr, offer: Offer) -> Self {
        Self::made(address, offer, None).await
    }

    async fn made(address: SocketAddr, offer: Offer, door: Option<door::Door>) -> Self {
        let listener = wait::listener(address).await;
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            door,
            offer: Mutex::new(offer),
            seen: Mutex::default(),
            sessions: Mutex::default(),
            subscriptions: Mutex::default(),
            holds: Mutex::default(),
            release: Semaphore::new(0),
            failing: Mutex::default(),
        });
        let server = tokio::spawn(serve(listener, Arc::clone(&shared))).abort_handle();
        Self { address, shared, server }
    }

    /// The URL of its endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The lines of a configuration that make it the upstream `name`.
    pub fn config(&self, name: &str) -> String {
        format!("[upstreams.{name}]\nurl = \"{}\"\n", self.url())
    }

    /// The same over HTTP+SSE. A call with the argument `beside` is answered in its POST.
    pub fn sse_config(&self, name: &str) -> String {
        format!("[upstreams.{name}]\nurl = \"http://{}{}\"\ntype = \"sse\"\n", self.address, sse::STREAM)
    }

    /// All requests until now, in the order they came.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// The requests until now whose JSON-RPC method is `method`.
    pub fn asked(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.envelope().method.as_deref() == Some(method)).collect()
    }

    /// The legacy sessions that are open.
    pub fn sessions(&self) -> Vec<String> {
        lock(&self.shared.sessions).open.iter().map(|session| session.id.clone()).collect()
    }

    /// How many legacy sessions have a stream open for what the server sends on its own.
    pub fn listeners(&self) -> usize {
        let is_open = |session: &&Session| session.stream.as_ref().is_some_and(|stream| !stream.is_closed());
        lock(&self.shared.sessions).open.iter().filter(is_open).count()
    }

    /// How many of them belong to clients of this name.
    pub fn listeners_called(&self, client: &str) -> usize {
        let is_open = |session: &&Session| session.stream.as_ref().is_some_and(|stream| !stream.is_closed());
        lock(&self.shared.sessions).open.iter().filter(is_open).filter(|session| session.client == client).count()
    }

    /// Sends a notification on the stream of every legacy session that has one.
    pub fn announce(&self, method: &str) {
        self.say(&json!({ "jsonrpc": "2.0", "method": method }).to_string());
    }

    /// Sends any data on the stream of every legacy session that has one.
    pub fn say(&self, data: &str) {
        let event = Bytes::from(format!("event: message\ndata: {data}\n\n"));
        for session in &lock(&self.shared.sessions).open {
            if let Some(stream) = &session.stream {
                // A client that has gone hears nothing.
                let _ = stream.send(event.clone());
            }
        }
    }

    /// How many modern clients listen for changes.
    pub fn subscriptions(&self) -> usize {
        let mut all = lock(&self.shared.subscriptions);
        all.retain(modern::Subscription::is_open);
        all.len()
    }

    /// Sends a notification to all of them.
    pub fn publish(&self, method: &str) {
        self.publish_with(method, &json!({}));
    }

    /// The same with these `params`.
    pub fn publish_with(&self, method: &str, params: &Value) {
        lock(&self.shared.subscriptions).iter().for_each(|one| one.say(method, params.clone()));
    }

    /// Breaks off what they hear it by.
    pub fn end_subscriptions(&self) {
        lock(&self.shared.subscriptions).clear();
    }

    /// Changes what it offers, without telling anybody.
    pub fn offer(&self, offer: Offer) {
        *lock(&self.shared.offer) = offer;
    }

    /// Answers the next `times` requests of a method with an error.
    pub fn fail(&self, method: &str, times: usize) {
        lock(&self.shared.failing).insert(method.to_owned(), times);
    }

    /// How many legacy sessions there have been, closed ones included.
    pub fn sessions_opened(&self) -> usize {
        lock(&self.shared.sessions).opened
    }

    /// How many calls of `hold` and `steps` wait, and how many clients that it does not open for.
    pub fn held(&self) -> usize {
        lock(&self.shared.holds).now
    }

    /// How many of them were given up by the caller.
    pub fn broken_off(&self) -> usize {
        lock(&self.shared.holds).broken_off
    }

    /// Lets `count` of them go on, now or when they come.
    pub fn release(&self, count: usize) {
        self.shared.release.add_permits(count);
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| respond(request, Arc::clone(&shared)));
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn respond(request: hyper::Request<Incoming>, shared: Arc<Shared>) -> Result<hyper::Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let host = head.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
    if let Some(door) = &shared.door
        && let Some(told) = door.tells(head.uri.path(), &host)
    {
        return Ok(told);
    }
    let Ok(body) = body.collect().await else { return Ok(status(StatusCode::BAD_REQUEST)) };
    let seen = Seen { method: head.method, headers: head.headers, body: body.to_bytes() };
    lock(&shared.seen).push(seen.clone());
    if let Some(refused) = shared.door.as_ref().and_then(|door| door.refuses(&seen, &host)) {
        return Ok(refused);
    }
    match sse::answer(&seen, head.uri.path(), head.uri.query(), &shared).await {
        Some(answer) => Ok(answer),
        None => Ok(answer::answer(&seen, &shared).await),
    }
}

fn status(code: StatusCode) -> hyper::Response<Body> {
    let mut response = hyper::Response::default();
    *response.status_mut() = code;
    response
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no stub panics while it holds a lock")
}

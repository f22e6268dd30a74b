//! What a stub answers.

use std::fmt::Write as _;
use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Body, Offer, Seen, Session, Shared, lock, modern, status};
use crate::client::{LEGACY, MODERN};

pub(super) type Response = hyper::Response<Body>;

pub(super) async fn answer(seen: &Seen, shared: &Arc<Shared>) -> Response {
    let session = seen.header("mcp-session-id");
    match seen.method {
        Method::POST => {}
        Method::GET => return listen(session, shared),
        Method::DELETE => return close(session, shared),
        _ => return status(StatusCode::METHOD_NOT_ALLOWED),
    }
    let message = seen.message();
    let envelope = seen.envelope();
    let method = envelope.method.as_deref().unwrap_or_default();
    let modern = message["params"]["_meta"].get("io.modelcontextprotocol/protocolVersion").is_some();
    let is_open = session.is_some_and(|id| lock(&shared.sessions).open.iter().any(|open| open.id == id));

    let offer = lock(&shared.offer).clone();
    if modern && !offer.modern || !modern && !offer.legacy {
        let (code, text) = offer.refusals[usize::from(modern)];
        return error(StatusCode::BAD_REQUEST, &message, code, text);
    }
    if offer.waits && matches!(method, "initialize" | "server/discover" | "subscriptions/listen") {
        hold(shared).await;
    }
    match method {
        "initialize" if is_open => return result(&message, greeting(&offer)),
        "initialize" => return open(&message, &offer, shared),
        _ if modern => {}
        _ if session.is_none() => return error(StatusCode::BAD_REQUEST, &message, -32000, "no session"),
        _ if !is_open => return error(StatusCode::NOT_FOUND, &message, -32001, "unknown session"),
        _ => {}
    }
    if envelope.id.is_none() || method.is_empty() {
        return status(StatusCode::ACCEPTED);
    }
    if let Some(times) = lock(&shared.failing).get_mut(method).filter(|times| **times > 0) {
        *times -= 1;
        return error(StatusCode::OK, &message, -32603, "not this time");
    }
    if let Some(entries) = offer.lists.get(method) {
        let key = if method.contains("templates") { "resourceTemplates" } else { method.trim_end_matches("/list") };
        let page = json!({ "resultType": "complete", key: entries, "ttlMs": 0, "cacheScope": offer.cache_scope });
        return result(&message, page);
    }
    match method {
        "server/discover" => result(&message, discover(&offer)),
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => result(&message, json!({})),
        "tools/list" => list(&message, &offer),
        "subscriptions/listen" if offer.listens => modern::listen(&message, shared),
        "tools/call" if modern && message["params"]["name"] == "regional" => modern::regional(seen, &message, &offer),
        "tools/call" if modern && message["params"]["name"] == "visit" => modern::visit(&message),
        "tools/call" => call(&message, &offer, shared).await,
        "tasks/get" | "tasks/update" | "tasks/cancel" => {
            let task = &message["params"]["taskId"];
            result(&message, json!({ "resultType": "complete", "taskId": task, "status": "working", "ttlMs": null }))
        }
        "tasks/list" => result(&message, json!({ "tasks": [{ "taskId": "task-1", "status": "working" }] })),
        "resources/read" => {
            let content = json!({ "uri": message["params"]["uri"], "text": "read" });
            let cache = json!({ "resultType": "complete", "contents": [content], "ttlMs": 0, "cacheScope": "private" });
            result(&message, cache)
        }
        "prompts/get" => result(&message, json!({ "resultType": "complete", "messages": [] })),
        "completion/complete" => {
            result(&message, json!({ "resultType": "complete", "completion": { "values": ["a"] } }))
        }
        "weir-tests/raw" => raw(seen, &offer),
        _ => error(if modern { StatusCode::NOT_FOUND } else { StatusCode::OK }, &message, -32601, "no such method"),
    }
}

fn open(message: &Value, offer: &Offer, shared: &Shared) -> Response {
    let mut sessions = lock(&shared.sessions);
    sessions.opened += 1;
    let id = format!("stub-session-{}", sessions.opened);
    let client = message["params"]["clientInfo"]["name"].as_str().unwrap_or_default().to_owned();
    if !offer.forgets {
        sessions.open.push(Session { id: id.clone(), client, stream: None });
    }
    let mut response = result(message, greeting(offer));
    response.headers_mut().insert("mcp-session-id", id.parse().expect("the id is visible ASCII"));
    response
}

fn greeting(offer: &Offer) -> Value {
    json!({
        "protocolVersion": LEGACY,
        "capabilities": capabilities(offer),
        "serverInfo": identity(),
    })
}

/// What it says of itself, with an icon for pages.
fn identity() -> Value {
    const ICON: &str = "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'><circle cx='4' cy='4' r='4' fill='teal'/></svg>";
    json!({ "name": "stub", "version": "1", "title": "Stub of the tests", "icons": [{ "src": ICON }] })
}

fn close(session: Option<&str>, shared: &Shared) -> Response {
    let mut sessions = lock(&shared.sessions);
    let before = sessions.open.len();
    sessions.open.retain(|open| Some(open.id.as_str()) != session);
    status(if sessions.open.len() < before { StatusCode::OK } else { StatusCode::NOT_FOUND })
}

/// The stream for what the client did not ask for. It ends with the session.
fn listen(session: Option<&str>, shared: &Shared) -> Response {
    let mut sessions = lock(&shared.sessions);
    let Some(session) = sessions.open.iter_mut().find(|open| Some(open.id.as_str()) == session) else {
        return status(StatusCode::NOT_FOUND);
    };
    if session.stream.as_ref().is_some_and(|stream| !stream.is_closed()) {
        return status(StatusCode::CONFLICT);
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    session.stream = Some(sender);
    event_stream(Body::Stream(receiver))
}

pub(super) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", "text/event-stream".parse().expect("a header"));
    response
}

fn capabilities(offer: &Offer) -> Value {
    let mut all = json!({ "tools": { "listChanged": true } });
    for (name, settings) in offer.capabilities.as_object().into_iter().flatten() {
        all[name] = settings.clone();
    }
    all
}

fn discover(offer: &Offer) -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": capabilities(offer),
        "ttlMs": 0,
        "cacheScope": offer.cache_scope,
        "_meta": { "io.modelcontextprotocol/serverInfo": identity() },
    })
}

/// The cursor is the index of the first tool on the page.
fn list(message: &Value, offer: &Offer) -> Response {
    let start = match message["params"]["cursor"].as_str() {
        None => 0,
        Some(cursor) => match cursor.parse::<usize>() {
            Ok(start) if start < offer.tools.len() => start,
            _ => return error(StatusCode::OK, message, -32602, "no such cursor"),
        },
    };
    let end = (start + offer.page).min(offer.tools.len());
    let tools: Vec<Value> = offer.tools[start..end].iter().map(|name| tool(name, offer)).collect();
    let mut page = json!({ "resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": offer.cache_scope });
    if end < offer.tools.len() {
        page["nextCursor"] = json!(end.to_string());
    } else if offer.circles {
        page["nextCursor"] = json!(offer.page.to_string());
    }
    result(message, page)
}

fn tool(name: &str, offer: &Offer) -> Value {
    let mut message = json!({ "type": "string" });
    if name.starts_with("regional") {
        message["x-mcp-header"] = json!(offer.param);
    }
    let mut tool = json!({
        "name": name,
        "_meta": offer.tool_meta,
        "description": format!("The stub's {name}"),
        "inputSchema": { "type": "object", "properties": { "message": message } },
    });
    if name.starts_with("read") {
        tool["annotations"] = json!({ "readOnlyHint": true });
    }
    tool
}

async fn call(message: &Value, offer: &Offer, shared: &Arc<Shared>) -> Response {
    let name = message["params"]["name"].as_str().unwrap_or_default();
    let text = message["params"]["arguments"]["message"].as_str().unwrap_or_default();
    let content = json!({ "resultType": "complete", "content": [{ "type": "text", "text": text }] });
    if !offer.tools.iter().any(|tool| tool == name) {
        return error(StatusCode::OK, message, -32602, "no such tool");
    }
    match name {
        "hold" => {
            hold(shared).await;
            result(message, content)
        }
        "task" => {
            result(message, json!({ "resultType": "task", "taskId": "task-1", "status": "working", "ttlMs": null }))
        }
        "forge" => forge(message, shared),
        "busy" => {
            let arguments = &message["params"]["arguments"];
            let of_this = |seen: &&Seen| seen.message()["params"]["arguments"] == *arguments;
            let seen = lock(&shared.seen).iter().filter(of_this).count();
            if seen > 1 {
                return result(message, content);
            }
            let mut response = status(StatusCode::TOO_MANY_REQUESTS);
            let after = arguments["after"].as_str().unwrap_or_default();
            response.headers_mut().insert("retry-after", after.parse().expect("a header"));
            response
        }
        "burst" => progressing(message, &content, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        "stutter" => progressing(message, &content, &[1, 2, 2, 1, 3]),
        "steps" => steps(message, &content, shared),
        "fail" => {
            let mut response = Response::new(Body::from(text.to_owned()));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
        "missing" => {
            let error = json!({ "code": -32601, "message": "no such method" });
            let error = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
            let mut response = Response::new(Body::from(error.to_string()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response.headers_mut().insert("content-type", "application/json".parse().expect("a header"));
            response
        }
        "stop" => {
            let said = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": 1 } });
            let mut response = Response::new(Body::from(format!("event: message\ndata: {said}\n\n")));
            response.headers_mut().insert("content-type", "text/event-stream".parse().expect("a header"));
            response
        }
        "refuse" => {
            let mut response = status(StatusCode::UNAUTHORIZED);
            response.headers_mut().insert("www-authenticate", "Bearer realm=\"stub\"".parse().expect("a header"));
            response
        }
        _ => result(message, content),
    }
}

/// Says what the arguments tell it to.
fn forge(message: &Value, shared: &Arc<Shared>) -> Response {
    let arguments = message["params"]["arguments"].clone();
    let token = message["params"]["_meta"]["progressToken"].to_string();
    let id = message["id"].to_string();
    let told = move |text: &Value| text.as_str().unwrap_or_default().replace("$ID", &id).replace("$TOKEN", &token);
    if arguments["body"].is_string() {
        let status = arguments["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or(200);
        return json_body(StatusCode::from_u16(status).expect("a status"), told(&arguments["body"]));
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        for event in arguments["events"].as_array().into_iter().flatten() {
            if event == "wait" {
                tokio::select! {
                    () = hold(&shared) => {}
                    () = sender.closed() => return,
                }
                continue;
            }
            // Whoever has gone hears nothing.
            let _ = sender.send(format!("event: message\ndata: {}\n\n", told(event)).into());
        }
    });
    event_stream(Body::Stream(receiver))
}

/// Waits for a permit; counts how many wait, and how many gave up.
async fn hold(shared: &Shared) {
    struct Waiting<'a> {
        shared: &'a Shared,
        answered: bool,
    }
    impl Drop for Waiting<'_> {
        fn drop(&mut self) {
            let mut holds = lock(&self.shared.holds);
            holds.now -= 1;
            holds.broken_off += usize::from(!self.answered);
        }
    }
    lock(&shared.holds).now += 1;
    let mut waiting = Waiting { shared, answered: false };
    shared.release.acquire().await.expect("the semaphore is never closed").forget();
    waiting.answered = true;
}

fn progressing(message: &Value, content: &Value, steps: &[u32]) -> Response {
    let token = &message["params"]["_meta"]["progressToken"];
    let mut stream = String::new();
    for progress in steps {
        let params = json!({ "progressToken": token, "progress": progress, "total": steps.len() });
        let event = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
        let _ = write!(stream, "event: message\ndata: {event}\n\n");
    }
    let last = json!({ "jsonrpc": "2.0", "id": message["id"], "result": content });
    let _ = write!(stream, "event: message\ndata: {last}\n\n");
    event_stream(Body::from(stream))
}

fn progress(message: &Value, progress: u32, total: u32) -> Value {
    let token = &message["params"]["_meta"]["progressToken"];
    let params = json!({ "progressToken": token, "progress": progress, "total": total });
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
}

fn steps(message: &Value, content: &Value, shared: &Arc<Shared>) -> Response {
    let mut messages: Vec<Value> = (1..=3).map(|step| progress(message, step, 3)).collect();
    messages.push(json!({ "jsonrpc": "2.0", "id": message["id"], "result": content }));
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        for (step, message) in messages.into_iter().enumerate() {
            if step > 0 {
                tokio::select! {
                    () = hold(&shared) => {}
                    () = sender.closed() => return,
                }
            }
            // Whoever has gone hears nothing.
            let _ = sender.send(format!("event: message\ndata: {message}\n\n").into());
        }
    });
    event_stream(Body::Stream(receiver))
}

/// The id is copied as text, since reading it as a number could change it.
fn raw(seen: &Seen, offer: &Offer) -> Response {
    let text = String::from_utf8_lossy(&seen.body);
    let id = text.split_once("\"id\":").map_or("null", |(_, rest)| rest.split([',', '}']).next().unwrap_or("null"));
    json_body(StatusCode::OK, format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{}}}", offer.raw))
}

pub(super) fn result(message: &Value, result: Value) -> Response {
    json_body(StatusCode::OK, json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string())
}

pub(super) fn error(status: StatusCode, message: &Value, code: i64, text: &str) -> Response {
    let error = json!({ "code": code, "message": text });
    json_body(status, json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }).to_string())
}

fn json_body(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", "application/json".parse().expect("a header"));
    response
}

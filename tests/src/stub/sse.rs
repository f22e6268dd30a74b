//! HTTP+SSE (2024-11-05): the same answers, on one stream.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::mpsc::{self, UnboundedSender};

use super::answer::{self, Response, event_stream};
use super::{Body, Seen, Session, Shared, lock, status};

/// Where its stream is.
pub(super) const STREAM: &str = "/sse";
/// Where its messages go, with the session as the query.
pub(super) const MESSAGES: &str = "/messages";

/// The answer at one of these addresses; none at another.
pub(super) async fn answer(seen: &Seen, path: &str, session: Option<&str>, shared: &Arc<Shared>) -> Option<Response> {
    match (path, &seen.method) {
        (STREAM, &Method::GET) => Some(open(shared)),
        (STREAM, _) => Some(status(StatusCode::METHOD_NOT_ALLOWED)),
        (MESSAGES, _) => Some(post(seen, session.unwrap_or_default(), shared).await),
        _ => None,
    }
}

fn open(shared: &Shared) -> Response {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut sessions = lock(&shared.sessions);
    sessions.opened += 1;
    let id = format!("stub-session-{}", sessions.opened);
    // The receiver is still here.
    let _ = sender.send(format!("event: endpoint\ndata: {MESSAGES}?{id}\n\n").into());
    sessions.open.push(Session { id, client: String::new(), stream: Some(sender) });
    event_stream(Body::Stream(receiver))
}

/// Sends the answer on the stream, or beside it where the arguments of the call want that.
async fn post(seen: &Seen, session: &str, shared: &Arc<Shared>) -> Response {
    let open = lock(&shared.sessions).open.iter().find(|open| open.id == session).and_then(|open| open.stream.clone());
    let (Some(stream), Ok(id)) = (open, HeaderValue::from_str(session)) else { return status(StatusCode::NOT_FOUND) };
    let mut seen = seen.clone();
    seen.headers.insert("mcp-session-id", id);
    if seen.message()["params"]["arguments"]["beside"] == true {
        return answer::answer(&seen, shared).await;
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move { forward(answer::answer(&seen, &shared).await, &stream).await });
    status(StatusCode::ACCEPTED)
}

async fn forward(answer: Response, stream: &UnboundedSender<Bytes>) {
    let is_stream = answer.headers().get("content-type").is_some_and(|media| media == "text/event-stream");
    let mut body = answer.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(bytes) = frame.into_data() else { continue };
        let event = if is_stream { bytes } else { [b"event: message\ndata: ", &bytes[..], b"\n\n"].concat().into() };
        if stream.send(event).is_err() {
            return;
        }
    }
}

//! One request of a modern client at a legacy upstream: what goes out, and what becomes of what comes back.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use weir_mcp::{
    Era, Field, Kind, Message, ParseError, answer, method,
    status::http_status,
    translate::{is_logged, legacy_request, modern_answer},
};

use crate::{
    http::{HeaderName, HeaderValue},
    relay::{Answer, Body, Delivery, Inquiry},
    upstream::{self, Channel, Credential, Listened, Outgoing, Reply, SendError, Ticket},
};

use super::line::{Seat, is_change};

/// How long the head of an answer is held back for its first message: an answer that comes at once gets the status that
/// it deserves, and what takes longer is a stream.
const FIRST: Duration = Duration::from_secs(1);

/// A request that runs at a legacy upstream. Dropped before its answer came, it is cancelled there: its client is gone.
pub(in crate::relay) struct Call {
    seat: Seat,
    request: Message,
    headers: Vec<(HeaderName, HeaderValue)>,
    ticket: Ticket,
    /// What the client calls the request, what it asked for, and where it wants to hear of progress.
    id: Bytes,
    method: String,
    token: Option<Bytes>,
    /// From which severity on the client wants log messages.
    level: Option<String>,
    /// Whether the upstream may be working on it.
    runs: AtomicBool,
}

/// The messages of a call on their way to its client.
pub(in crate::relay) struct Stream {
    call: Call,
    events: Listened,
    /// One that was read ahead.
    first: Option<Bytes>,
}

/// What one message of the upstream is to the client.
enum Heard {
    /// The answer.
    Last(Bytes),
    /// Something on the way to it.
    More(Bytes),
    /// Nothing.
    Nothing,
}

impl Call {
    /// Prepares a request; `body` is what the client sent, in the upstream's own names.
    pub(super) fn new(inquiry: &Inquiry, body: Bytes, seat: Seat) -> Result<Self, ParseError> {
        let original = Message::parse(body)?;
        let request = Message::parse(legacy_request(&original, seat.key))?;
        let travels = |(name, _): &&(HeaderName, HeaderValue)| !name.as_str().starts_with("mcp-");
        Ok(Self {
            request,
            headers: inquiry.headers.iter().filter(travels).cloned().collect(),
            ticket: Ticket::cancelling(),
            id: Bytes::copy_from_slice(original.id().unwrap_or(b"null")),
            method: original.method().to_owned(),
            token: original.progress_token().map(Bytes::copy_from_slice),
            level: original.text(Field::LogLevel).map(|level| level.into_owned()),
            runs: AtomicBool::new(false),
            seat,
        })
    }

    /// Sends it.
    pub(in crate::relay) async fn send(&self, credential: Option<&Credential>) -> Result<Reply, SendError> {
        let outgoing = Outgoing {
            era: Era::Legacy,
            message: &self.request,
            body: self.request.bytes().clone(),
            name: None,
            version: None,
            headers: &self.headers,
            ticket: Some(&self.ticket),
            credential,
        };
        self.runs.store(true, Ordering::Release);
        self.seat.line.channel().send(outgoing).await
    }

    /// Takes note that it failed: there is nothing to cancel, and perhaps no session any more.
    pub(in crate::relay) fn failed(&self, why: &SendError) {
        if *why != SendError::TimedOut {
            self.runs.store(false, Ordering::Release);
        }
        if *why == SendError::SessionLost {
            self.seat.line.lose();
        }
    }

    /// Turns the upstream's reply into the client's answer.
    pub(in crate::relay) async fn deliver(self, reply: Reply, deadline: Instant) -> Result<Answer, SendError> {
        match reply.body {
            upstream::Body::Empty => Err(SendError::NotMcp(format!("status {} without an answer", reply.status))),
            upstream::Body::Json(body) => {
                let gathered = tokio::time::timeout_at(deadline.into(), body.gather()).await;
                let message = parsed(gathered.unwrap_or(Err(SendError::TimedOut))?)?;
                match self.hear(message) {
                    Heard::Last(bytes) => Ok(answered(bytes)),
                    Heard::More(_) | Heard::Nothing => Err(broken()),
                }
            }
            upstream::Body::Events(events) => {
                let upstream = self.seat.line.name().to_owned();
                let id = self.id.clone();
                let mut stream = Stream { call: self, events, first: None };
                match tokio::time::timeout(FIRST, stream.next()).await {
                    Ok(Ok((bytes, true))) => return Ok(answered(bytes)),
                    Ok(Ok((bytes, false))) => stream.first = Some(bytes),
                    Ok(Err(why)) => return Err(why),
                    Err(_) => {}
                }
                let body = Body::Events(Box::new(Delivery::translated(stream, id, upstream, deadline)));
                Ok(Answer { status: 200, session: None, allow: None, body, record: None })
            }
        }
    }

    fn hear(&self, message: Message) -> Heard {
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => {
                self.runs.store(false, Ordering::Release);
                let info = self.seat.line.server_info();
                Heard::Last(modern_answer(&message, &self.id, &self.method, info))
            }
            (Kind::Notification, method::PROGRESS) => match &self.token {
                Some(token) if self.is_mine(&message) => {
                    Heard::More(message.edit().set(Field::ProgressToken, token).finish())
                }
                _ => Heard::Nothing,
            },
            (Kind::Notification, method::LOG_MESSAGE) => match &self.level {
                Some(level) if is_logged(level, &message) => Heard::More(message.bytes().clone()),
                _ => Heard::Nothing,
            },
            (Kind::Notification, name) if is_change(name) => {
                self.seat.line.change(message);
                Heard::Nothing
            }
            // The rest means nothing in the modern era.
            (Kind::Notification, _) => Heard::Nothing,
            (Kind::Request, _) => {
                self.seat.line.refuse(&message);
                Heard::Nothing
            }
        }
    }

    /// Whether progress is this call's. A process's is found by its token before it comes here, and has it back.
    fn is_mine(&self, progress: &Message) -> bool {
        progress.progress_token() == self.request.progress_token()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // A child process is told by the exchange itself, which alone knows what the process calls the request.
        if self.runs.load(Ordering::Acquire) && matches!(self.seat.line.channel(), Channel::Http { .. }) {
            let params = format!("{{\"requestId\":{},\"reason\":\"the client is gone\"}}", self.seat.key);
            self.seat.line.tell(answer::notification(method::CANCELLED, Some(params.as_bytes())));
        }
    }
}

impl Stream {
    /// The next message for the client, and whether it is the answer. Cancel-safe.
    pub(in crate::relay) async fn next(&mut self) -> Result<(Bytes, bool), SendError> {
        if let Some(first) = self.first.take() {
            return Ok((first, false));
        }
        loop {
            let message = tokio::select! {
                event = self.events.next() => match event? {
                    // The priming event of a resumable stream.
                    Some(event) if event.data.is_empty() => continue,
                    Some(event) => parsed(event.data)?,
                    None => return Err(broken()),
                },
                Some(message) = self.call.seat.heard.recv() => message,
            };
            match self.call.hear(message) {
                Heard::Last(bytes) => return Ok((bytes, true)),
                Heard::More(bytes) => return Ok((bytes, false)),
                Heard::Nothing => {}
            }
        }
    }
}

/// A whole answer with the status that the modern era gives it.
fn answered(bytes: Bytes) -> Answer {
    let code = Message::parse(bytes.clone()).ok().and_then(|message| message.error_code());
    Answer::whole(code.map_or(200, |code| http_status(Era::Modern, code)), bytes)
}

fn parsed(bytes: Bytes) -> Result<Message, SendError> {
    Message::parse(bytes).map_err(|why| SendError::NotMcp(why.to_string()))
}

fn broken() -> SendError {
    SendError::NotMcp("its event stream ended before the answer".into())
}

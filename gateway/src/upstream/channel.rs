//! The way to an upstream that a call takes, once the upstream is open.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::timeout;
pub use weir_flow::SendError;
use weir_flow::facts::Transport;
use weir_mcp::{Era, Field, Message, Object, era::LATEST_MODERN, message::Kind, method::CANCELLED};

use crate::{
    http::{self, HeaderName, HeaderValue},
    task::on_heap,
    telemetry::{TRACEPARENT, TraceParent},
};

use super::{
    JsonBody, Listened, Reply, ReplyBody,
    credential::Credential,
    events::StreamResumption,
    multiplex::{self, ExchangeKey, MultiplexExchange, MultiplexTransport, OnDrop, UnsolicitedQueue, Whose},
    sse::SseConnection,
    stdio::{Process, StdioError},
    streamable::HttpSession,
};

/// How long an HTTP server may take to end a session.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// An open way to an upstream. Cheap to clone.
#[derive(Clone)]
pub enum Channel {
    /// Streamable HTTP.
    Http(HttpSession),
    /// The one stream of HTTP+SSE, and the session that it is.
    Sse { connection: SseConnection },
    /// A child process; `shared` if it serves others too.
    Stdio { process: Process, shared: bool },
}

/// One message on its way out.
pub struct Outgoing<'a> {
    /// The era it is sent in.
    pub era: Era,
    /// The message as the client sent it.
    pub message: &'a Message,
    /// What is sent: the message's own bytes, or those bytes with Weir's names in place.
    pub body: Bytes,
    /// What `Mcp-Name` says in the modern era, in the upstream's own terms.
    pub name: Option<&'a str>,
    /// `MCP-Protocol-Version`; in a legacy session what the channel agreed goes before it.
    pub version: Option<&'a HeaderValue>,
    /// Headers of the client that may travel ([`weir_flow::may_travel`]).
    pub headers: &'a [(HeaderName, HeaderValue)],
    /// The running request of a client that this message is or concerns; a legacy one without is Weir's own.
    pub ticket: Option<&'a Ticket>,
    /// The credential to place.
    pub credential: Option<&'a Credential>,
    /// The span that the upstream is told to have called; none to send the client's trace context as it is.
    pub trace: Option<&'a TraceParent>,
}

impl<'a> Outgoing<'a> {
    /// A message of Weir's own.
    pub fn own(era: Era, message: &'a Message, credential: Option<&'a Credential>) -> Self {
        static MODERN: HeaderValue = HeaderValue::from_static(LATEST_MODERN);
        let (body, version) = (message.bytes().clone(), (era == Era::Modern).then_some(&MODERN));
        Self { era, message, body, name: None, version, headers: &[], ticket: None, credential, trace: None }
    }
}

impl Outgoing<'_> {
    /// Which credential goes along.
    pub(super) fn mark(&self) -> Option<u64> {
        self.credential.map(Credential::mark)
    }
}

/// Where the key of a running request is noted, so that a cancellation that comes later finds it on its process.
#[derive(Debug, Default)]
pub struct Ticket {
    key: Mutex<Option<ExchangeKey>>,
    cancels: bool,
}

impl Outgoing<'_> {
    /// Whose it is. In the modern era a client whose request asks for no log messages hears nothing but its answer.
    pub(super) fn whose(&self) -> Whose {
        match (self.era, self.ticket) {
            (_, Some(_)) => Whose::Client,
            (Era::Modern, None) if self.message.raw(Field::LogLevel).is_some() => Whose::Client,
            (Era::Legacy | Era::Modern, None) => Whose::Weir,
        }
    }
}

impl Ticket {
    /// A ticket for a request that is cancelled when nobody waits for its answer any more, whatever its era: its client
    /// speaks the modern one.
    pub fn cancelling() -> Self {
        Self { key: Mutex::default(), cancels: true }
    }
}

impl Channel {
    /// Sends a message and returns as soon as the head of its answer is here.
    ///
    /// # Errors
    ///
    /// When there is no answer that a client could be given.
    pub async fn send(&self, outgoing: Outgoing<'_>) -> Result<Reply, SendError> {
        match outgoing.trace {
            // Boxed, so that other requests do not carry its state.
            Some(trace) => on_heap(|| self.send_traced(&outgoing, trace)).await,
            None => self.send_as_is(outgoing).await,
        }
    }

    /// Sends a message that names another span as its caller, in `_meta` (SEP-414) and in its headers.
    async fn send_traced(&self, outgoing: &Outgoing<'_>, trace: &TraceParent) -> Result<Reply, SendError> {
        let text = trace.text();
        let value = HeaderValue::from_bytes(&text).map_err(|why| SendError::Unsent(why.to_string()))?;
        let quoted = [b"\"", &text[..], b"\""].concat();
        let message = sent(outgoing)?;
        let body = message.edit().put(Object::Meta, TRACEPARENT, quoted).finish();
        let others = outgoing.headers.iter().filter(|(name, _)| name.as_str() != TRACEPARENT).cloned();
        let headers: Vec<_> = others.chain([(HeaderName::from_static(TRACEPARENT), value)]).collect();
        self.send_as_is(Outgoing { body, headers: &headers, trace: None, ..*outgoing }).await
    }

    async fn send_as_is(&self, outgoing: Outgoing<'_>) -> Result<Reply, SendError> {
        match self {
            Self::Http(session) => {
                let outgoing = Outgoing { version: session.version.as_ref().or(outgoing.version), ..outgoing };
                let mut reply = session.call(&outgoing).await?;
                // A legacy stream may be taken up again where it broke.
                if let (Era::Legacy, ReplyBody::Events(Listened::Http(events))) = (outgoing.era, &mut reply.body) {
                    let session = HttpSession { version: outgoing.version.cloned(), ..session.clone() };
                    events.go_on(StreamResumption::new(session, outgoing.credential, true));
                }
                Ok(reply)
            }
            Self::Sse { connection } => send_shared(connection, outgoing).await,
            Self::Stdio { process, .. } => send_shared(process, outgoing).await,
        }
    }

    /// Opens the stream of what the server says of its own accord.
    ///
    /// # Errors
    ///
    /// When there is none; a server that offers none answers with status 405.
    pub async fn listen(
        &self,
        last_event_id: Option<&HeaderValue>,
        credential: Option<&Credential>,
    ) -> Result<Reply, SendError> {
        match self {
            Self::Http(session) => {
                let mut reply = session.listen(last_event_id, credential).await?;
                if let ReplyBody::Events(Listened::Http(events)) = &mut reply.body {
                    events.go_on(StreamResumption::new(session.clone(), credential, false));
                }
                Ok(reply)
            }
            // One listener at a time, as with a second GET stream.
            Self::Sse { .. } | Self::Stdio { .. } => {
                let queue = self.stream().and_then(UnsolicitedQueue::take);
                let listened = queue.map(|queue| Listened::Unsolicited { queue, _open: self.clone() });
                let (status, body) =
                    listened.map_or((409, ReplyBody::Empty), |events| (200, ReplyBody::Events(events)));
                Ok(Reply { status, session: None, body })
            }
        }
    }

    /// What another gateway needs to use the same session: its id, and the version that was agreed. None of what lives in
    /// one process.
    pub const fn travels(&self) -> Option<(Option<&HeaderValue>, Option<&HeaderValue>)> {
        match self {
            Self::Http(session) => Some((session.id.as_ref(), session.version.as_ref())),
            Self::Sse { .. } | Self::Stdio { .. } => None,
        }
    }

    /// Ends what this channel holds open at the upstream: its session, or its process unless others use it. A process is
    /// waited for; an HTTP server that is silent is left after a while.
    pub(super) async fn close(&self, credential: Option<&Credential>) {
        match self {
            Self::Http(HttpSession { id: None, .. }) | Self::Stdio { shared: true, .. } => {}
            Self::Http(session) => drop(timeout(CLOSE_LIMIT, session.delete(credential)).await),
            Self::Sse { connection } => connection.close(),
            Self::Stdio { process, .. } => process.stop().await,
        }
    }

    /// Has a server that took one request at a time, for Weir, take those of several clients side by side.
    pub fn serve_many(&self) {
        if let Some(stream) = self.stream() {
            stream.multiplex().serve_many();
        }
    }

    /// From now on what the server asks outside of requests is answered by Weir: there is no client who could be asked.
    pub(super) fn serve_unasked(&self) {
        if let Some(stream) = self.stream() {
            stream.multiplex().serve_unasked();
        }
    }

    /// What its requests share, where they share a stream.
    fn stream(&self) -> Option<Arc<dyn MultiplexTransport>> {
        match self {
            Self::Http(_) => None,
            Self::Sse { connection } => Some(connection.stream()),
            Self::Stdio { process, .. } => Some(process.stream()),
        }
    }

    /// Whether each request has a stream of its own: what the server says there concerns that request alone. On a stream
    /// that requests share, one that is dropped is cancelled by its exchange.
    pub const fn has_request_streams(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    /// Whether headers travel with each message.
    pub const fn carries_headers(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    /// Whether it leads to a process that others use too.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Stdio { shared: true, .. })
    }

    /// Whether a process runs for this channel alone, and ends with it.
    pub const fn has_own_process(&self) -> bool {
        matches!(self, Self::Stdio { shared: false, .. })
    }

    /// What an operator calls the way that bytes travel.
    pub const fn transport(&self) -> Transport {
        match self {
            Self::Http(_) => Transport::Http,
            Self::Sse { .. } => Transport::Sse,
            Self::Stdio { .. } => Transport::Stdio,
        }
    }

    /// Whether both lead through the same session or process.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Http(a), Self::Http(b)) => a.id == b.id,
            (Self::Sse { connection: a }, Self::Sse { connection: b }) => a.is_same(b),
            (Self::Stdio { process: a, .. }, Self::Stdio { process: b, .. }) => a.is_same(b),
            _ => false,
        }
    }

    /// Whether the channel can still carry a call, as far as can be known without one.
    pub fn alive(&self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::Sse { connection } => connection.alive(),
            Self::Stdio { process, .. } => process.alive(),
        }
    }
}

/// A connection that many requests share.
pub(super) trait SharedStream {
    /// Sends a request under an id and progress token of Weir's own and returns where its messages arrive.
    async fn request(
        &self,
        of: &Outgoing<'_>,
        message: &Message,
        on_drop: OnDrop,
    ) -> Result<MultiplexExchange, SendError>;

    /// Sends a notification, or the answer to a request of the server, as it is.
    async fn notify(&self, of: &Outgoing<'_>, message: &Message) -> Result<(), SendError>;

    /// Sends the client's `notifications/cancelled`, its `requestId` replaced by the one the server knows. Does nothing
    /// if the request has been answered.
    async fn cancel(&self, of: &Outgoing<'_>, key: ExchangeKey, message: &Message) -> Result<(), SendError>;
}

impl SharedStream for Process {
    async fn request(
        &self,
        of: &Outgoing<'_>,
        message: &Message,
        on_drop: OnDrop,
    ) -> Result<MultiplexExchange, SendError> {
        self.request(message, on_drop, of.whose()).await
    }

    async fn notify(&self, _: &Outgoing<'_>, message: &Message) -> Result<(), SendError> {
        self.notify(message).await
    }

    async fn cancel(&self, _: &Outgoing<'_>, key: ExchangeKey, message: &Message) -> Result<(), SendError> {
        self.cancel(key, message).await
    }
}

/// Sends what has no answer.
async fn tell_shared(stream: &impl SharedStream, outgoing: &Outgoing<'_>, message: &Message) -> Result<(), SendError> {
    match outgoing.ticket.filter(|_| message.method() == CANCELLED).map(|ticket| *ticket.key.lock()) {
        Some(Some(key)) => stream.cancel(outgoing, key, message).await,
        // It is not out yet. Its id is the client's, and may be that of another's request on this stream.
        Some(None) => Ok(()),
        None => stream.notify(outgoing, message).await,
    }
}

/// What is sent, read; not again where it is what the client sent.
fn sent<'a>(outgoing: &Outgoing<'a>) -> Result<Cow<'a, Message>, SendError> {
    if outgoing.body.as_ptr() == outgoing.message.bytes().as_ptr() {
        return Ok(Cow::Borrowed(outgoing.message));
    }
    Message::parse(outgoing.body.clone()).map(Cow::Owned).map_err(|why| SendError::NotMcp(why.to_string()))
}

async fn send_shared(stream: &impl SharedStream, outgoing: Outgoing<'_>) -> Result<Reply, SendError> {
    let message = &*sent(&outgoing)?;
    if message.kind() != Kind::Request {
        // Boxed, so that requests do not carry its state.
        Box::pin(tell_shared(stream, &outgoing, message)).await?;
        return Ok(Reply { status: 202, session: None, body: ReplyBody::Empty });
    }
    let cancels = outgoing.ticket.is_some_and(|ticket| ticket.cancels);
    let on_drop = match outgoing.era {
        Era::Modern => OnDrop::Cancel,
        Era::Legacy if cancels => OnDrop::Cancel,
        Era::Legacy => OnDrop::Abandon,
    };
    let mut exchange = stream.request(&outgoing, message, on_drop).await?;
    if let Some(ticket) = outgoing.ticket {
        *ticket.key.lock() = Some(exchange.key());
    }
    let first = exchange.next().await?.ok_or_else(multiplex::closed)?;
    let (status, body) = match first.kind() {
        Kind::Response | Kind::Error => {
            let status = first.error_code().map_or(200, |code| weir_mcp::status::http_status(outgoing.era, code));
            (status, ReplyBody::Json(JsonBody::Whole(first.bytes().clone())))
        }
        Kind::Request | Kind::Notification => {
            (200, ReplyBody::Events(Listened::Exchange { first: Some(first), exchange }))
        }
    };
    Ok(Reply { status, session: None, body })
}

impl From<http::Error> for SendError {
    fn from(error: http::Error) -> Self {
        if error == http::Error::ConnectTimeout {
            return Self::Unsent(format!("{error} (`timeouts.connect`)"));
        }
        if matches!(error, http::Error::Busy(_)) {
            return Self::Full(error.to_string());
        }
        if !error.may_have_run() {
            return Self::Unsent(error.to_string());
        }
        match error {
            http::Error::ReadTimeout => Self::TimedOut,
            http::Error::BrokenOff => Self::BrokenOff(error.to_string()),
            other => Self::NotMcp(other.to_string()),
        }
    }
}

impl From<StdioError> for SendError {
    fn from(error: StdioError) -> Self {
        match error {
            StdioError::Exited(_)
            | StdioError::LimitReached(..)
            | StdioError::Closed
            | StdioError::Stopped
            | StdioError::Stuck => Self::BrokenOff(error.to_string()),
            StdioError::NoDirectory(_)
            | StdioError::NoInterpreter(_)
            | StdioError::NotExecutable(_)
            | StdioError::NotFound(_)
            | StdioError::Spawn(_)
            | StdioError::ZeroByte => Self::Unsent(error.to_string()),
        }
    }
}

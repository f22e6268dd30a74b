//! The way to an upstream that a call takes, once the upstream is open.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::timeout;
use weir_flow::{
    Failure, Sent,
    call::Busy,
    facts::{Refusal, Transport},
};
use weir_mcp::{Era, Field, Message, era::LATEST_MODERN, message::Kind, method::CANCELLED};

use crate::http::{self, HeaderName, HeaderValue};

use super::{
    JsonBody, Listened, Reply, ReplyBody,
    credential::Credential,
    events::StreamResumption,
    lock,
    multiplex::{ExchangeKey, MultiplexExchange, MultiplexFault, OnDrop, Whose},
    reply::too_long,
    sse::SseConnection,
    stdio::{Process, StdioError},
    streamable::HttpEndpoint,
};

/// How long an HTTP server may take to end a session.
const FAREWELL: Duration = Duration::from_secs(3);

/// An open way to an upstream. Cheap to clone.
#[derive(Clone)]
pub enum Channel {
    /// Streamable HTTP; `session` is the upstream's own, where it gave one, and `version` what was agreed in it.
    Http { endpoint: Arc<HttpEndpoint>, session: Option<HeaderValue>, version: Option<HeaderValue> },
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
}

impl<'a> Outgoing<'a> {
    /// A message of Weir's own.
    #[must_use]
    pub fn own(era: Era, message: &'a Message, credential: Option<&'a Credential>) -> Self {
        static MODERN: HeaderValue = HeaderValue::from_static(LATEST_MODERN);
        let (body, version) = (message.bytes().clone(), (era == Era::Modern).then_some(&MODERN));
        Self { era, message, body, name: None, version, headers: &[], ticket: None, credential }
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

/// Why a message could not be sent or its answer not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// 401 or 403.
    #[error("status {}", .0.status)]
    Refused(Refusal),
    /// The upstream does not know the session.
    #[error("the session is gone")]
    SessionLost,
    /// The message never reached the upstream.
    #[error("{0}")]
    Unsent(String),
    /// The server turned it away unread and said when to come back.
    #[error("{0}")]
    Busy(Busy),
    /// The connection ended after the message may have arrived.
    #[error("{0}")]
    BrokenOff(String),
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// A status that means trouble at the server, or an answer that is not MCP.
    #[error("{0}")]
    NotMcp(String),
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
    #[must_use]
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
        match self {
            Self::Http { endpoint, session, version } => {
                let outgoing = Outgoing { version: version.as_ref().or(outgoing.version), ..outgoing };
                let mut reply = endpoint.call(&outgoing, session.as_ref()).await?;
                if let ReplyBody::Events(Listened::Http(events)) = &mut reply.body {
                    let (session, version) = (session.as_ref(), outgoing.version);
                    match outgoing.era {
                        Era::Legacy => {
                            events.go_on(StreamResumption::new(endpoint, session, version, outgoing.credential, true))
                        }
                        Era::Modern => {}
                    }
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
            Self::Http { endpoint, session, version } => {
                let (session, version) = (session.as_ref(), version.as_ref());
                let mut reply = endpoint.listen(session, version, last_event_id, credential).await?;
                if let ReplyBody::Events(Listened::Http(events)) = &mut reply.body {
                    events.go_on(StreamResumption::new(endpoint, session, version, credential, false));
                }
                Ok(reply)
            }
            Self::Sse { connection } => {
                let connection = connection.clone();
                let messages = connection.unsolicited();
                Ok(unsolicited(messages.map(|messages| Listened::StreamUnsolicited { messages, connection })))
            }
            Self::Stdio { process, .. } => {
                let process = process.clone();
                let messages = process.unsolicited();
                Ok(unsolicited(messages.map(|messages| Listened::Unsolicited { messages, process })))
            }
        }
    }

    /// Ends what this channel holds open at the upstream: its session, or its process unless others use it. A process is
    /// waited for; an HTTP server that is silent is left after a while.
    pub(super) async fn close(&self, credential: Option<&Credential>) {
        match self {
            Self::Http { session: None, .. } | Self::Stdio { shared: true, .. } => {}
            Self::Http { endpoint, session: Some(session), version } => {
                drop(timeout(FAREWELL, endpoint.delete(session, version.as_ref(), credential)).await);
            }
            Self::Sse { connection } => connection.close(),
            Self::Stdio { process, .. } => process.stop().await,
        }
    }

    /// Has a server that took one request at a time, for Weir, take those of several clients side by side.
    pub fn serve_many(&self) {
        match self {
            // Each request there has a stream of its own.
            Self::Http { .. } => {}
            Self::Sse { connection } => connection.serve_many(),
            Self::Stdio { process, .. } => process.serve_many(),
        }
    }

    /// Whether each request has a stream of its own: what the server says there concerns that request alone. On a stream
    /// that requests share, one that is dropped is cancelled by its exchange.
    #[must_use]
    pub const fn has_request_streams(&self) -> bool {
        matches!(self, Self::Http { .. })
    }

    /// Whether headers travel with each message.
    #[must_use]
    pub const fn carries_headers(&self) -> bool {
        matches!(self, Self::Http { .. })
    }

    /// Whether it leads to a process that others use too.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Stdio { shared: true, .. })
    }

    /// Whether a process runs for this channel alone, and ends with it.
    #[must_use]
    pub const fn has_own_process(&self) -> bool {
        matches!(self, Self::Stdio { shared: false, .. })
    }

    /// What an operator calls the way that bytes travel.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        match self {
            Self::Http { .. } => Transport::Http,
            Self::Sse { .. } => Transport::Sse,
            Self::Stdio { .. } => Transport::Stdio,
        }
    }

    /// Whether both lead through the same session or process.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Http { session: a, .. }, Self::Http { session: b, .. }) => a == b,
            (Self::Sse { connection: a }, Self::Sse { connection: b }) => a.is_same(b),
            (Self::Stdio { process: a, .. }, Self::Stdio { process: b, .. }) => a.is_same(b),
            _ => false,
        }
    }

    /// Whether the channel can still carry a call, as far as can be known without one.
    #[must_use]
    pub fn alive(&self) -> bool {
        match self {
            Self::Http { .. } => true,
            Self::Sse { connection } => connection.alive(),
            Self::Stdio { process, .. } => process.alive(),
        }
    }
}

/// A server that takes many requests on one stream.
trait SharedStream {
    type Fault: MultiplexFault;

    async fn request(
        &self,
        of: &Outgoing<'_>,
        message: &Message,
        on_drop: OnDrop,
    ) -> Result<MultiplexExchange<Self::Fault>, Self::Fault>;

    async fn notify(&self, of: &Outgoing<'_>, message: &Message) -> Result<(), Self::Fault>;

    async fn cancel(&self, of: &Outgoing<'_>, key: ExchangeKey, message: &Message) -> Result<(), Self::Fault>;

    fn listened(first: Message, exchange: MultiplexExchange<Self::Fault>) -> Listened;
}

impl SharedStream for Process {
    type Fault = StdioError;

    async fn request(
        &self,
        of: &Outgoing<'_>,
        message: &Message,
        on_drop: OnDrop,
    ) -> Result<MultiplexExchange<StdioError>, StdioError> {
        self.request(message, on_drop, of.whose()).await
    }

    async fn notify(&self, _: &Outgoing<'_>, message: &Message) -> Result<(), StdioError> {
        self.notify(message).await
    }

    async fn cancel(&self, _: &Outgoing<'_>, key: ExchangeKey, message: &Message) -> Result<(), StdioError> {
        self.cancel(key, message).await
    }

    fn listened(first: Message, exchange: MultiplexExchange<StdioError>) -> Listened {
        Listened::Exchange { first: Some(first), exchange }
    }
}

impl SharedStream for SseConnection {
    type Fault = SendError;

    async fn request(
        &self,
        of: &Outgoing<'_>,
        message: &Message,
        on_drop: OnDrop,
    ) -> Result<MultiplexExchange<SendError>, SendError> {
        self.request(of, message, on_drop).await
    }

    async fn notify(&self, of: &Outgoing<'_>, message: &Message) -> Result<(), SendError> {
        self.notify(of, message).await
    }

    async fn cancel(&self, of: &Outgoing<'_>, key: ExchangeKey, message: &Message) -> Result<(), SendError> {
        self.cancel(of, key, message).await
    }

    fn listened(first: Message, exchange: MultiplexExchange<SendError>) -> Listened {
        Listened::StreamExchange { first: Some(first), exchange }
    }
}

/// One listener at a time, as with a second GET stream.
fn unsolicited(listened: Option<Listened>) -> Reply {
    match listened {
        Some(events) => Reply { status: 200, session: None, body: ReplyBody::Events(events) },
        None => Reply { status: 409, session: None, body: ReplyBody::Empty },
    }
}

/// Sends what has no answer.
async fn tell_shared<S: SharedStream>(stream: &S, outgoing: &Outgoing<'_>, message: &Message) -> Result<(), S::Fault> {
    match outgoing.ticket.filter(|_| message.method() == CANCELLED).map(|ticket| *lock(&ticket.key)) {
        Some(Some(key)) => stream.cancel(outgoing, key, message).await,
        // It is not out yet. Its id is the client's, and may be that of another's request on this stream.
        Some(None) => Ok(()),
        None => stream.notify(outgoing, message).await,
    }
}

async fn send_shared<S: SharedStream>(stream: &S, outgoing: Outgoing<'_>) -> Result<Reply, SendError>
where
    SendError: From<S::Fault>,
{
    let spliced;
    let message = if outgoing.body.as_ptr() == outgoing.message.bytes().as_ptr() {
        outgoing.message
    } else {
        spliced = Message::parse(outgoing.body.clone()).map_err(|why| SendError::NotMcp(why.to_string()))?;
        &spliced
    };
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
        *lock(&ticket.key) = Some(exchange.key());
    }
    let first = exchange.next().await?.ok_or_else(S::Fault::closed)?;
    let (status, body) = match first.kind() {
        Kind::Response | Kind::Error => {
            let status = first.error_code().map_or(200, |code| weir_mcp::status::http_status(outgoing.era, code));
            (status, ReplyBody::Json(JsonBody::Whole(first.bytes().clone())))
        }
        Kind::Request | Kind::Notification => (200, ReplyBody::Events(S::listened(first, exchange))),
    };
    Ok(Reply { status, session: None, body })
}

impl From<http::Error> for SendError {
    fn from(error: http::Error) -> Self {
        if error == http::Error::ConnectTimeout {
            return Self::Unsent(format!("{error} (`timeouts.connect`)"));
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
            StdioError::Exited { .. }
            | StdioError::Closed
            | StdioError::Overflow
            | StdioError::Stopped
            | StdioError::Stuck => Self::BrokenOff(error.to_string()),
            StdioError::LineTooLong(limit) => too_long(limit),
            StdioError::NoDirectory { .. }
            | StdioError::NoInterpreter { .. }
            | StdioError::NotExecutable { .. }
            | StdioError::NotFound { .. }
            | StdioError::NotSendable
            | StdioError::Spawn(_)
            | StdioError::ZeroByte => Self::Unsent(error.to_string()),
        }
    }
}

impl From<SendError> for Sent {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Refused(refusal) => Self::Refused(refusal),
            SendError::SessionLost => Self::SessionLost,
            SendError::Unsent(why) => Self::Unsent(why),
            SendError::Busy(busy) => Self::Busy(busy),
            SendError::BrokenOff(how) => Self::BrokenOff(how),
            SendError::TimedOut => Self::TimedOut,
            SendError::NotMcp(what) => Self::NotMcp(what),
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Refused(Refusal { status, credential, challenge }) => {
                Self::Refused { status, credential: credential.is_some(), challenge }
            }
            SendError::SessionLost => Self::SessionLost,
            SendError::Unsent(why) => Self::Unreachable(why),
            SendError::Busy(busy) => Self::Busy(busy),
            SendError::BrokenOff(how) => Self::BrokenOff(how),
            SendError::TimedOut => Self::TimedOut(Duration::ZERO),
            SendError::NotMcp(what) => Self::NotMcp(what),
        }
    }
}

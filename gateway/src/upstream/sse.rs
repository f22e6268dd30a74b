//! HTTP+SSE, from the client's side (MCP 2024-11-05, basic/transports): one GET stream on which every answer comes, and
//! a POST for each message that goes out.
//!
//! A [`SseConnection`] is one stream, which is also the session: when it ends, so does the session, and everything that
//! runs on it. Answers find their requests by id ([`multiplex`]). What a POST is answered with only tells whether the
//! message was taken, and some servers never answer one; the stream counts.

mod address;
mod post;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::watch, task::AbortHandle};
use weir_mcp::{Message, message::Kind, sse::Event};

use crate::http::{HeaderName, HeaderValue, HttpTarget};

use super::{
    Listened, Outgoing, Replies, ReplyBody, SendError,
    channel::SharedStream,
    credential::Credential,
    multiplex::{self, ExchangeKey, Multiplex, MultiplexExchange, MultiplexTransport, OnDrop},
    reply::too_long,
    streamable::HttpEndpoint,
};

/// How long a notification waits to hear that it was taken; what comes after it should not overtake it.
const TAKEN: Duration = Duration::from_secs(2);

/// How long a POST that is on its way when the stream ends may take to tell whether it arrived.
const GRACE: Duration = Duration::from_secs(1);

/// An open stream. Clones are handles to the same one; when the last one is dropped it is closed.
#[derive(Clone)]
pub struct SseConnection {
    handle: Arc<SseHandle>,
}

/// Why no stream could be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    /// The server has something else there, and says so with this status.
    Status(u16),
    /// There is no stream, or one that does not say where to post.
    Failed(SendError),
}

struct SseHandle {
    shared: Arc<SseShared>,
    reader: AbortHandle,
}

/// What the handles, the exchanges, the reader and the posts have in common.
struct SseShared {
    multiplex: Multiplex,
    endpoint: Arc<HttpEndpoint>,
    /// Where to post.
    to: HttpTarget,
    /// The session's id, where a header gave one.
    session: Option<HeaderValue>,
    /// What went along last, for a cancellation of our own.
    credential: Mutex<Option<Credential>>,
    /// Whether a request has been answered: from then on a server that turns messages away has lost the session.
    proven: AtomicBool,
    /// The last status that turned a message away; 0 if none did.
    turned_away: AtomicU16,
    /// Whether a POST of a notification has not been answered: then none is waited for.
    silent: AtomicBool,
    /// Whether an event that is not MCP has been noted in the log.
    warned: AtomicBool,
    /// The requests whose POST is on its way.
    posting: Mutex<BTreeSet<ExchangeKey>>,
    /// What Weir itself answers the server.
    replies: Arc<Replies>,
    /// Ends the posts that are on their way, after [`GRACE`].
    over: watch::Sender<bool>,
}

impl SseConnection {
    /// Opens a stream and waits until the server has said where to post.
    pub(super) async fn open(
        name: &str,
        endpoint: &Arc<HttpEndpoint>,
        credential: Option<&Credential>,
    ) -> Result<Self, OpenError> {
        let reply = endpoint.stream(credential).await?;
        let (200, ReplyBody::Events(mut events)) = (reply.status, reply.body) else {
            return Err(match reply.status {
                200..300 => SendError::NotMcp("an answer where an event stream belongs".into()).into(),
                status => OpenError::Status(status),
            });
        };
        let found = address::find(&mut events, reply.session.as_ref()).await?;
        let to = endpoint.beside(&found.reference, found.session.as_deref())?;
        let shared = Arc::new(SseShared {
            multiplex: Multiplex::new(name, random_key(), endpoint.limit),
            replies: Arc::default(),
            endpoint: Arc::clone(endpoint),
            to,
            session: reply.session,
            credential: Mutex::new(credential.cloned()),
            proven: AtomicBool::new(false),
            turned_away: AtomicU16::new(0),
            silent: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            posting: Mutex::default(),
            over: watch::Sender::new(false),
        });
        for message in found.early {
            shared.deliver(message);
        }
        let reader = tokio::spawn(read(events, Arc::clone(&shared))).abort_handle();
        Ok(Self { handle: Arc::new(SseHandle { shared, reader }) })
    }

    /// What its requests share.
    pub(super) fn stream(&self) -> Arc<dyn MultiplexTransport> {
        Arc::clone(&self.handle.shared) as _
    }

    /// Whether the stream is open, as far as is known now.
    pub(super) fn alive(&self) -> bool {
        !self.handle.shared.multiplex.ended()
    }

    /// Whether both are handles to one stream.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Closes the stream, which ends the session at the server.
    pub(super) fn close(&self) {
        self.handle.close();
    }

    /// The status with which the server turned a message away, if it did.
    pub(super) fn turned_away(&self) -> Option<u16> {
        match self.handle.shared.turned_away.load(Ordering::Acquire) {
            0 => None,
            status => Some(status),
        }
    }

    fn open_still(&self) -> Result<&Arc<SseShared>, SendError> {
        let shared = &self.handle.shared;
        if shared.multiplex.ended() {
            return Err(SendError::Unsent("its event stream has ended".into()));
        }
        Ok(shared)
    }
}

impl SharedStream for SseConnection {
    /// Posts a request under an id and progress token of our own and returns where its messages arrive. What becomes
    /// of the POST is told there too.
    async fn request(
        &self,
        of: &Outgoing<'_>,
        message: &Message,
        on_drop: OnDrop,
    ) -> Result<MultiplexExchange, SendError> {
        let shared = self.open_still()?;
        let exchange = {
            let mut posting = shared.posting.lock();
            let exchange = MultiplexExchange::start(Arc::clone(shared) as _, message, on_drop, of.whose())?;
            posting.insert(exchange.key());
            exchange
        };
        let key = exchange.key();
        let post = shared.post(of, multiplex::outgoing(message, key));
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let posted = post.await;
            shared.conclude(key, posted);
        });
        Ok(exchange.sent())
    }

    async fn notify(&self, of: &Outgoing<'_>, message: &Message) -> Result<(), SendError> {
        let shared = self.open_still()?;
        shared.tell(shared.post(of, message.bytes().clone())).await
    }

    async fn cancel(&self, of: &Outgoing<'_>, key: ExchangeKey, message: &Message) -> Result<(), SendError> {
        let shared = self.open_still()?;
        let body = multiplex::cancelled(message, key)?;
        if !shared.multiplex.mark_cancelled(key) {
            return Ok(());
        }
        shared.tell(shared.post(of, body)).await
    }
}

impl SseHandle {
    fn close(&self) {
        self.shared.end(SendError::BrokenOff("the connection was closed".into()));
        // Drops the response and with it the connection.
        self.reader.abort();
    }
}

impl Drop for SseHandle {
    fn drop(&mut self) {
        self.close();
    }
}

impl SseShared {
    /// Takes in an event of the stream.
    fn hear(self: &Arc<Self>, event: Event) {
        if !event.is_message() || event.data.is_empty() {
            return;
        }
        match Message::parse(event.data) {
            Ok(message) => self.deliver(message),
            Err(error) => {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    let upstream = &**self.multiplex.name();
                    tracing::warn!(upstream, %error, "sent an event that is not MCP; such events are skipped");
                }
            }
        }
    }

    fn deliver(self: &Arc<Self>, message: Message) {
        if matches!(message.kind(), Kind::Response | Kind::Error) {
            self.proven.store(true, Ordering::Release);
        }
        if let Some(answer) = self.multiplex.deliver(message) {
            let (shared, bytes) = (Arc::clone(self), answer.len());
            self.replies.send(self.multiplex.name(), bytes, async move {
                drop(shared.posted_now(answer).await);
            });
        }
    }

    /// Ends every exchange and refuses new ones. The first reason stays. What is being posted may not have left yet, so
    /// its POST tells how it ends.
    fn end(&self, reason: SendError) {
        let posting = self.posting.lock();
        self.multiplex.end_but(reason, |key| posting.contains(&key));
        drop(posting);
        self.over.send_replace(true);
    }

    /// Takes in what became of a request's POST.
    fn conclude(&self, key: ExchangeKey, posted: Result<(), SendError>) {
        self.posting.lock().remove(&key);
        match posted {
            // Taken, or perhaps taken: the stream tells the rest, as long as it is there.
            Ok(()) | Err(SendError::TimedOut) => {
                if self.multiplex.ended() {
                    self.multiplex.fail(key, multiplex::closed());
                }
            }
            Err(SendError::SessionLost) => {
                self.multiplex.fail(key, SendError::SessionLost);
                // The others may have run.
                self.end(SendError::BrokenOff("the session is gone".into()));
            }
            Err(why) => self.multiplex.fail(key, why),
        }
    }

    /// Waits a little until a notification is taken; the POST goes on if that takes longer.
    async fn tell(&self, post: impl Future<Output = Result<(), SendError>> + Send + 'static) -> Result<(), SendError> {
        let posted = tokio::spawn(post);
        if self.silent.load(Ordering::Acquire) {
            return Ok(());
        }
        match tokio::time::timeout(TAKEN, posted).await {
            Ok(Ok(taken)) => {
                if taken == Err(SendError::SessionLost) {
                    self.end(SendError::BrokenOff("the session is gone".into()));
                }
                taken
            }
            Ok(Err(_)) => Ok(()),
            Err(_) => {
                self.silent.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Posts a message of our own.
    async fn posted_now(self: Arc<Self>, message: Bytes) -> Result<(), SendError> {
        if self.multiplex.ended() {
            return Err(multiplex::closed());
        }
        let credential = self.credential.lock().clone();
        let head = self.endpoint.aside(self.session.as_ref(), credential.as_ref());
        self.posted(head, message, credential).await
    }

    /// What every POST says of itself.
    fn head(&self, outgoing: &Outgoing<'_>) -> Vec<(HeaderName, HeaderValue)> {
        *self.credential.lock() = outgoing.credential.cloned();
        let mut head = self.endpoint.aside(self.session.as_ref(), outgoing.credential);
        self.endpoint.add(&mut head, outgoing.headers);
        head
    }
}

impl MultiplexTransport for SseShared {
    fn multiplex(&self) -> &Multiplex {
        &self.multiplex
    }

    fn send_now(self: Arc<Self>, message: Bytes) {
        tokio::spawn(self.posted_now(message));
    }
}

impl From<SendError> for OpenError {
    fn from(why: SendError) -> Self {
        Self::Failed(why)
    }
}

/// Where the ids of one stream begin. Some servers (supergateway) put every answer on the streams of all their clients,
/// who must not take another's for their own: so no two streams have ids in common, as far as chance allows. Below 2^53,
/// which every JSON parser keeps.
fn random_key() -> u64 {
    let mut random = [0; 4];
    // Without randomness a stream is as exposed as any other client's.
    let _ = getrandom::fill(&mut random);
    u64::from(u32::from_le_bytes(random)) << 20
}

/// Brings what comes to those who wait for it, until the stream ends.
async fn read(mut events: Listened, shared: Arc<SseShared>) {
    let Listened::Http(events) = &mut events else { return };
    // Many servers write the id of an answer behind its result.
    events.wait_for_ends();
    let reason = loop {
        match events.next_or_large().await {
            Ok(Ok(Some(event))) => shared.hear(event),
            Ok(Ok(None)) => break multiplex::closed(),
            Ok(Err(large)) => shared.multiplex.pass_over(&large.start, &large.end, too_long(large.limit)),
            Err(why) => break SendError::BrokenOff(format!("its event stream broke: {why}")),
        }
    };
    shared.end(reason);
}

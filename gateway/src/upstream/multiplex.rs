//! Many requests on one stream, as with a child process or an event stream that carries every answer.
//!
//! Each request travels under an id and a progress token of our own, and what comes back finds its exchange by them
//! (`routes`). What belongs to no request waits for the one who listens. How bytes get to the server is the business of
//! a [`MultiplexTransport`].

mod inbox;
mod routes;
mod together;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use tracing::{debug, warn};
use weir_flow::SendError;
use weir_mcp::{Kind, Message, answer, message::Answered, method};

use inbox::Inbox;
#[cfg(test)]
pub(super) use inbox::MAX_WAITING;
use routes::{Routed, Routes};
pub(super) use routes::{cancelled, outgoing};
use together::Together;

/// Whoever reads an exchange did not keep up with the messages that arrived for it.
pub(super) fn overflow() -> SendError {
    SendError::BrokenOff("more messages arrived for this request than were read; the request was given up".into())
}

/// The message has no id to be answered under, or the edit failed.
fn not_sendable() -> SendError {
    SendError::NotMcp("a message that cannot be sent here".into())
}

/// The stream is over.
pub(super) fn closed() -> SendError {
    SendError::BrokenOff("its event stream ended".into())
}

/// A shared stream, as its exchanges know it.
pub(super) trait MultiplexTransport: Send + Sync {
    /// What runs on it.
    fn multiplex(&self) -> &Multiplex;
    /// Sends a short message of our own, without waiting for what becomes of it.
    fn send_now(self: Arc<Self>, message: Bytes);
}

/// What happens to a request whose [`MultiplexExchange`] is dropped before the answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDrop {
    /// The server is told with `notifications/cancelled` (modern era: a client that is gone has cancelled).
    Cancel,
    /// The server works on; its answer is thrown away (legacy era: a broken stream is no cancellation).
    Abandon,
}

/// Whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A client's, who may be asked something and hears what names no request.
    Client,
    /// Weir's own, or one that declares that it wants to hear nothing but its answer.
    Weir,
}

/// Names one request on its stream; see [`MultiplexExchange::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeKey(pub(super) u64);

/// The requests that run on one stream, and what the server says beside them.
pub(super) struct Multiplex {
    name: Arc<str>,
    limit: usize,
    routes: Routes,
    unsolicited: Inbox,
    unsolicited_taken: AtomicBool,
    unsolicited_lost: AtomicBool,
    /// Whether no client listens to what belongs to no request.
    unasked: AtomicBool,
    refused: AtomicBool,
    /// What those have in common who share the server itself; none where one has it.
    together: OnceLock<Together>,
}

impl Multiplex {
    /// Nothing runs yet; `name` is the upstream's, for the log. Ids on the stream begin after `last_key`, and messages
    /// have at most `limit` bytes.
    pub(super) fn new(name: &str, last_key: u64, limit: usize) -> Self {
        Self {
            name: name.into(),
            limit,
            routes: Routes::new(last_key, limit),
            unsolicited: Inbox::new(limit),
            unsolicited_taken: AtomicBool::new(false),
            unsolicited_lost: AtomicBool::new(false),
            unasked: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            together: OnceLock::new(),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// From now on the requests are those of many clients: what might be meant for any of several reaches none.
    pub(super) fn serve_many(&self) {
        self.routes.serve_many();
    }

    /// From now on what the server asks outside of requests is answered by Weir: it has no client who could be asked.
    pub(super) fn serve_unasked(&self) {
        self.unasked.store(true, Ordering::Relaxed);
    }

    /// From now on several clients share the server itself: each hears what belongs to no request.
    pub(super) fn serve_together(&self) {
        self.serve_many();
        self.together.get_or_init(|| Together::new(self.limit));
    }

    /// Whether a request is to be answered here, because others still need what it would end.
    pub(super) fn spares(&self, request: &Message) -> bool {
        self.together.get().is_some_and(|together| together.spares(request))
    }

    /// Answers a request in place of the server.
    pub(super) fn answer_here(&self, key: ExchangeKey) {
        if let Ok(answer) = Message::parse(answer::result(key.0.to_string().as_bytes(), b"{}")) {
            drop(self.routes.route(answer));
        }
    }

    /// Takes in a message of the server; what comes back is to be sent to it.
    #[must_use]
    pub(super) fn deliver(&self, message: Message) -> Option<Bytes> {
        match self.routes.route(message) {
            Routed::Done => None,
            Routed::Stray(message) if message.kind() == Kind::Request && self.unasked.load(Ordering::Relaxed) => {
                refusal(&message)
            }
            Routed::Stray(message) => {
                self.keep(message);
                None
            }
            Routed::Ambiguous(message) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    let (upstream, method) = (&*self.name, message.method());
                    debug!(upstream, method, "may be meant for any of several clients and is brought to none");
                }
                refusal(&message)
            }
        }
    }

    /// Takes note of a message that was too long: the request that it answers fails.
    pub(super) fn pass_over(&self, start: &[u8], end: &[u8], why: SendError) {
        let failed = match Answered::by(start, end) {
            Answered::To(id) => self.routes.fail_by_id(&id, why),
            Answered::Unknown => self.routes.fail_only(why),
            Answered::None => false,
        };
        warn!(upstream = &*self.name, failed, "sent a message longer than `limits.message`, which is passed over");
    }

    fn keep(&self, stray: Message) {
        let kept_all = match self.together.get() {
            Some(together) => together.tell(&stray),
            None => self.unsolicited.push_over_oldest(stray),
        };
        if !kept_all && !self.unsolicited_lost.swap(true, Ordering::Relaxed) {
            warn!(upstream = &*self.name, "sends more unasked-for messages than are read; the oldest are dropped");
        }
    }

    /// Ends every exchange and refuses new ones. The first reason stays and is returned.
    pub(super) fn end(&self, reason: SendError) -> SendError {
        self.end_but(reason, |_| false)
    }

    /// The same, but spares some exchanges: what becomes of them is known soon, and told by [`fail`](Self::fail).
    pub(super) fn end_but(&self, reason: SendError, spared: impl Fn(ExchangeKey) -> bool) -> SendError {
        let reason = self.routes.end(reason, spared);
        self.unsolicited.fail(reason.clone());
        if let Some(together) = self.together.get() {
            together.end(&reason);
        }
        reason
    }

    /// Ends one exchange.
    pub(super) fn fail(&self, key: ExchangeKey, reason: SendError) {
        self.routes.fail(key, reason);
    }

    /// Notes that the server is told to give up a request. `false` if there is nothing to tell.
    pub(super) fn mark_cancelled(&self, key: ExchangeKey) -> bool {
        self.routes.mark_cancelled(key)
    }

    /// Whether any request runs.
    pub(super) fn busy(&self) -> bool {
        self.routes.any()
    }

    /// Whether it takes no more requests.
    pub(super) fn ended(&self) -> bool {
        self.routes.ended()
    }
}

/// One request on its way. Dropping it before the answer came does what its [`OnDrop`] says.
pub struct MultiplexExchange {
    line: Arc<dyn MultiplexTransport>,
    key: ExchangeKey,
    inbox: Arc<Inbox>,
    on_drop: OnDrop,
    sent: bool,
}

impl MultiplexExchange {
    /// Registers a request; made before it is sent, so that a caller that gives up while it waits leaves nothing
    /// behind.
    ///
    /// # Errors
    /// If the message is no request, or the stream is over.
    pub(super) fn start(
        line: Arc<dyn MultiplexTransport>,
        request: &Message,
        on_drop: OnDrop,
        whose: Whose,
    ) -> Result<Self, SendError> {
        let (key, inbox) = line.multiplex().routes.start(request, whose)?;
        // `initialize` must not be cancelled (2025-11-25, basic/utilities/cancellation).
        let on_drop = if request.method() == method::INITIALIZE { OnDrop::Abandon } else { on_drop };
        Ok(Self { line, key, inbox, on_drop, sent: false })
    }

    /// Notes that the server may have the request.
    pub(super) fn sent(mut self) -> Self {
        self.sent = true;
        self
    }

    /// The next message that belongs to this request, ids and tokens as the client knows them: its progress, other
    /// notifications and requests of the server that it caused, and last its response or error; then `None`.
    /// Safe to use in `select!`.
    ///
    /// # Errors
    /// When the server is gone or this exchange was not read fast enough. An error is final.
    pub async fn next(&mut self) -> Result<Option<Message>, SendError> {
        self.inbox.next().await
    }

    /// Names this request to whoever wants to cancel it.
    pub fn key(&self) -> ExchangeKey {
        self.key
    }
}

impl Drop for MultiplexExchange {
    fn drop(&mut self) {
        let runs = self.line.multiplex().routes.remove(self.key);
        if runs && self.sent && self.on_drop == OnDrop::Cancel {
            Arc::clone(&self.line).send_now(routes::cancellation(self.key));
        }
    }
}

/// Messages of the server that belong to no running exchange. One consumer at a time, unless clients share the server.
pub struct UnsolicitedQueue {
    line: Arc<dyn MultiplexTransport>,
    /// Its own inbox, where clients share the server.
    own: Option<Arc<Inbox>>,
}

impl UnsolicitedQueue {
    /// `None` while another one has them. What arrives while nobody listens is kept up to a bound, then the oldest are
    /// dropped.
    pub(super) fn take(line: Arc<dyn MultiplexTransport>) -> Option<Self> {
        if let Some(together) = line.multiplex().together.get() {
            let own = Some(together.join());
            return Some(Self { line, own });
        }
        let taken = line.multiplex().unsolicited_taken.swap(true, Ordering::AcqRel);
        (!taken).then_some(Self { line, own: None })
    }

    /// The next message. Safe to use in `select!`.
    ///
    /// # Errors
    /// When the server is gone.
    pub async fn next(&mut self) -> Result<Message, SendError> {
        let inbox = self.own.as_deref().unwrap_or(&self.line.multiplex().unsolicited);
        inbox.next().await?.ok_or_else(closed)
    }
}

impl Drop for UnsolicitedQueue {
    fn drop(&mut self) {
        if self.own.is_none() {
            self.line.multiplex().unsolicited_taken.store(false, Ordering::Release);
        }
    }
}

/// The answer to a request that no client can be asked; none to a notification.
fn refusal(message: &Message) -> Option<Bytes> {
    let id = message.id().filter(|_| message.kind() == Kind::Request)?;
    Some(match message.method() {
        method::PING => answer::result(id, b"{}"),
        name => {
            let text = format!("no client can be asked `{name}` here");
            answer::error(Some(id), answer::METHOD_NOT_FOUND, &text, None)
        }
    })
}

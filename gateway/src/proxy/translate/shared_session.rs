//! One legacy session at an upstream that modern clients share, and what the upstream says in it.
//!
//! Requests of several clients run in it side by side, so each goes under an id and a progress token of Weir's own. What
//! the upstream says outside of a request's stream comes in by one listener, which brings it to the request or the
//! subscriptions that it concerns.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{OnceCell, broadcast, mpsc},
    task::AbortHandle,
};
use weir_flow::Backoff;
use weir_mcp::{
    Era, Kind, Message, answer, json, method,
    translate::{Asks, may_ask},
};

use crate::{
    caller::Caller,
    catalog::Catalog,
    task,
    upstream::{Channel, ConnectError, Lease, Replies, Reply, ReplyBody, SendError, Upstream, own},
};

use super::subscription::{LISTS, updated};

/// How many messages outside of its own stream may wait for one request; more are lost.
const WAITING: usize = 64;

/// How many changes may wait for a subscriber that does not read; then the oldest are lost.
const CHANGES: usize = 256;

/// A legacy session and the requests that run in it.
pub(super) struct SharedSession {
    /// In whose name it is open, as they came last.
    caller: Mutex<Option<Arc<Caller>>>,
    pub(super) upstream: Arc<Upstream>,
    catalog: Arc<Catalog>,
    pub(super) channel: Channel,
    /// The answer to `initialize`.
    opening: Message,
    pub(super) asks: Asks,
    next: AtomicU64,
    running: Mutex<BTreeMap<u64, RequestSlot>>,
    /// Dropped with the session, which ends the subscriptions.
    changes: Mutex<Option<broadcast::Sender<Message>>>,
    /// The resources that subscriptions watch.
    watched: Mutex<HashMap<String, WatchedResource>>,
    talkative: OnceCell<()>,
    used: Mutex<Instant>,
    over: AtomicBool,
    listener: OnceLock<AbortHandle>,
    /// What Weir itself answers the upstream.
    replies: Arc<Replies>,
}

/// Who has a session opened.
pub(super) struct SessionOpener {
    pub(super) caller: Option<Arc<Caller>>,
    /// Whose share it is of.
    pub(super) principal: Arc<str>,
}

/// Where a request hears what comes outside of its own stream.
#[derive(Clone)]
struct RequestSlot {
    sender: mpsc::Sender<Message>,
    /// Whether the upstream may ask its client something.
    asks: bool,
}

/// A resource, as long as any subscription watches it.
#[derive(Default)]
struct WatchedResource {
    subscriptions: usize,
    /// Whether the upstream lets it be watched, which it is asked once.
    granted: Arc<OnceCell<bool>>,
}

/// A resource that a subscription watches; dropped, it does so no longer.
pub(super) struct ResourceWatch {
    session: Arc<SharedSession>,
    pub(super) uri: String,
}

/// A request's place in a session; left when it is dropped.
pub(super) struct SessionLease {
    pub(super) session: Arc<SharedSession>,
    /// The request's id and progress token.
    pub(super) key: u64,
    /// What concerns it and comes outside of its own stream.
    pub(super) heard: mpsc::Receiver<Message>,
}

impl SharedSession {
    /// Opens a session in a client's name.
    pub(super) async fn open(
        opener: SessionOpener,
        upstream: &Arc<Upstream>,
        catalog: &Arc<Catalog>,
        asks: Asks,
    ) -> Result<Arc<Self>, ConnectError> {
        let (caller, principal) = (opener.caller.as_ref(), &opener.principal);
        let initialize = own::initialize_with(asks);
        let Lease { channel, answer, .. } = upstream.lease_session(caller, principal, &initialize).await?;
        channel.serve_many();
        upstream.tell(caller, &channel, &own::initialized(), None).await;
        let session = Arc::new(Self {
            caller: Mutex::new(caller.cloned()),
            upstream: Arc::clone(upstream),
            catalog: Arc::clone(catalog),
            channel,
            opening: answer,
            asks,
            // `initialize` had 0.
            next: AtomicU64::new(1),
            running: Mutex::default(),
            changes: Mutex::new(Some(broadcast::Sender::new(CHANGES))),
            watched: Mutex::default(),
            talkative: OnceCell::new(),
            used: Mutex::new(Instant::now()),
            over: AtomicBool::new(false),
            listener: OnceLock::new(),
            replies: Arc::default(),
        });
        let listener = listen(Arc::downgrade(&session), session.channel.clone(), Arc::clone(upstream));
        // A session is opened once, so nothing is there yet.
        drop(session.listener.set(tokio::spawn(listener).abort_handle()));
        Ok(session)
    }

    /// Remembers what its principal comes with now, which may be younger than what it was opened with.
    pub(super) fn meet(&self, caller: Option<&Arc<Caller>>) {
        if let Some(caller) = caller.filter(|caller| !caller.is_local()) {
            *self.caller.lock() = Some(Arc::clone(caller));
        }
    }

    fn caller(&self) -> Option<Arc<Caller>> {
        self.caller.lock().clone()
    }

    /// The upstream's name.
    pub(super) fn name(&self) -> &str {
        self.upstream.name()
    }

    /// What the upstream's `initialize` said: the result, raw.
    pub(super) fn said(&self) -> &[u8] {
        self.opening.result().unwrap_or(b"{}")
    }

    /// Who the upstream says it is, raw.
    pub(super) fn server_info(&self) -> Option<&[u8]> {
        json::get(self.said(), &["serverInfo"]).filter(|raw| raw.starts_with(b"{"))
    }

    /// Whether the upstream declared a capability, or said yes to one.
    pub(super) fn can(&self, path: &[&str]) -> bool {
        let raw = json::get(self.said(), &["capabilities"]).and_then(|capabilities| json::get(capabilities, path));
        raw.is_some_and(|raw| raw == b"true" || raw.starts_with(b"{"))
    }

    /// Whether it still carries, as far as is known.
    pub(super) fn alive(&self) -> bool {
        !self.over.load(Ordering::Acquire) && self.channel.alive()
    }

    /// Since when nothing runs in it and nobody listens; none while it is in use.
    pub(super) fn idle(&self) -> Option<Duration> {
        let busy = !self.running.lock().is_empty()
            || self.changes.lock().as_ref().is_some_and(|changes| changes.receiver_count() > 0);
        (!busy).then(|| self.used.lock().elapsed())
    }

    /// Gives a request for `method` its place.
    pub(super) fn lease(self: &Arc<Self>, method: &str) -> SessionLease {
        self.lease_in(&mut self.running.lock(), method)
    }

    /// The same, unless another request that may ask runs here: what the upstream asks on a stream of its own would be
    /// either's.
    pub(super) fn lease_alone(self: &Arc<Self>, method: &str) -> Option<SessionLease> {
        let mut running = self.running.lock();
        let alone = running.values().all(|place| !place.asks);
        alone.then(|| self.lease_in(&mut running, method))
    }

    fn lease_in(self: &Arc<Self>, running: &mut BTreeMap<u64, RequestSlot>, method: &str) -> SessionLease {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, heard) = mpsc::channel(WAITING);
        running.insert(key, RequestSlot { sender, asks: may_ask(method) });
        SessionLease { session: Arc::clone(self), key, heard }
    }

    /// Asks the upstream, once, for every log message: each request then has its own filter.
    pub(super) async fn talk(&self) {
        let ask = || async {
            let request = answer::request(b"0", method::SET_LEVEL, Some(br#"{"level":"debug"}"#));
            if let Err(why) = self.ask(request).await {
                tracing::debug!(upstream = self.upstream.name(), error = %why, "log level not taken");
            }
        };
        self.talkative.get_or_init(ask).await;
    }

    /// Follows changes of lists and watched resources; they end with the session.
    pub(super) fn changes(&self) -> broadcast::Receiver<Message> {
        let changes = self.changes.lock();
        changes.as_ref().map_or_else(|| broadcast::channel(1).1, broadcast::Sender::subscribe)
    }

    /// Begins to watch a resource, if the upstream lets it be watched.
    pub(super) async fn watch(self: &Arc<Self>, uri: &str) -> Option<ResourceWatch> {
        let granted = {
            let mut watched = self.watched.lock();
            let watched = watched.entry(uri.to_owned()).or_default();
            watched.subscriptions += 1;
            Arc::clone(&watched.granted)
        };
        // Made first, so that it is let go if nobody waits for the upstream's word any more.
        let watching = ResourceWatch { session: Arc::clone(self), uri: uri.to_owned() };
        let ask = || async {
            let asked = self.ask(about(method::SUBSCRIBE, uri)).await;
            asked.is_ok_and(|answer| answer.kind() == Kind::Response)
        };
        granted.get_or_init(ask).await.then_some(watching)
    }

    /// Ends what [`subscriber`](Self::watch) began.
    fn unwatch(self: &Arc<Self>, uri: &str) {
        let last = {
            let mut all = self.watched.lock();
            let Some(watched) = all.get_mut(uri) else { return };
            watched.subscriptions -= 1;
            if watched.subscriptions > 0 { None } else { all.remove(uri) }
        };
        // What was asked and not answered may have been granted.
        let held = last.is_some_and(|watched| watched.granted.get() != Some(&false));
        if held && self.alive() {
            let (session, request) = (Arc::clone(self), about(method::UNSUBSCRIBE, uri));
            spawn(async move { drop(session.ask(request).await) });
        }
    }

    /// Sends a message that nothing answers, in the background: an answer to the upstream, or a cancellation.
    pub(super) fn tell(self: &Arc<Self>, message: Bytes) {
        let session = Arc::clone(self);
        spawn(async move { session.say(message).await });
    }

    /// The same, at once.
    pub(super) async fn say(&self, message: Bytes) {
        let Ok(message) = Message::parse(message) else { return };
        self.upstream.tell(self.caller().as_ref(), &self.channel, &message, None).await;
    }

    /// Marks it as gone, so that the next request opens another.
    pub(super) fn lose(&self) {
        self.over.store(true, Ordering::Release);
        *self.changes.lock() = None;
    }

    /// Ends the session at the upstream.
    pub(super) async fn close(&self) {
        self.lose();
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
        self.upstream.close(self.caller().as_ref(), &self.channel).await;
    }

    /// One request of Weir's own in this session; its id is replaced.
    async fn ask(&self, request: Bytes) -> Result<Message, SendError> {
        let not_mcp = |why: weir_mcp::ParseError| SendError::NotMcp(why.to_string());
        let key = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let request = Message::parse(request).map_err(not_mcp)?;
        let request = Message::parse(request.edit().set(weir_mcp::Field::Id, key).finish()).map_err(not_mcp)?;
        let caller = self.caller();
        let asked = self.upstream.ask(caller.as_ref(), &self.channel, Era::Legacy, &request);
        tokio::time::timeout(self.upstream.timeouts.list, asked).await.unwrap_or(Err(SendError::TimedOut))
    }

    /// Brings what came by the listener to where it belongs.
    pub(super) fn hear(self: &Arc<Self>, message: Message) {
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => {}
            (Kind::Notification, name) if is_change(name) => self.change(message),
            (Kind::Notification, method::PROGRESS) => {
                let key = message.progress_token().and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
                let to = key.and_then(|key: u64| self.running.lock().get(&key).cloned());
                if let Some(to) = to {
                    drop(to.sender.try_send(message));
                }
            }
            // Nothing says which request they are about.
            (Kind::Notification, _) => {
                if let Some(to) = self.only(false) {
                    drop(to.try_send(message));
                }
            }
            (Kind::Request, _) => match self.only(true) {
                Some(only) if self.asks.allows(&message) => {
                    if let Err(mpsc::error::TrySendError::Full(message) | mpsc::error::TrySendError::Closed(message)) =
                        only.try_send(message)
                    {
                        self.refuse(&message);
                    }
                }
                _ => self.refuse(&message),
            },
        }
    }

    /// The request that runs, or the one of them that may ask: none if there are several, since they may be different
    /// clients'.
    fn only(&self, asks: bool) -> Option<mpsc::Sender<Message>> {
        let running = self.running.lock();
        let mut meant = running.values().filter(|place| place.asks || !asks);
        let only = meant.next()?.sender.clone();
        meant.next().is_none().then_some(only)
    }

    /// Takes note of a change that concerns every client.
    pub(super) fn change(&self, message: Message) {
        if message.method().ends_with("/list_changed") {
            self.catalog.poke(&self.upstream);
        }
        if let Some(changes) = self.changes.lock().as_ref() {
            // Fails if nobody subscribes.
            drop(changes.send(message));
        }
    }

    /// Tells everybody that everything may have changed.
    fn missed(&self) {
        let mut all: Vec<Bytes> = LISTS.iter().map(|(_, _, method)| answer::notification(method, None)).collect();
        all.extend(self.watched.lock().keys().map(|uri| updated(uri)));
        let Some(changes) = self.changes.lock().clone() else { return };
        for message in all.into_iter().filter_map(|bytes| Message::parse(bytes).ok()) {
            // Fails if nobody subscribes.
            drop(changes.send(message));
        }
    }

    /// Answers a question of the upstream that no client can be asked.
    pub(super) fn refuse(self: &Arc<Self>, question: &Message) {
        let Some(id) = question.id() else { return };
        let text = |name| format!("the client cannot be asked `{name}`");
        let answer = match question.method() {
            method::PING => answer::result(id, b"{}"),
            name => answer::error(Some(id), answer::METHOD_NOT_FOUND, &text(name), None),
        };
        let session = Arc::clone(self);
        self.replies.send(self.name(), answer.len(), async move { session.say(answer).await });
    }
}

impl Drop for SharedSession {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
    }
}

impl Drop for ResourceWatch {
    fn drop(&mut self) {
        self.session.unwatch(&self.uri);
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        self.session.running.lock().remove(&self.key);
        *self.session.used.lock() = Instant::now();
    }
}

/// Whether a notification concerns every client of a session.
pub(super) fn is_change(name: &str) -> bool {
    name.ends_with("/list_changed") || name == method::UPDATED
}

fn about(method: &str, uri: &str) -> Bytes {
    answer::request(b"0", method, Some(format!("{{\"uri\":{}}}", json::quote(uri)).as_bytes()))
}

/// Runs something that nobody waits for; at the very end of the process there is nowhere to run it.
fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}

/// Reads what the upstream says of its own accord, for as long as the session is there. What it said while nobody read is
/// unknown.
async fn listen(session: Weak<SharedSession>, channel: Channel, upstream: Arc<Upstream>) {
    let (mut backoff, mut gap) = (Backoff::STREAM, false);
    loop {
        let Some(caller) = session.upgrade().map(|session| session.caller()) else { return };
        let credential = upstream.credential(caller.as_ref(), None).await.ok().flatten();
        match channel.listen(None, credential.as_ref()).await {
            // It offers no such stream.
            Ok(Reply { status: 404 | 405, .. }) => return,
            Ok(Reply { body: ReplyBody::Events(mut events), .. }) => {
                if std::mem::take(&mut gap) {
                    let Some(session) = session.upgrade() else { return };
                    session.missed();
                }
                let since = Instant::now();
                while let Ok(Some(message)) = events.message().await {
                    backoff.reset();
                    let Some(session) = session.upgrade() else { return };
                    session.hear(message);
                }
                backoff.handle_stay(since.elapsed());
            }
            Err(SendError::SessionLost) => return lost(&session),
            Ok(Reply { body: ReplyBody::Empty | ReplyBody::Json(_), .. }) | Err(_) => {}
        }
        gap = true;
        if !channel.alive() {
            return lost(&session);
        }
        task::back_off(&mut backoff).await;
    }
}

fn lost(session: &Weak<SharedSession>) {
    if let Some(session) = session.upgrade() {
        session.lose();
    }
}

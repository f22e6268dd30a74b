//! Legacy clients: what a session is and what it must remember.
//!
//! The stateless call is the spine and a session is an adapter to it: it remembers who the client said it is
//! (`initialize`), which upstreams it has opened with those words, which requests run where, and which questions of an
//! upstream wait for the client's answer. Each session has its own upstream sessions, so nobody sees another's state.

mod questions;
mod channels;
mod copies;
mod queue;
mod forwarders;
mod replay;
mod registry;
mod running;
mod stateless;
mod stored;
mod table;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{sync::watch, task::JoinSet};
use weir_mcp::{ListKind, Message};

use crate::{
    access::Toolset,
    caller::Caller,
    catalog::{self, ClientInfo, ListVersions, SeenLists},
    config::UpstreamName,
    http::HeaderValue,
    quota::{Permit, Reached},
    upstream::{Replies, Upstream},
};

pub use channels::UpstreamChannels;
pub use forwarders::{ForwarderOpening, Forwarders};
pub use questions::ClientQuestion;
pub use queue::{MessageQueue, QueueConsumer};
pub use registry::{Claim, OWNER_KNOWN, SessionRegistry};
pub use replay::{
    Left, MirrorQueue, MirroredEvent, Replay, ReplayMemory, ReplayStreams, ReplayWriter, ReplayedEvent, ResumePoint,
};
pub use running::{RunningGuard, RunningRequest, SessionHold};
pub use stateless::{StatelessState, WORK, WatchGrant, WatchRequest, WatchedUpstream};
pub use table::Sessions;

use copies::CopyState;
use questions::ClientQuestions;
use registry::Registration;
use running::RunningRequests;

/// How many watched resources of one client are remembered.
const MAX_WATCHED: usize = 1024;

/// How many bytes their addresses may have together.
pub const MAX_ADDRESSES: usize = 256 * 1024;

/// The longest `initialize` and `logging/setLevel` that are remembered, in bytes.
pub const MAX_REMEMBERED: usize = 64 * 1024;

/// Whose a session is.
pub struct SessionOwner {
    /// The caller, where they have proved who they are.
    pub caller: Option<Arc<Caller>>,
    principal: Arc<str>,
    permit: Permit,
}

/// Which part of Weir a client has opened.
#[derive(Clone)]
pub enum Endpoint {
    /// `/mcp` and toolsets: several upstreams, for which Weir itself answers; or one of which the caller sees a part.
    Merged(Arc<Toolset>),
    /// `/mcp/<name>`: one upstream, under its own names.
    One(Arc<Upstream>),
}

impl Endpoint {
    /// Whether Weir itself answers there for its upstreams.
    #[must_use]
    pub const fn is_merged(&self) -> bool {
        matches!(self, Self::Merged(_))
    }

    /// What is served there, where Weir itself answers.
    #[must_use]
    pub const fn toolset(&self) -> Option<&Arc<Toolset>> {
        match self {
            Self::Merged(toolset) => Some(toolset),
            Self::One(_) => None,
        }
    }

    /// How rules call it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Merged(toolset) => toolset.name(),
            Self::One(upstream) => upstream.name(),
        }
    }
}

/// Whether the same is served there. An upstream of the same name that is configured otherwise is another.
impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Merged(one), Self::Merged(other)) => one == other,
            (Self::One(one), Self::One(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// One legacy client.
pub struct Session {
    /// What the client calls it by.
    pub id: HeaderValue,
    /// What the log calls it by.
    pub shown: Arc<str>,
    /// What the client calls itself, for the log.
    pub client: Box<str>,
    /// The same without its version, as policies tell clients apart.
    client_name: Box<str>,
    /// Whose it is, as they came last.
    caller: Mutex<Option<Arc<Caller>>>,
    /// Whose share it is of.
    principal: Arc<str>,
    _permit: Permit,
    /// Where it was opened.
    pub endpoint: Endpoint,
    /// The client's own `initialize`, with which upstreams are opened in its name.
    pub initialize: Message,
    /// The version that was agreed, for `MCP-Protocol-Version`.
    pub version: HeaderValue,
    /// The upstreams it has opened.
    pub channels: UpstreamChannels,
    /// What Weir itself answers its upstreams.
    pub replies: Arc<Replies>,
    /// What waits for the client's own stream.
    pub queue: Arc<MessageQueue>,
    /// What the client may ask for again.
    pub streams: Arc<ReplayStreams>,
    /// What fills the queue; it ends with the session.
    pub forwarders: Forwarders,
    /// Tasks that open upstreams; they outlive the calls that began them, so that nothing is left half open.
    pub openings: Mutex<JoinSet<()>>,
    /// The resources that it watches, for upstreams that are opened again.
    watched: Mutex<BTreeSet<(UpstreamName, String)>>,
    /// The last `logging/setLevel`, for upstreams that are opened later.
    log_level: Mutex<Option<Message>>,
    /// The state of the merged lists that the client has last been told of.
    told: Mutex<ListVersions>,
    /// The lists that the client has seen.
    lists: Mutex<SeenLists>,
    /// What it needs at upstreams that know no sessions; most sessions need nothing.
    stateless: OnceLock<Box<StatelessState>>,
    /// The sign-ins that its client was asked for and wants to hear the end of, by upstream, and what each is called.
    awaited: Mutex<Vec<(String, String)>>,
    /// The approvals that its client was sent to a page for, by what each stands under, and their ids.
    awaited_approvals: Mutex<Vec<(String, String)>>,
    /// What a newer Weir has written of it.
    newer: OnceLock<Box<serde_json::Map<String, serde_json::Value>>>,
    running: RunningRequests,
    /// How many requests have come for it and are not answered yet.
    holds: AtomicUsize,
    questions: Mutex<ClientQuestions>,
    copying: CopyState,
    /// How it stands in the store; none if no other gateway can find it.
    registration: Mutex<Option<Registration>>,
    seen: Mutex<Instant>,
    ended: watch::Sender<bool>,
}

impl SessionOwner {
    /// The owner of one session more of a principal.
    ///
    /// # Errors
    ///
    /// When there is no room for it.
    pub fn new(sessions: &Sessions, caller: Option<Arc<Caller>>, principal: &Arc<str>) -> Result<Self, Reached> {
        Ok(Self { caller, principal: Arc::clone(principal), permit: sessions.permit(principal)? })
    }

    /// The same with what the caller comes with now.
    pub fn with(self, caller: Option<Arc<Caller>>) -> Self {
        Self { caller, ..self }
    }

    /// Whose share the session is of, and what it opens.
    pub const fn principal(&self) -> &Arc<str> {
        &self.principal
    }
}

impl Session {
    /// A session for a client that has just introduced itself.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub fn new(
        owner: SessionOwner,
        endpoint: Endpoint,
        initialize: &Message,
        version: HeaderValue,
        memory: &Arc<ReplayMemory>,
    ) -> Result<Self, getrandom::Error> {
        Self::named((new_id()?, None), owner, endpoint, initialize, version, memory)
    }

    /// The same with an id that the client knows, and the number of its own stream if it knows events of that.
    fn named(
        (id, stream): (HeaderValue, Option<u32>),
        owner: SessionOwner,
        endpoint: Endpoint,
        initialize: &Message,
        version: HeaderValue,
        memory: &Arc<ReplayMemory>,
    ) -> Result<Self, getrandom::Error> {
        // A copy, so that a session does not hold on to the buffer that the request was read into.
        let initialize =
            Message::parse(Bytes::copy_from_slice(initialize.bytes())).unwrap_or_else(|_| initialize.clone());
        let (mut client, mut client_name) = (String::new(), String::new());
        if let Some(said) = initialize.params().and_then(|params| weir_mcp::json::get(params, &["clientInfo"])) {
            add_client(said, &mut client);
            client_name = catalog::client_name(said);
        }
        Ok(Self {
            shown: shown(&id),
            client: client.into(),
            client_name: client_name.into(),
            id,
            caller: Mutex::new(owner.caller),
            endpoint,
            initialize,
            version,
            channels: UpstreamChannels::default(),
            replies: Arc::default(),
            queue: Arc::default(),
            streams: Arc::new(ReplayStreams::new(memory, &owner.principal, stream)?),
            principal: owner.principal,
            _permit: owner.permit,
            forwarders: Forwarders::default(),
            openings: Mutex::default(),
            watched: Mutex::default(),
            log_level: Mutex::default(),
            told: Mutex::default(),
            lists: Mutex::default(),
            stateless: OnceLock::new(),
            awaited: Mutex::default(),
            awaited_approvals: Mutex::default(),
            newer: OnceLock::new(),
            running: RunningRequests::default(),
            holds: AtomicUsize::new(0),
            questions: Mutex::default(),
            copying: CopyState::default(),
            registration: Mutex::default(),
            seen: Mutex::new(Instant::now()),
            ended: watch::Sender::default(),
        })
    }

    /// Notes that the client is told of the merged lists as they are `now`; gives what it knew before. This outlives its
    /// streams, so that what changes between two of them is told on the second.
    pub fn tell(&self, now: ListVersions) -> ListVersions {
        let mut told = self.told.lock();
        let later = told.or_later(now);
        std::mem::replace(&mut *told, later)
    }

    /// Notes that the client sees lists of these kinds as they are `now`; whether one is another than it has seen.
    pub fn sees(&self, now: SeenLists, kinds: &[ListKind]) -> bool {
        self.lists.lock().note(now, kinds)
    }

    /// Whose it is: what the session does of its own accord it does in their name.
    pub fn caller(&self) -> Option<Arc<Caller>> {
        self.caller.lock().clone()
    }

    /// Whose share what it opens is of.
    pub const fn principal(&self) -> &Arc<str> {
        &self.principal
    }

    /// Whether it is this caller's. Remembers what they came with, which may be younger than what was known.
    pub fn is_of(&self, caller: Option<&Arc<Caller>>) -> bool {
        let mut known = self.caller.lock();
        let is_of = Caller::is_same(known.as_ref(), caller);
        if let (true, Some(known), Some(caller)) = (is_of, &mut *known, caller)
            && !caller.is_copy_of(known)
        {
            known.clone_from(caller);
        }
        is_of
    }

    /// The version that was agreed, as text.
    pub fn version(&self) -> &str {
        self.version.to_str().unwrap_or_default()
    }

    /// Says to the session's streams that it is over, and ends what works for it at upstreams that know no sessions.
    pub fn end(&self) {
        self.ended.send_replace(true);
        if let Some(stateless) = self.stateless.get() {
            stateless.end();
        }
    }

    /// What the session needs at upstreams that know no sessions.
    pub fn stateless(&self) -> &StatelessState {
        self.stateless.get_or_init(|| Box::new(StatelessState::new(&self.initialize)))
    }

    /// Remembers a `logging/setLevel`, for upstreams that are opened later. One that is longer than any level is told to
    /// those that are open and no others.
    pub fn set_level(&self, request: &Message) {
        if request.bytes().len() <= MAX_REMEMBERED {
            // A copy, so that the session does not hold on to the buffer that the request was read into.
            *self.log_level.lock() = Message::parse(Bytes::copy_from_slice(request.bytes())).ok();
            self.note_change();
        }
    }

    /// The last `logging/setLevel`.
    pub fn log_level(&self) -> Option<Message> {
        self.log_level.lock().clone()
    }

    /// The level of the last `logging/setLevel`.
    pub fn level(&self) -> Option<String> {
        let level = self.log_level.lock();
        let raw = weir_mcp::json::get(level.as_ref()?.params()?, &["level"])?;
        weir_mcp::json::string(raw).map(|level| level.into_owned())
    }

    /// Whether the session is over.
    pub fn is_over(&self) -> bool {
        *self.ended.borrow()
    }

    /// Turns true when the session is over.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Has the store hear what has changed, if it knows of the session.
    pub fn note_change(&self) {
        if let Some(registration) = &mut *self.registration.lock() {
            registration.is_due = true;
        }
    }

    /// Notes that the client is there.
    pub fn touch(&self) {
        *self.seen.lock() = Instant::now();
    }

    /// Notes that the client watches a resource, by the upstream's own name for it, or no longer does.
    pub fn watch(&self, upstream: &UpstreamName, uri: String, watches: bool) {
        let mut watched = self.watched.lock();
        if !watches {
            watched.remove(&(upstream.clone(), uri));
        } else if watched.len() < MAX_WATCHED
            && watched.iter().map(|(_, uri)| uri.len()).sum::<usize>() + uri.len() <= MAX_ADDRESSES
        {
            watched.insert((upstream.clone(), uri));
        }
        drop(watched);
        self.note_change();
    }

    /// The resources of an upstream that the client watches.
    pub fn watched(&self, upstream: &UpstreamName) -> Vec<String> {
        self.watched.lock().iter().filter(|(of, _)| of == upstream).map(|(_, uri)| uri.clone()).collect()
    }

    /// The upstreams at which the client watches resources.
    pub fn watched_upstreams(&self) -> BTreeSet<UpstreamName> {
        self.watched.lock().iter().map(|(of, _)| of.clone()).collect()
    }

    /// Notes that the client was asked for a sign-in at an upstream; gives what that is called.
    pub fn awaits(&self, upstream: &str) -> Option<String> {
        let mut awaited = self.awaited.lock();
        if let Some((_, id)) = awaited.iter().find(|(of, _)| of == upstream) {
            return Some(id.clone());
        }
        let id = new_id().ok()?.to_str().ok()?.to_owned();
        // Upstreams are of the configuration, so there are not many.
        awaited.push((upstream.to_owned(), id.clone()));
        drop(awaited);
        self.note_change();
        Some(id)
    }

    /// The sign-ins that its client was asked for.
    pub fn awaited(&self) -> Vec<(String, String)> {
        self.awaited.lock().clone()
    }

    /// Forgets one.
    pub fn no_longer_awaits(&self, upstream: &str) {
        self.awaited.lock().retain(|(of, _)| of != upstream);
    }

    /// Notes that the client was sent to a page for the approval of this id, which stands under a key in the store.
    pub fn awaits_approval(&self, key: &str, id: &str) {
        let mut awaited = self.awaited_approvals.lock();
        // Not many: few of one principal can wait at a time, and those that are over are forgotten.
        if !awaited.iter().any(|(_, known)| known == id) {
            awaited.push((key.to_owned(), id.to_owned()));
            drop(awaited);
            self.note_change();
        }
    }

    /// The approvals that its client was sent to a page for: key and id of each.
    pub fn awaited_approvals(&self) -> Vec<(String, String)> {
        self.awaited_approvals.lock().clone()
    }

    /// Forgets the approval of this id.
    pub fn no_longer_awaits_approval(&self, id: &str) {
        self.awaited_approvals.lock().retain(|(_, known)| known != id);
    }

    /// Whether a request of the client runs, or has just come.
    pub fn is_busy(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0 || !self.running.is_empty()
    }

    /// Whether one runs at this upstream.
    pub fn is_busy_at(&self, upstream: &Arc<Upstream>) -> bool {
        self.running.upstreams().iter().any(|busy| Arc::ptr_eq(busy, upstream))
    }

    /// How long what runs now may take yet.
    pub fn patience(&self) -> Duration {
        self.running.upstreams().iter().map(|upstream| upstream.timeouts.longest()).max().unwrap_or_default()
    }

    /// What the client has said of itself.
    pub fn client_info(&self) -> Option<ClientInfo<'_>> {
        Some(ClientInfo::Name(&self.client_name))
    }

    /// Since when the client has been silent; none while it has a stream open or a request running.
    pub fn idle_since(&self) -> Option<Instant> {
        let busy = self.queue.is_taken() || self.is_busy() || self.runs_copied();
        (!busy).then(|| *self.seen.lock())
    }
}

/// What the log calls a session: whoever knows its id can take part in it, and nobody knows it from this.
pub fn shown(id: &HeaderValue) -> Arc<str> {
    hex::encode(&Sha256::digest(id.as_bytes())[..4]).into()
}

/// Adds what a client says of itself (`clientInfo`) to a text for the log, cut to a bearable length: `name/version`.
pub fn add_client(info: &[u8], to: &mut String) {
    /// The longest name or version, in bytes.
    const LONGEST: usize = 64;
    let (mut name, mut version) = (None, None);
    for (key, value) in weir_mcp::json::members(info) {
        match &*key {
            "name" => name = Some(value),
            "version" => version = Some(value),
            _ => {}
        }
    }
    for (text, between) in [(name, ""), (version, "/")] {
        if let Some(text) = text.and_then(weir_mcp::json::string) {
            to.push_str(between);
            to.push_str(&text[..text.floor_char_boundary(LONGEST)]);
        }
    }
}

/// 32 random bytes in hexadecimal: visible ASCII, as the specification wants, and nothing to guess from.
fn new_id() -> Result<HeaderValue, getrandom::Error> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random)?;
    let text = hex::encode(random);
    // Hexadecimal is always a valid header value.
    Ok(HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")))
}

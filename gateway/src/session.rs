//! Legacy clients: what a session is and what it must remember.
//!
//! The stateless call is the spine and a session is an adapter to it: it remembers who the client said it is
//! (`initialize`), which upstreams it has opened with those words, which requests run where, and which questions of an
//! upstream wait for the client's answer. Each session has its own upstream sessions, so nobody sees another's state.

mod lines;
mod outbox;
mod table;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use tokio::{sync::watch, task::JoinSet};
use weir_mcp::{Message, message::Field};

use crate::{http::HeaderValue, upstream::Ticket};

pub use lines::Lines;
pub use outbox::{Outbox, Taken};
pub use table::{Full, Sessions};

/// How many questions of upstreams may wait for one client's answer.
const MAX_ASKED: usize = 256;

/// Which part of Weir a client has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/mcp`: all upstreams, under public names.
    All,
    /// `/mcp/<name>`: the upstream at this place, under its own names.
    One(usize),
}

/// One legacy client.
pub struct Session {
    /// What the client calls it by.
    pub id: HeaderValue,
    /// Where it was opened.
    pub endpoint: Endpoint,
    /// The client's own `initialize`, with which upstreams are opened in its name.
    pub initialize: Message,
    /// The version that was agreed, for `MCP-Protocol-Version`.
    pub version: HeaderValue,
    /// The upstreams it has opened.
    pub lines: Lines,
    /// What waits for the client's GET stream.
    pub outbox: Arc<Outbox>,
    /// Tasks that fill the outbox; they end with the session.
    pub pumps: Mutex<JoinSet<()>>,
    /// The last `logging/setLevel`, for upstreams that are opened later.
    pub log_level: Mutex<Option<Message>>,
    running: Mutex<HashMap<Box<[u8]>, Runs>>,
    asked: Mutex<Asked>,
    seen: Mutex<Instant>,
    ended: watch::Sender<bool>,
}

/// Where a request runs: the upstream's place, and what names it to a child process.
type Runs = (usize, Arc<Ticket>);

/// Questions of upstreams that the client has been asked under ids of Weir's own.
#[derive(Default)]
struct Asked {
    next: u64,
    waiting: HashMap<u64, (usize, Box<[u8]>)>,
}

/// Removes a request from those that run when it is dropped.
pub struct Running {
    /// Names it to a child process.
    pub ticket: Arc<Ticket>,
    session: Arc<Session>,
    id: Box<[u8]>,
}

impl Session {
    /// A session for a client that has just introduced itself.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub fn new(endpoint: Endpoint, initialize: &Message, version: HeaderValue) -> Result<Self, getrandom::Error> {
        // A copy, so that a session does not hold on to the buffer that the request was read into.
        let initialize =
            Message::parse(Bytes::copy_from_slice(initialize.bytes())).unwrap_or_else(|_| initialize.clone());
        Ok(Self {
            id: new_id()?,
            endpoint,
            initialize,
            version,
            lines: Lines::default(),
            outbox: Arc::default(),
            pumps: Mutex::default(),
            log_level: Mutex::default(),
            running: Mutex::default(),
            asked: Mutex::default(),
            seen: Mutex::new(Instant::now()),
            ended: watch::Sender::default(),
        })
    }

    /// Says to the session's streams that it is over.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Turns true when the session is over.
    #[must_use]
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Notes that the client is there.
    pub fn touch(&self) {
        *lock(&self.seen) = Instant::now();
    }

    /// Since when the client has been silent; none while it has a stream open or a request running.
    #[must_use]
    pub fn idle_since(&self) -> Option<Instant> {
        let busy = self.outbox.is_taken() || !lock(&self.running).is_empty();
        (!busy).then(|| *lock(&self.seen))
    }

    /// Notes that a request runs at an upstream, until the guard is dropped.
    #[must_use]
    pub fn run(self: &Arc<Self>, id: &[u8], upstream: usize) -> Running {
        let ticket = Arc::<Ticket>::default();
        lock(&self.running).insert(id.into(), (upstream, Arc::clone(&ticket)));
        Running { ticket, session: Arc::clone(self), id: id.into() }
    }

    /// Where the request with this id runs.
    #[must_use]
    pub fn runs_at(&self, id: &[u8]) -> Option<Runs> {
        lock(&self.running).get(id).cloned()
    }

    /// Gives an upstream's request an id that is unique among all upstreams of this session.
    #[must_use]
    pub fn ask(&self, upstream: usize, request: &Message) -> Option<Bytes> {
        let mut asked = lock(&self.asked);
        if asked.waiting.len() >= MAX_ASKED {
            return None;
        }
        let id = asked.next;
        asked.next += 1;
        asked.waiting.insert(id, (upstream, request.id()?.into()));
        drop(asked);
        Some(request.edit().set(Field::Id, id.to_string().as_bytes()).finish())
    }

    /// Finds whose question a client's answer is for, and gives the answer that question's own id back.
    #[must_use]
    pub fn answered(&self, answer: &Message) -> Option<(usize, Bytes)> {
        let id = std::str::from_utf8(answer.id()?).ok()?.parse().ok()?;
        let (upstream, id) = lock(&self.asked).waiting.remove(&id)?;
        Some((upstream, answer.edit().set(Field::Id, &id).finish()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.session.running).remove(&self.id);
        self.session.touch();
    }
}

/// 32 random bytes in hexadecimal: visible ASCII, as the specification wants, and nothing to guess from.
fn new_id() -> Result<HeaderValue, getrandom::Error> {
    let mut random = [0_u8; 32];
    getrandom::fill(&mut random)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    // Hexadecimal is always a valid header value.
    Ok(HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")))
}

/// A lock that a panic elsewhere cannot take away; what it guards is whole between statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

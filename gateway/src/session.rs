//! Legacy clients: what a session is and what it must remember.
//!
//! The stateless call is the spine and a session is an adapter to it: it remembers who the client said it is
//! (`initialize`), which upstreams it has opened with those words, which requests run where, and which questions of an
//! upstream wait for the client's answer. Each session has its own upstream sessions, so nobody sees another's state.

mod lines;
mod outbox;
mod pumps;
mod replay;
mod stateless;
mod table;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
};
use weir_mcp::{Message, message::Field};

use crate::{http::HeaderValue, upstream::Ticket};

pub use lines::Lines;
pub use outbox::{Outbox, Taken};
pub use pumps::{Opening, Pumps};
pub use replay::{Found, Keeper, Left, Memory, Replay, Streams};
pub use stateless::{Granted, Stateless, Watch, Wish};
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
    /// What waits for the client's own stream.
    pub outbox: Arc<Outbox>,
    /// What the client may ask for again.
    pub streams: Arc<Streams>,
    /// What fills the outbox; it ends with the session.
    pub pumps: Pumps,
    /// Tasks that open upstreams; they outlive the calls that began them, so that nothing is left half open.
    pub openings: Mutex<JoinSet<()>>,
    /// The last `logging/setLevel`, for upstreams that are opened later.
    pub log_level: Mutex<Option<Message>>,
    /// What it needs at upstreams that know no sessions; most sessions need nothing.
    stateless: OnceLock<Box<Stateless>>,
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
    /// In the order in which they were asked.
    waiting: BTreeMap<u64, Asker>,
}

/// Who has asked.
enum Asker {
    /// An upstream at this place, under this id of its own.
    Upstream(usize, Box<[u8]>),
    /// A call at an upstream that cannot ask by itself.
    Call(oneshot::Sender<Message>),
}

/// A question that the client has been asked for a call; given up when it is dropped.
pub struct Question {
    /// The id that the client knows it by.
    pub id: u64,
    answer: oneshot::Receiver<Message>,
    session: Arc<Session>,
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
    pub fn new(
        endpoint: Endpoint,
        initialize: &Message,
        version: HeaderValue,
        memory: &Arc<Memory>,
    ) -> Result<Self, getrandom::Error> {
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
            streams: Arc::new(Streams::new(memory)?),
            pumps: Pumps::default(),
            openings: Mutex::default(),
            log_level: Mutex::default(),
            stateless: OnceLock::new(),
            running: Mutex::default(),
            asked: Mutex::default(),
            seen: Mutex::new(Instant::now()),
            ended: watch::Sender::default(),
        })
    }

    /// The version that was agreed, as text.
    #[must_use]
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
    #[must_use]
    pub fn stateless(&self) -> &Stateless {
        self.stateless.get_or_init(|| Box::new(Stateless::new(&self.initialize)))
    }

    /// The level of the last `logging/setLevel`.
    #[must_use]
    pub fn level(&self) -> Option<String> {
        let level = lock(&self.log_level);
        let raw = weir_mcp::json::get(level.as_ref()?.params()?, &["level"])?;
        weir_mcp::json::string(raw).map(|level| level.into_owned())
    }

    /// Whether the session is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        *self.ended.borrow()
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
    ///
    /// A client need not answer what it was asked; when too much waits, the oldest question is given up.
    #[must_use]
    pub fn ask(&self, upstream: usize, request: &Message) -> Option<Bytes> {
        let mut asked = lock(&self.asked);
        let own = request.id()?.into();
        let id = asked.add(Asker::Upstream(upstream, own));
        drop(asked);
        Some(request.edit().set(Field::Id, id.to_string().as_bytes()).finish())
    }

    /// A question for a call at an upstream that cannot ask by itself.
    #[must_use]
    pub fn ask_for_call(self: &Arc<Self>) -> Question {
        let (tell, answer) = oneshot::channel();
        let id = lock(&self.asked).add(Asker::Call(tell));
        Question { id, answer, session: Arc::clone(self) }
    }

    /// Takes an answer to a question that was asked for a call; `false` if it is for somebody else.
    #[must_use]
    pub fn settle(&self, answer: &Message) -> bool {
        let Some(id) = number(answer) else { return false };
        let mut asked = lock(&self.asked);
        if !matches!(asked.waiting.get(&id), Some(Asker::Call(_))) {
            return false;
        }
        let asker = asked.waiting.remove(&id);
        drop(asked);
        if let Some(Asker::Call(tell)) = asker {
            // The call may have ended in this moment.
            drop(tell.send(answer.clone()));
        }
        true
    }

    /// Turns an upstream's cancellation of its own question into one that the client understands; none if the client
    /// was not asked, or has answered.
    #[must_use]
    pub fn withdraw(&self, upstream: usize, cancelled: &Message) -> Option<Bytes> {
        let own = cancelled.request_id()?;
        let mut asked = lock(&self.asked);
        let is_it = |asker: &Asker| matches!(asker, Asker::Upstream(place, id) if *place == upstream && **id == *own);
        let (&id, _) = asked.waiting.iter().find(|(_, asker)| is_it(asker))?;
        asked.waiting.remove(&id);
        drop(asked);
        Some(cancelled.edit().set(Field::RequestId, id.to_string().as_bytes()).finish())
    }

    /// Finds whose question a client's answer is for, and gives the answer that question's own id back.
    #[must_use]
    pub fn answered(&self, answer: &Message) -> Option<(usize, Bytes)> {
        let id = number(answer)?;
        match lock(&self.asked).waiting.remove(&id)? {
            Asker::Upstream(upstream, id) => Some((upstream, answer.edit().set(Field::Id, &id).finish())),
            Asker::Call(_) => None,
        }
    }
}

impl Asked {
    /// Adds a question and gives it an id.
    fn add(&mut self, asker: Asker) -> u64 {
        if self.waiting.len() >= MAX_ASKED {
            self.waiting.pop_first();
        }
        let id = self.next;
        self.next += 1;
        self.waiting.insert(id, asker);
        id
    }
}

impl Question {
    /// The client's answer; none if so much waits that the question was given up. Cancel-safe.
    pub async fn answer(&mut self) -> Option<Message> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        lock(&self.session.asked).waiting.remove(&self.id);
    }
}

/// An id that Weir gave.
fn number(answer: &Message) -> Option<u64> {
    std::str::from_utf8(answer.id()?).ok()?.parse().ok()
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = lock(&self.session.running);
        // A client that lost its connection may have sent the request again under the same id.
        if running.get(&self.id).is_some_and(|(_, ticket)| Arc::ptr_eq(ticket, &self.ticket)) {
            running.remove(&self.id);
        }
        drop(running);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn session() -> Session {
        let initialize = message(r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#);
        Session::new(Endpoint::All, &initialize, HeaderValue::from_static("2025-11-25"), &Memory::new(0)).unwrap()
    }

    fn question(id: &str) -> Message {
        message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#))
    }

    #[test]
    fn questions_with_equal_ids_are_answered_where_they_came_from() {
        let session = session();
        let ids = [0, 1].map(|upstream| {
            let asked = message(std::str::from_utf8(&session.ask(upstream, &question("\"q\"")).unwrap()).unwrap());
            String::from_utf8(asked.id().unwrap().to_vec()).unwrap()
        });
        assert_ne!(ids[0], ids[1]);
        for (upstream, id) in ids.iter().enumerate().rev() {
            let answer = message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
            let (place, bytes) = session.answered(&answer).unwrap();
            assert_eq!((place, &bytes[..]), (upstream, &br#"{"jsonrpc":"2.0","id":"q","result":{}}"#[..]));
            assert_eq!(session.answered(&answer), None);
        }
    }

    #[test]
    fn an_upstream_withdraws_its_own_question_and_no_other() {
        let session = session();
        session.ask(0, &question("7")).unwrap();
        session.ask(1, &question("7")).unwrap();
        let cancelled = message(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#);
        let withdrawn = session.withdraw(1, &cancelled).unwrap();
        assert_eq!(message(std::str::from_utf8(&withdrawn).unwrap()).request_id(), Some(&b"1"[..]));
        assert_eq!(session.withdraw(1, &cancelled), None);
        assert_eq!(session.withdraw(2, &cancelled), None);
    }

    #[test]
    fn questions_that_nobody_answers_do_not_stop_the_next() {
        let session = session();
        for id in 0..2 * MAX_ASKED {
            assert!(session.ask(0, &question(&id.to_string())).is_some());
        }
        assert_eq!(lock(&session.asked).waiting.len(), MAX_ASKED);
    }

    #[tokio::test]
    async fn a_question_for_a_call_is_answered_there() {
        let session = Arc::new(session());
        let (mut first, second) = (session.ask_for_call(), session.ask_for_call());
        let answer = |id: u64| message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        assert!(session.settle(&answer(first.id)) && !session.settle(&answer(first.id)));
        assert_eq!(first.answer().await.unwrap().id(), Some(first.id.to_string().as_bytes()));
        let id = second.id;
        drop(second);
        assert!(!session.settle(&answer(id)));
        let asked = session.ask(0, &question("1")).unwrap();
        let id: u64 = number(&message(std::str::from_utf8(&asked).unwrap())).unwrap();
        assert!(!session.settle(&answer(id)) && session.answered(&answer(id)).is_some());
    }
}

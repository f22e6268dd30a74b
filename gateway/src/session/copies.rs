//! Copies of sessions of other gateways, with which this one answers calls itself.
//!
//! A call passes through HTTP and TLS once more where another gateway has its session. Most calls need nothing of that
//! gateway but what is in the session's record: what the client said of itself, and the ids of its sessions at upstreams.
//! With a copy of that a gateway runs them itself. What needs more goes to the session's own gateway, before anything was
//! sent.
//!
//! The streams and the questions of a copy have numbers of their own. So the own gateway knows a client's answer or
//! cancellation that is for a copy, and passes it on to the gateways that have told it that calls run there.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use weir_mcp::{Kind, Message, method};

use crate::{
    credential::Replica,
    quota::{Permit, Quota, Reached, Shares},
    upstream::Upstream,
};

use super::{Endpoint, Session, SessionHold, stored::StoredChannel};

/// How many copies there may be, of all principals and of one.
const COPIES: Shares = Shares { total: 4096, principal: 512, upstream: usize::MAX };

/// How long a copy stays that nobody uses; longer if its client may ask for something again.
const IDLE: Duration = Duration::from_secs(30);
const KEPT: Duration = Duration::from_secs(5 * 60);

/// The first number of a question that is asked with a copy. JSON numbers are exact up to 2^53.
pub(super) const QUESTIONS: u64 = 1 << 40;

/// How many names of tools and the like are remembered of which the calls went to the session's own gateway, and the longest.
const NAMES: usize = 256;
const LONGEST_NAME: usize = 256;

/// How long a gateway is taken to run calls that it has told of. It tells again more often.
const TOLD: Duration = Duration::from_secs(90);

/// At how many gateways calls of one session may run with copies.
const GATEWAYS: usize = 64;

/// What a session knows of its copies, or a copy of its session.
#[derive(Default)]
pub(super) struct CopyState {
    is_copy: bool,
    /// Where calls of this session have run with copies, and when that was told last; never, if another gateway was told.
    gateways: Mutex<Vec<(Replica, Option<Instant>)>>,
    /// The gateway that has the session of this copy.
    owner: Mutex<Option<Arc<Replica>>>,
    /// Whether that is being told that calls run.
    tells: AtomicBool,
    /// Whether it has come from the process before, which may run calls of it yet.
    has_come_over: bool,
    /// Whether it was written for the process that takes over.
    is_handed_over: AtomicBool,
    /// What is not to be tried with this copy again.
    elsewhere: Mutex<BTreeSet<Box<str>>>,
    /// The upstreams as the record had them, from which this copy was made.
    channels: Mutex<Vec<StoredChannel>>,
}

/// The copies of this gateway, by the ids of their sessions.
pub(super) struct SessionCopies {
    copies: Mutex<HashMap<Box<[u8]>, Arc<Session>>>,
    quota: Arc<Quota>,
}

impl CopyState {
    pub(super) fn of_copy() -> Self {
        Self { is_copy: true, ..Self::default() }
    }

    /// Of a session that has come from another gateway.
    pub(super) fn with(gateways: Vec<Replica>) -> Self {
        let gateways = gateways.into_iter().map(|gateway| (gateway, None)).collect();
        Self { gateways: Mutex::new(gateways), ..Self::default() }
    }

    /// Of one that has come from the process before.
    pub(super) fn come_over(self) -> Self {
        Self { has_come_over: true, ..self }
    }
}

impl Default for SessionCopies {
    fn default() -> Self {
        Self { copies: Mutex::default(), quota: Quota::new("copies of sessions", COPIES) }
    }
}

impl SessionCopies {
    /// Room for one more copy of a session of a principal.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(super) fn permit(&self, principal: &Arc<str>) -> Result<Permit, Reached> {
        self.quota.take(principal, None)
    }

    pub(super) fn get(&self, id: &[u8]) -> Option<Arc<Session>> {
        self.copies.lock().get(id).cloned()
    }

    /// The same, which stays until the hold is dropped.
    pub(super) fn hold(&self, id: &[u8]) -> Option<SessionHold> {
        self.copies.lock().get(id).map(SessionHold::new)
    }

    /// Adds a copy; gives the one that another request has added meanwhile, if it has.
    pub(super) fn put(&self, copy: Arc<Session>) -> Arc<Session> {
        let mut copies = self.copies.lock();
        match copies.get(copy.id.as_bytes()) {
            Some(known) if known.endpoint == copy.endpoint && !known.is_over() => Arc::clone(known),
            _ => {
                copies.insert(copy.id.as_bytes().into(), Arc::clone(&copy));
                copy
            }
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.copies.lock().values().cloned().collect()
    }

    /// Drops the copies that nobody has used for a while.
    pub(super) fn expire(&self) {
        let is_over = |copy: &Session| {
            let kept = if copy.streams.has_answers() { KEPT } else { IDLE };
            copy.idle_since().is_some_and(|since| since.elapsed() >= kept)
        };
        let over: Vec<_> = self.copies.lock().extract_if(|_, copy| is_over(copy)).collect();
        over.iter().for_each(|(_, copy)| copy.end());
    }
}

impl Session {
    /// Whether it is a copy of another gateway's.
    pub const fn is_copy(&self) -> bool {
        self.copying.is_copy
    }

    /// Whether a request may run with this copy: a call that leaves nothing behind in the session.
    pub fn may_run(&self, request: &Message) -> bool {
        let is_call = matches!(request.method(), method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ);
        let is_task = || request.params().and_then(|params| weir_mcp::json::get(params, &["task"])).is_some();
        is_call && request.kind() == Kind::Request && self.streams.is_on() && !is_task() && !self.is_elsewhere(request)
    }

    fn is_elsewhere(&self, request: &Message) -> bool {
        let elsewhere = self.copying.elsewhere.lock();
        !elsewhere.is_empty() && name(request).is_some_and(|name| elsewhere.contains(&*name))
    }

    /// Notes that requests like this need the session's own gateway.
    pub fn leave_to_owner(&self, request: &Message) {
        let mut elsewhere = self.copying.elsewhere.lock();
        if elsewhere.len() < NAMES
            && let Some(name) = name(request).filter(|name| name.len() <= LONGEST_NAME)
        {
            elsewhere.insert(name.into());
        }
    }

    /// Has the session use what another gateway has opened for it at upstreams.
    pub(super) fn attach(&self, channels: &[StoredChannel], upstream: impl Fn(&str) -> Option<Arc<Upstream>>) {
        let mut known = self.copying.channels.lock();
        if *known == channels {
            return;
        }
        for channel in channels {
            if let Some((upstream, channel)) = channel.attached(&upstream) {
                self.channels.put(&upstream, channel);
            }
        }
        *known = channels.to_vec();
        self.copying.elsewhere.lock().clear();
    }

    /// The gateway that has the session of this copy.
    pub fn owner(&self) -> Option<Arc<Replica>> {
        self.copying.owner.lock().clone()
    }

    pub(super) fn set_owner(&self, owner: &Replica) {
        *self.copying.owner.lock() = Some(Arc::new(owner.clone()));
    }

    /// Notes whether that gateway is being told that calls run with this copy; whether it was.
    pub fn tells(&self, tells: bool) -> bool {
        self.copying.tells.swap(tells, Ordering::AcqRel)
    }

    /// Notes that calls of this session run with a copy at a gateway.
    pub fn runs_copied_at(&self, gateway: Replica) {
        self.touch();
        let mut gateways = self.copying.gateways.lock();
        let known = gateways.iter().position(|(known, _)| *known == gateway);
        match known {
            Some(at) => drop(gateways.remove(at)),
            None if gateways.len() >= GATEWAYS => drop(gateways.remove(0)),
            None => {}
        }
        gateways.push((gateway, Some(Instant::now())));
        drop(gateways);
        if known.is_none() {
            self.note_change();
        }
    }

    /// Where calls of this session have run with copies.
    pub fn copied_at(&self) -> Vec<Replica> {
        self.copying.gateways.lock().iter().map(|(gateway, _)| gateway.clone()).collect()
    }

    /// Whether calls of it run with copies, as far as is told.
    pub fn runs_copied(&self) -> bool {
        let gateways = self.copying.gateways.lock();
        gateways.iter().any(|(_, told)| told.is_some_and(|told| told.elapsed() < TOLD))
    }

    /// Whether a message is about something that this session does not have, and a copy of it may.
    pub fn is_for_copies(&self, message: &Message) -> bool {
        let elsewhere = |id| is_of_copy(id) || self.may_be_of_before(id);
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => message.id().is_some_and(elsewhere),
            (Kind::Notification, method::PROGRESS) => message.progress_token().is_some_and(elsewhere),
            (Kind::Notification, method::CANCELLED) => {
                message.request_id().is_some_and(|id| self.runs_at(id).is_none())
            }
            _ => false,
        }
    }

    /// Whether the process before may have asked what is called so.
    fn may_be_of_before(&self, id: &[u8]) -> bool {
        self.copying.has_come_over
            && match &self.endpoint {
                // Questions have the ids that their upstream gave them. It has one session, or one for each process.
                Endpoint::One(upstream) => self.channels.get(upstream).is_none(),
                Endpoint::Merged(_) => !self.has_asked(id),
            }
    }

    /// Whether something may have been asked here that is called so.
    fn may_have_asked(&self, id: &[u8]) -> bool {
        match &self.endpoint {
            Endpoint::One(upstream) if !self.is_copy() => self.is_busy_at(upstream),
            _ => self.has_asked(id),
        }
    }

    /// Notes that it was written for the process that takes over.
    pub(super) fn note_handed_over(&self) {
        self.copying.is_handed_over.store(true, Ordering::Relaxed);
    }

    /// Whether it was written for the process that takes over.
    pub fn is_handed_over(&self) -> bool {
        self.copying.is_handed_over.load(Ordering::Relaxed)
    }

    /// Whether it has come from the process before.
    pub const fn has_come_over(&self) -> bool {
        self.copying.has_come_over
    }

    /// Whether a message that was passed on is about something that is here.
    pub fn concerns(&self, message: &Message) -> bool {
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => message.id().is_some_and(|id| self.may_have_asked(id)),
            (Kind::Notification, method::PROGRESS) => {
                message.progress_token().is_some_and(|id| self.may_have_asked(id))
            }
            (Kind::Notification, method::CANCELLED) => {
                message.request_id().is_some_and(|id| self.runs_at(id).is_some())
            }
            _ => false,
        }
    }
}

/// What a request names, by which it is known that it needs the session's own gateway.
fn name(request: &Message) -> Option<std::borrow::Cow<'_, str>> {
    request.name().or_else(|| request.uri())
}

/// Whether the number of a question was given with a copy.
fn is_of_copy(raw: &[u8]) -> bool {
    super::questions::number(raw).is_some_and(|number| number >= QUESTIONS)
}

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
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use weir_mcp::{Kind, Message, method};

use crate::{
    credential::Replica,
    quota::{Permit, Quota, Reached, Shares},
    upstream::Upstream,
};

use super::{Session, SessionHold, stored::StoredChannel};

/// How many copies there may be, of all principals and of one.
const COPIES: Shares = Shares { total: 4096, principal: 512, upstream: usize::MAX };

/// How long a copy stays that nobody uses; longer if its client may ask for something again.
const IDLE: Duration = Duration::from_secs(30);
const KEPT: Duration = Duration::from_secs(5 * 60);

/// The first number of a question that is asked with a copy. JSON numbers are exact up to 2^53.
pub(super) const QUESTIONS: u64 = 1 << 40;

/// How many names of tools and the like are remembered of which the calls went to the session's own gateway.
const NAMES: usize = 256;

/// At how many gateways calls of one session may run with copies.
const GATEWAYS: usize = 64;

/// What a session knows of its copies, or a copy of its session.
#[derive(Default)]
pub(super) struct CopyState {
    is_copy: bool,
    /// Where calls of this session run with copies.
    gateways: Mutex<Vec<Replica>>,
    /// The gateway that was told that calls run with this copy.
    told: Mutex<Option<String>>,
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
        Self { gateways: Mutex::new(gateways), ..Self::default() }
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

    pub(super) fn put(&self, copy: &Arc<Session>) {
        self.copies.lock().insert(copy.id.as_bytes().into(), Arc::clone(copy));
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
            && let Some(name) = name(request)
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

    /// Whether the gateway of its session has yet to hear that calls run with this copy.
    pub fn is_untold(&self, owner: &Replica) -> bool {
        self.copying.told.lock().as_ref() != Some(&owner.id)
    }

    /// Notes that it has heard.
    pub fn set_told(&self, owner: &Replica) {
        *self.copying.told.lock() = Some(owner.id.clone());
    }

    /// Notes that calls of this session run with a copy at a gateway.
    pub fn runs_copied_at(&self, gateway: Replica) {
        let mut gateways = self.copying.gateways.lock();
        if gateways.len() < GATEWAYS && !gateways.contains(&gateway) {
            gateways.push(gateway);
            drop(gateways);
            self.note_change();
        }
    }

    /// Where calls of this session run with copies.
    pub fn copied_at(&self) -> Vec<Replica> {
        self.copying.gateways.lock().clone()
    }

    /// Whether a message is about something that this session does not have, and a copy of it may.
    pub fn is_for_copies(&self, message: &Message) -> bool {
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => message.id().is_some_and(is_of_copy),
            (Kind::Notification, method::PROGRESS) => message.progress_token().is_some_and(is_of_copy),
            (Kind::Notification, method::CANCELLED) => {
                message.request_id().is_some_and(|id| self.runs_at(id).is_none())
            }
            _ => false,
        }
    }

    /// Whether a message is about something that this copy has.
    pub fn concerns(&self, message: &Message) -> bool {
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => message.id().is_some_and(|id| self.has_asked(id)),
            (Kind::Notification, method::PROGRESS) => message.progress_token().is_some_and(|id| self.has_asked(id)),
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

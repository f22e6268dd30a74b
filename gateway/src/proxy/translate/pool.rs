//! The legacy sessions that modern clients share: one for each upstream, principal and set of capabilities.
//!
//! What a client can be asked decides how a legacy server treats its session, so only clients that declare the same share
//! one. What a client calls itself is no key: each of its names would cost a session. Nothing may say which call a question belongs to, so calls that may ask their client something run side by side
//! only where there are too many of them, and then what they ask may be refused. The number of sessions is bounded, in all, for
//! each principal and for each upstream; one at rest makes way for another of the same share.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinSet};
use weir_mcp::translate::Asks;

use crate::{
    config::UpstreamName,
    quota::{Permit, Quota, Reached, Scope, Shares},
    upstream::{ConnectError, Upstream},
};

use super::shared_session::SharedSession;

/// How long a session that is being opened is waited for when all are ended.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How many sessions one kind of client has at one upstream, where requests that may ask run in sessions of their own:
/// over HTTP, and over processes or streams, which cost more.
pub(super) const SIDE_BY_SIDE: [usize; 2] = [8, 4];

/// Why nothing is opened any more.
const ENDED: &str = "the gateway has ended its sessions";

/// Who may share a session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct SharedSessionKey {
    pub(super) upstream: UpstreamName,
    /// The principal that it is kept apart for.
    pub(super) whose: Option<Arc<str>>,
    /// What the client lets the upstream ask.
    pub(super) asks: Asks,
    /// Which of the sessions for such clients.
    pub(super) number: usize,
}

/// All shared sessions.
pub(in crate::proxy) struct SharedSessionPool {
    slots: Mutex<HashMap<SharedSessionKey, Arc<SharedSessionSlot>>>,
    quota: Arc<Quota>,
}

/// Sessions that were taken out of the pool.
pub(in crate::proxy) struct SharedSessions(Vec<Arc<SharedSessionSlot>>);

struct SharedSessionSlot {
    /// Whose share it is of.
    principal: Arc<str>,
    /// Its place among the sessions, until it has ended at the upstream.
    permit: Mutex<Option<Permit>>,
    session: Mutex<Option<Arc<SharedSession>>>,
    /// Held while the session is opened, so that concurrent first calls open one.
    opening: tokio::sync::Mutex<()>,
    /// Whether it has been taken out of the pool.
    over: AtomicBool,
}

impl SharedSessionPool {
    /// Room for so many sessions.
    pub(in crate::proxy) fn new(sessions: Shares) -> Self {
        Self { slots: Mutex::default(), quota: Quota::new("pooled_sessions", sessions) }
    }

    /// Allows another number of them.
    pub(in crate::proxy) fn resize(&self, sessions: Shares) {
        self.quota.resize(sessions);
    }

    /// The session for this kind of client, of the share of `principal`; opened by `open` if there is none that still
    /// carries. It is opened whatever becomes of the client, since others may wait for it and the
    /// upstream has a session by then.
    pub(super) async fn get<F>(
        &self,
        key: SharedSessionKey,
        principal: &Arc<str>,
        open: impl FnOnce() -> F,
    ) -> Result<Arc<SharedSession>, ConnectError>
    where
        F: Future<Output = Result<Arc<SharedSession>, ConnectError>> + Send + 'static,
    {
        let slot = self.slot(key, principal).map_err(ConnectError::Full)?;
        if let Some(session) = slot.get() {
            return Ok(session);
        }
        let (tell, told) = oneshot::channel();
        let opening = open();
        tokio::spawn(async move {
            let _opening = slot.opening.lock().await;
            if tell.is_closed() {
                return;
            }
            let session = match slot.get() {
                Some(session) => Ok(session),
                None => slot.fill(opening).await,
            };
            // A client that is gone needs no session.
            drop(tell.send(session));
        });
        told.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Ends the sessions that nobody used for `idle`, and forgets those that are gone.
    pub(in crate::proxy) async fn reap(&self, idle: Duration) {
        let over: Vec<Arc<SharedSessionSlot>> = {
            let mut slots = self.slots.lock();
            slots.extract_if(|_, slot| slot.rests(idle)).map(|(_, slot)| slot).collect()
        };
        close(over).await;
    }

    /// Takes out the sessions at upstreams that are not in force any more.
    pub(in crate::proxy) fn take(&self, is_gone: impl Fn(&Arc<Upstream>) -> bool) -> SharedSessions {
        let is_gone =
            |slot: &SharedSessionSlot| slot.session.lock().as_ref().is_some_and(|session| is_gone(&session.upstream));
        SharedSessions(self.slots.lock().extract_if(|_, slot| is_gone(slot)).map(|(_, slot)| slot).collect())
    }

    /// Ends all sessions.
    pub(in crate::proxy) async fn stop(&self) {
        let all = std::mem::take(&mut *self.slots.lock());
        close(all.into_values().collect()).await;
    }

    fn slot(&self, key: SharedSessionKey, principal: &Arc<str>) -> Result<Arc<SharedSessionSlot>, Reached> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&key) {
            return Ok(Arc::clone(slot));
        }
        let permit = match self.quota.take(principal, Some(key.upstream.as_str())) {
            Ok(permit) => permit,
            Err(full) => {
                let in_the_way = |other: &SharedSessionKey, slot: &SharedSessionSlot| match full.scope {
                    Scope::All => true,
                    Scope::Principal => slot.principal == *principal,
                    Scope::Upstream => other.upstream == key.upstream,
                };
                let resting = |(other, slot): &(&SharedSessionKey, &Arc<SharedSessionSlot>)| {
                    in_the_way(other, slot) && slot.rests(Duration::ZERO)
                };
                let rests = slots.iter().find(resting).map(|(key, _)| key.clone()).ok_or(full)?;
                if let (Some(slot), Ok(runtime)) = (slots.remove(&rests), tokio::runtime::Handle::try_current()) {
                    drop(slot.permit.lock().take());
                    runtime.spawn(close(vec![slot]));
                }
                self.quota.take(principal, Some(key.upstream.as_str()))?
            }
        };
        let slot = Arc::new(SharedSessionSlot {
            principal: Arc::clone(principal),
            permit: Mutex::new(Some(permit)),
            session: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            over: AtomicBool::new(false),
        });
        slots.insert(key, Arc::clone(&slot));
        Ok(slot)
    }
}

impl SharedSessions {
    /// Ends them.
    pub(in crate::proxy) async fn close(self) {
        close(self.0).await;
    }
}

impl SharedSessionSlot {
    fn get(&self) -> Option<Arc<SharedSession>> {
        self.session.lock().as_ref().filter(|session| session.alive() && !session.upstream.is_retired()).cloned()
    }

    /// Opens the session, and ends it at once if the slot is out of the pool by then.
    async fn fill(
        &self,
        opening: impl Future<Output = Result<Arc<SharedSession>, ConnectError>>,
    ) -> Result<Arc<SharedSession>, ConnectError> {
        let session = opening.await?;
        *self.session.lock() = Some(Arc::clone(&session));
        if !self.over.load(Ordering::Acquire) {
            return Ok(session);
        }
        let session = self.session.lock().take();
        if let Some(session) = session {
            session.close().await;
        }
        Err(ended())
    }

    /// Whether nobody used the session for `idle`. Whoever opens it, or is about to, holds the slot.
    fn rests(self: &Arc<Self>, idle: Duration) -> bool {
        let held = Arc::strong_count(self) > 1;
        !held && self.session.lock().as_ref().is_none_or(|session| session.idle().is_some_and(|rests| rests >= idle))
    }
}

fn ended() -> ConnectError {
    ConnectError::Outage(ENDED.into())
}

async fn close(slots: Vec<Arc<SharedSessionSlot>>) {
    let mut closing = JoinSet::new();
    for slot in slots {
        slot.over.store(true, Ordering::Release);
        closing.spawn(async move {
            // What is being opened ends itself when it is open.
            drop(tokio::time::timeout(CLOSE_LIMIT, slot.opening.lock()).await);
            let session = slot.session.lock().take();
            if let Some(session) = session {
                session.close().await;
            }
        });
    }
    closing.join_all().await;
}

//! All sessions of this process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::RwLock;

use crate::quota::{Permit, Quota, Reached, Shares};

use super::{ReplayMemory, Session, SessionHold};

/// The sessions by their ids.
pub struct Sessions {
    sessions: RwLock<HashMap<Box<[u8]>, Arc<Session>>>,
    quota: Arc<Quota>,
    idle: RwLock<Duration>,
    memory: Arc<ReplayMemory>,
}

impl Sessions {
    /// Room for so many sessions, each of which ends after being `idle` for so long; what their clients may ask for again
    /// has `replay` bytes.
    pub fn new(sessions: Shares, idle: Duration, replay: Shares) -> Self {
        Self {
            sessions: RwLock::default(),
            quota: Quota::new("sessions", sessions),
            idle: RwLock::new(idle),
            memory: ReplayMemory::new(replay),
        }
    }

    /// Room for another number of sessions, each of which ends after being `idle` for so long.
    pub fn resize(&self, sessions: Shares, idle: Duration) {
        self.quota.resize(sessions);
        *self.idle.write() = idle;
    }

    /// What the sessions' clients may ask for again.
    pub const fn memory(&self) -> &Arc<ReplayMemory> {
        &self.memory
    }

    /// What limits how many there are.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Room for one more session of a principal.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(super) fn permit(&self, principal: &Arc<str>) -> Result<Permit, Reached> {
        self.quota.take(principal, None)
    }

    /// Adds a session.
    pub fn add(&self, session: Arc<Session>) {
        let mut sessions = self.sessions.write();
        sessions.insert(session.id.as_bytes().into(), session);
    }

    /// The session with this id, if it is `meant`; using it keeps it alive.
    pub fn get(&self, id: &[u8], meant: impl Fn(&Arc<Session>) -> bool) -> Option<Arc<Session>> {
        let session = self.sessions.read().get(id).cloned()?;
        if !meant(&session) {
            return None;
        }
        session.touch();
        Some(session)
    }

    /// Whether there is a session with this id.
    pub fn has(&self, id: &[u8]) -> bool {
        self.sessions.read().contains_key(id)
    }

    /// Keeps the session with this id here, if it is, for a request that has come for it.
    pub fn hold(&self, id: &[u8]) -> Option<SessionHold> {
        // Under the lock: whoever takes it out sees the hold.
        self.sessions.read().get(id).map(SessionHold::new)
    }

    /// Takes a session out, to end it.
    pub fn remove(&self, id: &[u8]) -> Option<Arc<Session>> {
        self.sessions.write().remove(id)
    }

    /// Those whose clients were asked for a sign-in.
    pub fn waiting(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read();
        sessions.values().filter(|session| !session.awaited().is_empty()).cloned().collect()
    }

    /// Those whose clients were sent to a page for an approval.
    pub fn awaiting_approvals(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read();
        sessions.values().filter(|session| !session.awaited_approvals().is_empty()).cloned().collect()
    }

    /// Those of which the store has to hear, for they have changed or it forgets them soon.
    pub(super) fn unwritten(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read();
        sessions.values().filter(|session| session.is_unwritten()).cloned().collect()
    }

    /// How long a session stays that nobody uses.
    pub(super) fn idle(&self) -> Duration {
        *self.idle.read()
    }

    /// Takes out the sessions whose clients have been silent too long.
    pub fn expired(&self) -> Vec<Arc<Session>> {
        let idle = *self.idle.read();
        self.take_if(|session| session.idle_since().is_some_and(|since| since.elapsed() >= idle))
    }

    /// Takes out all sessions.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.take_if(|_| true)
    }

    /// How often to look for silent clients, as it is now.
    pub fn tick(&self) -> Duration {
        (*self.idle.read() / 4).clamp(Duration::from_millis(50), Duration::from_secs(60))
    }

    /// All sessions, which stay.
    pub fn list(&self) -> Vec<Arc<Session>> {
        self.sessions.read().values().cloned().collect()
    }

    /// Takes out those that are `over`.
    pub fn take_if(&self, over: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions.write();
        sessions.extract_if(|_, session| over(session)).map(|(_, session)| session).collect()
    }
}

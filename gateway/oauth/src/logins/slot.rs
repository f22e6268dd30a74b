//! What this process remembers of a login, so that most questions need no store.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::sync::watch;
use weir_flow::Backoff;
use weir_store::{Secret, Version};

use crate::{Login, TokenError};

use super::{Access, LoginError, Renewal, Timing};

/// What is known of one login in this process.
#[derive(Default)]
pub(super) struct TokenSlot(Mutex<KnownLogin>);

#[derive(Default)]
pub(super) struct KnownLogin {
    pub(super) login: Option<Arc<Login>>,
    pub(super) version: Option<Version>,
    /// When that was read.
    pub(super) read: Option<SystemTime>,
    /// Given by the server, but the disk refused it.
    pub(super) unsaved: bool,
    /// The server is left alone until then, for this reason.
    pub(super) paused: Option<(SystemTime, TokenError)>,
    /// While there is trouble.
    pub(super) backoff: Option<Backoff>,
    /// When the server last made a token.
    pub(super) made: Option<SystemTime>,
    /// When that was the one that was there already.
    pub(super) repeated: Option<SystemTime>,
    pub(super) running: Option<watch::Receiver<Option<Result<Access, LoginError>>>>,
}

/// A token that was made within this time and is refused will not get better by making another; and a server that gave
/// the one that was there has no other yet.
const JUST_MADE: Duration = Duration::from_secs(10);

impl TokenSlot {
    pub(super) fn lock(&self) -> MutexGuard<'_, KnownLogin> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownLogin {
    pub(super) fn keep(&mut self, login: Arc<Login>, version: Version, now: SystemTime) {
        self.login = Some(login);
        self.version = Some(version);
        self.read = Some(now);
        self.unsaved = false;
    }

    /// What may be sent now, read from the store a short time ago.
    pub(super) fn usable(&self, refused: Option<&Secret>, now: SystemTime, timing: &Timing) -> Option<Arc<Login>> {
        let fresh = self.read.is_some_and(|read| now.duration_since(read).is_ok_and(|age| age < timing.fresh));
        self.login.clone().filter(|login| fresh && login.is_usable(refused, now, timing.margin))
    }

    /// Whether the server has made a token a moment ago.
    pub(super) fn has_made(&self, now: SystemTime) -> bool {
        is_recent(self.made, now)
    }

    /// Whether the server has given the token that was there already, a moment ago.
    pub(super) fn has_repeated(&self, now: SystemTime) -> bool {
        is_recent(self.repeated, now)
    }

    /// Whether there is nothing to do for a login that may be sent: its end is far, or nothing can be done about it now.
    pub(super) fn is_settled(&self, login: &Login, renewal: &Renewal, now: SystemTime, timing: &Timing) -> bool {
        let stuck = matches!(renewal, Renewal::Refresh(_)) && !login.is_refreshable();
        let paused = self.paused.as_ref().is_some_and(|(until, _)| now < *until);
        !self.unsaved && (stuck || paused || self.has_repeated(now) || login.is_good(now, timing.ahead))
    }
}

fn is_recent(at: Option<SystemTime>, now: SystemTime) -> bool {
    at.is_some_and(|at| now.duration_since(at).is_ok_and(|age| age < JUST_MADE))
}

impl Login {
    /// Whether it may be sent now.
    pub(super) fn is_usable(&self, refused: Option<&Secret>, now: SystemTime, margin: Duration) -> bool {
        refused != Some(&self.access) && self.is_good(now, margin)
    }

    pub(super) fn is_refreshable(&self) -> bool {
        !self.ended && self.refresh.is_some()
    }

    pub(super) fn access(&self) -> Access {
        Access {
            token: self.access.clone(),
            origin: self.origin.clone(),
            expires: self.expires,
            scopes: self.scopes.clone(),
        }
    }
}

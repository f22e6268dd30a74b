//! Refreshing that never loses a login.
//!
//! However many calls need a credential, it is refreshed once: within the process by one task that all wait for, between
//! processes by a lease in the store. The task belongs to nobody who waits, so a call that goes away cannot tear a
//! rotation in two. What the server gave is on disk before anybody uses it, and replaces the old only there and then.
//! Trouble of the server leaves the login as it is; only its own "not any more" ends it, and nothing but a new login or
//! its owner takes it away.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use thiserror::Error;
use tokio::{sync::watch, task::JoinSet};
use weir_flow::Backoff;
use weir_store::{Clock, Secret, Store, StoreError};

use crate::{Http, Login, LoginKey, OAuthApplication, Scopes, TokenError};

pub use kept::Listing;
use renew::Renewing;
use slot::{KnownLogin, TokenSlot};
use slots::TokenSlots;

mod kept;
mod renew;
mod slot;
mod slots;

/// All logins, of all owners.
#[derive(Clone)]
pub struct Logins {
    shared: Arc<LoginsShared>,
}

struct LoginsShared {
    store: Arc<dyn Store>,
    clock: Clock,
    timing: Timing,
    slots: TokenSlots,
    /// Refreshes under way.
    tasks: Mutex<JoinSet<()>>,
}

/// How long things take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// How long before its end a token is refreshed.
    pub ahead: Duration,
    /// How long a token must be good to be sent: the way to the upstream, and clocks that differ.
    pub margin: Duration,
    /// How long one process may refresh alone. Longer than a request may take, for what it gets must be kept.
    pub lease: Duration,
    /// How long after trouble the server is left alone. Its cap also bounds what the server asks for.
    pub backoff: Backoff,
    /// How long what was read from the store counts as read: within this time a sign-out elsewhere is noticed.
    pub fresh: Duration,
}

/// A credential to use now.
#[derive(Clone, Debug)]
pub struct Access {
    /// Goes into the header.
    pub token: Secret,
    /// The only origin that may see it.
    pub origin: String,
    /// When it ends; none if nobody said.
    pub expires: Option<SystemTime>,
    /// What it may do.
    pub scopes: Scopes,
}

/// A token that will not do.
#[derive(Clone)]
struct Stale {
    token: Secret,
    /// Whether the upstream has said so, or its end is near.
    refused: bool,
}

impl Stale {
    /// Whether the upstream has refused this token.
    fn is_refused(&self, token: &Secret) -> bool {
        self.refused && self.token == *token
    }
}

/// Why there is no credential.
#[derive(Clone, Debug, Error)]
pub enum LoginError {
    /// Nobody has signed in.
    #[error("a sign-in is needed")]
    Missing,
    /// It has ended: revoked, expired, or never refreshable.
    #[error("the login has ended; sign in again")]
    Ended,
    /// A token that was made a moment ago is refused.
    #[error(
        "the upstream refuses a token that was just made for it; check the resource and the scopes, then sign in again"
    )]
    NotAccepted,
    /// The authorization server has no token for it now; the login stays.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(Arc<StoreError>),
}

/// How a credential is made anew.
#[derive(Clone)]
pub enum Renewal {
    /// With the refresh token of the sign-in. The client is from the config, where its secret may have changed since.
    Refresh(Option<OAuthApplication>),
    /// Without anybody: client credentials, exchange.
    Obtain(Arc<dyn Obtain>),
}

/// Makes a login without a user.
#[async_trait]
pub trait Obtain: Send + Sync {
    /// A new login.
    async fn obtain(&self) -> Result<Login, TokenError>;
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            ahead: Duration::from_secs(60),
            margin: Duration::from_secs(5),
            lease: Duration::from_secs(60),
            backoff: Backoff::TOKEN,
            fresh: Duration::from_secs(5),
        }
    }
}

impl LoginError {
    /// Whether a sign-in is what it takes.
    #[must_use]
    pub fn needs_sign_in(&self) -> bool {
        matches!(self, Self::Missing | Self::Ended | Self::NotAccepted)
    }

    /// Whether it is likely to pass by itself.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Token(error) if error.is_temporary())
    }
}

impl From<StoreError> for LoginError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl Logins {
    /// The logins in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Clock, timing: Timing) -> Self {
        let shared = LoginsShared { store, clock, timing, slots: TokenSlots::default(), tasks: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// A credential that is good now, refreshed if need be. `refused` is one that the upstream has just answered 401 to.
    ///
    /// While a token is good and its refresh is only due, nobody waits. May be cancelled: a refresh goes on.
    ///
    /// # Errors
    /// If there is none; [`LoginError::needs_sign_in`] says whether a sign-in helps.
    pub async fn access(
        &self,
        http: &Http,
        key: &LoginKey,
        refused: Option<&Secret>,
        renewal: &Renewal,
    ) -> Result<Access, LoginError> {
        self.other_than(http, key, refused.map(|token| Stale { token: token.clone(), refused: true }), renewal).await
    }

    /// Makes a login anew whose token `token` is, because its end is near or it allows too little; another one that is there
    /// already will do, and so will the same once more, if that is what the server gives.
    ///
    /// # Errors
    /// As [`access`](Self::access).
    pub async fn renew(
        &self,
        http: &Http,
        key: &LoginKey,
        token: &Secret,
        renewal: &Renewal,
    ) -> Result<Access, LoginError> {
        let stale = Stale { token: token.clone(), refused: false };
        self.other_than(http, key, Some(stale), renewal).await
    }

    async fn other_than(
        &self,
        http: &Http,
        key: &LoginKey,
        stale: Option<Stale>,
        renewal: &Renewal,
    ) -> Result<Access, LoginError> {
        let refused = stale.as_ref().map(|stale| &stale.token);
        let slot = self.slot(key);
        loop {
            let now = self.shared.clock.now();
            let (good, (mut running, own)) = {
                let mut known = slot.lock();
                let good = known.usable(refused, now, &self.shared.timing);
                if let Some(login) = &good
                    && known.is_settled(login, renewal, now, &self.shared.timing)
                {
                    return Ok(login.access());
                }
                (good, self.start(&mut known, &slot, http, key, stale.as_ref(), renewal))
            };
            if let Some(login) = good {
                return Ok(login.access());
            }
            let outcome = match running.wait_for(Option::is_some).await {
                Ok(outcome) => (*outcome).clone().unwrap_or(Err(LoginError::Missing)),
                // The task is gone without a word, as when the program ends.
                Err(_) => return Err(interrupted()),
            };
            match outcome {
                Ok(access) if refused == Some(&access.token) => {
                    // Else it was begun for somebody who did not know yet that this token will not do.
                    if own {
                        return self.repeated(access, stale.as_ref());
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// What it means that the server gives the token that there was.
    fn repeated(&self, access: Access, stale: Option<&Stale>) -> Result<Access, LoginError> {
        /// What is left of less is over before it can be sent.
        const LEAST: Duration = Duration::from_secs(2);
        if stale.is_some_and(|stale| stale.is_refused(&access.token)) {
            return Err(LoginError::NotAccepted);
        }
        let until = self.shared.clock.now().checked_add(LEAST);
        if access.expires.is_some_and(|end| until.is_none_or(|until| end <= until)) {
            let reason = "it gives the token that there is until that has ended".to_owned();
            return Err(TokenError::Temporary { reason, retry_after: Some(LEAST) }.into());
        }
        Ok(access)
    }

    /// Waits for all refreshes under way. To be called before the program ends, for what a server gives is only safe
    /// when it is kept.
    pub async fn close(&self) {
        let mut tasks = std::mem::take(&mut *self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
    }

    fn slot(&self, key: &LoginKey) -> Arc<TokenSlot> {
        self.shared.slots.of(key, self.shared.clock.now())
    }

    /// The task that is at it, started if there is none; and whether it was.
    fn start(
        &self,
        known: &mut KnownLogin,
        slot: &Arc<TokenSlot>,
        http: &Http,
        key: &LoginKey,
        stale: Option<&Stale>,
        renewal: &Renewal,
    ) -> (watch::Receiver<Option<Result<Access, LoginError>>>, bool) {
        if let Some(running) = &known.running
            && running.borrow().is_none()
            && running.has_changed().is_ok()
        {
            return (running.clone(), false);
        }
        let (done, running) = watch::channel(None);
        known.running = Some(running.clone());
        let renewing = Renewing {
            shared: Arc::clone(&self.shared),
            slot: Arc::clone(slot),
            http: http.clone(),
            key: key.clone(),
            stale: stale.cloned(),
            renewal: renewal.clone(),
        };
        let mut tasks = self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let outcome = renewing.run().await;
            done.send_replace(Some(outcome));
        });
        (running, true)
    }
}

fn interrupted() -> LoginError {
    TokenError::Temporary { reason: "the refresh was interrupted".to_owned(), retry_after: None }.into()
}

#[cfg(test)]
mod tests;

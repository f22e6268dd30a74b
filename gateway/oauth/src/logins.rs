//! Logins in the store, and their renewal, which never loses one.
//!
//! Tokens are in the store alone: whoever places one in a header keeps that header for as long as it holds. In memory is
//! only what the store cannot tell: which renewal is under way, when the server is to be asked again, and what the disk
//! has refused ([`slot`]).
//!
//! However many calls need a credential, it is renewed once: within the process by one task that all wait for, between
//! processes by a lease in the store. The task belongs to nobody who waits, so a call that goes away cannot tear a
//! rotation in two. What the server gave is on disk before anybody uses it, and replaces the old only there and then.
//! Trouble of the server leaves the login as it is; only its own "not any more" ends it, and nothing but a new login or
//! its owner takes it away.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::{sync::watch, task::JoinSet};
use weir_store::{Clock, Secret, Store, StoreError};

use crate::{Http, Login, LoginKey, OAuthApplication, TokenError};

pub use kept::RenameError;

use renew::Renewing;
use slot::{RenewalSlot, RenewalSlots};

mod kept;
mod renew;
mod slot;

/// All logins, of all owners.
#[derive(Clone)]
pub struct Logins {
    shared: Arc<LoginsShared>,
}

struct LoginsShared {
    store: Arc<dyn Store>,
    clock: Clock,
    /// How long one process may renew alone.
    lease: Duration,
    slots: RenewalSlots,
    /// Renewals under way.
    tasks: Mutex<JoinSet<()>>,
}

/// What everybody who waits for a renewal is told.
type Outcome = Result<Arc<Login>, LoginError>;

/// Longer than a request may take, for what it gets must be kept.
const LEASE: Duration = Duration::from_secs(60);

/// A token that will not do.
#[derive(Clone, Debug)]
pub struct Stale {
    /// Another one that is there will do.
    pub token: Secret,
    /// Whether the upstream has answered 401 to it. Else its end is near, or it allows too little; the same once more will
    /// then do, if that is what the server gives.
    pub refused: bool,
}

/// Why there is no credential.
#[derive(Clone, Debug, Error)]
pub enum LoginError {
    #[error("a sign-in is needed")]
    Missing,
    #[error("the login has ended; sign in again")]
    Ended,
    #[error(
        "the upstream refuses a token that was just made for it; check the resource and the scopes, then sign in again"
    )]
    NotAccepted,
    #[error(transparent)]
    Token(#[from] TokenError),
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
    async fn obtain(&self) -> Result<Login, TokenError>;
}

impl From<StoreError> for LoginError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl Logins {
    /// The logins in `store`.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self::with_lease(store, clock, LEASE)
    }

    fn with_lease(store: Arc<dyn Store>, clock: Clock, lease: Duration) -> Self {
        let (slots, tasks) = (RenewalSlots::default(), Mutex::default());
        Self { shared: Arc::new(LoginsShared { store, clock, lease, slots, tasks }) }
    }

    /// A login whose token is good now and is not the `stale` one, renewed if need be.
    ///
    /// A good token waits for no renewal. May be cancelled: a renewal goes on.
    ///
    /// # Errors
    /// If there is none.
    pub async fn access(
        &self,
        http: &Http,
        key: &LoginKey,
        stale: Option<&Stale>,
        renewal: &Renewal,
    ) -> Result<Arc<Login>, LoginError> {
        let slot = self.shared.slots.of(key, self.shared.clock.now());
        let renewing = Renewing {
            shared: Arc::clone(&self.shared),
            slot: Arc::clone(&slot),
            http: http.clone(),
            key: key.clone(),
            stale: stale.cloned(),
            renewal: renewal.clone(),
        };
        loop {
            let found = renewing.read().await?;
            if let Some(settled) = renewing.settled(&found) {
                return settled;
            }
            let (mut running, own) = self.start(&slot, &renewing);
            let outcome = match running.wait_for(Option::is_some).await {
                Ok(outcome) => (*outcome).clone().unwrap_or(Err(LoginError::Missing)),
                // The task is gone without a word, as when the program ends.
                Err(_) => return Err(interrupted()),
            };
            match outcome {
                Ok(login) if stale.is_some_and(|stale| stale.token == login.access) => {
                    // Else it was begun for somebody who did not know yet that this token will not do.
                    if own {
                        return self.repeated(login, stale);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// What it means that the server gives the token that there was.
    fn repeated(&self, login: Arc<Login>, stale: Option<&Stale>) -> Outcome {
        /// What is left of less is over before it can be sent.
        const LEAST: Duration = Duration::from_secs(2);
        if stale.is_some_and(|stale| stale.refused) {
            return Err(LoginError::NotAccepted);
        }
        if !login.is_good(self.shared.clock.now(), LEAST) {
            let reason = "it gives the token that there is until that has ended".to_owned();
            return Err(TokenError::Temporary { reason, retry_after: Some(LEAST) }.into());
        }
        Ok(login)
    }

    /// Waits for all renewals under way. To be called before the program ends, for what a server gives is only safe
    /// when it is kept.
    pub async fn close(&self) {
        let mut tasks = std::mem::take(&mut *self.shared.tasks.lock());
        while tasks.join_next().await.is_some() {}
    }

    /// The task that is at it, started if there is none; and whether it was.
    fn start(&self, slot: &RenewalSlot, renewing: &Renewing) -> (watch::Receiver<Option<Outcome>>, bool) {
        let mut state = slot.lock();
        if let Some(running) = &state.running
            && running.borrow().is_none()
            && running.has_changed().is_ok()
        {
            return (running.clone(), false);
        }
        let (done, running) = watch::channel(None);
        state.running = Some(running.clone());
        drop(state);
        let renewing = renewing.clone();
        let mut tasks = self.shared.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            done.send_replace(Some(renewing.run().await));
        });
        (running, true)
    }
}

fn interrupted() -> LoginError {
    TokenError::Temporary { reason: "the renewal was interrupted".to_owned(), retry_after: None }.into()
}

#[cfg(test)]
mod tests;

//! What is kept: saved by those who sign in, found again, and forgotten by those who sign out.
//!
//! An owner has one login at an upstream. Where that has moved to another issuer, the login there takes the place of the
//! one before, whose token is of no use any more.

use std::time::Duration;

use thiserror::Error;
use weir_store::{Key, StoreError};

use crate::{CredentialOwner, Http, Login, LoginKey, LoginSummary, TokenError};

use super::{
    Logins,
    slot::{RenewalState, StoredLogin},
};

/// Why logins stay under the name that they have.
#[derive(Debug, Error)]
pub enum RenameError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another process is at it.
    #[error("a login is being renewed at this moment; try again")]
    Busy,
}

impl Logins {
    /// Makes sure that a login can be kept, before somebody takes the trouble to sign in.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn check(&self) -> Result<(), StoreError> {
        let store = &self.shared.store;
        match store.lease(&Key::new("check", &[]), Duration::from_secs(1)).await? {
            Some(lease) => store.release(lease).await,
            // Somebody else has just written.
            None => Ok(()),
        }
    }

    /// Keeps a login, in place of one that was there, of this issuer or another. Called only when a sign-in has ended well.
    ///
    /// # Errors
    /// If the store cannot be written; what was there is then still there.
    pub async fn save(&self, key: &LoginKey, login: &Login) -> Result<(), StoreError> {
        self.shared.store.put(&key.place(), &login.value(), None).await?;
        {
            self.shared.slots.unsaved.lock().remove(key);
            let slot = self.shared.slots.of(key, self.shared.clock.now());
            let mut state = slot.lock();
            *state = RenewalState { running: state.running.take(), made: state.made.take(), ..RenewalState::default() };
        }
        if let Err(error) = self.supersede(key, &login.origin).await {
            tracing::warn!(upstream = key.upstream, %error, "the login before is still kept");
        }
        Ok(())
    }

    /// What is kept under this key, as it is.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn get(&self, key: &LoginKey) -> Result<Option<Login>, StoreError> {
        Ok(self.shared.store.get(&key.place()).await?.and_then(|entry| Login::from_value(&entry.value)))
    }

    /// Forgets all logins of an owner at an upstream, and has their servers forget them: those for `origin`, or all if none
    /// is given. Says whether there was one, and what was said to it: the first word that is no yes.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub async fn forget(
        &self,
        http: &Http,
        upstream: &str,
        owner: &CredentialOwner,
        origin: Option<&str>,
    ) -> Result<Option<Result<(), TokenError>>, StoreError> {
        let listed = self.list(&[LoginKey::range(Some(upstream), Some(owner))]).await?;
        let mut forgotten = Vec::new();
        // Here first: a server may be slow, or gone.
        for login in listed.into_iter().filter(|login| origin.is_none_or(|origin| login.origin == origin)) {
            let kept = self.get(&login.key).await;
            self.remove(&login.key).await?;
            forgotten.push(kept);
        }
        let mut said = None;
        for login in forgotten {
            let Some(login) = login? else { continue };
            let answer = login.revoke(http, &self.shared.clock).await;
            said = Some(said.unwrap_or(Ok(())).and(answer));
        }
        Ok(said)
    }

    /// Moves the logins for `origin` at an upstream to its new name, those of all owners; gives how many there were. Each is
    /// moved while nobody renews it: a token that is renewed meanwhile would be lost.
    ///
    /// # Errors
    /// If the store cannot be used; or a login is being renewed, and is left where it is.
    pub async fn rename(&self, upstream: &str, new: &str, origin: &str) -> Result<usize, RenameError> {
        let listed = self.list(&[LoginKey::range(Some(upstream), None)]).await?;
        let mut moved = 0;
        for login in listed.into_iter().filter(|login| login.origin == origin) {
            let key = LoginKey { upstream: new.to_owned(), ..login.key.clone() };
            let lease = self.shared.store.lease(&login.key.lease(), self.shared.lease).await?;
            let lease = lease.ok_or(RenameError::Busy)?;
            if let Some(entry) = self.shared.store.get(&login.key.place()).await? {
                self.shared.store.put(&key.place(), &entry.value, None).await?;
                self.supersede(&key, origin).await?;
                self.remove(&login.key).await?;
                moved += 1;
            }
            self.shared.store.release(lease).await?;
        }
        Ok(moved)
    }

    /// Drops what the owner of a login for `origin` has of other issuers at the same upstream. Another configuration may have
    /// an upstream elsewhere under the same name, and its logins here too.
    ///
    /// # Errors
    /// If the store cannot be used. The login counts all the same, for it is the latest.
    pub async fn supersede(&self, key: &LoginKey, origin: &str) -> Result<(), StoreError> {
        let listed = self.list(&[LoginKey::range(Some(&key.upstream), Some(&key.owner))]).await?;
        for login in listed.into_iter().filter(|login| login.origin == origin && login.key != *key) {
            self.remove(&login.key).await?;
        }
        Ok(())
    }

    /// The logins in these [ranges](LoginKey::range), without their secrets; those that the disk has refused as they are in
    /// memory.
    ///
    /// # Errors
    /// If the store cannot be read, and what it has refused is not enough to tell.
    pub async fn list(&self, ranges: &[Key]) -> Result<Vec<LoginSummary>, StoreError> {
        let mut unsaved = Vec::new();
        for (key, StoredLogin { login, version }) in self.shared.slots.unsaved.lock().iter() {
            let both = login.as_ref().zip(*version);
            unsaved.extend(both.map(|(login, version)| LoginSummary::of(key.clone(), login, version)));
        }
        unsaved.retain(|login| ranges.iter().any(|range| login.key.place().is_below(range)));
        let is_unsaved = |range: &Key| unsaved.iter().any(|login| login.key.place().is_below(range));
        let listed = match self.shared.store.list(ranges).await {
            Err(_) if !unsaved.is_empty() && ranges.iter().all(is_unsaved) => Vec::new(),
            listed => listed?,
        };
        let mut all: Vec<LoginSummary> = listed.iter().filter_map(LoginSummary::from_listed).collect();
        for login in unsaved {
            match all.iter_mut().find(|listed| listed.key == login.key) {
                Some(listed) if listed.version > login.version => {}
                Some(listed) => *listed = login,
                None => all.push(login),
            }
        }
        Ok(all)
    }

    async fn remove(&self, key: &LoginKey) -> Result<(), StoreError> {
        self.shared.store.delete(&key.place()).await?;
        self.shared.slots.unsaved.lock().remove(key);
        *self.shared.slots.of(key, self.shared.clock.now()).lock() = RenewalState::default();
        Ok(())
    }
}

//! What is kept: saved by those who sign in, found again, and forgotten by those who sign out.
//!
//! An owner has one login at an upstream. Where that has moved to another issuer, the login there takes the place of the
//! one before, whose token is of no use any more.

use std::{sync::Arc, time::Duration};

use weir_store::{Key, StoreError, Version};

use crate::{
    CredentialOwner, Http, Login, LoginKey, LoginSummary, Revoked, TokenError, revoke::revoke, token::TokenEndpoint,
};

use super::{KnownLogin, Logins};

/// Logins at one moment, without their secrets.
#[derive(Debug)]
pub struct Listing {
    listed: Result<Vec<LoginSummary>, Arc<StoreError>>,
    /// Those that the disk has refused.
    unsaved: Vec<LoginSummary>,
}

impl Logins {
    /// Says that the store has this writing of a login now: if another one is remembered here, it is read anew.
    pub fn seen(&self, key: &LoginKey, version: Version) {
        let slot = self.slot(key);
        let mut known = slot.lock();
        if known.version != Some(version) && !known.unsaved {
            known.read = None;
        }
    }

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
        let version = self.shared.store.put(&key.place(), &login.value(), None).await?;
        {
            let slot = self.slot(key);
            let mut known = slot.lock();
            *known = KnownLogin { running: known.running.take(), made: known.made, ..KnownLogin::default() };
            known.keep(Arc::new(login.clone()), version, self.shared.clock.now());
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
        let mut forgotten = Vec::new();
        let listed = self.list(&[LoginKey::range(Some(upstream), Some(owner))]).await?;
        // Here first: a server may be slow, or gone.
        for login in listed.into_iter().filter(|login| origin.is_none_or(|origin| login.origin == origin)) {
            let kept = self.get(&login.key).await;
            self.remove(&login.key).await?;
            forgotten.push(kept);
        }
        let mut said = None;
        for login in forgotten {
            let Some(login) = login? else { continue };
            let endpoint = TokenEndpoint {
                server: &login.server,
                client: &login.client,
                resource: None,
                clock: &self.shared.clock,
            };
            let (token, kind) = match &login.refresh {
                Some(token) => (token, Revoked::Refresh),
                None => (&login.access, Revoked::Access),
            };
            let answer = revoke(http, &endpoint, token, kind).await;
            said = Some(said.unwrap_or(Ok(())).and(answer));
        }
        Ok(said)
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

    /// The logins in these [ranges](LoginKey::range), without their secrets.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list(&self, ranges: &[Key]) -> Result<Vec<LoginSummary>, StoreError> {
        Ok(self.shared.store.list(ranges).await?.iter().filter_map(LoginSummary::from_listed).collect())
    }

    /// The logins in these ranges as they are now, those that the disk has refused included.
    pub async fn listing(&self, ranges: &[Key]) -> Listing {
        let listed = self.list(ranges).await.map_err(Arc::new);
        let unsaved = self.shared.slots.each(|key, known| {
            let (login, version) = (known.login.as_ref().filter(|_| known.unsaved)?, known.version?);
            Some(LoginSummary::of(key, login, version))
        });
        Listing { listed, unsaved }
    }

    async fn remove(&self, key: &LoginKey) -> Result<(), StoreError> {
        self.shared.store.delete(&key.place()).await?;
        *self.slot(key).lock() = KnownLogin::default();
        Ok(())
    }
}

impl Listing {
    /// What a store has listed.
    #[must_use]
    pub const fn of(listed: Result<Vec<LoginSummary>, Arc<StoreError>>) -> Self {
        Self { listed, unsaved: Vec::new() }
    }

    /// The latest login of an owner at an upstream that fits, of whatever issuer, even if it has ended: whoever had signed
    /// in elsewhere before that had left it.
    ///
    /// # Errors
    /// If the store could not be read, and there is none that it has refused.
    pub fn latest(
        &self,
        upstream: &str,
        owner: &CredentialOwner,
        fits: impl Fn(&LoginSummary) -> bool,
    ) -> Result<Option<LoginSummary>, Arc<StoreError>> {
        let wanted = |login: &&LoginSummary| is_theirs(login, upstream, owner) && fits(login);
        let mut unsaved = self.unsaved.iter().filter(wanted).peekable();
        let listed = match &self.listed {
            Err(_) if unsaved.peek().is_some() => &[][..],
            listed => listed.as_ref().map_err(Arc::clone)?.as_slice(),
        };
        // One that is not saved has the version of that whose place it takes, and the last of two counts.
        Ok(listed.iter().filter(wanted).chain(unsaved).max_by_key(|login| login.version).cloned())
    }
}

fn is_theirs(login: &LoginSummary, upstream: &str, owner: &CredentialOwner) -> bool {
    login.key.upstream == upstream && login.key.owner == *owner
}

//! The scopes that an upstream has asked for beside those of a login, kept in the store until somebody signs in for them:
//! whoever does that at a terminal is another process than the one that was refused.

use std::time::Duration;

use weir_oauth::{CredentialOwner, LoginKey, Prepared, Scopes};
use weir_store::{Key, Store, StoreError, Value};
use zeroize::Zeroizing;

use super::{TokenStoreError, UpstreamAuth};

/// The namespace of scopes that are wanted.
const NAMESPACE: &str = "wanted";

/// For how long nobody signing in is waited for: the upstream says it again.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The most that is kept for one login, in bytes: an upstream writes it.
const LONGEST: usize = 4096;

impl UpstreamAuth {
    /// Keeps what an upstream wants of an owner's login, if it is not kept already. That this fails harms nobody: who signs
    /// in is asked again.
    pub(super) async fn keep_wanted(&self, owner: &CredentialOwner, scopes: &[String]) {
        let text = scopes.join(" ");
        let Some(opened) = self.token_store.opened.get().filter(|_| !text.is_empty() && text.len() <= LONGEST) else {
            return;
        };
        let kept = async {
            let Some(stored) = self.stored(owner).await? else { return Ok(()) };
            let (store, key) = (opened.store.as_ref(), stored.key.key(NAMESPACE));
            if get(store, &key).await?.as_deref() != Some(&text) {
                store.put(&key, &Value { about: text, secret: Zeroizing::default() }, Some(KEPT)).await?;
            }
            Ok::<_, TokenStoreError>(())
        };
        if let Err(why) = kept.await {
            tracing::debug!(upstream = self.name, error = %why, "the scopes that are wanted are not kept");
        }
    }

    /// What is kept of that for a sign-in at this server.
    pub(super) async fn kept_wanted(
        &self,
        owner: &CredentialOwner,
        prepared: &Prepared,
    ) -> Result<Scopes, TokenStoreError> {
        let opened = self.token_store.open().await?;
        let kept = get(opened.store.as_ref(), &prepared.key(owner.clone()).key(NAMESPACE)).await?;
        Ok(Scopes::parse(&kept.unwrap_or_default()))
    }

    /// Somebody has signed in: nothing is wanted any more.
    pub(super) async fn forget_wanted(&self, key: &LoginKey) -> Result<(), TokenStoreError> {
        self.token_store.open().await?.store.delete(&key.key(NAMESPACE)).await?;
        Ok(())
    }
}

async fn get(store: &dyn Store, key: &Key) -> Result<Option<String>, StoreError> {
    Ok(store.get(key).await?.map(|entry| entry.value.about))
}

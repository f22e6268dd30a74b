//! Registrations in the store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_store::{Clock, Key, Secret, Store, StoreError, Value};
use zeroize::Zeroizing;

use crate::{ClientAuth, OAuthApplication, ServerMetadata};

use super::Registration;

/// The namespace of registrations.
const NAMESPACE: &str = "client";

/// What a server has registered, in the encrypted part of the store.
#[derive(Deserialize, Serialize)]
pub(super) struct StoredRegistration {
    pub(super) id: String,
    pub(super) method: String,
    pub(super) secret: Option<String>,
}

/// What anybody may read of it.
#[derive(Deserialize, Serialize)]
struct RegistrationRecord {
    issuer: String,
    client_id: String,
    /// When it was made, in milliseconds since 1970.
    #[serde(default)]
    made: u64,
}

impl StoredRegistration {
    pub(super) async fn get(
        store: &dyn Store,
        server: &ServerMetadata,
        wanted: &Registration,
    ) -> Result<Option<Self>, StoreError> {
        let entry = store.get(&key(server, wanted)).await?;
        Ok(entry.and_then(|entry| serde_json::from_slice(&entry.value.secret).ok()))
    }

    pub(super) async fn put(
        &self,
        store: &dyn Store,
        clock: &Clock,
        server: &ServerMetadata,
        wanted: &Registration,
        lifetime: Option<Duration>,
    ) -> Result<(), StoreError> {
        let about =
            RegistrationRecord { issuer: server.issuer.clone(), client_id: self.id.clone(), made: clock.millis() };
        let value = Value {
            about: serde_json::to_string(&about).unwrap_or_default(),
            secret: Zeroizing::new(serde_json::to_vec(self).unwrap_or_default()),
        };
        store.put(&key(server, wanted), &value, lifetime).await?;
        Ok(())
    }

    pub(super) fn into_client(self) -> OAuthApplication {
        let auth = match (self.secret.map(Secret::new), self.method.as_str()) {
            (None, _) | (_, "none") => ClientAuth::None,
            (Some(secret), "client_secret_post") => ClientAuth::Post(secret),
            (Some(secret), _) => ClientAuth::Basic(secret),
        };
        OAuthApplication { id: self.id, auth }
    }
}

/// Forgets that `issuer` has registered the client `id`, so that it is done again: the issuer may have forgotten it too.
/// With `before`, only if that was before then. Says whether there was such a registration.
///
/// # Errors
/// If the store cannot be read or written.
pub async fn forget(store: &dyn Store, issuer: &str, id: &str, before: Option<SystemTime>) -> Result<bool, StoreError> {
    let is_meant = |about: &RegistrationRecord| {
        about.issuer == issuer && about.client_id == id && before.is_none_or(|before| about.made < millis(before))
    };
    let mut forgotten = false;
    for listed in store.list(&[Key::new(NAMESPACE, &[issuer])]).await? {
        if serde_json::from_str(&listed.about).is_ok_and(|about| is_meant(&about)) {
            forgotten |= store.delete(&listed.key).await?;
        }
    }
    Ok(forgotten)
}

/// Whether `issuer` registered the client `id`, and that before `now`.
pub(super) async fn was_made(store: &dyn Store, issuer: &str, id: &str, now: SystemTime) -> Result<bool, StoreError> {
    let is_meant =
        |about: RegistrationRecord| about.issuer == issuer && about.client_id == id && about.made < millis(now);
    let all = store.list(&[Key::new(NAMESPACE, &[issuer])]).await?;
    Ok(all.iter().any(|listed| serde_json::from_str(&listed.about).is_ok_and(is_meant)))
}

/// A registration for one grant is none for another: servers refuse a client what it has not registered for.
fn key(server: &ServerMetadata, wanted: &Registration) -> Key {
    let mut parts = vec![server.issuer.as_str()];
    parts.extend(wanted.grants.iter().copied());
    let redirect = wanted.redirect_for(server);
    parts.extend(redirect.as_deref());
    Key::new(NAMESPACE, &parts)
}

fn millis(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

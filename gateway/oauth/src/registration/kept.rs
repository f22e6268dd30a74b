//! Registrations in the store.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use weir_store::{Clock, Key, Store, StoreError, Value};
use zeroize::Zeroizing;

use crate::{OAuthApplication, ServerMetadata, client::ClientRecord, login::millis};

use super::Registration;

const NAMESPACE: &str = "client";

/// What anybody may read of it.
#[derive(Deserialize, Serialize)]
struct RegistrationRecord {
    issuer: String,
    client_id: String,
    /// When it was made, in milliseconds since 1970.
    #[serde(default)]
    made: u64,
}

/// Who Weir is to `server`, if that has registered it.
pub(super) async fn get(
    store: &dyn Store,
    server: &ServerMetadata,
    wanted: &Registration,
) -> Result<Option<OAuthApplication>, StoreError> {
    let entry = store.get(&key(server, wanted)).await?;
    let record = entry.and_then(|entry| serde_json::from_slice::<ClientRecord>(&entry.value.secret).ok());
    Ok(record.map(ClientRecord::into_client))
}

pub(super) async fn put(
    store: &dyn Store,
    clock: &Clock,
    server: &ServerMetadata,
    wanted: &Registration,
    client: &OAuthApplication,
    lifetime: Option<Duration>,
) -> Result<(), StoreError> {
    let about =
        RegistrationRecord { issuer: server.issuer.clone(), client_id: client.id.clone(), made: clock.millis() };
    let value = Value {
        about: serde_json::to_string(&about).unwrap_or_default(),
        secret: Zeroizing::new(serde_json::to_vec(&ClientRecord::from(client)).unwrap_or_default()),
    };
    store.put(&key(server, wanted), &value, lifetime).await?;
    Ok(())
}

/// Forgets that `issuer` has registered the client `id`, so that it is done again: the issuer may have forgotten it too.
/// With `before`, only if that was before then. Says whether there was such a registration.
///
/// # Errors
/// If the store cannot be read or written.
pub async fn forget(store: &dyn Store, issuer: &str, id: &str, before: Option<SystemTime>) -> Result<bool, StoreError> {
    let mut forgotten = false;
    for key in registered(store, issuer, id, before).await? {
        forgotten |= store.delete(&key).await?;
    }
    Ok(forgotten)
}

/// Where the registrations of the client `id` are that `issuer` made, only those of before then if that is given.
pub(super) async fn registered(
    store: &dyn Store,
    issuer: &str,
    id: &str,
    before: Option<SystemTime>,
) -> Result<Vec<Key>, StoreError> {
    let is_meant = |about: RegistrationRecord| {
        about.issuer == issuer && about.client_id == id && before.is_none_or(|before| about.made < millis(before))
    };
    let mut all = store.list(&[Key::new(NAMESPACE, &[issuer])]).await?;
    all.retain(|listed| serde_json::from_str(&listed.about).is_ok_and(is_meant));
    Ok(all.into_iter().map(|listed| listed.key).collect())
}

/// A registration for one grant is none for another: servers refuse a client what it has not registered for.
fn key(server: &ServerMetadata, wanted: &Registration) -> Key {
    let mut parts = vec![server.issuer.as_str()];
    parts.extend(wanted.grants.iter().copied());
    let redirect = wanted.redirect_for(server);
    parts.extend(redirect.as_deref());
    Key::new(NAMESPACE, &parts)
}

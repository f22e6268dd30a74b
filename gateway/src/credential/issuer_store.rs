//! What Weir keeps as an authorization server: the keys that sign its tokens, the key that
//! seals registrations, and what was used once. What people let clients have is in `client_grants`.
//!
//! A key signs for thirty days and is published for two days more, so that no token outlives its key. A new key is
//! published before it signs: other processes at the same store have read it by then. Each key has one successor, and
//! whoever writes that first makes it.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ring::digest::{SHA256, digest};
use serde_json::Value as Json;
use weir_oauth::issue::SigningKey;
use weir_store::{Key, Swap, Value};
use zeroize::Zeroizing;

use super::{CredentialManager, TokenStoreError, token_store::TokenStore};

/// For how long a key signs.
const SIGNS: Duration = Duration::from_secs(30 * 24 * 3600);
/// For how long it is published after that: longer than any token is good for.
const OVERLAP: Duration = Duration::from_secs(2 * 24 * 3600);
/// For how long a new key is published before it signs.
const PUBLISHED_FIRST: Duration = Duration::from_secs(300);
/// How often the store is read. Less than [`PUBLISHED_FIRST`].
const REREAD: Duration = Duration::from_secs(60);
/// The same where that has failed: the keys that are known are good for days.
const REREAD_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The namespaces of the store.
const KEYS: &str = "signing-key";
const USED: &str = "used-assertion";

/// What is kept.
pub struct IssuerStore {
    pub(super) token_store: Arc<TokenStore>,
    /// What was read, and until when it is not read again.
    keys: parking_lot::Mutex<Option<(Instant, Arc<IssuerKeys>)>>,
    reading: tokio::sync::Mutex<()>,
}

/// The keys of this time.
pub struct IssuerKeys {
    /// Which signs.
    pub signing: SigningKey,
    /// The public halves of all (RFC 7517).
    pub public: Vec<Json>,
}

/// Why Weir can issue no token now.
#[derive(Debug, thiserror::Error)]
pub enum IssuerStoreError {
    #[error("the system has no randomness to give")]
    NoRandomness,
    #[error(transparent)]
    Store(#[from] TokenStoreError),
}

impl CredentialManager {
    /// What Weir keeps as an authorization server. Opens nothing.
    #[must_use]
    pub fn issuer_store(&self) -> IssuerStore {
        IssuerStore::new(Arc::clone(&self.token_store))
    }
}

impl IssuerStore {
    /// One that a test makes, with the time that it says.
    #[cfg(test)]
    pub(super) fn in_memory(clock: weir_store::Clock) -> Self {
        Self::new(Arc::new(TokenStore::in_memory(clock)))
    }

    fn new(token_store: Arc<TokenStore>) -> Self {
        Self { token_store, keys: parking_lot::Mutex::default(), reading: tokio::sync::Mutex::default() }
    }

    /// The keys, read again after a while, with a new one when it is time. Those that are known do as long as the store is
    /// away.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn keys(&self) -> Result<Arc<IssuerKeys>, IssuerStoreError> {
        let known = self.keys.lock().clone();
        let fresh = |known: &(Instant, Arc<IssuerKeys>)| Instant::now() < known.0;
        if let Some((_, keys)) = known.as_ref().filter(|known| fresh(known)) {
            return Ok(Arc::clone(keys));
        }
        let _reading = match (self.reading.try_lock(), known) {
            (Ok(reading), _) => reading,
            (Err(_), Some((_, keys))) => return Ok(keys),
            (Err(_), None) => self.reading.lock().await,
        };
        let known = self.keys.lock().clone();
        if let Some((_, keys)) = known.as_ref().filter(|known| fresh(known)) {
            return Ok(Arc::clone(keys));
        }
        let (keys, pause) = match (self.read_keys().await, known) {
            (Ok(keys), _) => (Arc::new(keys), REREAD),
            (Err(IssuerStoreError::Store(why)), Some((_, keys))) if why.is_away() => (keys, REREAD_AFTER_FAILURE),
            (Err(why), _) => return Err(why),
        };
        *self.keys.lock() = Some((Instant::now() + pause, Arc::clone(&keys)));
        Ok(keys)
    }

    async fn read_keys(&self) -> Result<IssuerKeys, IssuerStoreError> {
        let now = seconds(self.token_store.clock.now());
        let mut found = self.written_keys().await?;
        let is_due = |(created, _): &(u64, SigningKey)| created + (SIGNS - PUBLISHED_FIRST).as_secs() <= now;
        if found.last().is_none_or(is_due) {
            let key = SigningKey::generate().ok_or(IssuerStoreError::NoRandomness)?;
            let value = Value { about: now.to_string(), secret: Zeroizing::new(key.pkcs8().to_vec()) };
            let place = match found.last() {
                Some((_, last)) => Key::new(KEYS, &["after", last.id()]),
                None => Key::new(KEYS, &["first"]),
            };
            let store = &self.token_store.open().await?.store;
            match store.swap(&place, None, &value, Some(SIGNS + OVERLAP)).await.map_err(TokenStoreError::from)? {
                Swap::Done(_) => found.push((now, key)),
                // Another process was faster.
                Swap::Lost(_) => found = self.written_keys().await?,
            }
        }
        let public = found.iter().map(|(_, key)| key.jwk().clone()).collect();
        let may_sign = |(created, _): &(u64, SigningKey)| created + PUBLISHED_FIRST.as_secs() <= now;
        // The only one signs at once.
        let place = found.iter().rposition(may_sign).unwrap_or_default();
        let signing = found.into_iter().nth(place).ok_or(TokenStoreError::NoKey)?.1;
        Ok(IssuerKeys { signing, public })
    }

    /// The keys in the store, the newest last.
    async fn written_keys(&self) -> Result<Vec<(u64, SigningKey)>, TokenStoreError> {
        let store = &self.token_store.open().await?.store;
        let mut found: Vec<(u64, SigningKey)> = Vec::new();
        for listed in store.list(&[Key::new(KEYS, &[])]).await? {
            let Some(value) = store.get(&listed.key).await?.map(|entry| entry.value) else { continue };
            found.extend(value.about.parse().ok().zip(SigningKey::from_pkcs8(&value.secret)));
        }
        found.sort_by_key(|(created, _)| *created);
        Ok(found)
    }

    /// The key that seals registrations of clients: the same for all processes at this store, and for good.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn registration_key(&self) -> Result<[u8; 32], IssuerStoreError> {
        Ok(self.token_store.shared_key("registration-key").await?)
    }

    /// The key of the nonces for proofs.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn nonce_key(&self) -> Result<[u8; 32], IssuerStoreError> {
        Ok(self.token_store.shared_key("nonce-key").await?)
    }

    /// Whether this is the first use of the assertion `id` of `issuer`, which is good for `ttl` still.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn use_once(&self, issuer: &str, id: &str, ttl: Duration) -> Result<bool, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        let name = hex::encode(digest(&SHA256, format!("{issuer}\n{id}").as_bytes()));
        let value = Value { about: String::new(), secret: Zeroizing::default() };
        let written = store.swap(&Key::new(USED, &[&name]), None, &value, Some(ttl)).await?;
        Ok(matches!(written, Swap::Done(_)))
    }
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

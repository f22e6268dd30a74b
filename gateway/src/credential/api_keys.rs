//! API keys: what programs call Weir with that cannot sign in.
//!
//! A key is `weir_`, 64 hexadecimal digits that are random, and 8 that check them, so that scanners for secrets find keys
//! and nothing else. The store holds its SHA-256 and never the key. A slow hash is for passwords: nobody guesses 256
//! random bits, however fast each guess is. A key is found by its hash, so the time of a search says nothing about it.
//!
//! A gateway has all keys in memory. The store is looked at twice a second, and read only when it has changed: a key
//! that is revoked by another process opens nothing from then on, and a key that does not exist costs one hash.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, RwLock};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use weir_flow::facts::Principal;
use weir_oauth::Secret;
use weir_store::{Key, Listed, Swap, Value};

use crate::{caller::Caller, config::API_KEY_ISSUER};

use super::{
    CredentialManager, TokenStoreError,
    token_store::{StorePlace, TokenStore},
    watch::LOOK,
};

/// What every key begins with.
pub const PREFIX: &str = "weir_";
/// How many keys there may be.
const MAX_KEYS: usize = 1000;

const RANDOM: usize = 64;
const CHECK: usize = 8;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The namespaces of the store: keys, and when each was used last.
const KEYS: &str = "api-key";
const USES: &str = "api-key-use";

/// The keys of a store.
pub struct ApiKeys {
    token_store: Arc<TokenStore>,
    /// By their hashes; none before the store was read.
    known: RwLock<Option<HashMap<[u8; 32], Arc<KnownKey>>>>,
    /// Which were used on another day than before.
    used: Mutex<Vec<Arc<KnownKey>>>,
}

/// What a key is for. The store has it as JSON, beside nothing that is secret.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ApiKey {
    /// What it is called, and who calls with it.
    pub name: String,
    /// The upstreams that it opens; empty for all.
    pub endpoints: Vec<String>,
    /// The groups of the principal.
    pub groups: Vec<String>,
    /// The scopes of the principal.
    pub scopes: Vec<String>,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// When it expires, in seconds since 1970.
    pub expires: Option<u64>,
    /// The day of its last use, in seconds since 1970; none for none.
    #[serde(default)]
    pub used: Option<u64>,
    /// Its SHA-256.
    #[serde(default)]
    hash: String,
}

/// A key that opens something.
pub struct KnownKey {
    /// What it is for.
    pub key: ApiKey,
    /// Who calls with it.
    pub caller: Arc<Caller>,
    /// The day of its last use, in days since 1970.
    day: AtomicU64,
}

/// Why there is no such key, or no more of them.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyError {
    #[error("there is a key `{0}` already; revoke it first, or choose another name")]
    Exists(String),
    #[error("there are {MAX_KEYS} keys, which is the most; revoke one that nobody uses")]
    TooMany,
    #[error("the system has no randomness to give")]
    NoRandomness,
    #[error(transparent)]
    Store(#[from] TokenStoreError),
}

/// What is known of the text that a client has brought.
pub enum KeyLookup {
    Known(Arc<KnownKey>),
    Expired(Arc<KnownKey>),
    Unknown,
    /// The store was not read yet.
    Unavailable,
}

impl CredentialManager {
    /// The keys that are in the store. Opens nothing.
    #[must_use]
    pub fn api_keys(&self) -> ApiKeys {
        ApiKeys { token_store: Arc::clone(&self.token_store), known: RwLock::default(), used: Mutex::default() }
    }
}

impl ApiKey {
    /// A key of this name that opens everything and never expires.
    #[must_use]
    pub fn named(name: &str, now: SystemTime) -> Self {
        Self {
            name: name.to_owned(),
            endpoints: Vec::new(),
            groups: Vec::new(),
            scopes: Vec::new(),
            created: seconds(now),
            expires: None,
            used: None,
            hash: String::new(),
        }
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|at| at <= seconds(now))
    }

    fn principal(&self) -> Principal {
        let claims = serde_json::json!({ "sub": self.name, "groups": self.groups, "scope": self.scopes.join(" ") });
        Principal {
            scopes: self.scopes.clone(),
            groups: self.groups.clone(),
            key: Some(self.name.clone()),
            claims: claims.to_string(),
            ..Principal::named(self.name.as_str(), Some(API_KEY_ISSUER.to_owned()))
        }
    }
}

impl ApiKeys {
    /// Makes a key, and shows it this once.
    ///
    /// # Errors
    /// If there is one of this name, or no room, or the store cannot be written.
    pub async fn add(&self, mut key: ApiKey) -> Result<Secret, ApiKeyError> {
        let known = self.list().await?;
        if known.iter().any(|other| other.name == key.name) {
            return Err(ApiKeyError::Exists(key.name));
        }
        if known.len() >= MAX_KEYS {
            return Err(ApiKeyError::TooMany);
        }
        let mut random = [0; RANDOM / 2];
        getrandom::fill(&mut random).map_err(|_| ApiKeyError::NoRandomness)?;
        let text = format!("{PREFIX}{}", hex::encode(random));
        let text = format!("{text}{}", check(&text));
        key.hash = hex::encode(hash(&text));
        let about = serde_json::to_string(&key).unwrap_or_default();
        let value = Value { about, secret: Default::default() };
        let store = self.token_store.open().await?.store.as_ref();
        let written =
            store.swap(&Key::new(KEYS, &[&key.name]), None, &value, None).await.map_err(TokenStoreError::from)?;
        match written {
            Swap::Done(_) => Ok(Secret::new(text)),
            Swap::Lost(_) => Err(ApiKeyError::Exists(key.name)),
        }
    }

    /// All keys in the order of their names. Needs no key of the store, and makes no file.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list(&self) -> Result<Vec<ApiKey>, TokenStoreError> {
        let all = self.token_store.peek(&[Key::new(KEYS, &[]), Key::new(USES, &[])]).await?;
        Ok(keys(&all).map(|(key, _)| key).collect())
    }

    /// Takes a key back; false if there is none of this name.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn revoke(&self, name: &str) -> Result<bool, TokenStoreError> {
        let store = self.token_store.open().await?.store.as_ref();
        let gone = store.delete(&Key::new(KEYS, &[name])).await?;
        store.delete(&Key::new(USES, &[name])).await?;
        Ok(gone)
    }

    /// Whose key this is.
    #[must_use]
    pub fn find(&self, text: &str, now: SystemTime) -> KeyLookup {
        if !is_key(text) {
            return KeyLookup::Unknown;
        }
        let known = self.known.read();
        let Some(known) = &*known else { return KeyLookup::Unavailable };
        let Some(found) = known.get(&hash(text)) else { return KeyLookup::Unknown };
        if found.key.is_expired(now) {
            return KeyLookup::Expired(Arc::clone(found));
        }
        let today = seconds(now) / DAY.as_secs();
        if found.day.swap(today, Ordering::Relaxed) != today {
            self.used.lock().push(Arc::clone(found));
        }
        KeyLookup::Known(Arc::clone(found))
    }

    /// Reads the keys again whenever the store has changed, until it is dropped, and writes down when they were used.
    pub async fn look_out(&self) {
        if matches!(self.token_store.place, StorePlace::Nowhere) {
            return;
        }
        let mut before = None;
        loop {
            // One that cannot be looked at is read when it can be.
            let now = self.token_store.state(KEYS).await.ok();
            if now != before || self.is_unread() {
                match self.read().await {
                    Ok(()) => before = now,
                    Err(why) => tracing::debug!(error = %why, "the API keys cannot be read"),
                }
            }
            self.write_uses().await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Reads the keys. An entry that was changed without the key of the store opens nothing.
    ///
    /// # Errors
    /// If the store cannot be read. The keys that were known before are then still known.
    pub async fn read(&self) -> Result<(), TokenStoreError> {
        if !self.token_store.place.may_hold() {
            *self.known.write() = Some(HashMap::new());
            return Ok(());
        }
        let opened = self.token_store.open().await?;
        let listed = opened.store.list(&[Key::new(KEYS, &[]), Key::new(USES, &[])]).await?;
        let mut found = HashMap::new();
        for (key, entry) in keys(&listed) {
            match opened.store.get(&entry.key).await {
                Ok(Some(whole)) if whole.value.about == entry.about => {}
                Ok(_) => continue,
                // The keys that were known stay known until all can be read.
                Err(why) if why.is_away() => return Err(why.into()),
                Err(why) => {
                    tracing::error!(key = key.name, "an API key opens nothing: {why}");
                    continue;
                }
            }
            let Some(hash) = hash_of(&key.hash) else { continue };
            let (caller, day) = (Caller::signed_in(key.principal()), key.used.unwrap_or_default() / DAY.as_secs());
            found.insert(hash, Arc::new(KnownKey { key, caller, day: AtomicU64::new(day) }));
        }
        *self.known.write() = Some(found);
        Ok(())
    }

    fn is_unread(&self) -> bool {
        self.known.read().is_none()
    }

    async fn write_uses(&self) {
        let used = std::mem::take(&mut *self.used.lock());
        let is_there = |hash: &[u8; 32]| {
            let known = self.known.read();
            known.as_ref().is_some_and(|known| known.contains_key(hash))
        };
        for known in used.into_iter().filter(|used| hash_of(&used.key.hash).is_some_and(|hash| is_there(&hash))) {
            let day = known.day.load(Ordering::Relaxed) * DAY.as_secs();
            let value = Value { about: day.to_string(), secret: Default::default() };
            let Ok(opened) = self.token_store.open().await else { return };
            let written = opened.store.put(&Key::new(USES, &[&known.key.name]), &value, None).await;
            if let Err(why) = written {
                tracing::debug!(key = known.key.name, error = %why, "the use of an API key cannot be written");
            }
        }
    }
}

/// Whether a text is a key, whoever made it.
#[must_use]
fn is_key(text: &str) -> bool {
    let digits = text.strip_prefix(PREFIX).filter(|rest| rest.len() == RANDOM + CHECK);
    digits.is_some_and(|digits| digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
        && text.split_at_checked(PREFIX.len() + RANDOM).is_some_and(|(random, end)| check(random) == end)
}

/// The keys among these entries, with the day of their last use.
fn keys(all: &[Listed]) -> impl Iterator<Item = (ApiKey, &Listed)> {
    let uses = all.iter().filter(|entry| entry.key.is_below(&Key::new(USES, &[])));
    let uses: HashMap<Vec<String>, u64> =
        uses.filter_map(|entry| Some((entry.key.parts(), entry.about.parse().ok()?))).collect();
    all.iter().filter_map(move |entry| {
        let key: ApiKey = serde_json::from_str(&entry.about).ok()?;
        let is_its_own = entry.key == Key::new(KEYS, &[&key.name]);
        is_its_own.then(|| (ApiKey { used: uses.get(&entry.key.parts()).copied(), ..key }, entry))
    })
}

fn hash(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

/// The hash that a record holds; none if it is none.
fn hash_of(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    hex::decode_to_slice(text, &mut hash).ok()?;
    Some(hash)
}

/// The digits that follow the random ones.
fn check(text: &str) -> String {
    hex::encode(&hash(text)[..CHECK / 2])
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_key_is_told_from_everything_else() {
        let text = format!("{PREFIX}{}", "0123456789abcdef".repeat(4));
        let whole = format!("{text}{}", check(&text));
        assert!(is_key(&whole));
        for other in [
            "",
            PREFIX,
            "weir_é",
            &text,
            &whole[1..],
            &whole[..whole.len() - 1],
            &format!("{whole}0"),
            &whole.to_uppercase(),
            &whole.replace("0123", "0124"),
            &format!("{}é", &whole[..whole.len() - 2]),
        ] {
            assert!(!is_key(other), "{other}");
        }
    }

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        assert_eq!(hash_of(&hex::encode(hash("a"))), Some(hash("a")));
        for text in ["", "zz", &"é".repeat(32), &"g".repeat(64)] {
            assert_eq!(hash_of(text), None, "{text}");
        }
    }
}

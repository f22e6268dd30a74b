//! The keys of the issuer (RFC 7517): fetched when needed, again when a token names one that is not there, and not more
//! often than a stranger with made-up tokens should be able to cause.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{Jwk, PublicKeyUse},
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use url::Url;
use weir_store::Clock;

use crate::{DiscoveryError, Http, discover::read, server};

/// Keys that are older are fetched again: one that is revoked must go.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// While the issuer is away, keys that are older open nothing any more.
const USABLE: Duration = Duration::from_secs(24 * 3600);
/// After a fetch that failed, or did not bring the key that it was for: strangers can name any key.
const PAUSE: Duration = Duration::from_secs(10);
/// No issuer has more.
const MAX_KEYS: usize = 100;

/// The keys of one issuer.
pub(super) struct Keys {
    issuer: String,
    /// From the config; else from the issuer's metadata.
    place: Option<Url>,
    /// None for keys that are given and never fetched.
    http: Option<Http>,
    clock: Clock,
    kept: Mutex<CachedKeys>,
    /// Held while they are fetched.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Clone, Default)]
struct CachedKeys {
    keys: Option<Arc<Vec<VerificationKey>>>,
    fetched: Option<SystemTime>,
    /// When they were last asked for in vain.
    missed: Option<SystemTime>,
}

pub(super) struct VerificationKey {
    id: Option<String>,
    algorithm: Option<Algorithm>,
    pub(super) key: DecodingKey,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl VerificationKey {
    /// Whether a token may be signed with it, as its head says.
    pub(super) fn may_sign(&self, id: Option<&str>, algorithm: Algorithm) -> bool {
        let named = id.is_none() || self.id.as_deref() == id;
        named && self.algorithm.is_none_or(|only| only == algorithm) && self.key.family() == algorithm.family()
    }
}

impl Keys {
    pub(super) fn new(issuer: String, place: Option<Url>, http: Http, clock: Clock) -> Self {
        Self { issuer, place, http: Some(http), clock, kept: Mutex::default(), fetching: tokio::sync::Mutex::default() }
    }

    /// Keys that are given with [`set`](Self::set).
    pub(super) fn given(issuer: String, clock: Clock) -> Self {
        let (kept, fetching) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { issuer, place: None, http: None, clock, kept, fetching }
    }

    /// Gives the keys, as JWKs.
    pub(super) fn set(&self, keys: Vec<Value>) {
        let keys = Arc::new(keys.into_iter().filter_map(known).collect());
        self.change(|kept| kept.keys = Some(keys));
    }

    /// The keys in which `wanted` is found; perhaps without it, if it is nowhere.
    pub(super) async fn get(
        &self,
        wanted: impl Fn(&VerificationKey) -> bool,
    ) -> Result<Arc<Vec<VerificationKey>>, DiscoveryError> {
        if self.http.is_none() {
            return Ok(self.kept().keys.unwrap_or_default());
        }
        let good = |kept: &CachedKeys, now: SystemTime| {
            let keys = kept.keys.as_ref()?;
            let young = kept.fetched.is_some_and(|at| now.duration_since(at).is_ok_and(|age| age < MAX_AGE));
            (young && keys.iter().any(&wanted)).then(|| Arc::clone(keys))
        };
        if let Some(keys) = good(&self.kept(), self.clock.now()) {
            return Ok(keys);
        }
        let _fetching = self.fetching.lock().await;
        let (kept, now) = (self.kept(), self.clock.now());
        if let Some(keys) = good(&kept, now) {
            return Ok(keys);
        }
        let rests = kept.missed.is_some_and(|at| now.duration_since(at).is_ok_and(|age| age < PAUSE));
        let fetched = if rests { Err(None) } else { self.fetch(now, &wanted).await.map_err(Some) };
        // A clock that was put back makes no key older.
        let usable = kept.fetched.is_some_and(|at| now.duration_since(at).unwrap_or_default() < USABLE);
        match (fetched, kept.keys.filter(|_| usable)) {
            (Ok(keys), _) | (Err(_), Some(keys)) => Ok(keys),
            (Err(Some(error)), None) => Err(error),
            (Err(None), None) => {
                Err(DiscoveryError::Trouble { origin: "the keys of the issuer".to_owned(), status: 503 })
            }
        }
    }

    async fn fetch(
        &self,
        now: SystemTime,
        wanted: impl Fn(&VerificationKey) -> bool,
    ) -> Result<Arc<Vec<VerificationKey>>, DiscoveryError> {
        self.change(|kept| kept.missed = Some(now));
        let missing = || DiscoveryError::NoServerMetadata { issuer: "the issuer of the config".to_owned() };
        let http = self.http.as_ref().ok_or_else(missing)?;
        let place = match &self.place {
            Some(place) => place.clone(),
            None => server::find(http, &self.issuer).await?.jwks_uri.ok_or_else(missing)?,
        };
        let document = read::<Document>(http, &place).await?.ok_or_else(missing)?;
        let keys = Arc::new(document.keys.into_iter().take(MAX_KEYS).filter_map(known).collect::<Vec<_>>());
        let missed = (!keys.iter().any(wanted)).then_some(now);
        self.change(|kept| (kept.keys, kept.fetched, kept.missed) = (Some(Arc::clone(&keys)), Some(now), missed));
        Ok(keys)
    }

    fn kept(&self) -> CachedKeys {
        self.kept.lock().clone()
    }

    fn change(&self, change: impl FnOnce(&mut CachedKeys)) {
        change(&mut self.kept.lock());
    }
}

/// A key of the document, unless it is of a kind that is not known here, or for something else.
fn known(key: Value) -> Option<VerificationKey> {
    let jwk: Jwk = serde_json::from_value(key).ok()?;
    if jwk.common.public_key_use.as_ref().is_some_and(|of| *of != PublicKeyUse::Signature) {
        return None;
    }
    let algorithm = jwk.common.key_algorithm.map(Algorithm::try_from).transpose().ok()?;
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    Some(VerificationKey { id: jwk.common.key_id, algorithm, key })
}

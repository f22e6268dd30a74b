//! Tokens that only their issuer can read (RFC 7662): Weir asks it what each one is good for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, UNIX_EPOCH},
};

use ring::digest::{SHA256, digest};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;
use url::Url;
use weir_store::Clock;

use crate::{Http, OAuthApplication, ServerMetadata, TokenEndpoint, TokenError, server};

use super::verify::{Claims, Issuer, Rejected, VerifiedToken, audiences, subject};

/// How long a token without an expiry is taken to be good.
const UNSAID: Duration = Duration::from_secs(600);
/// Longer than any token that fits into a header.
const MAX_TOKEN: usize = 16 * 1024;

/// Checks the tokens of one issuer by asking it.
pub struct Introspector {
    issuer: Issuer,
    client: OAuthApplication,
    endpoint: Option<Url>,
    http: Http,
    clock: Clock,
    server: OnceCell<ServerMetadata>,
    /// Checks that are on their way, by the hash of the token: whoever brings the same one waits for the same answer.
    running: Mutex<HashMap<[u8; 32], Arc<Check>>>,
}

type Check = OnceCell<Result<VerifiedToken, Rejected>>;

impl Introspector {
    /// A checker that is `client` at the issuer. Without an `endpoint` the issuer's metadata names it. Sends nothing yet.
    #[must_use]
    pub fn new(issuer: Issuer, client: OAuthApplication, endpoint: Option<Url>, http: Http, clock: Clock) -> Self {
        let (server, running) = (OnceCell::new(), Mutex::default());
        Self { issuer, client, endpoint, http, clock, server, running }
    }

    /// Who calls with this token.
    ///
    /// # Errors
    /// If it is not accepted; only [`Rejected::Unavailable`] and [`Rejected::Unchecked`] are no answer about the token.
    pub async fn verify(&self, token: &str) -> Result<VerifiedToken, Rejected> {
        if token.len() > MAX_TOKEN || !token.bytes().all(is_token_byte) {
            return Err(Rejected::Malformed);
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        let check = Arc::clone(self.running().entry(hash).or_default());
        let waiting = Waiting { running: &self.running, hash, check };
        waiting.check.get_or_init(|| self.ask(token)).await.clone()
    }

    async fn ask(&self, token: &str) -> Result<VerifiedToken, Rejected> {
        let named;
        let (server, url) = match &self.endpoint {
            Some(url) => {
                named = ServerMetadata { issuer: self.issuer.issuer.clone(), ..ServerMetadata::default() };
                (&named, url)
            }
            None => {
                let find = || server::find(&self.http, &self.issuer.issuer);
                let server = self.server.get_or_try_init(find).await.map_err(Rejected::Unavailable)?;
                let url = server.introspection_endpoint.as_ref();
                (server, url.ok_or(Rejected::Unchecked(TokenError::Unsupported("introspection endpoint")))?)
            }
        };
        let endpoint = TokenEndpoint { server, client: &self.client, resource: None, proof: None, clock: &self.clock };
        let fields = [("token", token), ("token_type_hint", "access_token")];
        let answer = endpoint.post(&self.http, url, &fields).await.map_err(Rejected::Unchecked)?;
        let malformed = |_| Rejected::Unchecked(TokenError::Malformed(crate::http::origin(url)));
        let Claims(claims) = serde_json::from_slice(&answer).map_err(malformed)?;
        self.judge(claims)
    }

    /// Who calls, by what the issuer says of a token (RFC 7662 §2.2).
    fn judge(&self, mut claims: Map<String, Value>) -> Result<VerifiedToken, Rejected> {
        if claims.get("active") != Some(&Value::Bool(true)) {
            return Err(Rejected::Inactive);
        }
        if claims.get("iss").is_some_and(|named| named.as_str() != Some(&self.issuer.issuer)) {
            return Err(Rejected::Issuer);
        }
        if !audiences(&claims).any(|named| self.issuer.audiences.iter().any(|audience| audience == named)) {
            return Err(Rejected::Audience);
        }
        let now = self.clock.now();
        if !claims.contains_key("exp") {
            let until = (now + UNSAID).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            claims.insert("exp".to_owned(), until.into());
        }
        // A client that calls for itself is its own subject, as in RFC 9068 §2.2.
        if !claims.contains_key("sub")
            && let Some(client) = claims.get("client_id").cloned()
        {
            claims.insert("sub".to_owned(), client);
        }
        subject(&self.issuer, claims, now)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Arc<Check>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits for a check. The last of them forgets it.
struct Waiting<'a> {
    running: &'a Mutex<HashMap<[u8; 32], Arc<Check>>>,
    hash: [u8; 32],
    check: Arc<Check>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // One is in the map and one is here. A check that has come to its end answers nobody who comes later.
        let is_over = self.check.initialized() || Arc::strong_count(&self.check) <= 2;
        if is_over && running.get(&self.hash).is_some_and(|check| Arc::ptr_eq(check, &self.check)) {
            running.remove(&self.hash);
        }
    }
}

/// RFC 6750 §2.1.
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=')
}

//! Proofs that a caller holds the key that its token is bound to (RFC 9449 §4.3).
//!
//! A proof is for one request: its method, its URL, its token, its time. Each is good once. What was seen is remembered for
//! as long as a proof is young enough to come again, by the second that the proof names, so nothing is searched for when it
//! is over.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, jwk::Jwk};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value};
use thiserror::Error;
use url::{Position, Url};

use crate::{crypto, proof};

use super::verify::{Claims, signature_only};

/// The signatures that are accepted.
const ALGORITHMS: [(&str, Algorithm); 5] = [
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
    ("RS256", Algorithm::RS256),
    ("PS256", Algorithm::PS256),
];

/// How old a proof may be, in seconds.
const OLDEST: u64 = 60;
/// How far a caller's clock may be ahead, in seconds.
const AHEAD: u64 = 15;
/// The longest proof, in bytes. One with a long RSA key has 2 KiB.
const MAX_PROOF: usize = 8 * 1024;
/// The longest `jti`, in bytes.
const MAX_ID: usize = 512;
/// Proofs of one caller that name the same second. With more it is refused until the next.
const MAX_PER_SECOND: usize = 500;
/// Proofs of one caller that are remembered.
const MAX_OF_CALLER: usize = 10_000;
/// Proofs of all callers that are remembered: some 10 MiB.
const MAX_SEEN: usize = 400_000;
/// The members of a JWK that only its owner may know (RFC 7518 §6).
const PRIVATE: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/// The request that a proof must be for.
#[derive(Clone, Copy, Debug)]
pub struct ProvedRequest<'a> {
    pub method: &'a str,
    /// As the caller knows it. Query and fragment do not count.
    pub url: &'a str,
    pub token: &'a str,
    /// The thumbprint of the key that the token is bound to (`cnf`, `jkt`).
    pub thumbprint: &'a str,
    /// Whose token it is: each caller has a share of what is remembered.
    pub caller: &'a str,
    /// The nonces of which it must have one (RFC 9449 §9); none if it needs none.
    pub nonces: &'a [String],
}

/// Why a proof is not accepted. Holds nothing of it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProofError {
    #[error("the token needs one proof of its key (`DPoP`)")]
    Count,
    #[error("the proof is no JWT of the type dpop+jwt")]
    Malformed,
    #[error("the proof is signed with an algorithm that is not accepted")]
    Algorithm,
    #[error("the proof has a private key in it")]
    PrivateKey,
    #[error("the proof is not signed with the key that it names")]
    Signature,
    #[error("the proof is of another key than the token's")]
    Key,
    #[error("the proof is for another method")]
    Method,
    #[error("the proof is for another URL")]
    Url,
    #[error("the proof is for another token")]
    Token,
    #[error("the proof is too old, or of the future; check the clock")]
    Time,
    #[error("the proof needs the nonce that comes with this answer (`DPoP-Nonce`)")]
    Nonce,
    #[error("the proof was used before")]
    Replayed,
    #[error("too many proofs at once")]
    Full,
}

/// Remembers the proofs that were used.
#[derive(Default)]
pub struct UsedProofs(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// By the second that they name, and by caller.
    seconds: BTreeMap<u64, HashMap<Arc<str>, HashSet<[u8; 16]>>>,
    /// How many there are of each caller that has any.
    counts: HashMap<Arc<str>, usize>,
    count: usize,
}

/// The signatures that are accepted, best first.
pub(super) fn algorithms() -> impl Iterator<Item = &'static str> {
    ALGORITHMS.iter().map(|(name, _)| *name)
}

impl UsedProofs {
    /// Whether `proof` is for this request, by the key of its token, and new.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, proof: &str, request: &ProvedRequest<'_>, now: SystemTime) -> Result<(), ProofError> {
        let (thumbprint, claims) = signed(proof)?;
        if thumbprint != request.thumbprint {
            return Err(ProofError::Key);
        }
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("htm") != Some(request.method) {
            return Err(ProofError::Method);
        }
        if !text("htu").is_some_and(|named| is_same(named, request.url)) {
            return Err(ProofError::Url);
        }
        if text("ath") != Some(proof::hash(request.token.as_bytes()).as_str()) {
            return Err(ProofError::Token);
        }
        if !request.nonces.is_empty()
            && !text("nonce").is_some_and(|nonce| request.nonces.iter().any(|known| known == nonce))
        {
            return Err(ProofError::Nonce);
        }
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let made = claims.get("iat").and_then(seconds).ok_or(ProofError::Time)?;
        if made + OLDEST < now || made > now + AHEAD {
            return Err(ProofError::Time);
        }
        let id = text("jti").filter(|id| (1..=MAX_ID).contains(&id.len())).ok_or(ProofError::Malformed)?;
        let mut used = [0; 16];
        used.copy_from_slice(&digest(&SHA256, format!("{thumbprint} {id}").as_bytes()).as_ref()[..16]);
        self.0.lock().keep(used, request.caller, made, now)
    }
}

impl Seen {
    fn keep(&mut self, used: [u8; 16], caller: &str, made: u64, now: u64) -> Result<(), ProofError> {
        self.forget(now);
        let second = self.seconds.get(&made).and_then(|callers| callers.get(caller));
        if second.is_some_and(|known| known.contains(&used)) {
            return Err(ProofError::Replayed);
        }
        let (whose, of_caller) = self
            .counts
            .get_key_value(caller)
            .map_or_else(|| (caller.into(), 0), |(whose, count)| (Arc::clone(whose), *count));
        let full = second.is_some_and(|known| known.len() >= MAX_PER_SECOND);
        if full || of_caller >= MAX_OF_CALLER || self.count >= MAX_SEEN {
            return Err(ProofError::Full);
        }
        self.seconds.entry(made).or_default().entry(Arc::clone(&whose)).or_default().insert(used);
        self.counts.insert(whose, of_caller + 1);
        self.count += 1;
        Ok(())
    }

    /// Forgets what is too old to come again.
    fn forget(&mut self, now: u64) {
        while let Some(oldest) = self.seconds.first_entry().filter(|oldest| oldest.key() + OLDEST < now) {
            for (caller, used) in oldest.remove() {
                self.count -= used.len();
                if let Entry::Occupied(mut left) = self.counts.entry(caller) {
                    *left.get_mut() -= used.len();
                    if *left.get() == 0 {
                        left.remove();
                    }
                }
            }
        }
    }
}

/// The thumbprint of the key that a proof names, and what the proof says, if that key has signed it.
fn signed(proof: &str) -> Result<(String, Map<String, Value>), ProofError> {
    if proof.len() > MAX_PROOF {
        return Err(ProofError::Malformed);
    }
    let head = proof.split('.').next().unwrap_or_default();
    let head = URL_SAFE_NO_PAD.decode(head).map_err(|_| ProofError::Malformed)?;
    let Claims(mut head) = serde_json::from_slice(&head).map_err(|_| ProofError::Malformed)?;
    if head.get("typ").and_then(Value::as_str) != Some("dpop+jwt") || head.contains_key("crit") {
        return Err(ProofError::Malformed);
    }
    let named = head.get("alg").and_then(Value::as_str);
    let algorithm = ALGORITHMS.iter().find(|(name, _)| named == Some(name)).ok_or(ProofError::Algorithm)?.1;
    let jwk = head.remove("jwk").ok_or(ProofError::Malformed)?;
    if PRIVATE.iter().any(|name| jwk.get(name).is_some()) {
        return Err(ProofError::PrivateKey);
    }
    let thumbprint = proof::thumbprint(&jwk).ok_or(ProofError::Malformed)?;
    let jwk: Jwk = serde_json::from_value(jwk).map_err(|_| ProofError::Malformed)?;
    crypto::install();
    let key = DecodingKey::from_jwk(&jwk).map_err(|_| ProofError::Malformed)?;
    if key.family() != algorithm.family() {
        return Err(ProofError::Algorithm);
    }
    let decoded = jsonwebtoken::decode::<Claims>(proof, &key, &signature_only(algorithm));
    let Claims(claims) = decoded.map_err(|_| ProofError::Signature)?.claims;
    Ok((thumbprint, claims))
}

/// Whether two URLs are the same but for query and fragment, as their syntax has it (RFC 9449 §4.3, RFC 3986 §6.2.2).
fn is_same(named: &str, asked: &str) -> bool {
    let parse = |text: &str| Url::parse(text).ok();
    match (parse(named), parse(asked)) {
        (Some(named), Some(asked)) => named[..Position::AfterPath] == asked[..Position::AfterPath],
        _ => false,
    }
}

/// A time in seconds; some write fractions.
fn seconds(value: &Value) -> Option<u64> {
    /// The year 9999. Later is a mistake, and must not overflow.
    const LAST: f64 = 253_402_300_799.0;
    let seconds = value.as_f64().filter(|seconds| (0.0..LAST).contains(seconds))?;
    std::time::Duration::try_from_secs_f64(seconds).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests;

//! Proofs that Weir holds the key that a token is bound to (RFC 9449, DPoP).
//!
//! Each login has a key of its own. It is made before the first token is asked for, kept with the tokens, and used for
//! nothing else. A server may want a nonce in each proof: the latest one of each origin is kept here.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use weir_store::Secret;

use crate::{Challenge, KeyFault, ServerMetadata, resource::ResourceMetadata};

/// The header that carries a proof (RFC 9449 §4.1).
pub const DPOP: HeaderName = HeaderName::from_static("dpop");
/// The header that carries the nonce for the next proof (RFC 9449 §8.1).
pub const DPOP_NONCE: HeaderName = HeaderName::from_static("dpop-nonce");
/// The error that asks for a proof with a nonce (RFC 9449 §8).
pub const USE_DPOP_NONCE: &str = "use_dpop_nonce";

/// What Weir signs with. Every server that knows DPoP knows it in practice.
const ALGORITHM: &str = "ES256";
/// The longest nonce that is kept, in bytes: it is sent with every request.
const MAX_NONCE: usize = 1024;
/// A login has an authorization server and an upstream, so more origins than this are a mistake.
const MAX_ORIGINS: usize = 4;

/// A key pair that tokens are bound to. It cannot be printed.
pub struct ProofKey {
    /// PKCS#8 in base64, as it is stored.
    stored: Secret,
    pair: EcdsaKeyPair,
    /// The JOSE header of every proof, encoded.
    head: String,
    thumbprint: String,
    /// The latest nonce of each origin.
    nonces: Mutex<Vec<(String, String)>>,
}

/// The key of a login, and whether its tokens are bound to it.
#[derive(Clone, Debug)]
pub struct KeyBinding {
    pub key: Arc<ProofKey>,
    /// Before a token: whether an unbound one is refused. After: whether the access token is bound.
    pub bound: bool,
}

/// Whether an upstream wants tokens to be bound to a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProofDemand {
    #[default]
    Unsaid,
    /// It takes bound tokens beside others.
    Accepted,
    /// It takes no other.
    Required,
}

impl ProofKey {
    /// A new key.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn generate() -> Result<Self, KeyFault> {
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let pkcs8 = pkcs8.map_err(|_| KeyFault::Random)?;
        Self::restore(Secret::new(STANDARD.encode(pkcs8.as_ref()))).ok_or(KeyFault::Random)
    }

    /// A key as [`stored`](Self::stored) gave it; none if it is not one.
    pub(crate) fn restore(stored: Secret) -> Option<Self> {
        let pkcs8 = zeroize::Zeroizing::new(STANDARD.decode(stored.expose()).ok()?);
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pkcs8, &SystemRandom::new()).ok()?;
        // An uncompressed point: 4, then both coordinates (SEC 1 §2.3.3).
        let (x, y) = pair.public_key().as_ref().get(1..)?.split_at_checked(32)?;
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let jwk = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y });
        let thumbprint = thumbprint(&jwk)?;
        let head = json!({ "typ": "dpop+jwt", "alg": ALGORITHM, "jwk": jwk }).to_string();
        Some(Self { stored, pair, head: URL_SAFE_NO_PAD.encode(head), thumbprint, nonces: Mutex::default() })
    }

    /// The key, to be encrypted.
    pub(crate) fn stored(&self) -> &Secret {
        &self.stored
    }

    /// The key as a request names it (`dpop_jkt`, RFC 9449 §10).
    pub fn thumbprint(&self) -> &str {
        &self.thumbprint
    }

    /// A proof for one request to `url`, which has neither query nor fragment. `token_hash` is the [`hash`] of the token that
    /// goes along.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn proof(
        &self,
        method: &str,
        url: &str,
        token_hash: Option<&str>,
        now: SystemTime,
    ) -> Result<HeaderValue, KeyFault> {
        let mut unique = [0; 16];
        getrandom::fill(&mut unique).map_err(|_| KeyFault::Random)?;
        let mut claims = json!({
            "jti": URL_SAFE_NO_PAD.encode(unique),
            "htm": method,
            "htu": url,
            "iat": now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        });
        if let Some(hash) = token_hash {
            claims["ath"] = hash.into();
        }
        let origin = origin(url);
        if let Some((_, nonce)) = self.nonces.lock().iter().find(|(of, _)| of == origin) {
            claims["nonce"] = nonce.as_str().into();
        }
        let mut proof = format!("{}.{}", self.head, URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signed = self.pair.sign(&SystemRandom::new(), proof.as_bytes()).map_err(|_| KeyFault::Random)?;
        proof.push('.');
        URL_SAFE_NO_PAD.encode_string(signed.as_ref(), &mut proof);
        let mut value = HeaderValue::from_str(&proof).map_err(|_| KeyFault::Random)?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Keeps the nonce that an answer from `url` carries; false if there is none (RFC 9449 §8.2).
    pub fn learn(&self, url: &str, nonce: Option<&HeaderValue>) -> bool {
        let letter = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        let nonce = nonce.and_then(|nonce| nonce.to_str().ok());
        let nonce = nonce.filter(|text| (1..=MAX_NONCE).contains(&text.len()) && text.bytes().all(letter));
        let Some(nonce) = nonce else { return false };
        let (origin, mut nonces) = (origin(url), self.nonces.lock());
        match nonces.iter_mut().find(|(of, _)| of == origin) {
            Some((_, kept)) if kept == nonce => {}
            Some((_, kept)) => nonce.clone_into(kept),
            None => {
                if nonces.len() >= MAX_ORIGINS {
                    nonces.remove(0);
                }
                nonces.push((origin.to_owned(), nonce.to_owned()));
            }
        }
        true
    }
}

impl fmt::Debug for ProofKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProofKey").field("thumbprint", &self.thumbprint).finish_non_exhaustive()
    }
}

impl KeyBinding {
    /// A new key where tokens are to be bound to one. `configured` decides; else the upstream does. Where it takes both
    /// kinds, the server must say that it makes bound tokens.
    pub(crate) fn choose(
        configured: Option<bool>,
        demand: ProofDemand,
        server: &ServerMetadata,
    ) -> Result<Option<Self>, KeyFault> {
        let offered = server.dpop_signing_alg_values_supported.iter().any(|name| name == ALGORITHM);
        let bound = match (configured, demand) {
            (Some(false), _) | (None, ProofDemand::Unsaid) => return Ok(None),
            (None, ProofDemand::Accepted) if !offered => return Ok(None),
            (Some(true), _) | (None, ProofDemand::Required) => true,
            (None, ProofDemand::Accepted) => false,
        };
        Ok(Some(Self { key: Arc::new(ProofKey::generate()?), bound }))
    }

    /// The same key with a token that is bound to it, or is not.
    pub(crate) fn with(&self, bound: bool) -> Self {
        Self { key: Arc::clone(&self.key), bound }
    }
}

impl ProofDemand {
    /// What a refusal and the metadata of a resource say (RFC 9449 §7.1, RFC 9728 §2).
    pub(crate) fn of(challenge: Option<&Challenge>, metadata: Option<&ResourceMetadata>) -> Self {
        let required = metadata.is_some_and(|said| said.dpop_bound_access_tokens_required);
        let accepted = metadata.map_or(&[][..], |said| &said.dpop_signing_alg_values_supported);
        if required || challenge.is_some_and(|challenge| challenge.scheme == "dpop") {
            Self::Required
        } else if accepted.iter().any(|name| name == ALGORITHM) {
            Self::Accepted
        } else {
            Self::Unsaid
        }
    }
}

/// SHA-256 in base64url, as `ath` and `jkt` have it (RFC 9449 §4.2, RFC 7638 §3).
pub fn hash(text: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, text))
}

/// The thumbprint of a public key in JSON (RFC 7638 §3.2, RFC 8037 §2); none if it is no such key.
pub(crate) fn thumbprint(jwk: &Value) -> Option<String> {
    // In the order of their names.
    let required: &[&str] = match jwk.get("kty")?.as_str()? {
        "EC" => &["crv", "kty", "x", "y"],
        "RSA" => &["e", "kty", "n"],
        "OKP" => &["crv", "kty", "x"],
        _ => return None,
    };
    let member = |name: &&str| Some(format!("\"{name}\":{}", Value::from(jwk.get(*name)?.as_str()?)));
    let members: Option<Vec<String>> = required.iter().map(member).collect();
    Some(hash(format!("{{{}}}", members?.join(",")).as_bytes()))
}

/// Whether an answer asks for a proof with a nonce.
pub fn asks_for_nonce<'a>(challenges: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let is_dpop = |challenge: &Challenge| challenge.scheme == "dpop";
    Challenge::parse_all(challenges).iter().any(|said| is_dpop(said) && said.get("error") == Some(USE_DPOP_NONCE))
}

/// `https://a.example` of `https://a.example/path`.
fn origin(url: &str) -> &str {
    let end = url.match_indices('/').nth(2).map_or(url.len(), |(at, _)| at);
    url.get(..end).unwrap_or(url)
}

#[cfg(test)]
mod tests;

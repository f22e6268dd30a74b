//! Signs tokens for those who call Weir, with a key that lives as long as the process.

use anyhow::{Result, anyhow};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::answers;
use crate::subjects::AUDIENCE;

/// How long a token is good: longer than any run.
const GOOD: Duration = Duration::from_secs(24 * 3600);

/// Who vouches for callers.
pub(super) struct Issuer {
    key: EcdsaKeyPair,
    random: SystemRandom,
    name: String,
}

impl Issuer {
    /// One with a new key, at this port.
    pub(super) fn new(port: u16) -> Result<Self> {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(|_| anyhow!("no randomness"))?;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).map_err(|why| anyhow!("{why}"))?;
        Ok(Self { key, random, name: answers::issuer(port) })
    }

    /// Its public key (RFC 7517 §5).
    pub(super) fn keys(&self) -> String {
        // An uncompressed point: a byte 4, then both coordinates.
        let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
        let [x, y] = [x, y].map(|part| URL_SAFE_NO_PAD.encode(part));
        json!({ "keys": [{ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "bench", "use": "sig" }] }).to_string()
    }

    /// A token for Weir (RFC 9068); empty if there is no randomness.
    pub(super) fn token(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let head = json!({ "alg": "ES256", "typ": "at+jwt", "kid": "bench" });
        let claims =
            json!({ "iss": self.name, "sub": "bench", "aud": AUDIENCE, "exp": now + GOOD.as_secs(), "iat": now });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&head), part(&claims));
        let signature = self.key.sign(&self.random, text.as_bytes());
        signature.map(|signature| format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))).unwrap_or_default()
    }
}

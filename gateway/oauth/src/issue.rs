//! The keys that Weir signs its own tokens with, as an authorization server.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::crypto;

/// A key for ES256 (RFC 7518 §3.4).
pub struct SigningKey {
    id: String,
    pkcs8: Zeroizing<Vec<u8>>,
    jwk: Value,
}

impl SigningKey {
    /// A new key; none if the system has no randomness.
    pub fn generate() -> Option<Self> {
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).ok()?;
        Self::from_pkcs8(pkcs8.as_ref())
    }

    /// The key in a document of PKCS#8; none if it is no key for ES256.
    pub fn from_pkcs8(pkcs8: &[u8]) -> Option<Self> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &SystemRandom::new()).ok()?;
        // An uncompressed point: a byte 4, then both coordinates (SEC 1 §2.3.3).
        let (x, y) = pair.public_key().as_ref().get(1..)?.split_at_checked(32)?;
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        // The thumbprint of the key (RFC 7638 §3.2).
        let named = format!("{{\"crv\":\"P-256\",\"kty\":\"EC\",\"x\":\"{x}\",\"y\":\"{y}\"}}");
        let id = URL_SAFE_NO_PAD.encode(digest(&SHA256, named.as_bytes()));
        let jwk = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": id, "use": "sig", "alg": "ES256" });
        Some(Self { id, pkcs8: Zeroizing::new(pkcs8.to_vec()), jwk })
    }

    /// The `kid`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The private key.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The public key (RFC 7517).
    pub fn jwk(&self) -> &Value {
        &self.jwk
    }

    /// A JWT with this `typ`; none if the system has no randomness.
    pub fn sign(&self, kind: &str, claims: &Value) -> Option<String> {
        crypto::install();
        let header = Header { typ: Some(kind.to_owned()), kid: Some(self.id.clone()), ..Header::new(Algorithm::ES256) };
        jsonwebtoken::encode(&header, claims, &EncodingKey::from_ec_der(&self.pkcs8)).ok()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::time::{Duration, UNIX_EPOCH};

    use weir_store::Clock;

    use super::*;
    use crate::inbound::{Issuer, Rejected, Verifier};

    #[tokio::test]
    async fn what_a_key_signs_its_public_half_checks() {
        let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let again = SigningKey::from_pkcs8(key.pkcs8()).unwrap();
        assert_eq!((again.id(), again.jwk()), (key.id(), key.jwk()));
        let issuer = Issuer {
            issuer: "https://weir.example".into(),
            audiences: vec!["https://weir.example/mcp".into()],
            keys: None,
            leeway: Duration::ZERO,
            algorithms: vec![Algorithm::ES256],
            groups: "groups".into(),
        };
        let verifier = Verifier::local(issuer, Clock::system());
        verifier.set_keys(vec![key.jwk().clone()]);
        let later = UNIX_EPOCH.elapsed().unwrap().as_secs() + 60;
        let claims =
            json!({ "iss": "https://weir.example", "aud": "https://weir.example/mcp", "sub": "ada", "exp": later });
        let found = verifier.verify(&key.sign("at+jwt", &claims).unwrap()).await.unwrap();
        assert_eq!(found.subject, "ada");
        assert_eq!(verifier.verify(&other.sign("at+jwt", &claims).unwrap()).await, Err(Rejected::Signature));
        let kind = key.sign("oauth-id-jag+jwt", &claims).unwrap();
        assert_eq!(verifier.verify(&kind).await, Err(Rejected::Malformed));
    }
}

//! Who Weir is to an authorization server, and how it shows that (RFC 6749 §2.3, RFC 7523 §2.2).

use std::time::UNIX_EPOCH;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;
use weir_store::{Clock, Secret};

use crate::crypto;

/// A client of an authorization server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuthApplication {
    pub id: String,
    /// How it shows that it is the one.
    pub auth: ClientAuth,
}

/// How a client shows who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Not at all: it has no secret to keep, PKCE does the work.
    None,
    Basic(Secret),
    Post(Secret),
    /// With a signed statement (`private_key_jwt`).
    PrivateKey(PrivateKey),
    /// With a statement that somebody else has signed: the platform on which Weir runs (RFC 7523 §2.2).
    Assertion(Secret),
}

/// A key that signs for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateKey {
    /// In PEM: PKCS#8, or PKCS#1 for RSA.
    pub pem: Secret,
    /// `RS256` … `RS512`, `PS256` … `PS512`, `ES256`, `ES384`, `EdDSA`.
    pub algorithm: String,
    /// Its name at the authorization server, where that is needed.
    pub id: Option<String>,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KeyFault {
    #[error("a client cannot sign with the algorithm `{0}`; use RS256, PS256, ES256, EdDSA or a longer one of them")]
    Algorithm(String),
    #[error("the private key of the client is no PEM of a key for {0}")]
    Key(String),
    #[error("no key and no signature can be made: the system gives no randomness")]
    Random,
}

/// What a statement of a client is called (RFC 7523 §2.2).
pub(crate) const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// What is kept of a client with a statement of somebody else; RFC 7591 has no name for it.
const ASSERTION: &str = "client_assertion";
/// A statement is used at once. This leaves room for clocks that differ.
const ASSERTION_TTL_SECONDS: u64 = 300;

impl OAuthApplication {
    pub fn public(id: impl Into<String>) -> Self {
        Self { id: id.into(), auth: ClientAuth::None }
    }
}

impl PrivateKey {
    /// A statement of the client `id` for the server `audience`, for one use.
    pub(crate) fn assertion(&self, id: &str, audience: &str, clock: &Clock) -> Result<Secret, KeyFault> {
        let algorithm: Algorithm = self.algorithm.parse().map_err(|_| KeyFault::Algorithm(plain(&self.algorithm)))?;
        let fault = |_| KeyFault::Key(self.algorithm.clone());
        let pem = self.pem.expose().as_bytes();
        let key = match algorithm {
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
                return Err(KeyFault::Algorithm(self.algorithm.clone()));
            }
            Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_pem(pem).map_err(fault)?,
            Algorithm::EdDSA => EncodingKey::from_ed_pem(pem).map_err(fault)?,
            _ => EncodingKey::from_rsa_pem(pem).map_err(fault)?,
        };
        let mut header = Header::new(algorithm);
        header.kid.clone_from(&self.id);
        let now = clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut unique = [0; 16];
        getrandom::fill(&mut unique).map_err(|_| KeyFault::Random)?;
        let claims = json!({
            "iss": id,
            "sub": id,
            "aud": audience,
            "iat": now,
            "exp": now + ASSERTION_TTL_SECONDS,
            "jti": URL_SAFE_NO_PAD.encode(unique),
        });
        crypto::install();
        jsonwebtoken::encode(&header, &claims, &key).map(Secret::new).map_err(fault)
    }
}

/// A client as it is kept, in the encrypted part of a store.
#[derive(Deserialize, Serialize)]
pub(crate) struct ClientRecord {
    id: String,
    /// As in RFC 7591 §2, `token_endpoint_auth_method`.
    method: String,
    secret: Option<String>,
    algorithm: Option<String>,
    key_id: Option<String>,
}

impl From<&OAuthApplication> for ClientRecord {
    fn from(client: &OAuthApplication) -> Self {
        let (method, secret, key) = match &client.auth {
            ClientAuth::None => ("none", None, None),
            ClientAuth::Basic(secret) => ("client_secret_basic", Some(secret), None),
            ClientAuth::Post(secret) => ("client_secret_post", Some(secret), None),
            ClientAuth::PrivateKey(key) => ("private_key_jwt", Some(&key.pem), Some(key)),
            ClientAuth::Assertion(statement) => (ASSERTION, Some(statement), None),
        };
        Self {
            id: client.id.clone(),
            method: method.to_owned(),
            secret: secret.map(|secret| secret.expose().to_owned()),
            algorithm: key.map(|key| key.algorithm.clone()),
            key_id: key.and_then(|key| key.id.clone()),
        }
    }
}

impl ClientRecord {
    pub(crate) fn into_client(self) -> OAuthApplication {
        let auth = match (self.method.as_str(), self.secret.map(Secret::new), self.algorithm) {
            ("private_key_jwt", Some(pem), Some(algorithm)) => {
                ClientAuth::PrivateKey(PrivateKey { pem, algorithm, id: self.key_id })
            }
            (ASSERTION, Some(statement), _) => ClientAuth::Assertion(statement),
            (method, secret, _) => ClientAuth::with_secret(secret, method),
        };
        OAuthApplication { id: self.id, auth }
    }
}

impl ClientAuth {
    /// With the secret that a client has, if it has one, in the way of this name (RFC 7591 §2).
    pub(crate) fn with_secret(secret: Option<Secret>, method: &str) -> Self {
        match (secret, method) {
            (None, _) | (_, "none") => Self::None,
            (Some(secret), "client_secret_post") => Self::Post(secret),
            (Some(secret), _) => Self::Basic(secret),
        }
    }
}

/// A word for a message, if it is one.
fn plain(word: &str) -> String {
    if word.len() <= 32 && word.bytes().all(|byte| byte.is_ascii_graphic()) { word.to_owned() } else { "?".to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn what_is_no_key_says_so_and_does_not_show_it() {
        for (algorithm, fault) in [
            ("HS256", KeyFault::Algorithm("HS256".to_owned())),
            ("none", KeyFault::Algorithm("none".to_owned())),
            ("ES256", KeyFault::Key("ES256".to_owned())),
            ("RS256", KeyFault::Key("RS256".to_owned())),
            ("EdDSA", KeyFault::Key("EdDSA".to_owned())),
        ] {
            let pem = Secret::new("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n".to_owned());
            let key = PrivateKey { pem, algorithm: algorithm.to_owned(), id: None };
            assert_eq!(key.assertion("weir", "https://a.example", &Clock::system()).unwrap_err(), fault);
            assert!(!format!("{key:?} {fault}").contains("hunter2"));
        }
    }
}

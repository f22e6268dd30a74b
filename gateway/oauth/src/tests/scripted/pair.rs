//! Keys of issuers that tests make up.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
};
use serde_json::{Value, json};

use crate::crypto;

/// A key of the issuer.
pub(crate) struct Pair {
    pub(crate) key: EncodingKey,
    pub(crate) jwk: Value,
    algorithm: Algorithm,
}

pub(crate) fn ec(id: &str) -> Pair {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let encode = |part| URL_SAFE_NO_PAD.encode(part);
    let jwk = json!({ "kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y), "kid": id, "use": "sig" });
    Pair { key: EncodingKey::from_ec_der(pkcs8.as_ref()), jwk, algorithm: Algorithm::ES256 }
}

pub(crate) fn ed(id: &str) -> Pair {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": id, "alg": "EdDSA" });
    Pair { key: EncodingKey::from_ed_der(pkcs8.as_ref()), jwk, algorithm: Algorithm::EdDSA }
}

/// A token with these claims.
pub(crate) fn sign(pair: &Pair, header: impl FnOnce(&mut Header), claims: &Value) -> String {
    crypto::install();
    let mut head = Header::new(pair.algorithm);
    head.kid = pair.jwk["kid"].as_str().map(str::to_owned);
    header(&mut head);
    jsonwebtoken::encode(&head, claims, &pair.key).unwrap()
}

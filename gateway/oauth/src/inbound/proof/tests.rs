#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::json;

use super::*;

const TOKEN: &str = "hunter2";
const NOW: u64 = 1_700_000_000;

/// A caller with a key.
struct Holder {
    pair: EcdsaKeyPair,
    jwk: Value,
}

impl Holder {
    fn new() -> Self {
        let (random, curve) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(curve, pkcs8.as_ref(), &random).unwrap();
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let jwk =
            json!({ "kty": "EC", "crv": "P-256", "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y) });
        Self { pair, jwk }
    }

    fn thumbprint(&self) -> String {
        proof::thumbprint(&self.jwk).unwrap()
    }

    fn sign(&self, head: &str, claims: &str) -> String {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(head), URL_SAFE_NO_PAD.encode(claims));
        let signed = self.pair.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signed.as_ref()))
    }

    /// A proof as it should be, but for what is changed in its head and its claims; null takes away.
    fn proof(&self, head: Value, claims: Value) -> String {
        let mut whole = [
            json!({ "typ": "dpop+jwt", "alg": "ES256", "jwk": self.jwk }),
            json!({ "jti": "one", "htm": "POST", "htu": "https://weir.example/mcp", "iat": NOW,
                "ath": proof::hash(TOKEN.as_bytes()) }),
        ];
        for (whole, change) in whole.iter_mut().zip([head, claims]) {
            for (name, value) in change.as_object().unwrap() {
                match value.is_null() {
                    true => drop(whole.as_object_mut().unwrap().remove(name)),
                    false => whole[name.as_str()] = value.clone(),
                }
            }
        }
        self.sign(&whole[0].to_string(), &whole[1].to_string())
    }
}

fn check(used: &UsedProofs, holder: &Holder, proof: &str, seconds: u64) -> Result<(), ProofError> {
    check_nonce(used, holder, proof, seconds, &[])
}

fn check_nonce(
    used: &UsedProofs,
    holder: &Holder,
    proof: &str,
    seconds: u64,
    nonces: &[String],
) -> Result<(), ProofError> {
    let thumbprint = holder.thumbprint();
    let (url, caller) = ("https://weir.example/mcp", "ada");
    let request = ProvedRequest { method: "POST", url, token: TOKEN, thumbprint: &thumbprint, caller, nonces };
    used.check(proof, &request, UNIX_EPOCH + Duration::from_secs(seconds))
}

#[test]
fn hostile_proofs_open_nothing() {
    let (holder, other) = (Holder::new(), Holder::new());
    let head = |change| holder.proof(change, json!({}));
    let claims = |change| holder.proof(json!({}), change);
    let mut private = holder.jwk.clone();
    private["d"] = "AAAA".into();
    let secret = json!({ "kty": "oct", "k": "AAAA" });
    let point = json!({ "kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA" });
    let good = head(json!({}));
    let parts: Vec<&str> = good.split('.').collect();
    let twice =
        format!(r#"{{"htm":"GET",{}"#, &String::from_utf8(URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap()[1..]);
    let forged = other.proof(json!({ "jwk": holder.jwk }), json!({}));
    for (name, proof, why) in [
        ("nothing", String::new(), ProofError::Malformed),
        ("no JWT", "a.b.c".to_owned(), ProofError::Malformed),
        ("100 KB", format!("{good}{}", "A".repeat(100_000)), ProofError::Malformed),
        ("more parts", format!("{good}.{}", parts[2]), ProofError::Signature),
        ("an access token", head(json!({ "typ": "at+jwt" })), ProofError::Malformed),
        ("no type", head(json!({ "typ": null })), ProofError::Malformed),
        ("critical parameters", head(json!({ "crit": ["b64"] })), ProofError::Malformed),
        ("none", head(json!({ "alg": "none" })), ProofError::Algorithm),
        ("HS256", head(json!({ "alg": "HS256" })), ProofError::Algorithm),
        ("a key of another kind", head(json!({ "alg": "RS256" })), ProofError::Algorithm),
        ("another curve", head(json!({ "alg": "ES384" })), ProofError::Signature),
        ("no key", head(json!({ "jwk": null })), ProofError::Malformed),
        ("a private key", head(json!({ "jwk": private })), ProofError::PrivateKey),
        ("a shared key", head(json!({ "jwk": secret })), ProofError::PrivateKey),
        ("no point of the curve", head(json!({ "jwk": point })), ProofError::Signature),
        ("signed by another", forged, ProofError::Signature),
        ("changed", [parts[0], &URL_SAFE_NO_PAD.encode("{}"), parts[2]].join("."), ProofError::Signature),
        ("another key", other.proof(json!({}), json!({})), ProofError::Key),
        (
            "a claim twice",
            holder.sign(&String::from_utf8(URL_SAFE_NO_PAD.decode(parts[0]).unwrap()).unwrap(), &twice),
            ProofError::Signature,
        ),
        ("another method", claims(json!({ "htm": "GET" })), ProofError::Method),
        ("a method in small letters", claims(json!({ "htm": "post" })), ProofError::Method),
        ("another path", claims(json!({ "htu": "https://weir.example/mcp/docs" })), ProofError::Url),
        ("another host", claims(json!({ "htu": "https://evil.example/mcp" })), ProofError::Url),
        ("no TLS", claims(json!({ "htu": "http://weir.example/mcp" })), ProofError::Url),
        ("a longer host", claims(json!({ "htu": "https://weir.example.evil/mcp" })), ProofError::Url),
        ("no URL", claims(json!({ "htu": "/mcp" })), ProofError::Url),
        ("another token", claims(json!({ "ath": proof::hash(b"other") })), ProofError::Token),
        ("no token", claims(json!({ "ath": null })), ProofError::Token),
        ("old", claims(json!({ "iat": NOW - 61 })), ProofError::Time),
        ("of the future", claims(json!({ "iat": NOW + 16 })), ProofError::Time),
        ("no time", claims(json!({ "iat": null })), ProofError::Time),
        ("a time without end", claims(json!({ "iat": 1e300 })), ProofError::Time),
        ("a time that is text", claims(json!({ "iat": NOW.to_string() })), ProofError::Time),
        ("a time below zero", claims(json!({ "iat": -1 })), ProofError::Time),
        ("no id", claims(json!({ "jti": null })), ProofError::Malformed),
        ("an empty id", claims(json!({ "jti": "" })), ProofError::Malformed),
        ("an id without end", claims(json!({ "jti": "a".repeat(600) })), ProofError::Malformed),
    ] {
        let used = UsedProofs::default();
        assert_eq!(check(&used, &holder, &proof, NOW), Err(why), "{name}");
        assert_eq!(used.0.lock().count, 0, "{name}");
    }
    assert_eq!(check(&UsedProofs::default(), &holder, &good, NOW), Ok(()));
}

#[test]
fn a_proof_has_one_of_the_nonces_where_there_are_some() {
    let (holder, used) = (Holder::new(), UsedProofs::default());
    let nonces = ["new".to_owned(), "old".to_owned()];
    for wrong in [json!({}), json!({ "nonce": "" }), json!({ "nonce": "older" }), json!({ "nonce": 1 })] {
        let proof = holder.proof(json!({}), wrong.clone());
        assert_eq!(check_nonce(&used, &holder, &proof, NOW, &nonces), Err(ProofError::Nonce), "{wrong}");
        assert_eq!(used.0.lock().count, 0, "{wrong}");
    }
    for nonce in &nonces {
        let proof = holder.proof(json!({}), json!({ "nonce": nonce, "jti": nonce }));
        assert_eq!(check_nonce(&used, &holder, &proof, NOW, &nonces), Ok(()));
    }
}

#[test]
fn a_url_is_compared_as_its_syntax_has_it() {
    for named in ["HTTPS://Weir.Example:443/mcp", "https://weir.example/mcp?a=b#c", "https://weir.example/x/../mcp"] {
        let holder = Holder::new();
        let proof = holder.proof(json!({}), json!({ "htu": named }));
        assert_eq!(check(&UsedProofs::default(), &holder, &proof, NOW), Ok(()), "{named}");
    }
}

#[test]
fn a_proof_is_good_once() {
    let (holder, used) = (Holder::new(), UsedProofs::default());
    let proof = holder.proof(json!({}), json!({}));
    assert_eq!(check(&used, &holder, &proof, NOW), Ok(()));
    for later in 0..=OLDEST {
        assert_eq!(check(&used, &holder, &proof, NOW + later), Err(ProofError::Replayed), "{later}");
    }
    assert_eq!(check(&used, &holder, &proof, NOW + OLDEST + 1), Err(ProofError::Time));
    let next = holder.proof(json!({}), json!({ "iat": NOW + OLDEST + 1, "jti": "two" }));
    assert_eq!(check(&used, &holder, &next, NOW + OLDEST + 1), Ok(()));
    assert_eq!(used.0.lock().count, 1, "what cannot come again is forgotten");
}

#[test]
fn what_is_remembered_has_a_share_for_each_caller() {
    let mut seen = Seen::default();
    let id = |number: usize| u128::try_from(number).unwrap().to_le_bytes();
    for number in 0..MAX_PER_SECOND {
        assert_eq!(seen.keep(id(number), "eve", NOW, NOW), Ok(()));
    }
    assert_eq!(seen.keep(id(MAX_PER_SECOND), "eve", NOW, NOW), Err(ProofError::Full));
    assert_eq!(seen.keep(id(0), "ada", NOW, NOW), Ok(()), "nobody else notices");
    assert_eq!(seen.keep(id(0), "eve", NOW + 1, NOW), Ok(()));
    // One caller does not fill what all share, over however many seconds.
    let of_eve = (0..75).flat_map(|second| (0..MAX_PER_SECOND).map(move |number| (second, number)));
    let kept = of_eve.filter(|(second, number)| seen.keep(id(*number), "eve", NOW + second, NOW).is_ok()).count();
    assert_eq!(kept + MAX_PER_SECOND + 1, MAX_OF_CALLER);
    assert_eq!(seen.keep(id(1), "ada", NOW, NOW), Ok(()));
    // What is forgotten counts no more.
    assert_eq!(seen.keep(id(1), "eve", NOW + 200, NOW + 200), Ok(()));
    assert_eq!((seen.count, seen.counts.len()), (1, 1));
    seen.count = MAX_SEEN;
    assert_eq!(seen.keep(id(1), "ada", NOW + 200, NOW + 200), Err(ProofError::Full));
}

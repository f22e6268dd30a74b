#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey, Validation, jwk::Jwk};

use super::*;

const URL: &str = "https://mcp.example/mcp";

/// The header and the claims of a proof whose signature is good.
fn read(proof: &HeaderValue) -> (Value, Value) {
    crate::crypto::install();
    let text = proof.to_str().unwrap();
    let part = |at: usize| URL_SAFE_NO_PAD.decode(text.split('.').nth(at).unwrap()).unwrap();
    let head: Value = serde_json::from_slice(&part(0)).unwrap();
    let jwk: Jwk = serde_json::from_value(head["jwk"].clone()).unwrap();
    let mut validation = Validation::new(Algorithm::ES256);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    let claims = jsonwebtoken::decode::<Value>(text, &DecodingKey::from_jwk(&jwk).unwrap(), &validation).unwrap();
    (head, claims.claims)
}

fn value(text: &'static str) -> HeaderValue {
    HeaderValue::from_static(text)
}

#[test]
fn a_proof_is_for_one_request() {
    let key = ProofKey::generate().unwrap();
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    // RFC 9449 §4.1 has this hash for this token (figure 14).
    let token_hash = hash(b"Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU");
    assert_eq!(token_hash, "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo");
    let proof = key.proof("POST", URL, Some(&token_hash), now).unwrap();
    let (head, claims) = read(&proof);
    assert_eq!((head["typ"].as_str(), head["alg"].as_str()), (Some("dpop+jwt"), Some("ES256")));
    assert!(head["jwk"]["d"].is_null() && head.as_object().unwrap().len() == 3);
    let said = |name: &str| claims[name].as_str().unwrap_or_default();
    assert_eq!((said("htm"), said("htu"), said("ath")), ("POST", URL, token_hash.as_str()));
    assert_eq!(claims["iat"], 1_700_000_000);
    let (_, next) = read(&key.proof("POST", URL, None, now).unwrap());
    assert!(next["jti"] != claims["jti"] && next["ath"].is_null() && next["nonce"].is_null());
    assert!(proof.is_sensitive());
}

#[test]
fn a_thumbprint_is_that_of_the_specification() {
    let key = ProofKey::generate().unwrap();
    let (head, _) = read(&key.proof("GET", URL, None, UNIX_EPOCH).unwrap());
    let mut whole = head["jwk"].clone();
    whole["use"] = "sig".into();
    assert_eq!(thumbprint(&whole).unwrap(), key.thumbprint());
    // RFC 7638 §3.1, and the key of RFC 8037 appendix A.3.
    let rsa = json!({
        "kty": "RSA", "e": "AQAB", "alg": "RS256", "kid": "2011-04-29",
        "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3ok\
              njhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6\
              qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awa\
              pJzKnqDKgw",
    });
    assert_eq!(thumbprint(&rsa).unwrap(), "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
    let ed = json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
    assert_eq!(thumbprint(&ed).unwrap(), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    for none in
        [json!({ "kty": "oct", "k": "AAAA" }), json!({ "kty": "EC", "crv": "P-256", "x": 1, "y": "b" }), json!(1)]
    {
        assert_eq!(thumbprint(&none), None, "{none}");
    }
}

#[test]
fn each_origin_has_its_latest_nonce() {
    let key = ProofKey::generate().unwrap();
    let nonce = |url: &str| read(&key.proof("GET", url, None, UNIX_EPOCH).unwrap()).1["nonce"].clone();
    assert!(key.learn(URL, Some(&value("first"))) && key.learn("https://as.example/token", Some(&value("other"))));
    assert!(key.learn("https://mcp.example/elsewhere", Some(&value("second"))));
    assert_eq!((nonce(URL), nonce("https://as.example/x")), ("second".into(), "other".into()));
    assert_eq!(nonce("https://mcp.example.evil/mcp"), Value::Null);
    for wrong in [None, Some(value("")), Some(value("a b")), Some(value("a\"b"))] {
        assert!(!key.learn(URL, wrong.as_ref()), "{wrong:?}");
    }
    let long = HeaderValue::from_str(&"n".repeat(MAX_NONCE + 1)).unwrap();
    assert!(!key.learn(URL, Some(&long)));
    assert_eq!(nonce(URL), "second");
    for n in 0..100 {
        key.learn(&format!("https://{n}.example/"), Some(&value("n")));
    }
    assert_eq!(key.nonces.lock().len(), MAX_ORIGINS);
}

#[test]
fn a_key_comes_back_from_the_store_and_is_never_shown() {
    let key = ProofKey::generate().unwrap();
    let back = ProofKey::restore(key.stored().clone()).unwrap();
    assert_eq!(back.thumbprint(), key.thumbprint());
    assert!(!format!("{key:?}").contains(&key.stored().expose()[..16]));
    assert!(ProofKey::restore(Secret::new("hunter2".to_owned())).is_none());
}

#[test]
fn the_configuration_decides_and_then_the_upstream() {
    let with = ServerMetadata { dpop_signing_alg_values_supported: vec!["ES256".to_owned()], ..Default::default() };
    let other = ServerMetadata { dpop_signing_alg_values_supported: vec!["RS256".to_owned()], ..Default::default() };
    let (unsaid, accepted, required) = (ProofDemand::Unsaid, ProofDemand::Accepted, ProofDemand::Required);
    for (configured, demand, server, bound) in [
        // A server that can bind tokens says nothing of what the upstream reads.
        (None, unsaid, &with, None),
        (None, accepted, &with, Some(false)),
        (None, accepted, &other, None),
        (None, required, &with, Some(true)),
        (None, required, &other, Some(true)),
        (Some(true), unsaid, &other, Some(true)),
        (Some(false), required, &with, None),
    ] {
        let chosen = KeyBinding::choose(configured, demand, server).unwrap();
        assert_eq!(chosen.map(|binding| binding.bound), bound, "{configured:?} {demand:?}");
    }
}

#[test]
fn an_upstream_asks_in_its_refusal_or_in_its_metadata() {
    let said = |text: &str| Challenge::token([text.as_bytes()]);
    let metadata = |text: &str| serde_json::from_str::<ResourceMetadata>(text).unwrap();
    let silent = metadata(r#"{"resource":"https://mcp.example"}"#);
    let accepts = metadata(r#"{"resource":"https://mcp.example","dpop_signing_alg_values_supported":["ES256"]}"#);
    let requires = metadata(r#"{"resource":"https://mcp.example","dpop_bound_access_tokens_required":true}"#);
    assert_eq!(ProofDemand::of(said("DPoP algs=\"ES256\"").as_ref(), None), ProofDemand::Required);
    assert_eq!(ProofDemand::of(said("Bearer, DPoP algs=ES256").as_ref(), Some(&silent)), ProofDemand::Unsaid);
    assert_eq!(ProofDemand::of(said("Bearer").as_ref(), Some(&accepts)), ProofDemand::Accepted);
    assert_eq!(ProofDemand::of(None, Some(&requires)), ProofDemand::Required);
    let both = said("Bearer, DPoP error=insufficient_scope, scope=\"a\"").unwrap();
    assert_eq!((both.scheme.as_str(), both.scope()), ("dpop", Some("a")));
}

#[test]
fn a_nonce_is_asked_for_by_its_own_scheme() {
    for (text, asks) in [
        ("DPoP error=\"use_dpop_nonce\"", true),
        ("Bearer realm=a, DPoP realm=b, error=use_dpop_nonce", true),
        ("Bearer error=\"use_dpop_nonce\"", false),
        ("DPoP error=\"invalid_token\"", false),
    ] {
        assert_eq!(asks_for_nonce([text.as_bytes()]), asks, "{text}");
    }
}

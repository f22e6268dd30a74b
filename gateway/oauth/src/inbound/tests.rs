#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use weir_store::Clock;

use super::*;
use crate::{
    Challenge,
    tests::scripted::{
        Scripted, ScriptedReply, http,
        pair::{Pair, ec, ed, sign},
    },
};

const NOW: u64 = 1_800_000_000;

/// An issuer whose keys a test may change, and a checker of its tokens.
struct Scene {
    server: Scripted,
    keys: Arc<Mutex<Value>>,
    now: Arc<AtomicU64>,
    verifier: Verifier,
}

async fn scene(keys: &[&Pair]) -> Scene {
    let keys = Arc::new(Mutex::new(json!({ "keys": keys.iter().map(|pair| &pair.jwk).collect::<Vec<_>>() })));
    let published = Arc::clone(&keys);
    let server = Scripted::start(move |own, seen| match seen.path.as_str() {
        "/.well-known/openid-configuration" => ScriptedReply::json(
            200,
            &json!({ "issuer": own.origin().ascii_serialization(), "jwks_uri": own.join("/keys").unwrap() }),
        ),
        "/keys" => match &*published.lock() {
            Value::Null => ScriptedReply::status(503),
            keys => ScriptedReply::json(200, keys),
        },
        _ => ScriptedReply::status(404),
    })
    .await;
    let now = Arc::new(AtomicU64::new(NOW));
    let clock = Clock::from_fn({
        let now = Arc::clone(&now);
        move || UNIX_EPOCH + Duration::from_secs(now.load(Ordering::Relaxed))
    });
    let issuer = Issuer {
        issuer: server.issuer(),
        audiences: vec!["https://weir.example/mcp".to_owned()],
        keys: None,
        leeway: Duration::from_secs(60),
        algorithms: Vec::new(),
        groups: "groups".to_owned(),
    };
    let verifier = Verifier::new(issuer, http(), clock);
    Scene { server, keys, now, verifier }
}

impl Scene {
    fn claims(&self, fields: Value) -> Value {
        let mut claims = json!({
            "iss": self.server.issuer(), "aud": "https://weir.example/mcp", "sub": "alice", "exp": NOW + 600,
            "scope": "read write", "groups": ["staff"],
        });
        for (name, value) in fields.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
                value => claims[name] = value.clone(),
            }
        }
        claims
    }

    async fn verify(&self, pair: &Pair, fields: Value) -> Result<VerifiedToken, Rejected> {
        self.verifier.verify(&sign(pair, |_| (), &self.claims(fields))).await
    }
}

#[tokio::test]
async fn a_good_token_says_who_calls() {
    let (ec, ed) = (ec("one"), ed("two"));
    let scene = scene(&[&ec, &ed]).await;
    for pair in [&ec, &ed] {
        let principal = scene.verify(pair, json!({ "aud": ["x", "https://weir.example/mcp"] })).await.unwrap();
        assert_eq!((principal.subject.as_str(), principal.issuer), ("alice", scene.server.issuer()));
        assert_eq!(principal.scopes.render(), "read write");
        assert_eq!(principal.groups, ["staff"]);
        assert_eq!(principal.expires, UNIX_EPOCH + Duration::from_secs(NOW + 600));
    }
    let scp = scene.verify(&ec, json!({ "scope": null, "scp": ["b", "a"] })).await.unwrap();
    assert_eq!(scp.scopes.render(), "a b");
    for kind in [None, Some("JWT"), Some("at+jwt"), Some("application/AT+JWT")] {
        let token = sign(&ec, |head| head.typ = kind.map(str::to_owned), &scene.claims(json!({})));
        assert!(scene.verifier.verify(&token).await.is_ok(), "{kind:?}");
    }
    let unnamed = sign(&ec, |head| head.kid = None, &scene.claims(json!({})));
    assert!(scene.verifier.verify(&unnamed).await.is_ok(), "a token need not name its key");
    assert_eq!(scene.server.seen("/keys").len(), 1, "the keys are fetched once");
}

#[tokio::test]
async fn each_wrong_claim_has_its_name() {
    let pair = ec("one");
    let scene = scene(&[&pair]).await;
    for (fields, expected) in [
        (json!({ "iss": "https://evil.example" }), Rejected::Issuer),
        (json!({ "iss": format!("{}/", scene.server.issuer()) }), Rejected::Issuer),
        (json!({ "iss": null }), Rejected::Issuer),
        (json!({ "aud": "https://weir.example/" }), Rejected::Audience),
        (json!({ "aud": ["other"] }), Rejected::Audience),
        (json!({ "aud": [] }), Rejected::Audience),
        (json!({ "aud": null }), Rejected::Audience),
        (json!({ "aud": { "a": "https://weir.example/mcp" } }), Rejected::Audience),
        (json!({ "exp": null }), Rejected::Missing("exp")),
        (json!({ "exp": "tomorrow" }), Rejected::Missing("exp")),
        (json!({ "exp": -5 }), Rejected::Expired),
        (json!({ "exp": NOW - 60 }), Rejected::Expired),
        (json!({ "nbf": NOW + 61 }), Rejected::Early),
        (json!({ "nbf": "x" }), Rejected::Early),
        (json!({ "sub": null }), Rejected::Missing("sub")),
        (json!({ "sub": "" }), Rejected::Missing("sub")),
        (json!({ "groups": 7 }), Rejected::Groups),
        (json!({ "groups": null, "_claim_names": { "groups": "src1" } }), Rejected::Groups),
    ] {
        assert_eq!(scene.verify(&pair, fields.clone()).await.unwrap_err(), expected, "{fields}");
    }
    for fields in [json!({ "exp": NOW - 59 }), json!({ "nbf": NOW + 60 }), json!({ "exp": 1e18 })] {
        assert!(scene.verify(&pair, fields.clone()).await.is_ok(), "{fields}");
    }
}

#[tokio::test]
async fn clocks_may_differ_by_what_the_config_says() {
    let pair = ec("one");
    let scene = scene(&[&pair]).await;
    let lenient = Issuer {
        issuer: scene.server.issuer(),
        audiences: vec!["https://weir.example/mcp".to_owned()],
        keys: Some(scene.server.at("/keys")),
        leeway: Duration::from_secs(300),
        algorithms: vec![Algorithm::ES256],
        groups: "groups".to_owned(),
    };
    let clock = Clock::from_fn(|| UNIX_EPOCH + Duration::from_secs(NOW));
    let lenient = Verifier::new(lenient, http(), clock);
    for (exp, good) in [(NOW - 299, true), (NOW - 300, false)] {
        let token = sign(&pair, |_| (), &scene.claims(json!({ "exp": exp })));
        assert_eq!(lenient.verify(&token).await.is_ok(), good);
        assert_eq!(scene.verifier.verify(&token).await, Err(Rejected::Expired));
    }
}

#[tokio::test]
async fn a_signature_is_by_a_key_of_the_issuer_in_a_way_that_is_accepted() {
    let (ours, theirs) = (ec("one"), ec("one"));
    let scene = scene(&[&ours]).await;
    assert_eq!(scene.verify(&theirs, json!({})).await, Err(Rejected::Signature));
    assert_eq!(scene.verify(&ec("other"), json!({})).await, Err(Rejected::Signature));
    let good = sign(&ours, |_| (), &scene.claims(json!({})));
    let parts: Vec<&str> = good.split('.').collect();
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let changed = encode(&scene.claims(json!({ "sub": "mallory" })));
    let tampered = format!("{}.{changed}.{}", parts[0], parts[2]);
    assert_eq!(scene.verifier.verify(&tampered).await, Err(Rejected::Signature));
    for (head, expected) in [
        (json!({ "alg": "none" }), Rejected::Malformed),
        (json!({ "alg": "HS256", "kid": "one" }), Rejected::Algorithm),
        (json!({ "alg": "RS512", "kid": "one" }), Rejected::Algorithm),
        (json!({ "alg": "RS256", "kid": "one" }), Rejected::Signature),
        (json!({ "alg": "ES256", "typ": "dpop+jwt" }), Rejected::Malformed),
        (json!({ "alg": "ES256", "typ": "logout+jwt" }), Rejected::Malformed),
    ] {
        for signature in ["", parts[2]] {
            let token = format!("{}.{}.{signature}", encode(&head), parts[1]);
            assert_eq!(scene.verifier.verify(&token).await, Err(expected.clone()), "{head}");
        }
    }
    for token in ["", ".", "..", "a.b.c", "a.b.c.d", &"x".repeat(20_000), &format!("{}.", parts[0]), "\u{0}"] {
        assert!(scene.verifier.verify(token).await.is_err());
    }
    // The public key as a shared secret, the oldest trick.
    let shared = EncodingKey::from_secret(ours.jwk.to_string().as_bytes());
    assert!(jsonwebtoken::encode(&Header::new(Algorithm::HS256), &json!({}), &shared).is_err());
}

#[tokio::test]
async fn new_keys_are_found_and_old_ones_go_but_nobody_can_make_us_ask_all_the_time() {
    let (old, new) = (ec("old"), ec("new"));
    let scene = scene(&[&old]).await;
    assert!(scene.verify(&old, json!({})).await.is_ok());
    let later = |seconds| scene.now.fetch_add(seconds, Ordering::Relaxed);
    for _ in 0..20 {
        assert_eq!(scene.verify(&new, json!({})).await, Err(Rejected::Signature));
    }
    assert_eq!(scene.server.seen("/keys").len(), 2, "once more, and not so soon after it was in vain");
    *scene.keys.lock() = json!({ "keys": [{ "kty": "new kind" }, new.jwk] });
    later(10);
    assert!(scene.verify(&new, json!({})).await.is_ok(), "a rotation is noticed");
    assert_eq!(scene.verify(&old, json!({})).await, Err(Rejected::Signature));
    later(400);
    *scene.keys.lock() = Value::Null;
    assert!(scene.verify(&new, json!({})).await.is_ok());
    later(3700);
    assert!(
        scene.verify(&new, json!({ "exp": NOW + 10_000 })).await.is_ok(),
        "an outage of the issuer locks nobody out"
    );
    let fetched = scene.server.seen("/keys").len();
    assert!(scene.verify(&new, json!({ "exp": NOW + 10_000 })).await.is_ok());
    assert_eq!(scene.server.seen("/keys").len(), fetched);
    // Not for ever: whoever left meanwhile could not be told from the others.
    later(24 * 3600);
    let refused = scene.verify(&new, json!({ "exp": NOW + 200_000 })).await;
    assert!(matches!(refused, Err(Rejected::Unavailable(_))), "{refused:?}");
    *scene.keys.lock() = json!({ "keys": [new.jwk] });
    later(10);
    assert!(scene.verify(&new, json!({ "exp": NOW + 200_000 })).await.is_ok());
}

#[tokio::test]
async fn what_is_not_understood_or_not_checked_opens_nothing() {
    let pair = ec("one");
    let scene = scene(&[&pair]).await;
    for names in [&["b64"][..], &["exp"], &[]] {
        let critical = names.iter().map(|name| (*name).to_owned()).collect();
        let token = sign(&pair, |head| head.crit = Some(critical), &scene.claims(json!({})));
        assert_eq!(scene.verifier.verify(&token).await, Err(Rejected::Critical), "{names:?}");
    }
    let bound = scene.verify(&pair, json!({ "cnf": { "x5t#S256": "abc" } })).await.unwrap();
    assert_eq!(bound.certificate.as_deref(), Some("abc"));
    let both = json!({ "x5t#S256": "abc", "jkt": "abc" });
    let bound = scene.verify(&pair, json!({ "cnf": { "jkt": "abc" } })).await.unwrap();
    assert_eq!((bound.key.as_deref(), bound.certificate), (Some("abc"), None));
    for cnf in [json!({ "jkt": 1 }), both, json!({ "x5t#S256": 1 }), json!({}), json!("abc")] {
        assert_eq!(scene.verify(&pair, json!({ "cnf": cnf })).await, Err(Rejected::Bound), "{cnf}");
    }
}

#[tokio::test]
async fn without_keys_nothing_is_said_about_the_token() {
    let pair = ec("one");
    let scene = scene(&[&pair]).await;
    *scene.keys.lock() = Value::Null;
    for _ in 0..5 {
        assert!(matches!(scene.verify(&pair, json!({})).await, Err(Rejected::Unavailable(_))));
    }
    assert_eq!(scene.server.seen("/keys").len(), 1);
    *scene.keys.lock() = json!({ "keys": [pair.jwk] });
    scene.now.fetch_add(10, Ordering::Relaxed);
    assert!(scene.verify(&pair, json!({})).await.is_ok());
}

#[tokio::test]
async fn many_callers_fetch_the_keys_once() {
    let pair = ec("one");
    let scene = Arc::new(scene(&[&pair]).await);
    let token = sign(&pair, |_| (), &scene.claims(json!({})));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (scene, token) = (Arc::clone(&scene), token.clone());
        tasks.spawn(async move { scene.verifier.verify(&token).await.is_ok() });
    }
    assert!(tasks.join_all().await.into_iter().all(|good| good));
    assert_eq!(scene.server.seen("/keys").len(), 1);
}

#[test]
fn who_is_not_let_in_is_told_where_to_go() {
    let scopes = ["read".to_owned(), "offline_access".to_owned()];
    let place = "https://weir.example/.well-known/oauth-protected-resource/mcp";
    let said = challenge(false, Some(place), Some("invalid_token"), &scopes[..1]);
    let heard = Challenge::token([said.as_bytes()]).unwrap();
    assert_eq!(
        (heard.resource_metadata(), heard.get("error"), heard.scope()),
        (Some(place), Some("invalid_token"), Some("read"))
    );
    assert_eq!(challenge(false, Some("https://x"), None, &[]), "Bearer resource_metadata=\"https://x\"");
    assert_eq!(
        challenge(false, Some("https://x/\"\r\nX: y"), None, &[]),
        "Bearer resource_metadata=\"https://x/X: y\""
    );
    assert_eq!(challenge(false, None, Some("invalid_token"), &[]), "Bearer realm=\"weir\", error=\"invalid_token\"");
    let document = metadata(
        "https://weir.example/mcp",
        &["https://as.example", "https://other.example"],
        &scopes.each_ref().map(String::as_str),
        None,
    );
    assert_eq!(document["resource"], "https://weir.example/mcp");
    assert_eq!(document["authorization_servers"], json!(["https://as.example", "https://other.example"]));
    assert_eq!(document["scopes_supported"], json!(["read"]));
    assert_eq!(document.get("dpop_bound_access_tokens_required"), None);
    let bound = metadata("a", &["b"], &[], Some(true));
    assert_eq!((bound.get("scopes_supported"), &bound["dpop_bound_access_tokens_required"]), (None, &json!(true)));
    let said = challenge(true, Some("https://x"), Some("invalid_dpop_proof"), &[]);
    let heard = Challenge::token([said.as_bytes()]).unwrap();
    assert_eq!((heard.scheme.as_str(), heard.get("error")), ("dpop", Some("invalid_dpop_proof")));
    assert_eq!(heard.get("algs"), Some("ES256 ES384 EdDSA RS256 PS256"));
}

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

use super::{
    pending::{MAX_WAITING, SHARE},
    *,
};
use crate::tests::scripted::{Scripted, ScriptedReply, http};

/// Where users come back to.
const BACK: &str = "/oauth/callback/0123";

fn sign_in(server: &Scripted, fields: serde_json::Value) -> SignIn {
    let mut metadata = json!({
        "issuer": server.issuer(),
        "authorization_endpoint": server.at("/authorize?tenant=1"),
        "token_endpoint": server.at("/token"),
        "code_challenge_methods_supported": ["plain", "S256"],
    });
    metadata.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    SignIn {
        server: serde_json::from_value(metadata).unwrap(),
        client: OAuthApplication::public("weir"),
        redirect: format!("http://127.0.0.1:3456{BACK}"),
        resource: Some("https://mcp.example/mcp".to_owned()),
        scopes: Scopes::parse("read write"),
        nonce: None,
        prompt: None,
        proof: None,
    }
}

async fn giving_tokens() -> Scripted {
    Scripted::start(|_, _| ScriptedReply::json(200, &json!({ "access_token": "hunter2", "expires_in": 60 }))).await
}

fn of(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

fn back(pending: &PendingSignIn, rest: &str) -> Callback {
    Callback::parse(&format!("{BACK}?state={}&{rest}", pending.state().expose()))
}

#[tokio::test]
async fn a_sign_in_says_what_it_is_for_at_both_ends() {
    let server = giving_tokens().await;
    let (url, pending) = begin(&http(), sign_in(&server, json!({}))).unwrap();
    assert_eq!(of(&url, "tenant").as_deref(), Some("1"));
    for (name, value) in [
        ("response_type", "code"),
        ("client_id", "weir"),
        ("redirect_uri", "http://127.0.0.1:3456/oauth/callback/0123"),
        ("scope", "read write"),
        ("resource", "https://mcp.example/mcp"),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(of(&url, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(of(&url, "prompt"), None);
    let callback = back(&pending, "code=abc%2Fdef");
    let tokens = pending.finish(&http(), callback, &Clock::system()).await.unwrap();
    assert_eq!(tokens.access.expose(), "hunter2");
    let sent = &server.seen("/token")[0];
    for (name, value) in [
        ("grant_type", "authorization_code"),
        ("code", "abc/def"),
        ("client_id", "weir"),
        ("redirect_uri", "http://127.0.0.1:3456/oauth/callback/0123"),
        ("resource", "https://mcp.example/mcp"),
    ] {
        assert_eq!(sent.form(name).as_deref(), Some(value), "{name}");
    }
    let verifier = sent.form("code_verifier").unwrap();
    let hash = ring::digest::digest(&ring::digest::SHA256, verifier.as_bytes());
    assert_eq!(of(&url, "code_challenge").unwrap(), URL_SAFE_NO_PAD.encode(hash));
}

#[tokio::test]
async fn resource_and_scopes_are_left_out_where_they_are_not_wanted() {
    let server = giving_tokens().await;
    let plain = SignIn { resource: None, scopes: Scopes::default(), ..sign_in(&server, json!({})) };
    let (url, pending) = begin(&http(), plain).unwrap();
    assert_eq!((of(&url, "resource"), of(&url, "scope")), (None, None));
    let callback = back(&pending, "code=a");
    pending.finish(&http(), callback, &Clock::system()).await.unwrap();
    assert_eq!(server.seen("/token")[0].form("resource"), None);
    let offline = SignIn { scopes: Scopes::parse("read offline_access"), ..sign_in(&server, json!({})) };
    assert_eq!(of(&begin(&http(), offline).unwrap().0, "prompt").as_deref(), Some("consent"));
}

#[tokio::test]
async fn a_server_without_s256_is_not_used() {
    let server = giving_tokens().await;
    for methods in [json!([]), json!(["plain"]), json!(null)] {
        let what = sign_in(&server, json!({ "code_challenge_methods_supported": methods }));
        assert!(matches!(begin(&http(), what), Err(SignInError::NoPkce(_))));
    }
    for page in ["javascript:alert(1)", "file:///etc/passwd", "http://evil.example/"] {
        let what = sign_in(&server, json!({ "authorization_endpoint": page }));
        assert!(matches!(begin(&http(), what), Err(SignInError::Http(_))), "{page}");
    }
}

#[tokio::test]
async fn the_answer_must_come_from_the_server_asked() {
    let server = giving_tokens().await;
    let own = server.issuer();
    for (advertised, named, good) in [
        (true, Some(own.clone()), true),
        (false, Some(own.clone()), true),
        (false, None, true),
        (true, None, false),
        (true, Some(format!("{own}/")), false),
        (false, Some(format!("{own}/")), false),
        (false, Some("https://evil.example".to_owned()), false),
        (true, Some(String::new()), false),
    ] {
        let what = sign_in(&server, json!({ "authorization_response_iss_parameter_supported": advertised }));
        let (_, pending) = begin(&http(), what).unwrap();
        let named_part = named.as_ref().map(|named| format!("&iss={named}")).unwrap_or_default();
        // Also an error counts only if it comes from there.
        for rest in ["code=abc", "error=access_denied"] {
            let (_, pending) = begin(&http(), pending.what().clone()).unwrap();
            let callback = back(&pending, &format!("{rest}{named_part}"));
            let done = pending.finish(&http(), callback, &Clock::system()).await;
            let issuer_refused = matches!(done, Err(SignInError::Issuer));
            assert_eq!(issuer_refused, !good, "{advertised} {named:?} {rest}");
        }
    }
    assert_eq!(server.seen("/token").len(), 3, "no code goes anywhere before that is checked");
}

/// A hostile server has led the user to an honest one, which sends them to the address that is its own.
#[tokio::test]
async fn a_code_that_comes_to_the_address_of_another_server_goes_nowhere() {
    let server = giving_tokens().await;
    for (path, good) in [
        (BACK, true),
        ("/oauth/callback/4567", false),
        ("/oauth/callback/", false),
        ("/oauth/callback", false),
        ("/", false),
        ("", false),
        ("0123", false),
    ] {
        for rest in ["code=abc", "error=access_denied"] {
            let (_, pending) = begin(&http(), sign_in(&server, json!({}))).unwrap();
            let state = pending.state().expose().to_owned();
            let callback = Callback::parse(&format!("{path}?state={state}&{rest}"));
            let done = pending.finish(&http(), callback, &Clock::system()).await;
            assert_eq!(matches!(done, Err(SignInError::Issuer)), !good, "{path} {rest}: {done:?}");
        }
    }
    assert_eq!(server.seen("/token").len(), 1);
    // A proxy that serves Weir below a path takes that away.
    let behind = SignIn { redirect: format!("https://weir.example/weir{BACK}"), ..sign_in(&server, json!({})) };
    let (_, pending) = begin(&http(), behind).unwrap();
    let callback = back(&pending, "code=abc");
    assert!(pending.finish(&http(), callback, &Clock::system()).await.is_ok());
}

#[tokio::test]
async fn what_comes_back_wrong_ends_the_sign_in() {
    let server = giving_tokens().await;
    let finish = async |query: &str, own_state: bool| {
        let (_, pending) = begin(&http(), sign_in(&server, json!({}))).unwrap();
        let callback = if own_state { back(&pending, query) } else { Callback::parse(&format!("{BACK}?{query}")) };
        pending.finish(&http(), callback, &Clock::system()).await.unwrap_err()
    };
    assert_eq!(finish("error=access_denied&code=x", true).await, TokenError::Denied.into());
    assert!(
        matches!(finish("error=temporarily_unavailable", true).await, SignInError::Token(error) if error.is_temporary())
    );
    assert_eq!(finish("", true).await, SignInError::NoCode);
    assert_eq!(finish("code=x&state=other", false).await, SignInError::Unknown);
    assert_eq!(finish("code=x", false).await, SignInError::Unknown);
    assert!(server.seen("/token").is_empty());
}

#[tokio::test]
async fn each_refusal_of_the_token_endpoint_has_its_meaning() {
    for (reply, expected) in [
        (ScriptedReply::error(400, "invalid_grant"), TokenError::InvalidGrant),
        (ScriptedReply::error(401, "invalid_client"), TokenError::InvalidClient),
        (ScriptedReply::error(400, "invalid_target"), TokenError::Refused("invalid_target".to_owned())),
        (ScriptedReply::error(200, "bad_verification_code"), TokenError::Refused("bad_verification_code".to_owned())),
    ] {
        let server = Scripted::start(move |_, _| reply.clone()).await;
        let (_, pending) = begin(&http(), sign_in(&server, json!({}))).unwrap();
        let callback = back(&pending, "code=hunter2");
        let failed = pending.finish(&http(), callback, &Clock::system()).await.unwrap_err();
        assert_eq!(failed, expected.into());
        assert!(!format!("{failed} {failed:?}").contains("hunter2"), "{failed:?}");
    }
    for (reply, expected) in [
        (ScriptedReply::text(418, "<html>hunter2</html>"), 418),
        (ScriptedReply::json(403, &json!({ "error": { "code": "hunter2" } })), 403),
        (ScriptedReply::status(302).with("location", "https://evil.example/hunter2"), 302),
    ] {
        let server = Scripted::start(move |_, _| reply.clone()).await;
        let (_, pending) = begin(&http(), sign_in(&server, json!({}))).unwrap();
        let callback = back(&pending, "code=hunter2");
        let failed = pending.finish(&http(), callback, &Clock::system()).await.unwrap_err();
        assert_eq!(failed, TokenError::Unclear { origin: server.issuer(), status: expected }.into());
        assert!(!format!("{failed} {failed:?}").contains("hunter2"), "{failed:?}");
    }
    for reply in [
        ScriptedReply::text(200, "hunter2"),
        ScriptedReply::json(200, &json!({ "token": "hunter2" })),
        ScriptedReply::json(200, &json!({ "access_token": ["hunter2"] })),
    ] {
        let server = Scripted::start(move |_, _| reply.clone()).await;
        let (_, pending) = begin(&http(), sign_in(&server, json!({}))).unwrap();
        let callback = back(&pending, "code=a");
        let failed = pending.finish(&http(), callback, &Clock::system()).await.unwrap_err();
        assert!(matches!(failed, SignInError::Token(TokenError::Malformed(_))), "{failed:?}");
        assert!(!format!("{failed} {failed:?}").contains("hunter2"), "{failed:?}");
    }
    for (status, after) in [(429, Some(7)), (503, None), (500, None)] {
        let server =
            Scripted::start(move |_, _| ScriptedReply::error(status, "invalid_grant").with("retry-after", "7")).await;
        let (_, pending) = begin(&http(), sign_in(&server, json!({}))).unwrap();
        let callback = back(&pending, "code=a");
        match pending.finish(&http(), callback, &Clock::system()).await.unwrap_err() {
            SignInError::Token(TokenError::Temporary { retry_after, .. }) => {
                assert_eq!(retry_after.map(|time| time.as_secs()), after.or(Some(7)), "{status}");
            }
            other => panic!("{status}: {other}"),
        }
    }
}

#[tokio::test]
async fn a_sign_in_is_taken_once_by_the_one_it_was_made_for() {
    let server = giving_tokens().await;
    let now = Arc::new(AtomicU64::new(1000));
    let clock = Clock::from_fn({
        let now = Arc::clone(&now);
        move || std::time::UNIX_EPOCH + Duration::from_secs(now.load(Ordering::Relaxed))
    });
    let waiting = PendingSignIns::new(clock);
    let binding = |text: &str| Secret::new(text.to_owned());
    let keep_of = |whose: &str| {
        let (_, pending) = begin(&http(), sign_in(&server, json!({}))).unwrap();
        let callback = back(&pending, "code=a");
        waiting.keep(pending, whose, binding("browser of alice"), "purpose");
        callback
    };
    let keep = || keep_of("alice");
    let first = keep();
    assert!(waiting.take(&first, &binding("browser of mallory")).is_err());
    assert!(waiting.take(&Callback::parse("/?state=made-up&code=a"), &binding("browser of alice")).is_err());
    // The attempts of others have changed nothing.
    let (_, purpose) = waiting.take(&first, &binding("browser of alice")).unwrap();
    assert_eq!(purpose, "purpose");
    assert!(matches!(waiting.take(&first, &binding("browser of alice")), Err(SignInError::Unknown)), "once");
    let late = keep();
    now.fetch_add(SIGN_IN_TIME.as_secs(), Ordering::Relaxed);
    assert!(waiting.take(&late, &binding("browser of alice")).is_err());
    let hers = keep();
    for _ in 0..SHARE + 10 {
        keep_of("mallory");
    }
    assert!(waiting.take(&hers, &binding("browser of alice")).is_ok(), "who begins many crowds out their own");
    for number in 0..MAX_WAITING + 10 {
        keep_of(&(number / 10).to_string());
    }
    assert_eq!(waiting.count(), MAX_WAITING);
}

#[test]
fn a_query_is_read_whatever_is_in_it() {
    let callback = Callback::parse("/?code=a&code=b&state=x+y%20z&iss=https%3A%2F%2Fa.example&&=&%ff=1&x");
    assert_eq!(callback.code.as_ref().map(Secret::expose), Some("a"));
    assert_eq!(
        (callback.state.as_ref().map(Secret::expose), callback.issuer.as_deref()),
        (Some("x y z"), Some("https://a.example"))
    );
    assert!(!format!("{callback:?}").contains("\"a\""));
    assert_eq!(Callback::parse(""), Callback::default());
}

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::UNIX_EPOCH,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use weir_store::Clock;

use super::*;
use crate::{
    OAuthApplication, ServerMetadata,
    tests::scripted::{Scripted, ScriptedReply, http},
};

fn metadata(server: &Scripted) -> ServerMetadata {
    serde_json::from_value(json!({
        "issuer": server.issuer(),
        "token_endpoint": server.at("/token"),
        "device_authorization_endpoint": server.at("/device"),
    }))
    .unwrap()
}

fn prompt(fields: Value) -> Value {
    let mut prompt = json!({
        "device_code": "hunter2", "user_code": "ABCD-EFGH", "verification_uri": "https://as.example/device",
        "verification_uri_complete": "https://as.example/device?code=ABCD-EFGH", "expires_in": 100, "interval": 1,
    });
    prompt.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    prompt
}

/// A server that answers the polls in turn, the last for ever.
async fn polled(fields: Value, answers: Vec<ScriptedReply>) -> Scripted {
    let next = AtomicUsize::new(0);
    Scripted::start(move |_, seen| match seen.path.as_str() {
        "/device" => ScriptedReply::json(200, &prompt(fields.clone())),
        _ => answers[next.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1)].clone(),
    })
    .await
}

/// Signs in with a clock that moves only while it waits; also says how long it waited each time.
async fn run(server: &Scripted) -> (Result<Tokens, TokenError>, Vec<u64>) {
    let (now, waits) = (Arc::new(AtomicU64::new(1000)), Mutex::new(Vec::new()));
    let clock = Clock::from_fn({
        let now = Arc::clone(&now);
        move || UNIX_EPOCH + Duration::from_secs(now.load(Ordering::Relaxed))
    });
    let (metadata, client) = (metadata(server), OAuthApplication::public("weir"));
    let endpoint = TokenEndpoint {
        server: &metadata,
        client: &client,
        resource: Some("https://mcp.example"),
        proof: None,
        clock: &clock,
    };
    let begun = begin(&http(), &endpoint, &Scopes::parse("a b")).await.unwrap();
    let sleep = |time: Duration| {
        waits.lock().push(time.as_secs());
        now.fetch_add(time.as_secs(), Ordering::Relaxed);
        std::future::ready(())
    };
    let done = begun.finish_with(&http(), &endpoint, sleep).await;
    let waits = waits.lock().clone();
    (done, waits)
}

#[tokio::test]
async fn it_asks_as_often_as_the_server_allows_until_the_user_is_done() {
    let token = ScriptedReply::json(200, &json!({ "access_token": "a", "refresh_token": "r" }));
    let answers = vec![
        ScriptedReply::error(400, "authorization_pending"),
        ScriptedReply::error(400, "slow_down"),
        ScriptedReply::error(400, "authorization_pending"),
        ScriptedReply::status(503),
        token,
    ];
    let server = polled(json!({}), answers).await;
    let (done, waits) = run(&server).await;
    assert_eq!(done.unwrap().refresh.unwrap().expose(), "r");
    let (asked_again, in_trouble) = waits.split_at(4);
    assert_eq!(asked_again, [1, 1, 6, 6], "5 s more after slow_down");
    assert!(matches!(in_trouble, [7..=12]), "longer in trouble, by about 10 s: {in_trouble:?}");
    let (asked, polled) = (&server.seen("/device")[0], &server.seen("/token")[0]);
    for (name, value) in [("client_id", "weir"), ("scope", "a b"), ("resource", "https://mcp.example")] {
        assert_eq!(asked.form(name).as_deref(), Some(value));
    }
    for (name, value) in [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", "hunter2"),
        ("resource", "https://mcp.example"),
    ] {
        assert_eq!(polled.form(name).as_deref(), Some(value));
    }
}

#[tokio::test]
async fn it_ends_when_the_code_does_or_the_user_says_no() {
    let server = polled(json!({}), vec![ScriptedReply::error(400, "authorization_pending")]).await;
    let (done, waits) = run(&server).await;
    assert_eq!(done.unwrap_err(), TokenError::Expired);
    assert!(waits.iter().sum::<u64>() <= 100, "{waits:?}");
    for (code, expected) in [("expired_token", TokenError::Expired), ("access_denied", TokenError::Denied)] {
        let server = polled(json!({}), vec![ScriptedReply::error(400, code)]).await;
        assert_eq!(run(&server).await.0.unwrap_err(), expected);
    }
    let endless = polled(
        json!({ "expires_in": 1_000_000_000, "interval": 60 }),
        vec![ScriptedReply::error(400, "authorization_pending")],
    )
    .await;
    let (done, waits) = run(&endless).await;
    assert_eq!(done.unwrap_err(), TokenError::Expired);
    assert!(waits.len() < 40, "half an hour is the most: {}", waits.len());
}

#[tokio::test]
async fn no_interval_of_a_server_is_too_long_or_too_short() {
    for (interval, expected) in [(json!(0), vec![1, 1]), (json!(null), vec![5, 5]), (json!(u64::MAX), vec![])] {
        let token = ScriptedReply::json(200, &json!({ "access_token": "a" }));
        let answers = vec![ScriptedReply::error(400, "authorization_pending"), token];
        let server = polled(json!({ "interval": interval, "expires_in": u64::MAX }), answers).await;
        let (done, waits) = run(&server).await;
        assert_eq!(waits[..expected.len()], expected, "{interval}: {done:?}");
    }
}

#[tokio::test]
async fn waiting_can_be_given_up() {
    let never = Arc::new(Semaphore::new(0));
    let server = polled(json!({}), vec![ScriptedReply::status(200).hold(&never)]).await;
    let (metadata, client, clock) = (metadata(&server), OAuthApplication::public("weir"), Clock::system());
    let endpoint = TokenEndpoint { server: &metadata, client: &client, resource: None, proof: None, clock: &clock };
    let begun = begin(&http(), &endpoint, &Scopes::default()).await.unwrap();
    let given_up = tokio::time::timeout(Duration::from_millis(50), begun.finish(&http(), &endpoint)).await;
    assert!(given_up.is_err());
}

#[tokio::test]
async fn a_prompt_that_cannot_be_shown_is_refused() {
    for fields in [
        json!({ "verification_uri": "javascript:alert(1)" }),
        json!({ "verification_uri": "nowhere" }),
        json!({ "user_code": "A\u{1b}[31m" }),
        json!({ "user_code": "x".repeat(100) }),
        json!({ "user_code": "" }),
        json!({ "device_code": null }),
    ] {
        let server = polled(fields.clone(), vec![]).await;
        let (metadata, client, clock) = (metadata(&server), OAuthApplication::public("weir"), Clock::system());
        let endpoint = TokenEndpoint { server: &metadata, client: &client, resource: None, proof: None, clock: &clock };
        let refused = begin(&http(), &endpoint, &Scopes::default()).await.err().unwrap();
        assert!(matches!(refused, TokenError::Malformed(_)), "{fields}: {refused}");
        assert!(!refused.to_string().contains("hunter2"));
    }
    let server = polled(json!({ "verification_uri_complete": "javascript:alert(1)" }), vec![]).await;
    let (metadata, client, clock) = (metadata(&server), OAuthApplication::public("weir"), Clock::system());
    let endpoint = TokenEndpoint { server: &metadata, client: &client, resource: None, proof: None, clock: &clock };
    assert_eq!(begin(&http(), &endpoint, &Scopes::default()).await.unwrap().page_with_code, None);
}

//! The issuer of callers changes its keys while they call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use weir_tests::tokens::token_of;
use weir_tests::wait::until;
use weir_tests::{Authority, Browser, Client, Gateway, Stub};

const AUDIENCE: &str = "https://weir.example/mcp";

/// Calls until it is told to stop; how many calls there were.
fn load(client: Client, stop: &Arc<AtomicBool>, done: &Arc<AtomicUsize>) -> tokio::task::JoinHandle<()> {
    let (stop, done) = (Arc::clone(stop), Arc::clone(done));
    tokio::spawn(async move {
        while !stop.load(Ordering::SeqCst) {
            let result = client.call("echo", json!({ "message": "hi" })).await;
            assert_eq!(result["content"][0]["text"], "hi", "{result}");
            done.fetch_add(1, Ordering::SeqCst);
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_on_while_the_issuer_changes_its_keys() {
    let mut authority = Authority::start(3600);
    let (first, second) = (authority.new_key(), authority.new_key());
    authority.sign_with(&[&first]);
    let stub = Stub::start().await;
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", authority.issuer());
    let gateway = Gateway::start(&(auth + &stub.config("stub"))).await;
    let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let mut calls = Vec::new();
    let mut tokens = Vec::new();
    // The old key stays for a while, as issuers do it.
    for keys in [&[&first][..], &[&second, &first]] {
        authority.sign_with(keys);
        let token = token_of(authority.issuer(), &mut Browser::of("ada"), AUDIENCE).await;
        calls.push(load(Client::legacy_with(&gateway, "/mcp/stub", &token, &json!({})).await, &stop, &done));
        calls.push(load(Client::modern(&gateway, "/mcp/stub").with_token(&token), &stop, &done));
        tokens.push(token);
        let before = done.load(Ordering::SeqCst);
        until("there are more calls", || done.load(Ordering::SeqCst) > before + 50).await;
    }
    let key_of = |token: &str| {
        let head = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
        serde_json::from_slice::<serde_json::Value>(&head).unwrap()["kid"].clone()
    };
    assert_eq!([key_of(&tokens[0]), key_of(&tokens[1])], [first["kid"].clone(), second["kid"].clone()]);
    assert_eq!(authority.asked("/jwks").len(), 1, "once for a key that was not known");

    // Made-up keys make nobody ask the issuer again and again.
    let (_, rest) = tokens[1].split_once('.').unwrap();
    for number in 0..50 {
        let head = json!({ "alg": "RS256", "typ": "at+jwt", "kid": format!("made-up-{number}") });
        let forged = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(head.to_string()));
        let hello = weir_tests::client::initialize("/mcp/stub", weir_tests::LEGACY, &json!({}));
        let refused = gateway.send(hello.header("authorization", &format!("Bearer {forged}"))).await;
        assert_eq!(refused.status, 401);
    }
    assert_eq!(authority.asked("/jwks").len(), 2, "once more, and not for each");
    // The old key is gone, and what is known of it may stay for a while; the new one goes on.
    authority.sign_with(&[&second]);
    let before = done.load(Ordering::SeqCst);
    until("there are more calls", || done.load(Ordering::SeqCst) > before + 50).await;
    stop.store(true, Ordering::SeqCst);
    for call in calls {
        call.await.unwrap();
    }
}

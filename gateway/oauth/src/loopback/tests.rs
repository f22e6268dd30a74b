#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::json;
use weir_store::Clock;

use super::*;
use crate::{OAuthApplication, Scopes, SignIn, SignInError, authorize, tests::scripted::http};

const ISSUER: &str = "https://login.example";

/// A sign-in that comes back to a port, and what comes after its address: the state with more behind it.
fn sign_in(port: &Loopback) -> (PendingSignIn, String, impl Fn(&str) -> String + use<>) {
    let metadata = json!({
        "issuer": ISSUER,
        "authorization_endpoint": "https://login.example/authorize",
        "code_challenge_methods_supported": ["S256"],
    });
    let redirect = port.redirect().of(ISSUER);
    let what = SignIn {
        server: serde_json::from_value(metadata).unwrap(),
        client: OAuthApplication::public("weir"),
        redirect: redirect.clone(),
        resource: None,
        scopes: Scopes::default(),
        nonce: None,
        prompt: None,
        proof: None,
    };
    let (_, pending) = authorize::begin(&http(), what).unwrap();
    let path = redirect.find(PATH).map(|at| redirect[at..].to_owned()).unwrap();
    let state = pending.state().expose().to_owned();
    (pending, redirect, move |rest| format!("{path}?state={state}&{rest}"))
}

/// What a request is answered; an empty text if the connection ends without an answer.
async fn ask(redirect: &str, request: &str) -> String {
    let address = redirect.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[tokio::test]
async fn only_the_right_visit_ends_the_waiting() {
    let port = Loopback::bind(0).await.unwrap();
    let (pending, redirect, target) = sign_in(&port);
    assert!(redirect.starts_with("http://127.0.0.1:") && redirect.contains(PATH));
    let waiting = tokio::spawn(async move { port.wait(&pending).await });
    for (request, status) in [
        ("GET /favicon.ico HTTP/1.1".to_owned(), "404"),
        ("GET /oauth/callback HTTP/1.1".to_owned(), "400"),
        ("GET /oauth/callback?code=evil&state=wrong HTTP/1.1".to_owned(), "400"),
        (format!("GET {} HTTP/1.1", target("code=evil").replace("/callback/", "/callback")), "404"),
        (format!("POST {} HTTP/1.1", target("code=evil")), "405"),
        (String::new(), "405"),
    ] {
        let answer = ask(&redirect, &format!("{request}\r\n\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(!answer.contains("evil"));
    }
    assert!(!waiting.is_finished());
    let answer = ask(&redirect, &format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", target("code=good"))).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("close this page"), "{answer}");
    assert_eq!(waiting.await.unwrap().unwrap(), Callback::parse(&target("code=good")));
}

#[tokio::test]
async fn a_visit_to_the_address_of_another_server_ends_the_sign_in() {
    let port = Loopback::bind(0).await.unwrap();
    let other = port.redirect().of("https://honest.example");
    let (pending, redirect, target) = sign_in(&port);
    let waiting = tokio::spawn(async move {
        let callback = port.wait(&pending).await.unwrap();
        pending.finish(&http(), callback, &Clock::system()).await
    });
    let name = |address: &str| address.rsplit('/').next().unwrap().to_owned();
    let target = target("code=stolen").replace(&name(&redirect), &name(&other));
    let answer = ask(&redirect, &format!("GET {target} HTTP/1.1\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("Another server"), "{answer}");
    assert_eq!(waiting.await.unwrap().unwrap_err(), SignInError::Issuer);
}

#[tokio::test]
async fn a_refusal_is_an_answer_too() {
    let port = Loopback::bind(0).await.unwrap();
    let (pending, redirect, target) = sign_in(&port);
    let waiting = tokio::spawn(async move { port.wait(&pending).await });
    let answer = ask(&redirect, &format!("GET {} HTTP/1.1\r\n\r\n", target("error=access_denied"))).await;
    assert!(answer.contains("refused"), "{answer}");
    assert!(waiting.await.unwrap().unwrap().is_refusal());
}

#[tokio::test]
async fn visitors_that_say_nothing_or_too_much_keep_nobody_out() {
    let port = Loopback::bind(0).await.unwrap();
    let (pending, redirect, target) = sign_in(&port);
    let waiting = tokio::spawn(async move { port.wait(&pending).await });
    let address = redirect.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS - 2 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    ask(&redirect, &"x".repeat(200_000)).await;
    ask(&redirect, &format!("GET {} HTTP/1.1\r\n\r\n", target("code=good"))).await;
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_port_that_is_taken_says_so() {
    let port = Loopback::bind(0).await.unwrap();
    let taken = port.listener.local_addr().unwrap().port();
    assert_eq!(Loopback::bind(taken).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

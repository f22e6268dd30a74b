#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

fn state() -> Secret {
    Secret::new("right".to_owned())
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
    let redirect = port.redirect().to_owned();
    assert!(redirect.starts_with("http://127.0.0.1:") && redirect.ends_with(PATH));
    let waiting = tokio::spawn(async move { port.wait(&state()).await });
    for (request, status) in [
        ("GET /favicon.ico HTTP/1.1\r\n\r\n", "404"),
        ("GET /oauth/callback HTTP/1.1\r\n\r\n", "400"),
        ("GET /oauth/callback?code=evil&state=wrong HTTP/1.1\r\n\r\n", "400"),
        ("GET /oauth/callback/?code=evil&state=right HTTP/1.1\r\n\r\n", "404"),
        ("POST /oauth/callback?code=evil&state=right HTTP/1.1\r\n\r\n", "405"),
        ("\r\n\r\n", "405"),
    ] {
        let answer = ask(&redirect, request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(!answer.contains("evil"));
    }
    assert!(!waiting.is_finished());
    let answer = ask(&redirect, "GET /oauth/callback?code=good&state=right HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("close this page"), "{answer}");
    assert_eq!(waiting.await.unwrap().unwrap(), Callback::parse("code=good&state=right"));
}

#[tokio::test]
async fn a_refusal_is_an_answer_too() {
    let port = Loopback::bind(0).await.unwrap();
    let redirect = port.redirect().to_owned();
    let waiting = tokio::spawn(async move { port.wait(&state()).await });
    let answer = ask(&redirect, "GET /oauth/callback?error=access_denied&state=right HTTP/1.1\r\n\r\n").await;
    assert!(answer.contains("refused"), "{answer}");
    assert!(waiting.await.unwrap().unwrap().is_refusal());
}

#[tokio::test]
async fn visitors_that_say_nothing_or_too_much_keep_nobody_out() {
    let port = Loopback::bind(0).await.unwrap();
    let redirect = port.redirect().to_owned();
    let waiting = tokio::spawn(async move { port.wait(&state()).await });
    let address = redirect.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS - 2 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    ask(&redirect, &"x".repeat(200_000)).await;
    ask(&redirect, "GET /oauth/callback?code=good&state=right HTTP/1.1\r\n\r\n").await;
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_port_that_is_taken_says_so() {
    let port = Loopback::bind(0).await.unwrap();
    let taken = port.listener.local_addr().unwrap().port();
    assert_eq!(Loopback::bind(taken).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
}

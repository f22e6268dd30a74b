//! Against real sockets: a server that reads what it is sent and answers what the test writes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod busy;
mod dial;
mod drain;
mod forward_proxy;
mod http2;
mod secure;

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use url::Url;

use super::{
    CONTENT_TYPE, Error, HeaderName, HeaderValue, HttpClient, HttpTarget, HttpTimeouts, Method, Request, Response,
};

const LONG: HttpTimeouts = HttpTimeouts { connect: Duration::from_secs(20), read: Duration::from_secs(20) };

#[test]
fn a_header_is_text_as_the_http_crate_has_it() {
    for first in 0..=u8::MAX {
        let longer = [&[first][..], b" text that is looked at many bytes at a time\t"].concat();
        for value in [&[first][..], &longer].into_iter().filter_map(|bytes| HeaderValue::from_bytes(bytes).ok()) {
            assert_eq!(super::text(&value), value.to_str().ok(), "{value:?}");
        }
    }
    assert_eq!(super::text(&HeaderValue::from_bytes("\u{e9}".as_bytes()).unwrap()), None);
}

/// One connection on the server's side.
struct Peer(TcpStream);

impl Peer {
    async fn accept(listener: &TcpListener) -> Self {
        Self(listener.accept().await.unwrap().0)
    }

    /// Reads one request, head and body; empty when the client has closed.
    async fn request(&mut self) -> String {
        let mut read = Vec::new();
        loop {
            let text = String::from_utf8(read.clone()).unwrap();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
                if body.len() >= length.parse().unwrap() {
                    return text;
                }
            }
            if self.0.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return text;
            }
        }
    }

    async fn send(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).await.unwrap();
    }
}

async fn listen() -> (TcpListener, HttpTarget) {
    listen_with(LONG).await
}

async fn listen_with(timeouts: HttpTimeouts) -> (TcpListener, HttpTarget) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp?a=b", listener.local_addr().unwrap());
    (listener, HttpTarget::new(&Url::parse(&url).unwrap(), timeouts, None).unwrap())
}

fn post(body: &'static str) -> Request<'static> {
    Request { method: Method::POST, headers: &[], body: Some(Bytes::from_static(body.as_bytes())) }
}

fn get() -> Request<'static> {
    Request { method: Method::GET, headers: &[], body: None }
}

async fn all(response: Response) -> Bytes {
    response.collect(1 << 20).await.unwrap()
}

#[tokio::test]
async fn a_request_is_written_with_its_headers_and_its_length() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let request = peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello").await;
        (request, listener.local_addr().unwrap())
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (HeaderName::from_static("content-length"), HeaderValue::from_static("7")),
        (HeaderName::from_static("x-two"), HeaderValue::from_static("a")),
        (HeaderName::from_static("x-two"), HeaderValue::from_static("b")),
    ];
    let request = Request { method: Method::POST, headers: &headers, body: Some(Bytes::from_static(b"{}")) };
    let response = HttpClient::new().send(&target, request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.header(&CONTENT_TYPE).unwrap(), "text/plain");
    assert_eq!(response.content_length(), Some(5));
    assert_eq!(all(response).await, "hello");
    let (request, address) = server.await.unwrap();
    let head = "content-type: application/json\r\nx-two: a\r\nx-two: b\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(request, format!("POST /mcp?a=b HTTP/1.1\r\nhost: {address}\r\n{head}"));
}

#[tokio::test]
async fn a_long_body_arrives_whole() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let request = peer.request().await;
        peer.send("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").await;
        request.split_once("\r\n\r\n").unwrap().1.len()
    });
    let body = Some(Bytes::from(vec![b'x'; 3 << 20]));
    let request = Request { method: Method::POST, headers: &[], body };
    assert_eq!(HttpClient::new().send(&target, request).await.unwrap().status(), 202);
    assert_eq!(server.await.unwrap(), 3 << 20);
}

#[tokio::test]
async fn one_connection_carries_answers_of_every_framing_that_has_an_end() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ntw\r\n1\r\no\r\n0\r\n\r\n",
            "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nsix",
        ] {
            peer.request().await;
            peer.send(answer).await;
        }
        // Nobody else has called.
        assert_eq!(peer.request().await, "");
    });
    let client = HttpClient::new();
    assert_eq!(all(client.send(&target, post("1")).await.unwrap()).await, "one");
    assert_eq!(all(client.send(&target, post("2")).await.unwrap()).await, "two");
    // The bodies of these two are not asked for.
    assert_eq!(client.send(&target, post("3")).await.unwrap().status(), 202);
    assert_eq!(client.send(&target, post("4")).await.unwrap().status(), 204);
    assert_eq!(all(client.send(&target, get()).await.unwrap()).await, "six");
    drop(target);
    server.await.unwrap();
}

#[tokio::test]
async fn a_body_may_end_with_its_connection() {
    let (listener, target) = listen().await;
    tokio::spawn(async move {
        for _ in 0..2 {
            let mut peer = Peer::accept(&listener).await;
            peer.request().await;
            peer.send("HTTP/1.1 200 OK\r\n\r\nuntil ").await;
            peer.send("the end").await;
        }
    });
    let client = HttpClient::new();
    for _ in 0..2 {
        assert_eq!(all(client.send(&target, post("1")).await.unwrap()).await, "until the end");
    }
}

#[tokio::test]
async fn events_are_handed_on_one_by_one_and_without_a_time_limit_if_wanted() {
    let (listener, target) =
        listen_with(HttpTimeouts { connect: LONG.connect, read: Duration::from_millis(300) }).await;
    let (go, mut next) = tokio::sync::mpsc::channel::<()>(1);
    tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        for _ in 0..3 {
            next.recv().await.unwrap();
            peer.send("8\r\ndata: x\n\r\n").await;
        }
        peer.send("0\r\n\r\n").await;
        assert_eq!(peer.request().await, "");
    });
    let mut response = HttpClient::new().send(&target, get()).await.unwrap();
    response.set_read_timeout(None);
    for _ in 0..3 {
        // Silence longer than the time limit that was switched off; a dropped read loses nothing.
        let silence = tokio::time::timeout(Duration::from_millis(400), response.chunk()).await;
        assert!(silence.is_err());
        go.send(()).await.unwrap();
        assert_eq!(response.chunk().await.unwrap().unwrap(), "data: x\n");
    }
    assert_eq!(response.chunk().await.unwrap(), None);
    assert_eq!(response.status(), 200);
    assert_eq!(response.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn an_answer_that_is_dropped_closes_its_connection() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").await;
        peer.request().await
    });
    let mut response = HttpClient::new().send(&target, get()).await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "one");
    drop(response);
    assert_eq!(server.await.unwrap(), "");
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_not_used() {
    let (listener, target) = listen().await;
    let (closed, until_closed) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        drop(peer);
        closed.send(()).unwrap();
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew").await;
    });
    let client = HttpClient::new();
    assert_eq!(all(client.send(&target, post("1")).await.unwrap()).await, "ok");
    until_closed.await.unwrap();
    // Lets the runtime hear of the end.
    tokio::task::yield_now().await;
    assert_eq!(all(client.send(&target, post("2")).await.unwrap()).await, "new");
}

#[tokio::test]
async fn what_the_server_says_of_keeping_connections_is_heeded() {
    for header in ["Connection: close", "Keep-Alive: timeout=1, max=5"] {
        let (listener, target) = listen().await;
        tokio::spawn(async move {
            for _ in 0..2 {
                let mut peer = Peer::accept(&listener).await;
                peer.request().await;
                peer.send(&format!("HTTP/1.1 200 OK\r\n{header}\r\nContent-Length: 2\r\n\r\nok")).await;
                // Stays open: only the client can know that it should not come back.
                tokio::spawn(async move { assert_eq!(peer.request().await, "") });
            }
        });
        let client = HttpClient::new();
        for _ in 0..2 {
            assert_eq!(all(client.send(&target, post("1")).await.unwrap()).await, "ok");
        }
    }
}

#[tokio::test]
async fn what_breaks_off_says_when() {
    let cases = [
        ("", Error::BrokenOff),
        ("HTTP/1.1 200 OK\r\nCont", Error::BrokenOff),
        ("SSH-2.0-OpenSSH_9.6\r\n", Error::BadResponse),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", Error::BadResponse),
    ];
    for (answer, expected) in cases {
        let (listener, target) = listen().await;
        tokio::spawn(async move {
            let mut peer = Peer::accept(&listener).await;
            peer.request().await;
            peer.send(answer).await;
        });
        let error = HttpClient::new().send(&target, post("1")).await.err().unwrap();
        assert_eq!(error, expected, "{answer}");
        assert!(error.may_have_run());
    }
}

#[tokio::test]
async fn a_connection_that_breaks_when_used_again_says_so() {
    let (listener, target) = listen().await;
    tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        peer.request().await;
    });
    let client = HttpClient::new();
    assert_eq!(all(client.send(&target, post("1")).await.unwrap()).await, "ok");
    let error = client.send(&target, post("2")).await.err().unwrap();
    assert_eq!(error, Error::BrokenOff);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_taken_for_whole() {
    for answer in ["Content-Length: 5\r\n\r\nfou", "Transfer-Encoding: chunked\r\n\r\n5\r\nfive!\r\n"] {
        let (listener, target) = listen().await;
        tokio::spawn(async move {
            let mut peer = Peer::accept(&listener).await;
            peer.request().await;
            peer.send(&format!("HTTP/1.1 200 OK\r\n{answer}")).await;
        });
        let response = HttpClient::new().send(&target, post("1")).await.unwrap();
        let error = response.collect(100).await.unwrap_err();
        assert_eq!(error, Error::BrokenOff);
    }
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_counts() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let mut some = [0; 1000];
        peer.0.read_exact(&mut some).await.unwrap();
        peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n").await;
        peer.0.shutdown().await.unwrap();
        // Reading goes on, or the system would throw away the answer.
        peer.0.read_to_end(&mut Vec::new()).await.ok();
    });
    let body = Some(Bytes::from(vec![b'x'; 4 << 20]));
    let request = Request { method: Method::POST, headers: &[], body };
    assert_eq!(HttpClient::new().send(&target, request).await.unwrap().status(), 413);
    drop(target);
    server.await.unwrap();
}

#[tokio::test]
async fn an_answer_over_the_limit_is_refused() {
    for answer in ["Content-Length: 5\r\n\r\nfive!", "Transfer-Encoding: chunked\r\n\r\n5\r\nfive!\r\n0\r\n\r\n"] {
        let (listener, target) = listen().await;
        tokio::spawn(async move {
            let mut peer = Peer::accept(&listener).await;
            peer.request().await;
            peer.send(&format!("HTTP/1.1 200 OK\r\n{answer}")).await;
        });
        let response = HttpClient::new().send(&target, post("1")).await.unwrap();
        assert_eq!(response.collect(4).await, Err(Error::TooLarge(4)));
    }
}

#[tokio::test]
async fn who_is_not_there_is_told_apart() {
    let (listener, target) = listen().await;
    drop(listener);
    let error = HttpClient::new().send(&target, post("1")).await.err().unwrap();
    assert_eq!(error, Error::Connect("refused"));
    assert!(!error.may_have_run());

    let nowhere = HttpTarget::new(&Url::parse("http://nobody.invalid/").unwrap(), LONG, None).unwrap();
    assert_eq!(HttpClient::new().send(&nowhere, get()).await.err().unwrap(), Error::Resolve);
}

#[tokio::test]
async fn silence_ends_in_time() {
    let short = HttpTimeouts { connect: LONG.connect, read: Duration::from_millis(50) };
    for answer in ["", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfo"] {
        let (listener, target) = listen_with(short).await;
        let server = tokio::spawn(async move {
            let mut peer = Peer::accept(&listener).await;
            peer.request().await;
            peer.send(answer).await;
            peer.request().await
        });
        let client = HttpClient::new();
        let error = match client.send(&target, post("1")).await {
            Ok(response) => response.collect(100).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error, Error::ReadTimeout);
        assert_eq!(server.await.unwrap(), "");
    }
}

#[tokio::test]
async fn a_name_with_several_addresses_is_tried_in_order() {
    // `localhost` is ::1 first on most systems, where nobody listens here.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
    let target = HttpTarget::new(&Url::parse(&url).unwrap(), LONG, None).unwrap();
    tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    });
    assert_eq!(all(HttpClient::new().send(&target, get()).await.unwrap()).await, "ok");
}

/// The answers to a request that is redirected: its status, where to, and the request that comes then.
async fn redirected(request: Request<'_>, status: u16, location: &'static str) -> (Result<u16, Error>, String) {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send(&format!("HTTP/1.1 {status} Gone\r\nLocation: {location}\r\nContent-Length: 4\r\n\r\ngone")).await;
        let next = peer.request().await;
        if !next.is_empty() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
        next.lines().next().unwrap_or_default().to_owned() + next.split_once("\r\n\r\n").map_or("", |(_, body)| body)
    });
    let answer = HttpClient::new().send(&target, request).await.map(|response| response.status());
    drop(target);
    (answer, server.await.unwrap())
}

#[tokio::test]
async fn redirects_are_followed_within_the_origin() {
    assert_eq!(redirected(post("x"), 307, "/new?q").await, (Ok(200), "POST /new?q HTTP/1.1x".to_owned()));
    assert_eq!(redirected(post("x"), 308, "new").await, (Ok(200), "POST /new HTTP/1.1x".to_owned()));
    assert_eq!(redirected(get(), 302, "/new").await, (Ok(200), "GET /new HTTP/1.1".to_owned()));
    // A POST must not become a GET.
    assert_eq!(redirected(post("x"), 302, "/new").await, (Ok(302), String::new()));
    assert_eq!(redirected(post("x"), 307, "http://127.0.0.1:1/").await, (Err(Error::CrossOrigin), String::new()));
    assert_eq!(redirected(get(), 301, "//elsewhere.example/").await, (Err(Error::CrossOrigin), String::new()));
    assert_eq!(redirected(get(), 301, "file:///etc/passwd").await, (Err(Error::CrossOrigin), String::new()));
    assert_eq!(redirected(get(), 301, "/a b\tc").await, (Ok(200), "GET /a%20bc HTTP/1.1".to_owned()));
}

#[tokio::test]
async fn redirects_end() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let mut requests = 0;
        while !peer.request().await.is_empty() {
            requests += 1;
            peer.send("HTTP/1.1 307 Temporary Redirect\r\nLocation: /mcp\r\nContent-Length: 0\r\n\r\n").await;
        }
        requests
    });
    assert_eq!(HttpClient::new().send(&target, get()).await.err().unwrap(), Error::TooManyRedirects);
    drop(target);
    assert_eq!(server.await.unwrap(), 4);
}

#[test]
fn only_http_has_targets() {
    let origin =
        |url: &str| HttpTarget::new(&Url::parse(url).unwrap(), LONG, None).map(|target| target.origin.to_string());
    assert_eq!(origin("http://Example.COM").unwrap(), "http://example.com:80");
    assert_eq!(origin("https://user:pass@[::1]:8443/x").unwrap(), "https://[::1]:8443");
    assert_eq!(origin("ftp://example.com"), Err(Error::Url("it is neither http nor https")));
    assert_eq!(origin("unix:/run/x"), Err(Error::Url("it is neither http nor https")));
}

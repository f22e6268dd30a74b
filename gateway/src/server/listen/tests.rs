//! Against real sockets: clients that say exactly what a test wants, and a handler that does what the path says.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod drain;
mod hostile;
mod multiplexed;
mod secure;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use pingora_core::server::{Fds, ListenFds};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

use super::{BodyError, Handler, HttpExchange, ListenError, ListenLimits, ListenSettings, Listener};
use crate::{config::Tls, http::CONTENT_TYPE, http::HeaderValue, quota::Shares};

const LONG: Duration = Duration::from_secs(20);

/// Silence that is waited for where the end of it is the condition.
const SHORT: Duration = Duration::from_millis(100);

const LIMITS: ListenLimits = ListenLimits {
    connections: Shares { total: 1000, principal: 1000, upstream: 0 },
    bodies: Shares { total: 1 << 20, principal: 1 << 20, upstream: 0 },
    header_timeout: LONG,
    body_timeout: LONG,
    idle_timeout: LONG,
    drain: LONG,
};

/// The longest body that is read.
const CAP: usize = 100_000;

struct App {
    /// What handlers see.
    seen: mpsc::UnboundedSender<&'static str>,
    release: Notify,
}

impl Handler for App {
    async fn handle(self: &Arc<Self>, exchange: &mut HttpExchange) {
        let path = exchange.path().to_owned();
        match path.as_str() {
            "/echo" => self.echo(exchange).await,
            "/early" => exchange.respond(401, &[], Bytes::from_static(b"who?")).await,
            "/none" => exchange.respond(204, &[], Bytes::new()).await,
            "/sized" | "/stream" => {
                exchange.start(200, &[], (path == "/sized").then_some(6)).await;
                assert!(exchange.write(Bytes::from_static(b"abc")).await);
                assert!(exchange.end_with(Bytes::from_static(b"def")).await);
            }
            "/empty" => {
                exchange.start(200, &[], None).await;
                exchange.end().await;
            }
            "/later" => {
                exchange.start(200, &[], None).await;
                tokio::select! {
                    () = exchange.gone() => {}
                    () = self.release.notified() => {}
                }
                assert!(exchange.end_with(Bytes::from_static(b"later")).await);
            }
            "/forever" => {
                exchange.start(200, &[], None).await;
                assert!(exchange.write(Bytes::from_static(b"x")).await);
                tokio::select! {
                    () = exchange.gone() => {}
                    () = self.release.notified() => {}
                }
                // Once gone, gone for good.
                exchange.gone().await;
                assert!(!exchange.write(Bytes::from_static(b"y")).await);
                self.seen.send("gone").unwrap();
            }
            "/wait" => {
                exchange.read_body(CAP).await.unwrap();
                self.seen.send("waiting").unwrap();
                exchange.gone().await;
                self.seen.send("gone").unwrap();
            }
            "/held" => {
                self.seen.send("held").unwrap();
                tokio::select! {
                    () = exchange.gone() => self.seen.send("gone").unwrap(),
                    () = self.release.notified() => {}
                }
                exchange.respond(200, &[], Bytes::from_static(b"held")).await;
            }
            "/cut" => {
                exchange.start(200, &[], None).await;
                exchange.write(Bytes::from_static(b"half")).await;
                exchange.cut();
            }
            "/flood" => {
                exchange.start(200, &[], None).await;
                while exchange.write(Bytes::from_static(&[b'x'; 1 << 16])).await {}
                self.seen.send("given up").unwrap();
            }
            "/panic" => panic!("as asked"),
            _ => {}
        }
    }
}

impl App {
    async fn echo(&self, exchange: &mut HttpExchange) {
        match exchange.read_body(CAP).await {
            Ok(body) => {
                let media = exchange.value("content-type").cloned();
                let media = media.unwrap_or(HeaderValue::from_static("text/plain"));
                exchange.respond(200, &[(CONTENT_TYPE, media)], body).await;
            }
            Err(BodyError::TooLarge) => exchange.respond(413, &[], Bytes::from_static(b"too large")).await,
            Err(BodyError::TimedOut) => exchange.respond(408, &[], Bytes::from_static(b"too slow")).await,
            Err(BodyError::Full(full)) => exchange.respond(full.status(), &[], full.to_string().into()).await,
            Err(BodyError::BrokenOff) => self.seen.send("broken off").unwrap(),
        }
    }
}

struct Served {
    address: SocketAddr,
    app: Arc<App>,
    settings: Arc<ListenSettings>,
    seen: mpsc::UnboundedReceiver<&'static str>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

async fn serve_with(limits: ListenLimits, tls: Option<&Tls>) -> Served {
    serve_at(Listener::new(tls).unwrap().bind(&["127.0.0.1:0".parse().unwrap()], Fds::new()).unwrap(), limits).await
}

async fn serve_at(listener: Listener, limits: ListenLimits) -> Served {
    let address = listener.addresses()[0];
    let (sender, seen) = mpsc::unbounded_channel();
    let app = Arc::new(App { seen: sender, release: Notify::new() });
    let (stop, stopped) = watch::channel(false);
    let settings = ListenSettings::new(limits);
    let serving = tokio::spawn(listener.serve(
        Arc::clone(&app),
        Arc::clone(&settings),
        ListenFds::new(Fds::new().into()),
        stopped,
    ));
    Served { address, app, settings, seen, stop, serving }
}

async fn serve() -> Served {
    serve_with(LIMITS, None).await
}

/// The client's side of a connection.
struct Client(TcpStream);

struct Reply {
    head: String,
    body: String,
}

impl Reply {
    fn status(&self) -> &str {
        &self.head[9..12]
    }
}

impl Client {
    async fn connect(served: &Served) -> Self {
        Self(TcpStream::connect(served.address).await.unwrap())
    }

    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Everything up to a text that ends it.
    async fn until(&mut self, end: &str) -> String {
        let mut read = String::new();
        while !read.ends_with(end) {
            read.push(char::from(self.0.read_u8().await.unwrap()));
        }
        read
    }

    async fn reply(&mut self) -> Reply {
        let head = self.until("\r\n\r\n").await;
        let lower = head.to_lowercase();
        if lower.contains("transfer-encoding: chunked") {
            let body = self.until("0\r\n\r\n").await;
            return Reply { head: lower, body };
        }
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        let mut body = vec![0; length.parse().unwrap()];
        self.0.read_exact(&mut body).await.unwrap();
        Reply { head: lower, body: String::from_utf8(body).unwrap() }
    }

    async fn ask(&mut self, request: &str) -> Reply {
        self.send(request).await;
        self.reply().await
    }

    /// What still comes until the other side closes.
    async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        // A reset is an end too.
        drop(self.0.read_to_end(&mut rest).await);
        String::from_utf8(rest).unwrap()
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n")
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let served = serve().await;
    let mut client = Client::connect(&served).await;
    for round in 0..50 {
        let reply = client.ask(&post("/echo", &format!("round {round}"))).await;
        assert_eq!((reply.status(), reply.body.as_str()), ("200", format!("round {round}").as_str()));
        assert!(reply.head.contains("connection: keep-alive"), "{}", reply.head);
        assert_eq!(client.ask(&get("/stream")).await.body, "3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n");
        assert_eq!(client.ask(&get("/sized")).await.body, "abcdef");
        assert_eq!(client.ask(&get("/empty")).await.body, "0\r\n\r\n");
        assert_eq!(client.ask(&get("/none")).await.status(), "204");
        assert_eq!(client.ask(&get("/echo")).await.body, "");
        let head = client.ask("HEAD /none HTTP/1.1\r\nHost: here\r\n\r\n").await.head;
        assert!(!head.contains("content-length") && !head.contains("chunked"), "{head}");
    }
}

#[tokio::test]
async fn requests_that_come_early_are_answered_in_turn() {
    let served = serve().await;
    let mut client = Client::connect(&served).await;
    client.send(&[post("/echo", "one"), get("/stream"), post("/echo", "three")].concat()).await;
    assert_eq!(client.reply().await.body, "one");
    assert_eq!(client.reply().await.body, "3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n");
    assert_eq!(client.reply().await.body, "three");
}

#[tokio::test]
async fn a_request_that_comes_early_is_not_taken_for_the_client_leaving() {
    let mut served = serve().await;
    let mut client = Client::connect(&served).await;
    client.send(&get("/held")).await;
    assert_eq!(served.seen.recv().await, Some("held"));
    client.send(&post("/echo", "next")).await;
    // The handler's select has seen the byte before this is answered.
    assert_eq!(Client::connect(&served).await.ask(&get("/none")).await.status(), "204");
    served.app.release.notify_one();
    assert_eq!(client.reply().await.body, "held");
    assert_eq!(client.reply().await.body, "next");
}

#[tokio::test]
async fn the_head_of_a_stream_does_not_wait_for_its_first_piece() {
    let served = serve().await;
    let mut client = Client::connect(&served).await;
    for _ in 0..3 {
        client.send(&get("/later")).await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        served.app.release.notify_one();
        assert_eq!(client.until("0\r\n\r\n").await, "5\r\nlater\r\n0\r\n\r\n");
    }
}

#[tokio::test]
async fn bodies_come_in_any_shape() {
    let served = serve().await;
    let mut client = Client::connect(&served).await;
    client.send("POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").await;
    client.send("4\r\n two\r\n0\r\n\r\n").await;
    assert_eq!(client.reply().await.body, "one two");

    client.send("POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 90000\r\n\r\n").await;
    for _ in 0..9 {
        client.send(&"x".repeat(10_000)).await;
    }
    assert_eq!(client.reply().await.body.len(), 90_000);

    client.send("POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n").await;
    assert_eq!(client.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(client.ask("ok").await.body, "ok");

    // The shortest request there is, from a peer that knows no better.
    assert_eq!(Client::connect(&served).await.ask("GET / HTTP/1.0\r\n\r\n").await.status(), "500");
}

#[tokio::test]
async fn a_body_over_the_cap_is_refused_where_the_client_can_see_it() {
    let served = serve().await;
    let part = "x".repeat(1 << 16);
    for framing in ["Content-Length: 8388608\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n800000\r\n"] {
        let client = Client::connect(&served).await;
        let (read, mut write) = client.0.into_split();
        let head = format!("POST /echo HTTP/1.1\r\nHost: here\r\n{framing}");
        let sending = tokio::spawn({
            let part = part.clone();
            async move {
                write.write_all(head.as_bytes()).await.unwrap();
                // A client that sends it all before it looks for an answer.
                for _ in 0..128 {
                    if write.write_all(part.as_bytes()).await.is_err() {
                        return None;
                    }
                }
                Some(write)
            }
        });
        let mut answer = vec![0; 12];
        let mut read = read;
        read.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 413");
        assert!(sending.await.unwrap().is_some(), "the connection was closed while the client was sending");
    }
}

#[tokio::test]
async fn an_answer_before_the_body_is_read_ends_the_connection() {
    let served = serve().await;
    let mut client = Client::connect(&served).await;
    let reply = client.ask(&post("/early", "not read")).await;
    assert_eq!((reply.status(), reply.body.as_str()), ("401", "who?"));
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn what_is_not_a_request_is_refused() {
    let served = serve().await;
    let long = format!("GET / HTTP/1.1\r\nHost: here\r\nX: {}\r\n\r\n", "x".repeat(200_000));
    let twice = "POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
    let cases = [
        ("\x16\x03\x01\x02\0\x01\0\x01\x7c\x03\x03 a TLS handshake", "400"),
        ("GET / HTTP/1.1\r\nHost: here\r\nNo colon\r\n\r\n", "400"),
        (twice, "400"),
        (long.as_str(), "431"),
    ];
    for (request, status) in cases {
        let mut client = Client::connect(&served).await;
        client.send(request).await;
        let reply = client.rest().await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
    }
}

#[tokio::test]
async fn a_head_must_come_in_time() {
    let limits = ListenLimits { header_timeout: SHORT, ..LIMITS };
    let served = serve_with(limits, None).await;
    for start in ["", "G", "PRI * HT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: he"] {
        let mut client = Client::connect(&served).await;
        client.send(start).await;
        let rest = tokio::time::timeout(LONG / 2, async {
            let mut rest = Vec::new();
            drop(client.0.read_to_end(&mut rest).await);
        });
        assert!(rest.await.is_ok(), "{start}");
    }
    // The second request of a connection has a time of its own, which begins with its first byte.
    let mut client = Client::connect(&served).await;
    assert_eq!(client.ask(&get("/none")).await.status(), "204");
    tokio::time::sleep(2 * SHORT).await;
    assert_eq!(client.ask(&get("/none")).await.status(), "204");
    client.send("GET /no").await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_connection_does_not_rest_for_ever() {
    let limits = ListenLimits { idle_timeout: SHORT, ..LIMITS };
    let served = serve_with(limits, None).await;
    let mut client = Client::connect(&served).await;
    assert_eq!(client.ask(&get("/none")).await.status(), "204");
    assert_eq!(client.rest().await, "");

    let mut client = Client::connect(&served).await;
    client.send("POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nfo").await;
    let reply = client.reply().await;
    assert_eq!((reply.status(), reply.body.as_str()), ("408", "too slow"));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up() {
    let limits = ListenLimits { idle_timeout: SHORT, ..LIMITS };
    let mut served = serve_with(limits, None).await;
    let mut client = Client::connect(&served).await;
    client.send(&get("/flood")).await;
    assert_eq!(served.seen.recv().await, Some("given up"));
    assert!(client.rest().await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed() {
    let mut served = serve().await;
    let mut client = Client::connect(&served).await;
    client.send(&get("/forever")).await;
    assert!(client.until("1\r\nx\r\n").await.starts_with("HTTP/1.1 200"));
    drop(client);
    assert_eq!(served.seen.recv().await, Some("gone"));

    let mut client = Client::connect(&served).await;
    client.send(&post("/wait", "call")).await;
    assert_eq!(served.seen.recv().await, Some("waiting"));
    drop(client);
    assert_eq!(served.seen.recv().await, Some("gone"));

    let mut client = Client::connect(&served).await;
    client.send("POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nfo").await;
    drop(client);
    assert_eq!(served.seen.recv().await, Some("broken off"));
}

#[tokio::test]
async fn a_handler_that_fails_is_seen_to_fail() {
    let served = serve().await;
    assert_eq!(Client::connect(&served).await.ask(&get("/nothing")).await.status(), "500");

    let mut client = Client::connect(&served).await;
    client.send(&get("/cut")).await;
    assert!(client.rest().await.ends_with("4\r\nhalf\r\n"));

    let mut client = Client::connect(&served).await;
    client.send(&get("/panic")).await;
    assert_eq!(client.rest().await, "");
    assert_eq!(Client::connect(&served).await.ask(&get("/none")).await.status(), "204");
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let served = serve().await;
    let error = Listener::new(None).unwrap().bind(&[served.address], Fds::new()).err().unwrap();
    assert!(matches!(error, ListenError::Bind { address, .. } if address == served.address));
}

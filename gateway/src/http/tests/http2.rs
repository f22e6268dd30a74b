//! HTTP/2, over TLS, with the server's side of `h2` or written by hand.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ::http::{Request as Asked, Response as Answer};
use h2::{
    Reason, RecvStream,
    server::{self, Connection, SendResponse},
};
use pingora_rustls::TlsAcceptor;
use tokio::{io::AsyncRead, sync::mpsc, task::JoinSet};

use super::{
    super::{connection_pool, multiplexed},
    secure::{acceptor, roots},
    *,
};

const BOTH: [&str; 2] = ["h2", "http/1.1"];

/// A server that agrees to HTTP/2.
struct Server {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

type Exchange = (Asked<RecvStream>, SendResponse<Bytes>);

impl Server {
    async fn start(roots: &std::path::Path) -> (Self, HttpTarget) {
        Self::with(roots, LONG).await
    }

    async fn with(roots: &std::path::Path, timeouts: HttpTimeouts) -> (Self, HttpTarget) {
        let acceptor = acceptor(roots, &["localhost"], &BOTH);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/mcp?a=b", listener.local_addr().unwrap().port());
        (Self { listener, acceptor }, HttpTarget::new(&Url::parse(&url).unwrap(), timeouts, None).unwrap())
    }

    async fn stream(&self) -> impl AsyncRead + tokio::io::AsyncWrite + Unpin + Send + use<> {
        self.acceptor.accept(self.listener.accept().await.unwrap().0).await.unwrap()
    }

    /// The requests of the next connection, which is served until they are dropped.
    async fn accept(&self) -> mpsc::Receiver<Exchange> {
        let mut connection = server::handshake(self.stream().await).await.unwrap();
        let (requests, taken) = mpsc::channel(100);
        tokio::spawn(async move { while feed(&mut connection, &requests).await {} });
        taken
    }
}

async fn feed<T: AsyncRead + tokio::io::AsyncWrite + Unpin>(
    connection: &mut Connection<T, Bytes>,
    requests: &mpsc::Sender<Exchange>,
) -> bool {
    match connection.accept().await {
        Some(Ok(exchange)) => requests.send(exchange).await.is_ok(),
        _ => false,
    }
}

fn answer(status: u16) -> Answer<()> {
    Answer::builder().status(status).body(()).unwrap()
}

/// The whole body of a request.
async fn body(mut stream: RecvStream) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.unwrap();
        stream.flow_control().release_capacity(data.len()).unwrap();
        whole.extend_from_slice(&data);
    }
    whole
}

#[tokio::test]
async fn one_connection_carries_all_requests() {
    let Some(roots) = roots("http2::one_connection_carries_all_requests") else { return };
    let (server, target) = Server::start(&roots).await;
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let mut requests = server.accept().await;
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                while let Some((asked, mut respond)) = requests.recv().await {
                    tokio::spawn(async move {
                        let (head, sent) = asked.into_parts();
                        assert!(!head.headers.contains_key("connection") && !head.headers.contains_key("host"));
                        assert!(head.uri.authority().unwrap().as_str().starts_with("localhost:"));
                        if head.uri.path() == "/mcp" && head.headers.contains_key("x-elsewhere") {
                            let away = Answer::builder().status(307).header("location", "/new");
                            respond.send_response(away.body(()).unwrap(), true).unwrap();
                            return;
                        }
                        let told = format!("{} {} {}", head.method, head.uri.path(), body(sent).await.len());
                        let mut stream = respond.send_response(answer(200), false).unwrap();
                        stream.send_data(told.into(), true).unwrap();
                    });
                }
            });
        }
    });
    let (client, target) = (HttpClient::new(), Arc::new(target));
    let mut calls = JoinSet::new();
    for size in 0..40 {
        let (client, target) = (client.clone(), Arc::clone(&target));
        calls.spawn(async move {
            let body = Some(Bytes::from(vec![b'x'; size]));
            let headers = [(HeaderName::from_static("connection"), HeaderValue::from_static("close"))];
            let request = Request { method: Method::POST, headers: &headers, body };
            assert_eq!(all(client.send(&target, request).await.unwrap()).await, format!("POST /mcp {size}"));
        });
    }
    calls.join_all().await;
    let long = Request { method: Method::POST, headers: &[], body: Some(Bytes::from(vec![b'x'; 3 << 20])) };
    assert_eq!(all(client.send(&target, long).await.unwrap()).await, "POST /mcp 3145728");
    let headers = [(HeaderName::from_static("x-elsewhere"), HeaderValue::from_static("1"))];
    let moved = Request { method: Method::GET, headers: &headers, body: None };
    assert_eq!(all(client.send(&target, moved).await.unwrap()).await, "GET /new 0");
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_answer_that_is_dropped_resets_its_stream_alone() {
    let Some(roots) = roots("http2::an_answer_that_is_dropped_resets_its_stream_alone") else { return };
    let (server, target) = Server::start(&roots).await;
    let served = tokio::spawn(async move {
        let mut requests = server.accept().await;
        let (_asked, mut respond) = requests.recv().await.unwrap();
        let mut stream = respond.send_response(answer(200), false).unwrap();
        stream.send_data("one".into(), false).unwrap();
        let reset = poll_fn(|context| stream.poll_reset(context)).await.unwrap();
        let (_asked, mut respond) = requests.recv().await.unwrap();
        respond.send_response(answer(202), true).unwrap();
        // What is read to its end is not reset.
        let (_asked, mut respond) = requests.recv().await.unwrap();
        let mut stream = respond.send_response(answer(200), false).unwrap();
        stream.send_data("three".into(), false).unwrap();
        let (_asked, mut respond) = requests.recv().await.unwrap();
        stream.send_data(Bytes::new(), true).unwrap();
        respond.send_response(answer(204), true).unwrap();
        drop(requests.recv().await);
        reset
    });
    let client = HttpClient::new();
    let mut response = client.send(&target, get()).await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "one");
    drop(response);
    assert_eq!(client.send(&target, post("2")).await.unwrap().status(), 202);
    let mut response = client.send(&target, get()).await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "three");
    response.finish();
    assert_eq!(target.pool.unfinished(), 1);
    assert_eq!(client.send(&target, get()).await.unwrap().status(), 204);
    target.pool.finish_now();
    assert_eq!(target.pool.unfinished(), 0);
    drop(target);
    assert_eq!(served.await.unwrap(), Reason::CANCEL);
}

#[tokio::test]
async fn what_a_server_resets_has_run_unless_it_says_so() {
    let Some(roots) = roots("http2::what_a_server_resets_has_run_unless_it_says_so") else { return };
    let (server, target) = Server::start(&roots).await;
    let (read, mut heard) = mpsc::channel::<()>(1);
    tokio::spawn(async move {
        let mut requests = server.accept().await;
        for reason in [Reason::REFUSED_STREAM, Reason::INTERNAL_ERROR] {
            let (_asked, mut respond) = requests.recv().await.unwrap();
            respond.send_reset(reason);
        }
        let (_asked, mut respond) = requests.recv().await.unwrap();
        let mut stream = respond.send_response(answer(200), false).unwrap();
        stream.send_data("half".into(), false).unwrap();
        heard.recv().await.unwrap();
        stream.send_reset(Reason::INTERNAL_ERROR);
        let (_asked, mut respond) = requests.recv().await.unwrap();
        respond.send_response(answer(200), true).unwrap();
        drop(requests.recv().await);
    });
    let client = HttpClient::new();
    let refused = client.send(&target, post("1")).await.err().unwrap();
    assert!(refused == Error::Refused && !refused.may_have_run());
    let broken = client.send(&target, post("2")).await.err().unwrap();
    assert!(broken == Error::BrokenOff && broken.may_have_run());
    // Half of an answer is no answer.
    let mut response = client.send(&target, post("3")).await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "half");
    read.send(()).await.unwrap();
    assert_eq!(response.chunk().await, Err(Error::BrokenOff));
    assert_eq!(client.send(&target, post("4")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_connection_that_was_full_is_used_again() {
    let Some(roots) = roots("http2::a_connection_that_was_full_is_used_again") else { return };
    let (server, target) = Server::start(&roots).await;
    tokio::spawn(async move {
        let mut requests = server.accept().await;
        let (_asked, mut respond) = requests.recv().await.unwrap();
        respond.send_response(answer(204), true).unwrap();
        drop(requests.recv().await);
    });
    assert_eq!(HttpClient::new().send(&target, get()).await.unwrap().status(), 204);
    let mut open = Vec::new();
    while let Some(connection_pool::Connection::Http2(stream)) = target.pool.take().await {
        open.push(stream);
    }
    // Another has looked for room before the last stream was taken.
    assert!(multiplexed::open(&open[0].conn.clone()).await.is_none());
    open.pop();
    assert!(target.pool.take().await.is_some());
}

#[tokio::test]
async fn connections_that_take_no_stream_do_not_pile_up() {
    let Some(roots) = roots("http2::connections_that_take_no_stream_do_not_pile_up") else { return };
    let short = HttpTimeouts { connect: LONG.connect, read: Duration::from_millis(300) };
    let (server, target) = Server::with(&roots, short).await;
    let (ended, mut ends) = mpsc::channel::<()>(10);
    tokio::spawn(async move {
        loop {
            let (stream, ended) = (server.stream().await, ended.clone());
            tokio::spawn(async move {
                let mut connection =
                    server::Builder::new().max_concurrent_streams(0).handshake::<_, Bytes>(stream).await.unwrap();
                while let Some(Ok(_)) = connection.accept().await {}
                let _: Result<_, _> = ended.send(()).await;
            });
        }
    });
    let client = HttpClient::new();
    for _ in 0..4 {
        client.send(&target, get()).await.err().unwrap();
    }
    let three = async { ends.recv().await.and(ends.recv().await).and(ends.recv().await) };
    assert!(tokio::time::timeout(Duration::from_secs(10), three).await.is_ok());
}

#[tokio::test]
async fn a_head_has_a_limit() {
    let Some(roots) = roots("http2::a_head_has_a_limit") else { return };
    let (server, target) = Server::start(&roots).await;
    tokio::spawn(async move {
        let mut requests = server.accept().await;
        for count in [40, 60] {
            let (_asked, mut respond) = requests.recv().await.unwrap();
            let head = (0..count).fold(Answer::builder(), |head, n| head.header(format!("x-{n}"), "x".repeat(5_000)));
            respond.send_response(head.body(()).unwrap(), true).unwrap();
        }
        drop(requests.recv().await);
    });
    let client = HttpClient::new();
    assert_eq!(client.send(&target, post("1")).await.unwrap().status(), 200);
    let error = client.send(&target, post("2")).await.err();
    assert!(error.as_ref().is_some_and(Error::may_have_run), "{error:?}");
}

/// One frame (RFC 9113 §4.1).
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, 0], payload].concat()
}

#[tokio::test]
async fn what_comes_after_a_goaway_has_not_run() {
    let Some(roots) = roots("http2::what_comes_after_a_goaway_has_not_run") else { return };
    let (server, target) = Server::start(&roots).await;
    tokio::spawn(async move {
        let mut stream = server.stream().await;
        stream.write_all(&frame(4, 0, &[])).await.unwrap();
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            if head[3] == 1 {
                break;
            }
        }
        // The last stream that was looked at is none, and the reason is none either.
        stream.write_all(&frame(7, 0, &[0; 8])).await.unwrap();
        stream.flush().await.unwrap();
        let mut requests = server.accept().await;
        while let Some((_asked, mut respond)) = requests.recv().await {
            respond.send_response(answer(200), true).unwrap();
        }
        drop(stream);
    });
    let client = HttpClient::new();
    let refused = client.send(&target, post("1")).await.err().unwrap();
    assert!(refused == Error::Refused && !refused.may_have_run(), "{refused}");
    assert_eq!(client.send(&target, post("2")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_answer_outlives_the_goaway_in_its_middle() {
    let Some(roots) = roots("http2::an_answer_outlives_the_goaway_in_its_middle") else { return };
    let (server, target) = Server::start(&roots).await;
    let (leave, mut left) = mpsc::channel::<()>(1);
    tokio::spawn(async move {
        let mut connection = server::handshake(server.stream().await).await.unwrap();
        let (_asked, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut stream = respond.send_response(answer(200), false).unwrap();
        stream.send_data("one ".into(), false).unwrap();
        tokio::select! {
            _ = left.recv() => {}
            _ = connection.accept() => {}
        }
        connection.graceful_shutdown();
        tokio::spawn(async move { while connection.accept().await.is_some() {} });
        let mut requests = server.accept().await;
        let (_asked, mut respond) = requests.recv().await.unwrap();
        respond.send_response(answer(204), true).unwrap();
        stream.send_data("two".into(), true).unwrap();
        drop(requests.recv().await);
    });
    let client = HttpClient::new();
    let mut response = client.send(&target, get()).await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "one ");
    leave.send(()).await.unwrap();
    // Until the word is here; a stream of the old connection would never be answered.
    while target.pool.take().await.is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.send(&target, get()).await.unwrap().status(), 204);
    assert_eq!(all(response).await, "two");
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_counts_on_a_stream() {
    let Some(roots) = roots("http2::an_answer_before_the_end_of_the_request_counts_on_a_stream") else { return };
    let (server, target) = Server::start(&roots).await;
    tokio::spawn(async move {
        let mut requests = server.accept().await;
        // Reads nothing of it, so that its window fills up.
        let (asked, mut respond) = requests.recv().await.unwrap();
        respond.send_response(answer(413), true).unwrap();
        drop(requests.recv().await);
        drop(asked);
    });
    let request = Request { method: Method::POST, headers: &[], body: Some(Bytes::from(vec![b'x'; 4 << 20])) };
    assert_eq!(HttpClient::new().send(&target, request).await.unwrap().status(), 413);
}

#[tokio::test]
async fn silence_ends_a_stream_in_time() {
    let Some(roots) = roots("http2::silence_ends_a_stream_in_time") else { return };
    let short = HttpTimeouts { connect: LONG.connect, read: Duration::from_millis(300) };
    let (server, target) = Server::with(&roots, short).await;
    tokio::spawn(async move {
        let mut silent = server.accept().await;
        let mut open = vec![silent.recv().await.unwrap()];
        // Whose server may have died is asked no more.
        let mut requests = server.accept().await;
        let (asked, mut respond) = requests.recv().await.unwrap();
        let mut stream = respond.send_response(answer(200), false).unwrap();
        stream.send_data("fo".into(), false).unwrap();
        open.push((asked, respond));
        let (_asked, mut respond) = requests.recv().await.unwrap();
        respond.send_response(answer(200), true).unwrap();
        drop((silent.recv().await, requests.recv().await));
    });
    let client = HttpClient::new();
    assert_eq!(client.send(&target, post("1")).await.err().unwrap(), Error::ReadTimeout);
    let half = client.send(&target, post("2")).await.unwrap();
    assert_eq!(half.collect(100).await, Err(Error::ReadTimeout));
    assert_eq!(client.send(&target, post("3")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_server_that_wants_the_other_version_gets_it() {
    let Some(roots) = roots("http2::a_server_that_wants_the_other_version_gets_it") else { return };
    let (server, target) = Server::start(&roots).await;
    tokio::spawn(async move {
        let mut requests = server.accept().await;
        let (_asked, mut respond) = requests.recv().await.unwrap();
        respond.send_reset(Reason::HTTP_1_1_REQUIRED);
        let mut stream = server.stream().await;
        let mut read = [0; 4096];
        while stream.read(&mut read).await.is_ok_and(|read| read > 0) {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold").await.unwrap();
            stream.flush().await.unwrap();
        }
        drop(requests);
    });
    let client = HttpClient::new();
    assert_eq!(client.send(&target, post("1")).await.err().unwrap(), Error::Refused);
    for _ in 0..2 {
        assert_eq!(all(client.send(&target, post("2")).await.unwrap()).await, "old");
    }
}

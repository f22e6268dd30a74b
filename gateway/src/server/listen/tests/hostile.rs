//! Clients that take more than their share: of time, of connections, of attention.

use tokio::net::TcpSocket;

use super::*;

/// A client whose end of the connection has this address of the machine.
async fn connect_from(source: &str, served: &Served) -> Client {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
    Client(socket.connect(served.address).await.unwrap())
}

#[tokio::test]
async fn a_body_that_trickles_has_an_end() {
    let served = serve_with(ListenLimits { body_timeout: 3 * SHORT, ..LIMITS }, None).await;
    for head in ["Content-Length: 50000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"] {
        let mut client = Client::connect(&served).await;
        client.send(&format!("POST /echo HTTP/1.1\r\nHost: here\r\n{head}")).await;
        let piece = if head.contains("chunked") { "1\r\nx\r\n" } else { "x" };
        let (mut read, mut write) = client.0.into_split();
        // Never silent for as long as a read may take, and never done.
        let trickle = tokio::spawn(async move {
            while write.write_all(piece.as_bytes()).await.is_ok() {
                tokio::time::sleep(SHORT / 10).await;
            }
        });
        let mut answer = [0; 12];
        read.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 408");
        trickle.abort();
    }
}

#[tokio::test]
async fn a_body_over_http2_that_trickles_has_an_end() {
    let served = serve_with(ListenLimits { body_timeout: 3 * SHORT, ..LIMITS }, None).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
    let _connection = tokio::spawn(connection);
    let request = http::Request::post("http://here/echo").body(()).unwrap();
    let (response, mut stream) = requests.send_request(request, false).unwrap();
    let trickle = tokio::spawn(async move {
        while stream.send_data(Bytes::from_static(b"x"), false).is_ok() {
            tokio::time::sleep(SHORT / 10).await;
        }
    });
    assert_eq!(response.await.unwrap().status(), 408);
    trickle.abort();
}

#[tokio::test]
async fn a_body_that_comes_fast_enough_has_the_time_it_needs() {
    let served = serve_with(ListenLimits { body_timeout: SHORT, ..LIMITS }, None).await;
    let mut client = Client::connect(&served).await;
    let (piece, pieces) = ("x".repeat(16 * 1024), 4);
    let length = pieces * piece.len();
    client.send(&format!("POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n{piece}")).await;
    for _ in 1..pieces {
        tokio::time::sleep(2 * SHORT).await;
        client.send(&piece).await;
    }
    let reply = client.reply().await;
    assert_eq!((reply.status(), reply.body.len()), ("200", length));
}

#[tokio::test]
async fn an_address_has_a_share_of_connections_and_no_other_notices() {
    let connections = Shares { total: 10, principal: 2, upstream: 0 };
    let served = serve_with(ListenLimits { connections, ..LIMITS }, None).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(&served).await;
        assert_eq!(client.ask(&get("/none")).await.status(), "204");
        open.push(client);
    }
    for _ in 0..3 {
        let refused = Client::connect(&served).await.ask(&get("/none")).await;
        assert_eq!(refused.status(), "429");
        assert!(refused.head.contains("retry-after: "), "{}", refused.head);
        assert!(refused.body.contains("`limits.principal.connections`"), "{}", refused.body);
    }
    let mut other = connect_from("127.0.0.2", &served).await;
    assert_eq!(other.ask(&get("/none")).await.status(), "204");
    drop(open.pop());
    // The end of a connection is seen a moment later.
    while Client::connect(&served).await.ask(&get("/none")).await.status() != "204" {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn connections_have_a_limit_in_all_which_is_named() {
    let connections = Shares { total: 2, principal: 10, upstream: 0 };
    let served = serve_with(ListenLimits { connections, ..LIMITS }, None).await;
    let mut open = Vec::new();
    for source in ["127.0.0.1", "127.0.0.2"] {
        let mut client = connect_from(source, &served).await;
        assert_eq!(client.ask(&get("/none")).await.status(), "204");
        open.push(client);
    }
    let refused = connect_from("127.0.0.3", &served).await.ask(&get("/none")).await;
    assert_eq!(refused.status(), "503");
    assert!(refused.body.contains("`limits.connections`"), "{}", refused.body);
    drop(open.pop());
    while connect_from("127.0.0.3", &served).await.ask(&get("/none")).await.status() != "204" {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_behind_a_byte_is_noticed() {
    for early in ["G".to_owned(), get("/none"), "x".repeat(3000)] {
        let mut served = serve().await;
        let mut client = Client::connect(&served).await;
        client.send(&get("/held")).await;
        assert_eq!(served.seen.recv().await, Some("held"));
        client.send(&early).await;
        drop(client);
        assert_eq!(served.seen.recv().await, Some("gone"), "{early:?}");
    }
}

#[tokio::test]
async fn what_comes_early_is_served_however_it_is_cut() {
    let mut served = serve().await;
    let mut client = Client::connect(&served).await;
    client.send(&get("/held")).await;
    assert_eq!(served.seen.recv().await, Some("held"));
    let next = post("/echo", "next");
    for piece in [&next[..1], &next[1..30], &next[30..]] {
        client.send(piece).await;
        assert_eq!(Client::connect(&served).await.ask(&get("/none")).await.status(), "204");
    }
    client.send(&get("/none")).await;
    served.app.release.notify_one();
    assert_eq!(client.reply().await.body, "held");
    assert_eq!(client.reply().await.body, "next");
    assert_eq!(client.reply().await.status(), "204");
}

#[tokio::test]
async fn an_address_has_a_share_of_the_memory_for_bodies() {
    let bodies = Shares { total: 400_000, principal: 150_000, upstream: 0 };
    let served = serve_with(ListenLimits { bodies, ..LIMITS }, None).await;
    let begun = "POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 90000\r\n\r\nx";
    let mut holding = Client::connect(&served).await;
    holding.send(begun).await;
    let small = post("/echo", "small");
    let large = post("/echo", &"x".repeat(90_000));
    // The first is read by the time that the next are answered.
    while Client::connect(&served).await.ask(&large).await.status() == "200" {}
    let refused = Client::connect(&served).await.ask(begun).await;
    assert_eq!(refused.status(), "429");
    assert!(refused.body.contains("`limits.principal.body_memory`"), "{}", refused.body);
    let chunk = format!("11170\r\n{}\r\n", "x".repeat(70_000));
    let chunked = format!("POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}");
    assert_eq!(Client::connect(&served).await.ask(&chunked).await.status(), "429", "of unknown length");
    assert_eq!(Client::connect(&served).await.ask(&small).await.body, "small");
    assert_eq!(connect_from("127.0.0.2", &served).await.ask(&large).await.status(), "200");
    drop(holding);
    while Client::connect(&served).await.ask(&large).await.status() != "200" {}
}

#[tokio::test]
#[allow(clippy::async_yields_async, reason = "an answer that is held is awaited later, or never")]
async fn requests_over_http2_are_of_the_share_too() {
    let connections = Shares { total: 10, principal: 3, upstream: 0 };
    let mut served = serve_with(ListenLimits { connections, ..LIMITS }, None).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    let _connection = tokio::spawn(connection);
    let ask = |path: &str| {
        let request = http::Request::get(format!("http://here{path}")).body(()).unwrap();
        let requests = requests.clone();
        async move { requests.ready().await.unwrap().send_request(request, true).unwrap().0 }
    };
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(ask("/held").await);
        assert_eq!(served.seen.recv().await, Some("held"));
    }
    assert_eq!(ask("/none").await.await.unwrap().status(), 429);
    let mut other = connect_from("127.0.0.2", &served).await;
    assert_eq!(other.ask(&get("/none")).await.status(), "204");
    served.app.release.notify_one();
    assert_eq!(held.remove(0).await.unwrap().status(), 200);
    while ask("/none").await.await.unwrap().status() != 204 {}
}

//! What real clients do not do: half a request, a request that never ends, no HTTP at all.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_tests::wait::within;
use weir_tests::{Client, Gateway, Request, Stub};

const LIMITS: &str = "limits = { body = \"64KiB\", header_timeout = \"1s\", idle_timeout = \"1s\" }\n";

async fn start() -> (Gateway, Stub) {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("{LIMITS}{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

/// Sends `bytes` and reads until the gateway closes the connection.
async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The gateway may have answered and closed before all is written.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = within("the gateway to close the connection", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> Option<u16> {
    answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

async fn still_works(gateway: &Gateway) {
    let client = Client::legacy(gateway, "/mcp").await;
    let result = client.call("stub__echo", json!({ "message": "still here" })).await;
    assert_eq!(result["content"][0]["text"], "still here");
}

#[tokio::test]
async fn broken_requests_are_refused_and_harm_nobody() {
    let (gateway, _stub) = start().await;
    let address = gateway.address();
    let head =
        |rest: &str| format!("POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{rest}");
    let cases = [
        ("no HTTP", "hello\r\n\r\n".to_owned()),
        (
            "the TLS of somebody who expects it",
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}\r\n\r\n".to_owned(),
        ),
        ("two lengths", head("content-length: 2\r\ncontent-length: 3\r\n\r\n{}")),
        ("a length that is none", head("content-length: two\r\n\r\n{}")),
        ("a length and chunks", head("content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")),
        ("a chunk of strange size", head("transfer-encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n")),
        ("no host", "POST /mcp HTTP/1.1\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}".to_owned()),
        ("a header without end", head(&format!("x-long: {}\r\n\r\n", "a".repeat(1 << 20)))),
        ("too many headers", head(&format!("{}\r\n", "x-many: a\r\n".repeat(5000)))),
    ];
    for (case, bytes) in cases {
        let answer = exchange(address, bytes.as_bytes()).await;
        match status(&answer) {
            None => assert_eq!(answer, "", "{case}"),
            Some(status) => assert!((400..500).contains(&status), "{case}: {answer}"),
        }
    }
    still_works(&gateway).await;
}

#[tokio::test]
async fn slow_clients_are_not_waited_for() {
    let (gateway, _stub) = start().await;
    let address = gateway.address();
    let cases = [
        ("silence", String::new()),
        ("half a head", "POST /mcp HTTP/1.1\r\nhost: ".to_owned()),
        (
            "half a body",
            format!(
                "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{{"
            ),
        ),
    ];
    for (case, bytes) in cases {
        let answer = exchange(address, bytes.as_bytes()).await;
        if let Some(status) = status(&answer) {
            assert!((400..500).contains(&status), "{case}: {answer}");
        }
    }
    still_works(&gateway).await;
}

#[tokio::test]
async fn a_body_without_end_is_cut_off() {
    let (gateway, _stub) = start().await;
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\naccept: application/json, text/event-stream\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        gateway.address()
    );
    let answer = exchange(gateway.address(), (head + &chunk.repeat(64)).as_bytes()).await;
    assert!(matches!(status(&answer), Some(413) | None), "{answer}");
    still_works(&gateway).await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_request_leaves_nothing() {
    let (gateway, stub) = start().await;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
        stream.write_all(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    }
    still_works(&gateway).await;
    assert_eq!(stub.held(), 0);
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let (gateway, _stub) = start().await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let client = Client::legacy(&gateway, "/mcp").await;
    let request = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: application/json, text/event-stream\r\n\
         content-type: application/json\r\nmcp-session-id: {}\r\ncontent-length: {}\r\n\r\n{ping}",
        client.session_id(),
        ping.len()
    );
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    for _ in 0..3 {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            let read = within("the answer", stream.read_buf(&mut answer)).await.unwrap();
            assert!(read > 0, "the connection was closed after {:?}", String::from_utf8_lossy(&answer));
        }
        assert_eq!(status(&String::from_utf8_lossy(&answer)), Some(200));
    }
}

#[tokio::test]
async fn deep_json_is_refused_or_carried_but_never_fatal() {
    let (gateway, _stub) = start().await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    for depth in [100, 1_000, 30_000] {
        let nested = "[".repeat(depth) + &"]".repeat(depth);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"weir-tests/raw","params":{{"x":{nested}}}}}"#);
        let response = client.send(client.post(body)).await;
        assert!([200, 400].contains(&response.status), "depth {depth}: {}", response.status);
    }
    still_works(&gateway).await;
}

#[tokio::test]
async fn http_2_without_tls_is_understood() {
    let (gateway, _stub) = start().await;
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    // The preface of a client that knows the server speaks HTTP/2 (RFC 9113 §3.3), with an empty SETTINGS frame.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut frame = [0; 9];
    within("the gateway's settings", stream.read_exact(&mut frame)).await.unwrap();
    assert_eq!(frame[3], 4, "the first frame is SETTINGS: {frame:?}");
}

#[tokio::test]
async fn head_and_options_are_no_surprise() {
    let (gateway, _stub) = start().await;
    for (method, path) in [("OPTIONS", "/mcp"), ("TRACE", "/mcp"), ("POST", "/healthz")] {
        let status = gateway.send(Request::new(method, path)).await.status;
        assert!((200..300).contains(&status) || (400..500).contains(&status), "{method} {path}: {status}");
    }
}

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

/// Sends `bytes` in pieces of `step` and returns the messages that come out, as (status, body).
async fn read_all(bytes: &[u8], step: usize) -> Result<Vec<(u16, Vec<u8>)>, WireError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    sender.set_nodelay(true).unwrap();
    let (mut receiver, _) = listener.accept().await.unwrap();
    let bytes = bytes.to_vec();
    let sending = tokio::spawn(async move {
        for piece in bytes.chunks(step) {
            sender.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    let mut inbox = Inbox::default();
    let mut messages = Vec::new();
    while let Some(message) = inbox.next(&mut receiver).await? {
        messages.push((message.status(), message.body.to_vec()));
    }
    sending.await.unwrap();
    Ok(messages)
}

#[tokio::test]
async fn reads_lengths_and_chunks_in_any_pieces() {
    let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n\
        HTTP/1.1 202 Accepted\r\ncontent-length:0\r\n\r\n\
        HTTP/1.1 204 No Content\r\n\r\n";
    let expected = vec![(200, b"hello".to_vec()), (200, b"abc0123456789".to_vec()), (202, vec![]), (204, vec![])];
    for step in [1, 2, 7, 1000] {
        assert_eq!(read_all(wire, step).await.unwrap(), expected, "in pieces of {step}");
    }
}

#[tokio::test]
async fn refuses_what_cannot_be_kept_alive_or_understood() {
    let no_length = read_all(b"HTTP/1.1 200 OK\r\n\r\nrest", 100).await;
    assert!(matches!(no_length, Err(WireError::NotHttp(_))));
    let cut = read_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", 100).await;
    assert!(matches!(cut, Err(WireError::Closed)));
    let bad_chunk = read_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", 100).await;
    assert!(matches!(bad_chunk, Err(WireError::NotHttp(_))));
    let huge = read_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", 100).await;
    assert!(matches!(huge, Err(WireError::BodyTooLong)));
}

#[test]
fn finds_headers_and_start_lines() {
    let message = Message { head: b"POST /a/b HTTP/1.1\r\nMCP-Session-Id:  s1 \r\n\r\n", body: b"" };
    assert_eq!(message.method_and_path(), (&b"POST"[..], &b"/a/b"[..]));
    assert_eq!(message.header("mcp-session-id"), Some(&b"s1"[..]));
    assert_eq!(message.header("mcp-session"), None);
}

//! Connections whose last answer was read, but not to its very end.

use super::*;

/// The first piece of an answer whose chunks go on.
async fn first(client: &HttpClient, target: &HttpTarget) -> Response {
    let mut response = client.send(target, post("1")).await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "one");
    response
}

#[tokio::test]
async fn a_connection_is_used_again_when_only_the_end_was_not_read() {
    let (listener, target) = listen().await;
    let (finished, mut heard) = tokio::sync::mpsc::channel(1);
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let begin = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n";
        peer.request().await;
        peer.send(&format!("{begin}0\r\n\r\n")).await;
        peer.request().await;
        // Its end comes when nobody waits for it any more.
        peer.send(begin).await;
        heard.recv().await.unwrap();
        peer.send("5\r\n: bye\r\n0\r\n\r\n").await;
        // On the same connection: nobody else is accepted.
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthree").await;
        assert_eq!(peer.request().await, "");
    });
    let client = HttpClient::new();
    first(&client, &target).await.finish();
    first(&client, &target).await.finish();
    finished.send(()).await.unwrap();
    // Until it has been read; a connection of its own would never be answered.
    while target.pool.finish_now() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(all(client.send(&target, post("3")).await.unwrap()).await, "three");
    drop(target);
    server.await.unwrap();
}

#[tokio::test]
async fn a_connection_is_closed_when_more_than_the_end_was_not_read() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").await;
        let more = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
        while peer.0.write_all(more.as_bytes()).await.is_ok() {}
    });
    let client = HttpClient::new();
    first(&client, &target).await.finish();
    while target.pool.unfinished() > 0 {
        target.pool.finish_now();
        tokio::task::yield_now().await;
    }
    server.await.unwrap();
}

//! How many connections to one target may be in use.

use super::*;

#[tokio::test]
async fn a_target_has_so_many_connections_in_use_and_no_more() {
    let (listener, target) = listen().await;
    let server = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no").await.unwrap();
            open.push(stream);
        }
    });
    let client = HttpClient::new().limited(2);
    let first = client.send(&target, get()).await.unwrap();
    let _second = client.send(&target, get()).await.unwrap();
    let refused = client.send(&target, get()).await.err().unwrap();
    assert!(refused == Error::Busy(2) && !refused.may_have_run());
    assert!(refused.to_string().contains("`limits.upstream.connections`"), "{refused}");
    drop(first);
    assert!(client.send(&target, get()).await.is_ok());
    server.abort();
}

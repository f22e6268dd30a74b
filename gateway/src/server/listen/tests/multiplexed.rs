//! HTTP/2 without TLS, by prior knowledge.

use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use tokio::{net::TcpStream, task::JoinHandle};

use super::{LIMITS, ListenLimits, SHORT, Served, serve, serve_with};

async fn connect(served: &Served) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    (requests, tokio::spawn(connection))
}

async fn ask(requests: &SendRequest<Bytes>, path: &str, body: &[u8]) -> ResponseFuture {
    let request = Request::post(format!("http://here{path}")).body(()).unwrap();
    let mut requests = requests.clone().ready().await.unwrap();
    let (response, mut stream) = requests.send_request(request, body.is_empty()).unwrap();
    if !body.is_empty() {
        stream.send_data(Bytes::copy_from_slice(body), true).unwrap();
    }
    response
}

/// Status and body.
async fn all(response: ResponseFuture) -> (u16, Vec<u8>) {
    let response = response.await.unwrap();
    let status = response.status().as_u16();
    let mut stream = response.into_body();
    let mut body = Vec::new();
    while let Some(part) = stream.data().await {
        let part = part.unwrap();
        stream.flow_control().release_capacity(part.len()).unwrap();
        body.extend_from_slice(&part);
    }
    (status, body)
}

#[tokio::test]
async fn one_connection_carries_requests_at_the_same_time() {
    let mut served = serve().await;
    let (requests, _connection) = connect(&served).await;
    let held = ask(&requests, "/held", b"").await;
    assert_eq!(served.seen.recv().await, Some("held"));
    assert_eq!(all(ask(&requests, "/echo", b"hello").await).await, (200, b"hello".to_vec()));
    assert_eq!(all(ask(&requests, "/stream", b"").await).await, (200, b"abcdef".to_vec()));
    assert_eq!(all(ask(&requests, "/sized", b"").await).await, (200, b"abcdef".to_vec()));
    assert_eq!(all(ask(&requests, "/empty", b"").await).await, (200, Vec::new()));
    assert_eq!(all(ask(&requests, "/nothing", b"").await).await, (500, Vec::new()));
    // Cut off: what had not left yet does not leave any more.
    let cut = ask(&requests, "/cut", b"").await.await;
    assert_eq!(cut.err().and_then(|error| error.reason()), Some(h2::Reason::INTERNAL_ERROR));
    let large = vec![b'x'; 90_000];
    assert_eq!(all(ask(&requests, "/echo", &large).await).await.1.len(), 90_000);
    assert_eq!(all(ask(&requests, "/echo", &[large.clone(), large].concat()).await).await.0, 413);
    served.app.release.notify_one();
    assert_eq!(all(held).await, (200, b"held".to_vec()));
}

#[tokio::test]
async fn a_stream_that_is_given_up_is_noticed() {
    let mut served = serve().await;
    let (requests, connection) = connect(&served).await;
    let response = ask(&requests, "/forever", b"").await.await.unwrap();
    drop(response);
    assert_eq!(served.seen.recv().await, Some("gone"));

    let response = ask(&requests, "/wait", b"call").await;
    assert_eq!(served.seen.recv().await, Some("waiting"));
    drop(response);
    assert_eq!(served.seen.recv().await, Some("gone"));

    // The whole connection goes.
    let _response = ask(&requests, "/forever", b"").await.await.unwrap();
    connection.abort();
    assert_eq!(served.seen.recv().await, Some("gone"));
}

#[tokio::test]
async fn a_connection_without_requests_is_closed() {
    let limits = ListenLimits { idle_timeout: SHORT, ..LIMITS };
    let served = serve_with(limits, None).await;
    let (requests, connection) = connect(&served).await;
    assert_eq!(all(ask(&requests, "/echo", b"x").await).await.0, 200);
    tokio::time::timeout(Duration::from_secs(10), connection).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn what_runs_may_finish_before_the_end() {
    let mut served = serve().await;
    let (requests, connection) = connect(&served).await;
    let held = ask(&requests, "/held", b"").await;
    assert_eq!(served.seen.recv().await, Some("held"));
    served.stop.send(true).unwrap();
    tokio::task::yield_now().await;
    assert!(!served.serving.is_finished());
    served.app.release.notify_one();
    assert_eq!(all(held).await, (200, b"held".to_vec()));
    served.serving.await.unwrap();
    connection.await.unwrap().unwrap();
}

//! Requests through a forward proxy of the environment.

use std::sync::Arc;

use parking_lot::Mutex;
use pingora_rustls::TlsAcceptor;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use weir_oauth::ForwardProxies;

use super::{
    secure::{acceptor, roots, serve},
    *,
};

/// A client with this proxy for everything.
fn behind(proxy: &str) -> HttpClient {
    let proxy = proxy.to_owned();
    let proxies = ForwardProxies::read(move |name| (name == "ALL_PROXY").then(|| proxy.clone()));
    HttpClient { proxies, ..HttpClient::new() }
}

fn target(client: &HttpClient, url: &str) -> HttpTarget {
    client.target(&Url::parse(url).unwrap(), LONG).unwrap()
}

/// What a proxy was asked.
type Heads = Arc<Mutex<Vec<String>>>;

/// A proxy that tunnels to `port` whatever it is asked for, over TLS if it has an acceptor.
async fn tunnels(port: u16, secured: Option<TlsAcceptor>) -> (u16, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (own, heads) = (listener.local_addr().unwrap().port(), Heads::default());
    let seen = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            match &secured {
                Some(acceptor) => {
                    drop(tokio::spawn(tunnel(acceptor.accept(stream).await.unwrap(), port, seen.clone())))
                }
                None => drop(tokio::spawn(tunnel(stream, port, seen.clone()))),
            }
        }
    });
    (own, heads)
}

async fn tunnel(mut stream: impl AsyncRead + AsyncWrite + Unpin, port: u16, seen: Heads) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_buf(&mut head).await.unwrap();
    }
    seen.lock().push(String::from_utf8(head).unwrap());
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    copy_bidirectional(&mut stream, &mut server).await.ok();
}

#[tokio::test]
async fn plain_requests_are_written_in_absolute_form() {
    let (listener, direct) = listen().await;
    let client = behind(&format!("http://u:hunter2@{}", listener.local_addr().unwrap()));
    let through = target(&client, "http://mcp.test:81/mcp?a=b");
    let server = tokio::spawn(async move {
        let mut peer = Peer::accept(&listener).await;
        let first = peer.request().await;
        peer.send("HTTP/1.1 307 Elsewhere\r\nLocation: /new\r\nContent-Length: 0\r\n\r\n").await;
        let second = peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let mut peer = Peer::accept(&listener).await;
        let straight = peer.request().await;
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        [first, second, straight]
    });
    assert_eq!(all(client.send(&through, post("{}")).await.unwrap()).await, "ok");
    assert_eq!(all(client.send(&direct, get()).await.unwrap()).await, "ok");
    let [first, second, straight] = server.await.unwrap();
    let head = "host: mcp.test:81\r\nproxy-authorization: Basic dTpodW50ZXIy\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(first, format!("POST http://mcp.test:81/mcp?a=b HTTP/1.1\r\n{head}"));
    assert_eq!(second, format!("POST http://mcp.test:81/new HTTP/1.1\r\n{head}"));
    assert!(straight.starts_with("GET /mcp?a=b HTTP/1.1\r\n") && !straight.contains("proxy"), "{straight}");
}

#[tokio::test]
async fn secured_requests_go_through_a_tunnel() {
    let Some(roots) = roots("forward_proxy::secured_requests_go_through_a_tunnel") else { return };
    let tls = acceptor(&roots, &["mcp.test", "localhost"], &[]);
    let port = serve(tls.clone()).await;
    for (scheme, secured) in [("http", None), ("https", Some(tls))] {
        let (proxy, heads) = tunnels(port, secured).await;
        let client = behind(&format!("{scheme}://u:hunter2@localhost:{proxy}"));
        let through = target(&client, "https://mcp.test/");
        for _ in 0..2 {
            assert_eq!(all(client.send(&through, get()).await.unwrap()).await, "secret");
        }
        // The certificate is the origin's: another name behind the same proxy is refused.
        let error = client.send(&target(&client, "https://other.test/"), get()).await.err().unwrap();
        assert!(matches!(error, Error::Tls(_)), "{error}");
        let head = |host| {
            let proof = "proxy-authorization: Basic dTpodW50ZXIy";
            format!("CONNECT {host}:443 HTTP/1.1\r\nhost: {host}:443\r\n{proof}\r\n\r\n")
        };
        assert_eq!(*heads.lock(), [head("mcp.test"), head("other.test")]);
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_without_its_password() {
    let cases = [
        ("https://mcp.test/", "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", "wants another user and password (407)"),
        ("http://mcp.test/", "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", "wants another user and password (407)"),
        ("https://mcp.test/", "HTTP/1.1 403 No\r\n\r\n", "refuses to connect to mcp.test:443 (403)"),
        ("https://mcp.test/", "", "breaks off before it has connected"),
    ];
    for (url, answer, expected) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = behind(&format!("http://u:hunter2@{address}"));
        tokio::spawn(async move {
            let mut peer = Peer::accept(&listener).await;
            peer.request().await;
            peer.send(answer).await;
        });
        let error = client.send(&target(&client, url), get()).await.err().unwrap();
        let said = error.to_string();
        assert!(said.starts_with(&format!("the proxy http://{address} of `ALL_PROXY` {expected}")), "{said}");
        assert!(said.ends_with("`NO_PROXY` names the hosts that need none") && !said.contains("hunter2"), "{said}");
        assert!(!error.may_have_run());
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = behind(&address.to_string());
    let said = client.send(&target(&client, "http://mcp.test/"), get()).await.err().unwrap().to_string();
    assert!(said.starts_with(&format!("the proxy http://{address} of `ALL_PROXY` gives no connection")), "{said}");
    let unusable = behind("socks5://127.0.0.1:1").target(&Url::parse("http://mcp.test/").unwrap(), LONG).err().unwrap();
    assert!(unusable.to_string().contains("`ALL_PROXY` is not the address of an HTTP proxy"), "{unusable}");
}

//! TLS.

use std::{fs, path::PathBuf, sync::Arc};

use pingora_rustls::{ClientConfig, ClientTlsStream, RootCertStore, ServerName, TlsConnector};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{LIMITS, LONG, ListenError, ListenLimits, Listener, SHORT, Served, Tls, get, serve_with};

/// A certificate for localhost and its key, in files that go with this.
struct Files(PathBuf, Vec<u8>);

impl Files {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        fs::write(folder.join("certificate.pem"), made.cert.pem()).unwrap();
        fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Self(folder, made.cert.der().to_vec())
    }

    fn tls(&self) -> Tls {
        Tls {
            certificate: self.0.join("certificate.pem"),
            key: self.0.join("key.pem"),
            client_ca: None,
            client_crl: None,
            client_is_caller: false,
            client_groups: None,
            client_required: false,
        }
    }

    async fn connect(&self, served: &Served, protocol: &[u8]) -> ClientTlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.1.clone().into()).unwrap();
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(served.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[tokio::test]
async fn both_protocols_are_offered() {
    let files = Files::new("both");
    let served = serve_with(LIMITS, Some(&files.tls())).await;
    let mut stream = files.connect(&served, b"http/1.1").await;
    for _ in 0..3 {
        stream.write_all(get("/sized").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"abcdef") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
    }

    let stream = files.connect(&served, b"h2").await;
    let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("https://localhost/sized").body(()).unwrap();
    let mut body = requests.send_request(request, true).unwrap().0.await.unwrap().into_body();
    let mut read = Vec::new();
    while let Some(part) = body.data().await {
        read.extend_from_slice(&part.unwrap());
    }
    assert_eq!(read, b"abcdef");
}

#[tokio::test]
async fn a_handshake_must_come_in_time() {
    let files = Files::new("slow");
    let served = serve_with(ListenLimits { header_timeout: SHORT, ..LIMITS }, Some(&files.tls())).await;
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    assert_eq!(tokio::time::timeout(LONG / 2, silent.read(&mut [0])).await.unwrap().unwrap(), 0);
    // After the handshake the clock of the first head still runs.
    let served = serve_with(ListenLimits { header_timeout: LONG / 8, ..LIMITS }, Some(&files.tls())).await;
    let mut stream = files.connect(&served, b"http/1.1").await;
    let closed = tokio::time::timeout(LONG / 2, stream.read(&mut [0])).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let files = Files::new("broken");
    let why = |tls: Tls| match Listener::new(Some(&tls)) {
        Err(ListenError::Tls { why, .. }) => why,
        _ => String::new(),
    };
    let missing = Tls { key: PathBuf::from("/nowhere/key.pem"), ..files.tls() };
    assert!(why(missing).starts_with("/nowhere/key.pem: "));
    let no_key = Tls { key: files.tls().certificate, ..files.tls() };
    assert!(why(no_key).contains("no private key"));
    let no_authority = Tls { client_ca: Some(files.tls().key), ..files.tls() };
    assert!(why(no_authority).contains("key.pem is no PEM file of certificates alone"));
    let nowhere = Tls { client_ca: Some(PathBuf::from("/nowhere/clients.pem")), ..files.tls() };
    assert!(why(nowhere).starts_with("/nowhere/clients.pem: "));
    fs::write(files.tls().key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(!why(files.tls()).is_empty());
}

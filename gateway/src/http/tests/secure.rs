//! TLS, whose roots come from the environment: a case runs this test binary once more with `SSL_CERT_FILE` set.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use pingora_rustls::{PrivateKeyDer, ServerConfig, TlsAcceptor, install_default_crypto_provider};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::{Error, HttpClient, HttpTarget, LONG, Url, all, get};

const CASE: &str = "WEIR_TEST_CASE";

/// Runs one test of this module in a process whose roots are those of `roots`.
fn child(test: &str, roots: &Path) {
    let name = format!("http::tests::{test}");
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &name]).env(CASE, roots).env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The file of roots for a test, in a process that has read it from its environment. Elsewhere the test is run in one.
pub(super) fn roots(test: &str) -> Option<PathBuf> {
    if let Ok(roots) = env::var(CASE) {
        return Some(roots.into());
    }
    let folder = env::temp_dir().join(format!("weir-roots-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    child(test, &folder.join("roots.pem"));
    fs::remove_dir_all(&folder).unwrap();
    None
}

/// TLS for a server that a CA of our own, written to a file, vouches for as `names`; `alpn` is what it speaks.
pub(super) fn acceptor(roots: &Path, names: &[&str], alpn: &[&str]) -> TlsAcceptor {
    install_default_crypto_provider();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    fs::write(roots, authority.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key);
    let mut config = config.unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// A TLS server on 127.0.0.1 that answers each request of a connection alike.
pub(super) async fn serve(acceptor: TlsAcceptor) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut read = [0; 4096];
                // One answer for each request of a connection.
                while stream.read(&mut read).await.is_ok_and(|read| read > 0) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret").await.unwrap();
                    stream.flush().await.unwrap();
                }
            });
        }
    });
    port
}

fn target(host: &str, port: u16) -> HttpTarget {
    HttpTarget::new(&Url::parse(&format!("https://{host}:{port}/")).unwrap(), LONG, None).unwrap()
}

#[tokio::test]
async fn a_server_is_trusted_by_the_roots_of_the_environment() {
    let Some(roots) = roots("secure::a_server_is_trusted_by_the_roots_of_the_environment") else { return };
    let port = serve(acceptor(&roots, &["localhost"], &[])).await;
    let client = HttpClient::new();
    let trusted = target("localhost", port);
    for _ in 0..2 {
        assert_eq!(all(client.send(&trusted, get()).await.unwrap()).await, "secret");
    }
    // The same server under a name that its certificate does not have.
    let error = client.send(&target("127.0.0.1", port), get()).await.err().unwrap();
    assert!(matches!(error, Error::Tls(_)), "{error}");
    assert!(!error.may_have_run());
}

#[tokio::test]
async fn without_roots_only_https_fails() {
    if env::var(CASE).is_err() {
        child("secure::without_roots_only_https_fails", Path::new("/nowhere/roots.pem"));
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = HttpClient::new().send(&target("127.0.0.1", port), get()).await.err().unwrap();
    assert!(matches!(error, Error::Tls(why) if why.contains("SSL_CERT_FILE")), "{error}");
}

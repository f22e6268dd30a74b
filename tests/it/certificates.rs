//! Certificates of clients (`[tls] client_ca`): who shows one is a caller, and a token may be bound to one.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tempfile::TempDir;
use weir_tests::{Gateway, Issuer, Stub};

use crate::callers::AUDIENCE;

/// A CA, with its certificate in a file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// What a client shows.
struct Shown {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    fn issue(&self, name: SanType) -> Shown {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = vec![name];
        let key = KeyPair::generate().unwrap();
        Shown { certificate: params.signed_by(&key, &self.issuer).unwrap().der().clone(), key }
    }

    fn client(&self, uri: &str) -> Shown {
        self.issue(SanType::URI(uri.try_into().unwrap()))
    }
}

impl Shown {
    fn thumbprint(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest(&SHA256, &self.certificate))
    }
}

struct Scene {
    gateway: Gateway,
    clients: Authority,
    server: Authority,
    issuer: Issuer,
    _parts: (Stub, TempDir),
}

impl Scene {
    /// A gateway with certificates of its own, with more lines below `[tls]`, and before it.
    async fn new(tls: &str, with_tokens: bool) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (clients, server) = (Authority::new("Clients"), Authority::new("Servers"));
        let (issuer, stub, folder) = (Issuer::start().await, Stub::start().await, TempDir::new().unwrap());
        let own = server.issue(SanType::DnsName("localhost".try_into().unwrap()));
        let pem = |name: &str| folder.path().join(name);
        let encoded = |kind: &str, der: &[u8]| {
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n")
        };
        std::fs::write(pem("own.pem"), encoded("CERTIFICATE", &own.certificate)).unwrap();
        std::fs::write(pem("own.key"), own.key.serialize_pem()).unwrap();
        std::fs::write(pem("clients.pem"), clients.issuer.pem()).unwrap();
        let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
        let config = format!(
            "{}[tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n{tls}\n{}",
            if with_tokens { &auth } else { "" },
            pem("own.pem"),
            pem("own.key"),
            pem("clients.pem"),
            stub.config("stub"),
        );
        let gateway = Gateway::start(&config).await;
        Self { gateway, clients, server, issuer, _parts: (stub, folder) }
    }

    /// The status of `initialize`, with its session; none if there is no connection.
    async fn call(&self, shown: Option<&Shown>, token: Option<&str>, session: Option<&str>) -> Option<(u16, String)> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.server.issuer.der().clone()).unwrap();
        let config = rustls::ClientConfig::builder().with_root_certificates(Arc::new(roots));
        let config = match shown {
            Some(Shown { certificate, key }) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                config.with_client_auth_cert(vec![certificate.clone()], key).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        let client = reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap();
        let method = if session.is_some() { "tools/list" } else { "initialize" };
        let hello = json!({
            "jsonrpc": "2.0", "id": 1, "method": method,
            "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
        });
        let mut request = client.post(format!("https://localhost:{}/mcp", self.gateway.address().port()));
        request =
            request.header("content-type", "application/json").header("accept", "application/json, text/event-stream");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(session) = session {
            request = request.header("mcp-session-id", session).header("mcp-protocol-version", "2025-06-18");
        }
        let response = request.body(hello.to_string()).send().await.ok()?;
        let told = response.headers().get("mcp-session-id").or_else(|| response.headers().get("www-authenticate"));
        Some((response.status().as_u16(), told.map_or("", |value| value.to_str().unwrap()).to_owned()))
    }
}

#[tokio::test]
async fn whoever_shows_a_certificate_is_who_it_says() {
    let scene = Scene::new("", false).await;
    let (one, two) =
        (scene.clients.client("spiffe://example.org/one"), scene.clients.client("spiffe://example.org/two"));
    let (status, session) = scene.call(Some(&one), None, None).await.unwrap();
    assert_eq!(status, 200, "{}", scene.gateway.log());
    assert_eq!(scene.call(Some(&one), None, Some(&session)).await.unwrap().0, 200);
    assert_eq!(scene.call(Some(&two), None, Some(&session)).await.unwrap().0, 404, "another caller");
    assert_eq!(scene.call(None, None, None).await.unwrap(), (401, "Bearer realm=\"weir\"".to_owned()));
    // Of another CA, also of one that has the same name.
    for name in ["Others", "Clients"] {
        let stranger = Authority::new(name).client("spiffe://example.org/one");
        assert_eq!(scene.call(Some(&stranger), None, None).await, None, "{name}");
    }
}

#[tokio::test]
async fn a_certificate_may_be_needed_to_connect() {
    let scene = Scene::new("client_required = true", true).await;
    let token = scene.issuer.token("ada", AUDIENCE);
    assert_eq!(scene.call(None, Some(&token), None).await, None);
    let one = scene.clients.client("spiffe://example.org/one");
    // With a token its subject is who calls.
    let (status, session) = scene.call(Some(&one), Some(&token), None).await.unwrap();
    assert_eq!(status, 200, "{}", scene.gateway.log());
    assert_eq!(scene.call(Some(&one), None, Some(&session)).await.unwrap().0, 404);
    assert_eq!(
        scene.call(Some(&one), Some("x.y.z"), None).await.unwrap().0,
        401,
        "a bad token is no reason to look further"
    );
}

#[tokio::test]
async fn a_token_that_is_bound_to_a_certificate_opens_with_it_alone() {
    let scene = Scene::new("", true).await;
    let (one, two) =
        (scene.clients.client("spiffe://example.org/one"), scene.clients.client("spiffe://example.org/two"));
    let mut claims = scene.issuer.claims("ada", AUDIENCE);
    claims["cnf"] = json!({ "x5t#S256": one.thumbprint() });
    let token = scene.issuer.sign(&claims);
    // Before it is known and after.
    for _ in 0..2 {
        for (shown, expected) in [(None, 401), (Some(&two), 401), (Some(&one), 200)] {
            assert_eq!(scene.call(shown, Some(&token), None).await.unwrap().0, expected);
        }
    }
    let plain = scene.issuer.token("ada", AUDIENCE);
    assert_eq!(scene.call(None, Some(&plain), None).await.unwrap().0, 200);
}

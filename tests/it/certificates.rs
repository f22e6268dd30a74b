//! Certificates of clients (`[tls] client_ca`): who shows one is a caller, and a token may be bound to one.

use std::{path::Path, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_tests::{Gateway, Issuer, Stub, wait::until};

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
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    fn issue(&self, name: SanType, unit: Option<&str>) -> Shown {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        unit.into_iter().for_each(|unit| params.distinguished_name.push(DnType::OrganizationalUnitName, unit));
        params.subject_alt_names = vec![name];
        let key = KeyPair::generate().unwrap();
        Shown { certificate: params.signed_by(&key, &self.issuer).unwrap().der().clone(), key }
    }

    /// Puts a certificate for the gateway and its key into a folder.
    fn serve_from(&self, folder: &Path) {
        let own = self.issue(SanType::DnsName("localhost".try_into().unwrap()), None);
        let text = base64::engine::general_purpose::STANDARD.encode(&own.certificate);
        let text = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        std::fs::write(folder.join("own.key"), own.key.serialize_pem()).unwrap();
        std::fs::write(folder.join("own.pem"), text).unwrap();
    }

    /// A certificate of a client, and a list that revokes it.
    fn revoked_client(&self, uri: &str) -> (Shown, String) {
        let serial = SerialNumber::from(666);
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2036, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: serial.clone(),
                revocation_time: date_time_ymd(2026, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        params.serial_number = Some(serial);
        let key = KeyPair::generate().unwrap();
        let shown = Shown { certificate: params.signed_by(&key, &self.issuer).unwrap().der().clone(), key };
        (shown, list.signed_by(&self.issuer).unwrap().pem().unwrap())
    }

    fn client(&self, uri: &str) -> Shown {
        self.issue(SanType::URI(uri.try_into().unwrap()), None)
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
    revoked: Shown,
    folder: TempDir,
    _stub: Stub,
}

impl Scene {
    /// A gateway with certificates of its own, with more lines below `[tls]`, and before it.
    async fn new(tls: &str, with_tokens: bool) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (clients, server) = (Authority::new("Clients"), Authority::new("Servers"));
        let (issuer, stub, folder) = (Issuer::start().await, Stub::start().await, TempDir::new().unwrap());
        let pem = |name: &str| folder.path().join(name);
        server.serve_from(folder.path());
        std::fs::write(pem("clients.pem"), clients.issuer.pem()).unwrap();
        let (revoked, list) = clients.revoked_client("spiffe://example.org/revoked");
        std::fs::write(pem("revoked.pem"), list).unwrap();
        let tls = tls.replace("$FOLDER", &folder.path().display().to_string());
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
        Self { gateway, clients, server, issuer, revoked, folder, _stub: stub }
    }

    /// What a client is made of that shows this.
    fn client(&self, shown: Option<&Shown>) -> reqwest::ClientBuilder {
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
        reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy()
    }

    /// The status of `initialize`, with its session; none if there is no connection.
    async fn call(&self, shown: Option<&Shown>, token: Option<&str>, session: Option<&str>) -> Option<(u16, String)> {
        let client = self.client(shown).build().unwrap();
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

    /// The answer to a request of a session.
    async fn ask(&self, client: &reqwest::Client, session: &str, request: &Value) -> reqwest::Result<String> {
        let post = client.post(format!("https://localhost:{}/mcp", self.gateway.address().port()));
        let post =
            post.header("content-type", "application/json").header("accept", "application/json, text/event-stream");
        let post = post.header("mcp-session-id", session).header("mcp-protocol-version", "2025-06-18");
        post.body(request.to_string()).send().await?.text().await
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
async fn a_long_answer_comes_whole_over_tls() {
    let scene = Scene::new("", false).await;
    scene.gateway.logs("upstream is healthy").await;
    let one = scene.clients.client("spiffe://example.org/one");
    let session = scene.call(Some(&one), None, None).await.unwrap().1;
    let client = scene.client(Some(&one)).http1_only().build().unwrap();
    for length in [1 << 10, 15 << 10, 16 << 10, 20 << 10, 100 << 10, 1 << 20] {
        let message = "x".repeat(length);
        let call = json!({
            "jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": { "name": "stub__echo", "arguments": { "message": message } },
        });
        let answer = scene.ask(&client, &session, &call).await;
        let answer = answer.unwrap_or_else(|why| panic!("an answer of {length} bytes: {why}"));
        assert!(answer.contains(&message), "an answer of {length} bytes has become {}", answer.len());
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
    assert_eq!(scene.call(Some(&one), None, Some(&session)).await.unwrap().0, 401, "it opens the connection only");
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

#[tokio::test]
async fn beside_tokens_a_certificate_is_a_caller_where_the_configuration_says_so() {
    let scene = Scene::new("client_is_caller = true", true).await;
    let token = scene.issuer.token("ada", AUDIENCE);
    let one = scene.clients.client("spiffe://example.org/one");
    // With a token its subject is who calls.
    let (status, session) = scene.call(Some(&one), Some(&token), None).await.unwrap();
    assert_eq!(status, 200, "{}", scene.gateway.log());
    assert_eq!(scene.call(Some(&one), None, Some(&session)).await.unwrap().0, 404, "another caller");
    assert_eq!(scene.call(Some(&one), None, None).await.unwrap().0, 200);
    assert_eq!(scene.call(None, None, None).await.unwrap().0, 401);
}

#[tokio::test]
async fn the_units_of_a_certificate_are_groups_where_the_configuration_says_so() {
    let rules = "client_groups = \"organizational_unit\"\n[[access.rules]]\ngroups = [\"ops\"]\n";
    let scene = Scene::new(rules, false).await;
    scene.gateway.logs("upstream is healthy").await;
    let uri = || SanType::URI("spiffe://example.org/one".try_into().unwrap());
    for (unit, tools) in [(None, 0), (Some("dev"), 0), (Some("ops"), 5)] {
        let shown = scene.clients.issue(uri(), unit);
        let session = scene.call(Some(&shown), None, None).await.unwrap().1;
        let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
        let listed = scene.ask(&scene.client(Some(&shown)).build().unwrap(), &session, &list).await.unwrap();
        assert_eq!(listed.matches("\"name\":\"stub__").count(), tools, "{unit:?}: {listed}");
    }
}

#[tokio::test]
async fn new_connections_get_the_certificate_that_is_there() {
    let scene = Scene::new("", false).await;
    let (one, folder) = (scene.clients.client("spiffe://example.org/one"), scene.folder.path());
    assert_eq!(scene.call(Some(&one), None, None).await.unwrap().0, 200);
    // What cannot be used changes nothing.
    let good = std::fs::read(folder.join("own.pem")).unwrap();
    std::fs::write(folder.join("own.pem"), "-----BEGIN").unwrap();
    scene.gateway.logs("the certificate stays as it was").await;
    assert_eq!(scene.call(Some(&one), None, None).await.unwrap().0, 200);
    std::fs::write(folder.join("own.pem"), good).unwrap();
    // Another CA for the gateway, and another for its clients.
    let (server, clients) = (Authority::new("Other servers"), Authority::new("Other clients"));
    server.serve_from(folder);
    std::fs::write(folder.join("clients.pem"), clients.issuer.pem()).unwrap();
    let scene = Scene { server, clients, ..scene };
    let two = scene.clients.client("spiffe://example.org/two");
    scene.gateway.logs("new connections get the certificate").await;
    assert_eq!(scene.call(Some(&two), None, None).await.unwrap().0, 200);
    assert_eq!(scene.call(Some(&one), None, None).await, None, "its CA is gone");
}

#[tokio::test]
async fn a_revoked_certificate_opens_no_connection_and_the_audit_log_says_so() {
    let scene =
        Scene::new("client_crl = \"$FOLDER/revoked.pem\"\n[audit]\npath = \"$FOLDER/audit.jsonl\"", false).await;
    let good = scene.clients.client("spiffe://example.org/good");
    assert_eq!(scene.call(Some(&good), None, None).await.unwrap().0, 200, "{}", scene.gateway.log());
    assert_eq!(scene.call(Some(&scene.revoked), None, None).await, None);
    let audit = scene.folder.path().join("audit.jsonl");
    let recorded = || std::fs::read_to_string(&audit).unwrap_or_default();
    until("the refusal is recorded", || recorded().contains("\"event_type\":\"connection_refused\"")).await;
    assert!(recorded().contains("evoked"), "{}", recorded());
}

//! People sign in to Weir with MCP clients that their company does not know.

use std::process::Command;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_tests::browser::Page;
use weir_tests::paths::{node, peers};
use weir_tests::peer::free_port;
use weir_tests::process::Process;
use weir_tests::remote::Remote;
use weir_tests::suite::program;
use weir_tests::terminal::{auth, ended};
use weir_tests::tokens::{claims, encoded};
use weir_tests::wait::until;
use weir_tests::{Authority, Bridge, Browser, Client, Gateway, Request, Response, Stub};

use crate::mcp_remote_parity::until_awaited;

const VERIFIER: &str = "a-verifier-that-is-long-enough-for-PKCE-to-be-used-with-it";
/// Nobody listens there.
const BACK: &str = "http://127.0.0.1:9/back";

/// A gateway at which the people of an authorization server sign in.
pub(crate) struct Scene {
    authority: Authority,
    pub(crate) gateway: Gateway,
    _stub: Stub,
    root: String,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with("", "").await
    }

    /// With more lines of the root and of `[authorization_server]`.
    pub(crate) async fn with(root: &str, more: &str) -> Self {
        let settings = json!({ "names": true, "groups": { "ada": ["ops"] } });
        let (authority, stub, port) = (Authority::with(&settings), Stub::start().await, free_port());
        let gateway = start(port, &authority, &stub, root, more).await;
        Self { authority, gateway, _stub: stub, root: format!("http://127.0.0.1:{port}") }
    }

    pub(crate) async fn register(&self, about: &Value) -> (u16, Value) {
        let request = Request::new("POST", "/oauth/register").header("content-type", "application/json");
        let response = self.gateway.send(request.body(about.to_string())).await;
        (response.status, response.json().await)
    }

    /// The name that a client gets.
    pub(crate) async fn registered(&self) -> String {
        let (status, said) = self.register(&json!({ "client_name": "Host <1>", "redirect_uris": [BACK] })).await;
        assert_eq!(status, 201, "{said}");
        said["client_id"].as_str().unwrap().to_owned()
    }

    /// Where a client sends a browser, with some parameters changed, or left out where they are empty.
    pub(crate) fn page(&self, client: &str, change: &[(&str, &str)]) -> String {
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, VERIFIER.as_bytes()));
        let resource = format!("{}/mcp", self.root);
        let mut all = vec![
            ("response_type", "code"),
            ("client_id", client),
            ("redirect_uri", BACK),
            ("state", "s&1"),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("resource", &resource),
        ];
        for (name, value) in change {
            all.retain(|(known, _)| known != name);
            all.push((name, value));
        }
        all.retain(|(_, value)| !value.is_empty());
        let query: Vec<String> = all.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        format!("{}/oauth/authorize?{}", self.root, query.join("&"))
    }

    /// The code that a person lets a client have.
    pub(crate) async fn code(&self, browser: &mut Browser, page: &str) -> String {
        let page = browser.open(page).await;
        assert!(page.status == 200 && page.text.contains("Allow this client?"), "{page:?} {}", self.gateway.log());
        let back = decide(browser, &page, "allow").await;
        parameter(&back, "code").unwrap_or_else(|| panic!("no code: {back}"))
    }

    async fn ask(&self, path: &str, fields: &[(&str, &str)]) -> (u16, Value) {
        let body: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let request = Request::new("POST", path).header("content-type", "application/x-www-form-urlencoded");
        let response = self.gateway.send(request.body(body.join("&"))).await;
        (response.status, response.json().await)
    }

    pub(crate) async fn redeem(&self, client: &str, code: &str) -> (u16, Value) {
        let fields = [("grant_type", "authorization_code"), ("client_id", client), ("code", code)];
        self.ask("/oauth/token", &[&fields[..], &[("redirect_uri", BACK), ("code_verifier", VERIFIER)]].concat()).await
    }

    pub(crate) async fn refresh(&self, client: &str, token: &Value) -> (u16, Value) {
        let token = token["refresh_token"].as_str().unwrap();
        let fields = [("grant_type", "refresh_token"), ("client_id", client), ("refresh_token", token)];
        self.ask("/oauth/token", &fields).await
    }

    /// What a client gets when a person signs in with it.
    async fn signed_in(&self, client: &str, person: &str) -> Value {
        let code = self.code(&mut Browser::of(person), &self.page(client, &[])).await;
        let (status, token) = self.redeem(client, &code).await;
        assert_eq!(status, 200, "{token}");
        token
    }

    async fn lists(&self, path: &str, token: &Value) -> u16 {
        let token = token["access_token"].as_str().unwrap();
        let request = Client::modern(&self.gateway, path).request("tools/list", json!({})).1;
        self.gateway.send(request.header("authorization", &format!("Bearer {token}"))).await.status
    }
}

async fn start(port: u16, authority: &Authority, stub: &Stub, root: &str, more: &str) -> Gateway {
    let config = format!(
        "public_url = \"http://127.0.0.1:{port}\"\n{root}\n[auth]\nissuer = \"{}\"\naudience = \"api://weir\"\n\
         scopes = [\"mcp:read\"]\n[authorization_server]\n{more}\n{}",
        authority.issuer(),
        stub.config("stub"),
    );
    let gateway = Gateway::start_at(port, &config).await;
    gateway.logs("upstream is healthy").await;
    gateway
}

/// What a page of another site reads.
async fn document(scene: &Scene, path: &str) -> Value {
    scene.gateway.send(Request::get(path).header("origin", "http://localhost:6274")).await.json().await
}

/// Presses a button of the page that asks about a client; where the browser goes then.
async fn decide(browser: &mut Browser, page: &Page, decision: &str) -> String {
    let (to, mut fields) = page.form("authorize");
    fields.push(("decision".to_owned(), decision.to_owned()));
    browser.submit_until(&to, &fields, |url| url.starts_with(BACK)).await.url
}

fn parameter(url: &str, name: &str) -> Option<String> {
    let query = url.split_once('?')?.1.split('&').filter_map(|pair| pair.split_once('='));
    query.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
}

#[tokio::test]
async fn real_clients_sign_in_at_weir_by_themselves() {
    let scene = Scene::new().await;
    for sdk in ["1", "2"] {
        for path in ["/mcp", "/mcp/stub"] {
            let mut command = Command::new(node());
            command.arg(peers("clients/sign_in.mjs")).args([sdk, &scene.gateway.url(path), "refresh"]);
            let mut client = Process::start(&format!("SDK {sdk}"), &mut command);
            let said = client.says("what it got", |line| serde_json::from_str::<Value>(line).ok()).await;
            let right = json!({ "audience": format!("{}{path}", scene.root), "tools": 5, "refreshed": true });
            assert_eq!(said, right, "SDK {sdk} at {path}");
        }
    }
}

#[tokio::test]
async fn mcp_remote_signs_in_at_weir() {
    let (scene, remote) = (Scene::new().await, Remote::new());
    let url = scene.gateway.url("/mcp");
    let mut bridge: Bridge = remote.start(&url, &["--host", "127.0.0.1", "--auth-timeout", "60"]);
    let person = async {
        let page = remote.page(0).await;
        until_awaited(&page).await;
        let mut ada = Browser::of("ada");
        let page = ada.open(&page).await;
        assert!(page.text.contains("Allow this client?"), "{page:?} {}", scene.gateway.log());
        let (to, mut fields) = page.form("authorize");
        fields.push(("decision".to_owned(), "allow".to_owned()));
        ada.submit(&to, &fields).await.text
    };
    let (hello, shown) = tokio::join!(bridge.shake_hands(json!({})), person);
    assert!(hello["result"]["serverInfo"].is_object() && shown.contains("Authorization successful"), "{hello} {shown}");
}

/// The scenarios of the MCP conformance suite for authorization servers.
#[tokio::test]
async fn the_conformance_suite_signs_in_at_weir() {
    let host =
        "[[authorization_server.clients]]\nclient_id = \"host\"\nredirect_uris = [\"http://127.0.0.1/callback\"]";
    let scene = Scene::with("", host).await;
    let (port, resource) = (free_port().to_string(), format!("{}/mcp", scene.root));
    let mut command = program();
    command.args(["authorization", "--url", &scene.root, "--client-id", "host", "--resource", &resource]);
    let mut suite = Process::start("the suite", command.args(["--port", &port]));
    let authorize = format!("{}/oauth/authorize?", scene.root);
    let page = suite.says("where to go", |line| line.starts_with(&authorize).then(|| line.to_owned())).await;
    let mut ada = Browser::of("ada");
    let page = ada.open(&page).await;
    let (to, mut fields) = page.form("authorize");
    fields.push(("decision".to_owned(), "allow".to_owned()));
    assert!(ada.submit(&to, &fields).await.text.contains("OK"), "{}", suite.output());
    let status = suite.end().await;
    let said = suite.output();
    assert!(status.success() && !said.contains("WARNING") && !said.contains("SKIPPED"), "{said}");
}

#[tokio::test]
async fn a_person_allows_a_client_and_stays_who_they_are() {
    let scene = Scene::new().await;
    let client = scene.registered().await;
    let mut ada = Browser::of("ada");
    let page = ada.open(&scene.page(&client, &[])).await;
    for text in [
        "For ada@example.com (ada)",
        "Host &lt;1&gt;",
        "the client&#39;s own word",
        BACK,
        &format!("{}/mcp", scene.root),
    ] {
        assert!(page.text.contains(text), "{text}: {}", page.text);
    }
    // They say no, and later yes.
    let back = decide(&mut ada, &page, "deny").await;
    assert_eq!(parameter(&back, "error").as_deref(), Some("access_denied"), "{back}");
    let back = decide(&mut ada, &page, "allow").await;
    assert_eq!(parameter(&back, "state").as_deref(), Some("s%261"), "{back}");
    assert_eq!(parameter(&back, "iss"), Some(scene.root.replace(':', "%3A").replace('/', "%2F")), "{back}");

    let (status, token) = scene.redeem(&client, &parameter(&back, "code").unwrap()).await;
    assert_eq!((status, &token["token_type"], &token["scope"]), (200, &json!("Bearer"), &json!("mcp:read")), "{token}");
    let said = claims(token["access_token"].as_str().unwrap());
    assert_eq!((&said["sub"], &said["idp"]), (&json!("ada"), &json!(scene.authority.issuer())), "{said}");
    assert_eq!((&said["groups"], &said["client_id"]), (&json!(["ops"]), &json!(client)), "{said}");
    assert_eq!(scene.lists("/mcp", &token).await, 200, "{}", scene.gateway.log());
    let (status, next) = scene.refresh(&client, &token).await;
    assert_eq!((status, scene.lists("/mcp/stub", &next).await), (200, 200), "{next}");
    assert_eq!(claims(next["access_token"].as_str().unwrap())["groups"], json!(["ops"]));

    // A client for one endpoint gets tokens for that one.
    let one = format!("{}/mcp/stub", scene.root);
    let code = scene.code(&mut ada, &scene.page(&client, &[("resource", &one)])).await;
    let token = scene.redeem(&client, &code).await.1;
    assert_eq!((scene.lists("/mcp/stub", &token).await, scene.lists("/mcp", &token).await), (200, 401));
    for text in ["\"client not allowed\"", "\"client allowed\"", "\"token issued\""] {
        scene.gateway.logs(text).await;
    }
    let log = scene.gateway.log();
    for secret in ["weirac_", "weirrt_", token["access_token"].as_str().unwrap()] {
        assert!(!log.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn the_metadata_says_what_is_there() {
    let scene = Scene::new().await;
    let (resource, server) = ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server");
    let issuer = scene.authority.issuer();
    assert_eq!(document(&scene, resource).await["authorization_servers"], json!([scene.root, issuer]));
    let metadata = document(&scene, server).await;
    for (field, value) in [
        ("authorization_endpoint", json!(format!("{}/oauth/authorize", scene.root))),
        ("registration_endpoint", json!(format!("{}/oauth/register", scene.root))),
        ("revocation_endpoint", json!(format!("{}/oauth/revoke", scene.root))),
        ("response_types_supported", json!(["code"])),
        ("code_challenge_methods_supported", json!(["S256"])),
        ("client_id_metadata_document_supported", json!(true)),
        ("authorization_response_iss_parameter_supported", json!(true)),
    ] {
        assert_eq!(metadata[field], value, "{field}: {metadata}");
    }
    assert!(metadata["grant_types_supported"].as_array().unwrap().contains(&json!("refresh_token")));

    let named = format!(
        "registration = false\n[[authorization_server.clients]]\nclient_id = \"host\"\nredirect_uris = [\"{BACK}\"]"
    );
    let closed = Scene::with("", &named).await;
    let metadata = document(&closed, server).await;
    assert!(metadata.get("registration_endpoint").is_none(), "{metadata}");
    assert!(metadata.get("client_id_metadata_document_supported").is_none(), "{metadata}");
    assert_eq!(closed.register(&json!({ "redirect_uris": [BACK] })).await.0, 405);
    let page = Browser::of("ada").open(&closed.page("https://host.example/client.json", &[])).await;
    assert_eq!(page.status, 400, "{}", page.text);
    closed.signed_in("host", "ada").await;

    let without = Scene::with("", "sign_in = false").await;
    let issuer = without.authority.issuer();
    assert_eq!(document(&without, resource).await["authorization_servers"], json!([issuer, without.root]));
    let metadata = document(&without, server).await;
    assert!(metadata.get("authorization_endpoint").is_none(), "{metadata}");
    assert!(!metadata["token_endpoint_auth_methods_supported"].as_array().unwrap().contains(&json!("none")));
    assert_eq!(Browser::of("ada").open(&without.page("host", &[])).await.status, 404);
}

#[tokio::test]
async fn a_document_says_who_a_client_is() {
    let mut scene = Scene::with("", "private_network = true").await;
    let issuer = scene.authority.issuer().to_owned();
    let at = |path: &str| format!("{issuer}{path}");
    let document = |id: &str| json!({ "client_id": id, "client_name": "Cursor", "redirect_uris": [BACK] });
    let (good, other, slow) = (at("/good.json"), at("/other.json"), at("/slow.json"));
    let with = |more: Value| {
        let mut all = document(&at("/secret.json"));
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    scene.authority.trouble(&json!({
        "/good.json": { "status": 200, "json": document(&good), "times": 1 },
        "/other.json": { "status": 200, "json": document(&good) },
        "/huge.json": { "status": 200, "body": "x".repeat(40_000) },
        "/moved.json": { "status": 302, "headers": { "location": "/good.json" } },
        "/secret.json": { "status": 200, "json": with(json!({ "token_endpoint_auth_method": "client_secret_post" })) },
        "/slow.json0": { "stall": "before" },
        "/slow.json1": { "stall": "before" },
    }));
    let mut ada = Browser::of("ada");
    // Nothing is fetched for a stranger.
    Browser::new().open_until(&scene.page(&good, &[]), |url| url.contains("/auth?")).await;
    assert_eq!(scene.authority.asked("/good.json").len(), 0);
    let page = ada.open(&scene.page(&good, &[])).await;
    assert!(page.text.contains("<dd>Cursor</dd><dt>Published by</dt><dd>127.0.0.1</dd>"), "{page:?}");
    let back = decide(&mut ada, &page, "allow").await;
    let (status, token) = scene.redeem(&good, &parameter(&back, "code").unwrap()).await;
    assert_eq!((status, scene.lists("/mcp", &token).await), (200, 200), "{token}");
    assert_eq!(scene.authority.asked("/good.json").len(), 1, "it is read once");

    for (id, why) in [
        (other, "another `client_id`"),
        (at("/huge.json"), "cannot be read"),
        (at("/moved.json"), "cannot be read"),
        (at("/none.json"), "cannot be read"),
        (at("/secret.json"), "token_endpoint_auth_method"),
        (at("/good.json?x"), "not the URL of a document"),
        (at("/a/../good.json"), "not the URL of a document"),
        (at("/"), "not the URL of a document"),
        ("javascript:alert(1)".to_owned(), "not the URL of a document"),
        ("ftp://127.0.0.1/x".to_owned(), "not the URL of a document"),
        ("http://192.0.2.1/client.json".to_owned(), "cannot be read"),
    ] {
        let page = ada.open(&scene.page(&id, &[])).await;
        assert!(page.status == 400 && page.text.contains(why), "{id}: {}", page.text);
    }
    scene.gateway.logs("more than").await;
    // Who waits for slow documents has a share of them, and others go on.
    let mut waiting = Vec::new();
    for number in 0..2 {
        let (mut browser, page) = (ada.clone(), scene.page(&format!("{slow}{number}"), &[]));
        waiting.push(tokio::spawn(async move { browser.open(&page).await }));
    }
    until("both wait", || scene.authority.waiting() == 2).await;
    let page = ada.open(&scene.page(&at("/third.json"), &[])).await;
    assert!(page.status == 400 && page.text.contains("client documents"), "{}", page.text);
    let page = Browser::of("eve").open(&scene.page(&at("/third.json"), &[])).await;
    assert!(page.status == 400 && page.text.contains("cannot be read"), "{}", page.text);
    scene.authority.trouble(&json!({}));
    for browser in waiting {
        assert_eq!(browser.await.unwrap().status, 400);
    }
}

#[tokio::test]
async fn documents_at_private_addresses_are_not_read() {
    let mut scene = Scene::new().await;
    let id = format!("{}/client.json", scene.authority.issuer());
    let document = json!({ "client_id": id, "redirect_uris": [BACK] });
    scene.authority.trouble(&json!({ "/client.json": { "status": 200, "json": document } }));
    for id in
        [&*id, "https://127.0.0.1/c.json", "https://10.0.0.1/c.json", "https://[::1]/c", "https://169.254.169.254/c"]
    {
        let page = Browser::of("ada").open(&scene.page(id, &[])).await;
        let why = if id.starts_with("https:") { "cannot be read" } else { "not the URL of a document" };
        assert!(page.status == 400 && page.text.contains(why), "{id}: {}", page.text);
    }
    assert_eq!(scene.authority.asked("/client.json").len(), 0);
}

#[tokio::test]
async fn what_is_wrong_with_a_request_leads_nowhere() {
    let scene = Scene::new().await;
    let client = scene.registered().await;
    let mut ada = Browser::of("ada");
    let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, VERIFIER.as_bytes()));
    let elsewhere = format!("{}/mcp/stub/x", scene.root);
    for change in [
        [("client_id", "")],
        [("client_id", "unknown")],
        [("client_id", &client[1..])],
        [("redirect_uri", "")],
        [("redirect_uri", "https://evil.example/back")],
        [("redirect_uri", "http://127.0.0.1:9/back/more")],
        [("redirect_uri", "http://127.0.0.1:9@evil.example/back")],
        [("redirect_uri", "javascript:alert(1)")],
        [("response_type", "token")],
        [("response_type", "")],
        [("code_challenge", "")],
        [("code_challenge", "short")],
        [("code_challenge_method", "")],
        [("code_challenge_method", "plain")],
        [("resource", "https://other.example/mcp")],
        [("resource", &elsewhere)],
    ] {
        let page = ada.open(&scene.page(&client, &change)).await;
        assert!(page.status == 400 && !page.text.contains("<form"), "{change:?}: {page:?}");
    }
    let twice = format!("{}&redirect_uri=https%3A%2F%2Fevil.example", scene.page(&client, &[]));
    assert_eq!(ada.open(&twice).await.status, 400);
    assert_eq!(ada.open(&scene.page(&client, &[("state", &"x".repeat(5000))])).await.status, 400);
    // On this machine any port will do.
    let port = [("redirect_uri", "http://127.0.0.1:10/back"), ("code_challenge", &challenge)];
    assert_eq!(ada.open(&scene.page(&client, &port)).await.status, 200);

    for about in [
        json!({ "redirect_uris": [] }),
        json!({ "redirect_uris": ["http://host.example/back"] }),
        json!({ "redirect_uris": ["javascript:alert(1)"] }),
        json!({ "redirect_uris": [BACK, 5] }),
        json!({ "redirect_uris": vec![BACK; 11] }),
        json!({ "redirect_uris": [format!("{BACK}{}", "x".repeat(600))] }),
        json!([]),
    ] {
        let (status, said) = scene.register(&about).await;
        assert_eq!((status, &said["error"]), (400, &json!("invalid_client_metadata")), "{about}: {said}");
    }
}

#[tokio::test]
async fn nobody_is_made_to_allow_a_client() {
    let scene = Scene::new().await;
    let client = scene.registered().await;
    let (mut ada, mut eve) = (Browser::of("ada"), Browser::of("eve"));
    let (hers, evil) = (ada.open(&scene.page(&client, &[])).await, eve.open(&scene.page(&client, &[])).await);
    // Another site sends the form, without the key, with another one, and from where it is.
    let (to, fields) = hers.form("authorize");
    let (_, other) = evil.form("authorize");
    let allow = ("decision".to_owned(), "allow".to_owned());
    for stolen in [vec![], other.clone(), vec![("key".to_owned(), String::new()), fields[1].clone()]] {
        let page = ada.submit_until(&to, &[stolen, vec![allow.clone()]].concat(), |_| false).await;
        assert!(page.status == 403 && page.url == to, "{page:?}");
    }
    let page = Browser::new().submit(&to, &[fields.clone(), vec![allow.clone()]].concat()).await;
    assert_eq!(page.status, 403, "{page:?}");
    let cookie = format!("weir={}", ada.cookie("weir").unwrap());
    let path = to.strip_prefix(&scene.root).unwrap();
    let body: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let form = |origin: &str| {
        let request = Request::new("POST", path).header("content-type", "application/x-www-form-urlencoded");
        request.header("cookie", &cookie).header("origin", origin).body(format!("{}&decision=allow", body.join("&")))
    };
    assert_eq!(scene.gateway.send(form("https://evil.example")).await.status, 403);
    let done: Response = scene.gateway.send(form(&scene.root)).await;
    assert!(done.status == 303 && done.header("location").unwrap().starts_with(BACK));
    // Nor can a page of another site be over it.
    let query = scene.page(&client, &[]);
    let page = Request::get(query.strip_prefix(&scene.root).unwrap()).header("cookie", &cookie);
    let page = scene.gateway.send(page).await;
    assert_eq!((page.status, page.header("x-frame-options")), (200, Some("DENY")));
    assert!(page.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"));

    // What one browser has begun ends in no other: the person there would be somebody else.
    let back = scene.gateway.url("/connect/callback");
    let begun = Browser::of("eve").open_until(&scene.page(&client, &[]), |url| url.starts_with(&back)).await.url;
    let mut hers = Browser::of("ada");
    let page = hers.open(&begun).await;
    assert!(page.status == 400 && hers.cookie("weir").is_none(), "{page:?}");
}

#[tokio::test]
async fn a_code_is_good_once_and_for_its_client_alone() {
    let scene = Scene::new().await;
    let (client, mut ada) = (scene.registered().await, Browser::of("ada"));
    let other = scene.registered().await;
    let code = scene.code(&mut ada, &scene.page(&client, &[])).await;
    let good = [
        ("grant_type", "authorization_code"),
        ("client_id", &*client),
        ("code", &*code),
        ("redirect_uri", BACK),
        ("code_verifier", VERIFIER),
    ];
    for (name, value, error) in [
        ("client_id", &*other, "invalid_grant"),
        ("client_id", "", "invalid_client"),
        ("code_verifier", "", "invalid_request"),
        ("code_verifier", &VERIFIER[1..], "invalid_grant"),
        ("code_verifier", "x", "invalid_grant"),
        ("redirect_uri", "http://127.0.0.1:10/back", "invalid_grant"),
        ("resource", "https://other.example", "invalid_grant"),
        ("code", "weirac_1_2_3", "invalid_grant"),
        ("grant_type", "implicit", "unsupported_grant_type"),
    ] {
        let mut fields: Vec<_> = good.iter().copied().filter(|(known, _)| *known != name).collect();
        fields.push((name, value));
        let (_, said) = scene.ask("/oauth/token", &fields).await;
        assert_eq!(said["error"], json!(error), "{name} {value}: {said}");
    }
    let (status, token) = scene.ask("/oauth/token", &good).await;
    assert_eq!(status, 200, "{token}");
    // It is no refresh token, and its second use ends what came of the first.
    let (status, again) = scene.redeem(&client, &code).await;
    assert_eq!((status, &again["error"]), (400, &json!("invalid_grant")), "{again}");
    assert_eq!(scene.refresh(&client, &token).await.0, 400);

    // Of two that come at once, one gets tokens at most.
    let code = scene.code(&mut ada, &scene.page(&client, &[])).await;
    let (one, two) = tokio::join!(scene.redeem(&client, &code), scene.redeem(&client, &code));
    assert!(one.0 == 400 || two.0 == 400, "{one:?} {two:?}");
    for text in ["\"token not issued\"", "came again after its use"] {
        scene.gateway.logs(text).await;
    }
}

#[tokio::test]
async fn a_refresh_token_is_good_once_and_can_be_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("store = {{ path = {:?} }}", folder.path().join("logins.redb"));
    let scene = Scene::with(&store, "").await;
    let (client, other) = (scene.registered().await, scene.registered().await);
    let first = scene.signed_in(&client, "ada").await;
    // Another client has come by it.
    assert_eq!(scene.refresh(&other, &first).await.0, 400);
    let token = json!({ "refresh_token": first["refresh_token"].as_str().unwrap().replace("weirrt", "weirac") });
    assert_eq!(scene.refresh(&client, &token).await.0, 400);
    let (status, second) = scene.refresh(&client, &first).await;
    assert_eq!(status, 200, "{second}");
    assert_ne!(first["refresh_token"], second["refresh_token"]);
    let elsewhere = [
        ("grant_type", "refresh_token"),
        ("client_id", &*client),
        ("refresh_token", second["refresh_token"].as_str().unwrap()),
        ("resource", "https://other.example"),
    ];
    assert_eq!(scene.ask("/oauth/token", &elsewhere).await.0, 400);
    // The answer was lost, or another process of the client asks at the same time.
    let (one, two) = tokio::join!(scene.refresh(&client, &first), scene.refresh(&client, &first));
    for (status, again) in [one, two] {
        assert_eq!((status, &again["refresh_token"]), (200, &second["refresh_token"]), "{again}");
    }
    let (one, two) = tokio::join!(scene.refresh(&client, &second), scene.refresh(&client, &second));
    assert_eq!((one.0, &one.1["refresh_token"]), (200, &two.1["refresh_token"]), "{one:?} {two:?}");
    // The first comes once more: none is good any more. Another sign-in of the same person is.
    let apart = scene.signed_in(&client, "ada").await;
    let (status, again) = scene.refresh(&client, &first).await;
    assert_eq!((status, &again["error"]), (400, &json!("invalid_grant")), "{again}");
    assert_eq!((scene.refresh(&client, &second).await.0, scene.refresh(&client, &one.1).await.0), (400, 400));
    let (status, apart) = scene.refresh(&client, &apart).await;
    assert_eq!(status, 200, "{apart}");

    // Another process at the same store takes it.
    let Scene { authority, gateway, _stub: stub, root } = scene;
    drop(gateway);
    let port = root.rsplit(':').next().unwrap().parse().unwrap();
    let gateway = start(port, &authority, &stub, &store, "").await;
    let scene = Scene { authority, gateway, _stub: stub, root };
    let (status, apart) = scene.refresh(&client, &apart).await;
    assert_eq!((status, scene.lists("/mcp", &apart).await), (200, 200), "{apart}");
    assert_eq!(Browser::of("ada").open(&scene.page(&client, &[])).await.status, 200, "it is registered still");

    let revoke = |client: &str, token: &str| {
        let fields = [("client_id".to_owned(), client.to_owned()), ("token".to_owned(), token.to_owned())];
        let scene = &scene;
        async move {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            scene.ask("/oauth/revoke", &fields).await.0
        }
    };
    let token = apart["refresh_token"].as_str().unwrap();
    assert_eq!((revoke(&other, token).await, revoke(&client, "unknown").await), (200, 200));
    let (status, apart) = scene.refresh(&client, &apart).await;
    assert_eq!(status, 200, "it was not the other client's: {apart}");
    assert_eq!(revoke(&client, apart["refresh_token"].as_str().unwrap()).await, 200);
    assert_eq!(scene.refresh(&client, &apart).await.0, 400);
    scene.gateway.logs("\"grant revoked\"").await;
}

/// What a person has allowed ends with the leave of the operator.
#[tokio::test]
async fn a_client_that_is_known_no_longer_gets_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("store = {{ path = {:?} }}", folder.path().join("logins.redb"));
    let named = format!("[[authorization_server.clients]]\nclient_id = \"host\"\nredirect_uris = [\"{BACK}\"]\n");
    let mut scene = Scene::with(&store, &named).await;
    let registered = scene.registered().await;
    let mut tokens = [scene.signed_in(&registered, "ada").await, scene.signed_in("host", "ada").await];
    for (more, statuses) in [("registration = false\n", [401, 401]), (&*named, [200, 200]), ("", [200, 401])] {
        let Scene { authority, gateway, _stub: stub, root } = scene;
        drop(gateway);
        let port = root.rsplit(':').next().unwrap().parse().unwrap();
        let gateway = start(port, &authority, &stub, &store, more).await;
        scene = Scene { authority, gateway, _stub: stub, root };
        for (at, client) in [&*registered, "host"].into_iter().enumerate() {
            let (status, said) = scene.refresh(client, &tokens[at]).await;
            assert_eq!(status, statuses[at], "{client} {more}: {said}");
            if status == 200 {
                tokens[at] = said;
            }
        }
    }
}

/// A name that is a URL could be that of a client with a document.
#[tokio::test]
async fn a_client_that_was_configured_is_no_other_client_later() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("store = {{ path = {:?} }}", folder.path().join("logins.redb"));
    let url = "https://host.example/client.json";
    let named = format!("[[authorization_server.clients]]\nclient_id = \"{url}\"\nredirect_uris = [\"{BACK}\"]\n");
    let scene = Scene::with(&store, &named).await;
    let token = scene.signed_in(url, "ada").await;
    let (status, token) = scene.refresh(url, &token).await;
    assert_eq!(status, 200, "{token}");
    let Scene { authority, gateway, _stub: stub, root } = scene;
    drop(gateway);
    let port = root.rsplit(':').next().unwrap().parse().unwrap();
    let gateway = start(port, &authority, &stub, &store, "").await;
    let scene = Scene { authority, gateway, _stub: stub, root };
    let (status, said) = scene.refresh(url, &token).await;
    assert_eq!((status, &said["error"]), (400, &json!("invalid_grant")), "{said}");
}

#[tokio::test]
async fn a_person_signs_out_their_clients() {
    let scene = Scene::new().await;
    let client = scene.registered().await;
    let (hers, also) = (scene.signed_in(&client, "ada").await, scene.signed_in(&client, "ada").await);
    let eves = scene.signed_in(&client, "eve").await;
    let mut ada = Browser::of("ada");
    let page = ada.open(&scene.gateway.url("/connect")).await;
    let calls = format!("<h2>Host &lt;1&gt;</h2><p>calls {}/mcp, since ", scene.root);
    assert!(page.text.contains("2 signed in") && page.text.contains(&calls), "{}", page.text);
    // One of them, the latest first.
    let page = ada.press(&page, &one_client(&page)).await;
    assert!(page.text.contains("Signed out 1.") && page.text.contains("1 signed in"), "{}", page.text);
    let statuses = [scene.refresh(&client, &hers).await, scene.refresh(&client, &also).await].map(|(status, _)| status);
    assert!(statuses == [200, 400] || statuses == [400, 200], "{statuses:?}");
    // No person signs out another's.
    let mut eve = Browser::of("eve");
    let hers = eve.open(&scene.gateway.url("/connect")).await;
    let (_, fields) = hers.form("connect/clients/revoke");
    let page = ada.open(&scene.gateway.url("/connect")).await;
    let (to, _) = page.form(&one_client(&page));
    let told = eve.submit(&to, &fields).await;
    assert!(told.text.contains("Signed out 0."), "{}", told.text);
    let page = ada.press(&page, "connect/clients/revoke").await;
    assert!(page.text.contains("Signed out 1.") && !page.text.contains("MCP clients"), "{}", page.text);
    assert_eq!(scene.refresh(&client, &eves).await.0, 200);
    scene.gateway.logs("\"client signed out\"").await;
}

/// The button for the first client on the page.
fn one_client(page: &Page) -> String {
    let mut buttons = page.text.split("action=\"").skip(1).filter_map(|rest| rest.split('"').next());
    buttons.find(|to| to.starts_with("connect/clients/")).unwrap().to_owned()
}

#[tokio::test]
async fn an_operator_lists_and_revokes_what_people_granted() {
    let scene = Scene::new().await;
    let client = scene.registered().await;
    let other = scene.register(&json!({ "client_name": "Other", "redirect_uris": [BACK] })).await.1;
    let other = other["client_id"].as_str().unwrap().to_owned();
    let (hers, eves) = (scene.signed_in(&client, "ada").await, scene.signed_in(&client, "eve").await);
    let more = scene.signed_in(&other, "ada").await;
    let run = async |arguments: &[&str]| ended(auth(&scene.gateway, arguments)).await;

    let (code, said) = run(&["grants", "list"]).await;
    assert_eq!((code, said.matches("Host <1>").count(), said.matches("Other").count()), (Some(0), 2, 1), "{said}");
    let (code, said) = run(&["grants", "list", "--subject", "eve"]).await;
    assert!(code == Some(0) && said.contains("eve  Host <1>  since ") && !said.contains("ada"), "{said}");

    let (_, said) = run(&["grants", "list", "--subject", "eve", "--json"]).await;
    let listed: Value = serde_json::from_str(&said[said.find("[").unwrap()..]).unwrap();
    assert_eq!(
        (&listed[0]["subject"], &listed[0]["name"], &listed[1]),
        (&json!("eve"), &json!("Host <1>"), &Value::Null)
    );

    let elsewhere = ["grants", "revoke", "--subject", "ada", "--issuer", "https://other.example"];
    let (code, said) = run(&elsewhere).await;
    assert!(code == Some(1) && said.contains("there is no such grant"), "{said}");
    let (code, said) = run(&["grants", "revoke", "--client", "Other", "--issuer", scene.authority.issuer()]).await;
    assert!(code == Some(0) && said.contains("Revoked 1 grant.") && said.contains("\"grant revoked\""), "{said}");
    assert_eq!((scene.refresh(&other, &more).await.0, scene.refresh(&client, &eves).await.0), (400, 200));
    let (code, said) = run(&["grants", "revoke", "--subject", "ada", "--client", &client]).await;
    assert_eq!((code, scene.refresh(&client, &hers).await.0), (Some(0), 400), "{said}");

    let (code, said) = run(&["grants", "revoke", "--subject", "ada"]).await;
    assert!(code == Some(1) && said.contains("there is no such grant"), "{said}");
    assert_eq!(run(&["grants", "revoke"]).await.0, Some(2));
    let (_, said) = run(&["grants", "list"]).await;
    assert!(said.contains("eve  Host <1>") && !said.contains("ada  "), "{said}");
}

#[tokio::test]
async fn clients_cannot_fill_the_store() {
    let scene = Scene::new().await;
    let client = scene.registered().await;
    let (mut ada, page) = (Browser::of("ada"), scene.page(&client, &[]));
    let eve = scene.signed_in(&client, "eve").await;
    let first = scene.signed_in(&client, "ada").await;
    // A person has fifty at once. The oldest goes.
    for _ in 0..50 {
        scene.code(&mut ada, &page).await;
    }
    assert_eq!(scene.refresh(&client, &first).await.0, 400);
    assert_eq!(scene.refresh(&client, &eve).await.0, 200, "others are not crowded out");
    // Strangers register as often as their rate allows. Nothing is kept of it.
    let (address, about) = (scene.gateway.address(), json!({ "redirect_uris": [BACK] }).to_string());
    let mut strangers = JoinSet::new();
    for _ in 0..8 {
        let about = about.clone();
        strangers.spawn(async move {
            for _ in 0..1000 {
                let request = Request::new("POST", "/oauth/register").header("content-type", "application/json");
                let status = request.body(about.clone()).send(address).await.status;
                if status != 201 {
                    return status;
                }
            }
            201
        });
    }
    assert!(strangers.join_all().await.iter().all(|status| *status == 429));
}

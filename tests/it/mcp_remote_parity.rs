//! npm `mcp-remote` and Weir at the same kind of upstream and of authorization server: what the latter has heard from each.
//! Weir does all that the yardstick does; where it differs, it is on purpose, and said here.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_tests::authority::browse;
use weir_tests::gateway::NEEDS_SIGN_IN;
use weir_tests::peer::free_port;
use weir_tests::process::Process;
use weir_tests::remote::Remote;
use weir_tests::terminal::{calling_until_it_works, command, echo, ended, start, works};
use weir_tests::tokens::claims;
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Authority, Bridge, Gateway, Stub};

/// How long a token is good, in seconds.
const TOKEN: u32 = 6;

/// What an authorization server has heard from one of them.
#[derive(Debug)]
struct Heard {
    /// Where it looked for what the server says of itself, each place once.
    metadata: Vec<String>,
    registrations: Vec<Value>,
    /// The pages that its user was sent to.
    authorizations: Vec<BTreeMap<String, String>>,
    /// The forms that it sent for a code.
    codes: Vec<Value>,
    /// The forms that it sent for a refresh token.
    refreshes: Vec<Value>,
    /// The upstream that all was for.
    resource: String,
}

/// A client that does not say what it says of itself in this test.
fn call() -> Value {
    json!({ "name": "echo", "arguments": { "message": "m" } })
}

/// Waits until the time of the token that an upstream was shown last is over.
async fn until_over(upstream: &Stub) {
    let end = claims(upstream.tokens().last().unwrap())["exp"].as_u64().unwrap();
    until("the token is over", || weir_tests::issuer::now() > end).await;
}

/// What the server says to a refresh token, until it is told otherwise.
fn refuse() -> Value {
    json!({ "/token": { "status": 400, "json": { "error": "invalid_grant" } } })
}

impl Heard {
    fn of(authority: &mut Authority, upstream: &Stub) -> Self {
        let requests = authority.requests();
        let (mut metadata, mut authorizations) = (Vec::new(), Vec::new());
        for request in &requests {
            let path = request["path"].as_str().unwrap().to_owned();
            if path.starts_with("/.well-known/") && !metadata.contains(&path) {
                metadata.push(path.clone());
            }
            if path == "/auth" {
                authorizations.push(serde_json::from_value(request["query"].clone()).unwrap());
            }
        }
        let bodies = |path: &str, grant: Option<&str>| -> Vec<Value> {
            let bodies = requests.iter().filter(|request| request["path"] == path).map(|request| &request["body"]);
            let wanted = |body: &&Value| body.is_object() && grant.is_none_or(|grant| body["grant_type"] == grant);
            bodies.filter(wanted).cloned().collect()
        };
        Self {
            metadata,
            registrations: bodies("/reg", None),
            authorizations,
            codes: bodies("/token", Some("authorization_code")),
            refreshes: bodies("/token", Some("refresh_token")),
            resource: upstream.url(),
        }
    }

    /// What must be so of both.
    fn is_right(&self) {
        assert_eq!(self.metadata, ["/.well-known/oauth-authorization-server"]);
        // Registered once (RFC 7591), as a program of this machine that keeps no secret.
        let [registered] = &self.registrations[..] else { panic!("{:?}", self.registrations) };
        for (field, value) in [
            ("grant_types", json!(["authorization_code", "refresh_token"])),
            ("response_types", json!(["code"])),
            ("token_endpoint_auth_method", json!("none")),
            ("application_type", json!("native")),
        ] {
            assert_eq!(registered[field], value, "{field}: {registered}");
        }
        let redirects: Vec<&str> =
            registered["redirect_uris"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
        // Signed in once, and once again when the refresh token was taken no more.
        assert_eq!((self.authorizations.len(), self.codes.len()), (2, 2), "{self:?}");
        let mut states = Vec::new();
        for (page, form) in self.authorizations.iter().zip(&self.codes) {
            for (name, value) in [
                ("response_type", "code"),
                ("code_challenge_method", "S256"),
                ("resource", &self.resource),
                ("scope", "mcp:read offline_access"),
                ("prompt", "consent"),
            ] {
                assert_eq!(page.get(name).map(String::as_str), Some(value), "{name}: {page:?}");
            }
            assert_eq!(page["code_challenge"].len(), 43, "{page:?}");
            assert!(page["state"].len() > 20 && !states.contains(&page["state"]), "{page:?}");
            states.push(page["state"].clone());
            assert!(redirects.contains(&page["redirect_uri"].as_str()), "{page:?}");
            // RFC 8252 §7.3: an address of this machine, on a port of its own.
            assert!(page["redirect_uri"].starts_with("http://127.0.0.1:"), "{page:?}");
            assert_eq!(
                (&form["resource"], &form["redirect_uri"]),
                (&json!(self.resource), &json!(page["redirect_uri"]))
            );
            assert_eq!(form["client_id"], json!(page["client_id"]), "{form}");
            let verifier = form["code_verifier"].as_str().unwrap();
            assert!((43..=128).contains(&verifier.len()), "{form}");
        }
        assert!(!self.refreshes.is_empty(), "{self:?}");
        for form in &self.refreshes {
            assert_eq!((&form["resource"], &form["client_id"]), (&json!(self.resource), &self.codes[0]["client_id"]));
            assert!(form["refresh_token"].is_string(), "{form}");
        }
    }
}

/// Waits until somebody listens where a page sends its user back to: the yardstick opens a browser first.
pub(crate) async fn until_awaited(page: &str) {
    let port = page.split("127.0.0.1%3A").nth(1).map(|rest| rest.split('%').next().unwrap_or_default());
    let port: u16 = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("no way back in {page}"));
    let listens = || std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).is_ok();
    until("the way back is open", listens).await;
}

/// The yardstick's way: a host starts it, and it opens a browser while its first message waits.
async fn through_mcp_remote() -> Heard {
    let (mut authority, remote) = (Authority::start(TOKEN), Remote::new());
    let upstream = authority.upstream().await;
    let mut bridge: Bridge = remote.start(&upstream.url(), &["--host", "127.0.0.1", "--auth-timeout", "60"]);
    let user = async {
        let page = remote.page(0).await;
        until_awaited(&page).await;
        browse(&page).await
    };
    let (hello, shown) = tokio::join!(bridge.shake_hands(json!({})), user);
    assert!(hello["result"]["serverInfo"].is_object() && shown.contains("Authorization successful"), "{hello} {shown}");
    let mut calls = async |what: &str| {
        let answer = bridge.ask("tools/call", call()).await;
        assert_eq!(answer["result"]["content"][0]["text"], "m", "{what}: {answer}");
    };
    calls("at first").await;
    until_over(&upstream).await;
    calls("with a new token").await;
    until_over(&upstream).await;
    authority.trouble(&refuse());
    // It holds the call until somebody has signed in.
    let user = async {
        let page = remote.page(1).await;
        authority.trouble(&json!({}));
        until_awaited(&page).await;
        browse(&page).await
    };
    tokio::join!(calls("after another sign-in"), user);
    Heard::of(&mut authority, &upstream)
}

/// Weir's way: somebody runs a command, and calls go on.
async fn through_weir() -> Heard {
    let (mut authority, remote) = (Authority::start(TOKEN), Remote::new());
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "").await;
    gateway.logs(NEEDS_SIGN_IN).await;
    // Whoever comes back to another port is registered once more, and tests beside this one may have Weir's own.
    let port = free_port().to_string();
    let sign_in = async |number: usize| {
        let mut command = command(&gateway, &["login", "u", "--port", &port]);
        let process = Process::start("weir auth", command.env("BROWSER", remote.browser()));
        let shown = browse(&remote.page(number).await).await;
        assert!(shown.contains("Weir has what it needs"), "{shown}");
        let (code, said) = ended(process).await;
        assert!(code == Some(0) && said.contains("A browser was opened"), "{said}");
    };
    sign_in(0).await;
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    until_over(&upstream).await;
    assert!(works(&gateway).await);
    authority.trouble(&refuse());
    // It does not hold the call, for nobody may come: it says at once where to sign in. Until the last token is over the
    // calls go on.
    until_asked(&gateway).await;
    authority.trouble(&json!({}));
    sign_in(1).await;
    calling_until_it_works(&gateway, PATIENCE).await;
    Heard::of(&mut authority, &upstream)
}

async fn until_asked(gateway: &Gateway) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !echo(gateway).await.to_string().contains("it needs a new sign-in") {
        assert!(tokio::time::Instant::now() < end, "{}", gateway.log());
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn an_authorization_server_hears_the_same_of_weir_as_of_mcp_remote() {
    let (remote, weir) = tokio::join!(through_mcp_remote(), through_weir());
    remote.is_right();
    weir.is_right();

    // What is said in each request: Weir leaves out nothing that the yardstick says, but for this.
    let fields = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let missing = |theirs: &Value, ours: &Value| -> Vec<String> {
        fields(theirs).into_iter().filter(|field| !fields(ours).contains(field)).collect()
    };
    // Where it comes from and which version it is tells a server what to attack, and buys nothing. Scopes are asked for
    // when somebody signs in: a registration outlives what an upstream wants today.
    let own = ["client_uri", "scope", "software_id", "software_version"];
    assert_eq!(missing(&remote.registrations[0], &weir.registrations[0]), own);
    let keys = |page: &BTreeMap<String, String>| page.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&remote.authorizations[0]), keys(&weir.authorizations[0]));
    assert_eq!(fields(&remote.codes[0]), fields(&weir.codes[0]));
    // Without scopes a refresh keeps those that were granted (RFC 6749 §6). Some servers refuse a list that is not exactly
    // theirs, and the yardstick asks for less than it has: `mcp:read` alone.
    assert_eq!(missing(&remote.refreshes[0], &weir.refreshes[0]), ["scope"]);
    // The other way round Weir says nothing that the yardstick does not.
    assert!(missing(&weir.registrations[0], &remote.registrations[0]).is_empty());
    assert!(missing(&weir.refreshes[0], &remote.refreshes[0]).is_empty());
}

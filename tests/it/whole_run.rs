//! Every secret of a whole run, looked for in everything that anybody but its owner can read: the log with all that can be
//! logged, every answer, every page, and all that commands print.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use weir_tests::authority::browse;
use weir_tests::client::with_meta;
use weir_tests::peer::free_port;
use weir_tests::process::Process;
use weir_tests::terminal::{TRACE, approve, ended, page};
use weir_tests::tokens::token_of;
use weir_tests::{Authority, Browser, Client, Gateway, Request, Stub, paths};

const AUDIENCE: &str = "https://weir.example/mcp";
/// What is in the environment, by name.
const FIXED: [(&str, &str); 6] = [
    ("KEY", "c2VjcmV0IGtleSBvZiB0aGUgc3RvcmUsIDMyIGJ5dGU="),
    ("BASIC", "basic secret: +&%"),
    ("EXCHANGE", "exchange secret: +&%"),
    ("BEARER", "bearer-5b1f0c77"),
    ("HEADER", "header-5b1f0c77"),
    ("QUERY", "query-5b1f0c77"),
];

/// A link is told to the one whom it lets in, and to nobody else.
const TICKET: &str = "a ticket";
/// What a stub does, and what it does not.
const ALL: [&str; 4] = ["echo", "fail", "refuse", "none"];

/// All that takes part in the run.
struct Run {
    authority: Authority,
    guarded: Stub,
    fixed: Stub,
    gateway: Gateway,
    /// The tokens of callers.
    callers: BTreeMap<String, String>,
    /// What somebody was told.
    told: String,
    /// What nobody else may see.
    secrets: Vec<(String, String)>,
}

/// A key of a client: in PEM, and its public half as a JWK.
pub(crate) fn key() -> (String, Value) {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let text = STANDARD.encode(pkcs8.as_ref());
    let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
    let jwk = json!({ "kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y), "use": "sig", "alg": "ES256" });
    (format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"), jwk)
}

fn config(issuer: &str, guarded: &Stub, fixed: &Stub, public: &str, pem: &Path) -> String {
    let at = |name: &str, more: &str| format!("{}{more}\n", guarded.config(name));
    let client = |id: &str, more: &str| format!("oauth = {{ client_id = \"{id}\"{more} }}");
    [
        format!("public_url = \"{public}\"\n[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer),
        "[store]\npath = \"logins.redb\"\nkey = { env = \"KEY\" }\n".to_owned(),
        at("person", "auth = \"oauth\""),
        at("own", "auth = \"oauth\"\nowner = \"principal\""),
        at("code", &format!("auth = \"device\"\n{}", client("weir-native", ""))),
        at(
            "alone",
            &format!(
                "auth = \"client_credentials\"\n{}",
                client("weir-basic", ", client_secret = { env = \"BASIC\" }")
            ),
        ),
        at(
            "signed",
            &format!(
                "auth = \"client_credentials\"\n{}",
                client("weir-jwt", &format!(", private_key = {{ file = {pem:?} }}"))
            ),
        ),
        at(
            "exchanged",
            &format!(
                "auth = \"exchange\"\n{}",
                client("weir-exchange", &format!(", issuer = \"{issuer}\", client_secret = {{ env = \"EXCHANGE\" }}"))
            ),
        ),
        format!(
            "{}bearer = {{ env = \"BEARER\" }}\nheaders = {{ X-Key = \"${{env:HEADER}}\" }}\n\
             [upstreams.away]\nurl = \"http://127.0.0.1:{}/mcp?key=${{env:QUERY}}\"\n",
            fixed.config("fixed"),
            free_port()
        ),
    ]
    .concat()
}

impl Run {
    async fn start(directory: &Path) -> Self {
        let (pem, jwk) = key();
        let trust = json!({ "audience": AUDIENCE, "barred": ["eve"] });
        let authority = Authority::with(&json!({ "exchange": trust, "jwk": jwk, "names": true }));
        let (guarded, fixed, port) = (authority.upstream().await, Stub::start().await, free_port());
        let file = directory.join("client.pem");
        fs::write(&file, &pem).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let config = config(authority.issuer(), &guarded, &fixed, &format!("http://127.0.0.1:{port}"), &file);
        let environment = [&FIXED[..], &[("RUST_LOG", TRACE)]].concat();
        let gateway = Gateway::start_at_with(port, &config, &environment).await;
        let mut secrets: Vec<(String, String)> = Vec::new();
        for (name, value) in FIXED {
            secrets.push((name.to_owned(), value.to_owned()));
        }
        let text = pem.lines().nth(1).unwrap().to_owned();
        secrets.push(("the private key".to_owned(), text));
        Self { authority, guarded, fixed, gateway, callers: BTreeMap::new(), told: String::new(), secrets }
    }

    fn tell(&mut self, what: &str, said: &str) {
        writeln!(self.told, "--- {what}\n{said}").unwrap();
    }

    fn weir(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new(paths::weir());
        command.args(arguments).arg("--config").arg(self.gateway.directory().join("weir.toml"));
        command.env("XDG_STATE_HOME", self.gateway.directory()).env_remove("BROWSER").env_remove("DISPLAY");
        command.envs(FIXED).env("RUST_LOG", TRACE);
        Process::start("weir", &mut command)
    }

    async fn command(&mut self, arguments: &[&str]) -> (Option<i32>, String) {
        let (code, said) = ended(self.weir(arguments)).await;
        self.tell(&arguments.join(" "), &said);
        (code, said)
    }

    async fn token(&mut self, caller: &str) -> String {
        if let Some(token) = self.callers.get(caller) {
            return token.clone();
        }
        let token = token_of(self.authority.issuer(), &mut Browser::of(caller), AUDIENCE).await;
        self.secrets.push((format!("the token of {caller}"), token.clone()));
        self.callers.insert(caller.to_owned(), token.clone());
        token
    }

    /// Every tool of every upstream, as a caller of either era and one who has no token.
    async fn calls(&mut self, caller: &str, tools: &[&str]) {
        let token = self.token(caller).await;
        let legacy = Client::legacy_with(&self.gateway, "/mcp", &token, &json!({})).await;
        let modern = Client::modern(&self.gateway, "/mcp").with_token(&token);
        for name in ["person", "own", "code", "alone", "signed", "exchanged", "fixed"] {
            for tool in tools {
                let params = json!({ "name": format!("{name}__{tool}"), "arguments": { "message": "m" } });
                for client in [&legacy, &modern] {
                    let (_, request) = client.request("tools/call", params.clone());
                    let said = self.gateway.send(request).await.bytes().await;
                    self.tell(&format!("{tool} at {name} as {caller}"), &String::from_utf8_lossy(&said));
                }
            }
        }
        if tools == ALL {
            // What is not there is waited for, so it is asked for once.
            let params = json!({ "name": "away__echo", "arguments": { "message": "m" } });
            let said = modern.ask("tools/call", params).await.to_string();
            self.tell("away", &said);
        }
        for client in [&legacy, &modern] {
            let listed = client.ask("tools/list", json!({})).await.to_string();
            self.tell("tools/list", &listed);
        }
    }

    async fn get(&mut self, path: &str) {
        let response = self.gateway.send(Request::get(path)).await;
        let head = format!("{} {:?}", response.status, response.headers);
        let said = response.bytes().await;
        self.tell("a page", &format!("{head}\n{}", String::from_utf8_lossy(&said)));
    }

    async fn sign_in(&mut self) {
        let mut process = self.weir(&["auth", "login", "person", "--no-browser"]);
        browse(&page(&mut process).await).await;
        let (code, said) = ended(process).await;
        assert_eq!(code, Some(0), "{said}");
        self.tell("auth login person", &said);
        let mut process = self.weir(&["auth", "login", "code", "--no-browser"]);
        approve(&mut process).await;
        let (code, said) = ended(process).await;
        assert_eq!(code, Some(0), "{said}");
        self.tell("auth login code", &said);
        self.command(&["auth", "login", "own", "--no-browser"]).await;
        self.command(&["auth", "login", "alone", "--no-browser"]).await;
    }

    /// A principal signs in by the link that a call was answered with, and out again.
    async fn connect(&mut self) {
        let mut browser = Browser::of("ada");
        let token = self.token("ada").await;
        let client = Client::modern(&self.gateway, "/mcp").with_token(&token);
        let opens = json!({ "elicitation": { "url": {} } });
        let call = json!({ "name": "own__echo", "arguments": { "message": "m" } });
        let (_, request) = client.request_with("tools/call", with_meta(call.clone(), &opens));
        let asked = self.gateway.send(request).await.json().await;
        let link = asked["result"]["inputRequests"]["sign_in_own"]["params"]["url"].as_str().unwrap().to_owned();
        let (_, ticket) = link.split_once("ticket=").unwrap();
        self.secrets.push((TICKET.to_owned(), ticket.to_owned()));
        let page = browser.open(&link).await;
        let page = browser.press(&page, "connect/own/login").await;
        assert!(page.text.contains("Signed in at own"), "{}", page.text);
        self.tell("the page", &page.text);
        for (name, value) in browser.cookies().iter().filter(|(_, value)| value.len() > 10) {
            self.secrets.push((format!("the cookie {name}"), value.clone()));
        }
        let done = client.ask("tools/call", call).await.to_string();
        assert!(done.contains("\"m\""), "{done}");
        self.tell("own__echo", &done);
        let page = browser.press(&page, "connect/own/logout").await;
        self.tell("the page, signed out", &page.text);
    }

    /// Nobody's requests, some with what looks like secrets.
    async fn strangers(&mut self) {
        let stranger = "stranger-5b1f0c77";
        self.secrets.push(("what a stranger brought".to_owned(), stranger.to_owned()));
        for path in ["/metrics", "/readyz", "/healthz", "/connect", "/mcp", "/.well-known/oauth-protected-resource"] {
            self.get(path).await;
        }
        for path in [
            format!("/oauth/callback?code={stranger}&state={stranger}"),
            format!("/oauth/callback?error={stranger}&error_description={stranger}&state={stranger}"),
            format!("/connect?ticket={stranger}"),
            format!("/mcp?access_token={stranger}"),
        ] {
            self.get(&path).await;
        }
        let request = Client::modern(&self.gateway, "/mcp").request("tools/list", json!({})).1;
        let request = request.header("authorization", &format!("Bearer {stranger}")).header("cookie", stranger);
        let said = self.gateway.send(request).await.bytes().await;
        self.tell("a stranger's token", &String::from_utf8_lossy(&said));
    }

    /// Looks for all of them, in each form that they travel in.
    fn search(&mut self) {
        let given = self.authority.secrets();
        assert!(given.len() > 20, "{}", given.len());
        self.secrets
            .extend(given.into_iter().map(|secret| ("a secret of the authorization server".to_owned(), secret)));
        self.secrets.extend(self.guarded.tokens().into_iter().map(|token| ("a token".to_owned(), token)));
        self.secrets.extend(self.fixed.tokens().into_iter().map(|token| ("a bearer".to_owned(), token)));
        let (log, store) = (self.gateway.log(), fs::read(self.gateway.directory().join("logins.redb")).unwrap());
        let store = String::from_utf8_lossy(&store);
        let mut found = Vec::new();
        for (what, secret) in &self.secrets {
            assert!(secret.len() > 10, "{what} is too short to be looked for: {secret}");
            for form in forms(secret) {
                for (place, text) in [("the log", &*log), ("an answer", &*self.told), ("the store", &*store)] {
                    if what == TICKET && place == "an answer" {
                        continue;
                    }
                    if let Some(line) = text.lines().find(|line| line.contains(&form)) {
                        found.push(format!("{what} is in {place}: {}", line.chars().take(2000).collect::<String>()));
                    }
                }
            }
        }
        found.dedup();
        assert!(found.is_empty(), "{} finds:\n{}", found.len(), found.join("\n"));
    }
}

/// As it is, in a form, in JSON, and as it goes into the header of a client or into bytes that are shown.
fn forms(secret: &str) -> Vec<String> {
    let encoded: String = url_encoded(secret);
    let mut forms = vec![secret.to_owned(), encoded.clone(), encoded.replace("%20", "+"), STANDARD.encode(secret)];
    for id in ["weir-basic", "weir-exchange"] {
        forms.push(STANDARD.encode(format!("{id}:{secret}")));
        forms.push(STANDARD.encode(format!("{id}:{encoded}")));
        forms.push(STANDARD.encode(format!("{id}:{}", encoded.replace("%20", "+"))));
    }
    forms.sort_unstable();
    forms.dedup();
    forms
}

fn url_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[tokio::test]
async fn no_secret_of_a_whole_run_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = Run::start(directory.path()).await;
    // Nobody is signed in yet.
    run.calls("ada", &["echo"]).await;
    run.sign_in().await;
    run.gateway.logs("\"upstream is healthy\",\"upstream\":\"person\"").await;
    run.gateway.logs("\"upstream is healthy\",\"upstream\":\"code\"").await;
    run.connect().await;
    run.calls("ada", &ALL).await;
    run.calls("eve", &["echo"]).await;
    // All tokens are made anew.
    run.guarded.revoke();
    run.calls("ada", &["echo"]).await;
    assert!(run.authority.grants("refresh_token") > 1);
    run.strangers().await;

    for arguments in [
        &["check"][..],
        &["auth", "status"],
        &["auth", "list"],
        &["auth", "refresh", "person"],
        &["auth", "refresh", "signed"],
        &["auth", "status", "person"],
    ] {
        let (code, said) = run.command(arguments).await;
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
    }
    // An authorization server that repeats what it was sent, in every field.
    let echo = "echo-5b1f0c77";
    run.secrets.push(("what the authorization server said".to_owned(), echo.to_owned()));
    let said = json!({ "error": format!("{echo} {echo}"), "error_description": echo, "access_token": echo, "refresh_token": echo });
    for status in [400, 500, 200] {
        run.authority.trouble(
            &json!({ "/token": { "status": status, "json": if status == 200 { json!(echo) } else { said.clone() } } }),
        );
        run.guarded.revoke();
        run.command(&["auth", "refresh", "person"]).await;
        run.calls("ada", &["echo"]).await;
    }
    run.authority.trouble(&json!({}));
    for arguments in [&["auth", "logout", "person"][..], &["auth", "logout", "code"], &["auth", "logout", "nobody"]] {
        run.command(arguments).await;
    }
    let broken =
        fs::read_to_string(run.gateway.directory().join("weir.toml")).unwrap() + "unknown = \"${env:BEARER}\"\n";
    fs::write(run.gateway.directory().join("weir.toml"), broken).unwrap();
    let (code, _) = run.command(&["check"]).await;
    assert_eq!(code, Some(64));
    run.search();
}

//! Who comes to `/connect` with a browser says who they are at the issuer of callers, and a link is of use to nobody but
//! the one it was made for.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use weir_tests::browser::Page;
use weir_tests::gateway::NEEDS_SIGN_IN;
use weir_tests::issuer::now;
use weir_tests::peer::free_port;
use weir_tests::tokens::token_of;
use weir_tests::wait::until;
use weir_tests::{Authority, Browser, Client, Gateway, Issuer, Request, Stub};

use crate::sign_in::{AUDIENCE, guarded, modern, text};

/// A gateway whose callers are those of an authorization server, and an upstream where each has a login there too.
pub(crate) struct Scene {
    pub(crate) authority: Authority,
    pub(crate) gateway: Gateway,
    stub: Stub,
}

impl Scene {
    pub(crate) async fn new(settings: &Value) -> Self {
        Self::at(free_port(), settings, "", "").await
    }

    /// The same on a port, with more lines of the configuration and of `[auth]`.
    async fn at(port: u16, settings: &Value, root: &str, auth: &str) -> Self {
        let authority = Authority::with(settings);
        let (stub, upstream) = guarded(&authority, "github", "principal").await;
        let gateway = start(port, authority.issuer(), &format!("{root}\n"), auth, &upstream).await;
        Self { authority, gateway, stub }
    }

    /// A client of a person, their browser, and the link that a call has shown.
    pub(crate) async fn invited(&self, person: &str) -> (Client, Browser, String) {
        let mut browser = Browser::of(person);
        let token = token_of(self.authority.issuer(), &mut browser, AUDIENCE).await;
        let client = Client::modern(&self.gateway, "/mcp").with_token(&token);
        let link = link(&client).await;
        (client, browser, link)
    }

    /// Takes a browser by a link to the address at which it comes back from the issuer.
    async fn back(&self, browser: &mut Browser, link: &str) -> String {
        let back = self.gateway.url("/connect/callback");
        browser.open_until(link, |url| url.starts_with(&back)).await.url
    }
}

async fn start(port: u16, issuer: &str, root: &str, auth: &str, upstream: &str) -> Gateway {
    let root = format!("public_url = \"http://127.0.0.1:{port}\"\n{root}");
    let auth = format!("[auth]\nissuer = \"{issuer}\"\naudience = \"{AUDIENCE}\"\n{auth}\n");
    let environment = [("WEIR_TESTS_SECRET", "s3cret: +&%"), ("RUST_LOG", "info,weir=trace,weir_oauth=trace")];
    Gateway::start_at_with(port, &format!("{root}{auth}{upstream}"), &environment).await
}

async fn link(client: &Client) -> String {
    let asked = modern(client, "github__echo", json!({})).await;
    let link = asked["result"]["inputRequests"]["sign_in_github"]["params"]["url"].as_str();
    link.unwrap_or_else(|| panic!("no link: {asked}")).to_owned()
}

/// Whether a client's calls get through.
pub(crate) async fn gets_through(client: &Client) -> bool {
    let answer = modern(client, "github__echo", json!({})).await;
    answer["result"]["resultType"] != "input_required" && text(&answer["result"]) == "hi"
}

fn is_own(page: &Page) -> bool {
    page.status == 200 && page.text.contains("<h1>Sign in</h1>") && page.text.contains("github")
}

#[tokio::test]
async fn a_person_comes_in_as_the_one_their_client_has_signed_in_as() {
    let scene = Scene::new(&json!({ "names": true })).await;
    let (client, mut browser, link) = scene.invited("ada").await;
    scene.gateway.logs(NEEDS_SIGN_IN).await;
    let log = scene.gateway.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(NEEDS_SIGN_IN)).collect();
    let page = format!("\"link\":\"{}\"", scene.gateway.url("/connect"));
    assert!(lines.len() == 1 && lines[0].contains(&page) && !lines[0].contains("command"), "{lines:?}");
    let page = browser.open(&link).await;
    assert!(page.text.contains("For ada@example.com (ada)"), "{}", page.text);
    assert!(page.text.contains("connect/github/login") && page.url == scene.gateway.url("/connect"), "{page:?}");
    let page = browser.press(&page, "connect/github/login").await;
    assert!(page.text.contains("Signed in at github"), "{}", page.text);
    assert!(gets_through(&client).await);

    // Clients show the same link for each server that wants a login; for everybody else it is over.
    assert!(is_own(&browser.open(&link).await));
    for person in ["ada", "eve"] {
        let late = Browser::of(person).open(&link).await;
        assert!(late.status == 410 && late.text.contains("used already"), "{}", late.text);
    }
    // With HTTP/2 browsers send each cookie in a header of its own.
    let apart = Request::get("/connect").header("cookie", "other=1");
    let apart = apart.also("cookie", &format!("weir={}", browser.cookie("weir").unwrap()));
    assert_eq!(scene.gateway.send(apart).await.status, 200);
    // Who they are is all that it takes.
    let page = Browser::of("ada").open(&scene.gateway.url("/connect")).await;
    assert!(is_own(&page) && page.text.contains("connect/github/logout"), "{}", page.text);
    let page = Browser::of("eve").open(&scene.gateway.url("/connect")).await;
    assert!(is_own(&page) && page.text.contains("connect/github/login"), "{}", page.text);
    assert_eq!(Browser::new().open(&scene.gateway.url("/connect?ticket=0")).await.status, 410);
}

#[tokio::test]
async fn another_person_s_link_gives_nobody_a_login() {
    let scene = Scene::new(&json!({ "names": true })).await;
    let (ada, mut hers, link) = scene.invited("ada").await;
    let mut other = Browser::of("eve");
    for _ in 0..2 {
        let page = other.open(&link).await;
        assert!(page.status == 403 && page.text.contains("Not your link"), "{page:?}");
        assert!(page.text.contains("eve@example.com") && !page.text.contains("ada@example.com"), "{}", page.text);
        // She says again who she is, and it is still she.
        let again = other.press(&page, "connect").await;
        assert!(again.status == 403 && again.text.contains("eve@example.com"), "{}", again.text);
    }
    let page = other.open(&scene.gateway.url("/connect")).await;
    let page = other.press(&page, "connect/github/login").await;
    assert!(page.text.contains("For eve@example.com") && page.text.contains("Signed in at github"), "{}", page.text);
    assert!(!gets_through(&ada).await, "eve's login is eve's");

    let page = hers.open(&link).await;
    assert!(is_own(&page) && page.text.contains("connect/github/login"), "{}", page.text);
    hers.press(&page, "connect/github/login").await;
    assert!(gets_through(&ada).await);
    assert!(!scene.stub.tokens().is_empty());
}

#[tokio::test]
async fn whoever_was_somebody_else_can_say_so() {
    let scene = Scene::new(&json!({})).await;
    let (_client, _, link) = scene.invited("ada").await;
    let mut browser = Browser::of("eve");
    let page = browser.open(&link).await;
    assert_eq!(page.status, 403, "{}", page.text);
    let session = browser.cookie("weir").unwrap().to_owned();
    browser.is_of("ada");
    let page = browser.press(&page, "connect").await;
    // The server has eve sign out first.
    let page = browser.press(&page, "session/end").await;
    assert!(is_own(&page) && page.text.contains("For ada"), "{}", page.text);
    assert_ne!(browser.cookie("weir"), Some(session.as_str()));
    let mut before = Browser::of("nobody");
    before.set_cookie("weir", &session);
    assert!(before.open(&scene.gateway.url("/connect")).await.text.contains("Not signed in"), "eve's visit is over");
}

#[tokio::test]
async fn the_console_is_of_whoever_signs_in_and_another_can_take_over() {
    let scene = Scene::new(&json!({})).await;
    let mut browser = Browser::of("eve");
    let page = browser.open(&scene.gateway.url("/")).await;
    assert!(page.url == scene.gateway.url("/") && page.text.contains("For eve"), "{page:?}");
    assert!(page.text.contains("connect/github/tools") && page.text.contains("Not you?"), "{}", page.text);
    assert!(!page.text.contains("Try again"), "only the operator has Weir reach for a server");
    let (_, fields) = page.form("connect/github/login");
    let retried = browser.submit(&scene.gateway.url("/connect/github/retry"), &fields).await;
    assert_eq!(retried.status, 404);
    browser.is_of("ada");
    let page = browser.submit(&scene.gateway.url("/connect"), &[]).await;
    let page = browser.press(&page, "session/end").await;
    assert!(is_own(&page) && page.text.contains("For ada"), "{}", page.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_browsers_that_race_for_a_link_one_wins() {
    let scene = Scene::new(&json!({})).await;
    let (client, ..) = scene.invited("ada").await;
    for _ in 0..5 {
        let link = link(&client).await;
        let mut browsers = Vec::new();
        for person in ["ada", "eve", "ada", "eve", "ada", "ada"] {
            let mut browser = Browser::of(person);
            // Up to the last step, in which the link is used.
            assert!(is_own(&browser.open(&scene.gateway.url("/connect")).await));
            browsers.push((person, browser));
        }
        let start = Arc::new(Barrier::new(browsers.len()));
        let mut racing = JoinSet::new();
        for (person, mut browser) in browsers {
            let (start, link) = (Arc::clone(&start), link.clone());
            racing.spawn(async move {
                start.wait().await;
                let page = browser.open(&link).await;
                (person, page.status)
            });
        }
        let ended = racing.join_all().await;
        let of = |person: &str| ended.iter().filter(|(who, _)| *who == person).map(|(_, status)| *status).collect();
        let (mut hers, others): (Vec<u16>, Vec<u16>) = (of("ada"), of("eve"));
        hers.sort_unstable();
        assert_eq!(hers, [200, 410, 410, 410]);
        assert!(others.iter().all(|status| matches!(status, 403 | 410)), "{others:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_browsers_that_come_back_at_once_one_wins() {
    let scene = Scene::new(&json!({})).await;
    let (_client, mut first, link) = scene.invited("ada").await;
    let mut second = Browser::of("ada");
    let (one, two) = (scene.back(&mut first, &link).await, scene.back(&mut second, &link).await);
    let (one, two) = tokio::join!(
        tokio::spawn(async move { (first.open(&one).await.status, first) }),
        tokio::spawn(async move { (second.open(&two).await.status, second) }),
    );
    let ((one, first), (two, second)) = (one.unwrap(), two.unwrap());
    assert_eq!(one.min(two), 200);
    assert_eq!(one.max(two), 410);
    for mut browser in [first, second] {
        assert!(is_own(&browser.open(&scene.gateway.url("/connect")).await), "each is known by who they are");
    }
}

#[tokio::test]
async fn a_visit_ends_in_the_browser_that_began_it_and_once() {
    let scene = Scene::new(&json!({})).await;
    let (_client, mut hers, link) = scene.invited("ada").await;
    let mut other = Browser::of("eve");
    let (back, theirs) = (scene.back(&mut hers, &link).await, scene.back(&mut other, &link).await);
    assert!(back.contains("code=") && back.contains("state=") && hers.cookie("weir").is_none());

    // Nobody is signed in as somebody else by an address that they are led to, whether or not they are on their way.
    let (before, state) = back.split_once("state=").unwrap();
    for address in [&theirs, &format!("{before}state=x{state}"), &format!("{before}x={state}"), &back[..40].to_owned()]
    {
        for browser in [&mut hers, &mut Browser::new()] {
            let page = browser.open(address).await;
            assert!(page.status == 400 && page.text.contains("has not begun a sign-in"), "{page:?}");
            assert!(browser.cookie("weir").is_none());
        }
    }
    let page = hers.open(&back).await;
    assert!(is_own(&page) && page.text.contains("For ada"), "{page:?}");
    let page = hers.open(&back).await;
    assert!(page.text.contains("Not signed in") && page.text.contains("For ada"), "{}", page.text);
    assert_eq!(other.open(&theirs).await.status, 410, "eve is eve, and the link is over");
}

#[tokio::test]
async fn the_answer_to_another_question_is_none() {
    let scene = Scene::new(&json!({})).await;
    let (client, mut browser, link) = scene.invited("ada").await;
    let issuer = format!("{}/auth", scene.authority.issuer());
    let asked = browser.open_until(&link, |url| url.starts_with(&issuer)).await.url;
    let (before, nonce) = asked.split_once("nonce=").unwrap();
    let page = browser.open(&format!("{before}nonce=x{nonce}")).await;
    assert!(page.status == 400 && page.text.contains("of another sign-in"), "{}", page.text);
    assert!(page.text.contains("The link is as good as before.") && browser.cookie("weir").is_none());
    assert!(is_own(&browser.open(&link).await));
    assert!(!gets_through(&client).await);
}

#[tokio::test]
async fn whoever_does_not_want_to_sign_in_can_come_again() {
    let scene = Scene::new(&json!({})).await;
    let (_client, mut hers, link) = scene.invited("ada").await;
    let mut browser = Browser::of("nobody");
    let page = browser.open(&link).await;
    assert!(page.status == 400 && page.text.contains("went no further there"), "{}", page.text);
    assert!(page.text.contains(&format!("href=\"{link}\"")), "{}", page.text);
    assert!(is_own(&hers.open(&link).await));
    assert!(!scene.gateway.log().contains("\"WARN\""), "nothing is broken: {}", scene.gateway.log());
}

#[tokio::test]
async fn weir_is_a_client_of_the_issuer_as_of_any_other() {
    let document = "https://weir.example/client.json";
    for kind in ["given", "public", "document", "registered"] {
        let port = free_port();
        let redirect = format!("http://127.0.0.1:{port}/connect/callback");
        let upstreams = format!("http://127.0.0.1:{port}/oauth/callback");
        let secret = json!({ "client_secret": "s3cret: +&%", "token_endpoint_auth_method": "client_secret_post" });
        let client = |id: &str, more: Value| {
            let mut client = json!({ "client_id": id, "redirect_uris": [redirect, upstreams], "token_endpoint_auth_method": "none" });
            client["application_type"] = json!("native");
            client.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            client
        };
        let (settings, root, auth, id) = match kind {
            "given" => (
                json!({ "registers": false, "clients": [client("weir", secret)] }),
                String::new(),
                "client_id = \"weir\"\nclient_secret = { env = \"WEIR_TESTS_SECRET\" }",
                Some("weir"),
            ),
            "public" => (
                json!({ "clients": [client("weir", json!({}))] }),
                format!("client_metadata_url = \"{document}\""),
                "client_id = \"weir\"",
                Some("weir"),
            ),
            "document" => (
                json!({ "document": client(document, json!({ "client_name": "Weir", "grant_types": ["authorization_code", "refresh_token"] })) }),
                format!("client_metadata_url = \"{document}\""),
                "",
                Some("https%3A%2F%2Fweir.example%2Fclient.json"),
            ),
            _ => (json!({}), String::new(), "", None),
        };
        let scene = Scene::at(port, &settings, &root, auth).await;
        let (_client, mut browser, link) = scene.invited("ada").await;
        let issuer = format!("{}/auth", scene.authority.issuer());
        let asked = browser.open_until(&link, |url| url.starts_with(&issuer)).await.url;
        let named = asked.split("client_id=").nth(1).unwrap().split('&').next().unwrap();
        assert!(id.is_none_or(|id| id == named), "{kind}: {asked}");
        let page = browser.open(&link).await;
        assert!(is_own(&page), "{kind}: {page:?} {}", scene.gateway.log());
    }
}

#[tokio::test]
async fn nothing_that_opens_anything_is_shown_or_logged() {
    let mut scene = Scene::new(&json!({})).await;
    let (client, mut hers, link) = scene.invited("ada").await;
    let mut other = Browser::of("eve");
    let back = scene.back(&mut hers, &link).await;
    let mut pages = vec![other.open(&link).await, hers.open(&back).await, hers.open(&back).await];
    pages.push(hers.press(&pages[1], "connect/github/login").await);
    pages.push(hers.open(&link).await);
    assert!(gets_through(&client).await);

    let mut secrets = scene.authority.secrets();
    assert!(secrets.len() > 6, "codes, verifiers and tokens of three sign-ins");
    let of = |name: &str| back.split(name).nth(1).unwrap().split('&').next().unwrap().to_owned();
    secrets.extend([of("code="), of("state=")]);
    for browser in [&hers, &other] {
        secrets.extend(["weir", "weir-visit"].map(|name| browser.cookie(name).unwrap().to_owned()));
    }
    let ticket = link.split("ticket=").nth(1).unwrap();
    let log = scene.gateway.log();
    for secret in secrets {
        assert!(!log.contains(&secret), "{}", log.lines().find(|line| line.contains(&secret)).unwrap_or_default());
        assert!(pages.iter().all(|page| !page.text.contains(&secret)), "a page shows what it must not");
    }
    assert!(!log.contains(ticket), "a link is in the log");
}

/// A gateway with callers of a scripted issuer, and the link that one called `ada` was shown.
async fn scripted(issuer: &Issuer, auth: &str) -> (Gateway, Authority, Stub, String) {
    let authority = Authority::start(3600);
    let (stub, upstream) = guarded(&authority, "github", "principal").await;
    let gateway = start(free_port(), &issuer.issuer(), "", auth, &upstream).await;
    let client = Client::modern(&gateway, "/mcp").with_token(&issuer.token("ada", AUDIENCE));
    let link = link(&client).await;
    (gateway, authority, stub, link)
}

#[tokio::test]
async fn an_issuer_that_does_not_know_weir_is_the_operators_to_tell() {
    let issuer = Issuer::start().await;
    issuer.open(false);
    let (gateway, _authority, _stub, link) = scripted(&issuer, "").await;
    for _ in 0..3 {
        let page = Browser::new().open(&link).await;
        assert!(page.status == 500 && page.text.contains("set `client_id` under `[auth]`"), "{}", page.text);
        assert!(page.text.contains("The link is as good as before."), "{}", page.text);
    }
    assert_eq!(Browser::new().open(&gateway.url("/connect")).await.status, 500);
    gateway.logs("nobody can sign in at /connect").await;
    let log = gateway.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("nobody can sign in")).collect();
    assert!(lines.len() == 1 && lines[0].contains(&gateway.url("/connect/callback")), "{lines:?}");
}

#[tokio::test]
async fn an_issuer_that_names_nobody_is_the_operators_to_change() {
    let issuer = Issuer::start().await;
    issuer.open(true);
    issuer.gives(|_| json!({ "access_token": "hunter2", "token_type": "Bearer" }));
    let (gateway, _authority, _stub, link) = scripted(&issuer, "").await;
    for _ in 0..3 {
        let page = Browser::new().open(&link).await;
        assert!(page.status == 500 && page.text.contains("does not say who has signed in"), "{}", page.text);
    }
    gateway.logs("gives no ID token").await;
    assert_eq!(gateway.log().matches("gives no ID token").count(), 1, "{}", gateway.log());
    assert_eq!(issuer.registered(), 1, "it is the same client each time");
    assert!(!gateway.log().contains("hunter2"));
}

#[tokio::test]
async fn an_issuer_that_is_away_is_said_once() {
    let mut scene = Scene::new(&json!({})).await;
    let (_client, mut browser, link) = scene.invited("ada").await;
    scene.authority.stop();
    for _ in 0..3 {
        let page = browser.open(&link).await;
        assert!(page.status == 503 && page.text.contains("Try again"), "{}", page.text);
    }
    scene.gateway.logs("nobody can sign in at /connect for now").await;
    assert_eq!(scene.gateway.log().matches("nobody can sign in").count(), 1, "{}", scene.gateway.log());
}

#[tokio::test]
async fn whatever_an_issuer_says_that_is_not_right_lets_nobody_in() {
    let issuer = Arc::new(Issuer::start().await);
    issuer.open(true);
    let (gateway, _authority, _stub, link) = scripted(&issuer, "").await;
    let claims = |issuer: &Issuer, nonce: &str, client: &str, changed: &Value| {
        let mut claims = issuer.claims("ada", client);
        claims["nonce"] = json!(nonce);
        claims.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        claims
    };
    let head = json!({ "alg": "ES256", "typ": "JWT", "kid": "one" });
    // Each is refused for its own reason, and the link is as good as before.
    for (changed, why) in [
        (json!({ "nonce": "x" }), "of another sign-in"),
        (json!({ "exp": now() - 120 }), "has expired"),
        (json!({ "aud": "somebody" }), "for another audience"),
        (json!({ "aud": AUDIENCE }), "for another audience"),
        (json!({ "aud": ["registered-1", "somebody"] }), "for another audience"),
        (json!({ "azp": "somebody" }), "for another audience"),
        (json!({ "iss": "https://evil.example" }), "of another issuer"),
        (json!({ "sub": "" }), "has no `sub`"),
    ] {
        let (by, head) = (Arc::clone(&issuer), head.clone());
        issuer.gives(move |asked| {
            let claims = claims(&by, asked.get("nonce"), asked.get("client_id"), &changed);
            json!({ "access_token": "hunter2", "id_token": by.sign_as(&head, &claims) })
        });
        refused(&link, why).await;
    }
    let by = Arc::clone(&issuer);
    issuer.gives(move |asked| {
        let claims = claims(&by, asked.get("nonce"), asked.get("client_id"), &json!({}));
        json!({ "access_token": "hunter2", "id_token": by.sign_with_public_key(&claims) })
    });
    refused(&link, "an algorithm that is not accepted").await;
    for (given, why) in [
        (json!({ "access_token": "hunter2", "id_token": "hunter2" }), "no signed JWT"),
        (json!({ "hunter2": 1 }), "something that is no token"),
        (json!({ "error": "invalid_grant", "error_description": "hunter2" }), "does not accept the login"),
    ] {
        issuer.gives(move |_| given.clone());
        refused(&link, why).await;
    }
    for (back, why) in [
        ("error=access_denied", "went no further there"),
        ("error=%0ahunter2%0d", "for a reason that cannot be shown"),
        ("code=c&iss=https://evil.example", "another server than the one asked"),
        ("", "without a code"),
    ] {
        issuer.sends_back(move |asked| format!("{back}&state={}", asked.get("state")));
        refused(&link, why).await;
    }
    issuer.sends_back(|asked| format!("code=c&state={}", asked.get("state")));
    let by = Arc::clone(&issuer);
    issuer.gives(move |asked| {
        let claims = claims(&by, asked.get("nonce"), asked.get("client_id"), &json!({}));
        json!({ "access_token": "hunter2", "id_token": by.sign_as(&head, &claims) })
    });
    assert!(is_own(&Browser::new().open(&link).await), "{}", gateway.log());
    gateway.logs("was not believed").await;
    assert_eq!(gateway.log().matches("was not believed").count(), 1, "{}", gateway.log());
    assert!(!gateway.log().contains("hunter2"), "{}", gateway.log());
}

async fn refused(link: &str, why: &str) {
    let mut browser = Browser::new();
    let page = browser.open(link).await;
    assert!(page.status == 400 && page.text.contains(why), "{why}: {}", page.text);
    assert!(page.text.contains("The link is as good as before.") && browser.cookie("weir").is_none(), "{why}");
    assert!(!page.text.contains("hunter2"), "{}", page.text);
}

#[tokio::test]
async fn what_a_stranger_writes_into_an_address_changes_nothing() {
    let issuer = Issuer::start().await;
    issuer.open(true);
    let (gateway, _authority, _stub, _link) = scripted(&issuer, "\n[audit]\npath = \"audit.jsonl\"\n").await;
    for error in ["invalid_client", "unauthorized_client", "server_error", "invalid_scope", "x"] {
        let mut stranger = Browser::new();
        let address = issuer.issuer();
        let asked = stranger.open_until(&gateway.url("/connect"), |url| url.starts_with(&address)).await.url;
        let state = asked.split("state=").nth(1).unwrap().split('&').next().unwrap();
        let back = gateway.url(&format!("/connect/callback?error={error}&state={state}"));
        let page = stranger.open(&back).await;
        assert!(page.status == 400 && page.text.contains("does not say who you are"), "{}", page.text);
    }
    assert_eq!(issuer.registered(), 1, "it is the same client each time");
    gateway.logs("not believed").await;
    let audit = gateway.directory().join("audit.jsonl");
    let recorded = || std::fs::read_to_string(&audit).unwrap_or_default().matches("\"sign_in_failed\"").count();
    until("each is recorded", || recorded() == 5).await;
    let log = gateway.log();
    assert!(!log.contains("\"ERROR\"") && log.matches("not believed").count() == 1, "{log}");
}

#[tokio::test]
async fn a_code_of_the_issuer_is_brought_to_no_upstream() {
    let scene = Scene::new(&json!({})).await;
    let (_client, mut browser, link) = scene.invited("ada").await;
    let back = scene.back(&mut browser, &link).await;
    // Where upstreams' servers send people, nobody waits for it; and it is good afterwards where it belongs.
    let elsewhere = back.replace("/connect/callback", "/oauth/callback");
    let page = browser.open(&elsewhere).await;
    assert!(page.status == 400 && page.text.contains("has not begun a sign-in"), "{}", page.text);
    assert!(is_own(&browser.open(&back).await));
}

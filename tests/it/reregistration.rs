//! Authorization servers that have forgotten whom they have registered, as those do that keep it in memory and are
//! restarted: Weir registers anew, and nobody has to throw a store away.

use rustix::process::Signal;
use serde_json::json;
use weir_tests::authority::browse;
use weir_tests::gateway::NEEDS_SIGN_IN;
use weir_tests::peer::free_port;
use weir_tests::terminal::{approve, auth, calling, ended, lines, page, sign_in, start, works};
use weir_tests::tokens::token_of;
use weir_tests::{Authority, Browser, Client, Gateway, Stub};

use crate::sign_in::{AUDIENCE, guarded, modern};

/// A gateway whose upstream's authorization server has registered Weir, and has let somebody sign in.
async fn scene(lifetime: u32) -> (Authority, Stub, Gateway) {
    let authority = Authority::start(lifetime);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    (authority, upstream, gateway)
}

/// One where nobody has signed in yet, with the page: the terminal comes back to a port that may be somebody else's, and
/// has another registration then.
async fn at_the_page() -> (Authority, Stub, Gateway) {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    gateway.logs(NEEDS_SIGN_IN).await;
    (authority, upstream, gateway)
}

/// How often somebody was registered since the server was started.
fn registered(authority: &mut Authority) -> usize {
    authority.asked("/reg").len()
}

/// The server's page shows an error and leads nowhere; Weir is not told.
#[tokio::test]
async fn whoever_does_not_come_back_has_a_new_registration_the_next_time() {
    let (mut authority, _upstream, gateway, process, page) = loop {
        let (mut authority, upstream, gateway) = scene(3600).await;
        authority.restart();
        let mut process = auth(&gateway, &["login", "u", "--no-browser"]);
        let page = page(&mut process).await;
        if registered(&mut authority) == 0 {
            break (authority, upstream, gateway, process, page);
        }
        // Another test has the port of the first sign-in, and another port is another registration.
        process.signal(Signal::INT);
        ended(process).await;
    };
    let shown = browse(&page).await;
    assert!(shown.contains("client is invalid"), "{shown}");
    process.signal(Signal::INT);
    assert_eq!(ended(process).await.0, Some(130));
    assert!(works(&gateway).await, "the login that is there is as good as before");
    sign_in(&gateway, &[]).await;
    assert_eq!(registered(&mut authority), 1);
    assert!(works(&gateway).await);
}

/// Somebody may just have thought better of it: that costs the server one registration, and not one each time.
#[tokio::test]
async fn whoever_never_comes_back_does_not_register_each_time() {
    let (mut authority, _stub, gateway) = at_the_page().await;
    let issuer = authority.issuer().to_owned();
    let mut browser = Browser::new();
    let start = browser.open(&gateway.url("/connect")).await;
    for (round, expected) in [1, 1, 2, 2, 3].into_iter().enumerate() {
        browser.press_until(&start, "connect/u/login", |url| url.starts_with(&issuer)).await;
        assert_eq!(registered(&mut authority), expected, "{round}");
    }
    browser.press(&start, "connect/u/login").await;
    for _ in 0..2 {
        browser.press(&start, "connect/u/login").await;
        assert_eq!(registered(&mut authority), 3, "who comes back does so with the same");
    }
}

#[tokio::test]
async fn in_a_browser_too() {
    let (mut authority, _stub, gateway) = at_the_page().await;
    let mut browser = Browser::new();
    let start = browser.open(&gateway.url("/connect")).await;
    let issuer = authority.issuer().to_owned();
    browser.press_until(&start, "connect/u/login", |url| url.starts_with(&issuer)).await;
    authority.restart();
    let lost = browser.press(&start, "connect/u/login").await;
    assert!(lost.text.contains("client is invalid"), "{}", lost.text);
    let signed_in = browser.press(&start, "connect/u/login").await;
    assert!(signed_in.text.contains("Signed in at u"), "{}", signed_in.text);
    assert_eq!(registered(&mut authority), 1);
    // Whoever signs out begins anew in any case.
    browser.press(&signed_in, "connect/u/logout").await;
    authority.restart();
    let start = browser.open(&gateway.url("/connect")).await;
    let signed_in = browser.press(&start, "connect/u/login").await;
    assert!(signed_in.text.contains("Signed in at u"), "{}", signed_in.text);
}

#[tokio::test]
async fn a_code_from_elsewhere_is_got_from_a_server_that_has_forgotten_weir() {
    let mut authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"device\"").await;
    for _ in 0..2 {
        let mut process = auth(&gateway, &["login", "u", "--no-browser"]);
        approve(&mut process).await;
        let (code, said) = ended(process).await;
        assert_eq!((code, registered(&mut authority)), (Some(0), 1), "{said}");
        gateway.healthy(&["u"]).await;
        assert!(works(&gateway).await);
        authority.restart();
    }
}

/// It registers everybody and gives nobody a code: that costs it one registration for each attempt.
#[tokio::test]
async fn who_is_refused_as_somebody_new_is_not_registered_again() {
    let (mut authority, _stub, gateway) = at_the_page().await;
    authority.trouble(&json!({ "/device/auth": { "status": 400, "json": { "error": "unauthorized_client" } } }));
    for attempt in 1..=2 {
        let (code, said) = ended(auth(&gateway, &["login", "u", "--device", "--no-browser"])).await;
        assert_eq!((code, registered(&mut authority)), (Some(1), attempt), "{said}");
    }
}

/// The server says so when the login is to be renewed: one sign-in is asked for, and it begins anew.
#[tokio::test]
async fn a_refresh_that_is_refused_for_that_forgets_the_registration() {
    let (mut authority, upstream, gateway) = scene(3600).await;
    let first = upstream.tokens().last().unwrap().clone();
    authority.restart();
    upstream.revoke();
    calling(&gateway, || lines(&gateway, NEEDS_SIGN_IN) == 2).await;
    let refused =
        |authority: &mut Authority| authority.asked("/token").iter().filter(|asked| asked["status"] == 401).count();
    assert_eq!(refused(&mut authority), 1, "{:?}", authority.asked("/token"));
    sign_in(&gateway, &[]).await;
    // It was known already that there was nobody to ask for.
    assert_eq!((registered(&mut authority), refused(&mut authority)), (1, 1), "{:?}", authority.asked("/token"));
    calling(&gateway, || upstream.tokens().last() != Some(&first)).await;
    assert!(works(&gateway).await);
}

#[tokio::test]
async fn who_signs_out_starts_anew() {
    let (mut authority, _upstream, gateway) = scene(3600).await;
    assert_eq!(registered(&mut authority), 1);
    let (code, said) = ended(auth(&gateway, &["logout", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    sign_in(&gateway, &[]).await;
    assert_eq!(registered(&mut authority), 2);
}

/// A client that signs in with a code is another than one that signs in with a browser: servers hold each to its grants.
#[tokio::test]
async fn each_way_to_sign_in_has_a_registration_of_its_own() {
    let (mut authority, _stub, gateway) = at_the_page().await;
    let mut browser = Browser::new();
    let start = browser.open(&gateway.url("/connect")).await;
    for _ in 0..2 {
        let mut process = auth(&gateway, &["login", "u", "--device", "--no-browser"]);
        approve(&mut process).await;
        assert_eq!(ended(process).await.0, Some(0));
        let signed_in = browser.press(&start, "connect/u/login").await;
        assert!(signed_in.text.contains("Signed in at u"), "{}", signed_in.text);
    }
    assert_eq!(registered(&mut authority), 2);
}

/// The same for the issuer of callers, where people say who they are.
#[tokio::test]
async fn a_gateway_that_starts_again_finds_its_issuer_without_memory() {
    let mut authority = Authority::start(3600);
    let (_stub, upstream) = guarded(&authority, "github", "principal").await;
    let store = tempfile::TempDir::new().unwrap();
    let port = free_port();
    let config = format!(
        "public_url = \"http://127.0.0.1:{port}\"\n[store]\npath = {:?}\n\
         [auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n{upstream}",
        store.path().join("logins.redb"),
        authority.issuer(),
    );
    for round in 0..2 {
        // Its key is in its folder, and the folder of the store is kept.
        let environment = [("WEIR_STORE_KEY", weir_tests::terminal::KEY)];
        let gateway = Gateway::start_at_with(port, &config, &environment).await;
        let mut browser = Browser::of("ada");
        let token = token_of(authority.issuer(), &mut browser, AUDIENCE).await;
        let client = Client::modern(&gateway, "/mcp").with_token(&token);
        let asked = modern(&client, "github__echo", json!({})).await;
        let link = asked["result"]["inputRequests"]["sign_in_github"]["params"]["url"].as_str().unwrap();
        let page = browser.open(link).await;
        assert!(page.text.contains("connect/github/login"), "{round}: {}", page.text);
        drop(gateway);
        authority.restart();
    }
}

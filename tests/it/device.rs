//! Signing in at a terminal with a code that is typed elsewhere (RFC 8628), at real `oidc-provider`.

use serde_json::json;
use weir_tests::gateway::NEEDS_SIGN_IN;
use weir_tests::process::runs;
use weir_tests::terminal::{
    approve, at_terminal, auth, auth_at_terminal, ended, prompt, start, tells, told, type_code, works,
};
use weir_tests::wait::until;
use weir_tests::{Authority, Browser, Gateway, Stub};

/// The lines of an upstream that takes such a login.
const DEVICE: &str = "auth = \"device\"\noauth = { client_id = \"weir-native\" }";

async fn scene() -> (Authority, Stub, Gateway) {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, DEVICE).await;
    gateway.logs(NEEDS_SIGN_IN).await;
    (authority, upstream, gateway)
}

#[tokio::test]
async fn a_code_typed_elsewhere_signs_in_and_the_gateway_uses_it_at_once() {
    let (mut authority, upstream, gateway) = scene().await;
    assert!(!works(&gateway).await);
    let mut process = auth_at_terminal(&gateway, &["login", "u", "--no-browser"]);
    let prompt = prompt(&mut process).await;
    // The code travels with the link for those who can click it.
    let whole = format!("{}?user_code={}", prompt.0, prompt.1);
    assert!(process.output().contains(&whole), "{}", process.output());
    // It shows that it waits, and goes on while it does.
    until("it counts down", || process.shown().matches("left. Ctrl-C").count() > 2).await;
    let asked = |authority: &mut Authority| authority.asked("/token").len();
    assert!(told(&gateway) == (0, 1) && !works(&gateway).await, "it is not signed in before it is approved");

    approve(&mut process).await;
    let (code, said) = ended(process).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Signed in at u (scopes mcp:read"), "{said}");
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    tells(&gateway, (0, 1)).await;
    assert_eq!(authority.grants("urn:ietf:params:oauth:grant-type:device_code"), 1);
    // What it is for was said when the code was asked for.
    let begun = &authority.asked("/device/auth")[0]["body"];
    assert_eq!((&begun["resource"], &begun["scope"]), (&json!(upstream.url()), &json!("mcp:read offline_access")));
    assert!(asked(&mut authority) < 20, "no more often than the server allows");
    let (code, said) = ended(auth(&gateway, &["status", "u"])).await;
    assert!(code == Some(0) && said.contains("u  device  signed in"), "{said}");
}

#[tokio::test]
async fn the_page_says_what_to_run_with_all_that_it_takes() {
    let (_authority, _upstream, gateway) = scene().await;
    let page = Browser::new().open(&gateway.url("/connect")).await;
    let command = format!("weir auth login u --config {}", gateway.directory().join("weir.toml").display());
    assert!(page.text.contains(&command), "{}", page.text);
}

/// Where the configuration speaks of a browser the option takes a code all the same.
#[tokio::test]
async fn a_code_will_do_where_a_browser_is_configured() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    let mut process = auth(&gateway, &["login", "u", "--device", "--no-browser"]);
    approve(&mut process).await;
    let (code, said) = ended(process).await;
    assert!(
        code == Some(0) && said.contains("Waiting for at most") && !said.contains('\r'),
        "what is no terminal gets no dance: {said:?}"
    );
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
}

#[tokio::test]
async fn who_is_interrupted_has_changed_nothing() {
    let (_authority, _upstream, gateway) = scene().await;
    // With no login, and with one.
    for _ in 0..2 {
        let mut process = auth_at_terminal(&gateway, &["login", "u", "--no-browser"]);
        let prompt = prompt(&mut process).await;
        until("it waits", || process.shown().contains("left. Ctrl-C")).await;
        let weir = at_terminal(&process).await;
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(weir.cast_signed()).unwrap(),
            rustix::process::Signal::INT,
        )
        .unwrap();
        let (code, said) = ended(process).await;
        assert_eq!(code, Some(130), "{said}");
        assert!(said.contains("Interrupted. Nothing was changed."), "{said}");
        assert!(!runs(weir));
        // Nobody waits for what is approved too late.
        let mut browser = Browser::new();
        let page = type_code(&mut browser, &prompt).await;
        browser.press(&page, "/device").await;
        let mut process = auth(&gateway, &["login", "u", "--no-browser"]);
        approve(&mut process).await;
        assert_eq!(ended(process).await.0, Some(0));
        gateway.healthy(&["u"]).await;
        assert!(works(&gateway).await);
    }
}

#[tokio::test]
async fn a_no_is_one_clear_error_and_clears_nothing() {
    let (_authority, _upstream, gateway) = scene().await;
    for _ in 0..2 {
        let mut process = auth_at_terminal(&gateway, &["login", "u", "--no-browser"]);
        let prompt = prompt(&mut process).await;
        let mut browser = Browser::new();
        let page = type_code(&mut browser, &prompt).await;
        let (to, mut fields) = page.form("/device");
        fields.retain(|(name, _)| name != "confirm");
        fields.push(("abort".to_owned(), "yes".to_owned()));
        browser.submit(&to, &fields).await;
        let (code, said) = ended(process).await;
        assert_eq!((code, said.matches("the sign-in was refused").count()), (Some(1), 1), "{said}");
        assert!(said.ends_with("weir: the sign-in was refused\r\n") && said.matches("weir: ").count() == 1, "{said}");
        // The second time there is a login already.
        let mut process = auth(&gateway, &["login", "u", "--no-browser"]);
        approve(&mut process).await;
        assert_eq!(ended(process).await.0, Some(0));
        gateway.healthy(&["u"]).await;
        assert!(works(&gateway).await);
    }
}

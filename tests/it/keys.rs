//! API keys: programs call with them, and what the operator does to one counts at once.

use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::client::initialize;
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Client, Gateway, Issuer, LEGACY, Request, Response, Stub, paths};

use crate::callers::{AUDIENCE, refused, tools, with};

/// `weir key` with the store of a gateway.
fn key(gateway: &Gateway, arguments: &[&str]) -> Output {
    let mut command = Command::new(paths::weir());
    command.arg("key").args(arguments).arg("--config").arg(gateway.directory().join("weir.toml"));
    command.env("XDG_STATE_HOME", gateway.directory()).output().unwrap()
}

/// Makes a key, and waits until the gateway knows it.
pub(crate) async fn add(gateway: &Gateway, arguments: &[&str]) -> String {
    let made = key(gateway, &[&["add"], arguments].concat());
    assert!(made.status.success(), "{made:?}");
    let text = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    until_status(gateway, &text, |status| status != 401).await;
    text
}

async fn until_status(gateway: &Gateway, key: &str, wanted: impl Fn(u16) -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !wanted(gateway.send(with(tools("/mcp"), key)).await.status) {
        assert!(tokio::time::Instant::now() < end, "the gateway does not notice: {}", gateway.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a key gets that begins a session, and why it does not.
pub(crate) async fn within_limits(gateway: &Gateway, path: &str, key: &str) -> (u16, String) {
    let (status, _, why) = refused(gateway.send(with(initialize(path, LEGACY, &json!({})), key)).await).await;
    (status, why)
}

fn list(gateway: &Gateway) -> Value {
    serde_json::from_slice(&key(gateway, &["list", "--json"]).stdout).unwrap()
}

async fn start(stubs: &[(&Stub, &str)]) -> Gateway {
    let upstreams: String = stubs.iter().map(|(stub, name)| stub.config(name)).collect();
    Gateway::start(&format!("api_keys = true\n{upstreams}")).await
}

#[tokio::test]
async fn a_program_calls_with_its_key_until_it_is_revoked() {
    let stub = Stub::start().await;
    let gateway = start(&[(&stub, "stub")]).await;
    let (status, challenge, text) = refused(gateway.send(tools("/mcp")).await).await;
    assert_eq!((status, challenge.as_str()), (401, "Bearer realm=\"weir\""));
    assert!(text.contains("an API key is needed"), "{text}");

    let text = add(&gateway, &["deploy", "--group", "ops", "--scope", "mcp", "--expires", "90d"]).await;
    assert!(text.len() == 77 && text.starts_with("weir_"), "{text}");
    let client = Client::legacy_with(&gateway, "/mcp", &text, &json!({})).await;
    client.call("stub__echo", json!({ "message": "hi" })).await;
    let in_its_own = |key: &str| tools("/mcp").header("x-api-key", key);
    assert_eq!(gateway.send(in_its_own(&text)).await.status, 200);

    let known = list(&gateway);
    assert_eq!(
        (&known[0]["name"], &known[0]["groups"], &known[0]["scopes"]),
        (&json!("deploy"), &json!(["ops"]), &json!(["mcp"]))
    );
    assert_eq!(known[0]["expires"].as_u64().unwrap() - known[0]["created"].as_u64().unwrap(), 90 * 24 * 3600);
    until("its use is written down", || list(&gateway)[0]["used"].is_u64()).await;
    let shown = String::from_utf8(key(&gateway, &["list"]).stdout).unwrap();
    assert!(shown.starts_with("deploy  until ") && shown.contains("all upstreams"), "{shown}");

    let again = key(&gateway, &["add", "deploy"]);
    assert!(!again.status.success() && again.stdout.is_empty(), "{again:?}");
    assert!(key(&gateway, &["revoke", "deploy"]).status.success());
    until_status(&gateway, &text, |status| status == 401).await;
    assert_eq!(gateway.send(in_its_own(&text)).await.status, 401);
    assert_eq!(list(&gateway), json!([]));
    assert!(!key(&gateway, &["revoke", "deploy"]).status.success());

    // It is nowhere but with its program.
    for seen in stub.seen() {
        assert!(!format!("{:?} {:?}", seen.headers, seen.body).contains(&text));
    }
    assert!(!gateway.log().contains(&text) && !shown.contains(&text));
    let kept = std::fs::read_dir(gateway.directory().join("weir")).unwrap().map(|entry| entry.unwrap().path());
    // Beside the store is the folder of a socket.
    for file in kept.filter(|path| path.is_file()) {
        let bytes = std::fs::read(file).unwrap();
        assert!(!bytes.windows(64).any(|part| part == &text.as_bytes()[5..69]), "the key is in a file");
    }
}

#[tokio::test]
async fn what_is_no_key_opens_nothing() {
    let stub = Stub::start().await;
    let gateway = start(&[(&stub, "stub")]).await;
    let text = add(&gateway, &["deploy"]).await;
    let digit = if text.ends_with('0') { "1" } else { "0" };
    for other in [
        "weir_".to_owned(),
        text.to_uppercase(),
        text[..76].to_owned(),
        format!("{}{digit}", &text[..76]),
        format!("{text}0"),
        format!("weir_{}", "0".repeat(72)),
        "x".repeat(20_000),
        "deploy".to_owned(),
    ] {
        for request in [with(tools("/mcp"), &other), tools("/mcp").header("x-api-key", &other)] {
            assert_eq!(gateway.send(request).await.status, 401, "{other}");
        }
    }
    // A web page cannot send one without leave, and a browser signs in nowhere.
    assert_eq!(gateway.send(Request::get("/connect")).await.status, 403);
    assert_eq!(gateway.send(Request::get("/.well-known/oauth-protected-resource/mcp")).await.status, 401);
}

#[tokio::test]
async fn a_key_opens_the_upstreams_that_it_names() {
    let (one, two) = (Stub::start().await, Stub::start().await);
    let toolset = "[toolsets.desk]\nupstreams = [\"one\"]\n";
    let config = ["api_keys = true\n", toolset, &one.config("one"), &two.config("two")].concat();
    let gateway = Gateway::start(&config).await;
    for own in ["one", "desk"] {
        let text = add(&gateway, &[&format!("narrow-{own}"), "--endpoint", own]).await;
        for path in ["/mcp/one", "/mcp", "/mcp/two", "/sse/two", "/mcp/desk"] {
            let status = if path == format!("/mcp/{own}") { 200 } else { 403 };
            assert_eq!(gateway.send(with(tools(path), &text)).await.status, status, "{own} at {path}");
        }
    }
}

/// Whoever is called so at an issuer is somebody else.
#[tokio::test]
async fn a_key_and_a_token_of_one_name_are_two_callers() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
    let gateway = Gateway::start(&format!("api_keys = true\n{auth}{}", stub.config("stub"))).await;
    let (text, token) = (add(&gateway, &["ada"]).await, issuer.token("ada", AUDIENCE));
    let client = Client::legacy_with(&gateway, "/mcp/stub", &text, &json!({})).await;
    let post = |token: &str| with(client.request("tools/list", json!({})).1, token);
    let statuses = (gateway.send(post(&text)).await.status, gateway.send(post(&token)).await.status);
    assert_eq!(statuses, (200, 404));
    let challenge = |response: Response| response.header("www-authenticate").unwrap_or_default().to_owned();
    let (without, wrong) = (gateway.send(tools("/mcp")).await, gateway.send(with(tools("/mcp"), "weir_x")).await);
    assert!(challenge(without).contains("resource_metadata=") && challenge(wrong).contains("invalid_token"));
}

#[tokio::test]
async fn a_key_expires_and_one_that_was_tampered_with_opens_nothing() {
    let stub = Stub::start().await;
    let gateway = start(&[(&stub, "stub")]).await;
    let text = add(&gateway, &["short", "--expires", "2s"]).await;
    until_status(&gateway, &text, |status| status == 401).await;
    let (_, _, why) = refused(gateway.send(with(tools("/mcp"), &text)).await).await;
    assert!(why.contains("has expired"), "{why}");
    gateway.logs("\"subject\":\"short\"").await;
    // What strangers send hides no refusal of a caller who is known.
    let named = || gateway.log().matches("\"subject\":\"short\"").count();
    let before = named();
    for _ in 0..50 {
        gateway.send(with(tools("/mcp"), "weir_x")).await;
    }
    gateway.send(with(tools("/mcp"), &text)).await;
    until("the log has the refusal", || named() > before).await;

    // Its name stands in the file as it is, and is bound to what is encrypted.
    let long = add(&gateway, &["longlived"]).await;
    let file = gateway.directory().join("weir/logins.redb");
    let mut gateway = gateway;
    gateway.signal(Signal::TERM);
    gateway.end().await;
    let mut bytes = std::fs::read(&file).unwrap();
    let places: Vec<usize> =
        bytes.windows(9).enumerate().filter(|(_, part)| *part == b"longlived").map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    assert!(!bytes.windows(long.len()).any(|part| part == long.as_bytes()));
    for at in places {
        bytes[at..at + 9].copy_from_slice(b"longlivee");
    }
    std::fs::write(&file, bytes).unwrap();
    let known = key(&gateway, &["list", "--json"]);
    assert!(!String::from_utf8_lossy(&known.stdout).contains("longlived"), "{known:?}");
    let config = std::fs::read_to_string(gateway.directory().join("weir.toml")).unwrap();
    let lines: Vec<&str> =
        config.lines().filter(|line| !line.starts_with("listen") && !line.starts_with("cache_dir")).collect();
    let state = gateway.directory().to_str().unwrap().to_owned();
    let tampered = Gateway::start_with(&lines.join("\n"), &[("XDG_STATE_HOME", &state)]).await;
    assert_eq!(tampered.send(with(tools("/mcp"), &long)).await.status, 401);
}

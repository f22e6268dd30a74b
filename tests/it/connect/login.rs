//! A server that wants a login, behind `weir connect`.

use std::process::Command;

use serde_json::{Value, json};
use weir_tests::authority::browse;
use weir_tests::process::Process;
use weir_tests::{Authority, Bridge, Gateway, Stub, paths};

const KEY: &str = "c2VjcmV0IGtleSBvZiB0aGUgc3RvcmUsIDMyIGJ5dGU=";

/// Where the logins of a test are kept. No browser is opened.
fn environment(home: &str) -> [(&str, &str); 4] {
    [("XDG_STATE_HOME", home), ("HOME", home), ("WEIR_STORE_KEY", KEY), ("DISPLAY", "")]
}

/// `weir auth`, to its end: the exit code, and what it said. A page that is to be opened is.
async fn auth_at(home: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(paths::weir());
    command.arg("auth").args(arguments).env_remove("BROWSER").envs(environment(home));
    let mut process = Process::start("weir auth", &mut command);
    if arguments[0] == "login" {
        let address = |line: &str| Some(line.trim().to_owned()).filter(|line| line.starts_with("http"));
        let page = process.says("where to sign in", address).await;
        browse(&page).await;
    }
    let status = process.end().await;
    (status.code(), process.output())
}

fn said(answer: &Value) -> String {
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}")).to_owned()
}

#[tokio::test]
async fn a_login_at_its_address_opens_a_server() {
    let authority = Authority::start(3600);
    let stub = authority.upstream().await;
    let home = tempfile::tempdir().unwrap();
    let home = home.path().to_str().unwrap();
    let url = stub.url();
    let mut bridge = Bridge::start_with(&[&url], &environment(home));
    let told = said(&bridge.shake_hands(json!({})).await);
    assert!(told.contains(&format!("run `weir auth login {url}`")), "{told}");

    let (code, told) = auth_at(home, &["status", &url]).await;
    assert!(code == Some(1) && told.contains(&format!("sign in with `weir auth login {url}`")), "{told}");

    let (code, told) = auth_at(home, &["login", &url, "--no-browser"]).await;
    assert!(code == Some(0) && told.contains(&format!("Signed in at {url}")), "{told}");
    // A host that asks again is let in, by the same process.
    let greeting = bridge.shake_hands(json!({})).await;
    assert_eq!(greeting["result"]["serverInfo"]["name"], "stub", "{greeting}");
    let answer = bridge.ask("tools/call", json!({ "name": "echo", "arguments": { "message": "hi" } })).await;
    assert_eq!(answer["result"]["content"][0]["text"], "hi");
    let (_, told) = auth_at(home, &["status", &url]).await;
    assert!(told.contains("signed in"), "{told}");

    // The login is this address's alone.
    let other = authority.upstream().await;
    let mut elsewhere = Bridge::start_with(&[&other.url()], &environment(home));
    assert!(said(&elsewhere.shake_hands(json!({})).await).contains("needs a sign-in"));

    let (code, told) = auth_at(home, &["logout", &url]).await;
    assert_eq!(code, Some(0), "{told}");
    let mut again = Bridge::start_with(&[&url], &environment(home));
    assert!(said(&again.shake_hands(json!({})).await).contains("needs a sign-in"));
}

#[tokio::test]
async fn a_weir_that_wants_to_know_its_callers_is_a_server_like_any_other() {
    let authority = Authority::start(3600);
    let stub = Stub::start().await;
    let port = weir_tests::peer::free_port();
    let url = format!("http://127.0.0.1:{port}/mcp");
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{url}\"\nscopes = [\"mcp:read\"]\n", authority.issuer());
    let _gateway = Gateway::start_at(port, &(auth + &stub.config("up"))).await;
    let home = tempfile::tempdir().unwrap();
    let home = home.path().to_str().unwrap();
    let (code, told) = auth_at(home, &["login", &url, "--no-browser"]).await;
    assert_eq!(code, Some(0), "{told}");
    let mut bridge = Bridge::start_with(&[&url], &environment(home));
    bridge.shake_hands(json!({})).await;
    let answer = bridge.ask("tools/call", json!({ "name": "up__echo", "arguments": { "message": "hi" } })).await;
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
}

#[tokio::test]
async fn who_brings_a_token_is_offered_no_login() {
    let authority = Authority::start(3600);
    let stub = authority.upstream().await;
    let home = tempfile::tempdir().unwrap();
    let home = home.path().to_str().unwrap();
    let mut bridge = Bridge::start_with(&[&stub.url(), "-H", "Authorization: Bearer wrong"], &environment(home));
    let told = said(&bridge.shake_hands(json!({})).await);
    assert!(!told.contains("weir auth login") && !told.contains("wrong"), "{told}");
}

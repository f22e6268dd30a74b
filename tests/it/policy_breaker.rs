//! A policy that traps time and again is disabled: its calls have their answer at once, the operator is told once, and a
//! policy in its place is run.

use std::{fs, path::Path, process::Command};

use serde_json::json;
use weir_tests::{Client, Gateway, Stub, paths, wait::until};

use crate::reload::reload;

fn policy(upstream: &str, file: &Path, what: &str) -> String {
    format!(
        "[[upstreams.{upstream}.policies]]\ncomponent = {file:?}\ngrants = ['clock', 'store']\n\
         settings = {{ see = 'body', do = '{what}' }}\n"
    )
}

#[tokio::test]
async fn a_policy_that_traps_time_and_again_is_disabled_until_another_takes_its_place() {
    let (stub, folder) = (Stub::start().await, tempfile::tempdir().unwrap());
    let file = folder.path().join("judge.wasm");
    fs::write(&file, weir_guests::JUDGE).unwrap();
    let config = |what: &str| {
        let (strict, lenient) = (policy("strict", &file, what), policy("lenient", &file, "fill"));
        [stub.config("strict"), strict, stub.config("lenient"), lenient + "on_failure = 'skip'\n"].concat()
    };
    let gateway = Gateway::start(&config("trap")).await;
    gateway.healthy(&["strict", "lenient"]).await;
    let call = async |upstream: &str| {
        let client = Client::modern(&gateway, &format!("/mcp/{upstream}"));
        let result = client.call("echo", json!({ "message": "hello" })).await;
        (result["content"][0]["text"].as_str().unwrap_or_default().to_owned(), result["isError"] == true)
    };

    for number in 0..20 {
        let (said, failed) = call("strict").await;
        assert!(failed && said.contains("judge.wasm failed: wasm trap"), "{number}: {said}");
        assert_eq!(call("lenient").await, ("hello".into(), false), "{number}");
    }
    for _ in 0..3 {
        let (said, failed) = call("strict").await;
        assert!(failed && said.contains("judge.wasm was disabled 0 s ago: 20 questions in a row failed"), "{said}");
        assert!(said.contains("`unreachable`") && said.contains("Weir tries it again in"), "{said}");
        assert_eq!(call("lenient").await, ("hello".into(), false));
    }
    let told = || gateway.log().matches("policy is disabled: it traps time and again").count();
    until("each of the two is told", || told() >= 2).await;
    assert_eq!(told(), 2, "once for each upstream: {}", gateway.log());
    let status = Command::new(paths::weir())
        .args(["status", "--config"])
        .arg(gateway.directory().join("weir.toml"))
        .env("XDG_STATE_HOME", gateway.directory())
        .output();
    let status = String::from_utf8_lossy(&status.unwrap().stdout).into_owned();
    assert_eq!(status.matches("judge.wasm is disabled").count(), 2, "{status}");

    reload(&gateway, &config("label=x")).await;
    assert_eq!(call("strict").await, ("hello".into(), false), "it is another policy");
    assert!(!gateway.log().contains("policy works again"), "{}", gateway.log());
}

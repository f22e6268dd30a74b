//! Questions for policies that a gateway records, asked again without it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use serde_json::{Value, json};
use weir_tests::{Client, Gateway, Stub, wait::until};

/// The configuration of a stub behind a judge of these settings, whose questions are recorded.
fn config(stub: &Stub, directory: &Path, settings: &str, bodies: bool) -> String {
    let (judge, recording) = (directory.join("judge.wasm"), directory.join("questions.jsonl"));
    fs::write(&judge, weir_guests::JUDGE).unwrap();
    format!(
        "[record]\npath = {recording:?}\npolicies = [{judge:?}, \"weir:bearer\", \"weir:fallback\"]\n\
         bodies = {bodies}\n{}bearer = {{ env = \"TOKEN\" }}\n\
         [[upstreams.stub.policies]]\ncomponent = {judge:?}\ngrants = [\"clock\", \"store\"]\nsettings = {settings}\n",
        stub.config("stub")
    )
}

/// Calls `echo`, and waits until the question about that is recorded.
async fn recorded(gateway: &Gateway, directory: &Path) -> Vec<Value> {
    gateway.healthy(&["stub"]).await;
    Client::modern(gateway, "/mcp").call("stub__echo", json!({ "message": "hello" })).await;
    let file = directory.join("questions.jsonl");
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&file).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    until("the question is recorded", || lines().iter().any(|line| line["ask"] == "before")).await;
    lines()
}

/// What `weir policy` prints, and whether it ends well.
fn policy(directory: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(weir_tests::paths::weir());
    command.arg("policy").args(arguments).current_dir(directory).env("XDG_CACHE_HOME", directory);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[tokio::test]
async fn what_was_decided_can_be_decided_again_and_explained() {
    let (stub, directory) = (Stub::start().await, tempfile::tempdir().unwrap());
    let settings = "{ see = \"body\", do = \"swap=hello>goodbye\" }";
    let gateway =
        Gateway::start_with(&config(&stub, directory.path(), settings, true), &[("TOKEN", "a-token-of-a-stub")]).await;
    let lines = recorded(&gateway, directory.path()).await;
    let mode = fs::metadata(directory.path().join("questions.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let asked = |function: &str| lines.iter().find(|line| line["ask"] == function).unwrap();
    assert_eq!(asked("next")["answer"], json!({ "attempt": { "transport": "http", "era": "modern" } }));
    assert_eq!(asked("decide")["answer"]["attach"]["secret"], "token");
    let before = asked("before");
    assert_eq!(before["with"]["about"]["method"], "tools/call");
    assert!(before["answer"]["verdict"]["replace"].as_str().unwrap().contains("goodbye"));
    assert!(!json!(lines).to_string().contains("a-token-of-a-stub"), "no secret is recorded");

    // The same components decide the same, and of another one it is shown what it decides otherwise.
    for component in ["judge.wasm", "weir:fallback", "weir:bearer"] {
        let (well, text) = policy(directory.path(), &["replay", component, "questions.jsonl"]);
        assert!(well && text.contains("0 differ") && !text.contains("cannot be asked"), "{text}");
    }
    let judge = directory.path().join("judge.wasm");
    let other = ["replay", "weir:redact", "questions.jsonl", "--policy", judge.to_str().unwrap()];
    let (well, text) = policy(directory.path(), &other);
    assert!(!well && text.contains("before tools/call echo  (stub, call "), "{text}");

    let call = before["call"].as_str().unwrap();
    let (well, text) = policy(directory.path(), &["explain", call, "questions.jsonl"]);
    assert!(well && text.contains("goodbye") && text.contains("before tools/call echo"), "{text}");
    assert!(!policy(directory.path(), &["explain", "no-such-call", "questions.jsonl"]).0);
}

#[tokio::test]
async fn texts_of_calls_are_recorded_only_where_that_is_wanted() {
    let (stub, directory) = (Stub::start().await, tempfile::tempdir().unwrap());
    let settings = "{ see = \"body\", do = \"swap=ell>ors\" }";
    let config = config(&stub, directory.path(), settings, false);
    let gateway = Gateway::start_with(&config, &[("TOKEN", "a-token-of-a-stub")]).await;
    let lines = json!(recorded(&gateway, directory.path()).await).to_string();
    assert!(!lines.contains("hello") && !lines.contains("horso"), "{lines}");
    let (well, text) = policy(directory.path(), &["replay", "judge.wasm", "questions.jsonl"]);
    assert!(well && text.contains("cannot be asked again"), "{text}");
}

#[tokio::test]
async fn what_a_policy_remembers_of_a_call_is_recorded_with_its_texts_only() {
    for bodies in [false, true] {
        let (stub, directory) = (Stub::start().await, tempfile::tempdir().unwrap());
        let config = config(&stub, directory.path(), "{ see = \"facts answers\", do = \"memory=of-ada\" }", bodies);
        let gateway = Gateway::start_with(&config, &[("TOKEN", "a-token-of-a-stub")]).await;
        recorded(&gateway, directory.path()).await;
        let read = || fs::read_to_string(directory.path().join("questions.jsonl")).unwrap();
        until("the question about the answer is recorded", || read().contains("\"ask\":\"after\"")).await;
        // The settings have it, too.
        let lines: Vec<Value> = read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let memory = |line: &Value| [&line["with"]["memory"], &line["answer"]["memory"]].map(|text| text == "of-ada");
        assert_eq!(lines.iter().flat_map(memory).any(|is_there| is_there), bodies, "{lines:?}");
    }
}

#[tokio::test]
async fn recording_begins_and_ends_with_a_reload() {
    let (stub, directory) = (Stub::start().await, tempfile::tempdir().unwrap());
    let settings = "{ see = \"facts\", do = \"deny=no\" }";
    let config = config(&stub, directory.path(), settings, false);
    let (recording, silent) = (config.clone(), config[config.find("[upstreams").unwrap()..].to_owned());
    let gateway = Gateway::start_with(&silent, &[("TOKEN", "a-token-of-a-stub")]).await;
    gateway.healthy(&["stub"]).await;
    assert!(!directory.path().join("questions.jsonl").exists());
    gateway.configure(&recording);
    gateway.logs("the configuration was reloaded").await;
    let lines = recorded(&gateway, directory.path()).await;
    assert!(lines.iter().all(|line| line["without"].is_null()), "facts can be recorded whole: {lines:?}");
    assert!(policy(directory.path(), &["replay", "judge.wasm", "questions.jsonl"]).0);
}

/// A gateway with an audit log, one upstream with a judge that refuses `echo` and one without; both are called once.
async fn audited(arguments: &str, directory: &Path) -> Gateway {
    let (stub, judge, log) = (Stub::start().await, directory.join("judge.wasm"), directory.join("audit.jsonl"));
    fs::write(&judge, weir_guests::JUDGE).unwrap();
    let config = format!(
        "audit = {{ path = {log:?}, arguments = {arguments:?} }}\n{}{}\
         [[upstreams.guarded.policies]]\ncomponent = {judge:?}\ngrants = [\"clock\", \"store\"]\n\
         settings = {{ see = \"facts\", do = \"deny=no\" }}\n",
        stub.config("open"),
        stub.config("guarded"),
    );
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["open", "guarded"]).await;
    let client = Client::modern_named(&gateway, "/mcp", "some-host");
    for tool in ["open__echo", "guarded__echo"] {
        client.call(tool, json!({ "message": "hello" })).await;
    }
    let calls = || fs::read_to_string(&log).unwrap_or_default().matches("tools/call").count();
    until("the calls are recorded", || calls() == 2).await;
    gateway
}

#[tokio::test]
async fn calls_of_an_audit_log_are_decided_again() {
    let directory = tempfile::tempdir().unwrap();
    let _gateway = audited("digest", directory.path()).await;
    let replay = |settings: &str, more: &[&str]| {
        let arguments = ["replay", "judge.wasm", "audit.jsonl", "--settings", settings];
        policy(directory.path(), &[&arguments, more].concat())
    };
    let facts = r#"{ "see": "facts", "do": "deny=no" }"#;
    let (well, text) = replay(facts, &["--upstream", "guarded"]);
    assert!(well && text.contains("1 decisions are the same, 0 differ"), "{text}");
    let (well, text) = replay(facts, &[]);
    assert!(!well && text.contains("1 decisions are the same, 1 differ"), "{text}");
    assert!(text.contains("tools/call open__echo  (open, call "), "{text}");
    assert!(text.contains("recorded  goes on\n      now       deny: no\n"), "{text}");
    // It is told what the record has, and the name as the upstream has it.
    let (_, text) = replay(r#"{ "see": "facts", "do": "team" }"#, &["--upstream", "guarded", "--since", "1h"]);
    assert!(text.contains("recorded  deny: no") && text.contains("tools/call echo Some"), "{text}");
    assert!(text.contains(r#"Some("some-host/1")"#), "{text}");
    // What the record cannot answer is left out, each call with the reason.
    for (settings, why) in [
        (r#"{ "see": "body", "do": "deny=no" }"#, "its arguments are not in the record"),
        (r#"{ "see": "facts", "do": "calls=1" }"#, "it asks a service or its store"),
    ] {
        let (well, text) = replay(settings, &[]);
        assert!(well && text.contains("0 decisions are the same, 0 differ"), "{text}");
        assert_eq!(text.matches(&format!("left out  {why}")).count(), 2, "{text}");
        assert!(text.contains("2 calls are left out: "), "{text}");
    }
    for (wrong, why) in [
        (&["--settings", facts, "--upstream", "nobody"][..], "has no call that this policy decides about"),
        (&["--settings", r#"{ "see": "answers" }"#], "decides nothing about requests"),
    ] {
        let (well, text) = policy(directory.path(), &[&["replay", "judge.wasm", "audit.jsonl"][..], wrong].concat());
        assert!(!well && text.contains(why), "{text}");
    }
}

#[tokio::test]
async fn arguments_of_an_audit_log_are_decided_about_where_it_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let _gateway = audited("full", directory.path()).await;
    let replay = |what: &str| {
        let settings = format!(r#"{{ "see": "body", "do": "{what}" }}"#);
        policy(directory.path(), &["replay", "judge.wasm", "audit.jsonl", "--settings", &settings])
    };
    let (well, text) = replay("deny=no");
    assert!(!well && text.contains("1 decisions are the same, 1 differ"), "{text}");
    // Whether a call was changed is not in the record.
    let (well, text) = replay("swap=hello>goodbye");
    assert!(!well && text.contains("0 decisions are the same, 1 differ"), "{text}");
    assert!(text.contains("recorded  deny: no\n      now       replace"), "{text}");
    assert!(text.contains("left out  the policy would replace"), "{text}");
}

//! The audit log: a record for each call, refusal and sign-in, a chain that shows changes, and what happens while it
//! cannot be written.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;

use serde_json::{Value, json};
use weir_tests::wait::{until, until_some};
use weir_tests::{Browser, Client, Gateway, Issuer, Request, Stub, paths};

use crate::approval::page::{link, link_id};
use crate::approval::{OWN, rules};
use crate::client_sign_in::Scene;

const AUDIENCE: &str = "https://weir.example/mcp";

/// A gateway with an audit log in its own folder.
async fn gateway(audit: &str, rest: &str) -> Gateway {
    // The table comes last but for the upstreams.
    let gateway = Gateway::start(&format!("audit = {{ path = \"log/audit.jsonl\" {audit} }}\n{rest}")).await;
    gateway.logs("upstream is healthy").await;
    gateway
}

fn path(gateway: &Gateway) -> PathBuf {
    gateway.directory().join("log/audit.jsonl")
}

fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_inclusive('\n').filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The first record that is like this.
async fn record(gateway: &Gateway, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    until_some(&format!("there is a record of {what}"), || records(&path(gateway)).into_iter().find(&is_it)).await
}

fn audit(arguments: &[&str], log: &Path) -> Output {
    Command::new(paths::weir()).arg("audit").args(arguments).arg(log).output().unwrap()
}

#[tokio::test]
async fn a_call_and_a_refusal_are_recorded_with_who_and_why() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let auth = format!("[auth]\nissuer = {:?}\naudience = {AUDIENCE:?}\n", issuer.issuer());
    let gateway = gateway("", &(auth + &stub.config("stub"))).await;
    let loaded = record(&gateway, "the configuration", |record| record["event_type"] == "configuration_loaded").await;
    assert_eq!((&loaded["seq"], &loaded["previous_hash"]), (&json!(1), &Value::Null), "{loaded}");
    assert!(loaded["config_digest"].as_str().unwrap().starts_with("sha256:"), "{loaded}");

    let ada = issuer.token("ada", AUDIENCE);
    let client = Client::modern(&gateway, "/mcp").with_token(&ada);
    for message in ["s3cret words", "s3cret words", "other words"] {
        client.call("stub__echo", json!({ "message": message })).await;
    }
    client.ask("tools/call", json!({ "name": "nothing", "arguments": {} })).await;
    let denied = record(&gateway, "the unknown tool", |record| record["name"] == "nothing").await;
    let who = (&denied["principal_id"], &denied["issuer"], &denied["decision"], &denied["outcome"]);
    assert_eq!(who, (&json!("ada"), &json!(issuer.issuer()), &json!("denied"), &json!("refused")), "{denied}");

    let calls: Vec<Value> =
        records(&path(&gateway)).into_iter().filter(|record| record["name"] == "stub__echo").collect();
    let [first, second, third] = &calls[..] else { panic!("{calls:#?}") };
    let what = (&first["upstream"], &first["method"], &first["decision"], &first["outcome"], &first["attempts"]);
    assert_eq!(what, (&json!("stub"), &json!("tools/call"), &json!("allowed"), &json!("ok"), &json!(1)), "{first}");
    assert!(first["client_address"].as_str().unwrap().starts_with("127.0.0.1:"), "{first}");
    assert!(first["duration_us"].as_u64().is_some_and(|took| took > 0), "{first}");
    // The same arguments have the same digest, which tells nothing of them.
    let digest = |record: &Value| record["arguments_digest"].as_str().unwrap().to_owned();
    assert!(digest(first).starts_with("hmac-sha256:"), "{first}");
    assert_eq!(digest(first), digest(second));
    assert_ne!(digest(first), digest(third));

    // Refusals before a call is a call.
    let stranger = Client::modern(&gateway, "/mcp").with_token("ey.no.token");
    assert_eq!(gateway.send(stranger.request("tools/list", json!({})).1).await.status, 401);
    record(&gateway, "the refused token", |record| record["event_type"] == "token_refused").await;
    let rebound = client.request("tools/list", json!({})).1.header("host", "evil.example");
    assert_eq!(gateway.send(rebound).await.status, 403);
    let refused = record(&gateway, "the refused host", |record| record["event_type"] == "origin_refused").await;
    assert_eq!((&refused["decision"], &refused["client_address"]), (&json!("denied"), &json!("127.0.0.1")));

    let log = fs::read_to_string(path(&gateway)).unwrap();
    for secret in ["s3cret", "ey.no.token", ada.as_str()] {
        assert!(!log.contains(secret), "{log}");
    }
    let verified = audit(&["verify", "--json"], &path(&gateway));
    assert!(verified.status.success(), "{verified:?}");
    let report: Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert!(report["records"].as_u64() > Some(0) && report["faults"] == json!([]), "{report}");
}

/// A command beside the gateway appends to the same log.
#[tokio::test]
async fn keys_and_who_calls_with_them_are_recorded() {
    let stub = Stub::start().await;
    let gateway = gateway("", &format!("api_keys = true\n{}", stub.config("stub"))).await;
    let key = |arguments: &[&str]| {
        let mut command = Command::new(paths::weir());
        command.arg("key").args(arguments).arg("--config").arg(gateway.directory().join("weir.toml"));
        let output = command.env("XDG_STATE_HOME", gateway.directory()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let text = key(&["add", "bot", "--group", "robots"]);
    let added = record(&gateway, "the new key", |record| record["event_type"] == "key_added").await;
    assert_eq!((&added["key"], &added["principal_id"]), (&json!("bot"), &json!("local")), "{added}");
    let client = Client::modern(&gateway, "/mcp").with_token(&text);
    let (_, request) = client.request("tools/list", json!({}));
    let mut status = 0;
    while status != 200 {
        status = gateway.send(request.clone()).await.status;
    }
    let call = record(&gateway, "the list", |record| record["method"] == "tools/list").await;
    assert_eq!(
        (&call["key"], &call["groups"], &call["issuer"]),
        (&json!("bot"), &json!(["robots"]), &json!("weir:keys"))
    );
    key(&["revoke", "bot"]);
    record(&gateway, "the end of the key", |record| record["event_type"] == "key_revoked").await;
    assert!(!fs::read_to_string(path(&gateway)).unwrap().contains(&text));
    assert!(audit(&["verify"], &path(&gateway)).status.success());
}

#[tokio::test]
async fn arguments_are_recorded_where_the_configuration_says_so() {
    let stub = Stub::start().await;
    let gateway = gateway(", arguments = \"full\", sync = \"each\"", &stub.config("stub")).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    client.call("stub__echo", json!({ "message": "line\nbreak" })).await;
    let call = record(&gateway, "the call", |record| record["name"] == "stub__echo").await;
    assert_eq!(call["arguments"], json!({ "message": "line\nbreak" }), "{call}");
    client.call("stub__echo", json!({ "message": "x".repeat(100_000) })).await;
    let long = record(&gateway, "the long call", |record| record["bytes_received"].as_u64() > Some(100_000)).await;
    assert!(long.get("arguments").is_none() && long["arguments_digest"].is_string(), "{long}");
}

#[tokio::test]
async fn the_commands_read_a_log_and_find_what_was_changed() {
    let stub = Stub::start().await;
    let gateway = gateway(", max_size = \"2KiB\", sync = \"each\"", &stub.config("stub")).await;
    let client = Client::modern(&gateway, "/mcp");
    for number in 0..30 {
        client.call("stub__echo", json!({ "message": number.to_string() })).await;
    }
    client.ask("tools/call", json!({ "name": "last", "arguments": {} })).await;
    record(&gateway, "the last call", |record| record["name"] == "last").await;
    let log = path(&gateway);
    let text = |output: Output| String::from_utf8(output.stdout).unwrap();
    let verified = text(audit(&["verify"], &log));
    assert!(verified.contains(" records, 1 to ") && verified.contains("hash of the last: "), "{verified}");
    let last = text(audit(&["tail", "-n", "3"], &log));
    assert_eq!(last.lines().count(), 3, "{last}");
    assert!(last.lines().last().unwrap().contains("\"name\":\"last\""), "{last}");
    let events = text(audit(&["export", "--format", "ocsf", "--since", "1h", "--principal", "local"], &log));
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.iter().filter(|event| event["class_uid"] == 6003).count(), events.len());
    assert!(events.len() >= 31, "{}", events.len());
    let events = text(audit(&["export", "--format", "cef"], &log));
    assert!(events.lines().all(|line| line.starts_with("CEF:0|Weir|Weir|")), "{events}");

    // By the configuration the log is found as well.
    let config = gateway.directory().join("weir.toml");
    let found = Command::new(paths::weir()).args(["audit", "verify", "--config"]).arg(config).output().unwrap();
    assert!(found.status.success(), "{found:?}");

    // A file alone, without those before it.
    let copy = gateway.directory().join("copy.jsonl");
    fs::copy(&log, &copy).unwrap();
    let broken = audit(&["verify"], &copy);
    assert_eq!(broken.status.code(), Some(1), "{broken:?}");
    assert!(
        String::from_utf8_lossy(&broken.stderr).contains("copy.jsonl:1: the log begins with record "),
        "{broken:?}"
    );
}

/// A file that takes nothing, until it does.
fn full(gateway: &Gateway) {
    let log = path(gateway);
    fs::rename(&log, log.with_file_name("kept")).unwrap();
    symlink("/dev/full", log).unwrap();
}

fn free(gateway: &Gateway) {
    let log = path(gateway);
    fs::remove_file(&log).unwrap();
    fs::rename(log.with_file_name("kept"), log).unwrap();
}

/// A client of a gateway whose disk is full since its first call.
async fn cannot_record(gateway: &Gateway) -> Client {
    let client = Client::modern(gateway, "/mcp");
    client.call("stub__echo", json!({ "message": "before" })).await;
    record(gateway, "the first call", |record| record["name"] == "stub__echo").await;
    full(gateway);
    client.call("stub__echo", json!({ "message": "unwritten" })).await;
    gateway.logs("the audit log cannot be written").await;
    client
}

#[tokio::test]
async fn calls_are_refused_while_they_cannot_be_recorded_and_go_on_by_themselves() {
    let stub = Stub::start().await;
    let gateway = gateway("", &stub.config("stub")).await;
    let client = cannot_record(&gateway).await;
    let refused = gateway.send(client.request("tools/call", json!({ "name": "stub__echo", "arguments": {} })).1).await;
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    let why = refused.json().await["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("No space left") && why.contains("audit.on_failure"), "{why}");
    let (status, body) = gateway.readiness().await;
    assert_eq!((status, &body["state"]), (503, &json!("unrecorded")), "{body}");
    assert!(body["audit"].as_str().is_some_and(|why| why.contains("No space left")), "{body}");
    assert_eq!(gateway.send(Request::get("/healthz")).await.status, 200);

    free(&gateway);
    gateway.logs("the audit log is written again").await;
    client.call("stub__echo", json!({ "message": "after" })).await;
    until("all calls are recorded", || {
        records(&path(&gateway)).iter().filter(|record| record["name"] == "stub__echo").count() == 4
    })
    .await;
    let verified = audit(&["verify"], &path(&gateway));
    assert!(verified.status.success(), "{verified:?}");
}

#[tokio::test]
async fn calls_go_on_where_the_configuration_says_so() {
    let stub = Stub::start().await;
    let gateway = gateway(", on_failure = \"continue\"", &stub.config("stub")).await;
    let client = cannot_record(&gateway).await;
    client.call("stub__echo", json!({ "message": "goes on" })).await;
    let (status, body) = gateway.readiness().await;
    assert_eq!((status, body["audit"].is_string()), (200, true), "{body}");
}

#[tokio::test]
async fn who_signs_in_gets_tokens_and_approves_is_recorded_and_refused_while_it_cannot_be() {
    let scene = Scene::with("audit = { path = \"log/audit.jsonl\" }", &rules(OWN)).await;
    let (host, mut browser) = (scene.registered().await, Browser::of("ada"));
    let code = scene.code(&mut browser, &scene.page(&host, &[])).await;
    let (status, token) = scene.redeem(&host, &code).await;
    assert_eq!(status, 200, "{token}");
    let ada = Client::modern(&scene.gateway, "/mcp").with_token(token["access_token"].as_str().unwrap());
    let link = link(&json!({ "result": ada.call("stub__echo", json!({ "message": "hi" })).await }));
    let page = browser.open(&link).await;
    let path = page.text.split("href=\"connect/approve/").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let page = browser.open(&scene.gateway.url(&format!("/connect/approve/{path}"))).await;
    let (to, fields) = page.form(link_id(&page.url));
    let form = format!("key={}&answer=approve", fields[0].1);
    let done = browser.send(&to, &form).await;
    assert!(done.text.contains("Approved: echo of stub"), "{done:?}");
    ada.call("stub__echo", json!({ "message": "hi" })).await;
    for event in ["signed_in", "client_allowed", "token_issued", "approval_asked", "approval_given"] {
        let found = record(&scene.gateway, event, |record| record["event_type"] == event).await;
        let decision = if event == "approval_asked" { "deferred" } else { "allowed" };
        assert_eq!((&found["principal_id"], &found["decision"]), (&json!("ada"), &json!(decision)), "{found}");
    }
    let approved = record(&scene.gateway, "the call", |record| record["approved_by"] == "ada").await;
    assert_eq!((&approved["name"], &approved["decision"]), (&json!("stub__echo"), &json!("allowed")), "{approved}");

    full(&scene.gateway);
    ada.call("stub__echo", json!({ "message": "unwritten" })).await;
    scene.gateway.logs("the audit log cannot be written").await;
    let (status, refused) = scene.refresh(&host, &token).await;
    assert_eq!((status, &refused["error"]), (503, &json!("temporarily_unavailable")), "{refused}");
    let page = Browser::of("eve").open(&scene.gateway.url("/connect")).await;
    assert!(page.status == 503 && page.text.contains("has to be recorded"), "{page:?}");
    assert_eq!(browser.send(&to, &form).await.status, 503);
    // What is there is shown, and can be taken away.
    let page = browser.open(&scene.gateway.url("/connect")).await;
    let done = browser.press(&page, "connect/clients/revoke").await;
    assert!(done.status == 200 && !done.text.contains("calls http"), "{done:?}");

    free(&scene.gateway);
    scene.gateway.logs("the audit log is written again").await;
    assert_eq!(scene.refresh(&host, &token).await.0, 400, "it was revoked");
    assert_eq!(Browser::of("eve").open(&scene.gateway.url("/connect")).await.status, 200);
}

#[tokio::test]
async fn configurations_are_recorded_whether_they_come_into_force_or_not() {
    let stub = Stub::start().await;
    let gateway = gateway("", &stub.config("stub")).await;
    let file = gateway.directory().join("weir.toml");
    let first = record(&gateway, "the configuration", |record| record["event_type"] == "configuration_loaded").await;
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.clone() + "colour = \"blue\"\n").unwrap();
    gateway.signal(Signal::HUP);
    let refused = record(&gateway, "what is refused", |record| record["event_type"] == "configuration_refused").await;
    assert!(refused["error"].as_str().is_some_and(|why| why.contains("colour")), "{refused}");
    fs::write(&file, good + "limits = { calls = 3 }\n").unwrap();
    gateway.signal(Signal::HUP);
    let digest = |record: &Value| record["config_digest"].clone();
    let is_next = |record: &Value| record["event_type"] == "configuration_loaded" && digest(record) != digest(&first);
    record(&gateway, "the next configuration", is_next).await;
}

#[tokio::test]
async fn a_log_is_followed_while_it_is_written_and_when_a_file_is_complete() {
    let stub = Stub::start().await;
    let gateway = gateway(", max_size = \"64KiB\"", &stub.config("stub")).await;
    let client = Client::modern(&gateway, "/mcp");
    record(&gateway, "the configuration", |record| record["event_type"] == "configuration_loaded").await;
    let log = path(&gateway);
    let mut follower = Command::new(paths::weir());
    follower.args(["audit", "tail", "-f", "-n", "0"]).arg(&log).stdout(Stdio::piped());
    let mut follower = follower.spawn().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (lines, to) = (BufReader::new(follower.stdout.take().unwrap()).lines(), Arc::clone(&told));
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| to.lock().unwrap().push(line)));
    let follows = || told.lock().unwrap().iter().filter(|line| line.contains("stub__echo")).count();
    // Until it has begun.
    let mut calls = 0;
    while follows() == 0 {
        client.call("stub__echo", json!({ "message": "begin" })).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        calls += 1;
        assert!(calls < 1000, "it follows nothing");
    }
    let files = || fs::read_dir(log.parent().unwrap()).unwrap().flatten();
    let complete = || files().any(|file| file.file_name().to_string_lossy().starts_with("audit.jsonl.0"));
    while !complete() {
        calls += 1;
        assert!(calls < 2000, "no file is complete");
        client.call("stub__echo", json!({ "message": "on" })).await;
    }
    client.ask("tools/call", json!({ "name": "stub__last", "arguments": {} })).await;
    until("the last record is printed", || told.lock().unwrap().iter().any(|line| line.contains("stub__last"))).await;
    follower.kill().unwrap();
    follower.wait().unwrap();
    let numbers: Vec<u64> = told
        .lock()
        .unwrap()
        .iter()
        .map(|line| {
            let record: Value = serde_json::from_str(line).unwrap();
            record["seq"].as_u64().unwrap()
        })
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
}

/// A second process, as of an upgrade, goes on with the chain of the first.
#[tokio::test]
async fn a_process_that_is_killed_and_its_successor_write_one_chain() {
    let stub = Stub::start().await;
    let log = tempfile::tempdir().unwrap();
    let path = log.path().join("audit.jsonl");
    let config = format!("audit = {{ path = {path:?} }}\n{}", stub.config("stub"));
    for run in 0..3_usize {
        let gateway = Gateway::start(&config).await;
        let beside = Gateway::start(&config).await;
        for gateway in [&gateway, &beside] {
            gateway.logs("upstream is healthy").await;
            Client::modern(gateway, "/mcp").call("stub__echo", json!({ "message": "x" })).await;
        }
        let calls = || records(&path).iter().filter(|record| record["name"] == "stub__echo").count();
        until("both calls are recorded", || calls() == 2 * (run + 1)).await;
        gateway.signal(Signal::KILL);
        // What a killed process may leave.
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, b"{\"seq\":99,\"prev").unwrap();
    }
    let verified = audit(&["verify"], &path);
    assert!(verified.status.success(), "{verified:?}");
    assert!(String::from_utf8_lossy(&verified.stderr).contains("torn lines are kept"), "{verified:?}");
}

//! Gateways that share a store at a real server of Redis.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_tests::client::{answer, with_meta};
use weir_tests::gateway::NEEDS_SIGN_IN;
use weir_tests::redis::{PASSWORD, Redis, Sentinels, USER};
use weir_tests::stub::Offer;
use weir_tests::terminal::{
    ALONE, ENVIRONMENT, KEY, auth, calling_until_it_works, config, echo, ended, lines, sign_in, start, works,
};
use weir_tests::tokens::claims;
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Authority, Client, Gateway, Issuer, Request, Stub, paths};

/// What the log says when the store is away, and when it is back.
const AWAY: &str = "sign-ins wait";
const BACK: &str = "the store is back";

/// A configuration with one upstream, `u`, and its store at this URL.
fn config_at(url: &str, upstream: &Stub, auth: &str) -> String {
    config(upstream, auth).replace("path = \"logins.redb\"", &format!("url = {url:?}"))
}

async fn start_at(url: &str, upstream: &Stub, auth: &str) -> Gateway {
    Gateway::start_with(&config_at(url, upstream, auth), &ENVIRONMENT).await
}

/// The status and the body of `/readyz`.
async fn ready(gateway: &Gateway) -> (u16, Value) {
    let answer = gateway.send(Request::get("/readyz")).await;
    (answer.status, answer.json().await)
}

async fn until_status(gateway: &Gateway, wanted: u16) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while ready(gateway).await.0 != wanted {
        assert!(tokio::time::Instant::now() < end, "{:?} {}", ready(gateway).await, gateway.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_sign_in_at_one_gateway_is_good_at_the_other() {
    let mut authority = Authority::start(3600);
    let (upstream, redis) = (authority.upstream().await, Redis::with_user().await);
    let url = format!("redis://{USER}@127.0.0.1:{}", redis.port());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let config = config_at(&url, &upstream, "auth = \"oauth\"");
    let config = config.replace("[store]\n", &format!("[store]\npassword = {{ file = {file:?} }}\n"));
    let one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    for gateway in [&one, &other] {
        gateway.logs(NEEDS_SIGN_IN).await;
    }
    let said = sign_in(&one, &[]).await;
    other.healthy(&["u"]).await;
    one.healthy(&["u"]).await;
    assert!(works(&one).await && works(&other).await);
    assert_eq!(authority.asked("/reg").len(), 1);
    let (code, out) = ended(auth(&other, &["logout", "u"])).await;
    assert_eq!(code, Some(0), "{out}");
    until("the first has noticed", || lines(&one, NEEDS_SIGN_IN) == 2).await;
    let secrets = [authority.secrets(), upstream.tokens(), vec![KEY.to_owned(), PASSWORD.to_owned()]].concat();
    let disk = String::from_utf8_lossy(&redis.disk()).into_owned();
    for secret in secrets {
        for text in [&one.log(), &other.log(), &said, &out, &disk] {
            assert!(!text.contains(&secret), "{secret}");
        }
    }
}

#[tokio::test]
async fn a_gateway_that_signs_in_for_itself_leaves_its_token_to_the_other() {
    let mut authority = Authority::start(3600);
    let (upstream, redis) = (authority.upstream().await, Redis::start().await);
    for _ in 0..2 {
        let gateway = start_at(&redis.url(), &upstream, ALONE).await;
        gateway.healthy(&["u"]).await;
        assert!(works(&gateway).await);
    }
    assert_eq!(authority.grants("client_credentials"), 1);
}

#[tokio::test]
async fn fifty_calls_at_two_gateways_at_the_end_of_a_token_renew_it_once() {
    let mut authority = Authority::start(20);
    let (upstream, redis) = (authority.upstream().await, Redis::start().await);
    let one = start_at(&redis.url(), &upstream, "auth = \"oauth\"").await;
    let other = start_at(&redis.url(), &upstream, "auth = \"oauth\"").await;
    sign_in(&one, &[]).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["u"]).await;
        assert!(works(gateway).await);
    }
    let last = upstream.tokens().last().unwrap().clone();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    until("the token has ended", || claims(&last)["exp"].as_u64().unwrap() <= now()).await;
    let renewed = authority.grants("refresh_token");
    let mut calls = JoinSet::new();
    for number in 0..50 {
        let address = [&one, &other][number % 2].address();
        calls.spawn(async move { Client::modern_at(address, "/mcp/u").call("echo", json!({ "message": "m" })).await });
    }
    assert_eq!(calls.join_all().await.len(), 50);
    // What keeps the lists may have renewed it shortly before; then nobody had to.
    let after = authority.grants("refresh_token");
    assert!(after > 0 && after - renewed <= 1, "{renewed} {after}");
}

fn key(gateway: &Gateway, arguments: &[&str]) -> String {
    let mut command = Command::new(paths::weir());
    command.arg("key").args(arguments).arg("--config").arg(gateway.directory().join("weir.toml"));
    let output = command.env("XDG_STATE_HOME", gateway.directory()).envs(ENVIRONMENT).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn a_key_that_one_gateway_is_given_counts_at_the_other() {
    let (stub, redis) = (Stub::start().await, Redis::start().await);
    let config = format!("api_keys = true\n{}", config_at(&redis.url(), &stub, ""));
    let one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    let added = key(&one, &["add", "deploy"]);
    let asked = async |wanted: u16| {
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let request = Client::modern(&other, "/mcp").with_token(&added).request("tools/list", json!({})).1;
            if other.send(request).await.status == wanted {
                return;
            }
            assert!(tokio::time::Instant::now() < end, "no {wanted}: {}", other.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    asked(200).await;
    key(&one, &["revoke", "deploy"]);
    asked(401).await;
}

#[tokio::test]
async fn the_calls_of_a_day_are_counted_over_both_gateways() {
    let (issuer, stub, redis) = (Issuer::start().await, Stub::start().await, Redis::start().await);
    let audience = "https://weir.example/mcp";
    let auth = format!("[auth]\nissuer = {:?}\naudience = {audience:?}\n", issuer.issuer());
    let config = format!("limits.principal.calls_per_day = 3\n{auth}{}", config_at(&redis.url(), &stub, ""));
    let token = issuer.token("ada", audience);
    let one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    let call = async |gateway: &Gateway| {
        let client = Client::modern(gateway, "/mcp").with_token(&token);
        let request = client.request("tools/call", json!({ "name": "u__echo", "arguments": { "message": "x" } })).1;
        gateway.send(request).await.status
    };
    for gateway in [&one, &other] {
        gateway.logs("upstream is healthy").await;
    }
    for _ in 0..3 {
        assert_eq!(call(&one).await, 200);
    }
    assert_eq!(call(&one).await, 429);
    // The other has not called yet, and hears of it. It is asked for what it counts once it does.
    let counted = || redis.ask(&["keys", "weir:{calls-per-day}:e:*"]).lines().count() == 1;
    until("the first has written what it counts", counted).await;
    let written = || redis.ask(&["get", "weir:{calls-per-day}:v"]);
    let before = written();
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut passed = 0;
    while call(&other).await != 429 {
        passed += 1;
        assert!(passed <= 3 && tokio::time::Instant::now() < end, "{passed}: {}", other.log());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Of the calls that the other let pass before it had heard, all are counted.
    if passed > 0 {
        until("they are written", || written() != before).await;
    }
    assert_eq!(call(&one).await, 429);
}

#[tokio::test]
async fn limits_hold_for_both_gateways_together_within_some_seconds() {
    const RATE: usize = 20;
    let (issuer, stub, redis) = (Issuer::start().await, Stub::start().await, Redis::start().await);
    let audience = "https://weir.example/mcp";
    let auth = format!("[auth]\nissuer = {:?}\naudience = {audience:?}\n", issuer.issuer());
    let limits = format!("limits.principal = {{ calls_per_minute = {RATE}, calls = 1 }}\n");
    let config = format!("{limits}{auth}{}", config_at(&redis.url(), &stub, ""));
    let (ada, eve) = (issuer.token("ada", audience), issuer.token("eve", audience));
    let one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    let call = async |gateway: &Gateway, token: &str, tool: &str| {
        let client = Client::modern(gateway, "/mcp").with_token(token);
        let (_, request) = client.request("tools/call", json!({ "name": tool, "arguments": { "message": "x" } }));
        let response = gateway.send(request).await;
        (response.status, response.json().await.to_string())
    };
    for gateway in [&one, &other] {
        gateway.logs("upstream is healthy").await;
    }
    // Both tell each other every two seconds, and one such moment may just be over.
    let until_it_is = async |status: u16, token: &str| {
        let (end, mut tries) = (tokio::time::Instant::now() + PATIENCE, 0);
        loop {
            let (got, text) = call(&other, token, "u__echo").await;
            if got == status {
                return (tries, text);
            }
            tries += 1;
            assert!(tokio::time::Instant::now() < end, "{tries}: {text}: {}", other.log());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    for _ in 0..RATE {
        assert_eq!(call(&one, &ada, "u__echo").await.0, 200);
    }
    let (passed, text) = until_it_is(429, &ada).await;
    assert!(passed < RATE / 2 && text.contains("`limits.principal.calls_per_minute`"), "{passed}: {text}");

    let held = call(&one, &eve, "u__hold");
    let refused = async {
        until("it is held", || stub.asked("tools/call").iter().any(|seen| seen.message()["params"]["name"] == "hold"))
            .await;
        let (_, text) = until_it_is(429, &eve).await;
        assert!(text.contains("`limits.principal.calls`"), "{text}");
        stub.release(1);
    };
    assert_eq!(tokio::join!(held, refused).0.0, 200);
    until_it_is(200, &eve).await;
}

/// What goes on while the store is away, and what waits.
#[tokio::test]
async fn the_day_of_a_single_key_is_counted_over_both_gateways() {
    const DAY: usize = 60;
    // The other gateway hears of calls after 4 seconds at most, and would need more than 15 to get there by itself.
    let (between, slack) = (Duration::from_millis(250), Duration::from_secs(4));
    let (stub, redis) = (Stub::start().await, Redis::start().await);
    let limits = format!("api_keys = true\nlimits.keys.ci.calls_per_day = {DAY}\n");
    let config = format!("{limits}{}", config_at(&redis.url(), &stub, ""));
    let one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    let [ci, ops] = ["ci", "ops"].map(|name| key(&one, &["add", name]));
    let call = async |gateway: &Gateway, key: &str| {
        let client = Client::modern(gateway, "/mcp").with_token(key);
        let request = client.request("tools/call", json!({ "name": "u__echo", "arguments": { "message": "x" } })).1;
        let answer = gateway.send(request).await;
        (answer.status, answer.json().await["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    for gateway in [&one, &other] {
        gateway.logs("upstream is healthy").await;
        let end = tokio::time::Instant::now() + PATIENCE;
        while call(gateway, &ops).await.0 != 200 {
            assert!(tokio::time::Instant::now() < end, "{}", gateway.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for number in 0..DAY {
        assert_eq!(call(&one, &ci).await.0, 200, "{number}");
    }
    let is_over = |(status, why): (u16, String)| {
        assert!(status == 200 || (status == 429 && why.contains("`limits.keys.ci.calls_per_day`")), "{status} {why}");
        status == 429
    };
    assert!(is_over(call(&one, &ci).await));
    let (spent, mut passed) = (tokio::time::Instant::now(), 0);
    while !is_over(call(&other, &ci).await) {
        passed += 1;
        tokio::time::sleep(between).await;
    }
    // The machine may be slow, but not that slow.
    assert!(passed < DAY / 2 && spent.elapsed() < 3 * slack, "{passed} after {:?}: {}", spent.elapsed(), other.log());

    // Who comes later knows it from the beginning. The other key has no such limit.
    drop(one);
    let later = Gateway::start_with(&config, &ENVIRONMENT).await;
    later.logs("upstream is healthy").await;
    assert!(is_over(call(&later, &ci).await));
    assert_eq!((call(&later, &ops).await.0, call(&other, &ops).await.0), (200, 200));
}

async fn goes_on_without_the_store(gateway: &Gateway, browser_waits: bool) {
    gateway.logs(AWAY).await;
    for _ in 0..20 {
        assert!(works(gateway).await, "{}", gateway.log());
    }
    let (status, body) = ready(gateway).await;
    assert_eq!((status, body["state"].as_str()), (200, Some("ready")), "{body}");
    assert!(body["store"].as_str().is_some_and(|why| why.contains("is away")), "{body}");
    let mut status = Command::new(paths::weir());
    status.args(["status", "--config"]).arg(gateway.directory().join("weir.toml"));
    let output = status.env("XDG_STATE_HOME", gateway.directory()).envs(ENVIRONMENT).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("is away"), "{said}");
    if browser_waits {
        let page = gateway.send(Request::get("/connect")).await;
        assert_eq!((page.status, page.header("retry-after")), (503, Some("5")));
    }
}

#[tokio::test]
async fn calls_go_on_while_the_store_stands_still_or_is_dead_and_sign_ins_wait() {
    let authority = Authority::start(3600);
    let (upstream, mut redis) = (authority.upstream().await, Redis::start().await);
    let gateway = start_at(&redis.url(), &upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);

    redis.freeze();
    goes_on_without_the_store(&gateway, true).await;
    redis.thaw();
    gateway.logs(BACK).await;
    assert_eq!((lines(&gateway, AWAY), lines(&gateway, BACK)), (1, 1), "{}", gateway.log());

    redis.kill();
    until("it is noticed again", || lines(&gateway, AWAY) == 2).await;
    goes_on_without_the_store(&gateway, true).await;
    let (code, said) = ended(auth(&gateway, &["login", "u", "--no-browser"])).await;
    assert!(code == Some(1) && said.contains("is away"), "{code:?} {said}");
    redis.restart().await;
    until("it is back", || lines(&gateway, BACK) == 2).await;
    assert!(ready(&gateway).await.1["store"].is_null());
    // Nothing was lost, and all is possible again.
    assert!(works(&gateway).await);
    let (code, said) = ended(auth(&gateway, &["status", "u"])).await;
    assert!(code == Some(0) && said.contains("signed in"), "{said}");
    sign_in(&gateway, &[]).await;
    assert!(works(&gateway).await);
    assert_eq!(lines(&gateway, AWAY), 2, "{}", gateway.log());
}

#[tokio::test]
async fn a_gateway_that_starts_without_its_store_is_ready_once_it_answers() {
    let authority = Authority::start(3600);
    let (upstream, mut redis) = (authority.upstream().await, Redis::start().await);
    let first = start_at(&redis.url(), &upstream, "auth = \"oauth\"").await;
    sign_in(&first, &[]).await;
    drop(first);
    redis.kill();
    let gateway = start_at(&redis.url(), &upstream, "auth = \"oauth\"").await;
    gateway.logs(AWAY).await;
    until_status(&gateway, 503).await;
    let refused = echo(&gateway).await.to_string();
    assert!(refused.contains("is away") && refused.contains("try again"), "{refused}");
    redis.restart().await;
    until_status(&gateway, 200).await;
    gateway.healthy(&["u"]).await;
    assert!(works(&gateway).await);
    gateway.logs(BACK).await;
    assert_eq!((lines(&gateway, AWAY), lines(&gateway, BACK)), (1, 1), "{}", gateway.log());
}

#[tokio::test]
async fn a_failover_ends_no_session_and_loses_no_login() {
    let authority = Authority::start(3600);
    let (upstream, mut sentinels) = (authority.upstream().await, Sentinels::start().await);
    let gateway = start_at(&sentinels.url(), &upstream, "auth = \"oauth\"").await;
    sign_in(&gateway, &[]).await;
    gateway.healthy(&["u"]).await;
    let client = Client::legacy(&gateway, "/mcp/u").await;
    client.call("echo", json!({ "message": "m" })).await;
    let replica = sentinels.servers[1].port();
    sentinels.servers[0].kill();
    until("the replica is the master", || weir_tests::redis::ask(replica, &["role"]).starts_with("master")).await;
    client.call("echo", json!({ "message": "m" })).await;
    calling_until_it_works(&gateway, PATIENCE).await;
    until("the gateway has found it", || lines(&gateway, AWAY) == lines(&gateway, BACK)).await;
    let (code, said) = ended(auth(&gateway, &["refresh", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    client.call("echo", json!({ "message": "m" })).await;
}

#[tokio::test]
async fn a_key_of_one_machine_and_a_password_in_a_url_are_refused() {
    let (stub, redis) = (Stub::start().await, Redis::start().await);
    let folder = tempfile::tempdir().unwrap();
    let check = |config: &str| {
        let file = folder.path().join("weir.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(paths::weir());
        command.arg("check").arg("--config").arg(&file).env("XDG_STATE_HOME", folder.path());
        let output = command.env_remove("WEIR_STORE_KEY").envs(ENVIRONMENT).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let good = config_at(&redis.url(), &stub, "");
    let (code, said) = check(&good);
    assert_eq!(code, Some(0), "{said}");
    let keyless = good.replace("key = { env = \"WEIR_TESTS_KEY\" }\n", "");
    let (code, said) = check(&keyless);
    assert!(code == Some(64) && said.contains("WEIR_STORE_KEY"), "{said}");
    let told = check(&good.replace("redis://", "redis://weir:hunter2@"));
    assert!(told.0 == Some(64) && told.1.contains("password") && !told.1.contains("hunter2"), "{told:?}");
    // A store that was made with another key is not this one.
    let one = Gateway::start_with(&format!("api_keys = true\n{good}"), &ENVIRONMENT).await;
    key(&one, &["add", "deploy"]);
    let other = [("WEIR_TESTS_KEY", "c2VjcmV0IGtleSBvZiB0aGUgb3RoZXIsIDMyIGJ5dGU=")];
    let mut command = Command::new(paths::weir());
    let file = folder.path().join("weir.toml");
    std::fs::write(&file, &good).unwrap();
    let output = command.arg("check").arg("--config").arg(&file).envs(other).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.code() == Some(64) && said.contains("no key opens the store"), "{said}");
}

/// What clients of the modern era carry from one request to the next, as the page has it.
#[tokio::test]
async fn a_modern_client_takes_tasks_and_approvals_to_any_gateway_and_a_cursor_to_none_that_stands_alone() {
    const EXTENSION: &str = "io.modelcontextprotocol/tasks";
    let offer = Offer { capabilities: json!({ "extensions": { EXTENSION: {} } }), legacy: false, ..Offer::default() };
    let tools = ["echo", "task"].map(str::to_owned).to_vec();
    let (stub, redis) = (Stub::offering(Offer { tools, ..offer }).await, Redis::start().await);
    let rules = "[[access.rules]]\nname = \"rest\"\n\n[[access.rules]]\nname = \"asks\"\ntools = [\"echo\"]\n\
                 approve = { by = \"caller\" }\n\n";
    let config = format!("limits.page_size = 1\n{rules}{}", config_at(&redis.url(), &stub, ""));
    let one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    let ask = async |gateway: &Gateway, method: &str, params: Value| {
        let able = json!({ "elicitation": { "form": {} }, "extensions": { EXTENSION: {} } });
        let client = Client::modern(gateway, "/mcp");
        let (id, request) = client.request_with(method, with_meta(params.clone(), &able));
        answer(client.send(client.dressed(request, method, &params)).await, id).await
    };
    for gateway in [&one, &other] {
        gateway.healthy(&["u"]).await;
    }
    let created = ask(&one, "tools/call", json!({ "name": "u__task", "arguments": {} })).await;
    let task = json!({ "taskId": created["result"]["taskId"] });
    let found = ask(&other, "tasks/get", task.clone()).await;
    assert_eq!(found["result"]["taskId"], task["taskId"], "{created} {found}");

    let call = json!({ "name": "u__echo", "arguments": { "message": "m" } });
    let asked = ask(&one, "tools/call", call.clone()).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let mut approved = call;
    approved["requestState"] = asked["result"]["requestState"].clone();
    approved["inputResponses"] = json!({ "approval": { "action": "accept", "content": {} } });
    let done = ask(&other, "tools/call", approved).await;
    assert_eq!(done["result"]["content"][0]["text"], "m", "{done}");

    let first = ask(&one, "tools/list", json!({})).await;
    let cursor = json!({ "cursor": first["result"]["nextCursor"] });
    assert!(ask(&one, "tools/list", cursor.clone()).await["result"]["tools"].is_array());
    assert_eq!(ask(&other, "tools/list", cursor).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_call_asks_the_store_nothing() {
    let authority = Authority::start(3600);
    let (upstream, redis) = (authority.upstream().await, Redis::start().await);
    let gateway = start_at(&redis.url(), &upstream, ALONE).await;
    gateway.healthy(&["u"]).await;
    let legacy = Client::legacy(&gateway, "/mcp/u").await;
    assert!(works(&gateway).await);
    legacy.call("echo", json!({ "message": "m" })).await;
    // Whoever looks whether something has changed reads one version twice a second, and all of it where it has. After five
    // looks at nothing new it is quiet.
    let (mut scripts, mut looks) = (redis.calls("evalsha"), redis.calls("get"));
    until("nothing changes any more", || {
        if redis.calls("evalsha") != scripts {
            (scripts, looks) = (redis.calls("evalsha"), redis.calls("get"));
        }
        redis.calls("get") >= looks + 5
    })
    .await;
    let both = async || {
        assert!(works(&gateway).await);
        legacy.call("echo", json!({ "message": "m" })).await;
    };
    // The first call after news of its login reads it.
    both().await;
    let before = redis.calls("evalsha");
    for _ in 0..50 {
        both().await;
    }
    assert!(before > 0);
    assert_eq!(redis.calls("evalsha"), before);
}

/// `weir store`, about the configuration in this file.
fn store(file: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(paths::weir());
    command.arg("store").args(arguments).arg("--config").arg(file).current_dir(file.parent().unwrap());
    let output = command.env("XDG_STATE_HOME", file.parent().unwrap()).envs(ENVIRONMENT).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[tokio::test]
async fn a_store_is_copied_either_way_and_what_is_newer_stays() {
    let authority = Authority::start(3600);
    let (upstream, mut redis) = (authority.upstream().await, Redis::start().await);
    let gateway = start(&upstream, "auth = \"oauth\"").await;
    let file = gateway.directory().join("weir.toml");
    sign_in(&gateway, &[]).await;
    key(&gateway, &["add", "deploy"]);
    key(&gateway, &["add", "other"]);
    let url = redis.url();
    let (code, said) = store(&file, &["migrate", "--to", &url]);
    assert!(code == Some(0) && said.contains("login  1") && said.contains("api-key  2"), "{said}");
    let (code, said) = store(&file, &["migrate", "--to", &url]);
    assert!(code == Some(0) && said.starts_with("0 entries were copied"), "{said}");

    // A gateway at the server has all of it, and changes some.
    let shared = config_at(&url, &upstream, "auth = \"oauth\"");
    let next = Gateway::start_with(&shared, &ENVIRONMENT).await;
    next.healthy(&["u"]).await;
    assert!(works(&next).await);
    let (code, said) = ended(auth(&next, &["refresh", "u"])).await;
    assert_eq!(code, Some(0), "{said}");
    key(&next, &["revoke", "deploy"]);
    // What has changed here since comes along, and what is newer there stays.
    key(&gateway, &["revoke", "other"]);
    key(&gateway, &["add", "late"]);
    sign_in(&gateway, &[]).await;
    let (code, said) = store(&file, &["migrate", "--to", &url]);
    assert!(
        code == Some(0) && said.contains("newer there, and kept: 1") && said.contains("removed there: 1"),
        "{said}"
    );
    assert!(key(&next, &["list"]).contains("late") && !key(&next, &["list"]).contains("other"));
    assert!(works(&next).await);

    // And back again, into a file that is not there.
    let (file_of_next, back) = (next.directory().join("weir.toml"), next.directory().join("back.redb"));
    let (code, said) = store(&file_of_next, &["migrate", "--to", back.to_str().unwrap()]);
    assert!(code == Some(0) && said.contains("login  1") && said.contains("api-key  1"), "{said}");
    let config = config(&upstream, "auth = \"oauth\"").replace("logins.redb", back.to_str().unwrap());
    let last = Gateway::start_with(&config, &ENVIRONMENT).await;
    last.healthy(&["u"]).await;
    assert!(works(&last).await);

    let (code, said) = store(&file_of_next, &["check"]);
    assert!(code == Some(0) && said.contains(&url) && said.contains("entries"), "{said}");
    redis.kill();
    for arguments in [&["check"][..], &["migrate", "--to", back.to_str().unwrap()]] {
        let (code, said) = store(&file_of_next, arguments);
        assert!(code == Some(69) && said.contains("is away"), "{code:?} {said}");
    }
}

#[tokio::test]
async fn an_upgrade_leaves_the_sessions_of_others() {
    let (stub, redis) = (Stub::start().await, Redis::start().await);
    let config = config_at(&redis.url(), &stub, "");
    let old = Gateway::start_with(&config, &ENVIRONMENT).await;
    old.healthy(&["u"]).await;
    let client = Client::legacy(&old, "/mcp/u").await;
    client.call("echo", json!({ "message": "m" })).await;
    // What another gateway has left for its own successor stays.
    old.signal(Signal::QUIT);
    let left = || redis.ask(&["keys", "weir:{handed-over}:e:*"]).lines().filter(|line| !line.is_empty()).count();
    until("its sessions are left", || left() > 0).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    other.healthy(&["u"]).await;
    assert!(left() > 0, "{}", other.log());
}

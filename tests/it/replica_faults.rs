//! Gateways at one store where something goes wrong between them, with the store or with their addresses.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep},
};
use weir_tests::client::answer;
use weir_tests::cutter::{Cutter, Fault};
use weir_tests::peer::free_port;
use weir_tests::redis::Redis;
use weir_tests::stub::Offer;
use weir_tests::terminal::ENVIRONMENT;
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Client, Gateway, Issuer, Request, Stub, paths};

use crate::replicas::{LOST, call, config, echo, echoes, event_id, listen, lose_sessions, pair, say, stub};

/// A wire to the store that can be broken.
async fn wire(redis: &Redis) -> Cutter {
    Cutter::start(([127, 0, 0, 1], redis.port()).into()).await
}

fn keys(redis: &Redis, namespace: &str) -> usize {
    let said = redis.ask(&["keys", &format!("weir:{{{namespace}}}:e:*")]);
    said.lines().filter(|line| !line.is_empty()).count()
}

/// Calls until the call comes back.
async fn echoes_soon(gateway: &Gateway, client: &Client) {
    let end = Instant::now() + PATIENCE;
    loop {
        let (status, why) = echo(gateway, client).await;
        if status == 200 {
            return;
        }
        assert!(status == 503 && Instant::now() < end, "{status} {why} {}", gateway.log());
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn gateways_that_start_at_once_sign_with_one_key() {
    let (issuer, stub, redis) = (Issuer::start().await, Stub::start().await, Redis::start().await);
    let wire = wire(&redis).await;
    wire.fail(Fault::Delay(Duration::from_millis(100)));
    let start = async || {
        let port = free_port();
        let config = format!(
            "public_url = \"http://127.0.0.1:{port}\"\n[auth]\nissuer = {:?}\naudience = \"api://weir\"\n\
             [authorization_server]\n[store]\nurl = \"redis://{}\"\nkey = {{ env = \"WEIR_TESTS_KEY\" }}\n{}",
            issuer.issuer(),
            wire.address(),
            stub.config("stub")
        );
        Gateway::start_at_with(port, &config, &ENVIRONMENT).await
    };
    let (one, other) = tokio::join!(start(), start());
    let published = async |gateway: &Gateway| gateway.send(Request::get("/oauth/jwks")).await.json().await;
    let (first, second): (Value, Value) = tokio::join!(published(&one), published(&other));
    assert_eq!(first["keys"].as_array().map(Vec::len), Some(1), "{first}");
    assert_eq!(first, second);
    assert_eq!(keys(&redis, "signing-key"), 1);
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_written_once_and_is_its_own() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let wire = wire(&redis).await;
    let config = config(&redis, &stub.config("stub"));
    let through_wire = config.replace(&redis.url(), &format!("redis://{}", wire.address()));
    let mut one = Gateway::start_with(&through_wire, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["stub"]).await;
    }
    let client = Client::legacy(&one, "/mcp/stub").await;
    echoes(&one, &client).await;
    let entry = redis.ask(&["keys", "weir:{sessions}:e:*"]);
    let version = || redis.ask(&["hget", entry.trim(), "v"]);
    let written = async |before: &str| until("the session is written", || version() != before).await;
    let before = version();
    wire.lose_answers();
    client.result("logging/setLevel", json!({ "level": "warning" })).await;
    written(&before).await;
    let lost = version();
    one.logs("sign-ins wait").await;
    wire.fail(Fault::None);
    one.logs("the store is back").await;
    // What is written next builds on the write that nobody confirmed, and no other gateway is thought to have made that.
    client.result("logging/setLevel", json!({ "level": "error" })).await;
    written(&lost).await;
    echoes(&one, &client).await;
    one.signal(Signal::KILL);
    one.end().await;
    lose_sessions(&stub).await;
    echoes_soon(&other, &client).await;
    let levels: Vec<_> =
        stub.asked("logging/setLevel").iter().map(|asked| asked.message()["params"]["level"].clone()).collect();
    assert_eq!(levels, ["warning", "error", "error"], "{}", other.log());
}

#[tokio::test]
async fn readiness_says_that_the_store_takes_no_writes() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let gateway = Gateway::start_with(&config(&redis, &stub.config("stub")), &ENVIRONMENT).await;
    gateway.healthy(&["stub"]).await;
    let says = async |wanted: Option<&str>| {
        let end = Instant::now() + PATIENCE;
        loop {
            let (status, body) = gateway.readiness().await;
            assert_eq!(status, 200, "{body}");
            let is_so = match wanted {
                Some(wanted) => body["store"].as_str().is_some_and(|store| store.contains(wanted)),
                None => body["store"].is_null(),
            };
            if is_so {
                return;
            }
            assert!(Instant::now() < end, "not {wanted:?}: {body} {}", gateway.log());
            sleep(Duration::from_millis(50)).await;
        }
    };
    says(None).await;
    redis.ask(&["config", "set", "maxmemory", "1"]);
    says(Some("its memory is full")).await;
    redis.ask(&["config", "set", "maxmemory", "0"]);
    says(None).await;
    redis.ask(&["replicaof", "127.0.0.1", "1"]);
    says(Some("it is a replica")).await;
    redis.ask(&["replicaof", "no", "one"]);
    says(None).await;
    until("the log says so each time", || gateway.log().matches("the store is back").count() == 2).await;
}

#[tokio::test]
async fn a_gateway_whose_address_leads_to_another_says_so() {
    const SAID: &str = "leads to another gateway";
    let (stub, redis) = (stub().await, Redis::start().await);
    let config = config(&redis, &stub.config("stub"));
    let shared = format!("127.0.0.1:{}", free_port());
    let one = config.replace("127.0.0.1:0", &shared);
    let other = config.replace("listen = \"127.0.0.1:0\"", &format!("listen = \"127.0.0.1:0\"\naddress = {shared:?}"));
    let one = Gateway::start_with(&one, &ENVIRONMENT).await;
    let other = Gateway::start_with(&other, &ENVIRONMENT).await;
    other.logs(SAID).await;
    assert!(!one.log().contains(SAID), "{}", one.log());
}

#[tokio::test]
async fn a_connection_between_gateways_that_breaks_at_once_is_opened_again() {
    let (stub, redis, port) = (stub().await, Redis::start().await, free_port());
    let wire = Cutter::start(([127, 0, 0, 1], port).into()).await;
    let config = config(&redis, &stub.config("stub"));
    let owner = config.replace("127.0.0.1:0\"", &format!("127.0.0.1:{port}\"\naddress = \"{}\"", wire.address()));
    let owner = Gateway::start_with(&owner, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    let client = Client::legacy(&owner, "/mcp/stub").await;
    // As when the process ends: its port is open a moment longer than the connections that nobody has accepted.
    wire.fail_once(Fault::Truncate);
    let (status, why) = echo(&other, &client).await;
    assert_eq!(status, 200, "{why} {}", other.log());
}

#[tokio::test]
async fn what_only_reads_is_asked_again_when_its_gateway_dies() {
    let lists = json!({ "resources/list": [{ "uri": "stub://all", "name": "all" }] });
    let offer = Offer { capabilities: json!({ "resources": {} }), lists, ..Offer::default() };
    let (stub, redis) = (Stub::offering(offer).await, Redis::start().await);
    let before = Cutter::start(stub.address()).await;
    let upstream = format!("[upstreams.stub]\nurl = {:?}\n", before.url("/mcp"));
    let [mut one, other] = pair(&redis, &upstream).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    echoes(&one, &client).await;
    // Requests arrive, and are not answered.
    before.fail(Fault::Drop);
    let (id, request) = client.request("resources/read", json!({ "uri": "stub://all" }));
    let address = other.address();
    let reading = tokio::spawn(async move { request.send(address).await });
    until("the upstream was asked", || !stub.asked("resources/read").is_empty()).await;
    before.fail(Fault::None);
    before.fail(Fault::Drop);
    one.signal(Signal::KILL);
    one.end().await;
    before.fail(Fault::None);
    let response = reading.await.unwrap();
    let status = response.status;
    assert_eq!(status, 200, "{} {}", response.json().await, other.log());
    assert!(answer(response, id).await["result"]["contents"].is_array(), "{}", other.log());
}

#[tokio::test]
async fn a_session_that_ended_while_its_gateway_stood_still_stays_ended() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    one.signal(Signal::STOP);
    echoes_soon(&other, &client).await;
    assert_eq!(other.send(client.closing()).await.status, 200);
    one.signal(Signal::CONT);
    let end = Instant::now() + PATIENCE;
    while echo(&one, &client).await.0 != 404 {
        assert!(Instant::now() < end, "{}", one.log());
        sleep(Duration::from_millis(50)).await;
    }
    // It would be written time and again.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(keys(&redis, "sessions"), 0);
    assert_eq!((echo(&one, &client).await.0, echo(&other, &client).await.0), (404, 404));
}

#[tokio::test]
async fn long_messages_pass_between_gateways() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    for length in [20_000, 60_000, 200_000, 1 << 20] {
        let long = "x".repeat(length);
        let (id, request) = client.request("tools/call", json!({ "name": "echo", "arguments": { "message": long } }));
        let answered = answer(other.send(request).await, id).await;
        assert!(answered["result"]["content"][0]["text"] == long.as_str(), "the answer is whole");
    }
}

#[tokio::test]
async fn a_long_answer_has_no_copy() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [mut one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    let long = "x".repeat(1 << 20);
    let params = json!({ "name": "steps", "arguments": { "message": long }, "_meta": { "progressToken": "t" } });
    let (id, request) = client.request("tools/call", params);
    let mut events = one.send(request).await.events();
    event_id(&mut events).await;
    let last = event_id(&mut events).await;
    drop(events);
    stub.release(3);
    until("it has its answer", || stub.held() == 0).await;
    let resumed = listen(&other, &client, Some(&last)).await.events().messages().await;
    assert!(resumed.last().unwrap()["result"]["content"][0]["text"] == long.as_str(), "its own gateway has it");
    until("the store has a copy of the rest", || keys(&redis, "session-events") >= 3).await;
    one.signal(Signal::KILL);
    one.end().await;
    let told = listen(&other, &client, Some(&last)).await.events().messages().await;
    let told = told.last().unwrap();
    assert!(told["id"] == json!(id) && told.to_string().contains(LOST), "{told}");
}

#[tokio::test]
async fn a_full_gateway_takes_no_session_over_and_does_not_end_it() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let config = format!("limits.sessions = 1\n{}", config(&redis, &stub.config("stub")));
    let mut one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["stub"]).await;
    }
    let (client, resident) = (Client::legacy(&one, "/mcp/stub").await, Client::legacy(&other, "/mcp/stub").await);
    one.signal(Signal::KILL);
    one.end().await;
    let refused = other.send(call(&client, "echo").1).await;
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true));
    echoes(&other, &resident).await;
    assert_eq!(resident.close().await, 200);
    echoes_soon(&other, &client).await;
}

#[tokio::test]
async fn no_session_is_unknown_while_its_gateway_leaves_it() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let wire = wire(&redis).await;
    let config = config(&redis, &stub.config("stub"));
    let through_wire = config.replace(&redis.url(), &format!("redis://{}", wire.address()));
    let mut one = Gateway::start_with(&through_wire, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["stub"]).await;
    }
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(Client::legacy(&one, "/mcp/stub").await);
    }
    // Sessions are left one after the other, so requests come in between.
    wire.fail(Fault::Delay(Duration::from_millis(50)));
    one.signal(Signal::TERM);
    one.logs("stopping").await;
    let mut calls = JoinSet::new();
    for (id, request) in clients.iter().map(|client| call(client, "echo")) {
        let address = other.address();
        calls.spawn(async move {
            let response = request.send(address).await;
            match response.status {
                200 => answer(response, id).await["result"].to_string(),
                status => format!("{status} {:?}", response.header("retry-after")),
            }
        });
    }
    let answers = calls.join_all().await;
    let is_well = |answer: &&String| answer.contains("the end") || answer.starts_with("503 Some");
    let unwell: Vec<_> = answers.iter().filter(|answer| !is_well(answer)).collect();
    assert!(unwell.is_empty(), "{} of {}: {:?}", unwell.len(), answers.len(), unwell.first());
    let put_off = answers.iter().filter(|answer| answer.starts_with("503")).count();
    assert!(put_off < answers.len() / 2, "{put_off} of {} have to come again", answers.len());
    for client in &clients {
        echoes_soon(&other, client).await;
    }
    assert!(one.end().await.success());
}

#[tokio::test]
async fn what_still_comes_to_a_gateway_that_ends_is_answered_by_one_that_stays() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [mut one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    let mut late = Vec::new();
    for _ in 0..2 {
        late.push(TcpStream::connect(one.address()).await.unwrap());
    }
    // The gateway has the others by the time that it has this one.
    echoes(&one, &client).await;
    one.signal(Signal::TERM);
    one.logs("stopping").await;
    for stream in late {
        let (id, request) = call(&client, "echo");
        let response = request.send_over(stream).await;
        assert_eq!(response.status, 200, "{} {}", one.log(), other.log());
        assert_eq!(answer(response, id).await["result"]["content"][0]["text"], "the end");
    }
    other.logs("goes on here").await;
    assert!(one.end().await.success());
}

#[tokio::test]
async fn a_gateway_that_is_cut_off_from_the_store_alone_keeps_its_sessions() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let wire = wire(&redis).await;
    let config = config(&redis, &stub.config("stub"));
    let through_wire = config.replace(&redis.url(), &format!("redis://{}", wire.address()));
    let one = Gateway::start_with(&through_wire, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["stub"]).await;
    }
    let client = Client::legacy(&one, "/mcp/stub").await;
    let mut own = listen(&other, &client, None).await.events();
    event_id(&mut own).await;
    until("somebody listens at the upstream", || stub.listeners_called("weir-tests") > 0).await;
    let (id, request) = call(&client, "hold");
    let address = other.address();
    let held = tokio::spawn(async move { answer(request.send(address).await, id).await });
    until("the call is at the upstream", || stub.held() == 1).await;
    wire.fail(Fault::Silent);
    until("the store has forgotten the gateway", || keys(&redis, "gateways") == 1).await;
    // The other gateway has looked for it then.
    sleep(Duration::from_secs(5)).await;
    assert_eq!(listen(&other, &client, None).await.status, 409, "{}", other.log());
    echoes(&other, &client).await;
    say(&stub, "to all");
    assert_eq!(own.next_message().await.unwrap()["params"]["data"], "to all", "{}", other.log());
    stub.release(1);
    let answered = held.await.unwrap();
    assert_eq!(answered["result"]["content"][0]["text"], "the end", "{answered} {}", other.log());
    assert!(!other.log().contains("goes on here"), "{}", other.log());
    wire.fail(Fault::None);
    until("the gateway is back", || keys(&redis, "gateways") == 2).await;
    echoes(&other, &client).await;
}

#[tokio::test]
async fn what_waits_for_the_store_is_copied_before_a_session_is_left() {
    const MESSAGES: usize = 40;
    let (stub, redis) = (stub().await, Redis::start().await);
    let wire = wire(&redis).await;
    let config = config(&redis, &stub.config("stub"));
    let through_wire = config.replace(&redis.url(), &format!("redis://{}", wire.address()));
    let mut one = Gateway::start_with(&through_wire, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["stub"]).await;
    }
    let client = Client::legacy(&one, "/mcp/stub").await;
    let mut own = listen(&one, &client, None).await.events();
    let first = event_id(&mut own).await;
    until("somebody listens at the upstream", || stub.listeners_called("weir-tests") > 0).await;
    wire.fail(Fault::Delay(Duration::from_millis(50)));
    (0..MESSAGES).for_each(|number| say(&stub, &number.to_string()));
    for _ in 0..MESSAGES {
        own.next_message().await.unwrap();
    }
    one.signal(Signal::TERM);
    one.logs("stopping").await;
    // Its stream is closed, and the session busy no more.
    assert!(own.next_message().await.is_none());
    sleep(Duration::from_millis(100)).await;
    let (end, mut last, mut said) = (Instant::now() + PATIENCE, first, Vec::new());
    while said.len() < MESSAGES {
        assert!(Instant::now() < end, "{said:?} {}", other.log());
        let response = listen(&other, &client, Some(&last)).await;
        if response.status != 200 {
            sleep(Duration::from_millis(50)).await;
            continue;
        }
        let mut events = response.events();
        while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(1), events.next()).await {
            last = event.id.unwrap_or(last);
            let message: Value = serde_json::from_str(&event.data).unwrap_or_default();
            said.extend(message["params"]["data"].as_str().map(str::to_owned));
        }
    }
    let all: Vec<_> = (0..MESSAGES).map(|number| number.to_string()).collect();
    assert_eq!(said, all);
    assert!(one.end().await.success());
}

#[tokio::test]
async fn a_session_that_begins_while_the_process_before_ends_is_at_one_gateway() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let all = config(&redis, &stub.config("stub"));
    let own = all.replace("127.0.0.1:0", &format!("127.0.0.1:{}", free_port()));
    let mut old = Gateway::start_at_with(free_port(), &own, &ENVIRONMENT).await;
    let other = Gateway::start_with(&all, &ENVIRONMENT).await;
    for gateway in [&old, &other] {
        gateway.healthy(&["stub"]).await;
    }
    let hold = async |gateway: &Gateway, client: &Client, count: usize| {
        let (address, (id, request)) = (gateway.address(), call(client, "hold"));
        let held = tokio::spawn(async move { request.send(address).await.messages().await });
        until("the call is at the upstream", || stub.held() == count).await;
        (id, held)
    };
    // As long as its call runs the old process has the address.
    let busy = Client::legacy(&old, "/mcp/stub").await;
    let (_, last) = hold(&old, &busy, 1).await;
    let next = old.upgrade_with(&own, &ENVIRONMENT);
    old.signal(Signal::QUIT);
    let next = next.await;
    old.logs("stopping").await;
    let client = Client::legacy(&next, "/mcp/stub").await;
    let (id, held) = hold(&next, &client, 2).await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    let mut refused = 0;
    let end = Instant::now() + PATIENCE;
    loop {
        match other.send(client.post(cancel.to_string())).await.status {
            202 => break,
            503 => refused += 1,
            status => panic!("{status} {}", other.log()),
        }
        if refused == 3 {
            stub.release(1);
        }
        assert!(Instant::now() < end, "{}", other.log());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(refused > 2, "the old process still had the address");
    until("the upstream hears of it", || stub.asked("notifications/cancelled").len() == 1).await;
    assert!(held.await.unwrap().is_empty(), "a cancelled call has no answer");
    assert_eq!(last.await.unwrap().len(), 1);
    assert_eq!(old.end().await.code(), Some(0));
    echoes(&other, &client).await;
}

#[tokio::test]
async fn an_upgrade_among_others_ends_no_session() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let all = config(&redis, &stub.config("stub"));
    let own = all.replace("127.0.0.1:0", &format!("127.0.0.1:{}", free_port()));
    let mut old = Gateway::start_at_with(free_port(), &own, &ENVIRONMENT).await;
    let other = Gateway::start_with(&all, &ENVIRONMENT).await;
    for gateway in [&old, &other] {
        gateway.healthy(&["stub"]).await;
    }
    let (client, resident) = (Client::legacy(&old, "/mcp/stub").await, Client::legacy(&other, "/mcp/stub").await);
    echoes(&other, &client).await;
    echoes(&old, &resident).await;
    let next = old.upgrade_with(&own, &ENVIRONMENT);
    old.signal(Signal::QUIT);
    let next = next.await;
    let calling = async {
        for _ in 0..20 {
            echoes_soon(&other, &client).await;
            echoes_soon(&next, &resident).await;
        }
    };
    let (status, ()) = tokio::join!(old.end(), calling);
    assert_eq!(status.code(), Some(0));
    for gateway in [&next, &other] {
        echoes_soon(gateway, &client).await;
        echoes_soon(gateway, &resident).await;
    }
    assert!(!next.log().contains("leads to another gateway"), "{}", next.log());
}

#[tokio::test]
async fn an_upgrade_to_a_replica_address_that_cannot_be_had_leaves_the_old_process_alone() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let good = config(&redis, &stub.config("stub"));
    let bad = good.replace("127.0.0.1:0", "192.0.2.1:9000");
    let old = Gateway::start_at_with(free_port(), &good, &ENVIRONMENT).await;
    old.healthy(&["stub"]).await;
    let file = old.directory().join("bad.toml");
    let head = format!("listen = \"{}\"\ncache_dir = {:?}\n", old.address(), paths::cache());
    std::fs::write(&file, head + &bad).unwrap();
    let mut weir = tokio::process::Command::new(paths::weir());
    weir.args(["serve", "--upgrade", "--config"]).arg(file).env("XDG_STATE_HOME", old.directory());
    let ended = weir.envs(ENVIRONMENT).output().await.unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("`replica.listen`"), "{said}");
    assert!(!old.log().contains("SIGQUIT"), "it was asked for its sockets: {}", old.log());
    echoes(&old, &Client::legacy(&old, "/mcp/stub").await).await;
}

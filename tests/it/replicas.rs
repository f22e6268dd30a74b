//! Several gateways at one store: a legacy session goes on at any of them, also when its own is gone.

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use weir_tests::balancer::Balancer;
use weir_tests::client::{answer, initialize, with_meta};
use weir_tests::events::Events;
use weir_tests::peer::free_port;
use weir_tests::redis::{Cluster, Redis, StoreKind};
use weir_tests::sse::SseClient;
use weir_tests::stub::Offer;
use weir_tests::terminal::{ENVIRONMENT, lines, sign_in};
use weir_tests::tokens::token_of;
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Authority, Browser, Client, Gateway, Issuer, LEGACY, Peer, Request, Response, Stub};

use crate::sign_in::{AUDIENCE, guarded, modern, text};

/// What a client is told whose gateway died with its call.
pub(crate) const LOST: &str = "the gateway that ran this call has ended, and the call may have run";

pub(crate) fn config(redis: &Redis, upstream: &str) -> String {
    config_at(&redis.url(), upstream)
}

fn config_at(url: &str, upstream: &str) -> String {
    format!(
        "[replica]\nlisten = \"127.0.0.1:0\"\n\n[store]\nurl = {url:?}\nkey = {{ env = \"WEIR_TESTS_KEY\" }}\n\n{upstream}"
    )
}

pub(crate) async fn stub() -> Stub {
    let tools = ["echo", "hold", "steps"].map(str::to_owned).to_vec();
    Stub::offering(Offer { tools, capabilities: json!({ "logging": {} }), ..Offer::default() }).await
}

/// Two gateways at one store, before the same upstream.
pub(crate) async fn pair(redis: &Redis, upstream: &str) -> [Gateway; 2] {
    let config = config(redis, upstream);
    let both = [Gateway::start_with(&config, &ENVIRONMENT).await, Gateway::start_with(&config, &ENVIRONMENT).await];
    for gateway in &both {
        gateway.logs("upstream is healthy").await;
    }
    both
}

pub(crate) fn call(client: &Client, tool: &str) -> (u64, Request) {
    let meta = json!({ "progressToken": "t" });
    client.request("tools/call", json!({ "name": tool, "arguments": { "message": "the end" }, "_meta": meta }))
}

/// Calls a tool through this gateway, whichever the client knows; the status and the text that comes back.
pub(crate) async fn echo(gateway: &Gateway, client: &Client) -> (u16, Value) {
    let (id, request) = call(client, "echo");
    let response = gateway.send(request).await;
    let status = response.status;
    match status {
        200 => (200, answer(response, id).await["result"]["content"][0]["text"].clone()),
        _ => (status, response.json().await),
    }
}

pub(crate) async fn echoes(gateway: &Gateway, client: &Client) {
    assert_eq!(echo(gateway, client).await, (200, json!("the end")), "{}", gateway.log());
}

/// Listens, after this event if it is one.
pub(crate) async fn listen(gateway: &Gateway, client: &Client, after: Option<&str>) -> Response {
    let request = Request::get("/mcp/stub").header("accept", "text/event-stream");
    let request = after.into_iter().fold(request, |request, id| request.header("last-event-id", id));
    let request = request.header("mcp-session-id", client.session_id()).header("mcp-protocol-version", LEGACY);
    gateway.send(request).await
}

/// Has the upstream say something on each stream of a session.
pub(crate) fn say(stub: &Stub, data: &str) {
    let params = json!({ "level": "error", "data": data });
    stub.say(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }).to_string());
}

/// Has the upstream forget all sessions.
pub(crate) async fn lose_sessions(stub: &Stub) {
    for session in stub.sessions() {
        Request::new("DELETE", "/mcp").header("mcp-session-id", &session).send(stub.address()).await;
    }
}

/// The id of the next event.
pub(crate) async fn event_id(events: &mut Events) -> String {
    events.next().await.and_then(|event| event.id).expect("an event with an id")
}

#[tokio::test]
async fn a_session_goes_on_at_the_other_gateway_and_is_one_session() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    let before = stub.sessions_opened();
    for gateway in [&other, &one, &other] {
        echoes(gateway, &client).await;
    }
    assert!(stub.sessions_opened() <= before + 1, "it has one session at the upstream");
    let mut events = listen(&other, &client, None).await.events();
    event_id(&mut events).await;
    until("somebody listens at the upstream", || stub.listeners_called("weir-tests") > 0).await;
    assert_eq!(listen(&one, &client, None).await.status, 409, "there is one stream, wherever it is");
    say(&stub, "to all");
    let said = events.next_message().await.unwrap();
    assert_eq!(said["params"]["data"], "to all", "{said}");

    let ended = client.closing();
    assert_eq!(other.send(ended).await.status, 200);
    for gateway in [&one, &other] {
        assert_eq!(echo(gateway, &client).await.0, 404);
    }
    assert_eq!(events.next_message().await, None);
    until("the store has forgotten it", || redis.ask(&["keys", "weir:{sessions}:e:*"]).trim().is_empty()).await;
}

#[tokio::test]
async fn a_question_is_answered_and_a_call_cancelled_at_the_other_gateway() {
    let (fixture, redis) = (Peer::fixture("legacy").await, Redis::start().await);
    let [one, other] = pair(&redis, &fixture.config("fixture")).await;
    let able = json!({ "elicitation": {} });
    let client = Client::legacy_at(one.address(), "/mcp/fixture", LEGACY, &able).await;
    let asks = json!({ "name": "test_elicitation", "arguments": { "message": "Who are you?" } });
    let (id, request) = client.request("tools/call", asks);
    let mut events = one.send(request).await.events();
    let answered = loop {
        let message = events.next_message().await.expect("there is an answer");
        if message["id"] == json!(id) {
            break message;
        }
        if message["method"] == "elicitation/create" {
            let content = json!({ "username": "ada", "email": "a@example.com" });
            let result = json!({ "action": "accept", "content": content });
            let reply = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
            assert_eq!(other.send(client.post(reply.to_string())).await.status, 202);
        }
    };
    assert!(answered.to_string().contains("ada"), "{answered}");

    let stub = stub().await;
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    let (id, request) = call(&client, "hold");
    let address = one.address();
    let held = tokio::spawn(async move { request.send(address).await.messages().await });
    until("the call is at the upstream", || stub.held() == 1).await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    assert_eq!(other.send(client.post(cancel.to_string())).await.status, 202);
    assert!(held.await.unwrap().is_empty(), "a cancelled call has no answer");
    until("the upstream hears of it", || stub.asked("notifications/cancelled").len() == 1).await;
}

#[tokio::test]
async fn a_stream_is_resumed_at_the_other_gateway() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    let mut events = one.send(call(&client, "steps").1).await.events();
    event_id(&mut events).await;
    let first = event_id(&mut events).await;
    drop(events);
    stub.release(3);
    let rest = listen(&other, &client, Some(&first)).await.events().messages().await;
    assert_eq!(rest.len(), 3, "{rest:?}");
    assert_eq!(rest[2]["result"]["content"][0]["text"], "the end");
}

#[tokio::test]
async fn when_a_gateway_dies_its_sessions_go_on_and_its_calls_are_answered() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [mut one, other] = pair(&redis, &stub.config("stub")).await;
    let [resting, answered, lost] = [
        Client::legacy(&one, "/mcp/stub").await,
        Client::legacy(&one, "/mcp/stub").await,
        Client::legacy(&one, "/mcp/stub").await,
    ];
    echoes(&one, &resting).await;
    let written = || redis.ask(&["get", "weir:{sessions}:v"]);
    let before = written();
    resting.result("logging/setLevel", json!({ "level": "error" })).await;
    until("the store has heard of the level", || written() != before).await;
    // One call has its answer, which its client has not.
    let mut events = one.send(call(&answered, "steps").1).await.events();
    let start = event_id(&mut events).await;
    event_id(&mut events).await;
    drop(events);
    stub.release(3);
    until("it has its answer", || stub.held() == 0).await;
    // The other has none, and its client is there.
    let (id, request) = call(&lost, "steps");
    let mut events = one.send(request).await.events();
    event_id(&mut events).await;
    let last = event_id(&mut events).await;
    until("the store has a copy", || redis.ask(&["keys", "weir:{session-events}:e:*"]).lines().count() >= 7).await;
    let opened = stub.sessions_opened();
    one.signal(Signal::KILL);
    one.end().await;
    drop(events);

    // Several requests come at once, and one of them takes the session over.
    let mut calls = JoinSet::new();
    for (id, request) in (0..8).map(|_| call(&resting, "echo")) {
        let address = other.address();
        calls.spawn(async move { answer(request.send(address).await, id).await });
    }
    for answered in calls.join_all().await {
        assert_eq!(answered["result"]["content"][0]["text"], "the end", "{answered}");
    }
    assert_eq!(
        (stub.sessions_opened(), stub.asked("logging/setLevel").len()),
        (opened, 1),
        "so do those at the upstream"
    );
    lose_sessions(&stub).await;
    echoes(&other, &resting).await;
    assert_eq!(
        (stub.sessions_opened(), stub.asked("logging/setLevel").len()),
        (opened + 1, 2),
        "the level is said again"
    );
    let all = listen(&other, &answered, Some(&start)).await.events().messages().await;
    assert_eq!(all.last().unwrap()["result"]["content"][0]["text"], "the end", "{all:?}");
    assert_eq!(all.len(), 4, "{all:?}");
    let told = listen(&other, &lost, Some(&last)).await.events().messages().await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["id"], json!(id));
    assert!(told[0].to_string().contains(LOST), "{told:?}");
    // What came after the last event of the copy the client may have seen, and nobody else.
    let ahead = format!("{}-9", last.split_once('-').unwrap().0);
    let told = listen(&other, &lost, Some(&ahead)).await.events().messages().await;
    assert!(told.last().unwrap().to_string().contains(LOST), "{told:?}");
    until("the log tells", || lines(&other, "a session of another gateway goes on here") == 3).await;
}

#[tokio::test]
async fn a_gateway_that_ends_leaves_its_sessions_to_the_other() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [mut one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    let mut own = listen(&one, &client, None).await.events();
    let after = event_id(&mut own).await;
    one.signal(Signal::TERM);
    assert!(one.end().await.success());
    echoes(&other, &client).await;
    let mut own = listen(&other, &client, Some(&after)).await.events();
    event_id(&mut own).await;
    until("somebody listens at the upstream", || stub.listeners_called("weir-tests") > 0).await;
    say(&stub, "to all");
    assert_eq!(own.next_message().await.unwrap()["params"]["data"], "to all");
    // All of them may end: the next that starts goes on.
    let mut other = other;
    other.signal(Signal::TERM);
    other.end().await;
    let third = Gateway::start_with(&config(&redis, &stub.config("stub")), &ENVIRONMENT).await;
    echoes(&third, &client).await;
}

#[tokio::test]
async fn a_gateway_that_stands_still_is_taken_for_dead_after_a_while_and_finds_out() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    one.signal(Signal::STOP);
    let (status, why) = echo(&other, &client).await;
    assert!(status == 503 && why.to_string().contains("cannot be reached"), "{status} {why}");
    let end = tokio::time::Instant::now() + PATIENCE;
    while echo(&other, &client).await.0 != 200 {
        assert!(tokio::time::Instant::now() < end, "{}", other.log());
    }
    one.signal(Signal::CONT);
    // Both have it for a moment; then there is one.
    let opened = || redis.ask(&["keys", "weir:{gateways}:e:*"]).lines().count();
    until("the first is back", || opened() == 2).await;
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut own = listen(&other, &client, None).await.events();
    event_id(&mut own).await;
    while listen(&one, &client, None).await.status != 409 {
        assert!(tokio::time::Instant::now() < end, "{}", one.log());
    }
    echoes(&one, &client).await;
}

#[tokio::test]
async fn a_session_is_its_callers_alone_at_each_gateway() {
    let (issuer, stub, redis) = (Issuer::start().await, stub().await, Redis::start().await);
    let audience = "https://weir.example/mcp";
    let auth = format!("[auth]\nissuer = {:?}\naudience = {audience:?}\n", issuer.issuer());
    let config = format!("{auth}{}", config(&redis, &stub.config("stub")));
    let one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let mut gateways = vec![one, Gateway::start_with(&config, &ENVIRONMENT).await];
    let (ada, eve) = (issuer.token("ada", audience), issuer.token("eve", audience));
    let client = Client::legacy_with(&gateways[0], "/mcp/stub", &ada, &json!({})).await;
    let by = |token: &str| {
        call(&client, "echo").1.without("authorization").header("authorization", &format!("Bearer {token}"))
    };
    assert_eq!(gateways[1].send(by(&ada)).await.status, 200);
    assert_eq!(gateways[1].send(by(&eve)).await.status, 404);
    assert_eq!(gateways[1].send(call(&client, "echo").1.without("authorization")).await.status, 401);
    // What a client says of itself in the header of gateways counts for nothing.
    let forged = by(&eve).header("weir-forwarded", "eyJ0byI6IngifQ");
    assert_eq!(gateways[1].send(forged).await.status, 404);
    let mut first = gateways.remove(0);
    first.signal(Signal::KILL);
    first.end().await;
    assert_eq!(gateways[0].send(by(&eve)).await.status, 404);
    assert_eq!(gateways[0].send(by(&ada)).await.status, 200);
    let disk = String::from_utf8_lossy(&redis.disk()).into_owned();
    for secret in [&*ada, &*eve, client.session_id()] {
        assert!(!disk.contains(secret) && !gateways[0].log().contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn without_the_store_sessions_go_on_where_they_are_and_none_begins() {
    let (stub, mut redis) = (stub().await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    redis.kill();
    until("the store is away", || lines(&one, "sign-ins wait") == 1 && lines(&other, "sign-ins wait") == 1).await;
    echoes(&one, &client).await;
    let (status, why) = echo(&other, &client).await;
    assert!(status == 503 && why.to_string().contains("store"), "{status} {why}");
    let begun = one.send(initialize("/mcp/stub", LEGACY, &json!({}))).await;
    assert_eq!((begun.status, begun.header("retry-after")), (503, Some("5")));
    redis.restart().await;
    let end = tokio::time::Instant::now() + PATIENCE;
    while echo(&other, &client).await.0 != 200 {
        assert!(tokio::time::Instant::now() < end, "{}", other.log());
    }
    echoes(&one, &client).await;
}

#[tokio::test]
async fn a_message_of_http_sse_reaches_its_stream_through_any_gateway() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let mut client = SseClient::connect(one.address(), "/sse/stub", &json!({})).await;
    client.post_through(other.address());
    assert_eq!(client.call("echo", json!({ "message": "hi" })).await, "hi");
    let lives = |key: &str| redis.ask(&["pttl", key]).parse::<u64>().unwrap();
    let records = redis.ask(&["keys", "weir:{sessions}:e:*"]);
    assert!(records.lines().any(|key| lives(key) <= 600_000), "a gateway that dies leaves it behind: {records}");
    drop(client);
    until("the store has forgotten it", || redis.ask(&["keys", "weir:{sessions}:e:*"]).trim().is_empty()).await;
}

#[tokio::test]
async fn a_change_of_a_list_reaches_clients_of_both_gateways() {
    let (stub, redis) = (Stub::offering(Offer { modern: false, ..Offer::default() }).await, Redis::start().await);
    let [one, other] = pair(&redis, &stub.config("stub")).await;
    let clients = [Client::legacy(&one, "/mcp/stub").await, Client::legacy(&other, "/mcp").await];
    // Each listens at the gateway that has not its session.
    let mut streams = Vec::new();
    for (gateway, client, path) in [(&other, &clients[0], "/mcp/stub"), (&one, &clients[1], "/mcp")] {
        let request = Request::get(path).header("accept", "text/event-stream");
        let request = request.header("mcp-session-id", client.session_id()).header("mcp-protocol-version", LEGACY);
        streams.push(gateway.send(request).await.events());
    }
    for stream in &mut streams {
        event_id(stream).await;
    }
    echoes(&other, &clients[0]).await;
    until("both gateways listen to the upstream", || stub.listeners() > 1).await;
    stub.offer(Offer { tools: vec!["new".to_owned()], modern: false, ..Offer::default() });
    stub.announce("notifications/tools/list_changed");
    for stream in &mut streams {
        let said = stream.next_message().await.unwrap();
        assert_eq!(said["method"], "notifications/tools/list_changed", "{said}");
    }
    for (client, tool) in [(&clients[0], "new"), (&clients[1], "stub__new")] {
        let end = tokio::time::Instant::now() + PATIENCE;
        while client.tools().await != [tool] {
            assert!(tokio::time::Instant::now() < end, "{:?}", client.tools().await);
        }
    }
}

#[tokio::test]
async fn at_a_cluster_sessions_and_logins_outlive_their_gateway() {
    let cluster = Cluster::start().await;
    outlive_their_gateway(&cluster.url()).await;
}

#[tokio::test]
async fn at_valkey_sessions_and_logins_outlive_their_gateway() {
    if StoreKind::Valkey.is_there() {
        let valkey = Redis::start_kind(StoreKind::Valkey).await;
        outlive_their_gateway(&valkey.url().replace("redis", "valkey")).await;
    }
}

async fn outlive_their_gateway(store: &str) {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let config = config_at(store, &format!("{}auth = \"oauth\"\n", upstream.config("u")));
    let mut one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    sign_in(&one, &[]).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["u"]).await;
    }
    let client = Client::legacy(&one, "/mcp/u").await;
    for gateway in [&other, &one] {
        echoes(gateway, &client).await;
    }
    one.signal(Signal::KILL);
    one.end().await;
    echoes(&other, &client).await;
    // For two seconds calls run with a copy of it.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    echoes(&other, &client).await;
    until("the log tells", || lines(&other, "a session of another gateway goes on here") == 1).await;
    assert_eq!(other.send(client.closing()).await.status, 200);
    assert_eq!(echo(&other, &client).await.0, 404);
}

/// What clients of the modern era carry from one request to the next.
#[tokio::test]
async fn a_cursor_and_a_call_that_waits_for_answers_are_good_at_the_other_gateway() {
    let (fixture, redis) = (Peer::fixture("legacy").await, Redis::start().await);
    let config = format!("limits.page_size = 2\n{}", config(&redis, &fixture.config("fixture")));
    let one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["fixture"]).await;
    }
    let ask = async |gateway: &Gateway, method: &str, params: Value| {
        let client = Client::modern(gateway, "/mcp");
        let able = json!({ "elicitation": { "form": {} } });
        let (id, request) = client.request_with(method, with_meta(params.clone(), &able));
        answer(client.send(client.dressed(request, method, &params)).await, id).await
    };
    // The key of both comes from the store, soon after the start.
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let first = ask(&one, "tools/list", json!({})).await;
        let next = ask(&other, "tools/list", json!({ "cursor": first["result"]["nextCursor"] })).await;
        if next["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
            assert_ne!(first["result"]["tools"], next["result"]["tools"]);
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{first} {next}");
    }
    let call = json!({ "name": "fixture__test_elicitation", "arguments": { "message": "Who are you?" } });
    let asked = ask(&one, "tools/call", call.clone()).await;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let name = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let content = json!({ "username": "ada", "email": "a@example.com" });
    let mut again = call;
    again["requestState"] = asked["result"]["requestState"].clone();
    again["inputResponses"] = json!({ name: { "action": "accept", "content": content } });
    let done = ask(&other, "tools/call", again.clone()).await;
    assert!(done.to_string().contains("ada"), "{done} {}", other.log());
    assert!(ask(&one, "tools/call", again).await["error"].is_object(), "a state is good once");
}

#[tokio::test]
async fn a_browser_signs_in_through_a_balancer_and_the_call_goes_on() {
    let authority = Authority::with(&json!({ "names": true }));
    let (_stub, upstream) = guarded(&authority, "github", "principal").await;
    let (redis, port) = (Redis::start().await, free_port());
    let auth = format!("[auth]\nissuer = {:?}\naudience = {AUDIENCE:?}\n", authority.issuer());
    let config = format!("public_url = \"http://127.0.0.1:{port}\"\n{auth}{}", config(&redis, &upstream));
    let environment = [ENVIRONMENT[0], ("WEIR_TESTS_SECRET", "s3cret: +&%")];
    let gateways = [Gateway::start_with(&config, &environment).await, Gateway::start_with(&config, &environment).await];
    let balancer = Balancer::start(port, &[&gateways[0], &gateways[1]].map(|gateway| gateway.address())).await;
    for (person, rounds) in [("ada", 3), ("eve", 3)] {
        let mut browser = Browser::of(person);
        let token = token_of(authority.issuer(), &mut browser, AUDIENCE).await;
        let client = Client::modern_at(balancer.address(), "/mcp").with_token(&token);
        // With each request another gateway is asked.
        let asked = modern(&client, "github__echo", json!({})).await;
        let link = asked["result"]["inputRequests"]["sign_in_github"]["params"]["url"].as_str();
        let page = browser.open(link.unwrap_or_else(|| panic!("no link: {asked}"))).await;
        assert!(page.text.contains("connect/github/login"), "{page:?}");
        let page = browser.press(&page, "connect/github/login").await;
        assert!(page.text.contains("Signed in at github"), "{page:?}");
        for _ in 0..rounds {
            let page = browser.open(&balancer.url("/connect")).await;
            assert!(page.text.contains(person) && page.text.contains("connect/github/logout"), "{page:?}");
        }
        let end = tokio::time::Instant::now() + PATIENCE;
        for round in 0..2 * rounds {
            let answer = modern(&client, "github__echo", json!({})).await;
            if answer["result"]["resultType"] == "input_required" {
                // The other gateway hears of the login within a second.
                assert!(round == 0 || tokio::time::Instant::now() < end, "{answer}");
                continue;
            }
            assert_eq!(text(&answer["result"]), "hi");
        }
    }
}

#[tokio::test]
async fn two_gateways_each_of_which_dies_time_and_again_end_no_session_and_answer_no_call_twice() {
    let (stub, redis) = (stub().await, Redis::start().await);
    let port = free_port();
    let config = config(&redis, &stub.config("stub"));
    let mut gateways =
        vec![Gateway::start_with(&config, &ENVIRONMENT).await, Gateway::start_with(&config, &ENVIRONMENT).await];
    let addresses = [gateways[0].address(), gateways[1].address()];
    let balancer = Balancer::start(port, &addresses).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Client::legacy_at(balancer.address(), "/mcp/stub", LEGACY, &json!({})).await);
    }
    for round in 0..4 {
        let mut first = gateways.remove(0);
        let address = first.address();
        let calling = clients.iter().map(|client| {
            let (id, request) = call(client, "echo");
            (id, request, balancer.address())
        });
        let calling: Vec<_> =
            calling.map(|(id, request, to)| tokio::spawn(async move { (id, request.try_send(to).await) })).collect();
        first.signal(Signal::KILL);
        first.end().await;
        for call in calling {
            // An answer, or word that there is none. Nobody waits in vain.
            let (id, response) = call.await.unwrap();
            if let Ok(response) = response
                && response.status == 200
            {
                assert_eq!(answer(response, id).await["result"]["content"][0]["text"], "the end");
            }
        }
        for client in &clients {
            let end = tokio::time::Instant::now() + PATIENCE;
            while echo_at(balancer.address(), client).await != 200 {
                assert!(tokio::time::Instant::now() < end, "round {round}: {}", gateways[0].log());
            }
        }
        gateways.push(Gateway::start_at_with(address.port(), &config, &ENVIRONMENT).await);
    }
    let asked = stub.asked("tools/call");
    let ids: Vec<_> = asked
        .iter()
        .map(|seen| (seen.header("mcp-session-id").map(str::to_owned), seen.message()["id"].clone()))
        .collect();
    for (at, id) in ids.iter().enumerate() {
        assert!(!ids[..at].contains(id), "{id:?} ran twice");
    }
}

/// The status of a call through whichever gateway; none for a connection that broke.
async fn echo_at(address: std::net::SocketAddr, client: &Client) -> u16 {
    let (id, request) = call(client, "echo");
    let Ok(response) = request.try_send(address).await else { return 0 };
    let status = response.status;
    if status == 200 {
        assert_eq!(answer(response, id).await["result"]["content"][0]["text"], "the end");
    }
    status
}

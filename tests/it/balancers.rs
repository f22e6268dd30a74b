//! Two gateways behind the load balancers of the pages, each as its file in `config/` has it.

use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use weir_tests::balancer::{Balancer, BalancerKind};
use weir_tests::client::answer;
use weir_tests::peer::free_port;
use weir_tests::redis::Redis;
use weir_tests::terminal::ENVIRONMENT;
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Client, Gateway, LEGACY, Request, Stub};

use crate::replicas::{call, config, event_id, pair, stub};

/// Calls that run when a gateway dies.
const RUNNING: usize = 8;

async fn echoes(client: &Client) {
    let (id, request) = call(client, "echo");
    let response = client.send(request).await;
    let status = response.status;
    assert_eq!(status, 200, "{:?}", response.bytes().await);
    assert_eq!(answer(response, id).await["result"]["content"][0]["text"], "the end");
}

/// Nothing waits for the end of an answer.
async fn events_come_as_they_come(client: &Client, stub: &Stub) {
    let (_, request) = call(client, "steps");
    let mut events = client.send(request).await.events();
    event_id(&mut events).await;
    for step in 1..=3 {
        let said = events.next_message().await.unwrap();
        assert_eq!(said["params"]["progress"], json!(step), "{said}");
        stub.release(1);
    }
    assert_eq!(events.next_message().await.unwrap()["result"]["content"][0]["text"], "the end");
}

/// A stream that rests stays open, and has what is said on it.
async fn a_stream_rests(client: &Client, stub: &Stub) {
    let request = Request::get("/mcp/stub").header("accept", "text/event-stream");
    let request = request.header("mcp-session-id", client.session_id()).header("mcp-protocol-version", LEGACY);
    let mut events = client.send(request).await.events();
    event_id(&mut events).await;
    until("somebody listens at the upstream", || stub.listeners_called("weir-tests") > 0).await;
    sleep(std::time::Duration::from_secs(2)).await;
    let params = json!({ "level": "error", "data": "at last" });
    stub.say(&json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params }).to_string());
    assert_eq!(events.next_message().await.unwrap()["params"]["data"], "at last");
}

/// A POST that a gateway has taken is not sent to the other one, and its client is told.
async fn what_may_have_run_runs_once(balancer: &Balancer, stub: &Stub, first: &mut Gateway) {
    let mut calls = JoinSet::new();
    for number in 0..RUNNING {
        let client = Client::modern_at(balancer.address(), "/mcp/stub");
        let arguments = json!({ "name": "hold", "arguments": { "message": format!("call {number}") } });
        let (_, request) = client.request("tools/call", arguments);
        let address = balancer.address();
        calls.spawn(async move { request.try_send(address).await.is_ok_and(|response| response.status == 200) });
    }
    until("all calls run", || stub.held() == RUNNING).await;
    first.signal(Signal::KILL);
    first.end().await;
    // Those of the other gateway wait for their answers.
    let end = Instant::now() + PATIENCE;
    let mut told = 0;
    while told < RUNNING / 2 {
        let ended = tokio::time::timeout_at(end, calls.join_next()).await.expect("its clients are told");
        assert!(!ended.unwrap().unwrap(), "there is no answer");
        told += 1;
    }
    stub.release(2 * RUNNING);
    let right = calls.join_all().await.into_iter().filter(|right| *right).count();
    assert_eq!(right, RUNNING / 2, "the other gateway answers");
    let mut ran: Vec<_> = stub.asked("tools/call").iter().map(|seen| seen.message()["params"].to_string()).collect();
    ran.retain(|params| params.contains("\"hold\""));
    ran.sort_unstable();
    assert!(ran.windows(2).all(|pair| pair[0] != pair[1]), "{ran:?}");
}

async fn serves(kind: BalancerKind) {
    let (stub, redis) = (stub().await, Redis::start().await);
    let [mut one, other] = pair(&redis, &stub.config("stub")).await;
    let balancer = Balancer::start_kind(kind, free_port(), &[one.address(), other.address()]).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Client::legacy_at(balancer.address(), "/mcp/stub", LEGACY, &json!({})).await);
    }
    for client in clients.iter().chain(&clients) {
        echoes(client).await;
    }
    events_come_as_they_come(&clients[0], &stub).await;
    a_stream_rests(&clients[1], &stub).await;
    what_may_have_run_runs_once(&balancer, &stub, &mut one).await;
    // The gateway that is gone is not asked, and its sessions go on.
    for client in clients.iter().chain(&clients) {
        echoes(client).await;
    }
}

#[tokio::test]
async fn haproxy_keeps_a_session_at_its_gateway_where_it_is_told_to() {
    let (stub, redis) = (stub().await, Redis::start().await);
    // Whoever asks the other gateway finds nobody, and takes the session over.
    let config = config(&redis, &stub.config("stub")).replace("[replica]\n", "[replica]\naddress = \"127.0.0.1:9\"\n");
    let mut one = Gateway::start_with(&config, &ENVIRONMENT).await;
    let other = Gateway::start_with(&config, &ENVIRONMENT).await;
    for gateway in [&one, &other] {
        gateway.healthy(&["stub"]).await;
    }
    let balancer = Balancer::start_keeping(free_port(), &[one.address(), other.address()]).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Client::legacy_at(balancer.address(), "/mcp/stub", LEGACY, &json!({})).await);
    }
    let taken = |gateway: &Gateway| gateway.log().matches("a session of another gateway goes on here").count();
    for client in clients.iter().chain(&clients).chain(&clients) {
        echoes(client).await;
    }
    assert_eq!((taken(&one), taken(&other)), (0, 0), "{}", one.log());
    one.signal(Signal::KILL);
    one.end().await;
    for client in clients.iter().chain(&clients) {
        echoes(client).await;
    }
    until("the sessions of the other go on", || taken(&other) == 2).await;
}

#[tokio::test]
async fn haproxy() {
    serves(BalancerKind::Haproxy).await;
}

#[tokio::test]
async fn nginx() {
    serves(BalancerKind::Nginx).await;
}

#[tokio::test]
async fn caddy() {
    serves(BalancerKind::Caddy).await;
}

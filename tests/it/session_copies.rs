//! Calls that a gateway runs with a copy of a session that another one has.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::peer::Launch;
use weir_tests::redis::Redis;
use weir_tests::terminal::lines;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, LEGACY, Peer, Stub};

use crate::replicas::{LOST, call, echo, echoes, event_id, listen, lose_sessions, pair, stub};

/// How many calls the log of a gateway tells of: those that ran there.
fn ran_at(gateway: &Gateway) -> usize {
    lines(gateway, "\"method\":\"tools/call\"")
}

/// Has `other` make a copy of a session of `one`, and run the next calls of two seconds with it.
async fn copied(one: &Gateway, other: &Gateway, client: &Client) {
    let (before, passed_on) = (ran_at(other), ran_at(one) + 1);
    echoes(other, client).await;
    until("the call has run at the session's own", || ran_at(one) == passed_on).await;
    echoes(other, client).await;
    until("the call has run there", || ran_at(other) == before + 1).await;
    assert_eq!(ran_at(one), passed_on);
}

async fn stubs(redis: &Redis) -> (Stub, [Gateway; 2]) {
    let stub = stub().await;
    let both = pair(redis, &stub.config("stub")).await;
    (stub, both)
}

/// Asks for a name, answers at another gateway, and gives what the call comes to.
async fn asked(at: &Gateway, answers: &Gateway, client: &Client, tool: &str) -> Value {
    let asks = json!({ "name": tool, "arguments": { "message": "Who are you?" } });
    let (id, request) = client.request("tools/call", asks);
    let mut events = at.send(request).await.events();
    loop {
        let message = events.next_message().await.expect("there is an answer");
        if message["id"] == json!(id) {
            return message;
        }
        if message["method"] == "elicitation/create" {
            let wanted = message["params"]["requestedSchema"]["properties"].as_object().unwrap();
            let content: Value = wanted.keys().map(|key| (key.clone(), json!("ada@example.com"))).collect();
            let result = json!({ "action": "accept", "content": content });
            let reply = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
            assert_eq!(answers.send(client.post(reply.to_string())).await.status, 202);
        }
    }
}

#[tokio::test]
async fn a_call_runs_where_it_comes_in_while_the_gateway_of_its_session_stands_still() {
    let redis = Redis::start().await;
    let (stub, [one, other]) = stubs(&redis).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    let opened = stub.sessions_opened();
    copied(&one, &other, &client).await;
    one.signal(Signal::STOP);
    echoes(&other, &client).await;
    one.signal(Signal::CONT);
    assert_eq!(stub.sessions_opened(), opened, "it is the same session at the upstream");
    // What is no call goes to the gateway of the session.
    let (_, list) = client.request("tools/list", json!({}));
    assert_eq!(other.send(list).await.status, 200);
    assert_eq!(other.send(client.closing()).await.status, 200);
    assert_eq!(echo(&other, &client).await.0, 404);
}

#[tokio::test]
async fn what_the_copy_does_not_have_the_gateway_of_the_session_opens() {
    let redis = Redis::start().await;
    let (stub, [one, other]) = stubs(&redis).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    copied(&one, &other, &client).await;
    let opened = stub.sessions_opened();
    lose_sessions(&stub).await;
    let ran = ran_at(&one);
    echoes(&other, &client).await;
    until("it has run at the session's own", || ran_at(&one) == ran + 1).await;
    assert_eq!(stub.sessions_opened(), opened + 1);
    // Once the store has heard of the new one, copies use it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    copied(&one, &other, &client).await;
    assert_eq!(stub.sessions_opened(), opened + 1);
    // A server of standard input is one gateway's.
    let peer = Launch::fixture("legacy").config("fixture");
    let [one, other] = pair(&redis, &peer).await;
    let client = Client::legacy(&one, "/mcp/fixture").await;
    for _ in 0..3 {
        let (_, request) = client.request("tools/call", json!({ "name": "test_simple_text" }));
        assert_eq!(other.send(request).await.status, 200);
    }
    until("all have run at the session's own", || ran_at(&one) == 3).await;
    assert_eq!(ran_at(&other), 0);
}

#[tokio::test]
async fn a_question_of_a_call_with_a_copy_is_answered_through_either_gateway() {
    let redis = Redis::start().await;
    for era in ["legacy", "modern"] {
        let fixture = Peer::fixture(era).await;
        let [one, other] = pair(&redis, &fixture.config("fixture")).await;
        // So that it knows that the upstream has no sessions.
        Client::legacy(&other, "/mcp/fixture").await.call("test_simple_text", json!({})).await;
        for (path, prefix) in [("/mcp/fixture", ""), ("/mcp", "fixture__")] {
            let able = json!({ "elicitation": {} });
            let client = Client::legacy_at(one.address(), path, LEGACY, &able).await;
            for answers in [&one, &other] {
                let quick = json!({ "name": format!("{prefix}test_simple_text") });
                // At `/mcp` an upstream is opened by the first call.
                one.send(client.request("tools/call", quick.clone()).1).await;
                tokio::time::sleep(Duration::from_millis(2500)).await;
                other.send(client.request("tools/call", quick).1).await;
                let ran = ran_at(&other);
                let tool = if era == "legacy" { "test_elicitation" } else { "test_input_required_result_multi_round" };
                let answered = asked(&other, answers, &client, &format!("{prefix}{tool}")).await;
                assert!(answered.to_string().contains("ada"), "{era} {path}: {answered}");
                until(&format!("it has run with the copy: {era} {path}"), || ran_at(&other) == ran + 1).await;
            }
        }
    }
}

#[tokio::test]
async fn a_call_with_a_copy_is_cancelled_through_the_gateway_of_its_session() {
    let redis = Redis::start().await;
    let (stub, [one, other]) = stubs(&redis).await;
    for (cancelled, wait) in [(1, 0), (2, 600)] {
        let client = Client::legacy(&one, "/mcp/stub").await;
        copied(&one, &other, &client).await;
        let (id, request) = call(&client, "hold");
        let address = other.address();
        let held = tokio::spawn(async move { request.send(address).await.messages().await });
        until("the call is at the upstream", || stub.held() == 1).await;
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
        assert_eq!(one.send(client.post(cancel.to_string())).await.status, 202);
        assert!(held.await.unwrap().is_empty(), "a cancelled call has no answer");
        until("the upstream hears of it", || stub.asked("notifications/cancelled").len() == cancelled).await;
    }
}

#[tokio::test]
async fn a_stream_of_a_call_with_a_copy_is_resumed_through_either_gateway() {
    let redis = Redis::start().await;
    let (stub, [one, mut other]) = stubs(&redis).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    copied(&one, &other, &client).await;
    let begin = async |other: &Gateway| {
        let mut events = other.send(call(&client, "steps").1).await.events();
        event_id(&mut events).await;
        event_id(&mut events).await
    };
    let first = begin(&other).await;
    stub.release(3);
    for gateway in [&one, &other] {
        let rest = listen(gateway, &client, Some(&first)).await.events().messages().await;
        assert_eq!(rest.len(), 3, "{rest:?}");
        assert_eq!(rest[2]["result"]["content"][0]["text"], "the end");
    }
    // One that never was is of no stream.
    let never = format!("{:08x}-1", u32::from_str_radix(&first[..8], 16).unwrap().wrapping_add(77));
    assert_eq!(listen(&one, &client, Some(&never)).await.status, 400);

    let last = begin(&other).await;
    until("the store has a copy", || redis.ask(&["keys", "weir:{session-events}:e:*"]).lines().count() >= 7).await;
    other.signal(Signal::KILL);
    other.end().await;
    let told = listen(&one, &client, Some(&last)).await.events().messages().await;
    assert!(told.last().unwrap().to_string().contains(LOST), "{told:?}");
}

#[tokio::test]
async fn a_slow_call_with_a_copy_is_answered_while_the_gateway_of_its_session_stands_still() {
    let redis = Redis::start().await;
    let (stub, [one, other]) = stubs(&redis).await;
    let client = Client::legacy(&one, "/mcp/stub").await;
    copied(&one, &other, &client).await;
    one.signal(Signal::STOP);
    let mut events = other.send(call(&client, "steps").1).await.events();
    event_id(&mut events).await;
    event_id(&mut events).await;
    stub.release(3);
    let rest = events.messages().await;
    one.signal(Signal::CONT);
    assert_eq!(rest.last().unwrap()["result"]["content"][0]["text"], "the end", "{rest:?}");
}

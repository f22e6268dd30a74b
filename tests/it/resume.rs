//! Streams that break: what a legacy client missed is kept for it, and its call goes on without it.

use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::client::initialize;
use weir_tests::cutter::Cutter;
use weir_tests::events::{Event, Events};
use weir_tests::paths::{node, peers};
use weir_tests::process::Process;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, LEGACY, Request, Response, Stub};

async fn start(config: &str) -> (Gateway, Stub) {
    let tools = ["echo", "hold", "burst", "steps"].map(str::to_owned).to_vec();
    let stub = Stub::offering(Offer { tools, ..Offer::default() }).await;
    let gateway = Gateway::start(&(config.to_owned() + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

/// The two endpoints, with the name of a tool at each.
const PLACES: [(&str, &str); 2] = [("/mcp", "stub__"), ("/mcp/stub", "")];

fn call(client: &Client, tool: &str) -> (u64, Request) {
    let meta = json!({ "progressToken": "t" });
    client.request("tools/call", json!({ "name": tool, "arguments": { "message": "the end" }, "_meta": meta }))
}

/// Comes back with an event id.
async fn come_back(gateway: &Gateway, client: &Client, path: &str, id: &str) -> Response {
    let request = Request::get(path).header("accept", "text/event-stream").header("last-event-id", id);
    let request = request.header("mcp-session-id", client.session_id()).header("mcp-protocol-version", LEGACY);
    gateway.send(request).await
}

fn id(event: &Event) -> &str {
    event.id.as_deref().unwrap_or_else(|| panic!("no id: {event:?}"))
}

fn progress(event: &Event) -> u64 {
    event.message().unwrap_or_default()["params"]["progress"].as_u64().unwrap_or_else(|| panic!("{event:?}"))
}

/// The event that only carries an id.
async fn primed(events: &mut Events) -> Event {
    let first = events.next().await.unwrap();
    assert!(first.id.is_some() && first.retry.is_some() && first.data.is_empty(), "{first:?}");
    first
}

#[tokio::test]
async fn a_call_goes_on_and_its_stream_where_it_was() {
    for (path, prefix) in PLACES {
        let (gateway, stub) = start("").await;
        let client = Client::legacy(&gateway, path).await;
        let (request_id, request) = call(&client, &format!("{prefix}steps"));
        let mut events = gateway.send(request).await.events();
        let start = primed(&mut events).await;
        let first = events.next().await.unwrap();
        assert_eq!(progress(&first), 1);
        drop(events);
        stub.release(1);
        until("the call has gone on", || stub.held() == 1).await;

        let mut events = come_back(&gateway, &client, path, id(&first)).await.events();
        assert_eq!(progress(&events.next().await.unwrap()), 2, "what was missed");
        stub.release(1);
        let third = events.next().await.unwrap();
        assert_eq!(progress(&third), 3, "what is still to come");
        drop(events);
        stub.release(1);
        until("the call has ended", || stub.held() == 0).await;

        let mut events = come_back(&gateway, &client, path, id(&third)).await.events();
        let last = events.next().await.unwrap();
        let message = last.message().unwrap();
        assert_eq!((&message["id"], &message["result"]["content"][0]["text"]), (&json!(request_id), &json!("the end")));
        assert_eq!(events.next().await, None, "the stream ends with the answer");

        let all = come_back(&gateway, &client, path, id(&start)).await.events().messages().await;
        assert_eq!(all.len(), 4, "all of it, for who has seen nothing: {all:?}");
        assert_eq!(come_back(&gateway, &client, path, id(&last)).await.status, 204, "nothing is left");
        assert_eq!((stub.asked("tools/call").len(), stub.broken_off()), (1, 0));
    }
}

#[tokio::test]
async fn an_id_of_somebody_else_or_of_nobody_is_refused() {
    let (gateway, stub) = start("").await;
    let (client, other) = (Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp").await);
    let mut events = gateway.send(call(&client, "stub__steps").1).await.events();
    let own = primed(&mut events).await;
    for id in [id(&own), "1", "", "stub/0", "00000000-1"] {
        let response = come_back(&gateway, &other, "/mcp", id).await;
        assert_eq!(response.status, 400, "{id}");
        assert_eq!(response.json().await["error"]["code"], -32600);
    }
    stub.release(3);
    assert_eq!(events.messages().await.len(), 4, "nobody was disturbed");
}

#[tokio::test]
async fn an_answer_that_takes_its_time_can_be_fetched_whatever_it_is() {
    for (path, prefix) in PLACES {
        let (gateway, stub) = start("").await;
        let newest = Client::legacy(&gateway, path).await;
        // At its own endpoint the upstream chooses the version, which is always the newest.
        let older = Client::legacy_at(gateway.address(), "/mcp", "2025-06-18", &json!({})).await;
        let (_, older_call) = call(&older, "stub__hold");
        let address = gateway.address();
        let older = tokio::spawn(async move { older_call.send(address).await });
        let (request_id, request) = call(&newest, &format!("{prefix}hold"));
        let mut events = gateway.send(request).await.events();
        let start = primed(&mut events).await;
        drop(events);
        stub.release(2);
        let answer = come_back(&gateway, &newest, path, id(&start)).await.events().messages().await;
        assert_eq!(answer[0]["id"], json!(request_id));
        assert_eq!(answer[0]["result"]["content"][0]["text"], "the end");
        assert!(!older.await.unwrap().is_stream(), "a client that may not know such a stream is given none");
        assert_eq!(stub.broken_off(), 0);
    }
}

#[tokio::test]
async fn a_quick_answer_is_as_it_came() {
    let (gateway, _stub) = start("").await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    let mut events = gateway.send(call(&client, "burst").1).await.events();
    let mut count = 0;
    while let Some(event) = events.next().await {
        assert_eq!((event.id, event.retry), (None, None));
        count += 1;
    }
    assert_eq!(count, 11);
    assert!(!gateway.send(call(&client, "echo").1).await.is_stream());
}

#[tokio::test]
async fn the_own_stream_of_a_session_goes_on_too() {
    for (path, prefix) in PLACES {
        let (gateway, stub) = start("").await;
        let client = Client::legacy(&gateway, path).await;
        client.call(&format!("{prefix}echo"), json!({ "message": "opens the upstream" })).await;
        let mut events = client.stream().await;
        primed(&mut events).await;
        until("the upstream is heard", || stub.listeners_called("weir-tests") == 1).await;
        stub.announce("notifications/first");
        let first = events.next().await.unwrap();
        assert_eq!(first.message().unwrap()["method"], "notifications/first");
        drop(events);
        stub.announce("notifications/second");
        let mut events = come_back(&gateway, &client, path, id(&first)).await.events();
        let mut second = events.next().await.unwrap();
        if second.data.is_empty() {
            // What had not been sent is not sent again, but for the first time.
            second = events.next().await.unwrap();
        }
        assert_eq!(second.message().unwrap()["method"], "notifications/second", "at {path}");

        // Its client may come back before the gateway has seen it go.
        let mut again = come_back(&gateway, &client, path, id(&first)).await.events();
        assert_eq!(again.next().await.unwrap(), second);
        assert_eq!(events.next().await, None, "the stream that was taken over ends");
        stub.announce("notifications/third");
        assert_eq!(again.next().await.unwrap().message().unwrap()["method"], "notifications/third");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_to_keep_is_replaced_by_an_error_that_says_so() {
    let (gateway, stub) = start("limits.replay_buffer = \"64KiB\"\n").await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    let arguments = json!({ "message": "x".repeat(100_000) });
    let (request_id, request) = client.request("tools/call", json!({ "name": "steps", "arguments": arguments }));
    let mut events = gateway.send(request).await.events();
    let start = primed(&mut events).await;
    drop(events);
    stub.release(3);
    let mut events = come_back(&gateway, &client, "/mcp/stub", id(&start)).await.events();
    loop {
        let message = events.next_message().await.unwrap();
        if message["id"] == json!(request_id) {
            assert!(message["error"]["message"].as_str().unwrap().contains("limits.replay_buffer"), "{message}");
            break;
        }
    }

    // Who stays gets all of it.
    stub.release(3);
    let (_, request) = client.request("tools/call", json!({ "name": "steps", "arguments": arguments }));
    let messages = gateway.send(request).await.events().messages().await;
    assert_eq!(messages.last().unwrap()["result"]["content"][0]["text"].as_str().unwrap().len(), 100_000);
}

#[tokio::test]
async fn a_flood_that_nobody_reads_is_bounded() {
    let (gateway, stub) = start("limits.replay_buffer = \"1MiB\"\n").await;
    let before = gateway.resident();
    let mut starts = Vec::new();
    for _ in 0..8 {
        let client = Client::legacy(&gateway, "/mcp/stub").await;
        for _ in 0..8 {
            let arguments = json!({ "message": "x".repeat(500_000) });
            let (_, request) = client.request("tools/call", json!({ "name": "steps", "arguments": arguments }));
            let mut events = gateway.send(request).await.events();
            starts.push(primed(&mut events).await);
        }
        until("all wait", || stub.held() == 8).await;
        stub.release(24);
        until("all have ended", || stub.held() == 0).await;
    }
    assert_eq!(starts.len(), 64);
    // 32 MB went by.
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 24 * 1024, "{grown} kB more than before");
}

#[tokio::test]
async fn what_goes_on_without_a_client_ends_with_the_session_and_with_the_gateway() {
    let (mut gateway, stub) = start("").await;
    let mut clients = Vec::new();
    for tool in ["steps", "hold", "steps", "hold"] {
        let client = Client::legacy(&gateway, "/mcp/stub").await;
        primed(&mut gateway.send(call(&client, tool).1).await.events()).await;
        clients.push(client);
    }
    until("all go on", || stub.held() == 4).await;
    for client in &clients[..2] {
        client.close().await;
    }
    until("those of the sessions that ended do not", || stub.held() == 2 && stub.broken_off() == 2).await;
    gateway.signal(Signal::TERM);
    until("nor those of the others", || stub.held() == 0).await;
    assert_eq!(gateway.end().await.code(), Some(0));
}

#[tokio::test]
async fn an_upstream_that_ends_its_stream_without_an_answer_is_told_of() {
    let (gateway, stub) = start("").await;
    let client = Client::legacy_at(gateway.address(), "/mcp/stub", LEGACY, &json!({})).await;
    let mut events = gateway.send(call(&client, "steps").1).await.events();
    primed(&mut events).await;
    assert_eq!(progress(&events.next().await.unwrap()), 1);
    drop(stub);
    let last: Vec<Value> = events.messages().await;
    assert!(last.last().unwrap()["error"].is_object(), "{last:?}");
}

async fn long_call(sdk: &str, url: &str, more: &[&str]) -> Process {
    let mut command = Command::new(node());
    command.arg(peers("clients/long_call.mjs")).args([url, "steps", "--sdk", sdk]).args(more);
    Process::start("the client", &mut command)
}

async fn says(client: &mut Process, what: &str) -> String {
    client.says(what, |line| Some(line.strip_prefix(what)?.trim().to_owned())).await
}

#[tokio::test]
async fn real_clients_come_back_by_themselves() {
    for sdk in ["1", "2"] {
        let (gateway, stub) = start("").await;
        let network = Cutter::start(gateway.address()).await;
        let mut client = long_call(sdk, &network.url("/mcp/stub"), &[]).await;
        says(&mut client, "progress 1").await;
        network.cut();
        stub.release(1);
        says(&mut client, "progress 2").await;
        network.cut();
        stub.release(2);
        assert_eq!(says(&mut client, "result").await, "the end", "version {sdk} of the SDK");
        assert_eq!(client.end().await.code(), Some(0));
        assert_eq!(stub.asked("tools/call").len(), 1);
    }
}

#[tokio::test]
async fn a_client_that_was_started_anew_fetches_its_answer() {
    let (gateway, stub) = start("").await;
    let url = gateway.url("/mcp/stub");
    let mut first = long_call("1", &url, &[]).await;
    says(&mut first, "progress 1").await;
    let (session, token) = (says(&mut first, "session").await, says(&mut first, "token").await);
    drop(first);
    stub.release(3);
    until("the call has ended", || stub.held() == 0).await;
    let mut second = long_call("1", &url, &["--session", &session, "--token", &token]).await;
    assert_eq!(says(&mut second, "result").await, "the end");
    assert_eq!(stub.asked("tools/call").len(), 1);
}

#[tokio::test]
async fn the_greeting_is_no_stream() {
    let (gateway, _stub) = start("").await;
    assert!(!gateway.send(initialize("/mcp", LEGACY, &json!({}))).await.is_stream());
}

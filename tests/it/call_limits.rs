//! Limits of calls: how many run at once, how many come in a minute, and whether it is always the same one. Whoever
//! reaches one is told its name, and nobody else notices.

use std::net::Ipv4Addr;

use rustix::process::Signal;
use serde_json::json;
use weir_tests::client::{answer, initialize};
use weir_tests::stub::Offer;
use weir_tests::wait::{until, within};
use weir_tests::{Client, Gateway, Issuer, LEGACY, Request, Response, Stub};

/// Another caller.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn echo(client: &Client, message: &str) -> Request {
    client.request("tools/call", json!({ "name": "stub__echo", "arguments": { "message": message } })).1
}

/// Status, `Retry-After` and message of a refusal.
async fn refused(response: Response) -> (u16, u64, String) {
    let after = response.header("retry-after").and_then(|after| after.parse().ok()).unwrap_or_default();
    let status = response.status;
    (status, after, response.json().await["error"]["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_caller_over_its_rate_is_told_when_to_come_again_and_no_other_notices() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let audience = "https://weir.example/mcp";
    let auth = format!("[auth]\nissuer = {:?}\naudience = {audience:?}\n", issuer.issuer());
    let config = format!("limits.principal.calls_per_minute = 3\n{auth}{}", stub.config("stub"));
    let gateway = Gateway::start(&config).await;
    gateway.logs("upstream is healthy").await;
    let [ada, eve] = ["ada", "eve"].map(|subject| issuer.token(subject, audience));
    for client in [
        Client::modern(&gateway, "/mcp").with_token(&ada),
        Client::legacy_with(&gateway, "/mcp", &eve, &json!({})).await,
    ] {
        for number in 0..3 {
            assert_eq!(gateway.send(echo(&client, &number.to_string())).await.status, 200);
        }
        for _ in 0..2 {
            let (status, after, why) = refused(gateway.send(echo(&client, "more")).await).await;
            assert_eq!((status, (1..=21).contains(&after)), (429, true), "{after}: {why}");
            assert!(
                why.contains("3 calls in a minute") && why.contains("`limits.principal.calls_per_minute`"),
                "{why}"
            );
        }
        // What Weir answers by itself is no call to an upstream.
        assert_eq!(gateway.send(client.request("tools/list", json!({})).1).await.status, 200);
    }
    gateway.logs("\"outcome\":\"refused\"").await;
}

#[tokio::test]
async fn requests_that_weir_answers_itself_have_a_rate_too() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let audience = "https://weir.example/mcp";
    let auth = format!("[auth]\nissuer = {:?}\naudience = {audience:?}\n", issuer.issuer());
    let config = format!("limits.principal.requests_per_minute = 3\n{auth}{}", stub.config("stub"));
    let gateway = Gateway::start(&config).await;
    gateway.logs("upstream is healthy").await;
    let [ada, eve] = ["ada", "eve"].map(|subject| issuer.token(subject, audience));
    let modern = Client::modern(&gateway, "/mcp").with_token(&ada);
    // `initialize` is a request, too.
    let legacy = Client::legacy_with(&gateway, "/mcp", &eve, &json!({})).await;
    for (client, left) in [(&modern, 3), (&legacy, 2)] {
        let list = || client.request("tools/list", json!({})).1;
        for _ in 0..left {
            assert_eq!(gateway.send(list()).await.status, 200);
        }
        for request in [list(), echo(client, "more")] {
            let (status, after, why) = refused(gateway.send(request).await).await;
            assert_eq!((status, (1..=21).contains(&after)), (429, true), "{after}: {why}");
            let told = ["3 requests in a minute", "`limits.principal.requests_per_minute`"];
            assert!(told.iter().all(|told| why.contains(told)), "{why}");
        }
    }
    let hello = initialize("/mcp", LEGACY, &json!({})).header("authorization", &format!("Bearer {eve}"));
    assert_eq!(refused(gateway.send(hello).await).await.0, 429);
    assert!(stub.asked("tools/call").is_empty());
}

#[tokio::test]
async fn a_tool_has_a_rate_of_its_own_whoever_calls_it() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("limits.tool.calls_per_minute = 1\n{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    assert_eq!(gateway.send(echo(&client, "x")).await.status, 200);
    let (status, after, why) = refused(echo(&client, "y").send_from(OTHER, gateway.address()).await).await;
    assert_eq!((status, (1..=61).contains(&after)), (503, true), "{after}: {why}");
    assert!(why.contains("`limits.tool.calls_per_minute`"), "{why}");
    let other = client.request("tools/call", json!({ "name": "stub__burst", "arguments": { "message": "x" } })).1;
    assert_eq!(gateway.send(other).await.status, 200);
}

/// They are counted in the store, so a restart gives nobody a new budget.
#[tokio::test]
async fn the_calls_of_a_day_outlive_the_process() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let audience = "https://weir.example/mcp";
    let auth = format!("[auth]\nissuer = {:?}\naudience = {audience:?}\n", issuer.issuer());
    let config = format!("limits.principal.calls_per_day = 3\n{auth}{}", stub.config("stub"));
    let state = tempfile::tempdir().unwrap();
    let [ada, eve] = ["ada", "eve"].map(|subject| issuer.token(subject, audience));
    for calls in [2, 1, 0] {
        let mut gateway = Gateway::start_with(&config, &[("XDG_STATE_HOME", state.path().to_str().unwrap())]).await;
        gateway.logs("upstream is healthy").await;
        let client = Client::modern(&gateway, "/mcp").with_token(&ada);
        for _ in 0..calls {
            assert_eq!(gateway.send(echo(&client, "x")).await.status, 200);
        }
        if calls < 2 {
            let (status, after, why) = refused(gateway.send(echo(&client, "x")).await).await;
            assert_eq!((status, (1..=86_401).contains(&after)), (429, true), "{after}: {why}");
            assert!(why.contains("3 calls today") && why.contains("`limits.principal.calls_per_day`"), "{why}");
        }
        if calls == 1 {
            let other = Client::modern(&gateway, "/mcp").with_token(&eve);
            assert_eq!(gateway.send(echo(&other, "x")).await.status, 200);
        }
        gateway.signal(Signal::TERM);
        gateway.end().await;
    }
}

/// A stream at an upstream's own address is of its share, whoever opens it; one at `/mcp` is of none.
#[tokio::test]
async fn streams_of_an_upstream_have_a_limit() {
    let stub = Stub::start().await;
    let gateway =
        Gateway::start(&format!("limits.upstream.streams = 1\n{}tools = [\"echo\"]\n", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let listen = |path: &str| {
        let wish = json!({ "notifications": { "toolsListChanged": true } });
        Client::modern(&gateway, path).request("subscriptions/listen", wish).1
    };
    let held = gateway.send(listen("/mcp/stub")).await;
    assert_eq!(held.status, 200);
    let (status, _, why) = refused(listen("/mcp/stub").send_from(OTHER, gateway.address()).await).await;
    assert_eq!(status, 503);
    assert!(why.contains("`limits.upstream.streams`"), "{why}");
    assert_eq!(gateway.send(listen("/mcp")).await.status, 200);
    drop(held);
    let mut again = gateway.send(listen("/mcp/stub")).await.status;
    while again == 503 {
        again = gateway.send(listen("/mcp/stub")).await.status;
    }
    assert_eq!(again, 200);
}

#[tokio::test]
async fn calls_at_once_have_a_limit_and_give_their_slots_back() {
    let stub = Stub::start().await;
    let limits = "limits.calls = 3\nlimits.principal.calls = 2\n";
    let gateway = Gateway::start(&format!("{limits}{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let hold = || client.request("tools/call", json!({ "name": "stub__hold", "arguments": {} })).1;
    let mut running = tokio::task::JoinSet::new();
    let address = gateway.address();
    for count in 1..=2 {
        let request = hold();
        running.spawn(async move { request.send(address).await.status });
        until("the call is held", || stub.held() == count).await;
    }
    let (status, after, why) = refused(gateway.send(echo(&client, "x")).await).await;
    assert_eq!((status, after), (429, 5));
    assert_eq!(why, "this caller has 2 calls already, as many as `limits.principal.calls` allows");
    let request = hold();
    running.spawn(async move { request.send_from(OTHER, address).await.status });
    until("the call is held", || stub.held() == 3).await;
    // The gateway is full, and sheds what comes from anybody.
    let third = Ipv4Addr::new(127, 0, 0, 3);
    let (status, after, why) = refused(echo(&client, "x").send_from(third, address).await).await;
    assert_eq!((status, after), (503, 5));
    assert!(why.contains("`limits.calls`"), "{why}");
    // One whose client goes away gives its slot back as well as one that is answered.
    running.abort_all();
    while running.join_next().await.is_some() {}
    until("nobody waits any more", || stub.held() == 0).await;
    until("two wait again", || {
        let request = hold();
        tokio::spawn(async move { request.send(address).await.status });
        stub.held() == 2
    })
    .await;
}

#[tokio::test]
async fn streams_have_a_limit_of_their_own() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("limits.principal.streams = 1\n{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let listen = || client.request("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } })).1;
    let first = gateway.send(listen()).await;
    assert_eq!(first.status, 200);
    let (status, _, why) = refused(gateway.send(listen()).await).await;
    assert_eq!(status, 429);
    assert_eq!(why, "this caller has 1 streams already, as many as `limits.principal.streams` allows");
    drop(first);
    let mut status = 0;
    while status != 200 {
        status = gateway.send(listen()).await.status;
    }
}

#[tokio::test]
async fn a_model_that_repeats_itself_is_told_so() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("limits.repeated_calls = 2\n{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    for client in [Client::modern(&gateway, "/mcp"), Client::legacy(&gateway, "/mcp/stub").await] {
        let name = if client.list("tools/list", "tools").await.iter().any(|tool| tool["name"] == "echo") {
            "echo"
        } else {
            "stub__echo"
        };
        // On both paths it is the same tool; arguments tell them apart.
        let message = format!("by {name}");
        for _ in 0..2 {
            assert_ne!(client.call(name, json!({ "message": message })).await["isError"], true);
        }
        let told = client.call(name, json!({ "message": message })).await;
        assert_eq!(told["isError"], true, "{told}");
        assert!(told.to_string().contains("`limits.repeated_calls`"), "{told}");
        assert_ne!(client.call(name, json!({ "message": "another" })).await["isError"], true);
    }
}

#[tokio::test]
async fn a_legacy_client_that_hangs_up_holds_what_works_for_it() {
    let stub = Stub::offering(Offer { legacy: false, ..Offer::default() }).await;
    let limits = "limits = { body = \"128KiB\", tool.calls = 1, principal.body_memory = \"150KiB\" }\n";
    let gateway = Gateway::start(&(limits.to_owned() + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    // A version whose clients cannot resume an answer.
    let client = Client::legacy_at(gateway.address(), "/mcp/stub", "2025-06-18", &json!({})).await;
    let hold = || client.request("tools/call", json!({ "name": "hold", "arguments": {} }));
    let large = json!({ "name": "hold", "arguments": { "message": "x".repeat(90_000) } });
    tokio::select! {
        _ = client.send(client.request("tools/call", large.clone()).1) => panic!("it is held"),
        () = until("it is there", || !stub.asked("tools/call").is_empty()) => {}
    }
    gateway.logs("\"outcome\":\"cancelled\"").await;
    let (id, request) = hold();
    let full = answer(client.send(request).await, id).await;
    assert!(full["error"]["message"].as_str().unwrap().contains("`limits.tool.calls`"), "{full}");
    let (status, _, why) = refused(client.send(client.request("tools/call", large).1).await).await;
    assert!(status == 429 && why.contains("`limits.principal.body_memory`"), "{status}: {why}");
    // Its work ends, and the next may run.
    stub.release(1000);
    let again = async {
        loop {
            let (id, request) = hold();
            let answer = answer(client.send(request).await, id).await;
            if answer["error"].is_null() {
                return;
            }
        }
    };
    within("there is room again", again).await;
}

/// Its answer is there; that it does not take it is no reason to keep others from the tool.
#[tokio::test]
async fn a_client_that_does_not_read_its_stream_holds_no_slot() {
    let stub = Stub::start().await;
    let limits = "limits.tool.calls = 1\nlimits.body = \"32MiB\"\n";
    let gateway = Gateway::start(&(limits.to_owned() + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp/stub");
    let params =
        |text: String| json!({ "name": "burst", "arguments": { "message": text }, "_meta": { "progressToken": 1 } });
    // More than the system takes in for a client.
    let (_, long) = client.request("tools/call", params("x".repeat(24 << 20)));
    let unread = client.send(long).await;
    assert_eq!(unread.status, 200);
    let again = async {
        loop {
            let (id, request) = client.request("tools/call", params("short".to_owned()));
            let response = client.send(request).await;
            if response.status == 200 {
                return answer(response, id).await;
            }
        }
    };
    let answer = within("there is room again", again).await;
    assert_eq!(answer["result"]["content"][0]["text"], "short", "{answer}");
    drop(unread);
}

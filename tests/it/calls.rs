//! How a call ends: answered, streamed, cancelled or given up, in each era.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_tests::client::{answer, modern_headers, with_meta};
use weir_tests::stub::Offer;
use weir_tests::wait::{until, within};
use weir_tests::{Client, Gateway, Peer, Request, Stub};

async fn start() -> (Gateway, Stub) {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

/// A client of each era at each endpoint, with what goes before the name of a tool.
async fn everywhere(gateway: &Gateway) -> Vec<(Client, &'static str)> {
    vec![
        (Client::legacy(gateway, "/mcp").await, "stub__"),
        (Client::legacy(gateway, "/mcp/stub").await, ""),
        (Client::modern(gateway, "/mcp"), "stub__"),
        (Client::modern(gateway, "/mcp/stub"), ""),
    ]
}

#[tokio::test]
async fn a_burst_of_progress_arrives_whole_and_in_order() {
    let (gateway, _stub) = start().await;
    for (client, prefix) in everywhere(&gateway).await {
        let params = json!({
            "name": format!("{prefix}burst"),
            "arguments": { "message": "done" },
            "_meta": { "progressToken": "token-1" },
        });
        let (id, request) = client.request("tools/call", params);
        let messages = client.send(request).await.messages().await;
        let progress: Vec<u64> = messages
            .iter()
            .filter(|message| message["method"] == "notifications/progress")
            .inspect(|message| assert_eq!(message["params"]["progressToken"], "token-1"))
            .filter_map(|message| message["params"]["progress"].as_u64())
            .collect();
        assert_eq!(progress, (1..=10).collect::<Vec<_>>());
        let last = messages.last().unwrap();
        assert_eq!((&last["id"], &last["result"]["content"][0]["text"]), (&json!(id), &json!("done")));
    }
}

#[tokio::test]
async fn events_arrive_as_they_are_sent() {
    let peer = Peer::python().await;
    let gateway = Gateway::start(&peer.config("python")).await;
    gateway.healthy(&["python"]).await;
    for client in [Client::legacy(&gateway, "/mcp/python").await, Client::modern(&gateway, "/mcp/python")] {
        let params = json!({ "name": "slow", "arguments": { "seconds": 2 }, "_meta": { "progressToken": 7 } });
        let (_, request) = client.request("tools/call", params);
        let mut events = client.send(request).await.events();
        let first = events.next_message().await.unwrap();
        assert_eq!(first["method"], "notifications/progress", "{first}");
        let started = tokio::time::Instant::now();
        let rest = events.messages().await;
        let later = started.elapsed();
        assert!(later.as_millis() > 1000, "the last of ten events in two seconds came {later:?} after the first");
        assert_eq!(rest.len(), 10, "nine events and the result");
    }
}

#[tokio::test]
async fn a_modern_client_that_goes_away_cancels() {
    let (gateway, stub) = start().await;
    for (round, path) in ["/mcp", "/mcp/stub"].into_iter().enumerate() {
        let client = Client::modern(&gateway, path);
        let name = if path == "/mcp" { "stub__hold" } else { "hold" };
        let (_, request) = client.request("tools/call", json!({ "name": name, "arguments": {} }));
        let address = gateway.address();
        let call = tokio::spawn(async move { request.try_send(address).await.map(|response| response.status) });
        until("the call reaches the upstream", || stub.held() == 1).await;
        call.abort();
        until("the upstream sees that nobody waits", || stub.broken_off() == round + 1).await;
        assert_eq!(stub.held(), 0);
    }
}

#[tokio::test]
async fn a_legacy_client_that_goes_away_does_not_cancel() {
    let (gateway, stub) = start().await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    let (_, request) = client.request("tools/call", json!({ "name": "hold", "arguments": {} }));
    let address = gateway.address();
    let call = tokio::spawn(async move { request.try_send(address).await.map(|response| response.status) });
    until("the call reaches the upstream", || stub.held() == 1).await;
    call.abort();
    assert!(call.await.is_err());
    // Whatever the gateway makes of the disconnect is done once it has answered on another connection.
    assert_eq!(client.ask("ping", json!({})).await["result"], json!({}));
    assert_eq!((stub.held(), stub.broken_off()), (1, 0), "the call goes on without its client");
    stub.release(1);
    until("the call ends", || stub.held() == 0).await;
    assert_eq!(stub.broken_off(), 0);
}

#[tokio::test]
async fn a_cancellation_reaches_the_upstream() {
    let (gateway, stub) = start().await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    let (id, request) = client.request("tools/call", json!({ "name": "hold", "arguments": {} }));
    let address = gateway.address();
    let call = tokio::spawn(async move { request.try_send(address).await.map(|response| response.status) });
    until("the call reaches the upstream", || stub.held() == 1).await;

    let upstream_id = stub.asked("tools/call")[0].message()["id"].clone();
    let status =
        client.notify("notifications/cancelled", json!({ "requestId": id, "reason": "changed my mind" })).await;
    assert_eq!(status, 202);
    until("the upstream hears of it", || !stub.asked("notifications/cancelled").is_empty()).await;
    let cancelled = stub.asked("notifications/cancelled")[0].message();
    assert_eq!(cancelled["params"]["requestId"], upstream_id, "{cancelled}");
    stub.release(1);
    call.abort();
}

#[tokio::test]
async fn calls_of_one_session_do_not_wait_for_each_other() {
    let (gateway, stub) = start().await;
    for (client, prefix) in everywhere(&gateway).await {
        let (id, request) = client.request("tools/call", json!({ "name": format!("{prefix}hold"), "arguments": {} }));
        let address = gateway.address();
        let held = tokio::spawn(async move { answer(request.send(address).await, id).await });
        until("the first call waits", || stub.held() == 1).await;
        let quick = client.call(&format!("{prefix}echo"), json!({ "message": "quick" })).await;
        assert_eq!(quick["content"][0]["text"], "quick");
        stub.release(1);
        assert!(held.await.unwrap().get("result").is_some());
    }
}

#[tokio::test]
async fn a_failing_upstream_is_told_apart_from_a_failing_gateway() {
    let (gateway, _stub) = start().await;
    for (client, prefix) in everywhere(&gateway).await {
        for tool in ["fail", "refuse"] {
            let arguments = json!({ "message": "the upstream's own words" });
            let answer =
                client.ask("tools/call", json!({ "name": format!("{prefix}{tool}"), "arguments": arguments })).await;
            let said = answer.to_string();
            assert!(answer.get("error").is_some() || answer["result"]["isError"] == true, "{tool}: {said}");
            assert!(said.contains("stub"), "the message names the upstream: {said}");
        }
        // One failure harms no other call.
        assert_eq!(client.call(&format!("{prefix}echo"), json!({ "message": "on" })).await["content"][0]["text"], "on");
    }
}

#[tokio::test]
async fn a_busy_upstream_is_called_again_when_it_says() {
    let stub = Stub::offering(Offer { tools: vec!["busy".into()], ..Offer::default() }).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    for (number, (client, prefix)) in everywhere(&gateway).await.into_iter().enumerate() {
        let message = format!("call {number}");
        let start = Instant::now();
        let result = client.call(&format!("{prefix}busy"), json!({ "message": message, "after": "1" })).await;
        assert_eq!(result["content"][0]["text"], json!(message));
        assert!(start.elapsed() >= Duration::from_secs(1), "it was called again after {:?}", start.elapsed());
        // No call waits for so long: its client is told.
        let arguments = json!({ "message": message, "after": "3600" });
        let answer = client.ask("tools/call", json!({ "name": format!("{prefix}busy"), "arguments": arguments })).await;
        assert!(answer.to_string().contains("status 429"), "{answer}");
    }
}

#[tokio::test]
async fn an_upstream_that_comes_back_is_used_again() {
    let (gateway, stub) = start().await;
    let address = stub.address();
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    let call = || client.ask("tools/call", json!({ "name": "echo", "arguments": { "message": "hi" } }));
    assert_eq!(call().await["result"]["content"][0]["text"], "hi");

    drop(stub);
    until("the upstream is gone", || std::net::TcpStream::connect(address).is_err()).await;
    let failed = call().await;
    let said = failed.to_string();
    assert!(failed.get("error").is_some() || failed["result"]["isError"] == true, "{said}");
    assert!(said.contains("stub"), "the message names the upstream: {said}");

    // It has forgotten all its sessions.
    let _stub = Stub::at(address, Offer::default()).await;
    within("the upstream to be used again", async {
        while call().await["result"]["content"][0]["text"] != "hi" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_change_of_the_list_is_announced_to_a_modern_listener() {
    let peer = Peer::fixture("modern").await;
    let gateway = Gateway::start(&peer.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    let client = Client::modern(&gateway, "/mcp/fixture");
    let (id, request) =
        client.request("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let mut stream = client.send(request).await.events();
    let first = stream.next_message().await.unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");

    client.call("test_trigger_tool_change", json!({})).await;
    let changed = stream.next_message().await.unwrap();
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], json!(id), "{changed}");
}

#[tokio::test]
async fn a_change_of_the_list_is_announced_to_a_legacy_session_and_seen_by_all() {
    let stub = Stub::offering(Offer { modern: false, ..Offer::default() }).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let (all, own) = (Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp/stub").await);
    let (mut all_stream, mut own_stream) = (all.stream().await, own.stream().await);
    own.call("echo", json!({ "message": "hi" })).await;
    until("the gateway listens to the upstream", || stub.listeners() > 0).await;

    stub.offer(Offer { tools: vec!["new".to_owned()], modern: false, ..Offer::default() });
    within("the change to reach both streams", async {
        for stream in [&mut all_stream, &mut own_stream] {
            stub.announce("notifications/tools/list_changed");
            let heard = stream.next_message().await.unwrap();
            assert_eq!(heard["method"], "notifications/tools/list_changed", "{heard}");
        }
    })
    .await;
    within("the new list", async {
        while all.tools().await != ["stub__new"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(own.tools().await, ["new"]);
}

#[tokio::test]
async fn a_pair_of_eras_that_differs_is_translated() {
    let legacy = Stub::offering(Offer { modern: false, ..Default::default() }).await;
    let modern = Stub::offering(Offer { legacy: false, ..Default::default() }).await;
    let gateway = Gateway::start(&(legacy.config("old") + &modern.config("new"))).await;
    gateway.healthy(&["old", "new"]).await;

    let params = with_meta(json!({ "name": "echo", "arguments": {} }), &json!({}));
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = modern_headers(Request::post("/mcp/old", body.to_string()), "tools/call", &params);
    let answer: Value = gateway.send(request).await.json().await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");

    let client = Client::legacy(&gateway, "/mcp/new").await;
    let said = client.call("echo", json!({})).await;
    assert!(said["content"].is_array() && said.get("resultType").is_none(), "{said}");
}

#[tokio::test]
async fn a_stream_that_ends_before_the_answer_ends_in_an_error() {
    let offer = Offer { tools: vec!["stop".to_owned()], ..Offer::default() };
    let stub = Stub::offering(offer).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    for (path, tool) in [("/mcp/stub", "stop"), ("/mcp", "stub__stop")] {
        for client in [Client::modern(&gateway, path), Client::legacy(&gateway, path).await] {
            let (id, request) = client.request("tools/call", json!({ "name": tool, "arguments": {} }));
            let messages = client.send(request).await.messages().await;
            let last = messages.last().unwrap();
            assert_eq!(last["id"], json!(id), "{path}: {last}");
            assert!(last["error"]["message"].as_str().unwrap().contains("ended before the answer"), "{path}: {last}");
        }
    }
}

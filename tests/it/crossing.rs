//! What crosses an endpoint of many upstreams in either direction: progress, cancellation, log messages, questions, roots.

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::client::answer;
use weir_tests::stub::{Offer, Stub};
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, LEGACY, Peer};

async fn two_stubs(offer: Offer) -> (Gateway, [Stub; 2]) {
    let stubs = [Stub::offering(offer.clone()).await, Stub::offering(offer).await];
    let gateway = Gateway::start(&(stubs[0].config("one") + &stubs[1].config("two"))).await;
    gateway.healthy(&["one", "two"]).await;
    (gateway, stubs)
}

fn tools(names: &[&str]) -> Offer {
    Offer { tools: names.iter().map(|name| (*name).to_owned()).collect(), ..Offer::default() }
}

/// Everything on the stream of a call, the answer last.
async fn call(client: &Client, tool: &str, arguments: Value, meta: Value) -> Vec<Value> {
    let (_, request) = client.request("tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }));
    client.send(request).await.messages().await
}

fn progress(messages: &[Value]) -> Vec<(Value, f64)> {
    let told = messages.iter().filter(|message| message["method"] == "notifications/progress");
    told.map(|message| (message["params"]["progressToken"].clone(), message["params"]["progress"].as_f64().unwrap()))
        .collect()
}

#[tokio::test]
async fn progress_with_equal_tokens_finds_each_client() {
    let (python, fixture) = tokio::join!(Peer::python(), Peer::fixture("both"));
    let config = python.config("python") + &fixture.config("fixture");
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["python", "fixture"]).await;
    let clients = [
        Client::legacy(&gateway, "/mcp").await,
        Client::legacy(&gateway, "/mcp").await,
        Client::modern(&gateway, "/mcp"),
        Client::modern(&gateway, "/mcp"),
    ];
    let mut calls = Vec::new();
    for client in clients {
        calls.push(tokio::spawn(async move {
            let token = || json!({ "progressToken": "same" });
            tokio::join!(
                call(&client, "python__slow", json!({ "seconds": 0.5 }), token()),
                call(&client, "fixture__test_tool_with_progress", json!({}), token()),
            )
        }));
    }
    for call in calls {
        let (slow, quick) = call.await.unwrap();
        let same = json!("same");
        assert_eq!(progress(&slow), (1..=10).map(|step| (same.clone(), f64::from(step))).collect::<Vec<_>>());
        assert_eq!(progress(&quick), [0.0, 50.0, 100.0].map(|step| (same.clone(), step)));
    }
}

#[tokio::test]
async fn progress_that_does_not_lead_on_is_dropped() {
    let (gateway, _stubs) = two_stubs(tools(&["stutter"])).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let messages = call(&client, "two__stutter", json!({}), json!({ "progressToken": 7 })).await;
    assert_eq!(progress(&messages), [1.0, 2.0, 3.0].map(|step| (json!(7), step)));
    let own = Client::legacy(&gateway, "/mcp/two").await;
    let messages = call(&own, "stutter", json!({}), json!({ "progressToken": 7 })).await;
    assert_eq!(progress(&messages).len(), 5, "untouched where there is only one upstream");
}

#[tokio::test]
async fn a_cancellation_goes_to_the_one_upstream_and_ends_the_call() {
    let (gateway, [one, two]) = two_stubs(Offer::default()).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let (id, request) = client.request("tools/call", json!({ "name": "two__hold", "arguments": {} }));
    let address = gateway.address();
    let held = tokio::spawn(async move { request.send(address).await.messages().await });
    until("the call is there", || two.held() == 1).await;

    // Neither an unknown id nor the same digits as text concern anybody.
    for other in [json!(4711), json!(id.to_string())] {
        assert_eq!(client.notify("notifications/cancelled", json!({ "requestId": other })).await, 202);
    }
    assert!(two.asked("notifications/cancelled").is_empty());

    let cancel = json!({ "requestId": id, "reason": "enough" });
    assert_eq!(client.notify("notifications/cancelled", cancel.clone()).await, 202);
    assert_eq!(held.await.unwrap(), Vec::<Value>::new(), "no answer to what is cancelled");
    let seen = two.asked("notifications/cancelled");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].message()["params"], cancel);
    assert!(one.asked("notifications/cancelled").is_empty(), "nobody else hears of it");

    // Once more, when it is long over.
    assert_eq!(client.notify("notifications/cancelled", cancel).await, 202);
    assert_eq!(two.asked("notifications/cancelled").len(), 1);
    two.release(1);
    let next = client.call("two__echo", json!({ "message": "still here" })).await;
    assert_eq!(next["content"][0]["text"], "still here");
}

#[tokio::test]
async fn a_cancelled_stream_ends_without_an_answer() {
    let (gateway, _stubs) = two_stubs(tools(&["steps", "echo"])).await;
    for (path, tool) in [("/mcp", "two__steps"), ("/mcp/two", "steps")] {
        let client = Client::legacy(&gateway, path).await;
        let meta = json!({ "progressToken": "t" });
        let (id, request) =
            client.request("tools/call", json!({ "name": tool, "arguments": { "message": "x" }, "_meta": meta }));
        let mut events = client.send(request).await.events();
        let first = events.next_message().await.unwrap();
        assert_eq!(first["method"], "notifications/progress", "{path}");
        assert_eq!(client.notify("notifications/cancelled", json!({ "requestId": id })).await, 202);
        assert_eq!(events.next_message().await, None, "{path}");
    }
}

#[tokio::test]
async fn equal_ids_of_different_clients_are_different_calls() {
    let (gateway, [one, two]) = two_stubs(Offer::default()).await;
    let (first, second) = (Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp").await);
    let hold = |client: &Client, tool: &str| {
        let (id, request) = client.request("tools/call", json!({ "name": tool, "arguments": { "message": tool } }));
        let address = gateway.address();
        (id, tokio::spawn(async move { answer(request.send(address).await, id).await }))
    };
    let (id, held) = hold(&first, "one__hold");
    let (same, other) = hold(&second, "two__hold");
    assert_eq!(id, same);
    until("both calls are there", || one.held() + two.held() == 2).await;
    second.notify("notifications/cancelled", json!({ "requestId": id })).await;
    assert!(one.asked("notifications/cancelled").is_empty());
    one.release(1);
    assert_eq!(held.await.unwrap()["result"]["content"][0]["text"], "one__hold");
    assert!(other.await.is_err(), "a cancelled call has no answer");
}

#[tokio::test]
async fn a_modern_client_cancels_by_going_away() {
    let (gateway, [one, two]) = two_stubs(Offer::default()).await;
    let client = Client::modern(&gateway, "/mcp");
    let (_, request) = client.request("tools/call", json!({ "name": "two__hold", "arguments": {} }));
    let address = gateway.address();
    let held = tokio::spawn(async move { request.send(address).await.messages().await });
    until("the call is there", || two.held() == 1).await;
    held.abort();
    until("the upstream has noticed", || two.broken_off() == 1).await;
    assert_eq!(one.broken_off(), 0);
}

fn logs(messages: &[Value]) -> Vec<(&str, &str)> {
    let logs = messages.iter().filter(|message| message["method"] == "notifications/message");
    logs.map(|log| (log["params"]["level"].as_str().unwrap(), log["params"]["logger"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn log_messages_say_who_speaks_and_keep_to_the_level() {
    let (first, second) = tokio::join!(Peer::fixture("both"), Peer::fixture("legacy"));
    let gateway = Gateway::start(&(first.config("first") + &second.config("second"))).await;
    gateway.healthy(&["first", "second"]).await;
    let legacy = Client::legacy(&gateway, "/mcp").await;
    for level in ["info", "debug"] {
        legacy.result("logging/setLevel", json!({ "level": level })).await;
        for name in ["first", "second"] {
            let said = call(&legacy, &format!("{name}__test_tool_with_logging"), json!({}), json!({})).await;
            assert_eq!(logs(&said), [("info", name); 3], "{level}");
        }
    }
    legacy.result("logging/setLevel", json!({ "level": "error" })).await;
    let said = call(&legacy, "second__test_tool_with_logging", json!({}), json!({})).await;
    assert_eq!(logs(&said), []);
    for level in [json!("loud"), json!(7), Value::Null] {
        let refused = legacy.ask("logging/setLevel", json!({ "level": level })).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let modern = Client::modern(&gateway, "/mcp");
    for name in ["first", "second"] {
        let meta = json!({ "io.modelcontextprotocol/logLevel": "info" });
        let said = call(&modern, &format!("{name}__test_tool_with_logging"), json!({}), meta).await;
        assert_eq!(logs(&said), [("info", name); 3]);
        let said = call(&modern, &format!("{name}__test_tool_with_logging"), json!({}), json!({})).await;
        assert_eq!(logs(&said), [], "nobody asked for log messages");
    }
}

#[tokio::test]
async fn a_log_level_reaches_those_who_log_also_when_they_are_opened_later() {
    let able = Stub::offering(Offer { capabilities: json!({ "logging": {} }), ..Offer::default() }).await;
    let later = Stub::offering(Offer { capabilities: json!({ "logging": {} }), ..Offer::default() }).await;
    let without = Stub::start().await;
    let config = [able.config("able"), later.config("later"), without.config("without")].concat();
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["able", "later", "without"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    for name in ["able", "without"] {
        client.call(&format!("{name}__echo"), json!({})).await;
    }
    client.result("logging/setLevel", json!({ "level": "warning" })).await;
    client.call("later__echo", json!({})).await;
    for stub in [&able, &later] {
        let asked = stub.asked("logging/setLevel");
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].message()["params"]["level"], "warning");
    }
    assert!(without.asked("logging/setLevel").is_empty());
}

#[tokio::test]
async fn a_change_of_roots_reaches_every_upstream_that_is_open() {
    let (gateway, [one, two]) = two_stubs(Offer::default()).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    for name in ["one__echo", "two__echo"] {
        client.call(name, json!({})).await;
    }
    client.notify("notifications/roots/list_changed", json!({})).await;
    for stub in [&one, &two] {
        assert_eq!(stub.asked("notifications/roots/list_changed").len(), 1);
    }
}

#[tokio::test]
async fn progress_of_an_answer_reaches_the_one_who_asked() {
    let (first, second) = tokio::join!(Peer::fixture("legacy"), Peer::fixture("legacy"));
    let gateway = Gateway::start(&(first.config("first") + &second.config("second"))).await;
    gateway.healthy(&["first", "second"]).await;
    let client = Client::legacy_at(gateway.address(), "/mcp", LEGACY, &json!({ "elicitation": {} })).await;
    let mut streams = Vec::new();
    for name in ["first", "second"] {
        let tool = format!("{name}__elicitation_with_progress");
        let (_, request) = client.request("tools/call", json!({ "name": tool, "arguments": {} }));
        let mut events = client.send(request).await.events();
        let question = events.next_message().await.unwrap();
        assert_eq!(question["method"], "elicitation/create");
        streams.push((events, question));
    }
    // Both servers count from the same number, so both gave their questions the same token.
    let tokens: Vec<&Value> = streams.iter().map(|(_, asked)| &asked["params"]["_meta"]["progressToken"]).collect();
    assert_ne!(tokens[0], tokens[1]);
    for step in 1..=3 {
        client.notify("notifications/progress", json!({ "progressToken": tokens[1], "progress": step })).await;
    }
    for (count, (mut events, question)) in [0, 3].into_iter().zip(streams) {
        let content = json!({ "username": "ada", "email": "a@example.com" });
        let result = json!({ "action": "accept", "content": content });
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
        assert_eq!(client.send(client.post(answer.to_string())).await.status, 202);
        let result = events.next_message().await.unwrap();
        assert_eq!(result["result"]["content"][0]["text"], format!("progress: {count}"));
    }
}

/// Opens a listen stream; gives it and what it grants.
async fn listen(client: &Client, wish: Value) -> (weir_tests::events::Events, Value) {
    let (_, request) = client.request("subscriptions/listen", json!({ "notifications": wish }));
    let mut events = client.send(request).await.events();
    let first = events.next_message().await.unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    (events, first["params"]["notifications"].clone())
}

#[tokio::test]
async fn a_modern_client_watches_resources_of_either_era() {
    // Both have the same addresses, so the legacy one has them to itself on a gateway of its own.
    for era in ["modern", "legacy"] {
        let (fixture, python) = tokio::join!(Peer::fixture(era), Peer::python());
        let gateway = Gateway::start(&(fixture.config("fixture") + &python.config("python"))).await;
        gateway.healthy(&["fixture", "python"]).await;
        let client = Client::modern(&gateway, "/mcp");
        let discovered = client.result("server/discover", json!({})).await;
        assert_eq!(discovered["capabilities"]["resources"]["subscribe"], true);

        let watched = "test://watched-resource";
        let wish = json!({ "resourceSubscriptions": [watched, "nobody://nothing"], "toolsListChanged": true });
        let (mut events, granted) = listen(&client, wish).await;
        let expected = json!({ "resourceSubscriptions": [watched], "toolsListChanged": true });
        assert_eq!(granted, expected, "{era}");
        let (mut others, _) = listen(&client, json!({ "resourceSubscriptions": ["test://static-text"] })).await;

        client.call("fixture__touch_watched_resource", json!({})).await;
        let told = events.next_message().await.unwrap();
        assert_eq!(told["method"], "notifications/resources/updated", "{era}: {told}");
        assert_eq!(told["params"]["uri"], watched);
        assert!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].is_number(), "{told}");
        // Whoever did not ask hears nothing: the next thing there is the end.
        gateway.signal(Signal::TERM);
        while let Some(message) = others.next_message().await {
            assert_ne!(message["method"], "notifications/resources/updated", "{era}");
        }
    }
}

#[tokio::test]
async fn a_legacy_client_watches_what_it_asked_for() {
    let (first, second) = tokio::join!(Peer::fixture("legacy"), Peer::everything());
    let gateway = Gateway::start(&(first.config("first") + &second.config("second"))).await;
    gateway.healthy(&["first", "second"]).await;
    let (watching, other) = (Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp").await);
    let (mut told, mut untold) = (watching.stream().await, other.stream().await);
    let watched = json!({ "uri": "test://watched-resource" });
    watching.result("resources/subscribe", watched.clone()).await;
    for client in [&watching, &other] {
        client.call("first__touch_watched_resource", json!({})).await;
    }
    let update = told.next_message().await.unwrap();
    assert_eq!((&update["method"], &update["params"]), (&json!("notifications/resources/updated"), &watched));
    watching.result("resources/unsubscribe", watched.clone()).await;
    watching.call("first__touch_watched_resource", json!({})).await;
    for (client, stream) in [(watching, &mut told), (other, &mut untold)] {
        client.close().await;
        while let Some(message) = stream.next_message().await {
            assert_ne!(message["method"], "notifications/resources/updated");
        }
    }
}

#[tokio::test]
async fn what_is_watched_is_watched_on_when_the_upstream_has_lost_its_session() {
    let offer = Offer { capabilities: json!({ "resources": { "subscribe": true } }), ..Offer::default() };
    let stub = Stub::offering(offer.clone()).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    for (method, uri) in [("subscribe", "x://kept"), ("subscribe", "x://left"), ("unsubscribe", "x://left")] {
        client.ask(&format!("resources/{method}"), json!({ "uri": uri })).await;
    }
    assert_eq!(stub.asked("resources/subscribe").len(), 2);
    let address = stub.address();
    drop(stub);
    until("the address is free", || std::net::TcpListener::bind(address).is_ok()).await;
    let again = Stub::at(address, offer).await;
    client.call("stub__echo", json!({ "message": "still here" })).await;
    let asked = again.asked("resources/subscribe");
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].message()["params"]["uri"], "x://kept");
}

#[tokio::test]
async fn what_changes_while_nobody_listens_is_told_when_somebody_does() {
    let stub = Stub::offering(Offer { modern: false, ..tools(&["early"]) }).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let (client, watcher) = (Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp").await);
    assert_eq!(client.tools().await, ["stub__early"]);
    let mut watched = watcher.stream().await;
    until("the upstream is listened to", || stub.listeners() > 0).await;
    stub.offer(Offer { modern: false, ..tools(&["late"]) });
    stub.announce("notifications/tools/list_changed");
    assert_eq!(watched.next_message().await.unwrap()["method"], "notifications/tools/list_changed");
    let mut late = client.stream().await;
    assert_eq!(late.next_message().await.unwrap()["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn a_storm_of_changes_is_few_lists_and_few_words() {
    let stub = Stub::offering(Offer { modern: false, ..Offer::default() }).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let mut stream = client.stream().await;
    until("the upstream is listened to", || stub.listeners() > 0).await;
    let before = stub.asked("tools/list").len();
    for step in 0..200 {
        stub.offer(Offer { modern: false, ..tools(&[&format!("tool_{step}")]) });
        stub.announce("notifications/tools/list_changed");
    }
    stub.offer(Offer { modern: false, ..tools(&["last"]) });
    stub.announce("notifications/tools/list_changed");
    let mut told = 0;
    while client.tools().await != ["stub__last"] {
        assert_eq!(stream.next_message().await.unwrap()["method"], "notifications/tools/list_changed");
        told += 1;
    }
    assert!(told <= 10, "told {told} times");
    let listed = stub.asked("tools/list").len() - before;
    assert!(listed <= 10, "listed {listed} times");
    // A tool that was there a moment ago is unknown, by the upstream's own word.
    let gone = client.ask("tools/call", json!({ "name": "stub__tool_0", "arguments": {} })).await;
    assert_eq!(gone["error"]["code"], -32602);
}

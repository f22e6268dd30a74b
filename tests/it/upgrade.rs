//! What clients wait for and carry goes over to the process that takes over, or they are told that it has not.

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::client::{answer, with_meta};
use weir_tests::peer::{Launch, free_port};
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Issuer, LEGACY, Peer, Stub};

use crate::approval::page::approve_at_page;
use crate::approval::{OWN, is_asked, modern, reply, rules};
use crate::replicas::{self, LOST, call, event_id, listen};
use crate::sign_in::{AUDIENCE, text};

/// The process that takes over, once the one before has ended.
async fn upgraded(mut old: Gateway, config: &str) -> (Gateway, Gateway) {
    let new = old.upgrade(config);
    old.signal(Signal::QUIT);
    let new = new.await;
    assert_eq!(old.end().await.code(), Some(0), "{}", old.log());
    (new, old)
}

#[tokio::test]
async fn who_waits_for_an_approval_on_a_page_is_told_by_the_next_process() {
    let (issuer, stub, port) = (Issuer::start().await, Stub::start().await, free_port());
    let auth =
        format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\ntrust_sign_in_links = true\n", issuer.issuer());
    let root = format!("public_url = \"http://127.0.0.1:{port}\"\n");
    let config = [root, auth, rules(OWN), stub.config("stub")].concat();
    let old = Gateway::start_at(port, &config).await;
    old.logs("upstream is healthy").await;
    let token = issuer.token("ada", AUDIENCE);
    let legacy = Client::legacy_with(&old, "/mcp/stub", &token, &json!({ "elicitation": { "url": {} } })).await;
    let params = json!({ "name": "echo", "arguments": { "message": "again" } });
    let told = legacy.ask("tools/call", params.clone()).await;
    let before = told["error"]["data"]["elicitations"][0].clone();
    assert_eq!(before["mode"], "url", "{told}");

    let (new, _old) = upgraded(old, &config).await;
    let mut stream = legacy.stream().await;
    // Links are of the process that has made them. The request is the same.
    let told = legacy.ask("tools/call", params.clone()).await;
    let now = &told["error"]["data"]["elicitations"][0];
    assert_eq!(now["elicitationId"], before["elicitationId"], "{told}");
    approve_at_page(&new, now["url"].as_str().unwrap()).await;
    let complete = loop {
        let message = stream.next_message().await.unwrap();
        if message["method"] == "notifications/elicitation/complete" {
            break message;
        }
    };
    assert_eq!(complete["params"]["elicitationId"], before["elicitationId"], "{complete}");
    assert_eq!(text(&legacy.result("tools/call", params).await), "again");
}

#[tokio::test]
async fn an_approval_that_has_expired_meanwhile_is_told_too() {
    let (issuer, stub, port) = (Issuer::start().await, Stub::start().await, free_port());
    let auth =
        format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\ntrust_sign_in_links = true\n", issuer.issuer());
    let root = format!("public_url = \"http://127.0.0.1:{port}\"\n");
    let brief = rules(r#"{ by = "caller", expires = "2s" }"#);
    let config = [root, auth, brief, stub.config("stub")].concat();
    let old = Gateway::start_at(port, &config).await;
    old.logs("upstream is healthy").await;
    let token = issuer.token("ada", AUDIENCE);
    let legacy = Client::legacy_with(&old, "/mcp/stub", &token, &json!({ "elicitation": { "url": {} } })).await;
    let told = legacy.ask("tools/call", json!({ "name": "echo", "arguments": { "message": "late" } })).await;
    let id = told["error"]["data"]["elicitations"][0]["elicitationId"].clone();
    assert!(id.is_string(), "{told}");
    let (_new, _old) = upgraded(old, &config).await;
    // Nobody has answered, and nothing but the session knows who waits.
    let mut stream = legacy.stream().await;
    let complete = loop {
        let message = stream.next_message().await.unwrap();
        if message["method"] == "notifications/elicitation/complete" {
            break message;
        }
    };
    assert_eq!(complete["params"]["elicitationId"], id, "{complete}");
}

#[tokio::test]
async fn an_approved_call_whose_upstream_asks_its_client_goes_on() {
    let tools = ["visit"].map(str::to_owned).to_vec();
    let stub = Stub::offering(Offer { tools, legacy: false, ..Offer::default() }).await;
    let config = rules(OWN).replace("echo", "visit") + &stub.config("stub");
    let old = Gateway::start_at(free_port(), &config).await;
    old.healthy(&["stub"]).await;
    let client = Client::modern(&old, "/mcp");
    let arguments = json!({ "message": "hi" });
    let first = modern(&client, "stub__visit", arguments.clone(), json!({})).await;
    assert!(is_asked(&first), "{first}");
    let second = modern(&client, "stub__visit", arguments.clone(), reply(&first, "accept")).await;
    assert!(second["result"]["resultType"] == "input_required" && !is_asked(&second), "{second}");
    let name = second["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let back =
        json!({ "requestState": second["result"]["requestState"], "inputResponses": { name: { "action": "accept" } } });

    let (new, _old) = upgraded(old, &config).await;
    new.healthy(&["stub"]).await;
    let done = modern(&client, "stub__visit", arguments.clone(), back.clone()).await;
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    let replayed = modern(&client, "stub__visit", arguments, back).await;
    assert!(is_asked(&replayed), "a state is good once: {replayed}");
}

#[tokio::test]
async fn cursors_lead_on_in_the_next_process() {
    let stub = Stub::start().await;
    let config = format!("limits.page_size = 2\n{}", stub.config("stub"));
    let old = Gateway::start_at(free_port(), &config).await;
    old.healthy(&["stub"]).await;
    for client in [Client::legacy(&old, "/mcp").await, Client::modern(&old, "/mcp")] {
        assert_eq!(client.tools().await.len(), 5);
    }
    let clients = [Client::legacy(&old, "/mcp").await, Client::modern(&old, "/mcp")];
    let mut cursors = Vec::new();
    for client in &clients {
        cursors.push(client.result("tools/list", json!({})).await["nextCursor"].clone());
    }
    let (new, _old) = upgraded(old, &config).await;
    new.healthy(&["stub"]).await;
    for (client, cursor) in clients.iter().zip(cursors) {
        let page = client.result("tools/list", json!({ "cursor": cursor })).await;
        assert_eq!(page["tools"][0]["name"], "stub__burst", "{page}");
    }
}

#[tokio::test]
async fn what_a_client_has_missed_it_gets_from_the_next_process() {
    let stub = replicas::stub().await;
    let config = stub.config("stub");
    let old = Gateway::start_at(free_port(), &config).await;
    old.logs("upstream is healthy").await;
    let [answered, lost] = [Client::legacy(&old, "/mcp/stub").await, Client::legacy(&old, "/mcp/stub").await];
    let mut seen = Vec::new();
    for client in [&answered, &lost] {
        let mut events = old.send(call(client, "steps").1).await.events();
        event_id(&mut events).await;
        seen.push(event_id(&mut events).await);
        drop(events);
        if std::ptr::eq(client, &answered) {
            stub.release(3);
            assert_eq!(listen(&old, client, Some(&seen[0])).await.events().messages().await.len(), 3);
        }
    }
    let (new, _old) = upgraded(old, &config).await;
    let rest = listen(&new, &answered, Some(&seen[0])).await.events().messages().await;
    assert_eq!(rest.len(), 3, "{rest:?}");
    assert_eq!(rest[2]["result"]["content"][0]["text"], "the end");
    let rest = listen(&new, &lost, Some(&seen[1])).await.events().messages().await;
    assert!(rest.last().unwrap()["error"]["message"].as_str().unwrap().contains(LOST), "{rest:?}");
    // Another call has a stream of its own, and none is mistaken for it.
    let mut events = new.send(call(&lost, "steps").1).await.events();
    let begun = event_id(&mut events).await;
    let stream = |id: &str| id.split_once('-').unwrap().0.to_owned();
    assert!(seen.iter().all(|seen| stream(seen) != stream(&begun)), "{begun} {seen:?}");
}

/// Calls a tool of a legacy upstream that asks for a name.
async fn ask_modern(client: &Client, more: Value) -> Value {
    let mut params = json!({ "name": "test_elicitation", "arguments": { "message": "who?" } });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let params = with_meta(params, &json!({ "elicitation": {} }));
    let (id, request) = client.request_with("tools/call", params);
    let named = json!({ "name": "test_elicitation" });
    answer(client.send(client.dressed(request, "tools/call", &named)).await, id).await
}

/// What a client that was asked comes back with.
fn back(asked: &Value) -> Value {
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let name = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let given = json!({ "action": "accept", "content": { "username": "ada", "email": "ada@example.com" } });
    json!({ "requestState": asked["result"]["requestState"], "inputResponses": { name: given } })
}

/// It stands at a connection of the process before, which has it as long as that lives.
#[tokio::test]
async fn a_call_that_waits_for_its_client_s_answer_goes_on_at_the_process_before() {
    for config in [Peer::fixture("legacy").await.config("fixture"), Launch::fixture("legacy").config("fixture")] {
        let mut old = Gateway::start_at(free_port(), &config).await;
        old.healthy(&["fixture"]).await;
        let client = Client::modern(&old, "/mcp/fixture");
        let asked = ask_modern(&client, json!({})).await;
        let new = old.upgrade(&config);
        old.signal(Signal::QUIT);
        let new = new.await;
        new.healthy(&["fixture"]).await;
        old.logs("running calls may finish").await;
        let done = ask_modern(&client, back(&asked)).await;
        assert!(done["result"].to_string().contains("ada"), "{done}");
        // Nobody waits for anything there any more.
        assert_eq!(old.end().await.code(), Some(0), "{}", old.log());
        let asked = ask_modern(&client, json!({})).await;
        assert!(ask_modern(&client, back(&asked)).await["result"].to_string().contains("ada"));
    }
}

#[tokio::test]
async fn a_call_that_has_waited_for_too_long_ends_and_says_so() {
    let peer = Peer::fixture("legacy").await;
    let config = format!("limits.drain = \"1s\"\n{}", peer.config("fixture"));
    let old = Gateway::start_at(free_port(), &config).await;
    old.healthy(&["fixture"]).await;
    let client = Client::modern(&old, "/mcp/fixture");
    let asked = ask_modern(&client, json!({})).await;
    let (new, _old) = upgraded(old, &config).await;
    new.healthy(&["fixture"]).await;
    let told = ask_modern(&client, back(&asked)).await;
    assert_eq!(told["error"]["code"], -32602, "{told}");
    let why = told["error"]["message"].as_str().unwrap();
    assert!(why.contains("call again without it"), "{why}");
    // As it is told, so it is.
    assert_eq!(ask_modern(&client, json!({})).await["result"]["resultType"], "input_required");
}

#[tokio::test]
async fn a_question_of_a_call_of_the_process_before_is_answered_through_the_next_one() {
    let server = Peer::fixture("legacy").await;
    let peer = server.config("fixture");
    // It would start beside the file of its configuration, and each gateway of a test has a file of its own.
    let process = format!("{}cwd = \"/\"\n", Launch::fixture("legacy").config("fixture"));
    for (config, path, tool) in [
        (&peer, "/mcp/fixture", "test_elicitation"),
        (&peer, "/mcp", "fixture__test_elicitation"),
        (&process, "/mcp/fixture", "test_elicitation"),
        (&process, "/mcp", "fixture__test_elicitation"),
    ] {
        let mut old = Gateway::start_at(free_port(), config).await;
        old.healthy(&["fixture"]).await;
        let client = Client::legacy_at(old.address(), path, LEGACY, &json!({ "elicitation": {} })).await;
        let asks = json!({ "name": tool, "arguments": { "message": "who?" } });
        let (id, request) = client.request("tools/call", asks);
        let mut events = old.send(request).await.events();
        let question = loop {
            let message = events.next_message().await.unwrap();
            if message["method"] == "elicitation/create" {
                break message["id"].clone();
            }
        };
        let new = old.upgrade(config);
        old.signal(Signal::QUIT);
        let new = new.await;
        let given = json!({ "action": "accept", "content": { "username": "ada", "email": "ada@example.com" } });
        let reply = json!({ "jsonrpc": "2.0", "id": question, "result": given });
        assert_eq!(new.send(client.post(reply.to_string())).await.status, 202);
        let answered = events.next_message().await.unwrap();
        assert!(answered["id"] == json!(id) && answered.to_string().contains("ada"), "{path}: {answered}");
        drop(events);
        assert_eq!(old.end().await.code(), Some(0), "{}", old.log());
    }
}

#[tokio::test]
async fn a_call_of_the_process_before_is_cancelled_and_resumed_through_the_next_one() {
    let stub = replicas::stub().await;
    let config = stub.config("stub");
    let mut old = Gateway::start_at(free_port(), &config).await;
    old.logs("upstream is healthy").await;
    let client = Client::legacy(&old, "/mcp/stub").await;
    let opened = stub.sessions_opened();
    let mut events = old.send(call(&client, "steps").1).await.events();
    event_id(&mut events).await;
    let seen = event_id(&mut events).await;
    let (id, request) = call(&client, "hold");
    let address = old.address();
    let held = tokio::spawn(async move { request.send(address).await.messages().await });
    until("the call is at the upstream", || stub.held() == 1).await;

    let new = old.upgrade(&config);
    old.signal(Signal::QUIT);
    let new = new.await;
    replicas::echoes(&new, &client).await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    assert_eq!(new.send(client.post(cancel.to_string())).await.status, 202);
    assert!(held.await.unwrap().is_empty(), "a cancelled call has no answer");
    drop(events);
    old.logs("running calls may finish").await;
    // Nobody has a stream of it by now, and it goes on.
    assert!(listen(&new, &client, Some(&seen)).await.events().messages().await.is_empty());
    stub.release(3);
    let rest = loop {
        let rest = listen(&new, &client, Some(&seen)).await.events().messages().await;
        if rest.len() == 3 {
            break rest;
        }
    };
    assert_eq!(rest[2]["result"]["content"][0]["text"], "the end", "{rest:?}");
    assert_eq!(old.end().await.code(), Some(0), "{}", old.log());
    // What the upstream knows of the client it knows still.
    replicas::echoes(&new, &client).await;
    assert_eq!(stub.sessions_opened(), opened, "the session at the upstream goes on");
}

/// Some upstreams let a session have one stream.
#[tokio::test]
async fn what_an_upstream_says_of_its_own_accord_comes_through_the_next_process() {
    let stub = replicas::stub().await;
    let config = stub.config("stub");
    let mut old = Gateway::start_at(free_port(), &config).await;
    old.logs("upstream is healthy").await;
    let client = Client::legacy(&old, "/mcp/stub").await;
    let before = client.stream().await;
    let opened = stub.sessions_opened();
    let new = old.upgrade(&config);
    old.signal(Signal::QUIT);
    let new = new.await;
    assert_eq!(old.end().await.code(), Some(0), "{}", old.log());
    drop(before);
    let mut stream = listen(&new, &client, None).await.events();
    replicas::say(&stub, "news");
    while !stream.next_message().await.unwrap().to_string().contains("news") {}
    assert_eq!(stub.sessions_opened(), opened);
}

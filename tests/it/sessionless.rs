//! Legacy clients at an upstream that knows no sessions.

use serde_json::{Value, json};
use weir_tests::client::{answer, texts};
use weir_tests::events::Events;
use weir_tests::peer::Launch;
use weir_tests::{Client, Gateway, LEGACY, Peer};

const ASKED: &str = "test_input_required_result_multi_round";

async fn start() -> (Gateway, Peer) {
    let fixture = Peer::fixture("modern").await;
    let gateway = Gateway::start(&fixture.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    (gateway, fixture)
}

async fn client(gateway: &Gateway, path: &str, capabilities: Value) -> Client {
    Client::legacy_at(gateway.address(), path, LEGACY, &capabilities).await
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}

/// Answers each question on a call's stream by its message; gives the answer of the call.
async fn converse(client: &Client, tool: &str, reply: impl Fn(&str) -> Value) -> Value {
    let (id, request) = client.request("tools/call", json!({ "name": tool, "arguments": {} }));
    let mut events: Events = client.send(request).await.events();
    while let Some(message) = events.next_message().await {
        if message["id"] == json!(id) && message.get("method").is_none() {
            return message;
        }
        if message["method"] == "elicitation/create" {
            let result = reply(message["params"]["message"].as_str().unwrap());
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
            assert_eq!(client.send(client.post(answer.to_string())).await.status, 202);
        }
    }
    panic!("the stream ended without an answer");
}

fn accept(field: &str, value: &str) -> Value {
    json!({ "action": "accept", "content": { field: value } })
}

async fn what_a_session_offers(gateway: &Gateway) {
    let one = client(gateway, "/mcp/fixture", json!({})).await;
    assert_eq!(one.greeting()["protocolVersion"], LEGACY);
    assert_eq!(one.greeting()["serverInfo"]["name"], "weir-conformance-fixture");
    assert_eq!(one.greeting()["capabilities"]["resources"]["subscribe"], true);
    assert!(one.greeting().get("resultType").is_none() && one.greeting()["instructions"].is_string());
    let list = one.result("tools/list", json!({})).await;
    assert!(list.get("ttlMs").is_none() && list.get("resultType").is_none(), "{list}");
    let all = client(gateway, "/mcp", json!({})).await;
    let own = texts(list["tools"].as_array().unwrap(), "name");
    let public: Vec<String> = own.iter().map(|name| format!("fixture__{name}")).collect();
    assert_eq!(all.tools().await, public);
    for (client, prefix) in [(&one, ""), (&all, "fixture__")] {
        let said = client.call(&format!("{prefix}test_x_mcp_header"), json!({ "region": "größe" })).await;
        assert_eq!(said["content"][0]["text"], "Region: größe");
        assert!(said.get("resultType").is_none() && said.get("_meta").is_none(), "{said}");
        assert_eq!(client.result("ping", json!({})).await, json!({}));
        assert_eq!(client.result("logging/setLevel", json!({ "level": "error" })).await, json!({}));
        let unknown = client.ask("resources/read", json!({ "uri": "test://nothing" })).await;
        assert_eq!(unknown["error"]["code"], -32002, "{unknown}");
    }
}

#[tokio::test]
async fn a_session_offers_what_the_upstream_does() {
    let (gateway, _fixture) = start().await;
    what_a_session_offers(&gateway).await;
}

#[tokio::test]
async fn a_session_offers_what_a_process_does() {
    let gateway = Gateway::start(&Launch::fixture("modern").config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    what_a_session_offers(&gateway).await;
}

#[tokio::test]
async fn questions_come_round_by_round_on_the_stream_of_their_call() {
    let (gateway, _fixture) = start().await;
    for (path, prefix) in [("/mcp/fixture", ""), ("/mcp", "fixture__")] {
        let client = client(&gateway, path, json!({ "elicitation": {} })).await;
        let said = converse(&client, &format!("{prefix}{ASKED}"), |question| match question {
            "Step 1: What is your name?" => accept("name", "Ada"),
            _ => accept("color", "red"),
        })
        .await;
        assert_eq!(text(&said), "Ada likes red.");
    }
}

#[tokio::test]
async fn questions_of_many_clients_are_not_mixed_up() {
    const CLIENTS: usize = 12;
    let (gateway, _fixture) = start().await;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = client(&gateway, "/mcp", json!({ "elicitation": {} })).await;
        clients.push(tokio::spawn(async move {
            let name = format!("client-{number}");
            let said = converse(&client, &format!("fixture__{ASKED}"), |question| {
                if question.starts_with("Step 1") { accept("name", &name) } else { accept("color", "red") }
            })
            .await;
            assert_eq!(text(&said), format!("{name} likes red."));
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn a_client_is_not_asked_what_it_has_not_declared() {
    let (gateway, _fixture) = start().await;
    let client = client(&gateway, "/mcp/fixture", json!({ "elicitation": {} })).await;
    let said = client.call("test_missing_capability", json!({})).await;
    assert_eq!(said["isError"], true);
    let why = said["content"][0]["text"].as_str().unwrap();
    assert!(why.contains("a client that declares `sampling`"), "{why}");
    // What the client declares is what the upstream sees: neither more nor less.
    let (id, request) = client.request("tools/call", json!({ "name": "test_input_required_result_capabilities" }));
    let mut events = client.send(request).await.events();
    let question = events.next_message().await.unwrap();
    assert_eq!(question["method"], "elicitation/create");
    let refusal = json!({ "jsonrpc": "2.0", "id": question["id"], "error": { "code": -1, "message": "nobody" } });
    client.send(client.post(refusal.to_string())).await;
    let last = events.next_message().await.unwrap();
    assert_eq!((&last["id"], text(&last)), (&json!(id), "Nothing more to ask."));
}

#[tokio::test]
async fn changes_reach_the_stream_of_the_session() {
    let (gateway, _fixture) = start().await;
    let client = client(&gateway, "/mcp/fixture", json!({})).await;
    let mut stream = client.stream().await;
    let watched = json!({ "uri": "test://watched-resource" });
    assert_eq!(client.result("resources/subscribe", watched.clone()).await, json!({}));
    client.call("test_trigger_tool_change", json!({})).await;
    let change = stream.next_message().await.unwrap();
    assert_eq!(change["method"], "notifications/tools/list_changed");
    assert!(change["params"].get("_meta").is_none(), "{change}");
    assert_eq!(client.result("resources/unsubscribe", watched).await, json!({}));
    client.call("test_trigger_prompt_change", json!({})).await;
    while let Some(change) = stream.next_message().await {
        if change["method"] == "notifications/prompts/list_changed" {
            return;
        }
    }
    panic!("the stream ended");
}

#[tokio::test]
async fn progress_and_log_messages_come_on_the_stream_of_their_call() {
    let (gateway, _fixture) = start().await;
    let client = client(&gateway, "/mcp/fixture", json!({})).await;
    let params = json!({ "name": "test_tool_with_progress", "_meta": { "progressToken": "t" } });
    let (_, request) = client.request("tools/call", params);
    let mut events = client.send(request).await.events();
    for progress in [0, 50, 100] {
        let message = events.next_message().await.unwrap();
        assert_eq!(message["params"]["progressToken"], "t");
        assert_eq!(message["params"]["progress"], progress);
    }
    client.result("logging/setLevel", json!({ "level": "emergency" })).await;
    let (id, request) = client.request("tools/call", json!({ "name": "test_tool_with_logging" }));
    let quiet = client.send(request).await;
    assert!(!quiet.is_stream());
    assert!(text(&answer(quiet, id).await).len() > 1);
}

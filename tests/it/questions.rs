//! What a legacy upstream asks of the client while a call runs: the question goes to the client of that call, and the
//! answer to the upstream that asked.

use serde_json::{Value, json};
use weir_tests::client::answer;
use weir_tests::events::Events;
use weir_tests::{Client, Gateway, LEGACY, Peer, Request};

/// A call of a tool that asks for a name.
fn asking(client: &Client, tool: &str) -> (u64, Request) {
    client.request("tools/call", json!({ "name": tool, "arguments": { "message": "Who are you?" } }))
}

/// Waits for the question and answers it as `name`.
async fn reply(client: &Client, events: &mut Events, name: &str) {
    loop {
        let message = events.next_message().await.expect("there is a question before the end");
        if message["method"] != "elicitation/create" {
            continue;
        }
        assert_eq!(message["params"]["message"], "Who are you?");
        let content = json!({ "username": name, "email": "a@example.com" });
        let result = json!({ "action": "accept", "content": content });
        let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
        assert_eq!(client.send(client.post(answer.to_string())).await.status, 202);
        return;
    }
}

/// The call, the question on its stream, the answer, and then the text of the result.
async fn converse(client: &Client, tool: &str, name: &str) -> String {
    let (id, request) = asking(client, tool);
    let mut events = client.send(request).await.events();
    reply(client, &mut events, name).await;
    while let Some(message) = events.next_message().await {
        if message["id"] == json!(id) {
            return text(&message["result"]);
        }
    }
    panic!("the stream ended without an answer");
}

fn text(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result}")).to_owned()
}

async fn client(gateway: &Gateway, path: &str) -> Client {
    Client::legacy_at(gateway.address(), path, LEGACY, &json!({ "elicitation": {}, "sampling": {} })).await
}

async fn start() -> (Gateway, Peer) {
    let fixture = Peer::fixture("legacy").await;
    let gateway = Gateway::start(&fixture.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    (gateway, fixture)
}

#[tokio::test]
async fn a_question_finds_its_way_every_time() {
    const ROUNDS: usize = 40;
    let (gateway, _fixture) = start().await;
    for round in 0..ROUNDS {
        let (path, prefix) = if round % 2 == 0 { ("/mcp/fixture", "") } else { ("/mcp", "fixture__") };
        let client = client(&gateway, path).await;
        let said = converse(&client, &format!("{prefix}test_elicitation"), "ada").await;
        assert!(said.contains("\"username\":\"ada\""), "round {round}: {said}");
        client.close().await;
    }
}

/// The SDK of version 2 sends its questions this way unless it is told otherwise.
#[tokio::test]
async fn a_question_on_the_stream_of_the_session_finds_its_way_too() {
    const ROUNDS: usize = 40;
    let (gateway, _fixture) = start().await;
    for round in 0..ROUNDS {
        // On `/mcp` it is the first call that opens the upstream, whose question must not come before it is heard.
        let (path, prefix) = if round % 2 == 0 { ("/mcp/fixture", "") } else { ("/mcp", "fixture__") };
        let client = client(&gateway, path).await;
        let mut stream = client.stream().await;
        let (id, request) = asking(&client, &format!("{prefix}elicitation_on_the_other_stream"));
        let address = gateway.address();
        let call = tokio::spawn(async move { answer(request.send(address).await, id).await });
        reply(&client, &mut stream, "ada").await;
        let said = text(&call.await.unwrap()["result"]);
        assert!(said.contains("\"username\":\"ada\""), "round {round}: {said}");
        client.close().await;
    }
}

#[tokio::test]
async fn questions_of_many_clients_are_not_mixed_up() {
    const CLIENTS: usize = 16;
    let (gateway, _fixture) = start().await;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = client(&gateway, "/mcp").await;
        clients.push(tokio::spawn(async move {
            let name = format!("client-{number}");
            let said = converse(&client, "fixture__test_elicitation", &name).await;
            (name, said)
        }));
    }
    for asked in clients {
        let (name, said) = asked.await.unwrap();
        assert!(said.contains(&format!("\"{name}\"")), "{name}: {said}");
    }
}

/// A server may have tools only for clients of some capabilities. Weir, which has none, does not list them.
#[tokio::test]
async fn a_tool_that_is_there_for_some_clients_only_can_be_called_by_them() {
    let everything = Peer::everything().await;
    let gateway = Gateway::start(&everything.config("everything")).await;
    gateway.healthy(&["everything"]).await;
    let call = json!({ "name": "everything__trigger-sampling-request", "arguments": { "prompt": "A word?" } });
    let capable = client(&gateway, "/mcp").await;
    let (id, request) = capable.request("tools/call", call.clone());
    let mut events = capable.send(request).await.events();
    let result = loop {
        let message = events.next_message().await.expect("the call is answered");
        if message["method"] == "sampling/createMessage" {
            let said = json!({ "type": "text", "text": "Yes" });
            let result = json!({ "role": "assistant", "model": "test", "content": said });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
            assert_eq!(capable.send(capable.post(answer.to_string())).await.status, 202);
        } else if message["id"] == json!(id) {
            break message["result"].clone();
        }
    };
    assert!(text(&result).contains("Yes"), "{result}");
    let other = Client::legacy(&gateway, "/mcp").await;
    let refused = other.ask("tools/call", call).await;
    assert!(refused.to_string().contains("trigger-sampling-request not found"), "{refused}");
    let unknown = other.ask("tools/call", json!({ "name": "nobody__knows" })).await;
    assert_eq!(unknown["error"]["message"], "Unknown tool: nobody__knows");
}

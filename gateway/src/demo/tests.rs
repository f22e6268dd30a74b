//! The whole server over pipes, in both eras.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, DuplexStream, Lines, ReadHalf, WriteHalf, split};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

struct Client {
    to: WriteHalf<DuplexStream>,
    from: Lines<BufReader<ReadHalf<DuplexStream>>>,
    server: JoinHandle<io::Result<()>>,
}

impl Client {
    fn connect() -> Self {
        let (ours, theirs) = tokio::io::duplex(1024);
        let (stdin, stdout) = split(theirs);
        let server = tokio::spawn(run(stdin, stdout));
        let (from, to) = split(ours);
        Self { to, from: BufReader::new(from).lines(), server }
    }

    async fn line(&mut self, line: &str) {
        self.to.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn send(&mut self, method: &str, id: Option<u64>, params: Value) {
        let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        if let Some(id) = id {
            message["id"] = json!(id);
        }
        self.line(&message.to_string()).await;
    }

    async fn next(&mut self) -> Value {
        let line = timeout(Duration::from_secs(10), self.from.next_line()).await.unwrap();
        serde_json::from_str(&line.unwrap().unwrap()).unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(method, Some(1), params).await;
        let answer = self.next().await;
        assert_eq!(answer["id"], 1);
        answer
    }

    async fn modern(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, claiming(params)).await
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await["result"].take()
    }
}

fn claiming(mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}

#[tokio::test]
async fn legacy_handshake_agrees_on_a_version() {
    let mut client = Client::connect();
    for (asked, given) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1900-01-01", "2025-11-25"),
    ] {
        let answer = client.ask("initialize", json!({"protocolVersion": asked, "capabilities": {}})).await;
        assert_eq!(answer["result"]["protocolVersion"], given);
        assert_eq!(answer["result"]["serverInfo"]["name"], "weir-demo");
        assert_eq!(answer["result"].get("resultType"), None);
    }
    client.send("notifications/initialized", None, json!({})).await;
    assert_eq!(client.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn modern_discovery_and_its_refusals() {
    let mut client = Client::connect();
    let found = client.modern("server/discover", json!({})).await["result"].take();
    assert_eq!(found["supportedVersions"], json!(["2026-07-28"]));
    assert_eq!(found["resultType"], "complete");
    assert_eq!(found["cacheScope"], "public");
    assert!(found["ttlMs"].is_u64());
    assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "weir-demo");

    for method in ["initialize", "ping", "logging/setLevel", "resources/subscribe", "no/such"] {
        assert_eq!(client.modern(method, json!({})).await["error"]["code"], -32601, "{method}");
    }
    assert_eq!(client.ask("server/discover", json!({})).await["error"]["code"], -32601);

    let mut params = claiming(json!({}));
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2027-01-01");
    let error = client.ask("tools/list", params).await["error"].take();
    assert_eq!(error["code"], -32022);
    assert_eq!(error["data"], json!({"supported": ["2026-07-28"], "requested": "2027-01-01"}));

    let params = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}});
    assert_eq!(client.ask("tools/list", params).await["error"]["code"], -32602);
}

#[tokio::test]
async fn lists_are_the_same_in_both_eras_but_for_the_cache_hints() {
    let mut client = Client::connect();
    for (method, key, count) in [
        ("tools/list", "tools", 3),
        ("resources/list", "resources", 1),
        ("resources/templates/list", "resourceTemplates", 0),
        ("prompts/list", "prompts", 1),
    ] {
        let legacy = client.ask(method, json!({})).await["result"].take();
        let modern = client.modern(method, json!({})).await["result"].take();
        assert_eq!(legacy[key].as_array().unwrap().len(), count);
        assert_eq!(legacy[key], modern[key]);
        assert_eq!((legacy.get("resultType"), legacy.get("ttlMs")), (None, None));
        assert_eq!(modern["resultType"], "complete");
        assert!(modern["ttlMs"].is_u64() && modern["cacheScope"].is_string());
    }
}

#[tokio::test]
async fn tools_answer_and_explain_mistakes() {
    let mut client = Client::connect();
    let said = client.call("echo", json!({"text": "hej \u{1f30a}"})).await;
    assert_eq!(said, json!({"content": [{"type": "text", "text": "hej \u{1f30a}"}]}));
    let sum = client.call("add", json!({"a": 2, "b": 40})).await;
    assert_eq!(sum["structuredContent"], json!({"sum": 42}));
    assert_eq!(sum["content"][0]["text"], "42");
    let sum = client.call("add", json!({"a": 0.5, "b": i64::MAX})).await;
    assert!(sum["structuredContent"]["sum"].is_f64());

    for (tool, arguments) in [
        ("echo", json!({})),
        ("add", json!({"a": "1", "b": 2})),
        ("add", json!({"a": 1e308, "b": 1e308})),
        ("countdown", json!({"from": 0})),
        ("countdown", json!({"from": 2, "pause_ms": "long"})),
    ] {
        assert_eq!(client.call(tool, arguments).await["isError"], true, "{tool}");
    }
    let unknown = client.ask("tools/call", json!({"name": "subtract"})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    let modern = client.modern("tools/call", json!({"name": "echo", "arguments": {"text": "x"}})).await;
    assert_eq!(modern["result"]["resultType"], "complete");
    assert_eq!(modern["result"].get("ttlMs"), None);
}

#[tokio::test]
async fn the_resource_and_the_prompt() {
    let mut client = Client::connect();
    let content = client.ask("resources/read", json!({"uri": "demo://readme"})).await["result"]["contents"][0].take();
    assert!(content["text"].as_str().unwrap().contains("weir serve --config weir.toml"));
    let missing = json!({"uri": "demo://nothing"});
    assert_eq!(client.ask("resources/read", missing.clone()).await["error"]["code"], -32002);
    assert_eq!(client.modern("resources/read", missing).await["error"]["code"], -32602);

    let prompt = client.ask("prompts/get", json!({"name": "introduce", "arguments": {"name": "Ada"}})).await;
    assert!(prompt["result"]["messages"][0]["content"]["text"].as_str().unwrap().contains("Ada"));
    assert_eq!(client.ask("prompts/get", json!({"name": "introduce"})).await["error"]["code"], -32602);
    assert_eq!(client.ask("prompts/get", json!({"name": "other"})).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_countdown_reports_progress_and_lets_others_pass() {
    let mut client = Client::connect();
    let slow = json!({"name": "countdown", "arguments": {"from": 1000, "pause_ms": 10_000}});
    client.send("tools/call", Some(7), slow).await;
    let quick = json!({"name": "countdown", "arguments": {"from": 3, "pause_ms": 1}, "_meta": {"progressToken": "t"}});
    client.send("tools/call", Some(8), claiming(quick)).await;
    for done in 1..=3 {
        let progress = client.next().await;
        assert_eq!(progress["method"], "notifications/progress");
        assert_eq!(progress["params"]["progressToken"], "t");
        assert_eq!((&progress["params"]["progress"], &progress["params"]["total"]), (&json!(done), &json!(3)));
    }
    let answer = client.next().await;
    assert_eq!((&answer["id"], &answer["result"]["resultType"]), (&json!(8), &json!("complete")));
}

#[tokio::test]
async fn a_cancelled_countdown_is_not_answered() {
    let mut client = Client::connect();
    let quick = json!({"name": "countdown", "arguments": {"from": 1, "pause_ms": 50}});
    client.send("tools/call", Some(7), quick.clone()).await;
    client.send("notifications/cancelled", None, json!({"requestId": 7, "reason": "enough"})).await;
    client.send("notifications/cancelled", None, json!({"requestId": "unknown"})).await;
    client.send("tools/call", Some(8), quick).await;
    assert_eq!(client.next().await["id"], 8);
}

#[tokio::test]
async fn what_is_no_message_gets_an_error_and_harms_nobody() {
    let mut client = Client::connect();
    for (line, code) in [
        ("{", -32700),
        ("\u{0}", -32700),
        ("[]", -32600),
        ("7", -32600),
        (r#"{"id":1,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
    ] {
        client.line(line).await;
        let answer = client.next().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)), "{line}");
    }
    client.line("").await;
    client.line(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#).await;
    client.line(r#"{"jsonrpc":"2.0","method":"notifications/unknown"}"#).await;
    assert_eq!(client.ask("ping", json!([])).await["result"], json!({}));
}

#[tokio::test]
async fn the_end_of_input_ends_the_server_after_the_last_answer() {
    let mut client = Client::connect();
    let slow = json!({"name": "countdown", "arguments": {"from": 1000, "pause_ms": 10_000}});
    client.send("tools/call", Some(7), slow).await;
    client.send("ping", Some(8), json!({})).await;
    client.to.shutdown().await.unwrap();
    assert_eq!(client.next().await["id"], 8);
    timeout(Duration::from_secs(10), client.server).await.unwrap().unwrap().unwrap();
}

//! Upstreams that ask, tell or list more than anybody could want.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use weir_tests::peer::Launch;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Stub};

const REAL: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"real"}]}}"#;

/// What Weir itself answers goes out one by one, and what is too much is not answered.
#[tokio::test]
async fn thousands_of_requests_of_an_upstream_cost_no_descriptors() {
    let offer = Offer { tools: vec!["forge".to_owned()], modern: false, ..Offer::default() };
    let stub = Stub::offering(offer).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let flood = |method: &str| -> Vec<String> {
        let asked = |n: u32| format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"{method}"}}"#);
        (0..4000).map(asked).chain([REAL.to_owned()]).collect()
    };
    let calls = [
        (Client::modern(&gateway, "/mcp/stub"), "forge", flood("ping")),
        (Client::legacy(&gateway, "/mcp").await, "stub__forge", flood("tasks/list")),
    ];
    for (client, name, events) in calls {
        client.call(name, json!({ "events": [REAL] })).await;
        let before = gateway.descriptors();
        let call = client.call(name, json!({ "events": events }));
        let mut most = before;
        let watch = async {
            loop {
                most = most.max(gateway.descriptors());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let answer = tokio::select! {
            answer = call => answer,
            () = watch => unreachable!("it goes on for ever"),
        };
        assert_eq!(answer["content"][0]["text"], "real");
        assert!(most < before + 32, "{name}: {before} descriptors became {most}");
        let answered = || stub.seen().iter().filter(|seen| seen.envelope().method.is_none()).count();
        until("the upstream has answers", || answered() > 0).await;
    }
}

/// The one stream of HTTP+SSE carries all that a server says: what is too much of it is dropped, and calls go on.
#[tokio::test]
async fn a_flood_on_the_stream_of_http_sse_is_bounded() {
    const COUNT: usize = 30_000;
    let stub = Stub::offering(Offer { capabilities: json!({ "logging": {} }), ..Offer::default() }).await;
    let gateway = Gateway::start(&stub.sse_config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let clients = [Client::modern(&gateway, "/mcp/stub"), Client::legacy(&gateway, "/mcp/stub").await];
    for client in &clients {
        client.call("echo", json!({ "message": "before" })).await;
    }
    let (opened, descriptors, memory) = (stub.sessions_opened(), gateway.descriptors(), gateway.resident());
    let padding = "x".repeat(1000);
    for n in 0..COUNT {
        stub.say(&format!(r#"{{"jsonrpc":"2.0","id":"{padding}{n}","method":"ping"}}"#));
        stub.say(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"error","data":"{padding}"}}}}"#
        ));
    }
    // Calls in the middle of the flood may be given up, and after five of them others wait. Behind it calls are answered.
    for client in &clients {
        let call = json!({ "name": "echo", "arguments": { "message": "behind" } });
        let mut answer = client.ask("tools/call", call.clone()).await;
        loop {
            let refusal = if answer["result"]["isError"] == true {
                &answer["result"]["content"][0]["text"]
            } else {
                &answer["error"]["message"]
            };
            let Some(why) = refusal.as_str() else { break };
            assert!(why.contains("upstream `stub`") && why.contains("more messages arrived"), "{why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            answer = client.ask("tools/call", call.clone()).await;
        }
        assert_eq!(answer["result"]["content"][0]["text"], "behind");
    }
    assert_eq!(stub.sessions_opened(), opened, "no session was lost");
    let (more, grown) = (gateway.descriptors(), gateway.resident().saturating_sub(memory));
    assert!(more < descriptors + 32, "{descriptors} descriptors became {more}");
    assert!(grown < 64 * 1024, "{grown} KiB more than before");
    let answered = || stub.seen().iter().filter(|seen| seen.envelope().method.is_none()).count();
    until("the upstream has answers", || answered() > 0).await;
    assert!(answered() < COUNT, "not every one of so many is answered");
}

/// A process that asks and reads nothing, and complains a lot.
const ASKS: &str = r#"
import json, sys
say = lambda message: print(json.dumps(dict(message, jsonrpc="2.0")), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        say({"id": message["id"], "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}})
    elif message.get("method") == "tools/list":
        say({"id": message["id"], "result": {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]}})
    elif message.get("method") == "tools/call":
        say({"id": message["id"], "result": {"content": [{"type": "text", "text": "flooded"}]}})
        for n in range(100_000):
            print(json.dumps({"jsonrpc": "2.0", "id": "i" * 1000 + str(n), "method": "ping"}))
        for n in range(50_000):
            print("complaint", n, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        open(sys.argv[1], "w").close()
    elif "id" in message and "method" in message:
        say({"id": message["id"], "error": {"code": -32601, "message": "no"}})
"#;

#[tokio::test]
async fn a_process_that_asks_and_complains_without_end_is_bounded() {
    let (directory, python) = (tempfile::TempDir::new().unwrap(), Path::new("python3"));
    let done = directory.path().join("done");
    let process = Launch::new(python, ["-c", ASKS, done.to_str().unwrap()]);
    let gateway = Gateway::start(&process.config("process")).await;
    gateway.healthy(&["process"]).await;
    let client = Client::modern(&gateway, "/mcp/process");
    let before = gateway.resident();
    let answer = client.call("flood", json!({})).await;
    assert_eq!(answer["content"][0]["text"], "flooded");
    until("all is asked and said", || done.exists()).await;
    // The answers to all that was asked have 100 MB.
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 64 * 1024, "{grown} KiB more than before");
    gateway.logs("lines were dropped").await;
    assert!(gateway.log().matches("complaint").count() < 40_000);
}

#[tokio::test]
async fn lists_are_kept_up_to_a_limit() {
    let tools: Vec<String> = (0..2000).map(|n| format!("tool-{n}")).collect();
    let stub = Stub::offering(Offer { tools, page: 500, ..Offer::default() }).await;
    let gateway = Gateway::start(&format!("[limits]\nlist = \"64KiB\"\n{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let listed = Client::modern(&gateway, "/mcp").tools().await.len();
    assert!((1..1000).contains(&listed), "{listed} tools are listed");
    gateway.logs("`limits.list`").await;
}

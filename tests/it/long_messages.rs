//! Messages that are longer than `limits.message`: the call fails with an error that names the key, and nothing else.

use std::path::Path;

use serde_json::{Value, json};
use weir_tests::client::answer;
use weir_tests::peer::Launch;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Stub};

/// A server that answers a call of `long` by as many letters as it is told, with the id before or behind them.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "long", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        arguments = params["arguments"]
        result = {"content": [{"type": "text", "text": "x" * arguments["bytes"]}]}
        if arguments.get("behind"):
            print(json.dumps({"jsonrpc": "2.0", "result": result, "id": message["id"]}), flush=True)
            continue
    elif method == "ping":
        result = {}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

const LIMITS: &str = "[limits]\nmessage = \"64KiB\"\n";

fn too_long(answer: &Value) -> bool {
    answer["error"]["message"].as_str().is_some_and(|text| text.contains("`limits.message`"))
}

#[tokio::test]
async fn a_line_that_is_too_long_fails_its_call_and_the_process_lives_on() {
    for shared in [false, true] {
        let program = Launch::new(Path::new("python3"), ["-c", SERVER]);
        let config = format!("{LIMITS}{}shared = {shared}\n", program.config("process"));
        let gateway = Gateway::start(&config).await;
        gateway.healthy(&["process"]).await;
        for client in [Client::legacy(&gateway, "/mcp/process").await, Client::modern(&gateway, "/mcp/process")] {
            let call = |bytes: usize, behind: bool| json!({ "name": "long", "arguments": { "bytes": bytes, "behind": behind } });
            client.result("tools/call", call(1, false)).await;
            let before = gateway.children();
            for behind in [false, true] {
                let answer = client.ask("tools/call", call(65_536, behind)).await;
                assert!(too_long(&answer), "shared = {shared}: {answer}");
            }
            let fits = client.result("tools/call", call(60_000, false)).await;
            assert_eq!(fits["content"][0]["text"].as_str().unwrap().len(), 60_000);
            assert_eq!(gateway.children(), before, "no process was started or ended");
        }
    }
}

/// The answer to a call of `forge` with so many letters.
fn letters(count: usize) -> String {
    let text = "x".repeat(count);
    format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"resultType":"complete","content":[{{"type":"text","text":"{text}"}}]}}}}"#
    )
}

async fn forging(config: fn(&Stub, &str) -> String) -> (Gateway, Stub) {
    let tools = ["forge", "hold"].map(str::to_owned).to_vec();
    let stub = Stub::offering(Offer { tools, ..Offer::default() }).await;
    let gateway = Gateway::start(&(LIMITS.to_owned() + &config(&stub, "stub"))).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

#[tokio::test]
async fn the_same_limit_holds_over_http() {
    let (gateway, _stub) = forging(Stub::config).await;
    for path in ["/mcp", "/mcp/stub"] {
        let name = if path == "/mcp" { "stub__forge" } else { "forge" };
        for client in [Client::legacy(&gateway, path).await, Client::modern(&gateway, path)] {
            for arguments in [json!({ "body": letters(65_536) }), json!({ "events": [letters(65_536)] })] {
                let answer = client.ask("tools/call", json!({ "name": name, "arguments": arguments })).await;
                assert!(too_long(&answer), "at {path}: {answer}");
            }
            for arguments in [json!({ "body": letters(60_000) }), json!({ "events": [letters(60_000)] })] {
                let fits = client.result("tools/call", json!({ "name": name, "arguments": arguments })).await;
                assert_eq!(fits["content"][0]["text"].as_str().unwrap().len(), 60_000, "at {path}");
            }
        }
    }
}

/// On the stream and in the answer to a POST, as JSON and as events, with the id in front or behind. Other calls go on.
#[tokio::test]
async fn the_same_limit_holds_over_http_sse() {
    let (gateway, stub) = forging(Stub::sse_config).await;
    let forge = |count: usize| {
        let answers = [letters(count), letters(count).replace(r#""id":$ID,"#, "").replace("}]}}", r#"}]},"id":$ID}"#)];
        let ways = answers.into_iter().flat_map(|answer| {
            [false, true].map(|beside| {
                [json!({ "body": answer, "beside": beside }), json!({ "events": [answer], "beside": beside })]
            })
        });
        ways.flatten().map(|arguments| json!({ "name": "forge", "arguments": arguments }))
    };
    for client in [Client::legacy(&gateway, "/mcp/stub").await, Client::modern(&gateway, "/mcp/stub")] {
        let (id, held) = client.request("tools/call", json!({ "name": "hold", "arguments": { "message": "held" } }));
        let address = gateway.address();
        let held = tokio::spawn(async move { answer(held.send(address).await, id).await });
        until("a call is held", || stub.held() == 1).await;
        let opened = stub.sessions_opened();
        for call in forge(65_536) {
            let answer = client.ask("tools/call", call).await;
            assert!(too_long(&answer) && answer.to_string().contains("upstream `stub`"), "{answer}");
        }
        for call in forge(60_000) {
            let fits = client.result("tools/call", call).await;
            assert_eq!(fits["content"][0]["text"].as_str().unwrap().len(), 60_000);
        }
        stub.release(1);
        assert_eq!(held.await.unwrap()["result"]["content"][0]["text"], "held");
        assert_eq!(stub.sessions_opened(), opened, "no session was lost");
    }
}

//! Calls that take longer than `timeouts.overall`.

use serde_json::json;
use weir_tests::paths::weir;
use weir_tests::peer::Launch;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Stub};

const PROGRESS: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$TOKEN,"progress":$STEP}}"#;
const REAL: &str =
    r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"real"}],"resultType":"complete"}}"#;

/// How the stub is reached.
type Way = fn(&Stub, &str) -> String;

/// As a child process: `weir connect` has the stub behind it.
fn stdio(stub: &Stub, name: &str) -> String {
    Launch::new(&weir(), ["connect", &stub.url()]).config(name)
}

async fn gateway(legacy: bool, modern: bool, timeouts: &str, way: Way) -> (Gateway, Stub) {
    let tools = ["forge", "hold", "echo"].map(str::to_owned).to_vec();
    let stub = Stub::offering(Offer { tools, legacy, modern, ..Offer::default() }).await;
    let gateway = Gateway::start(&format!("{}timeouts = {timeouts}\n", way(&stub, "stub"))).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

/// Each step takes most of the time that a call has; together they take more.
async fn goes_on(legacy: bool, modern: bool, way: Way) {
    let (gateway, stub) = gateway(legacy, modern, r#"{ overall = "2s" }"#, way).await;
    let mut events: Vec<String> = Vec::new();
    for step in 1..=4 {
        events.extend([PROGRESS.replace("$STEP", &step.to_string()), "wait".to_owned()]);
    }
    events.push(REAL.to_owned());
    for path in ["/mcp", "/mcp/stub"] {
        let name = if path == "/mcp" { "stub__forge" } else { "forge" };
        for client in [Client::legacy(&gateway, path).await, Client::modern(&gateway, path)] {
            let params = json!({ "name": name, "arguments": { "events": events }, "_meta": { "progressToken": "t" } });
            let (_, request) = client.request("tools/call", params);
            let begun = std::time::Instant::now();
            let mut answer = client.send(request).await.events();
            for step in 1..=4 {
                assert_eq!(answer.next_message().await.unwrap()["params"]["progress"], step, "at {path}");
                until("the next step is awaited", || stub.held() == 1).await;
                tokio::time::sleep(std::time::Duration::from_millis(800)).await;
                stub.release(1);
                until("the step is done", || stub.held() == 0 || step < 4).await;
            }
            let last = answer.next_message().await.unwrap();
            assert_eq!(last["result"]["content"][0]["text"], "real", "at {path}: {last}");
            assert!(begun.elapsed().as_secs() >= 2, "it took longer than a call may without progress");
        }
    }
}

#[tokio::test]
async fn progress_puts_off_the_end_of_a_call() {
    goes_on(true, true, Stub::config).await;
}

#[tokio::test]
async fn progress_puts_off_the_end_of_a_call_to_a_legacy_upstream() {
    goes_on(true, false, Stub::config).await;
}

#[tokio::test]
async fn progress_puts_off_the_end_of_a_call_to_a_modern_upstream() {
    goes_on(false, true, Stub::config).await;
}

#[tokio::test]
async fn progress_puts_off_the_end_of_a_call_over_http_sse() {
    goes_on(true, false, Stub::sse_config).await;
}

#[tokio::test]
async fn progress_puts_off_the_end_of_a_call_over_stdio() {
    goes_on(true, true, stdio).await;
}

#[tokio::test]
async fn progress_does_not_put_it_off_for_ever() {
    for way in [Stub::config as Way, Stub::sse_config, stdio] {
        let (gateway, _stub) = gateway(true, true, r#"{ overall = "1s", progress = "1500ms" }"#, way).await;
        let events = [PROGRESS.replace("$STEP", "1"), "wait".to_owned()];
        let client = Client::legacy(&gateway, "/mcp/stub").await;
        let params = json!({ "name": "forge", "arguments": { "events": events }, "_meta": { "progressToken": "t" } });
        let answer = client.ask("tools/call", params).await;
        let text = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains("upstream `stub`") && text.contains("`timeouts."), "{answer}");
    }
}

/// What Weir gives up, the upstream is told to give up: nothing else tells it in the legacy era.
#[tokio::test]
async fn a_legacy_call_that_times_out_is_cancelled_at_its_upstream() {
    let (gateway, stub) = gateway(true, false, r#"{ overall = "500ms" }"#, Stub::config).await;
    for path in ["/mcp", "/mcp/stub"] {
        let client = Client::legacy(&gateway, path).await;
        let prefix = if path == "/mcp" { "stub__" } else { "" };
        let before = stub.asked("notifications/cancelled").len();
        // One whose answer has not begun, and one that has.
        let answer = client.ask("tools/call", json!({ "name": format!("{prefix}hold"), "arguments": {} })).await;
        assert!(answer["error"].is_object(), "{answer}");
        until("the upstream is told", || stub.asked("notifications/cancelled").len() == before + 1).await;
        let arguments = json!({ "events": [r#"{"jsonrpc":"2.0","method":"notifications/x"}"#, "wait"] });
        let call = json!({ "name": format!("{prefix}forge"), "arguments": arguments });
        let answer = client.ask("tools/call", call).await;
        assert!(answer["error"].is_object(), "{answer}");
        until("the upstream is told", || stub.asked("notifications/cancelled").len() == before + 2).await;
        let calls = stub.asked("tools/call");
        let told = stub.asked("notifications/cancelled");
        let (call, told) = (calls.last().unwrap().message(), told.last().unwrap().message());
        assert_eq!(told["params"]["requestId"], call["id"], "at {path}");
        client.close().await;
    }
}

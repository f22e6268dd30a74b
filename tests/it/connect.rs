//! `weir connect`: the same relay behind standard input and output.

mod hosts;
mod login;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::bridge::Ended;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Bridge, Gateway, Peer, Stub};

fn call(tool: &str, message: &str) -> Value {
    json!({ "name": tool, "arguments": { "message": message } })
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}

#[tokio::test]
async fn requests_run_side_by_side_and_are_answered_by_id() {
    let stub = Stub::start().await;
    let mut bridge = Bridge::start(&[&stub.url()]);
    let greeting = bridge.shake_hands(json!({})).await;
    assert_eq!(greeting["result"]["serverInfo"]["name"], "stub");
    let held = bridge.request("tools/call", call("hold", "late")).await;
    until("the call runs", || stub.held() == 1).await;
    assert_eq!(text(&bridge.ask("tools/call", call("echo", "early")).await), "early");
    assert_eq!(text(&bridge.ask_modern("tools/call", call("echo", "modern")).await), "modern");
    stub.release(1);
    assert_eq!(text(&bridge.answer(&json!(held)).await), "late");

    let params = json!({ "name": "burst", "arguments": { "message": "done" }, "_meta": { "progressToken": "p" } });
    let burst = bridge.request("tools/call", params).await;
    for progress in 1..=10 {
        assert_eq!(bridge.called("notifications/progress").await["params"]["progress"], progress);
    }
    assert_eq!(text(&bridge.answer(&json!(burst)).await), "done");
    bridge.end_input();
    let ended = bridge.end().await;
    assert_eq!((ended.status.code(), ended.said), (Some(0), vec![]));
    assert_eq!(stub.sessions(), Vec::<String>::new(), "the session at the server is ended");
}

#[tokio::test]
async fn what_is_no_message_is_answered_and_harms_nothing() {
    let stub = Stub::start().await;
    let mut bridge = Bridge::start(&[&stub.url()]);
    bridge.write("\n\r\n  \nthis is not JSON\r\n").await;
    let answer = bridge.hear().await;
    assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32700), &json!(null)));
    bridge.write(b"\xff\xfe\n").await;
    assert_eq!(bridge.hear().await["error"]["code"], -32700);
    bridge.write("{\"jsonrpc\":\"2.0\",\"id\":1}\n[]\n").await;
    assert_eq!(bridge.hear().await["error"]["code"], -32600);
    assert_eq!(bridge.hear().await["error"]["code"], -32600);
    bridge.write("{\"jsonrpc\":\"2.0\",\"id\":\"early\",\"method\":\"tools/list\"}\r\n").await;
    assert_eq!(bridge.answer(&json!("early")).await["error"]["code"], -32600);

    // More than the longest line that is read; sent in pieces, for nothing of it must be kept.
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..33 {
        bridge.write(&piece).await;
    }
    bridge.write("\n").await;
    let answer = bridge.hear().await;
    assert_eq!(answer["error"]["code"], -32600);
    assert!(answer["error"]["message"].as_str().unwrap().contains("bytes"), "{answer}");

    bridge.shake_hands(json!({})).await;
    let batch = r#"[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","id":"b","method":"tools/list"}]"#;
    bridge.write(format!("{batch}\n")).await;
    assert!(bridge.answer(&json!("a")).await.get("result").is_some());
    assert!(bridge.answer(&json!("b")).await["result"]["tools"].is_array());
    let unknown = json!({ "_meta": {
        "io.modelcontextprotocol/protocolVersion": "1900-01-01",
        "io.modelcontextprotocol/clientCapabilities": {},
    } });
    let answer = bridge.ask("tools/list", unknown).await;
    assert_eq!(answer["error"]["code"], -32022, "{answer}");
}

#[tokio::test]
async fn whatever_ends_it_each_request_is_answered() {
    let stub = Stub::start().await;
    for signal in [None, Some(Signal::INT), Some(Signal::TERM)] {
        let mut bridge = Bridge::start(&[&stub.url()]);
        bridge.shake_hands(json!({})).await;
        let legacy = bridge.request("tools/call", call("hold", "never")).await;
        let meta = weir_tests::client::with_meta(call("hold", "never"), &json!({}));
        let modern = bridge.request("tools/call", meta).await;
        until("both calls run", || stub.held() == 2).await;
        match signal {
            Some(signal) => bridge.signal(signal),
            None => bridge.end_input(),
        }
        let Ended { status, said: rest, .. } = bridge.end().await;
        assert_eq!(status.code(), Some(0), "{signal:?}");
        for id in [legacy, modern] {
            let answers: Vec<&Value> = rest.iter().filter(|message| message["id"] == id).collect();
            assert_eq!(answers.len(), 1, "{signal:?}: {rest:?}");
            assert_eq!(answers[0]["error"]["code"], -32603, "{signal:?}: {rest:?}");
        }
        until("nothing is left at the server", || stub.held() == 0 && stub.sessions().is_empty()).await;
    }
}

#[tokio::test]
async fn what_is_piped_in_is_answered_before_the_end() {
    let stub = Stub::start().await;
    let mut bridge = Bridge::start(&[&stub.url()]);
    bridge.shake_hands(json!({})).await;
    let ids = [bridge.request("tools/list", json!({})).await, bridge.request("tools/call", call("echo", "x")).await];
    bridge.end_input();
    let Ended { status, said: rest, .. } = bridge.end().await;
    assert_eq!(status.code(), Some(0));
    for id in ids {
        assert!(rest.iter().any(|message| message["id"] == id && message.get("result").is_some()), "{rest:?}");
    }
}

#[tokio::test]
async fn a_cancelled_call_ends_in_its_eras_way() {
    let stub = Stub::start().await;
    let mut bridge = Bridge::start(&[&stub.url()]);
    bridge.shake_hands(json!({})).await;
    let legacy = bridge.request("tools/call", call("hold", "legacy")).await;
    let modern = bridge.request("tools/call", weir_tests::client::with_meta(call("hold", "m"), &json!({}))).await;
    until("both calls run", || stub.held() == 2).await;
    let cancel = |id: &_| {
        let params = json!({ "requestId": id, "reason": "enough" });
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })
    };
    bridge.say(&cancel(&modern)).await;
    until("the modern call is broken off", || stub.broken_off() == 1).await;
    assert_eq!(stub.asked("notifications/cancelled").len(), 0, "that says it all");
    bridge.say(&cancel(&legacy)).await;
    until("the legacy server is told", || stub.asked("notifications/cancelled").len() == 1).await;
    assert_eq!(stub.asked("notifications/cancelled")[0].message()["params"]["requestId"], legacy);
    assert_eq!(text(&bridge.ask("tools/call", call("echo", "still there")).await), "still there");
}

#[tokio::test]
async fn a_server_that_is_down_is_an_error_until_it_is_back() {
    let stub = Stub::start().await;
    let address = stub.address();
    let url = stub.url();
    drop(stub);
    let mut bridge = Bridge::start(&[&url]);
    let answer = bridge.shake_hands(json!({})).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("cannot be reached"), "{answer}");
    let _stub = Stub::at(address, Offer::default()).await;
    let answer = bridge.shake_hands(json!({})).await;
    assert_eq!(answer["result"]["serverInfo"]["name"], "stub", "{answer}");
    assert_eq!(text(&bridge.ask("tools/call", call("echo", "back")).await), "back");
}

#[tokio::test]
async fn a_slow_request_is_given_up() {
    let stub = Stub::start().await;
    let mut bridge = Bridge::start(&["--timeout", "3", &stub.url()]);
    bridge.shake_hands(json!({})).await;
    let held = bridge.request("tools/call", call("hold", "never")).await;
    let answer = bridge.answer(&json!(held)).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    until("the legacy server is told", || stub.asked("notifications/cancelled").len() == 1).await;
    assert_eq!(stub.asked("notifications/cancelled")[0].message()["params"]["requestId"], held);
    let answer = bridge.ask_modern("tools/call", call("hold", "never")).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    until("the modern call is broken off", || stub.broken_off() == 2).await;
    assert_eq!(text(&bridge.ask("tools/call", call("echo", "next")).await), "next");
}

#[tokio::test]
async fn messages_of_any_shape_and_size_become_one_line() {
    let raw = "{\r\n  \"pretty\": [\n 1e400,\n\"\u{e4}\\n\" ]\n}".to_owned();
    let stub = Stub::offering(Offer { raw, ..Offer::default() }).await;
    let mut bridge = Bridge::start(&[&stub.url()]);
    bridge.shake_hands(json!({})).await;
    bridge.say(&json!({ "jsonrpc": "2.0", "id": "raw", "method": "weir-tests/raw", "params": {} })).await;
    // `serde_json` has no number for 1e400, so the line is looked at as text.
    let line = bridge.line().await;
    assert!(line.contains("1e400") && line.contains("\u{e4}\\n"), "{line}");
    let large = "l".repeat(8 << 20);
    let answer = bridge.ask("tools/call", call("echo", &large)).await;
    assert_eq!(text(&answer).len(), large.len());
}

#[tokio::test]
async fn a_client_that_does_not_read_costs_bounded_memory() {
    const MIB: usize = 1 << 20;
    const COUNT: usize = 150;
    let raw = format!("{{\"x\":\"{}\"}}", "y".repeat(2 * MIB));
    let stub = Stub::offering(Offer { raw, ..Offer::default() }).await;
    let mut bridge = Bridge::start(&[&stub.url()]);
    bridge.shake_hands(json!({})).await;
    for _ in 0..COUNT {
        bridge.request("weir-tests/raw", json!({})).await;
    }
    until("all have come to the server", || stub.asked("weir-tests/raw").len() == COUNT).await;
    let held = resident(bridge.id());
    assert!(held < 200 * MIB, "{COUNT} answers of 2 MiB that nobody reads hold {} MiB", held / MIB);
    for _ in 0..COUNT {
        assert!(bridge.line().await.len() > 2 * MIB);
    }
}

fn resident(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[tokio::test]
async fn headers_arrive_and_are_never_shown() {
    let stub = Stub::start().await;
    let arguments = ["--debug", "--header", "X-Key: a-${env:CONNECT_KEY}", "-H", "X-Plain:pl41n-value", &stub.url()];
    let mut bridge = Bridge::start_with(&arguments, &[("CONNECT_KEY", "s3cr3t-value")]);
    bridge.shake_hands(json!({})).await;
    bridge.ask("tools/call", call("refuse", "x")).await;
    let seen = stub.asked("tools/call");
    assert_eq!(seen[0].header("x-key"), Some("a-s3cr3t-value"));
    assert_eq!(seen[0].header("x-plain"), Some("pl41n-value"));
    bridge.end_input();
    let log = bridge.end().await.log;
    assert!(log.contains("tools/call") && !log.contains("s3cr3t") && !log.contains("pl41n"), "{log}");

    let bad = Bridge::start_with(&["--header", "pl41n-value", &stub.url()], &[]);
    let ended = bad.end().await;
    assert_eq!((ended.status.code(), ended.said), (Some(64), vec![]));
    assert!(!ended.log.is_empty() && !ended.log.contains("pl41n"), "{}", ended.log);
}

#[tokio::test]
async fn a_pinned_transport_is_the_only_one() {
    let stub = Stub::start().await;
    for option in ["--sse", "--mcp-hub"] {
        let before = stub.seen().len();
        let mut bridge = Bridge::start(&[option, &stub.url()]);
        let answer = bridge.shake_hands(json!({})).await;
        assert!(answer.get("error").is_some(), "{option}: {answer}");
        assert!(stub.seen()[before..].iter().all(|seen| seen.method == "GET"), "{option}");
    }
    let fixture = Peer::fixture_sse().await;
    let url = fixture.sse_url();
    assert!(Bridge::start(&["--http", &url]).shake_hands(json!({})).await.get("error").is_some());
    for options in [&["--sse", &url][..], &["--mcp-hub", &url], &[&url]] {
        let mut bridge = Bridge::start(options);
        assert!(bridge.shake_hands(json!({})).await.get("result").is_some(), "{options:?}");
        let answer = bridge.ask("tools/call", json!({ "name": "test_simple_text", "arguments": {} })).await;
        assert_eq!(text(&answer), "This is a simple text response for testing.");
    }
}

#[tokio::test]
async fn what_the_server_says_and_asks_comes_through() {
    let (http, sse) = tokio::join!(Peer::fixture("both"), Peer::fixture_sse());
    let gateway = Gateway::start(&http.config("fixture")).await;
    gateway.healthy(&["fixture"]).await;
    for url in [http.url(), sse.sse_url(), gateway.url("/mcp/fixture"), gateway.url("/mcp")] {
        let prefix = if url == gateway.url("/mcp") { "fixture__" } else { "" };
        let mut bridge = Bridge::start(&[&url]);
        bridge.shake_hands(json!({ "elicitation": {} })).await;
        for tool in ["test_elicitation", "elicitation_on_the_other_stream"] {
            let id = bridge.request("tools/call", call(&format!("{prefix}{tool}"), "Who?")).await;
            let question = bridge.called("elicitation/create").await;
            let content = json!({ "username": "ada", "email": "a@example.com" });
            let result = json!({ "action": "accept", "content": content });
            bridge.say(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })).await;
            let answer = bridge.answer(&json!(id)).await;
            assert!(text(&answer).contains("\"username\":\"ada\""), "{tool} at {url}: {answer}");
        }
        bridge.ask("tools/call", json!({ "name": format!("{prefix}test_trigger_tool_change"), "arguments": {} })).await;
        if prefix.is_empty() {
            bridge.called("notifications/tools/list_changed").await;
        }
    }
}

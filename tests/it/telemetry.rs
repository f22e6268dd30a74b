//! Spans and metrics at a collector of OpenTelemetry, whatever the collector does.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::authority::Authority;
use weir_tests::collector::{Collector, attribute};
use weir_tests::issuer::now;
use weir_tests::peer::{Launch, free_port};
use weir_tests::stub::Offer;
use weir_tests::terminal::{self, ALONE, ENVIRONMENT};
use weir_tests::wait::{until, until_some};
use weir_tests::{Client, Gateway, LEGACY, Peer, Stub, paths};

use crate::reload::reload;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn config(endpoint: &str, more: &str) -> String {
    format!("[telemetry.otlp]\nendpoint = {endpoint:?}\n{more}\n")
}

/// Spans and nothing else.
fn traces(collector: &Collector) -> String {
    config(&collector.endpoint(), "metrics = false")
}

async fn echo(client: &Client) {
    client.call("stub__echo", json!({ "message": "hello" })).await;
}

/// Sends a call that says to which trace it belongs, in a header.
async fn call_in(client: &Client, name: &str, traceparent: &str) -> Value {
    let (id, request) = client.request("tools/call", json!({ "name": name, "arguments": { "message": "hello" } }));
    weir_tests::client::answer(client.send(request.header("traceparent", traceparent)).await, id).await
}

/// The spans of the first call whose tool has this name: its own, and those of its attempts. Waits for so many.
async fn spans(collector: &Collector, name: &str, count: usize) -> (Value, Vec<Value>) {
    let find = || {
        let all = collector.spans();
        let of_call = |span: &&Value| span["kind"] == 2 && attribute(span, "gen_ai.tool.name") == name;
        let call = all.iter().find(of_call)?.clone();
        let attempts: Vec<_> = all.iter().filter(|span| span["parentSpanId"] == call["spanId"]).cloned().collect();
        (attempts.len() >= count).then_some((call, attempts))
    };
    until_some("the spans are there", find).await
}

/// What the last call of a tool said of its trace, in the header and in the message.
fn sent(stub: &Stub) -> (Option<String>, Value) {
    let seen = stub.asked("tools/call").pop().expect("the stub was called");
    (seen.header("traceparent").map(str::to_owned), seen.message()["params"]["_meta"]["traceparent"].clone())
}

/// How many spans no collector got.
fn dropped(metrics: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix("weir_spans_dropped_total"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("the metric is there")
}

fn time(span: &Value, key: &str) -> u64 {
    span[key].as_str().expect("a span has times").parse().expect("a time is a number")
}

#[tokio::test]
async fn a_real_collector_understands_spans_and_metrics() {
    let (mut collector, stub) = tokio::join!(Peer::collector(), Stub::start());
    let more = "service_name = \"gate\"\ninterval = \"1s\"";
    let config = config(&format!("http://{}/", collector.address()), more) + &stub.config("stub");
    let gateway = Gateway::start(&config).await;
    echo(&Client::modern(&gateway, "/mcp")).await;
    // The order of signals is not known, so each line is looked for in all that it has said.
    for line in [
        "     -> service.name: Str(gate)",
        "    Name           : tools/call stub__echo",
        "    Kind           : SPAN_KIND_SERVER",
        "    Name           : tools/call echo",
        "    Kind           : SPAN_KIND_CLIENT",
        "     -> mcp.method.name: Str(tools/call)",
        "     -> gen_ai.operation.name: Str(execute_tool)",
        "     -> Name: weir_calls",
        "     -> DataType: Sum",
        "     -> Name: weir_call_duration_seconds",
        "     -> DataType: Histogram",
        "     -> Name: weir_upstream_healthy",
        "     -> DataType: Gauge",
    ] {
        until(line, || collector.output().contains(line)).await;
    }
    collector.says("the unit", |said| said.contains("-> Unit: s").then_some(())).await;
    assert!(!collector.output().contains("Failed to decode"), "{}", collector.output());
}

#[tokio::test]
async fn a_trace_goes_through_weir() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    call_in(&client, "stub__echo", &format!("00-{TRACE}-{CALLER}-01")).await;
    let (call, attempts) = spans(&collector, "stub__echo", 1).await;
    assert_eq!((&call["traceId"], &call["parentSpanId"]), (&json!(TRACE), &json!(CALLER)), "{call:#}");
    let [attempt] = &attempts[..] else { panic!("one attempt: {attempts:#?}") };
    assert_eq!((&attempt["traceId"], &attempt["kind"]), (&json!(TRACE), &json!(3)));
    let expected = format!("00-{TRACE}-{}-01", attempt["spanId"].as_str().unwrap());
    assert_eq!(sent(&stub), (Some(expected.clone()), json!(expected)));
    for (key, value) in [
        ("mcp.method.name", "tools/call"),
        ("mcp.protocol.version", "2026-07-28"),
        ("network.transport", "tcp"),
        ("weir.upstream", "stub"),
        ("weir.outcome", "ok"),
        ("user.id", ""),
        ("error.type", ""),
    ] {
        assert_eq!(attribute(&call, key), value, "{key}");
    }
    assert_eq!(attribute(attempt, "gen_ai.tool.name"), "echo");
    assert_eq!(attribute(attempt, "server.port"), stub.address().port().to_string());
    assert_eq!(attribute(&call["resource"], "service.name"), "weir");
    let inside = time(&call, "startTimeUnixNano") <= time(attempt, "startTimeUnixNano")
        && time(attempt, "startTimeUnixNano") <= time(attempt, "endTimeUnixNano")
        && time(attempt, "endTimeUnixNano") <= time(&call, "endTimeUnixNano");
    assert!(inside, "{call:#}{attempt:#}");
}

/// What the message says goes before what a header says, as for the log.
#[tokio::test]
async fn the_context_of_a_message_is_taken_and_replaced() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    for client in [Client::modern(&gateway, "/mcp"), Client::legacy(&gateway, "/mcp").await] {
        let meta = json!({ "traceparent": format!("00-{TRACE}-{CALLER}-01"), "tracestate": "a=1", "com.example/x": 1 });
        let params = json!({ "name": "stub__echo", "arguments": { "message": "hello" }, "_meta": meta });
        let (id, request) = client.request("tools/call", params);
        let request = request.header("traceparent", &format!("00-{}-{CALLER}-00", TRACE.replace('0', "1")));
        weir_tests::client::answer(client.send(request).await, id).await;
        let seen = stub.asked("tools/call").pop().unwrap();
        let meta = &seen.message()["params"]["_meta"];
        assert_eq!((&meta["tracestate"], &meta["com.example/x"]), (&json!("a=1"), &json!(1)));
        let find = || {
            let all = collector.spans();
            let attempt = all.iter().find(|span| {
                let says = meta["traceparent"].as_str().unwrap_or_default();
                span["kind"] == 3 && says == format!("00-{TRACE}-{}-01", span["spanId"].as_str().unwrap_or_default())
            })?;
            all.iter().find(|span| span["spanId"] == attempt["parentSpanId"]).cloned()
        };
        let call = until_some("the call is there", find).await;
        assert_eq!(call["parentSpanId"], CALLER);
        assert_eq!(seen.header("traceparent"), meta["traceparent"].as_str());
    }
}

#[tokio::test]
async fn a_process_is_told_of_weirs_own_span() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools");
    std::fs::write(&file, "echo").unwrap();
    let script = paths::peers("listing_server.py");
    let server = Launch::new(&paths::python(), [script.to_str().unwrap(), file.to_str().unwrap()]);
    let collector = Collector::start().await;
    let gateway = Gateway::start(&(traces(&collector) + &server.config("listing"))).await;
    gateway.healthy(&["listing"]).await;
    for (at, client) in [Client::modern(&gateway, "/mcp"), Client::legacy(&gateway, "/mcp").await].iter().enumerate() {
        let answer = call_in(client, "listing__echo", &format!("00-{TRACE}-{CALLER}-01")).await;
        let told = answer["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        let attempts = || collector.spans().into_iter().filter(|span| span["kind"] == 3).collect::<Vec<_>>();
        until("the attempt is there", || attempts().len() == at + 1).await;
        let attempt = attempts().pop().unwrap();
        assert_eq!(told, format!("00-{TRACE}-{}-01", attempt["spanId"].as_str().unwrap()));
        assert_eq!(attribute(&attempt, "network.transport"), "pipe");
    }
}

#[tokio::test]
async fn what_is_not_sampled_is_passed_on_as_it_came() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let none = config(&collector.endpoint(), "metrics = false\nsample = 0");
    let gateway = Gateway::start(&(none + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    echo(&client).await;
    assert_eq!(sent(&stub), (None, Value::Null));
    let unsampled = format!("00-{TRACE}-{CALLER}-00");
    call_in(&client, "stub__echo", &unsampled).await;
    assert_eq!(sent(&stub), (Some(unsampled), Value::Null));
    // Of all of them the last is the only one whose client records it.
    call_in(&client, "stub__echo", &format!("00-{TRACE}-{CALLER}-01")).await;
    let (call, _) = spans(&collector, "stub__echo", 1).await;
    assert_eq!((collector.spans().len(), &call["parentSpanId"]), (2, &json!(CALLER)));
    gateway.logs(&format!("\"trace_id\":\"{TRACE}\"")).await;
}

#[tokio::test]
async fn each_attempt_has_a_span_of_its_own() {
    let busy = Offer { tools: vec!["busy".into()], ..Offer::default() };
    let (collector, stub) = tokio::join!(Collector::start(), Stub::offering(busy));
    let gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    client.call("stub__busy", json!({ "message": "hello", "after": "1" })).await;
    let (call, attempts) = spans(&collector, "stub__busy", 2).await;
    let kinds: Vec<_> = attempts.iter().map(|attempt| attribute(attempt, "error.type")).collect();
    assert_eq!(kinds, ["429", ""], "{attempts:#?}");
    assert_eq!(attribute(&call, "weir.attempts"), "2");
    assert!(call["status"]["code"].is_null(), "the call has its answer: {call:#}");
    let ids: Vec<_> = attempts.iter().map(|attempt| attempt["spanId"].as_str().unwrap()).collect();
    let told = stub.asked("tools/call");
    let told: Vec<_> = told.iter().map(|seen| seen.header("traceparent").unwrap().to_owned()).collect();
    assert!(told.iter().zip(ids).all(|(told, id)| told.contains(id)), "{told:?}");
}

/// The time that a person takes is not the upstream's.
#[tokio::test]
async fn an_attempt_ends_when_its_upstream_asks_for_input() {
    let visit = Offer { tools: vec!["visit".into()], legacy: false, ..Offer::default() };
    let (collector, stub) = tokio::join!(Collector::start(), Stub::offering(visit));
    let gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let capabilities = json!({ "elicitation": { "url": {} } });
    let client = Client::legacy_at(gateway.address(), "/mcp", LEGACY, &capabilities).await;
    let (_, request) = client.request("tools/call", json!({ "name": "stub__visit", "arguments": {} }));
    let mut events = client.send(request).await.events();
    let question = events.next_message().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } });
    assert_eq!(client.send(client.post(reply.to_string())).await.status, 202);
    assert!(events.next_message().await.unwrap()["result"].is_object());
    let (_, attempts) = spans(&collector, "stub__visit", 2).await;
    let [first, second] = &attempts[..] else { panic!("two attempts: {attempts:#?}") };
    let between = time(second, "startTimeUnixNano") - time(first, "endTimeUnixNano");
    assert!(Duration::from_nanos(between) >= Duration::from_millis(500), "{attempts:#?}");
    assert!(first["status"]["code"].is_null(), "{first:#}");
}

#[tokio::test]
async fn resources_are_named_without_their_secrets_and_tools_by_their_own_names() {
    let offer = Offer { capabilities: json!({ "resources": {} }), ..Offer::default() };
    let (collector, stub) = tokio::join!(Collector::start(), Stub::offering(offer));
    let gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    client.result("resources/read", json!({ "uri": "db://eve:hunter2@db.test/a?key=hunter2" })).await;
    client.call("echo", json!({ "message": "hello" })).await;
    let (_, attempts) = spans(&collector, "echo", 1).await;
    assert!(attempts.iter().all(|attempt| attribute(attempt, "gen_ai.tool.name") == "echo"), "{attempts:#?}");
    let named = || {
        let all = collector.spans();
        let reads = all.iter().filter(|span| attribute(span, "mcp.method.name") == "resources/read");
        reads.map(|span| attribute(span, "mcp.resource.uri")).collect::<Vec<_>>()
    };
    until("the call and its attempt are there", || named().len() == 2).await;
    assert_eq!(named(), ["db://db.test/a"; 2]);
    assert!(!json!(collector.spans()).to_string().contains("hunter2"));
}

#[tokio::test]
async fn a_token_that_is_renewed_is_two_attempts() {
    let (authority, collector) = (Authority::start(3600), Collector::start().await);
    let stub = authority.upstream().await;
    let gateway = Gateway::start_with(&(traces(&collector) + &terminal::config(&stub, ALONE)), &ENVIRONMENT).await;
    gateway.healthy(&["u"]).await;
    // One that was made a moment ago would not get better by being made again.
    let made = now();
    until("the token is not new any more", || now() > made + 10).await;
    stub.revoke();
    Client::modern(&gateway, "/mcp").call("u__echo", json!({ "message": "hello" })).await;
    let (call, attempts) = spans(&collector, "u__echo", 2).await;
    let kinds: Vec<_> = attempts.iter().map(|attempt| attribute(attempt, "error.type")).collect();
    assert_eq!(kinds, ["401", ""], "{attempts:#?}");
    assert_eq!(attribute(&call, "weir.outcome"), "ok");
    let tokens = stub.tokens();
    let spans = json!(collector.spans()).to_string();
    assert!(!tokens.is_empty() && tokens.iter().all(|token| !spans.contains(token.as_str())), "no span has a token");
}

#[tokio::test]
async fn failures_have_their_type() {
    let tools = ["missing", "fail", "stop", "refuse"].map(str::to_owned).to_vec();
    let (collector, stub) = tokio::join!(Collector::start(), Stub::offering(Offer { tools, ..Offer::default() }));
    let nobody = format!("[upstreams.nobody]\nurl = \"http://127.0.0.1:{}/mcp\"\n", free_port());
    let gateway = Gateway::start(&(traces(&collector) + &stub.config("stub") + &nobody)).await;
    let client = Client::modern(&gateway, "/mcp");
    // The upstream's error of JSON-RPC, a status that is none of MCP, a stream without an answer, and nobody there.
    for (name, kind, of_attempt) in [
        ("stub__missing", "-32601", "-32601"),
        ("stub__fail", "protocol", "protocol"),
        ("stub__stop", "protocol", "protocol"),
        ("nobody__any", "unreachable", "unreachable"),
    ] {
        client.ask("tools/call", json!({ "name": name, "arguments": { "message": "hello" } })).await;
        let (call, attempts) = spans(&collector, name, 1).await;
        assert_eq!((attribute(&call, "error.type"), &call["status"]["code"]), (kind.to_owned(), &json!(2)), "{call:#}");
        assert!(attempts.iter().all(|attempt| attribute(attempt, "error.type") == of_attempt), "{attempts:#?}");
        assert_eq!(attribute(&call, "weir.blame"), "upstream");
    }
    // Nothing is broken where somebody has to sign in.
    client.ask("tools/call", json!({ "name": "stub__refuse", "arguments": {} })).await;
    let (call, attempts) = spans(&collector, "stub__refuse", 1).await;
    assert_eq!((attribute(&call, "weir.outcome"), &call["status"]), ("sign_in".to_owned(), &json!({})));
    assert!(attempts.iter().all(|attempt| attribute(attempt, "error.type") == "401"), "{attempts:#?}");
    // What nobody serves has no name that a client may choose.
    let legacy = Client::legacy(&gateway, "/mcp").await;
    legacy.ask("tools/call", json!({ "name": "what\u{1b}[2Jever", "arguments": {} })).await;
    let find = || collector.spans().into_iter().find(|span| attribute(span, "weir.outcome") == "refused");
    let refused = until_some("the refused call is there", find).await;
    assert_eq!((&refused["name"], attribute(&refused, "error.type")), (&json!("tools/call"), "refused".to_owned()));
    assert_eq!(attribute(&refused, "gen_ai.tool.name"), "whatever");
}

#[tokio::test]
async fn metrics_are_those_that_prometheus_reads() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let more = "traces = false\ninterval = \"1s\"\nheaders = { authorization = \"Bearer ${env:COLLECTOR_TOKEN}\" }";
    let config = config(&collector.endpoint(), more) + &stub.config("stub");
    let gateway = Gateway::start_with(&config, &[("COLLECTOR_TOKEN", "hunter2")]).await;
    echo(&Client::modern(&gateway, "/mcp")).await;
    let ok = || {
        let metrics = collector.metrics().pop()?;
        let calls = metrics.iter().find(|metric| metric["name"] == "weir_calls")?;
        let is_ok = |point: &&Value| attribute(point, "upstream") == "stub" && attribute(point, "outcome") == "ok";
        let point = calls["sum"]["dataPoints"].as_array()?.iter().find(is_ok)?.clone();
        (point["asInt"] == 1).then_some(metrics)
    };
    let pushed = until_some("the call is counted", ok).await;
    let start = |metrics: &[Value]| {
        let calls = metrics.iter().find(|metric| metric["name"] == "weir_calls")?;
        Some(calls["sum"]["dataPoints"][0]["startTimeUnixNano"].clone())
    };
    let exports = collector.metrics().len();
    until("they are sent again", || collector.metrics().len() > exports).await;
    let starts: Vec<_> = collector.metrics().iter().filter_map(|metrics| start(metrics)).collect();
    assert!(starts.len() > 1 && starts.windows(2).all(|pair| pair[0] == pair[1]), "one start: {starts:?}");
    let text = gateway.metrics();
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).filter_map(|line| line.split_once(' '));
    for (name, kind) in kinds {
        let has_values = text.lines().any(|line| line.starts_with(name));
        let found = pushed.iter().find(|metric| metric["name"] == name);
        let key = if kind == "counter" { "sum" } else { kind };
        assert!(!has_values || found.is_some_and(|metric| metric[key].is_object()), "{name} {kind}: {found:?}");
    }
    let latency = pushed.iter().find(|metric| metric["name"] == "weir_call_duration_seconds").unwrap();
    let points = latency["histogram"]["dataPoints"].as_array().unwrap();
    let stub = points.iter().find(|point| attribute(point, "upstream") == "stub").unwrap();
    let (bounds, counts) = (&stub["explicitBounds"], &stub["bucketCounts"]);
    assert_eq!(bounds.as_array().unwrap().len() + 1, counts.as_array().unwrap().len(), "{stub:#}");
    assert!(collector.tokens().iter().all(|token| token == "Bearer hunter2"));
    assert!(collector.spans().is_empty(), "no call is traced");
    assert!(!gateway.log().contains("hunter2"));
}

#[tokio::test]
async fn a_collector_that_is_away_is_said_once_and_gets_the_spans_later() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let (endpoint, address) = (collector.endpoint(), collector.address());
    drop(collector);
    let gateway = Gateway::start(&(config(&endpoint, "interval = \"1s\"") + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    echo(&client).await;
    gateway.logs("the collector of `telemetry.otlp` does not take").await;
    echo(&client).await;
    let collector = Collector::at(address).await;
    collector.turn_away(2);
    let calls = || collector.spans().iter().filter(|span| span["kind"] == 2).count();
    until("all calls are there", || calls() == 2).await;
    gateway.logs("again").await;
    assert_eq!(gateway.log().matches("does not take").count(), 1, "{}", gateway.log());
}

#[tokio::test]
async fn a_collector_says_when_to_come_back() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    collector.turn_away(3);
    let gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    echo(&Client::modern(&gateway, "/mcp")).await;
    spans(&collector, "stub__echo", 1).await;
    let [first, second] = collector.moments()[..] else { panic!("two requests: {:?}", collector.moments()) };
    assert!(second - first >= Duration::from_secs(3), "{:?}", second - first);
}

/// A request that is refused for good makes room, and one that is too large becomes smaller ones.
#[tokio::test]
async fn a_refused_request_holds_up_no_other() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    collector.answer(413, "");
    let gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    echo(&client).await;
    spans(&collector, "stub__echo", 1).await;
    assert_eq!(collector.asked(), 3, "two spans came one by one");
    collector.refuse("poison");
    client.ask("tools/call", json!({ "name": "stub__poison", "arguments": {} })).await;
    gateway.logs("does not take spans: status 400").await;
    client.call("stub__burst", json!({ "message": "after" })).await;
    spans(&collector, "stub__burst", 1).await;
    let text = gateway.metrics();
    assert!(dropped(&text) >= 1, "{text}");
}

#[tokio::test]
async fn a_flood_of_calls_waits_for_no_collector() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    collector.stall();
    let settings = traces(&collector) + "traces_per_second = 1_000_000\n" + &stub.config("stub");
    let gateway = Gateway::start(&settings).await;
    let client = Client::legacy_at(gateway.address(), "/mcp", "2025-03-26", &json!({})).await;
    echo(&client).await;
    until("the collector is asked", || collector.asked() > 0).await;
    let before = gateway.resident();
    // 100 calls in each batch, more than may wait.
    let start = Instant::now();
    for round in 0..100 {
        let pings = (0..100).map(|at| json!({ "jsonrpc": "2.0", "id": round * 100 + at, "method": "ping" }));
        let request = client.post(json!(pings.collect::<Vec<_>>()).to_string());
        assert_eq!(client.send(request).await.status, 200);
    }
    assert!(start.elapsed() < Duration::from_secs(60), "no call waits: {:?}", start.elapsed());
    let text = gateway.metrics();
    assert!(dropped(&text) > 1000, "{text}");
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB for spans that wait");
    echo(&client).await;
}

#[tokio::test]
async fn the_last_spans_are_sent_at_the_end() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let mut gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    // A request that is too large becomes smaller ones, at the end too.
    collector.answer(413, "");
    echo(&client).await;
    gateway.signal(Signal::TERM);
    assert!(gateway.end().await.success());
    spans(&collector, "stub__echo", 1).await;
}

#[tokio::test]
async fn a_call_that_the_end_waits_for_has_its_span_too() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let mut gateway = Gateway::start(&(traces(&collector) + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    let (_, request) = client.request("tools/call", json!({ "name": "stub__hold", "arguments": { "message": "x" } }));
    let address = gateway.address();
    let call = tokio::spawn(async move { request.send(address).await.json().await });
    until("the call runs", || stub.held() == 1).await;
    gateway.signal(Signal::TERM);
    gateway.logs("stopping: running calls may finish").await;
    stub.release(1);
    assert!(gateway.end().await.success());
    assert!(call.await.unwrap()["result"].is_object());
    spans(&collector, "stub__hold", 1).await;
}

#[tokio::test]
async fn a_reload_changes_what_is_sent_and_where() {
    let (one, other, stub) = tokio::join!(Collector::start(), Collector::start(), Stub::start());
    let gateway = Gateway::start(&(traces(&one) + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    echo(&client).await;
    spans(&one, "stub__echo", 1).await;
    let named = config(&other.endpoint(), "metrics = false\nprincipal = true");
    reload(&gateway, &(named + &stub.config("stub"))).await;
    echo(&client).await;
    let (call, _) = spans(&other, "stub__echo", 1).await;
    assert_eq!(attribute(&call, "user.id"), "local");
    reload(&gateway, &stub.config("stub")).await;
    echo(&client).await;
    assert_eq!(sent(&stub), (None, Value::Null), "no call is traced");
    assert_eq!((one.spans().len(), other.spans().len()), (2, 2));
}

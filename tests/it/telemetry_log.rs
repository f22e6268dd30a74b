//! The log at a collector of OpenTelemetry, and who decides which calls are traced.

use std::time::Instant;

use serde_json::{Value, json};
use weir_tests::collector::{Collector, attribute};
use weir_tests::wait::{until, until_some};
use weir_tests::{Client, Gateway, Issuer, Stub};

use crate::reload::reload;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

async fn call_in(client: &Client, flags: &str) {
    let params = json!({ "name": "stub__echo", "arguments": { "message": "hello" } });
    let (id, request) = client.request("tools/call", params);
    let request = request.header("traceparent", &format!("00-{TRACE}-b7ad6b7169203331-{flags}"));
    weir_tests::client::answer(client.send(request).await, id).await;
}

fn of_call(records: &[Value]) -> Option<Value> {
    records.iter().find(|record| attribute(record, "name") == "stub__echo").cloned()
}

#[tokio::test]
async fn the_log_goes_to_the_collector_with_the_trace_of_each_call() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let config = |logs: bool| {
        let endpoint = collector.endpoint();
        format!("[telemetry.otlp]\nendpoint = {endpoint:?}\nmetrics = false\nlogs = {logs}\n{}", stub.config("stub"))
    };
    let gateway = Gateway::start(&config(true)).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    call_in(&client, "01").await;
    let record = until_some("the line of the call is there", || of_call(&collector.logs())).await;
    assert_eq!((&record["traceId"], &record["severityText"]), (&json!(TRACE), &json!("INFO")), "{record}");
    assert_eq!(attribute(&record, "upstream"), "stub", "{record}");
    until("what was logged at the start is there", || {
        collector.logs().iter().any(|record| record["body"]["stringValue"] == "upstream is healthy")
    })
    .await;

    reload(&gateway, &config(false)).await;
    let before = collector.logs().len();
    let spans = collector.spans().len();
    call_in(&client, "01").await;
    until("the call was traced", || collector.spans().len() > spans).await;
    let after = collector.logs();
    assert!(after[before..].iter().all(|record| attribute(record, "name") != "stub__echo"), "{after:?}");
}

#[tokio::test]
async fn log_records_that_a_collector_refuses_are_counted_and_make_way() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let endpoint = collector.endpoint();
    collector.refuse("upstream is healthy");
    let config = format!("[telemetry.otlp]\nendpoint = {endpoint:?}\nmetrics = false\ntraces = false\nlogs = true\n");
    let gateway = Gateway::start(&(config + &stub.config("stub"))).await;
    gateway.logs("does not take log records: status 400").await;
    call_in(&Client::modern(&gateway, "/mcp"), "00").await;
    until("the next ones are taken", || of_call(&collector.logs()).is_some()).await;
    gateway.logs("takes log records again").await;
    let metrics = gateway.metrics();
    let dropped = metrics.lines().find_map(|line| line.strip_prefix("weir_logs_dropped_total")).unwrap();
    assert_ne!(dropped.trim(), "0");
}

#[tokio::test]
async fn clients_do_not_decide_what_is_traced_where_the_configuration_does() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let config = |sample: u8| {
        let endpoint = collector.endpoint();
        format!(
            "[telemetry.otlp]\nendpoint = {endpoint:?}\nmetrics = false\nparent_based = false\nsample = {sample}\n{}",
            stub.config("stub")
        )
    };
    let gateway = Gateway::start(&config(1)).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    call_in(&client, "00").await;
    let is_traced = |span: &Value| span["traceId"] == TRACE && attribute(span, "gen_ai.tool.name") == "stub__echo";
    until("a call is traced that its client does not record", || collector.spans().iter().any(is_traced)).await;
    assert!(stub.asked("tools/call")[0].header("traceparent").unwrap().ends_with("-01"));

    reload(&gateway, &config(0)).await;
    call_in(&client, "01").await;
    let sent = stub.asked("tools/call")[1].header("traceparent").unwrap().to_owned();
    assert_eq!(sent, format!("00-{TRACE}-b7ad6b7169203331-01"), "as it came: Weir has no span of it");
}

#[tokio::test]
async fn clients_cannot_have_more_calls_traced_than_may_be() {
    const MOST: usize = 3;
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let endpoint = collector.endpoint();
    let settings = format!("[telemetry.otlp]\nendpoint = {endpoint:?}\nmetrics = false\ntraces_per_second = {MOST}\n");
    let gateway = Gateway::start(&(settings + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let began = Instant::now();
    for _ in 0..50 {
        call_in(&client, "01").await;
    }
    let most = MOST + MOST * usize::try_from(began.elapsed().as_secs() + 1).unwrap();
    let asked = stub.asked("tools/call");
    let untraced = format!("00-{TRACE}-b7ad6b7169203331-01");
    let passed_on = asked.iter().filter(|call| call.header("traceparent") == Some(&*untraced)).count();
    assert!((50 - most.min(50)..=50 - MOST).contains(&passed_on), "{passed_on} are not traced, at most {most} are");
    let metrics = gateway.metrics();
    let counted = metrics.lines().find(|line| line.starts_with("weir_calls_not_traced_total")).unwrap();
    assert!(counted.ends_with(&format!(" {passed_on}")), "{counted}");
    let of_calls = || {
        let all = collector.spans();
        all.iter().filter(|span| span["kind"] == 2 && attribute(span, "gen_ai.tool.name") == "stub__echo").count()
    };
    until("the others are traced", || of_calls() == 50 - passed_on).await;
}

#[tokio::test]
async fn a_caller_who_calls_a_lot_leaves_traces_for_others() {
    const MOST: usize = 8;
    let (collector, stub, issuer) = tokio::join!(Collector::start(), Stub::start(), Issuer::start());
    let settings = [
        format!("[auth]\nissuer = {:?}\naudience = \"weir\"\n\n", issuer.issuer()),
        format!("[telemetry.otlp]\nendpoint = {:?}\nmetrics = false\nprincipal = true\n", collector.endpoint()),
        format!("traces_per_second = {MOST}\n\n"),
        stub.config("stub"),
    ];
    let gateway = Gateway::start(&settings.concat()).await;
    let client = |subject: &str| Client::modern(&gateway, "/mcp").with_token(&issuer.token(subject, "weir"));
    let (eve, ada) = (client("eve"), client("ada"));
    let began = Instant::now();
    for _ in 0..40 {
        call_in(&eve, "01").await;
    }
    let most = MOST / 2 * (2 + usize::try_from(began.elapsed().as_secs()).unwrap());
    for _ in 0..MOST / 2 {
        call_in(&ada, "01").await;
    }
    let traced = |subject: &str| collector.spans().iter().filter(|span| attribute(span, "user.id") == subject).count();
    until("all calls of one are traced", || traced("ada") == MOST / 2).await;
    assert!((MOST / 2..=most).contains(&traced("eve")), "{} of the other, at most {most}", traced("eve"));
}

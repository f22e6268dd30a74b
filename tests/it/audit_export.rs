//! Records of the audit log at a collector of OpenTelemetry: each comes, in order, whatever the collector does.

use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::collector::Collector;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Peer, Stub, paths};

fn config(url: &str, stub: &Stub) -> String {
    let headers = "{ authorization = \"Bearer ${env:COLLECTOR_TOKEN}\" }";
    let audit = format!("[audit]\npath = \"log/audit.jsonl\"\n[audit.otlp]\nurl = {url:?}\nheaders = {headers}\n");
    audit + &stub.config("stub")
}

async fn start(url: &str, stub: &Stub) -> Gateway {
    Gateway::start_with(&config(url, stub), &[("COLLECTOR_TOKEN", "hunter2")]).await
}

async fn echo(gateway: &Gateway, message: &str) {
    Client::modern(gateway, "/mcp").call("stub__echo", json!({ "message": message })).await;
}

fn calls(records: &[Value]) -> usize {
    records.iter().filter(|record| record["name"] == "stub__echo").count()
}

/// Whether no record is missing and none came twice.
fn is_whole(records: &[Value]) -> bool {
    records.iter().enumerate().all(|(at, record)| record["seq"] == at + 1)
}

#[tokio::test]
async fn a_real_collector_understands_every_record() {
    let (mut collector, stub) = tokio::join!(Peer::collector(), Stub::start());
    let gateway = start(&format!("http://{}/v1/logs", collector.address()), &stub).await;
    echo(&gateway, "hello").await;
    for line in [
        "     -> service.name: Str(weir)",
        "EventName: configuration_loaded",
        "EventName: call",
        "     -> mcp.method.name: Str(tools/call)",
        "     -> gen_ai.tool.name: Str(stub__echo)",
        "     -> weir.upstream: Str(stub)",
    ] {
        collector.says(line, |said| (said == line).then_some(())).await;
    }
    assert!(!collector.output().contains("Failed to decode"), "{}", collector.output());
}

#[tokio::test]
async fn records_wait_for_a_collector_that_is_away_or_busy() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let (url, address) = (collector.url(), collector.address());
    drop(collector);
    let gateway = start(&url, &stub).await;
    echo(&gateway, "while it is away").await;
    gateway.logs("audit records wait for the collector").await;
    assert!(!gateway.log().contains("hunter2"));
    let collector = Collector::at(address).await;
    collector.answer(503, "");
    collector.answer(401, "");
    echo(&gateway, "while it is busy").await;
    until("all calls are there", || calls(&collector.taken()) == 2).await;
    gateway.logs("the collector takes audit records again").await;
    assert!(is_whole(&collector.taken()), "{:#?}", collector.taken());
    assert!(collector.tokens().iter().all(|token| token == "Bearer hunter2"));
}

#[tokio::test]
async fn what_was_not_sent_before_the_end_is_sent_after_it() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let (url, address) = (collector.url(), collector.address());
    let mut gateway = start(&url, &stub).await;
    echo(&gateway, "one").await;
    until("the call is there", || calls(&collector.taken()) == 1).await;
    let first = collector.taken();
    // Records whose answer has not arrived are sent again. The collector goes away when the last answer is noted.
    let (path, mark) =
        ["audit.jsonl", "audit.jsonl.sent"].map(|name| gateway.directory().join("log").join(name)).into();
    let last = first.last().expect("the call is there")["seq"].to_string();
    until("the answer is noted", || std::fs::read_to_string(&mark).is_ok_and(|sent| sent == last)).await;
    drop(collector);
    echo(&gateway, "two").await;
    // A crash loses what is not on disk yet.
    until("the call is on disk", || std::fs::read_to_string(&path).unwrap().matches("stub__echo").count() == 2).await;
    gateway.signal(Signal::KILL);
    gateway.end().await;

    // The log is where it was, and another process goes on with it.
    let collector = Collector::at(address).await;
    let audit = config(&url, &stub).replace("\"log/audit.jsonl\"", &format!("{path:?}"));
    let mut next = Gateway::start_with(&audit, &[("COLLECTOR_TOKEN", "hunter2")]).await;
    echo(&next, "three").await;
    next.signal(Signal::TERM);
    next.end().await;
    let all = [first, collector.taken()].concat();
    assert_eq!(calls(&all), 3, "what is made last is sent at the end: {all:#?}");
    assert!(is_whole(&all), "{all:#?}");
}

#[tokio::test]
async fn a_record_that_is_refused_holds_up_no_other() {
    let (collector, stub) = tokio::join!(Collector::start(), Stub::start());
    let gateway = start(&collector.url(), &stub).await;
    collector.refuse("poison");
    let client = Client::modern(&gateway, "/mcp");
    for name in ["one", "poison", "two"] {
        client.ask("tools/call", json!({ "name": name, "arguments": {} })).await;
    }
    echo(&gateway, "after").await;
    // A record is made after its answer is sent: two calls in a row may stand in either order.
    until("all others are there", || {
        let taken = collector.taken();
        let mut names: Vec<_> = taken.iter().filter_map(|record| record["name"].as_str()).collect();
        names.sort_unstable();
        names == ["one", "stub__echo", "two"]
    })
    .await;
    gateway.logs("the collector refuses audit records").await;
    // What it says of single records is told.
    collector.answer(200, r#"{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"too old"}}"#);
    echo(&gateway, "rejected").await;
    gateway.logs("too old").await;
}

#[tokio::test]
async fn an_export_is_what_a_collector_reads_from_a_file() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("audit = {{ path = \"audit.jsonl\" }}\n{}", stub.config("stub"))).await;
    echo(&gateway, "hello").await;
    let path = gateway.directory().join("audit.jsonl");
    let export = || {
        let mut command = Command::new(paths::weir());
        command.args(["audit", "export", "--format", "otlp"]).arg(&path).output().unwrap()
    };
    until("the call is recorded", || String::from_utf8_lossy(&export().stdout).contains("stub__echo")).await;
    let lines = String::from_utf8(export().stdout).unwrap();
    let requests: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = requests
        .iter()
        .map(|request| &request["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["eventName"])
        .collect();
    assert!(events.contains(&&json!("configuration_loaded")) && events.contains(&&json!("call")), "{events:?}");
}

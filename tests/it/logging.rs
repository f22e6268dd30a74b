//! What an operator sees: the line of each call, a log that nobody reads, and text from outside on a terminal.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_tests::peer::{Launch, free_port};
use weir_tests::process::Process;
use weir_tests::stub::Offer;
use weir_tests::wait::{until, until_some, within};
use weir_tests::{Client, Gateway, Issuer, Request, Stub, paths};

const AUDIENCE: &str = "https://weir.example/mcp";

/// The fields of the lines of calls, oldest first.
fn calls(gateway: &Gateway) -> Vec<Value> {
    let log = gateway.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "weir::call").collect()
}

/// The line of the call with this outcome and name.
async fn call(gateway: &Gateway, outcome: &str, name: &str) -> Value {
    let is_it = |line: &Value| line["fields"]["outcome"] == outcome && line["fields"]["name"] == name;
    until_some(&format!("{name} is logged as {outcome}"), || calls(gateway).into_iter().find(is_it)).await
}

#[tokio::test]
async fn the_line_of_a_call_says_who_called_from_where_and_what_it_came_to() {
    let (issuer, stub) = (Issuer::start().await, Stub::start().await);
    let auth = format!("[auth]\nissuer = {:?}\naudience = {AUDIENCE:?}\n", issuer.issuer());
    let gateway = Gateway::start(&(auth + &stub.config("stub"))).await;
    gateway.logs("upstream is healthy").await;
    let ada = issuer.token("ada", AUDIENCE);
    let legacy = Client::legacy_with(&gateway, "/mcp", &ada, &json!({})).await;
    legacy.call("stub__echo", json!({ "message": "hi" })).await;
    let line = call(&gateway, "ok", "stub__echo").await;
    assert_eq!(line["level"], "INFO", "{line}");
    let fields = &line["fields"];
    assert_eq!((&fields["principal"], &fields["upstream"]), (&json!("ada"), &json!("stub")), "{line}");
    let client = fields["client"].as_str().unwrap();
    assert!(client.contains('/') && client.len() < 130, "{line}");
    assert!(fields["client_address"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert!(fields["bytes_received"].as_u64().unwrap() > 50 && fields["bytes_sent"].as_u64().unwrap() > 50, "{line}");
    assert!(fields["request_id"].as_str().is_some_and(|id| !id.is_empty()), "{line}");

    // Of a session there is a name that leads to it for nobody, and it is the same in each line.
    let session = fields["session"].as_str().unwrap().to_owned();
    assert!(session.len() == 8 && !gateway.log().contains(legacy.session_id()), "{line}");
    let opened = calls(&gateway).into_iter().find(|line| line["fields"]["method"] == "initialize").unwrap();
    assert_eq!(opened["fields"]["session"], session.as_str());
    assert_eq!(opened["fields"]["client"], client);

    // A modern client says who it is with each request.
    let modern = Client::modern(&gateway, "/mcp").with_token(&ada);
    let meta = json!({ "io.modelcontextprotocol/clientInfo": { "name": "probe", "version": "7" } });
    modern
        .result("tools/call", json!({ "name": "stub__burst", "arguments": { "message": "hi" }, "_meta": meta }))
        .await;
    let line = call(&gateway, "ok", "stub__burst").await;
    assert_eq!((&line["fields"]["principal"], &line["fields"]["era"]), (&json!("ada"), &json!("modern")), "{line}");
    assert!(line["fields"].get("session").is_none() && line["fields"]["client"] == "probe/7", "{line}");
}

/// In JSON and on a stream, for clients of the upstream's own era and of the other one.
#[tokio::test]
async fn an_error_of_an_upstream_is_no_success_in_the_log() {
    for (legacy, modern) in [(true, false), (false, true)] {
        let tools = vec!["forge".to_owned()];
        let stub = Stub::offering(Offer { tools, legacy, modern, ..Offer::default() }).await;
        let gateway = Gateway::start(&stub.config("stub")).await;
        gateway.healthy(&["stub"]).await;
        let mut seen = 0;
        for path in ["/mcp", "/mcp/stub"] {
            let tool = if path == "/mcp" { "stub__forge" } else { "forge" };
            for client in [Client::legacy(&gateway, path).await, Client::modern(&gateway, path)] {
                for (outcome, member) in [
                    ("error", r#""error":{"code":-32000,"message":"no"}"#),
                    ("tool_error", r#""result":{"resultType":"complete","content":[],"isError":true}"#),
                ] {
                    let message = format!(r#"{{"jsonrpc":"2.0","id":$ID,{member}}}"#);
                    for arguments in [json!({ "body": message }), json!({ "events": [message] })] {
                        client.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await;
                        seen += 1;
                        until(&format!("{seen} calls are logged as they ended"), || {
                            let is_call = |line: &Value| line["fields"]["method"] == "tools/call";
                            let ended: Vec<Value> = calls(&gateway).into_iter().filter(is_call).collect();
                            ended.len() == seen && ended[seen - 1]["fields"]["outcome"] == outcome
                        })
                        .await;
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn the_mistakes_of_clients_are_no_errors_in_the_log() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let answer = client.ask("tools/call", json!({ "name": "nothing", "arguments": {} })).await;
    assert_eq!(answer["error"]["code"], -32602);
    assert_eq!(call(&gateway, "refused", "nothing").await["level"], "INFO");

    // A client whose session is gone, as after a restart.
    let lost = client.request("tools/list", json!({})).1.header("mcp-session-id", &"0".repeat(64));
    assert_eq!(gateway.send(lost).await.status, 404);
    assert_eq!(call(&gateway, "refused", "").await["level"], "INFO");

    // One that cancels.
    let (id, request) = client.request("tools/call", json!({ "name": "stub__hold", "arguments": {} }));
    let (address, held) = (gateway.address(), stub.held());
    let waiting = tokio::spawn(async move { request.send(address).await.status });
    until("the call is held", || stub.held() > held).await;
    client.notify("notifications/cancelled", json!({ "requestId": id })).await;
    let line = call(&gateway, "cancelled", "stub__hold").await;
    assert_eq!(line["level"], "INFO", "{line}");
    within("the end of the cancelled call", waiting).await.unwrap();

    // The upstream's own failure is one, once.
    let answer = client.ask("tools/call", json!({ "name": "stub__fail", "arguments": { "message": "x" } })).await;
    assert!(answer["error"].is_object(), "{answer}");
    assert_eq!(call(&gateway, "failed", "stub__fail").await["level"], "ERROR");
    let errors = gateway.log().lines().filter(|line| line.contains("\"ERROR\"")).count();
    assert_eq!(errors, 1, "{}", gateway.log());
}

/// A full pipe whose other end nobody reads.
fn stalled() -> (std::io::PipeReader, std::io::PipeWriter) {
    /// What a pipe holds on Linux.
    const PIPE: usize = 64 * 1024;
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![b'\n'; PIPE]).unwrap();
    (reader, writer)
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_nobody_and_what_is_lost_is_counted() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.toml");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = format!("listen = \"{address}\"\ncache_dir = {:?}\n{}", paths::cache(), stub.config("stub"));
    std::fs::write(&file, config).unwrap();
    let (_banner, stdout) = stalled();
    let (log, stderr) = stalled();
    let mut command = Command::new(paths::weir());
    command.arg("serve").arg("--config").arg(&file).env("XDG_STATE_HOME", directory.path());
    command.env("RUST_LOG", "debug").stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut gateway = command.spawn().unwrap();
    drop(command);
    until("it listens", || std::net::TcpStream::connect(address).is_ok()).await;

    // More than is kept for a reader that is slow.
    let client = within("a session", Client::legacy_at(address, "/mcp/stub", weir_tests::LEGACY, &json!({}))).await;
    let name = "x".repeat(1000);
    for number in 0..3000 {
        let asked = client.ask("tools/call", json!({ "name": format!("{name}{number}"), "arguments": {} }));
        within("an answer while nobody reads the log", asked).await;
    }

    // Whoever begins to read is told what is missing.
    let (said, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            let line: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(dropped) = line["fields"]["dropped"].as_u64() {
                let _ = said.send(dropped);
            }
        }
    });
    let dropped = until_some("the log says what is missing", || dropped.try_recv().ok()).await;
    assert!(dropped > 100, "{dropped}");

    // Nobody has read a word of the summary, and it ends all the same.
    kill_process(Pid::from_child(&gateway), Signal::TERM).unwrap();
    let status = until_some("it ends", || gateway.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn what_upstreams_call_things_only_says_something_on_a_terminal() {
    const HOSTILE: &str = "regional\x1b]0;owned\x07\x1b[2J\u{9b}31m\u{202e}lap";
    let offer = Offer { tools: vec![HOSTILE.to_owned()], param: "not a header", ..Offer::default() };
    let stub = Stub::offering(offer).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.toml");
    let config = format!("listen = \"127.0.0.1:0\"\ncache_dir = {:?}\n{}", paths::cache(), stub.config("stub"));
    std::fs::write(&file, config).unwrap();
    let line = format!("exec {} serve --config {}", paths::weir().display(), file.display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]);
    command.env("SHELL", "/bin/sh").env("XDG_STATE_HOME", directory.path());
    let mut gateway = Process::start("weir serve at a terminal", &mut command);
    gateway.says("how to end it", |line| line.contains("Ctrl-C ends Weir").then_some(())).await;
    until("the log has it too", || gateway.output().contains("is left out")).await;
    let shown = gateway.output();
    assert!(shown.contains("tool `regional") && shown.contains("lap` is left out"), "{shown}");
    for part in ["\x1b]", "\x1b[2J", "\u{9b}", "\u{202e}"] {
        assert!(!shown.contains(part), "{part:?} in {shown:?}");
    }
}

/// A name that a client gives itself may be as long as it likes, and whatever it is made of.
#[tokio::test]
async fn what_a_client_calls_itself_is_bounded_in_the_log() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let client = json!({ "name": format!("\u{9b}2J{}", "n".repeat(5000)), "version": "\u{202e}1" });
    let params = json!({ "protocolVersion": weir_tests::LEGACY, "capabilities": {}, "clientInfo": client });
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    assert_eq!(gateway.send(Request::post("/mcp", hello.to_string())).await.status, 200);
    let line = call(&gateway, "ok", "").await;
    assert!(line["fields"]["client"].as_str().unwrap().len() < 140, "{line}");
    assert!(!gateway.log().contains(['\u{9b}', '\u{202e}']), "{}", gateway.log());
}

/// What a request says of its trace is in its line, and goes on to the upstream as it came.
#[tokio::test]
async fn a_call_is_logged_with_its_trace() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let of = |trace: &str| format!("00-{trace}-b7ad6b7169203331-01");
    let (in_header, in_meta) = (of("0af7651916cd43dd8448eb211c80319c"), of("1bf7651916cd43dd8448eb211c80319c"));
    let client = Client::modern(&gateway, "/mcp/stub");
    let call = |more: Value| json!({ "name": "echo", "arguments": { "message": "hi" }, "_meta": more });
    let (id, request) = client.request("tools/call", call(json!({})));
    weir_tests::client::answer(client.send(request.header("traceparent", &in_header)).await, id).await;
    gateway.logs("\"trace_id\":\"0af7651916cd43dd8448eb211c80319c\"").await;
    let seen = stub.asked("tools/call");
    assert_eq!(seen.last().and_then(|seen| seen.header("traceparent")), Some(in_header.as_str()));
    client.result("tools/call", call(json!({ "traceparent": in_meta }))).await;
    gateway.logs("\"trace_id\":\"1bf7651916cd43dd8448eb211c80319c\"").await;
    let seen = stub.asked("tools/call");
    assert_eq!(seen.last().map(|seen| seen.message()["params"]["_meta"]["traceparent"].clone()), Some(json!(in_meta)));
}

/// A process gets no headers, so the message says it.
#[tokio::test]
async fn the_trace_of_a_header_reaches_a_process_in_the_message() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools");
    std::fs::write(&file, "echo").unwrap();
    let script = paths::peers("listing_server.py");
    let server = Launch::new(&paths::python(), [script.to_str().unwrap(), file.to_str().unwrap()]);
    let gateway = Gateway::start(&server.config("listing")).await;
    gateway.healthy(&["listing"]).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let own = "00-1bf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for path in ["/mcp/listing", "/mcp"] {
        let name = if path == "/mcp" { "listing__echo" } else { "echo" };
        for client in [Client::modern(&gateway, path), Client::legacy(&gateway, path).await] {
            for (meta, expected) in [(json!({}), trace), (json!({ "traceparent": own }), own)] {
                let params = json!({ "name": name, "arguments": {}, "_meta": meta });
                let (id, request) = client.request("tools/call", params);
                let sent = client.send(request.header("traceparent", trace)).await;
                let answer = weir_tests::client::answer(sent, id).await;
                assert_eq!(answer["result"]["content"][0]["text"], expected, "{path}: {answer}");
            }
        }
    }
}

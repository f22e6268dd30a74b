//! The end of the gateway: what runs is finished, nothing new is begun, and nobody is left behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use weir_tests::client::answer;
use weir_tests::http::Request;
use weir_tests::peer::{Launch, free_port};
use weir_tests::process::runs;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, LEGACY, Peer, Stub};

#[tokio::test]
async fn an_idle_gateway_ends_at_once_and_takes_its_children_along() {
    for signal in [Signal::INT, Signal::TERM] {
        let config = Launch::everything().config("everything") + &Launch::python().config("python");
        let mut gateway = Gateway::start(&config).await;
        gateway.healthy(&["everything", "python"]).await;
        let client = Client::legacy(&gateway, "/mcp").await;
        client.call("everything__echo", json!({ "message": "hi" })).await;
        client.call("python__echo", json!({ "message": "hi" })).await;
        let children = gateway.children();
        assert!(children.len() >= 2, "{children:?}");

        gateway.signal(signal);
        let status = gateway.end().await;
        assert_eq!(status.code(), Some(0), "after {signal:?}: {}", gateway.log());
        until("all children have ended", || !children.iter().any(|(id, _)| runs(*id))).await;
        assert!(TcpStream::connect(gateway.address()).await.is_err(), "nobody listens any more");
    }
}

#[tokio::test]
async fn a_gateway_that_is_stopped_as_soon_as_it_says_that_it_listens_ends_in_order() {
    let stub = Stub::start().await;
    for _ in 0..5 {
        let mut gateway = Gateway::start(&stub.config("stub")).await;
        gateway.signal(Signal::TERM);
        assert_eq!(gateway.end().await.code(), Some(0), "{}", gateway.log());
    }
}

#[tokio::test]
async fn a_call_that_runs_is_finished() {
    let stub = Stub::start().await;
    let mut gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let clients = [Client::legacy(&gateway, "/mcp/stub").await, Client::modern(&gateway, "/mcp/stub")];
    let mut calls = Vec::new();
    for client in &clients {
        let arguments = json!({ "message": "finished" });
        let (id, request) = client.request("tools/call", json!({ "name": "hold", "arguments": arguments }));
        let address = gateway.address();
        calls.push(tokio::spawn(async move { answer(request.send(address).await, id).await }));
    }
    until("both calls run", || stub.held() == 2).await;

    gateway.signal(Signal::INT);
    let address = gateway.address();
    until("nothing new is accepted", || std::net::TcpStream::connect(address).is_err()).await;
    stub.release(2);
    for call in calls {
        assert_eq!(call.await.unwrap()["result"]["content"][0]["text"], "finished");
    }
    assert_eq!(gateway.end().await.code(), Some(0));
}

#[tokio::test]
async fn a_child_that_does_not_want_to_end_is_ended() {
    // It answers nothing, ignores the end of its input and the polite signal.
    let stubborn = "trap '' TERM HUP INT; while :; do sleep 1; done";
    let config = Launch::new(std::path::Path::new("/bin/sh"), ["-c", stubborn]).config("stubborn");
    let mut gateway = Gateway::start(&config).await;
    until("the child runs", || !gateway.children().is_empty()).await;
    let children = gateway.children();
    gateway.signal(Signal::INT);
    assert_eq!(gateway.end().await.code(), Some(0), "{}", gateway.log());
    until("all children have ended", || !children.iter().any(|(id, _)| runs(*id))).await;
}

#[tokio::test]
async fn a_gateway_that_is_killed_leaves_no_children_that_listen() {
    let gateway = Gateway::start(&Launch::everything().config("everything")).await;
    gateway.healthy(&["everything"]).await;
    let children = gateway.children();
    gateway.signal(Signal::KILL);
    until("all children see the end of their input", || !children.iter().any(|(id, _)| runs(*id))).await;
}

#[tokio::test]
async fn a_call_is_cut_off_where_the_drain_of_the_configuration_ends() {
    let stub = Stub::start().await;
    let mut gateway = Gateway::start(&format!("limits.drain = \"300ms\"\n{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp/stub");
    let (_, request) = client.request("tools/call", json!({ "name": "hold", "arguments": {} }));
    let address = gateway.address();
    let call = tokio::spawn(async move { request.try_send(address).await.map(|response| response.status) });
    until("the call runs", || stub.held() == 1).await;
    let begun = std::time::Instant::now();
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.end().await.code(), Some(0), "{}", gateway.log());
    assert!(begun.elapsed() < std::time::Duration::from_secs(8), "the default is ten seconds: {:?}", begun.elapsed());
    assert!(gateway.log().contains("still busy at the end of the drain"), "{}", gateway.log());
    call.abort();
}

#[tokio::test]
async fn a_second_signal_ends_the_wait() {
    let stub = Stub::start().await;
    let mut gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp/stub");
    let (_, request) = client.request("tools/call", json!({ "name": "hold", "arguments": {} }));
    let address = gateway.address();
    let call = tokio::spawn(async move { request.try_send(address).await.map(|response| response.status) });
    until("the call runs", || stub.held() == 1).await;
    gateway.signal(Signal::INT);
    until("nothing new is accepted", || std::net::TcpStream::connect(address).is_err()).await;
    gateway.signal(Signal::INT);
    gateway.end().await;
    call.abort();
}

#[tokio::test]
async fn an_upgrade_refuses_no_connection_and_finishes_what_runs() {
    let stub = Stub::start().await;
    let config = stub.config("stub");
    let mut old = Gateway::start_at(free_port(), &config).await;
    old.healthy(&["stub"]).await;
    let (id, request) = Client::modern(&old, "/mcp/stub")
        .request("tools/call", json!({ "name": "hold", "arguments": { "message": "finished" } }));
    let address = old.address();
    let call = tokio::spawn(async move { answer(request.send(address).await, id).await });
    until("the call runs", || stub.held() == 1).await;

    let ended = Arc::new(AtomicUsize::new(0));
    let asking = tokio::spawn({
        let ended = Arc::clone(&ended);
        async move {
            while ended.load(Ordering::Relaxed) == 0 {
                assert_eq!(Request::get("/healthz").send(address).await.status, 200);
            }
        }
    });
    // Nobody takes its sockets, so it goes on.
    old.signal(Signal::QUIT);
    old.logs("no `weir serve --upgrade` takes the sockets").await;
    let new = old.upgrade(&config);
    old.signal(Signal::QUIT);
    let new = new.await;
    assert_eq!(new.address(), address);
    new.healthy(&["stub"]).await;
    old.logs("stopping: running calls may finish").await;
    stub.release(1);
    assert_eq!(call.await.unwrap()["result"]["content"][0]["text"], "finished");
    assert_eq!(old.end().await.code(), Some(0), "{}", old.log());
    ended.store(1, Ordering::Relaxed);
    asking.await.unwrap();
    let greeting = Client::modern(&new, "/mcp/stub").call("echo", json!({ "message": "hi" })).await;
    assert_eq!(greeting["content"][0]["text"], "hi");
}

#[tokio::test]
async fn sessions_go_on_over_an_upgrade() {
    let (stub, peer) = tokio::join!(Stub::start(), Peer::fixture("legacy"));
    let process = Launch::fixture("legacy").config("process");
    let config = stub.config("stub") + &peer.config("fixture") + &process;
    let mut old = Gateway::start_at(free_port(), &config).await;
    old.healthy(&["stub", "fixture", "process"]).await;
    let (merged, own) = (Client::legacy(&old, "/mcp").await, Client::legacy(&old, "/mcp/fixture").await);
    merged.result("resources/subscribe", json!({ "uri": "test://watched-resource" })).await;
    for tool in ["stub__echo", "process__test_simple_text", "fixture__test_simple_text"] {
        merged.call(tool, json!({ "message": "before" })).await;
    }
    own.call("test_simple_text", json!({})).await;

    let new = old.upgrade(&config);
    old.signal(Signal::QUIT);
    let new = new.await;
    new.healthy(&["stub", "fixture", "process"]).await;
    assert_eq!(old.end().await.code(), Some(0), "{}", old.log());
    new.logs("sessions of the process before go on").await;
    let said = merged.call("stub__echo", json!({ "message": "after" })).await;
    assert_eq!(said["content"][0]["text"], "after");
    merged.call("process__test_simple_text", json!({})).await;
    own.call("test_simple_text", json!({})).await;
    // What was watched is watched on, at the session that was opened anew.
    let mut told = merged.stream().await;
    merged.call("fixture__test_simple_text", json!({})).await;
    merged.call("fixture__touch_watched_resource", json!({})).await;
    while told.next_message().await.unwrap()["method"] != "notifications/resources/updated" {}
    let files = std::fs::read_dir(old.directory().join("weir")).unwrap().flatten();
    for file in files.filter_map(|file| std::fs::read(file.path()).ok()) {
        assert!(!String::from_utf8_lossy(&file).contains("test://watched-resource"), "it is sealed");
    }
}

#[tokio::test]
async fn weir_upgrade_starts_the_next_process_and_loses_no_call() {
    let stub = Stub::start().await;
    let config = stub.config("stub");
    let mut old = Gateway::start_at(free_port(), &config).await;
    old.healthy(&["stub"]).await;
    let address = old.address();
    let (id, request) = Client::modern(&old, "/mcp/stub")
        .request("tools/call", json!({ "name": "hold", "arguments": { "message": "finished" } }));
    let held = tokio::spawn(async move { answer(request.send(address).await, id).await });
    until("the call runs", || stub.held() == 1).await;

    let done = Arc::new(AtomicUsize::new(0));
    let calling: Vec<_> = (0..4)
        .map(|_| {
            let (done, client) = (Arc::clone(&done), Client::modern(&old, "/mcp/stub"));
            tokio::spawn(async move {
                let mut calls = 0;
                while done.load(Ordering::Relaxed) == 0 {
                    let (id, request) =
                        client.request("tools/call", json!({ "name": "echo", "arguments": { "message": "hi" } }));
                    let answer = answer(request.send(address).await, id).await;
                    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
                    calls += 1;
                }
                calls
            })
        })
        .collect();

    let state = old.directory().to_owned();
    let weir = || {
        let mut command = tokio::process::Command::new(weir_tests::paths::weir());
        command.args(["upgrade", "--config"]).arg(state.join("weir.toml"));
        command.env("XDG_STATE_HOME", &state).kill_on_drop(true);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap().wait_with_output()
    };
    let upgraded = weir().await.unwrap();
    let said = String::from_utf8_lossy(&upgraded.stdout).into_owned();
    assert!(upgraded.status.success(), "{said}{}", old.log());
    assert!(upgraded.stderr.is_empty(), "its log is no matter of the caller: {upgraded:?}");
    until("both log to one place", || old.log().matches("listening on http").count() == 2).await;
    let new = said.strip_prefix("Process ").and_then(|rest| rest.split(' ').next()?.parse::<i32>().ok());
    let new = rustix::process::Pid::from_raw(new.unwrap()).unwrap();
    old.logs("stopping: running calls may finish").await;
    stub.release(1);
    assert_eq!(held.await.unwrap()["result"]["content"][0]["text"], "finished");
    old.logs("\"stopped\"").await;
    done.store(1, Ordering::Relaxed);
    for calls in calling {
        assert!(calls.await.unwrap() > 0);
    }
    rustix::process::kill_process(new, Signal::TERM).unwrap();
    until("the new process has ended", || std::net::TcpStream::connect(address).is_err()).await;
    assert_eq!(old.end().await.code(), Some(0), "{}", old.log());

    let alone = weir().await.unwrap();
    assert_eq!(alone.status.code(), Some(1), "nobody is there to take over from");
}

/// Nobody else serves any more, so its end would be the end of the service.
#[tokio::test]
async fn weir_upgrade_leaves_a_process_that_serves_and_cannot_be_asked() {
    let mut old = Gateway::start_at(free_port(), "").await;
    let address = old.address();
    // In the way of the socket for operators.
    std::fs::create_dir(old.directory().join(format!("weir/admin-{address}/socket~"))).unwrap();
    let mut weir = tokio::process::Command::new(weir_tests::paths::weir());
    weir.args(["upgrade", "--json", "--config"]).arg(old.directory().join("weir.toml"));
    weir.env("XDG_STATE_HOME", old.directory()).kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::null());
    let upgraded = async {
        let upgraded = weir.spawn().unwrap().wait_with_output().await.unwrap();
        assert!(upgraded.status.success(), "{upgraded:?}");
        assert_eq!(Request::get("/healthz").send(address).await.status, 200);
        let said: Value = serde_json::from_slice(&upgraded.stdout).unwrap();
        let new = rustix::process::Pid::from_raw(said["process"].as_i64().unwrap().try_into().unwrap()).unwrap();
        rustix::process::kill_process(new, Signal::TERM).unwrap();
    };
    let ((), ended) = tokio::join!(upgraded, old.end());
    assert_eq!(ended.code(), Some(0), "{}", old.log());
}

/// A legacy server that opens sessions and never answers the end of one.
struct Silent {
    address: std::net::SocketAddr,
    ends: Arc<AtomicUsize>,
}

impl Silent {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, ends) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&ends);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || Self::serve(stream, &seen));
            }
        });
        Self { address, ends }
    }

    fn serve(stream: std::net::TcpStream, ends: &AtomicUsize) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                head.push_str(&line);
                if line == "\r\n" {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            if head.starts_with("DELETE") {
                ends.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let message: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (status, answer) = match message["method"].as_str() {
                None => ("405 Method Not Allowed", Value::Null),
                Some("initialize") => {
                    let server = json!({ "name": "silent", "version": "1" });
                    let result = json!({ "protocolVersion": LEGACY, "capabilities": {}, "serverInfo": server });
                    ("200 OK", json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
                }
                Some(method) if method.starts_with("notifications/") => ("202 Accepted", Value::Null),
                Some(_) => {
                    let error = json!({ "code": -32601, "message": "no such method" });
                    ("400 Bad Request", json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
                }
            };
            let body = if answer.is_null() { String::new() } else { answer.to_string() };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nMcp-Session-Id: s\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            (&stream).write_all((head + &body).as_bytes()).unwrap();
        }
    }
}

#[tokio::test]
async fn every_session_is_ended_at_its_upstream_also_where_that_is_silent() {
    const SESSIONS: usize = 20;
    let silent = Silent::start();
    let mut gateway = Gateway::start(&format!("[upstreams.silent]\nurl = \"http://{}/mcp\"\n", silent.address)).await;
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        clients.push(Client::legacy(&gateway, "/mcp/silent").await);
    }
    gateway.signal(Signal::TERM);
    // One after the other would take longer than anybody waits.
    assert_eq!(gateway.end().await.code(), Some(0));
    assert!(silent.ends.load(Ordering::Relaxed) >= SESSIONS, "{} ends", silent.ends.load(Ordering::Relaxed));
}

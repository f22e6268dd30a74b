//! Legacy sessions: each client has its own, from its first request to its last, and nothing of it stays behind.

use std::collections::HashSet;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use weir_tests::client::{answer, initialize};
use weir_tests::peer::{Launch, free_port};
use weir_tests::process::runs;
use weir_tests::stub::Offer;
use weir_tests::wait::{until, within};
use weir_tests::{Client, Gateway, LEGACY, Request, Stub};

/// The text of the first piece of content in the result of a call.
fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result}"))
}

#[tokio::test]
async fn many_clients_are_independent() {
    const CLIENTS: usize = 32;
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let before = stub.sessions_opened();

    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let address = gateway.address();
            tokio::spawn(async move {
                let client = Client::legacy_at(address, "/mcp/stub", LEGACY, &json!({})).await;
                // All of them use the same ids at the same time.
                for call in 0..5 {
                    let message = format!("client {number}, call {call}");
                    let result = client.call("echo", json!({ "message": message })).await;
                    assert_eq!(text(&result), message);
                }
                client
            })
        })
        .collect();
    let mut ids = HashSet::new();
    for client in clients {
        ids.insert(client.await.unwrap().session_id().to_owned());
    }
    assert_eq!(ids.len(), CLIENTS, "every client has a session of its own");
    assert_eq!(stub.sessions_opened() - before, CLIENTS, "and so has it at the upstream");
}

#[tokio::test]
async fn what_one_client_does_touches_no_other() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let (first, second) = (Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp").await);

    first.call("stub__echo", json!({ "message": "first" })).await;
    second.call("stub__echo", json!({ "message": "second" })).await;
    assert!((200..300).contains(&first.close().await));
    assert_eq!(text(&second.call("stub__echo", json!({ "message": "still here" })).await), "still here");
    let (_, request) = first.request("tools/list", json!({}));
    assert_eq!(gateway.send(request).await.status, 404);
}

#[tokio::test]
async fn the_end_of_a_session_reaches_the_upstream() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let before: HashSet<_> = stub.sessions().into_iter().collect();

    let client = Client::legacy(&gateway, "/mcp/stub").await;
    client.call("echo", json!({ "message": "hi" })).await;
    let own: Vec<_> = stub.sessions().into_iter().filter(|id| !before.contains(id)).collect();
    assert_eq!(own.len(), 1, "the session has one session at the upstream");

    client.close().await;
    until("the upstream's session ends", || !stub.sessions().contains(&own[0])).await;
    for method in ["GET", "POST", "DELETE"] {
        let request = Request::new(method, "/mcp/stub")
            .header("mcp-session-id", client.session_id())
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        assert_eq!(gateway.send(request).await.status, 404, "{method} after the end");
    }
}

#[tokio::test]
async fn a_version_that_nobody_knows_is_refused_whatever_the_method() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    for method in ["GET", "DELETE"] {
        let request = Request::new(method, "/mcp/stub")
            .header("mcp-session-id", client.session_id())
            .header("accept", "text/event-stream")
            .header("mcp-protocol-version", "1900-01-01");
        assert_eq!(gateway.send(request).await.status, 400, "{method}");
    }
    assert_eq!(client.ask("ping", json!({})).await["result"], json!({}), "the session goes on");
}

/// To the client a 404 would say that its session is gone.
#[tokio::test]
async fn an_upstreams_own_404_is_an_answer_in_a_session() {
    let offer = Offer { tools: vec!["missing".to_owned()], ..Offer::default() };
    let stub = Stub::offering(offer).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    for (path, tool) in [("/mcp/stub", "missing"), ("/mcp", "stub__missing")] {
        let client = Client::legacy(&gateway, path).await;
        let (_, request) = client.request("tools/call", json!({ "name": tool, "arguments": {} }));
        let response = client.send(request).await;
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(response.json().await["error"]["code"], -32601, "{path}");
    }
}

#[tokio::test]
async fn a_session_that_is_not_used_ends() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("limits.session_idle = \"3s\"\n{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let before: HashSet<_> = stub.sessions().into_iter().collect();

    let client = Client::legacy(&gateway, "/mcp/stub").await;
    client.call("echo", json!({ "message": "hi" })).await;
    let own = stub.sessions().into_iter().find(|id| !before.contains(id)).unwrap();
    // To ask the gateway would be to use the session: watch the upstream instead.
    until("the unused session ends", || !stub.sessions().contains(&own)).await;
    let (_, request) = client.request("ping", json!({}));
    assert_eq!(gateway.send(request).await.status, 404);
}

#[tokio::test]
async fn each_client_has_its_own_process_and_it_ends_with_the_session() {
    let gateway = Gateway::start(&Launch::everything().config("everything")).await;
    gateway.healthy(&["everything"]).await;
    let before: HashSet<u32> = gateway.children().into_iter().map(|(id, _)| id).collect();

    let (first, second) = (Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp").await);
    for client in [&first, &second] {
        let result = client.call("everything__echo", json!({ "message": "hi" })).await;
        assert_eq!(text(&result), "Echo: hi");
    }
    let own = || gateway.children().into_iter().map(|(id, _)| id).filter(|id| !before.contains(id));
    let processes: Vec<u32> = own().collect();
    assert_eq!(processes.len(), 2, "two clients have two processes: {:?}", gateway.children());

    first.close().await;
    until("the first client's process ends", || processes.iter().filter(|id| runs(**id)).count() == 1).await;
    let result = second.call("everything__echo", json!({ "message": "still here" })).await;
    assert_eq!(text(&result), "Echo: still here");
    second.close().await;
    until("the second client's process ends", || !processes.iter().any(|id| runs(*id))).await;
}

#[tokio::test]
async fn the_process_of_an_unused_session_ends() {
    let config = format!("limits.session_idle = \"3s\"\n{}", Launch::everything().config("everything"));
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["everything"]).await;
    let before: HashSet<u32> = gateway.children().into_iter().map(|(id, _)| id).collect();

    let client = Client::legacy(&gateway, "/mcp/everything").await;
    client.call("echo", json!({ "message": "hi" })).await;
    let own = gateway.children().into_iter().map(|(id, _)| id).find(|id| !before.contains(id)).unwrap();
    until("the process ends", || !runs(own)).await;
}

#[tokio::test]
async fn a_session_has_one_stream_of_its_own() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    for path in ["/mcp", "/mcp/stub"] {
        let client = Client::legacy(&gateway, path).await;
        let stream = client.stream().await;
        let again = Request::get(path)
            .header("accept", "text/event-stream")
            .header("mcp-session-id", client.session_id())
            .header("mcp-protocol-version", LEGACY);
        assert_eq!(gateway.send(again.clone()).await.status, 409, "a second stream at {path}");

        drop(stream);
        // The gateway learns of the closed connection in its own time.
        let mut status = 409;
        while status == 409 {
            status = gateway.send(again.clone()).await.status;
        }
        assert_eq!(status, 200, "a new stream at {path} once the first is gone");
        assert_eq!(client.ask("ping", json!({})).await["result"], json!({}), "the session outlives its stream");
    }
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_stream() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let mut stream = client.stream().await;
    client.close().await;
    assert_eq!(stream.next_message().await, None);
}

#[tokio::test]
async fn the_version_is_negotiated() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let cases = [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ];
    for (asked, given) in cases {
        let greeting = answer(gateway.send(initialize("/mcp", asked, &json!({}))).await, 0).await;
        assert_eq!(greeting["result"]["protocolVersion"], given, "for a client that asks for {asked}");
        assert!(greeting["result"]["serverInfo"]["name"].is_string(), "{greeting}");
    }
}

#[tokio::test]
async fn a_batch_is_answered_to_those_who_may_send_one() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let client = Client::legacy_at(gateway.address(), "/mcp", "2025-03-26", &json!({})).await;

    let batch = json!([
        { "jsonrpc": "2.0", "id": 11, "method": "ping" },
        { "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 999 } },
        { "jsonrpc": "2.0", "id": 12, "method": "tools/list" },
    ]);
    let response = client.send(client.post(batch.to_string())).await;
    assert_eq!(response.status, 200);
    let answers = response.messages().await;
    let ids: HashSet<u64> = answers.iter().filter_map(|answer| answer["id"].as_u64()).collect();
    assert_eq!(ids, HashSet::from([11, 12]), "{answers:?}");

    let notifications =
        json!([{ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 9 } }]);
    assert_eq!(client.send(client.post(notifications.to_string())).await.status, 202);
}

#[tokio::test]
async fn session_ids_cannot_be_guessed() {
    const COUNT: usize = 64;
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    let mut ids = Vec::new();
    for _ in 0..COUNT {
        ids.push(Client::legacy(&gateway, "/mcp").await.session_id().to_owned());
    }
    let distinct: HashSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), COUNT);
    // No position is the same in all of them but by chance, save for separators.
    let length = ids[0].len();
    assert!(ids.iter().all(|id| id.len() == length));
    let varied = (0..length).filter(|&at| ids.iter().map(|id| id.as_bytes()[at]).collect::<HashSet<_>>().len() > 2);
    assert!(varied.count() >= 20, "too little of a session id is random: {:?}", &ids[..3]);
}

#[tokio::test]
async fn sessions_are_limited() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&format!("limits.sessions = 2\n{}", stub.config("stub"))).await;
    let first = Client::legacy(&gateway, "/mcp").await;
    let _second = Client::legacy(&gateway, "/mcp").await;
    let refused = gateway.send(initialize("/mcp", LEGACY, &json!({}))).await.status;
    assert!((400..600).contains(&refused), "a third session got {refused}");
    first.close().await;
    Client::legacy(&gateway, "/mcp").await;
}

#[tokio::test]
async fn who_comes_back_after_a_restart_is_no_error() {
    let (stub, port) = (Stub::start().await, free_port());
    let gateway = Gateway::start_at(port, &stub.config("stub")).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    drop(gateway);
    let gateway = Gateway::start_at(port, &stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let (_, request) = client.request("tools/list", json!({}));
    assert_eq!(client.send(request).await.status, 404, "the client is to begin anew");
    gateway.logs("there is no such session").await;
    let log = gateway.log();
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn an_upstream_that_answers_404_takes_no_session_away() {
    let stub = Stub::offering(Offer { modern: false, ..Offer::default() }).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let clients = [Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp/stub").await];
    clients[0].call("stub__echo", json!({ "message": "hi" })).await;

    // What is in front of a server says so while the server is away.
    let address = stub.address();
    drop(stub);
    let listener = async {
        loop {
            if let Ok(listener) = TcpListener::bind(address).await {
                return listener;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let listener = within("the address is free", listener).await;
    let proxy = tokio::spawn(async move {
        let bodies = ["Content-Type: text/html\r\n\r\n<p>gone", "Content-Type: application/json\r\n\r\n{\"gone\":1}"];
        for body in bodies.into_iter().cycle() {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                drop(stream.read(&mut [0; 16 * 1024]).await);
                drop(
                    stream.write_all(format!("HTTP/1.1 404 Not Found\r\nConnection: close\r\n{body}").as_bytes()).await,
                );
            });
        }
    });
    for _ in 0..4 {
        for client in &clients {
            for method in ["tools/call", "resources/read", "ping"] {
                let params = json!({ "name": "stub__echo", "uri": "x://y", "arguments": {} });
                let (_, request) = client.request(method, params);
                assert_ne!(client.send(request).await.status, 404, "{method}");
            }
            let path = if client.session_id() == clients[0].session_id() { "/mcp" } else { "/mcp/stub" };
            let listen = Request::get(path).header("accept", "text/event-stream");
            let listen = listen.header("mcp-session-id", client.session_id());
            assert_ne!(client.send(listen).await.status, 404, "GET {path}");
        }
    }
    proxy.abort();
    drop(proxy.await);
    let _stub = Stub::at(address, Offer { modern: false, ..Offer::default() }).await;
    assert_eq!(text(&clients[0].call("stub__echo", json!({ "message": "again" })).await), "again");
}

/// An upstream that was started anew knows nothing of the session, nor of what its client wants to hear.
#[tokio::test]
async fn a_log_level_is_set_again_where_an_upstream_has_lost_the_session() {
    let offer = || Offer { modern: false, capabilities: json!({ "logging": {} }), ..Offer::default() };
    for path in ["/mcp/stub", "/mcp"] {
        let stub = Stub::offering(offer()).await;
        let at = stub.address();
        let gateway = Gateway::start(&stub.config("stub")).await;
        gateway.healthy(&["stub"]).await;
        let name = if path == "/mcp" { "stub__echo" } else { "echo" };
        let client = Client::legacy(&gateway, path).await;
        client.call(name, json!({ "message": "hi" })).await;
        client.result("logging/setLevel", json!({ "level": "warning" })).await;
        drop(stub);
        until("the address is free", || std::net::TcpListener::bind(at).is_ok()).await;
        let again = Stub::at(at, offer()).await;
        client.call(name, json!({ "message": "in a new session" })).await;
        let levels: Vec<Value> = again.asked("logging/setLevel").iter().map(|seen| seen.message()).collect();
        let levels: Vec<&Value> = levels.iter().map(|message| &message["params"]["level"]).collect();
        assert_eq!(levels, ["warning"], "{path}");
    }
}

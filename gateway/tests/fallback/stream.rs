//! HTTP+SSE in all the ways in which servers speak it.

use crate::{
    NOT_FOUND,
    gateway::Gateway,
    server::{Does, Server, Stream},
};

const PINNED: &str = "type = \"sse\"";

async fn server(stream: Stream) -> Server {
    Server::streaming(NOT_FOUND, Does::Serve, stream).await
}

async fn works(stream: Stream) -> Server {
    let server = server(stream).await;
    let gateway = Gateway::start(&server.config(PINNED)).await;
    assert_eq!(gateway.transport().await, "sse");
    let client = gateway.client().await;
    client.echoes("one").await;
    client.echoes("two").await;
    server
}

#[tokio::test]
async fn an_address_may_come_in_many_ways() {
    let begins = [
        "event: endpoint\ndata: messages?sessionId={id}\n\n",
        "event: endpoint\ndata: http://{host}/deep/messages/?sessionId={id}\n\n",
        "event: endpoint\r\ndata: /messages/?sessionId={id}\r\n\r\n: ping\r\n\r\n",
        ": hello\n\nevent: ping\ndata: {}\n\nevent: endpoint\nid: 1\ndata: /messages?sessionId={id}\n\n",
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\nevent: endpoint\ndata: /messages?sessionId={id}\n\n",
        "event: endpoint\ndata: {\"endpoint\":\"/messages\",\"sessionId\":\"{id}\"}\n\n",
        "event: connected\ndata: {\"sessionId\":\"{id}\"}\n\n",
    ];
    for begin in begins {
        works(Stream { begin, ..Stream::default() }).await;
    }
}

#[tokio::test]
async fn a_session_may_be_named_in_a_header() {
    let plain = "event: endpoint\ndata: /messages\n\n";
    let cases = [
        ("X-Session-Id: {id}\r\n", plain),
        ("Mcp-Session-Id: {id}\r\n", plain),
        ("X-Session-Id: {id}\r\n", ": hello\n\n"),
    ];
    for (head, begin) in cases {
        let server = works(Stream { head, begin, ..Stream::default() }).await;
        let posts = server.seen().into_iter().filter(|seen| seen.method == "POST");
        assert!(posts.into_iter().all(|seen| seen.head.contains("mcp-session-id: s")));
    }
}

#[tokio::test]
async fn an_address_elsewhere_is_refused() {
    for begin in [
        "event: endpoint\ndata: http://elsewhere.invalid/messages\n\n",
        "event: endpoint\ndata: //127.0.0.1:9/messages\n\n",
    ] {
        let server = server(Stream { begin, ..Stream::default() }).await;
        let gateway = Gateway::start(&server.config(PINNED)).await;
        let why = gateway.failure().await;
        assert!(why.contains("leads to another origin"), "{why}");
        assert!(!server.saw("POST", ""));
    }
}

#[tokio::test]
async fn a_stream_that_tells_no_address_is_not_mcp() {
    for begin in ["event: endpoint\ndata: {}\n\n", "event: endpoint\ndata:\n\n"] {
        let server = server(Stream { begin, ..Stream::default() }).await;
        let gateway = Gateway::start(&server.config(PINNED)).await;
        let why = gateway.failure().await;
        assert!(why.contains("names no address"), "{why}");
    }
}

#[tokio::test]
async fn a_post_need_not_be_answered() {
    works(Stream { accepts: false, ..Stream::default() }).await;
}

#[tokio::test]
async fn a_post_may_carry_the_answer() {
    for media in ["application/json", "text/event-stream"] {
        works(Stream { in_body: Some(media), ..Stream::default() }).await;
    }
}

#[tokio::test]
async fn nobody_takes_anothers_answer_for_his_own() {
    let server = server(Stream { broadcasts: true, ..Stream::default() }).await;
    let gateway = Gateway::start(&server.config(PINNED)).await;
    let clients = [gateway.client().await, gateway.client().await];
    for text in ["a", "b", "c"] {
        for client in &clients {
            client.echoes(text).await;
        }
    }
    let mut ids: Vec<_> = server.seen().iter().filter_map(|seen| seen.message["id"].as_u64()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "no two requests have one id");
}

#[tokio::test]
async fn a_stream_that_dies_ends_its_calls_and_the_next_call_opens_another() {
    let server = server(Stream::default()).await;
    let gateway = Gateway::start(&server.config(PINNED)).await;
    let client = gateway.client().await;
    let answer = client.call("die", "").await;
    let text = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(text.contains("broke off before it answered"), "{answer}");
    client.echoes("again").await;
}

#[tokio::test]
async fn a_lost_session_is_opened_anew_without_a_word() {
    let lost = [
        (404, "Could not find session"),
        (404, ""),
        (400, "No active transport found for sessionId"),
        (500, "SSE connection not established"),
        (503, "No active SSE connection for session"),
    ];
    for lost in lost {
        let server = server(Stream { lost, ..Stream::default() }).await;
        let gateway = Gateway::start(&server.config(PINNED)).await;
        let client = gateway.client().await;
        client.echoes("before").await;
        server.forget();
        client.echoes("after").await;
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_is_found_again_by_the_transport_it_had() {
    let before = server(Stream::default()).await;
    let gateway = Gateway::start(&before.config("")).await;
    assert_eq!(gateway.transport().await, "sse");
    let client = gateway.client().await;
    client.echoes("before").await;
    let after = before.restart().await;
    client.echoes("after").await;
    after.sees("POST", "tools/list").await;
    assert!(!after.saw("POST", "server/discover"), "it is known not to speak Streamable HTTP");
    assert!(after.seen().iter().all(|seen| seen.method == "GET" || seen.path.contains("messages")));
}

#[tokio::test]
async fn a_call_waits_for_a_server_that_comes_back_at_once() {
    let before = server(Stream::default()).await;
    let gateway = Gateway::start(&before.config(PINNED)).await;
    let client = gateway.client().await;
    client.echoes("before").await;
    before.stop().await;
    let tries = gateway.tries();
    let (after, ()) = tokio::join!(
        async {
            gateway.tried(tries).await;
            before.restart().await
        },
        client.echoes("meanwhile")
    );
    assert!(after.saw("POST", "tools/call"));
}

#[tokio::test]
async fn a_server_that_changed_its_transport_is_found() {
    let before = server(Stream::default()).await;
    let gateway = Gateway::start(&before.config("")).await;
    assert_eq!(gateway.transport().await, "sse");
    let client = gateway.client().await;
    let _after = before.replace(Does::Serve, Does::Say(405, "")).await;
    client.echoes("after").await;
}

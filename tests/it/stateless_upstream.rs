//! Legacy clients at an upstream that knows no sessions and that does on purpose what real ones do seldom.

use serde_json::{Value, json};
use weir_tests::events::Events;
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, LEGACY, Request, Stub};

/// What servers of one era say to requests of the other.
const UNSUPPORTED: (i64, &str) = (-32022, "Unsupported protocol version");
const NO_HEADER: (i64, &str) = (-32020, "the Mcp-Method header is missing");
const UNINITIALIZED: (i64, &str) = (-32000, "Bad Request: Server not initialized");

/// The two endpoints, with what stands before the name of a tool.
const PLACES: [(&str, &str); 2] = [("/mcp", "stub__"), ("/mcp/stub", "")];

fn modern() -> Offer {
    let tools = ["echo", "hold", "steps", "regional", "visit"].map(str::to_owned).to_vec();
    let refusals = [UNSUPPORTED, UNINITIALIZED];
    Offer { tools, legacy: false, listens: true, refusals, ..Offer::default() }
}

async fn start() -> (Gateway, Stub) {
    let stub = Stub::offering(modern()).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

async fn client(gateway: &Gateway, path: &str, capabilities: Value) -> Client {
    Client::legacy_at(gateway.address(), path, LEGACY, &capabilities).await
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}

/// Begins a call that goes on in steps, and hears the first.
async fn begin(client: &Client, prefix: &str) -> (u64, Events, String) {
    let meta = json!({ "progressToken": "t" });
    let params = json!({ "name": format!("{prefix}steps"), "arguments": { "message": "the end" }, "_meta": meta });
    let (id, request) = client.request("tools/call", params);
    let mut events = client.send(request).await.events();
    loop {
        let event = events.next().await.unwrap();
        if event.message().is_some_and(|message| message["params"]["progress"] == 1) {
            return (id, events, event.id.unwrap());
        }
    }
}

#[tokio::test]
async fn a_cancelled_call_is_broken_off_and_has_no_answer() {
    let (gateway, stub) = start().await;
    for (broken_off, (path, prefix)) in (1..).zip(PLACES) {
        let client = client(&gateway, path, json!({})).await;
        let (id, mut events, _) = begin(&client, prefix).await;
        until("the call waits", || stub.held() == 1).await;
        assert_eq!(client.notify("notifications/cancelled", json!({ "requestId": id })).await, 202);
        until("the call is broken off", || stub.broken_off() == broken_off).await;
        assert_eq!(events.next_message().await, None, "nobody expects an answer");
        assert_eq!(stub.asked("notifications/cancelled").len(), 0, "a closed answer says it all");
        assert!(client.tools().await.contains(&format!("{prefix}echo")));
    }
}

#[tokio::test]
async fn a_client_that_loses_its_connection_has_cancelled_nothing() {
    let (gateway, stub) = start().await;
    for (path, prefix) in PLACES {
        let client = client(&gateway, path, json!({})).await;
        let (id, events, seen) = begin(&client, prefix).await;
        until("the call waits", || stub.held() == 1).await;
        drop(events);
        stub.release(3);
        let back = Request::get(path).header("accept", "text/event-stream").header("last-event-id", &seen);
        let back = back.header("mcp-session-id", client.session_id()).header("mcp-protocol-version", LEGACY);
        let mut rest = gateway.send(back).await.events();
        for progress in [2, 3] {
            assert_eq!(rest.next_message().await.unwrap()["params"]["progress"], progress);
        }
        let answer = rest.next_message().await.unwrap();
        assert_eq!((&answer["id"], text(&answer)), (&json!(id), "the end"));
    }
    assert_eq!(stub.broken_off(), 0);
}

/// Also where its version has no way back before the first event: the call may have begun what must not break off.
#[tokio::test]
async fn a_call_goes_on_when_its_client_cannot_come_back() {
    let (gateway, stub) = start().await;
    let client = Client::legacy_at(gateway.address(), "/mcp/stub", "2025-06-18", &json!({})).await;
    let (_, request) = client.request("tools/call", json!({ "name": "hold", "arguments": {} }));
    tokio::select! {
        _ = client.send(request) => panic!("the call waits"),
        () = until("the call waits", || stub.held() == 1) => {}
    }
    gateway.logs("499").await;
    stub.release(1);
    until("the call is over", || stub.held() == 0).await;
    assert_eq!(stub.broken_off(), 0);
}

#[tokio::test]
async fn an_address_to_visit_is_put_to_who_can_and_told_to_others() {
    let (gateway, _stub) = start().await;
    for (path, prefix) in PLACES {
        let able = client(&gateway, path, json!({ "elicitation": { "url": {} } })).await;
        let (id, request) = able.request("tools/call", json!({ "name": format!("{prefix}visit") }));
        let mut events = able.send(request).await.events();
        let question = events.next_message().await.unwrap();
        assert_eq!((&question["method"], &question["params"]["mode"]), (&json!("elicitation/create"), &json!("url")));
        assert_eq!(question["params"]["url"], "https://sign.in.test/x");
        assert!(question["params"]["elicitationId"].is_string(), "{question}");
        let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } });
        assert_eq!(able.send(able.post(reply.to_string())).await.status, 202);
        let answer = events.next_message().await.unwrap();
        assert_eq!((&answer["id"], text(&answer)), (&json!(id), "accept \"state\""));

        for capabilities in [json!({}), json!({ "elicitation": {} })] {
            let unable = client(&gateway, path, capabilities).await;
            let told = unable.ask("tools/call", json!({ "name": format!("{prefix}visit") })).await;
            assert_eq!((text(&told), &told["result"]["isError"]), ("Sign in\nhttps://sign.in.test/x", &json!(true)));
        }
    }
}

#[tokio::test]
async fn a_subscription_that_broke_off_is_opened_again() {
    let (gateway, stub) = start().await;
    let client = client(&gateway, "/mcp/stub", json!({})).await;
    let mut stream = client.stream().await;
    // Weir's own, and the session's.
    until("both listen", || stub.subscriptions() == 2).await;
    stub.publish("notifications/tools/list_changed");
    assert_eq!(stream.next_message().await.unwrap()["method"], "notifications/tools/list_changed");
    stub.end_subscriptions();
    // What was missed is unknown, so everything may have changed.
    let lists = ["tools", "prompts", "resources"];
    for list in lists {
        let method = format!("notifications/{list}/list_changed");
        assert_eq!(stream.next_message().await.unwrap()["method"], json!(method));
    }
    stub.publish("notifications/prompts/list_changed");
    assert_eq!(stream.next_message().await.unwrap()["method"], "notifications/prompts/list_changed");
}

#[tokio::test]
async fn a_header_that_got_another_name_is_found_out() {
    let (gateway, stub) = start().await;
    for (param, (path, prefix)) in ["Place", "Country"].into_iter().zip(PLACES) {
        let client = client(&gateway, path, json!({})).await;
        let tool = format!("{prefix}regional");
        assert_eq!(
            text(&client.ask("tools/call", json!({ "name": tool, "arguments": { "message": "eu" } })).await),
            "eu"
        );
        stub.offer(Offer { param, ..modern() });
        assert_eq!(
            text(&client.ask("tools/call", json!({ "name": tool, "arguments": { "message": "us" } })).await),
            "us"
        );
    }
}

#[tokio::test]
async fn an_upstream_may_change_its_era_under_a_session() {
    let (gateway, stub) = start().await;
    let sessions = [client(&gateway, "/mcp", json!({})).await, client(&gateway, "/mcp/stub", json!({})).await];
    let call = async |message: &str| {
        for (client, (_, prefix)) in sessions.iter().zip(PLACES) {
            let echo = json!({ "name": format!("{prefix}echo"), "arguments": { "message": message } });
            assert_eq!(text(&client.ask("tools/call", echo).await), message);
        }
    };
    call("modern").await;
    for refusal in [UNSUPPORTED, NO_HEADER] {
        stub.offer(Offer { legacy: true, modern: false, ..modern() });
        call("legacy").await;
        stub.offer(Offer { refusals: [refusal, UNINITIALIZED], ..modern() });
        call("modern again").await;
    }
}

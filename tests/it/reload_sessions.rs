//! What clients have open when another configuration comes into force: nothing of it leads on to what that has taken away,
//! and calls that run come to their end.

use serde_json::{Value, json};
use weir_tests::client::{LEGACY, answer, initialize};
use weir_tests::events::Events;
use weir_tests::sse::SseClient;
use weir_tests::stub::Offer;
use weir_tests::wait::{until, within};
use weir_tests::{Client, Gateway, Peer, Stub};

use crate::reload::reload;

/// The only resource of [`watchable`].
const RESOURCE: &str = "test://a";

/// Rules under which nothing of the stub is left.
const NOTHING: &str = "[[access.rules]]\nupstreams = ['other']\n";

/// Rules under which one tool is left.
const LESS: &str = "[[access.rules]]\ntools = ['echo']\n";

/// An upstream of one era whose resource can be watched.
async fn watchable(legacy: bool) -> Stub {
    Stub::offering(Offer {
        legacy,
        modern: !legacy,
        listens: true,
        capabilities: json!({ "resources": { "subscribe": true } }),
        lists: json!({ "resources/list": [{ "uri": RESOURCE, "name": "a" }] }),
        ..Offer::default()
    })
    .await
}

async fn serving(config: &str) -> Gateway {
    let gateway = Gateway::start(config).await;
    gateway.healthy(&["stub"]).await;
    gateway
}

/// A call of `hold`, which has begun.
async fn held(client: &Client, tool: &str, gateway: &Gateway, stub: &Stub) -> tokio::task::JoinHandle<Value> {
    let before = stub.held();
    let (id, request) = client.request("tools/call", json!({ "name": tool, "arguments": { "message": "kept" } }));
    let address = gateway.address();
    let call = tokio::spawn(async move { answer(request.send(address).await, id).await });
    until("the call runs", || stub.held() > before).await;
    call
}

/// The last message of a stream, which ends.
async fn end(events: &mut Events) -> Value {
    let mut last = Value::Null;
    within("the end of the stream", async {
        while let Some(message) = events.next_message().await {
            last = message;
        }
    })
    .await;
    last
}

/// A stream on which a modern client listens.
async fn listening(client: &Client, wish: Value) -> Events {
    let (_, request) = client.request("subscriptions/listen", json!({ "notifications": wish }));
    let mut events = client.send(request).await.events();
    assert_eq!(events.next_message().await.unwrap()["method"], "notifications/subscriptions/acknowledged");
    events
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_stream_without_a_session_leads_to_nothing_that_was_served_before() {
    let (before, after) = tokio::join!(Stub::start(), Stub::start());
    let toolset = |tool: &str| format!("[toolsets.desk]\ntools = ['{tool}']\n");
    let gateway = serving(&(before.config("stub") + &toolset("hold"))).await;
    let opened = before.sessions_opened();
    let mut streams = Vec::new();
    for path in ["/sse/stub", "/sse/desk"] {
        streams.push(SseClient::open(gateway.address(), path).await);
    }
    reload(&gateway, &(after.config("stub") + &toolset("echo"))).await;
    for stream in &streams {
        let hello =
            json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "late", "version": "1" } });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello });
        assert_eq!(stream.post(hello.to_string()).await.status, 404, "{}", stream.post_to);
    }
    assert_eq!(before.sessions_opened(), opened);
    let mut client = SseClient::connect(gateway.address(), "/sse/desk", &json!({})).await;
    assert_eq!(client.call("stub__echo", json!({ "message": "now" })).await, "now");
}

#[tokio::test]
async fn a_session_that_was_being_opened_is_not_of_the_former_upstream() {
    let (before, after) = tokio::join!(Stub::start(), Stub::start());
    let gateway = serving(&before.config("stub")).await;
    before.offer(Offer { waits: true, ..Offer::default() });
    let held = before.held();
    let address = gateway.address();
    let hello = initialize("/mcp/stub", LEGACY, &json!({}));
    let opening = tokio::spawn(async move { hello.send(address).await.status });
    until("the upstream is asked", || before.held() > held).await;
    reload(&gateway, &after.config("stub")).await;
    before.release(before.held());
    assert_eq!(opening.await.unwrap(), 503);
    until("nothing is left open", || before.sessions().is_empty()).await;
    assert_eq!(
        Client::legacy(&gateway, "/mcp/stub").await.call("echo", json!({ "message": "now" })).await["content"][0]["text"],
        "now"
    );
}

#[tokio::test]
async fn a_session_of_http_sse_that_is_over_takes_no_calls_and_ends_with_its_last_answer() {
    for rules in ["", LESS] {
        let (before, after) = tokio::join!(Stub::start(), Stub::start());
        let gateway = serving(&before.config("stub")).await;
        let mut client = SseClient::connect(gateway.address(), "/sse/stub", &json!({})).await;
        let id = client.send("tools/call", json!({ "name": "hold", "arguments": { "message": "kept" } })).await;
        until("the call runs", || before.held() == 1).await;
        let now = if rules.is_empty() { after.config("stub") } else { before.config("stub") };
        reload(&gateway, &(now + rules)).await;
        let echo =
            json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": { "name": "echo", "arguments": {} } });
        assert_eq!(client.post(echo.to_string()).await.status, 404);
        before.release(1);
        let said = within("the answer", client.answer(id)).await;
        assert_eq!(text(&said), "kept", "{said}");
        end(&mut client.events).await;
        assert!(before.asked("tools/call").len() == 1);
    }
}

#[tokio::test]
async fn what_a_modern_client_watches_ends_where_the_rules_take_the_upstream_away() {
    for is_legacy in [false, true] {
        let stub = watchable(is_legacy).await;
        let gateway = serving(&stub.config("stub")).await;
        let client = Client::modern(&gateway, "/mcp");
        let own = stub.subscriptions();
        let watches = || match is_legacy {
            true => stub.asked("resources/subscribe").len() > stub.asked("resources/unsubscribe").len(),
            false => stub.subscriptions() > own,
        };
        let mut events = listening(&client, json!({ "resourceSubscriptions": [RESOURCE] })).await;
        until("the client is listened for", watches).await;
        reload(&gateway, &(stub.config("stub") + NOTHING)).await;
        until("nobody listens for the client", || !watches()).await;
        reload(&gateway, &stub.config("stub")).await;
        until("the client is listened for again", watches).await;
        // It may have missed something.
        let told = within("the change", events.next_message()).await.unwrap();
        assert_eq!(told["method"], "notifications/resources/updated", "{told}");
        assert_eq!(told["params"]["uri"], RESOURCE);
    }
}

#[tokio::test]
async fn an_upstream_that_the_rules_take_away_says_nothing_more_to_a_session() {
    let stub = watchable(true).await;
    let gateway = serving(&stub.config("stub")).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let mut told = client.stream().await;
    client.result("resources/subscribe", json!({ "uri": RESOURCE })).await;
    until("the session hears", || stub.listeners_called("weir-tests") == 1).await;
    let call = held(&client, "stub__hold", &gateway, &stub).await;
    reload(&gateway, &(stub.config("stub") + NOTHING)).await;
    let (id, request) = client.request("tools/call", json!({ "name": "stub__echo", "arguments": {} }));
    assert_eq!(answer(client.send(request).await, id).await["error"]["code"], -32602);
    stub.release(1);
    assert_eq!(text(&call.await.unwrap()), "kept");
    until("the upstream is left", || stub.listeners_called("weir-tests") == 0).await;
    // The session itself goes on, and hears again what it watches once it may.
    reload(&gateway, &stub.config("stub")).await;
    until("the session hears again", || stub.listeners_called("weir-tests") == 1).await;
    let update =
        json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": RESOURCE } });
    stub.say(&update.to_string());
    within("the change", async { while told.next_message().await.unwrap()["method"] != update["method"] {} }).await;
}

#[tokio::test]
async fn a_session_watches_nothing_at_an_upstream_without_sessions_that_the_rules_take_away() {
    let stub = watchable(false).await;
    let gateway = serving(&stub.config("stub")).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let own = stub.subscriptions();
    client.result("resources/subscribe", json!({ "uri": RESOURCE })).await;
    assert_eq!(stub.subscriptions(), own + 1);
    reload(&gateway, &(stub.config("stub") + NOTHING)).await;
    until("nobody listens for the session", || stub.subscriptions() == own).await;
    reload(&gateway, &stub.config("stub")).await;
    until("it is listened for again", || stub.subscriptions() == own + 1).await;
}

#[tokio::test]
async fn a_stream_ends_whose_first_word_came_after_the_rules_that_narrow_it() {
    let stub = watchable(false).await;
    let gateway = serving(&stub.config("stub")).await;
    let client = Client::modern(&gateway, "/mcp/stub");
    let address = gateway.address();
    stub.offer(Offer { waits: true, listens: true, legacy: false, ..Offer::default() });
    let (_, request) = client.request("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let listening = tokio::spawn(async move { request.send(address).await.events() });
    until("the upstream is asked", || stub.held() == 1).await;
    reload(&gateway, &(stub.config("stub") + LESS)).await;
    stub.release(1);
    end(&mut listening.await.unwrap()).await;
}

#[tokio::test]
async fn streams_end_whatever_came_between_them_and_the_rules_that_narrow_them() {
    let (both, legacy) = tokio::join!(Peer::fixture("both"), Peer::fixture("legacy"));
    let config = both.config("both") + &legacy.config("legacy");
    let toolset = |tool: &str| format!("[toolsets.desk]\ntools = ['{tool}']\n");
    let gateway = Gateway::start(&(config.clone() + &toolset("a"))).await;
    gateway.healthy(&["both", "legacy"]).await;
    let [both, legacy, desk] = ["both", "legacy", "desk"].map(|name| Client::modern(&gateway, &format!("/mcp/{name}")));
    let wish = json!({ "toolsListChanged": true });
    let mut streams = [listening(&both, wish.clone()).await, listening(&legacy, wish.clone()).await];
    let mut of_desk = listening(&desk, wish).await;
    // Nobody sees anything else by this.
    let other = Stub::start().await;
    let config = config + &other.config("other");
    reload(&gateway, &(config.clone() + &toolset("a"))).await;
    reload(&gateway, &(config + &toolset("b") + "[[access.rules]]\ntools = ['test_simple_text']\n")).await;
    for stream in streams.iter_mut().chain([&mut of_desk]) {
        let last = end(stream).await;
        assert_eq!(last["result"]["resultType"], "complete", "{last}");
    }
}

#[tokio::test]
async fn a_call_is_not_cut_where_only_the_rules_have_changed_and_its_session_hears_nothing_more() {
    let stub = Stub::start().await;
    let config = stub.sse_config("stub");
    let gateway = serving(&config).await;
    let client = Client::legacy(&gateway, "/mcp/stub").await;
    let mut told = client.stream().await;
    let call = held(&client, "hold", &gateway, &stub).await;
    reload(&gateway, &(config + LESS)).await;
    end(&mut told).await;
    stub.release(1);
    let said = call.await.unwrap();
    assert_eq!(text(&said), "kept", "{said}");
}

#[tokio::test]
async fn what_is_over_waits_for_no_calls_elsewhere() {
    let (idle, busy, after) = tokio::join!(Stub::start(), Stub::start(), Stub::start());
    let gateway = Gateway::start(&(idle.config("idle") + &busy.config("busy"))).await;
    gateway.healthy(&["idle", "busy"]).await;
    let (one, other) = (Client::legacy(&gateway, "/mcp/idle").await, Client::legacy(&gateway, "/mcp/busy").await);
    one.call("echo", json!({})).await;
    let call = held(&other, "hold", &gateway, &busy).await;
    reload(&gateway, &(after.config("idle") + &after.config("busy"))).await;
    until("the idle session has ended", || idle.sessions().is_empty()).await;
    assert_eq!(busy.held(), 1);
    busy.release(1);
    assert_eq!(text(&call.await.unwrap()), "kept");
    until("the busy session has ended", || busy.sessions().is_empty()).await;
}

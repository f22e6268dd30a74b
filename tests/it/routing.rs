//! Many upstreams as one: pages and cursors, extensions, interfaces of tools, addresses that nobody lists.

use serde_json::{Value, json};
use weir_tests::client::texts;
use weir_tests::stub::{Offer, Stub};
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Client, Gateway, Peer};

async fn both(gateway: &Gateway) -> [Client; 2] {
    [Client::legacy(gateway, "/mcp").await, Client::modern(gateway, "/mcp")]
}

fn many(count: usize) -> Offer {
    Offer { tools: (0..count).map(|index| format!("tool_{index}")).collect(), page: 500, ..Offer::default() }
}

#[tokio::test]
async fn a_very_long_list_comes_in_pages() {
    let stub = Stub::offering(many(10_000)).await;
    let other = Stub::start().await;
    let gateway = Gateway::start(&(stub.config("long") + &other.config("other"))).await;
    gateway.healthy(&["long", "other"]).await;
    for client in both(&gateway).await {
        let first = client.result("tools/list", json!({})).await;
        assert_eq!(first["tools"].as_array().unwrap().len(), 1000, "the default of `limits.page_size`");
        assert_eq!(client.result("tools/list", json!({ "cursor": "" })).await["tools"], first["tools"]);
        let all = client.tools().await;
        assert_eq!(all.len(), 10_005);
        assert_eq!((all[9_999].as_str(), all[10_000].as_str()), ("long__tool_9999", "other__echo"));
        let last = client.call("long__tool_9999", json!({ "message": "the last can be called" })).await;
        assert_eq!(last["content"][0]["text"], "the last can be called");
    }
}

#[tokio::test]
async fn a_cursor_is_good_for_the_list_it_came_from_and_nothing_else() {
    let stub = Stub::offering(many(7)).await;
    let gateway = Gateway::start(&format!("limits.page_size = 3\n{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let [legacy, modern] = both(&gateway).await;
    for (client, other) in [(&legacy, &modern), (&modern, &legacy)] {
        let cursor = client.result("tools/list", json!({})).await["nextCursor"].as_str().unwrap().to_owned();
        let page = client.result("tools/list", json!({ "cursor": cursor })).await;
        assert_eq!(page["tools"][0]["name"], "stub__tool_3");
        assert_eq!(client.result("tools/list", json!({ "cursor": cursor })).await["tools"], page["tools"]);
        assert_eq!(other.ask("tools/list", json!({ "cursor": cursor })).await["error"]["code"], -32602);
        for method in ["prompts/list", "resources/list", "resources/templates/list"] {
            assert_eq!(client.ask(method, json!({ "cursor": cursor })).await["error"]["code"], -32602, "{method}");
        }
        for at in [0, cursor.len() / 2, cursor.len() - 1] {
            let mut bent = cursor.clone().into_bytes();
            bent[at] = if bent[at] == b'A' { b'B' } else { b'A' };
            let bent = String::from_utf8(bent).unwrap();
            assert_eq!(client.ask("tools/list", json!({ "cursor": bent })).await["error"]["code"], -32602);
        }
        for odd in ["x", "0", &"A".repeat(100_000)] {
            assert_eq!(client.ask("tools/list", json!({ "cursor": odd })).await["error"]["code"], -32602);
        }
    }
}

#[tokio::test]
async fn a_cursor_of_a_list_that_has_changed_is_refused() {
    let stub = Stub::offering(Offer { modern: false, ..many(7) }).await;
    let gateway = Gateway::start(&format!("limits.page_size = 3\n{}", stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let legacy = Client::legacy(&gateway, "/mcp").await;
    until("the upstream is listened to", || stub.listeners() > 0).await;
    let cursor = legacy.result("tools/list", json!({})).await["nextCursor"].clone();
    stub.offer(Offer { modern: false, ..many(8) });
    stub.announce("notifications/tools/list_changed");
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut refused = Value::Null;
    while refused.get("error").is_none() {
        assert!(tokio::time::Instant::now() < end, "the list never changes");
        refused = legacy.ask("tools/list", json!({ "cursor": cursor })).await;
    }
    assert_eq!(legacy.tools().await.len(), 8);
    assert_eq!(refused["error"]["code"], -32602);
    assert!(refused["error"]["message"].as_str().unwrap().contains("changed"), "{refused}");
}

#[tokio::test]
async fn a_method_of_an_extension_goes_to_the_one_who_declared_it() {
    let with = |raw: &str, capabilities: Value| Offer { raw: raw.to_owned(), capabilities, ..Offer::default() };
    let plain = Stub::offering(with("{\"from\":\"plain\"}", json!({}))).await;
    let declared = json!({ "extensions": { "com.example/weir-tests": {} } });
    let able = Stub::offering(with("{\"from\":\"able\",\"number\":1e400}", declared.clone())).await;
    let gateway = Gateway::start(&(plain.config("plain") + &able.config("able"))).await;
    gateway.healthy(&["plain", "able"]).await;
    for client in both(&gateway).await {
        let (_, request) = client.request("weir-tests/raw", json!({ "a": 1 }));
        let answer = String::from_utf8(client.send(request).await.bytes().await.to_vec()).unwrap();
        assert!(answer.contains(r#"{"from":"able","number":1e400}"#), "{answer}");
        let refused = client.ask("other/raw", json!({})).await;
        assert_eq!(refused["error"]["code"], -32601);
        assert!(refused["error"]["message"].as_str().unwrap().contains("/mcp/<name>"), "{refused}");
    }
    assert!(plain.asked("weir-tests/raw").is_empty());

    let second = Stub::offering(with("{}", declared)).await;
    let gateway = Gateway::start(&(second.config("second") + &able.config("able"))).await;
    gateway.healthy(&["second", "able"]).await;
    for client in both(&gateway).await {
        let refused = client.ask("weir-tests/raw", json!({})).await;
        assert_eq!(refused["error"]["code"], -32601);
        let why = refused["error"]["message"].as_str().unwrap();
        assert!(why.contains("/mcp/second or /mcp/able"), "{refused}");
    }
}

#[tokio::test]
async fn trace_context_and_meta_pass_untouched() {
    let stub = Stub::start().await;
    let other = Stub::start().await;
    let gateway = Gateway::start(&(stub.config("stub") + &other.config("other"))).await;
    gateway.healthy(&["stub", "other"]).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for client in both(&gateway).await {
        let meta =
            json!({ "traceparent": trace, "tracestate": "a=1", "baggage": "k=v", "com.example/x": { "y": [1] } });
        let params = json!({ "name": "stub__echo", "arguments": { "message": "hi" }, "_meta": meta });
        let (_, request) = client.request("tools/call", params);
        let request = request.header("traceparent", trace).header("tracestate", "a=1").header("baggage", "k=v");
        assert_eq!(client.send(request).await.status, 200);
        let seen = stub.asked("tools/call").pop().unwrap();
        for (name, value) in [("traceparent", trace), ("tracestate", "a=1"), ("baggage", "k=v")] {
            assert_eq!(seen.header(name), Some(value));
            assert_eq!(seen.message()["params"]["_meta"][name], value);
        }
        assert_eq!(seen.message()["params"]["_meta"]["com.example/x"], json!({ "y": [1] }));
    }
}

#[tokio::test]
async fn a_tool_is_shown_with_the_interface_of_its_own_server() {
    let interface = json!({ "ui": { "resourceUri": "ui://panel" } });
    let with =
        |meta: &Value| Offer { tool_meta: meta.clone(), capabilities: json!({ "resources": {} }), ..Offer::default() };
    let (first, second) = (Stub::offering(with(&interface)).await, Stub::offering(with(&interface)).await);
    let gateway = Gateway::start(&(first.config("first") + &second.config("second"))).await;
    gateway.healthy(&["first", "second"]).await;
    for client in both(&gateway).await {
        let tools = client.list("tools/list", "tools").await;
        for (tool, uri, stub) in
            [("first__echo", "ui://panel", &first), ("second__echo", "ui://second__panel", &second)]
        {
            let tool = tools.iter().find(|entry| entry["name"] == tool).unwrap();
            assert_eq!(tool["_meta"]["ui"]["resourceUri"], uri);
            let before = stub.asked("resources/read").len();
            let read = client.result("resources/read", json!({ "uri": uri })).await;
            assert_eq!(read["contents"][0]["uri"], uri);
            let asked = stub.asked("resources/read");
            assert_eq!(asked.len(), before + 1);
            assert_eq!(asked.last().unwrap().message()["params"]["uri"], "ui://panel");
        }
    }
}

#[tokio::test]
async fn a_resource_that_nobody_lists_is_asked_of_the_only_one_that_may_have_it() {
    let (python, fixture) = tokio::join!(Peer::python(), Peer::fixture("both"));
    let gateway = Gateway::start(&(python.config("python") + &fixture.config("fixture"))).await;
    gateway.healthy(&["python", "fixture"]).await;
    for client in both(&gateway).await {
        let templates = texts(&client.list("resources/templates/list", "resourceTemplates").await, "uriTemplate");
        assert_eq!(templates, ["test://template/{id}/data"]);
        // Each answers in its own words that there is none.
        for (uri, from) in [("test://nothing", "test://nothing"), ("python://nothing", "python://nothing")] {
            let refused = client.ask("resources/read", json!({ "uri": uri })).await;
            assert!(refused["error"]["message"].as_str().unwrap().contains(from), "{refused}");
        }
        let refused = client.ask("resources/read", json!({ "uri": "nobody://nothing" })).await;
        assert_eq!(refused["error"]["message"], "Resource not found: nobody://nothing");
    }
}

#[tokio::test]
async fn an_address_of_two_upstreams_is_said_once() {
    let (first, second) = tokio::join!(Peer::fixture("both"), Peer::fixture("both"));
    let gateway = Gateway::start(&(first.config("first") + &second.config("second"))).await;
    gateway.healthy(&["first", "second"]).await;
    drop(Client::legacy(&gateway, "/mcp").await.tools().await);
    drop(Client::modern(&gateway, "/mcp").tools().await);
    gateway.logs("test://static-text").await;
    let log = gateway.log();
    let said = log.lines().filter(|line| line.contains("test://static-text")).count();
    assert_eq!(said, 1, "{log}");
}

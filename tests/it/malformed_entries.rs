//! Entries of lists that clients refuse, and with them the list of all upstreams.

use serde_json::{Value, json};
use weir_tests::client::texts;
use weir_tests::driver::{Choice, Visitor, visit};
use weir_tests::paths;
use weir_tests::stub::{Offer, Stub};
use weir_tests::{Client, Gateway};

const LISTS: [(&str, &str, &str); 4] = [
    ("tools/list", "tools", "name"),
    ("prompts/list", "prompts", "name"),
    ("resources/list", "resources", "uri"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate"),
];

/// All cases of `malformed.json` as the lists of one upstream, each with a name of its own; and what is left of them for
/// clients of the legacy and of the modern era.
struct Cases {
    lists: Value,
    legacy: Vec<Vec<String>>,
    modern: Vec<Vec<String>>,
}

fn cases() -> Cases {
    let file = std::fs::read(paths::peers("malformed.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&file).unwrap();
    let mut all = Cases { lists: json!({}), legacy: vec![Vec::new(); 4], modern: vec![Vec::new(); 4] };
    for (place, (method, _, key)) in LISTS.into_iter().enumerate() {
        let mut entries = Vec::new();
        for (at, case) in cases.iter().filter(|case| case["list"] == method).enumerate() {
            let mut entry = case["entry"].clone();
            // Those that are wrong in this very member stay as they are.
            if entry["name"].is_string() {
                entry["name"] = json!(format!("entry{at}"));
            }
            if let Some(own) = entry[key].as_str().filter(|own| own.starts_with("test://")) {
                entry[key] = json!(format!("{own}{at}"));
            }
            if let (Some(own), true) = (entry[key].as_str(), case["refused_by"] != "all") {
                let public = if key == "name" { format!("stub__{own}") } else { own.to_owned() };
                if case["refused_by"] == "nobody" {
                    all.legacy[place].push(public.clone());
                }
                all.modern[place].push(public);
            }
            entries.push(entry);
        }
        all.lists[method] = Value::Array(entries);
    }
    all
}

async fn stub(lists: Value) -> Stub {
    let capabilities = json!({ "prompts": {}, "resources": {} });
    Stub::offering(Offer { lists, capabilities, ..Offer::default() }).await
}

#[tokio::test]
async fn real_clients_see_all_the_others() {
    let cases = cases();
    let stub = stub(cases.lists.clone()).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    for (visitor, choice) in [
        (Visitor::Sdk1, Choice::Legacy),
        (Visitor::Sdk2, Choice::Legacy),
        (Visitor::Sdk2, Choice::Auto),
        (Visitor::Python, Choice::Legacy),
        (Visitor::Python, Choice::Modern),
    ] {
        let seen = visit(visitor, choice, &gateway.url("/mcp"), "stub__echo", &json!({ "message": "hi" })).await;
        let seen = seen.unwrap_or_else(|why| panic!("{visitor:?} {choice:?}: {why}"));
        let expected = if seen["era"] == "modern" { &cases.modern } else { &cases.legacy };
        for (at, key) in ["tools", "prompts", "resources"].into_iter().enumerate() {
            assert_eq!(seen[key], json!(expected[at]), "{visitor:?} {choice:?} {key}");
        }
        assert_eq!(seen["call"]["content"][0]["text"], "hi", "{visitor:?} {choice:?}");
    }
    let clients = [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")];
    for (client, expected) in clients.iter().zip([&cases.legacy, &cases.modern]) {
        for (at, (method, list, key)) in LISTS.into_iter().enumerate() {
            assert_eq!(texts(&client.list(method, list).await, key), expected[at], "{method}");
        }
    }
    let own = Client::legacy(&gateway, "/mcp/stub").await;
    for (method, list, _) in LISTS {
        assert_eq!(json!(own.list(method, list).await), cases.lists[method], "alone it is as it is: {method}");
    }
}

#[tokio::test]
async fn what_is_left_out_is_said_once_and_in_readyz() {
    let tool = |name: &str, schema: Value| json!({ "name": name, "inputSchema": schema });
    let good = json!({ "type": "object" });
    let tools =
        json!([tool("a", good.clone()), tool("b", json!(true)), tool("c", good.clone()), tool("a", good.clone())]);
    let offer = |tools: Value| Offer { lists: json!({ "tools/list": tools }), modern: false, ..Offer::default() };
    let stub = Stub::offering(offer(tools.clone())).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    assert_eq!(client.tools().await, ["stub__a", "stub__c"]);
    let (_, ready) = gateway.readiness().await;
    assert_eq!(
        ready["upstreams"][0]["warnings"],
        json!([
            "tool `b` is left out: `inputSchema` is no object",
            "tool `a` is offered more than once; the first is taken"
        ])
    );
    assert_eq!(ready["upstreams"][0]["error"], Value::Null);

    let mut more = tools.as_array().unwrap().clone();
    more.push(tool("d", good));
    let mut stream = client.stream().await;
    weir_tests::wait::until("the upstream is listened to", || stub.listeners() > 0).await;
    stub.offer(offer(json!(more)));
    stub.announce("notifications/tools/list_changed");
    while stream.next_message().await.unwrap()["method"] != "notifications/tools/list_changed" {}
    assert_eq!(client.tools().await, ["stub__a", "stub__c", "stub__d"]);
    let log = gateway.log();
    assert_eq!(log.matches("`inputSchema` is no object").count(), 1, "{log}");
    assert_eq!(log.matches("offered more than once").count(), 1, "{log}");
}

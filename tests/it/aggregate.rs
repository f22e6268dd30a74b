//! Many upstreams as one: what is offered, in which order, and what the worst of them can do to the others.

use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use weir_tests::client::texts;
use weir_tests::gateway::state;
use weir_tests::peer::{Launch, free_port};
use weir_tests::stub::{Offer, Stub};
use weir_tests::wait::{PATIENCE, until};
use weir_tests::{Client, Gateway, LEGACY, Peer};

fn names(prefix: &str, tools: &[String]) -> Vec<String> {
    tools.iter().map(|tool| format!("{prefix}__{tool}")).collect()
}

#[tokio::test]
async fn all_upstreams_in_the_order_of_the_configuration() {
    let (python, fixture) = tokio::join!(Peer::python(), Peer::fixture("both"));
    let config = [python.config("zeta"), Launch::everything().config("alpha"), fixture.config("middle")].concat();
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["zeta", "alpha", "middle"]).await;

    let all = Client::legacy(&gateway, "/mcp").await;
    let mut expected = Vec::new();
    for name in ["zeta", "alpha", "middle"] {
        expected.extend(names(name, &Client::legacy(&gateway, &format!("/mcp/{name}")).await.tools().await));
    }
    assert_eq!(all.tools().await, expected);
    assert_eq!(all.tools().await, expected, "the order is the same each time");

    let direct = Client::legacy_at(fixture.address(), "/mcp", LEGACY, &json!({})).await;
    let through = Client::legacy(&gateway, "/mcp/middle").await;
    for (method, key) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        assert_eq!(through.list(method, key).await, direct.list(method, key).await, "{method} is the upstream's own");
    }

    let prompts = texts(&all.list("prompts/list", "prompts").await, "name");
    assert!(prompts.contains(&"zeta__hello".to_owned()) && prompts.contains(&"alpha__simple-prompt".to_owned()));
    let resources = texts(&all.list("resources/list", "resources").await, "uri");
    assert!(resources.contains(&"python://greeting".to_owned()), "{resources:?}");
    assert!(resources.contains(&"test://static-text".to_owned()), "{resources:?}");
    let templates = texts(&all.list("resources/templates/list", "resourceTemplates").await, "uriTemplate");
    assert!(templates.contains(&"test://template/{id}/data".to_owned()), "{templates:?}");
}

#[tokio::test]
async fn each_request_goes_where_its_name_says() {
    let (python, fixture) = tokio::join!(Peer::python(), Peer::fixture("both"));
    let gateway = Gateway::start(&(python.config("python") + &fixture.config("fixture"))).await;
    gateway.healthy(&["python", "fixture"]).await;
    for client in [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")] {
        let sum = client.call("python__add", json!({ "a": 2, "b": 3 })).await;
        assert_eq!(sum["content"][0]["text"], "5");
        let text = client.call("fixture__test_simple_text", json!({})).await;
        assert_eq!(text["content"][0]["text"], "This is a simple text response for testing.");

        let hello = client.result("prompts/get", json!({ "name": "python__hello" })).await;
        assert_eq!(hello["messages"][0]["content"]["text"], "Say hello.");

        for (uri, expected) in [
            ("python://greeting", "Hello from Python."),
            ("test://static-text", "This is the content of the static text resource."),
            ("test://template/42/data", "{\"id\":\"42\",\"templateTest\":true,\"data\":\"Data for ID: 42\"}"),
        ] {
            let resource = client.result("resources/read", json!({ "uri": uri })).await;
            assert_eq!(resource["contents"][0]["text"], expected, "{uri}");
        }

        let reference = json!({ "type": "ref/prompt", "name": "fixture__test_prompt_with_arguments" });
        let argument = json!({ "name": "arg1", "value": "par" });
        let completion = client.result("completion/complete", json!({ "ref": reference, "argument": argument })).await;
        assert_eq!(completion["completion"]["values"], json!(["paris", "park", "party"]));
    }
}

#[tokio::test]
async fn all_pages_of_every_upstream() {
    let tools: Vec<String> = (0..53).map(|index| format!("tool_{index:02}")).collect();
    let paged = Stub::offering(Offer { tools: tools.clone(), page: 5, ..Offer::default() }).await;
    let other = Stub::start().await;
    let gateway = Gateway::start(&(paged.config("paged") + &other.config("other"))).await;
    gateway.healthy(&["paged", "other"]).await;

    let mut expected = names("paged", &tools);
    expected.extend(names("other", &Offer::default().tools));
    for client in [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")] {
        assert_eq!(client.tools().await, expected);
    }
    for client in [Client::legacy(&gateway, "/mcp/paged").await, Client::modern(&gateway, "/mcp/paged")] {
        assert_eq!(client.tools().await, tools);
        let last = client.call("tool_52", json!({ "message": "the last page can be called" })).await;
        assert_eq!(last["content"][0]["text"], "the last page can be called");
    }
}

#[tokio::test]
async fn a_bad_cursor_is_an_error() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    for path in ["/mcp", "/mcp/stub"] {
        for client in [Client::legacy(&gateway, path).await, Client::modern(&gateway, path)] {
            let answer = client.ask("tools/list", json!({ "cursor": "made up" })).await;
            assert_eq!(answer["error"]["code"], -32602, "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_dead_upstream_costs_the_others_nothing() {
    let stub = Stub::start().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = format!(
        "defaults.timeouts = {{ connect = \"1s\", list = \"1s\", start = \"5s\" }}\n\
         [upstreams.absent]\nurl = \"http://127.0.0.1:{}/mcp\"\n\
         [upstreams.silent]\nurl = \"http://{}/mcp\"\n\
         [upstreams.mistyped]\ncommand = \"no-such-program-anywhere\"\n\
         [upstreams.brief]\ncommand = \"true\"\n\
         [upstreams.babble]\ncommand = \"yes\"\n\
         {}",
        free_port(),
        silent.local_addr().unwrap(),
        stub.config("stub")
    );
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["stub"]).await;

    let started = tokio::time::Instant::now();
    let expected = names("stub", &Offer::default().tools);
    for client in [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")] {
        // Some have not been given up yet, which a tool of the gateway's own tells.
        let tools = client.tools().await;
        let tools: Vec<&String> = tools.iter().filter(|tool| *tool != "weir__status").collect();
        assert_eq!(tools, expected.iter().collect::<Vec<_>>());
        let result = client.call("stub__echo", json!({ "message": "alive" })).await;
        assert_eq!(result["content"][0]["text"], "alive");
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(15), "two clients took {took:?}, with a limit of one second for a list");

    let (_, readiness) = gateway.readiness().await;
    for name in ["absent", "silent", "mistyped", "brief", "babble"] {
        assert_ne!(state(&readiness, name), Some("healthy"), "{readiness}");
        assert!(state(&readiness, name).is_some(), "{name} shows in {readiness}");
    }
    // What babbles is told from a slow server by a time of its own, which it has in each era.
    let end = tokio::time::Instant::now() + 2 * PATIENCE;
    loop {
        let (_, readiness) = gateway.readiness().await;
        let upstreams = readiness["upstreams"].as_array().unwrap();
        let explained = upstreams.iter().filter(|upstream| upstream["error"].is_string()).count();
        if explained == 5 {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "not every failure is explained: {readiness:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let absent = Client::modern(&gateway, "/mcp/absent");
    let answer = absent.ask("tools/call", json!({ "name": "any", "arguments": {} })).await;
    let said = answer["result"]["content"][0]["text"].as_str();
    assert!(said.is_some_and(|said| said.contains("absent") && said.contains("tries again")), "{answer}");
    assert_eq!(answer["result"]["isError"], true, "{answer}");
}

#[tokio::test]
async fn an_unknown_tool_is_unknown_whoever_might_have_it() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    for client in [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")] {
        for name in ["none", "other__echo", "stub_echo", "stub", "stub__", "__echo", "echo", ""] {
            let answer = client.ask("tools/call", json!({ "name": name, "arguments": {} })).await;
            assert_eq!(answer["error"]["code"], -32602, "{name:?}: {answer}");
        }
    }
    assert!(stub.asked("tools/call").is_empty(), "no upstream was asked");
    // What is not listed for all may be there for some.
    let client = Client::modern(&gateway, "/mcp");
    drop(client.ask("tools/call", json!({ "name": "stub__none", "arguments": {} })).await);
    assert_eq!(stub.asked("tools/call").len(), 1, "only the upstream itself can know");
}

#[tokio::test]
async fn a_name_that_is_too_long_is_cut_the_same_way_each_time() {
    let long = |end: &str| format!("{}{end}", "a_very_long_name_for_a_tool_".repeat(2));
    let tools = vec!["short".to_owned(), long("one"), long("two")];
    let offer = Offer { tools: tools.clone(), ..Offer::default() };
    let stub = Stub::offering(offer).await;
    let upstream = "an-upstream-with-a-long-name";

    let mut seen = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::start(&stub.config(upstream)).await;
        gateway.healthy(&[upstream]).await;
        let client = Client::legacy(&gateway, "/mcp").await;
        let public = client.tools().await;
        assert_eq!(public.len(), 3);
        assert_eq!(public[0], format!("{upstream}__short"));
        for name in &public {
            assert!(name.len() <= 64, "{name} has {} characters", name.len());
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)), "{name}");
        }
        assert_ne!(public[1], public[2]);
        for (name, native) in public.iter().zip(&tools) {
            client.call(name, json!({ "message": "hi" })).await;
            assert_eq!(&stub.asked("tools/call").pop().unwrap().message()["params"]["name"], native.as_str());
        }
        until("the shortened name is reported", || gateway.log().contains(&public[1])).await;
        assert_eq!(Client::legacy(&gateway, &format!("/mcp/{upstream}")).await.tools().await, tools);
        seen.push(public);
    }
    assert_eq!(seen[0], seen[1], "the names are the same after a restart");
}

#[tokio::test]
async fn a_resource_of_two_upstreams_belongs_to_the_first() {
    let (first, second) = tokio::join!(Peer::fixture("both"), Peer::fixture("both"));
    let gateway = Gateway::start(&(first.config("first") + &second.config("second"))).await;
    gateway.healthy(&["first", "second"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    let uris = texts(&client.list("resources/list", "resources").await, "uri");
    assert_eq!(uris.iter().filter(|uri| *uri == "test://static-text").count(), 1, "{uris:?}");
    let own = Client::legacy(&gateway, "/mcp/second").await;
    let read = own.result("resources/read", json!({ "uri": "test://static-text" })).await;
    assert!(read["contents"][0]["text"].is_string());
}

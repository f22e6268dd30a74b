//! Tasks through an endpoint of many upstreams: ids lead back to their upstream, and nobody else's session can use them.

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::client::{answer, with_meta};
use weir_tests::peer::free_port;
use weir_tests::stub::{Offer, Stub};
use weir_tests::{Client, Gateway, Issuer, Peer};

use crate::callers::AUDIENCE;

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

async fn two() -> (Gateway, Peer, Peer) {
    let (one, two) = tokio::join!(Peer::everything(), Peer::everything());
    let gateway = Gateway::start(&(one.config("one") + &two.config("two"))).await;
    gateway.healthy(&["one", "two"]).await;
    (gateway, one, two)
}

async fn research(client: &Client, upstream: &str) -> String {
    let name = format!("{upstream}__simulate-research-query");
    let params = json!({ "name": name, "arguments": { "topic": "weirs" }, "task": { "ttl": 60_000 } });
    let created = client.result("tools/call", params).await;
    created["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task in {created}")).to_owned()
}

#[tokio::test]
async fn a_task_of_a_session_is_found_again() {
    let (gateway, _one, _two) = two().await;
    let client = Client::legacy(&gateway, "/mcp").await;
    assert_eq!(
        client.greeting()["capabilities"]["tasks"],
        json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } })
    );
    let tasks = [research(&client, "one").await, research(&client, "two").await];
    assert!(tasks[0].starts_with("one__") && tasks[1].starts_with("two__"), "{tasks:?}");
    for task in &tasks {
        let got = client.result("tasks/get", json!({ "taskId": task })).await;
        assert_eq!(&got["taskId"], task, "{got}");
    }
    let listed = client.list("tasks/list", "tasks").await;
    let ids: Vec<&str> = listed.iter().map(|task| task["taskId"].as_str().unwrap()).collect();
    assert_eq!(ids, tasks.each_ref().map(String::as_str), "the tasks of all upstreams, in their order");

    let cancelled = client.result("tasks/cancel", json!({ "taskId": tasks[1] })).await;
    assert_eq!((&cancelled["taskId"], &cancelled["status"]), (&json!(tasks[1]), &json!("cancelled")));
    // Waits until the task is done.
    let result = client.result("tasks/result", json!({ "taskId": tasks[0] })).await;
    assert!(result["content"][0]["text"].as_str().unwrap().contains("weirs"), "{result}");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], json!(tasks[0]));
}

#[tokio::test]
async fn a_task_is_nothing_to_another_session() {
    let (gateway, _one, _two) = two().await;
    let [mine, theirs] = [Client::legacy(&gateway, "/mcp").await, Client::legacy(&gateway, "/mcp").await];
    let task = research(&mine, "one").await;
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let refused = theirs.ask(method, json!({ "taskId": task })).await;
        assert!(refused["error"].is_object(), "{method}: {refused}");
    }
    assert_eq!(theirs.list("tasks/list", "tasks").await, Vec::<Value>::new());
    for id in ["", "one__", "none__x", "x", "__", "three__1"] {
        let refused = mine.ask("tasks/get", json!({ "taskId": id })).await;
        assert_eq!(refused["error"]["code"], -32602, "{id}: {refused}");
    }
    let refused = mine.ask("tasks/list", json!({ "cursor": "made up" })).await;
    assert_eq!(refused["error"]["code"], -32602);
}

#[tokio::test]
async fn without_an_upstream_that_has_tasks_there_are_none() {
    let stub = Stub::start().await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    assert!(client.greeting()["capabilities"].get("tasks").is_none());
    for method in ["tasks/get", "tasks/list"] {
        let refused = client.ask(method, json!({ "taskId": "stub__1" })).await;
        assert_eq!(refused["error"]["code"], -32601, "{refused}");
    }
}

/// What an id is worth at a server that knows its callers by one credential, which is all that it has of them.
#[tokio::test]
async fn a_modern_task_is_nothing_to_another_caller_who_knows_its_id() {
    let offer = Offer { capabilities: json!({ "extensions": { EXTENSION: {} } }), legacy: false, ..Offer::default() };
    let stub = Stub::offering(Offer { tools: vec!["task".to_owned()], listens: true, ..offer }).await;
    let issuer = Issuer::start().await;
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
    let config = auth + &stub.config("stub");
    let mut gateway = Gateway::start_at(free_port(), &config).await;
    gateway.logs("upstream is healthy").await;
    let able = json!({ "extensions": { EXTENSION: {} } });
    let ask = async |gateway: &Gateway, path: &str, who: &str, method: &str, params: Value| {
        let client = Client::modern(gateway, path).with_token(&issuer.token(who, AUDIENCE));
        let (id, request) = client.request_with(method, with_meta(params, &able));
        answer(client.send(request).await, id).await
    };
    for (path, tool) in [("/mcp", "stub__task"), ("/mcp/stub", "task")] {
        let created = ask(&gateway, path, "ada", "tools/call", json!({ "name": tool, "arguments": {} })).await;
        let task = created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task in {created}")).to_owned();
        assert!(task.contains("task-1."), "{task}");
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let before = stub.asked(method).len();
            let own = ask(&gateway, path, "ada", method, json!({ "taskId": task, "inputResponses": {} })).await;
            assert_eq!(own["result"]["taskId"], task, "{method}: {own}");
            let plain = task.rsplit_once('.').unwrap().0;
            let other = if path == "/mcp" { "stub__task-2" } else { "task-2" };
            let moved = task.replace(plain, other);
            let (id, undeclared) = Client::modern(&gateway, path)
                .with_token(&issuer.token("eve", AUDIENCE))
                .request(method, json!({ "taskId": plain }));
            let refused = answer(gateway.send(undeclared).await, id).await;
            assert_eq!(refused["error"]["code"], -32021, "{method} by who declares nothing: {refused}");
            for (who, id) in [("eve", &*task), ("eve", plain), ("ada", plain), ("ada", &moved)] {
                let refused = ask(&gateway, path, who, method, json!({ "taskId": id, "inputResponses": {} })).await;
                assert_eq!(refused["error"]["code"], -32602, "{method} of {id} by {who}: {refused}");
            }
            let seen = stub.asked(method);
            assert_eq!(seen.len(), before + 1, "nothing of the others has reached the server");
            assert_eq!(seen.last().unwrap().message()["params"]["taskId"], "task-1");
            assert_eq!(seen.last().unwrap().header("mcp-name"), Some("task-1"));
        }
        for (who, granted) in [("ada", json!([task])), ("eve", Value::Null)] {
            let client = Client::modern(&gateway, path).with_token(&issuer.token(who, AUDIENCE));
            let wish = json!({ "notifications": { "taskIds": [task], "toolsListChanged": true } });
            let (_, request) = client.request_with("subscriptions/listen", with_meta(wish, &able));
            let mut events = client.send(request).await.events();
            let told = events.next_message().await.unwrap();
            let told = &told["params"]["notifications"]["taskIds"];
            assert!(*told == granted || who == "eve" && *told == json!([]), "{who} at {path}: {told}");
        }
    }
    // Some servers do not tell cases apart.
    let eve = Client::modern(&gateway, "/mcp/stub").with_token(&issuer.token("eve", AUDIENCE));
    let before = stub.asked("subscriptions/listen").len();
    for wish in
        [json!({ "notifications": { "taskids": ["task-1"] } }), json!({ "Notifications": { "taskIds": ["task-1"] } })]
    {
        for declares in [json!({}), able.clone()] {
            let (_, request) = eve.request_with("subscriptions/listen", with_meta(wish.clone(), &declares));
            drop(eve.send(request).await);
        }
    }
    let seen = stub.asked("subscriptions/listen");
    assert!(seen[before..].iter().all(|seen| !seen.message().to_string().contains("task-1")), "{seen:?}");
    // The mark outlives the process.
    let created = ask(&gateway, "/mcp", "ada", "tools/call", json!({ "name": "stub__task", "arguments": {} })).await;
    let new = gateway.upgrade(&config);
    gateway.signal(Signal::QUIT);
    let new = new.await;
    gateway.end().await;
    new.logs("upstream is healthy").await;
    let task = json!({ "taskId": created["result"]["taskId"] });
    let found = ask(&new, "/mcp", "ada", "tasks/get", task.clone()).await;
    assert_eq!(found["result"]["taskId"], task["taskId"], "{found}");
}

/// The fixture has the tasks of neither era, so a scripted upstream shows the extension.
#[tokio::test]
async fn the_extension_has_the_same_ids() {
    let offer = Offer { capabilities: json!({ "extensions": { EXTENSION: {} } }), legacy: false, ..Offer::default() };
    let offer = Offer { tools: vec!["task".to_owned()], ..offer };
    let (one, two) = (Stub::offering(offer.clone()).await, Stub::offering(offer).await);
    let gateway = Gateway::start(&(one.config("one") + &two.config("two"))).await;
    gateway.healthy(&["one", "two"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let discovered = client.result("server/discover", json!({})).await;
    assert_eq!(discovered["capabilities"]["extensions"], json!({ EXTENSION: {} }));

    let able = json!({ "extensions": { EXTENSION: {} } });
    let params = json!({ "name": "two__task", "arguments": {} });
    let (id, request) = client.request_with("tools/call", with_meta(params, &able));
    let created = answer(request.send(gateway.address()).await, id).await["result"].clone();
    assert_eq!((&created["resultType"], &created["taskId"]), (&json!("task"), &json!("two__task-1")), "{created}");
    let ask = async |client: &Client, method: &str, params: Value| {
        let (id, request) = client.request_with(method, with_meta(params, &able));
        answer(request.send(gateway.address()).await, id).await["result"].clone()
    };
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({ "taskId": "two__task-1", "inputResponses": {} });
        let got = ask(&client, method, params).await;
        assert_eq!(got["taskId"], "two__task-1", "{method}: {got}");
        let seen = two.asked(method).pop().unwrap();
        assert_eq!(seen.message()["params"]["taskId"], "task-1");
        assert_eq!(seen.header("mcp-name"), Some("task-1"));
        assert!(one.asked(method).is_empty());
    }
    let own = ask(&Client::modern(&gateway, "/mcp/two"), "tasks/get", json!({ "taskId": "task-1" })).await;
    assert_eq!(own["taskId"], "task-1", "untouched where there is only one upstream");
}

#[tokio::test]
async fn a_client_without_the_extension_is_told_to_declare_it() {
    let offer = Offer { capabilities: json!({ "extensions": { EXTENSION: {} } }), legacy: false, ..Offer::default() };
    let stub = Stub::offering(offer).await;
    let gateway = Gateway::start(&stub.config("stub")).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let (id, request) = client.request(method, json!({ "taskId": "stub__task-1" }));
        let response = request.send(gateway.address()).await;
        assert_eq!(response.status, 400, "{method}");
        let refused = answer(response, id).await;
        assert_eq!(refused["error"]["code"], -32021, "{method}: {refused}");
        let required = &refused["error"]["data"]["requiredCapabilities"]["extensions"];
        assert_eq!(required, &json!({ EXTENSION: {} }), "{method}");
    }
    assert!(stub.asked("tasks/get").is_empty());
}

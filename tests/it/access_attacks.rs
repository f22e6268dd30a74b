//! Ways around rules and selections that must lead nowhere.

use serde_json::{Value, json};
use weir_tests::stub::Offer;
use weir_tests::wait::until;
use weir_tests::{Client, Gateway, Issuer, Request, Stub};

const AUDIENCE: &str = "https://weir.example/mcp";

/// An upstream with a public and a private part of everything.
async fn stub() -> Stub {
    let offer = Offer {
        tools: ["echo", "secret"].map(str::to_owned).to_vec(),
        capabilities: json!({
            "resources": { "subscribe": true }, "extensions": { "example.com/vendor": {} },
        }),
        lists: json!({
            "resources/list": [{ "uri": "db://public/a", "name": "a" }, { "uri": "db://private/b", "name": "b" }],
            "resources/templates/list": [{ "uriTemplate": "db://{+path}", "name": "t" }],
        }),
        listens: true,
        ..Offer::default()
    };
    Stub::offering(offer).await
}

const RULES: &str = r#"
[[access.rules]]
name = "public"
tools = ["echo"]
resources = ["db://public/*"]
"#;

/// A body in whose `params` keys may be there twice.
fn raw(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}}}}}"#)
}

#[tokio::test]
async fn a_request_that_readers_read_differently_goes_nowhere() {
    let stub = stub().await;
    let gateway = Gateway::start(&(RULES.to_owned() + &stub.config("one"))).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    client.call("one__echo", json!({ "message": "hi" })).await;
    for (method, params) in [
        ("tools/call", r#""name":"secret","name":"one__echo","arguments":{}"#),
        ("tools/call", r#""name":"one__echo","Name":"secret","arguments":{}"#),
        ("tools/call", r#""name":"one__echo","n\u0061me":"one__echo","arguments":{}"#),
        ("resources/read", r#""uri":"db://private/b","uri":"db://public/a""#),
        ("resources/read", r#""URI":"db://private/b","uri":"db://public/a""#),
    ] {
        let answer = client.send(client.post(raw(method, params))).await;
        assert_eq!(answer.status, 400, "{params}");
    }
    assert_eq!(stub.asked("tools/call").len(), 1);
    assert!(stub.asked("resources/read").is_empty());
}

#[tokio::test]
async fn arguments_that_are_there_twice_are_not_judged_by_one_of_them() {
    let stub = stub().await;
    let rules = "[[access.rules]]\nname = \"short\"\nwhen = \"args.message.size() < 5\"\n";
    let set = "[toolsets.set]\ntools = [\"echo\"]\n[toolsets.set.overrides.one__echo]\nhidden = [\"assignee\"]\n";
    let gateway = Gateway::start(&[rules, set, &stub.config("one")].concat()).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    for arguments in [
        r#"{"message":"much too long","message":"hi"}"#,
        r#"{"message":"hi","Message":"much too long"}"#,
        r#"{"message":"hi","me\u017f\u017fage":"much too long"}"#,
    ] {
        let body = raw("tools/call", &format!(r#""name":"one__echo","arguments":{arguments}"#));
        let answer = client.send(client.post(body)).await.bytes().await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("not allowed with these arguments"), "{arguments}: {answer}");
    }
    assert!(stub.asked("tools/call").is_empty());
    // What is hidden is not sent in other case either.
    let client = Client::legacy(&gateway, "/mcp/set").await;
    client.call("one__echo", json!({ "message": "hi", "Assignee": "eve", "assignee": "eve" })).await;
    assert_eq!(stub.asked("tools/call")[0].message()["params"]["arguments"], json!({ "message": "hi" }));
}

#[tokio::test]
async fn an_address_is_judged_as_its_server_reads_it() {
    let stub = stub().await;
    let selected = "resources = { deny = [\"db://private/*\"] }\n";
    for config in [RULES.to_owned() + &stub.config("one"), stub.config("one") + selected] {
        let gateway = Gateway::start(&config).await;
        for path in ["/mcp", "/mcp/one"] {
            for client in [Client::modern(&gateway, path), Client::legacy(&gateway, path).await] {
                for uri in ["db://public/../private/b", "db://public/%2e%2e/private/b", "db://public%2F..%2Fprivate/b"]
                {
                    let answer = client.ask("resources/read", json!({ "uri": uri })).await;
                    assert_eq!(answer["error"]["message"], format!("Resource not found: {uri}"), "{answer}");
                }
                client.ask("resources/read", json!({ "uri": "db://public/./a" })).await;
            }
        }
    }
    assert_eq!(stub.asked("resources/read").len(), 8);
}

#[tokio::test]
async fn nobody_hears_of_changes_of_what_is_hidden() {
    let stub = stub().await;
    let selected = stub.config("one") + "resources = [\"db://public/*\"]\n";
    let set = "[toolsets.set]\nresources = [\"db://public/*\"]\n".to_owned() + &stub.config("one");
    let ruled = RULES.to_owned() + &stub.config("one");
    for (config, path) in [(selected, "/mcp"), (set, "/mcp/set"), (ruled, "/mcp")] {
        let gateway = Gateway::start(&config).await;
        let modern = Client::modern(&gateway, path);
        modern.result("resources/list", json!({})).await;
        let wish = json!({ "resourceSubscriptions": ["db://private/b", "db://private/c", "db://public/a"] });
        let (_, request) = modern.request("subscriptions/listen", json!({ "notifications": wish }));
        let granted = modern.send(request).await.events().next_message().await.unwrap();
        let granted = &granted["params"]["notifications"]["resourceSubscriptions"];
        assert_eq!(*granted, json!(["db://public/a"]), "{path}");

        let legacy = Client::legacy(&gateway, path).await;
        let mut told = legacy.stream().await;
        legacy.result("resources/subscribe", json!({ "uri": "db://public/a" })).await;
        until("the upstream is listened to", || stub.listeners_called("weir-tests") > 0).await;
        for uri in ["db://private/b", "db://public/a"] {
            let params = json!({ "uri": uri });
            let method = "notifications/resources/updated";
            stub.say(&json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string());
        }
        let told = told.next_message().await.unwrap();
        assert_eq!(told["params"]["uri"], "db://public/a", "{told}");
    }
}

#[tokio::test]
async fn a_notification_of_an_extension_needs_what_its_requests_need() {
    let stub = stub().await;
    let audit = "audit.path = \"audit.jsonl\"\n".to_owned();
    let gateway = Gateway::start(&(audit + RULES + &stub.config("one"))).await;
    let client = Client::legacy(&gateway, "/mcp").await;
    client.call("one__echo", json!({ "message": "hi" })).await;
    let answer = client.ask("vendor/do", json!({})).await;
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    assert_eq!(client.notify("vendor/do", json!({})).await, 202);
    client.call("one__echo", json!({ "message": "again" })).await;
    assert!(stub.asked("vendor/do").is_empty());
    let audit = gateway.directory().join("audit.jsonl");
    let told = || std::fs::read_to_string(&audit).unwrap_or_default().matches("\"method\":\"vendor/do\"").count();
    until("the request and the notification are recorded as refused", || told() == 2).await;
}

/// A stream of HTTP+SSE that was opened with more is none for less.
#[tokio::test]
async fn a_stream_is_as_good_as_the_token_of_each_message() {
    let (issuer, stub) = (Issuer::start().await, stub().await);
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer());
    let rules = RULES.to_owned() + "[[access.rules]]\nname = \"ops\"\ngroups = [\"ops\"]\n";
    let gateway = Gateway::start(&[auth, rules, stub.config("one")].concat()).await;
    let token = |groups: Value| {
        let mut claims = issuer.claims("ada", AUDIENCE);
        claims["groups"] = groups;
        format!("Bearer {}", issuer.sign(&claims))
    };
    let (more, less) = (token(json!(["ops"])), token(json!([])));
    let request = Request::get("/sse/one").header("accept", "text/event-stream").header("authorization", &more);
    let mut stream = gateway.send(request).await.events();
    let address = format!("/sse/{}", stream.next().await.unwrap().data);
    for (token, status) in [(&more, 202), (&less, 404)] {
        let body = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let post = Request::post(&address, body).header("authorization", token);
        assert_eq!(gateway.send(post).await.status, status);
    }
}

/// What arguments decide hides nothing, so the upstream answers at its own address. What names no item is not allowed by what
/// it calls arguments.
#[tokio::test]
async fn rules_about_arguments_leave_an_address_to_its_upstream() {
    let stub = stub().await;
    let rules = "[[access.rules]]\nwhen = \"args.message == 'hi'\"\n\
                 [[access.rules]]\neffect = \"deny\"\nwhen = \"call.endpoint == 'elsewhere'\"\n";
    let gateway = Gateway::start(&(rules.to_owned() + &stub.config("one"))).await;
    let legacy = Client::legacy(&gateway, "/mcp/one").await;
    assert_eq!(legacy.greeting()["serverInfo"]["name"], "stub");
    for client in [legacy, Client::modern(&gateway, "/mcp/one")] {
        assert_eq!(client.tools().await, ["echo", "secret"]);
        client.call("echo", json!({ "message": "hi" })).await;
        let told = client.ask("tools/call", json!({ "name": "echo", "arguments": { "message": "ho" } })).await;
        let text = told["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("not allowed with these arguments"), "{told}");
        for method in ["vendor/thing", "resources/read"] {
            let told = client.ask(method, json!({ "uri": "db://public/a", "arguments": { "message": "hi" } })).await;
            assert!(told.get("error").is_some(), "{told}");
            assert!(stub.asked(method).is_empty(), "{method} reaches the upstream");
        }
        client.notify("notifications/vendor", json!({ "arguments": { "message": "hi" } })).await;
        client.call("echo", json!({ "message": "hi" })).await;
        assert!(stub.asked("notifications/vendor").is_empty(), "a notification reaches the upstream");
    }
}

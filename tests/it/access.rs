//! Who may see and call what: rules, toolsets, and what of an upstream is served at all.

use std::process::Command;

use serde_json::{Value, json};
use weir_tests::client::texts;
use weir_tests::stub::Offer;
use weir_tests::wait::until_some;
use weir_tests::{Client, Gateway, Issuer, Request, Stub};

const AUDIENCE: &str = "https://weir.example/mcp";

/// Two servers that offer a little of everything.
async fn stubs() -> (Stub, Stub) {
    let offer = |name: &str| Offer {
        tools: ["echo", "fail", "burst"].map(str::to_owned).to_vec(),
        capabilities: json!({ "prompts": {}, "resources": { "subscribe": true }, "completions": {} }),
        lists: json!({
            "prompts/list": [{ "name": "greet" }, { "name": "scold" }],
            "resources/list": [
                { "uri": format!("{name}://public/a"), "name": "a" },
                { "uri": format!("{name}://private/b"), "name": "b" },
            ],
            "resources/templates/list": [{ "uriTemplate": format!("{name}://public/{{x}}"), "name": "t" }],
        }),
        ..Offer::default()
    };
    (Stub::offering(offer("one")).await, Stub::offering(offer("two")).await)
}

fn auth(issuer: &Issuer) -> String {
    format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", issuer.issuer())
}

fn token(issuer: &Issuer, subject: &str, groups: &[&str]) -> String {
    let mut claims = issuer.claims(subject, AUDIENCE);
    claims["groups"] = json!(groups);
    issuer.sign(&claims)
}

/// The same client in both eras.
async fn both(gateway: &Gateway, path: &str, token: &str) -> [Client; 2] {
    [Client::modern(gateway, path).with_token(token), Client::legacy_with(gateway, path, token, &json!({})).await]
}

/// All that a client is shown, by name and address.
async fn shown(client: &Client) -> Vec<String> {
    let mut all = Vec::new();
    for (method, list, key) in [
        ("tools/list", "tools", "name"),
        ("prompts/list", "prompts", "name"),
        ("resources/list", "resources", "uri"),
        ("resources/templates/list", "resourceTemplates", "uriTemplate"),
    ] {
        all.extend(texts(&client.list(method, list).await, key));
    }
    all
}

const RULES: &str = r#"
[[access.rules]]
name = "readers"
groups = ["readers"]
upstreams = ["one"]
tools = ["echo"]
prompts = ["greet"]
resources = ["one://public/*"]

[[access.rules]]
name = "ops"
groups = ["ops"]

[[access.rules]]
name = "nobody bursts"
effect = "deny"
tools = ["*__burst"]
"#;

#[tokio::test]
async fn lists_show_what_rules_allow_and_no_call_reaches_the_rest() {
    let (issuer, (one, two)) = (Issuer::start().await, stubs().await);
    let config = [auth(&issuer), RULES.to_owned(), one.config("one"), two.config("two")].concat();
    let gateway = Gateway::start(&config).await;
    let reader = token(&issuer, "ada", &["readers"]);
    for path in ["/mcp", "/mcp/one"] {
        let prefix = if path == "/mcp" { "one__" } else { "" };
        for client in both(&gateway, path, &reader).await {
            let expected = [&format!("{prefix}echo"), &format!("{prefix}greet"), "one://public/a", "one://public/{x}"]
                .map(str::to_owned);
            assert_eq!(shown(&client).await, expected, "{path}");
            client.call(&format!("{prefix}echo"), json!({ "message": "hi" })).await;

            // What is forbidden answers like what does not exist.
            let mut answers = Vec::new();
            for (method, params) in [
                ("tools/call", json!({ "name": format!("{prefix}fail"), "arguments": {} })),
                ("tools/call", json!({ "name": format!("{prefix}none"), "arguments": {} })),
                ("prompts/get", json!({ "name": format!("{prefix}scold") })),
                ("prompts/get", json!({ "name": format!("{prefix}none") })),
                ("resources/read", json!({ "uri": "one://private/b" })),
                ("resources/read", json!({ "uri": "one://private/none" })),
            ] {
                let answer = client.ask(method, params.clone()).await;
                let text = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{method} {params}: {answer}"));
                let named = params["name"].as_str().or(params["uri"].as_str()).unwrap();
                answers.push((answer["error"]["code"].clone(), text.replace(named, "X")));
            }
            assert_eq!(answers[0], answers[1]);
            assert_eq!(answers[2], answers[3]);
            assert_eq!(answers[4], answers[5]);
        }
    }
    assert!(one.asked("tools/call").iter().all(|seen| seen.message()["params"]["name"] == "echo"));
    assert!(one.asked("prompts/get").is_empty() && one.asked("resources/read").is_empty());
    assert!(two.asked("tools/call").is_empty());
    // The other upstream does not exist for them.
    let gone = |path: &str| Request::get(path).header("authorization", &format!("Bearer {reader}"));
    let (forbidden, unknown) = (gateway.send(gone("/mcp/two")).await, gateway.send(gone("/mcp/three")).await);
    assert_eq!((forbidden.status, unknown.status), (404, 404));
    let text = forbidden.json().await;
    assert_eq!(text, unknown.json().await);
    assert!(!text.to_string().contains("two"), "{text}");
    gateway.logs("no rule allows it").await;
}

#[tokio::test]
async fn a_rule_that_denies_wins_and_nobody_else_sees_anything() {
    let (issuer, (one, two)) = (Issuer::start().await, stubs().await);
    let config = [auth(&issuer), RULES.to_owned(), one.config("one"), two.config("two")].concat();
    let gateway = Gateway::start(&config).await;
    for client in both(&gateway, "/mcp", &token(&issuer, "ops", &["ops"])).await {
        let all = shown(&client).await;
        assert!(all.contains(&"two__fail".to_owned()) && all.contains(&"two://private/b".to_owned()), "{all:?}");
        assert!(!all.iter().any(|name| name.ends_with("burst")), "{all:?}");
        let answer = client.ask("tools/call", json!({ "name": "two__burst", "arguments": {} })).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    for client in both(&gateway, "/mcp", &token(&issuer, "eve", &["sales"])).await {
        assert_eq!(shown(&client).await, Vec::<String>::new());
        let answer = client.ask("tools/call", json!({ "name": "one__echo", "arguments": {} })).await;
        assert_eq!(answer["error"]["message"], "Unknown tool: one__echo", "{answer}");
    }
    assert!(two.asked("tools/call").is_empty());
}

#[tokio::test]
async fn no_cache_may_give_a_list_to_another_caller_where_there_are_rules() {
    let one = Stub::offering(Offer { cache_scope: "public", ..Offer::default() }).await;
    for (rules, scope) in [("", "public"), ("[[access.rules]]\ntools = [\"*\"]\n[[access.rules]]\n", "private")] {
        let gateway = Gateway::start(&(rules.to_owned() + &one.config("one"))).await;
        let client = Client::modern(&gateway, "/mcp");
        for method in ["tools/list", "server/discover"] {
            assert_eq!(client.result(method, json!({})).await["cacheScope"], scope, "{method}: {rules}");
        }
    }
}

/// A list that was made for one caller is another's only where the same rules count.
#[tokio::test]
async fn a_caller_with_another_token_sees_what_that_one_allows() {
    let (issuer, (one, two)) = (Issuer::start().await, stubs().await);
    let config = [auth(&issuer), RULES.to_owned(), one.config("one"), two.config("two")].concat();
    let gateway = Gateway::start(&config).await;
    for (groups, count) in [(&["readers"][..], 1), (&["ops"], 4), (&[], 0), (&["readers", "x"], 1)] {
        for client in both(&gateway, "/mcp", &token(&issuer, "ada", groups)).await {
            assert_eq!(client.tools().await.len(), count, "{groups:?}");
        }
    }
    // A session that was opened with more is none for less.
    let client = Client::legacy_with(&gateway, "/mcp/two", &token(&issuer, "ada", &["ops"]), &json!({})).await;
    let less = client.with_token(&token(&issuer, "ada", &["readers"]));
    assert_eq!(less.send(less.request("tools/list", json!({})).1).await.status, 404);
}

#[tokio::test]
async fn arguments_are_judged_before_the_call_goes_out() {
    let (one, rules) =
        (Stub::start().await, "[[access.rules]]\nname = \"short\"\nwhen = \"args.message.size() < 5\"\n");
    let gateway = Gateway::start(&(rules.to_owned() + &one.config("one"))).await;
    for client in [Client::modern(&gateway, "/mcp"), Client::legacy(&gateway, "/mcp").await] {
        assert!(client.tools().await.contains(&"one__echo".to_owned()));
        client.call("one__echo", json!({ "message": "hi" })).await;
        for arguments in [json!({ "message": "longer" }), json!({ "message": 1 }), json!({})] {
            let answer = client.ask("tools/call", json!({ "name": "one__echo", "arguments": arguments })).await;
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            let text = answer["result"]["content"][0]["text"].as_str().unwrap();
            assert!(text.contains("not allowed with these arguments"), "{text}");
        }
    }
    assert_eq!(one.asked("tools/call").len(), 2);
}

#[tokio::test]
async fn rules_tell_callers_apart_by_scope_issuer_key_and_the_groups_of_each_issuer() {
    let (issuer, other) = (Issuer::start().await, Issuer::start().await);
    let rule = |name: &str, who: String| format!("[[access.rules]]\n{who}\nresources = \"one://{name}\"\n");
    let rules = [
        rule("scope", "scopes = \"deep:*\"".to_owned()),
        rule("issuer", format!("issuers = {:?}", other.issuer())),
        rule("key", "keys = \"ci\"".to_owned()),
        rule("group", "groups = \"staff\"".to_owned()),
    ];
    let own = auth(&issuer).replace("[auth]", "[[auth]]");
    let others = auth(&other).replace("[auth]", "[[auth]]") + "groups_claim = \"realm_access.roles\"\n";
    let lists = ["scope", "issuer", "key", "group", "nobody"]
        .map(|name| json!({ "uri": format!("one://{name}"), "name": name }));
    let lists = json!({ "resources/list": lists });
    let one = Stub::offering(Offer { capabilities: json!({ "resources": {} }), lists, ..Offer::default() }).await;
    let config = ["api_keys = true\n".to_owned(), own, others, rules.concat(), one.config("one")].concat();
    let gateway = Gateway::start(&config).await;
    let key = crate::keys::add(&gateway, &["ci", "--group", "staff"]).await;
    let token = |from: &Issuer, name: &str, value: Value| {
        let mut claims = from.claims("ada", AUDIENCE);
        claims[name] = value;
        from.sign(&claims)
    };
    for (token, seen) in [
        (token(&issuer, "scope", json!("mcp deep:sea")), &["scope"][..]),
        (token(&issuer, "groups", json!(["staff"])), &["group"]),
        // The groups of the other issuer are elsewhere.
        (token(&issuer, "realm_access", json!({ "roles": ["staff"] })), &[]),
        (token(&other, "groups", json!(["staff"])), &["issuer"]),
        (token(&other, "realm_access", json!({ "roles": ["staff"] })), &["issuer", "group"]),
        (key, &["key", "group"]),
    ] {
        let seen: Vec<_> = seen.iter().map(|name| format!("one://{name}")).collect();
        if seen.is_empty() {
            let hidden = Client::modern(&gateway, "/mcp/one").with_token(&token).request("resources/list", json!({})).1;
            assert_eq!(gateway.send(hidden).await.status, 404);
            continue;
        }
        for client in both(&gateway, "/mcp/one", &token).await {
            assert_eq!(shown(&client).await, seen);
            for uri in ["scope", "issuer", "key", "group", "nobody"].map(|name| format!("one://{name}")) {
                let before = one.asked("resources/read").len();
                client.ask("resources/read", json!({ "uri": uri })).await;
                assert_eq!(one.asked("resources/read").len() > before, seen.contains(&uri), "{uri} {seen:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_pattern_that_matches_nothing_is_told_once_its_upstreams_are_there() {
    let (one, two) = stubs().await;
    let patterns = r#"
        [limits.tools.ecko]
        calls = 1
        [limits.tools.burst]
        calls = 1
        [[access.rules]]
        name = "all"
        tools = ["echo", "one__fail", "one__hold", "off__echo"]
        resources = ["one://public/*", "one://hidden"]
        [toolsets.desk]
        tools = { allow = ["echo", "fial"], deny = ["burst", "brust"] }
    "#;
    let own = "tools = { allow = [\"echo\", \"fail\", \"*st\", \"ekko\"], deny = [\"burst\", \"bursts\"] }\n";
    let off = two.config("off") + "enabled = false\n";
    let gateway = Gateway::start(&[patterns, &one.config("one"), own, &two.config("two"), &off].concat()).await;
    gateway.healthy(&["one", "two"]).await;
    let told = [
        "rule `all`: no tool matches `one__hold`",
        "rule `all`: no resource matches `one://hidden`",
        "toolset `desk`: no tool matches `fial`",
        "toolset `desk`: no tool matches `brust`",
        "upstream `one`: no tool matches `ekko`",
        "upstream `one`: no tool matches `bursts`",
        "limits.tools.\\\"ecko\\\": no tool matches `ecko`",
    ];
    for line in told {
        gateway.logs(line).await;
    }
    assert_eq!(gateway.log().matches(" matches `").count(), told.len(), "{}", gateway.log());

    // What a reload brings is told too, each time for another rule.
    let file = gateway.directory().join("weir.toml");
    let mut text = std::fs::read_to_string(&file).unwrap();
    text = text.replace("name = \"all\"", "name = \"all\"\nupstreams = [\"one\", \"tow\"]");
    std::fs::write(&file, &text).unwrap();
    gateway.logs("no upstream is called `tow`, and in rule `all`").await;
    std::fs::write(&file, text + "[[access.rules]]\nname = \"more\"\nupstreams = \"tow\"\n").unwrap();
    gateway.logs("no upstream is called `tow`, and in rule `more`").await;
}

#[tokio::test]
async fn what_is_tried_out_is_logged_and_changes_nothing() {
    let one = Stub::start().await;
    let rules = "[access]\nenforce = false\n[[access.rules]]\nname = \"echo only\"\ntools = [\"echo\"]\n";
    let gateway = Gateway::start(&(rules.to_owned() + &one.config("one"))).await;
    let client = Client::modern(&gateway, "/mcp");
    assert_eq!(client.tools().await.len(), 5);
    client.call("one__echo", json!({ "message": "hi" })).await;
    client.ask("tools/call", json!({ "name": "one__fail", "arguments": {} })).await;
    gateway.logs("\"shadow\":\"no rule allows it\"").await;
    assert_eq!(gateway.log().matches("\"shadow\":").count(), 1, "{}", gateway.log());
    let metrics = gateway.metrics();
    assert!(metrics.contains("weir_calls_shadowed_total{upstream=\"one\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn an_upstream_may_serve_a_part_of_what_it_has() {
    let one = Stub::start().await;
    let config = one.config("one") + "tools = { allow = [\"e*\", \"fail\"], deny = [\"fail\"] }\n";
    let gateway = Gateway::start(&config).await;
    for path in ["/mcp", "/mcp/one"] {
        let prefix = if path == "/mcp" { "one__" } else { "" };
        for client in [Client::modern(&gateway, path), Client::legacy(&gateway, path).await] {
            assert_eq!(client.tools().await, [format!("{prefix}echo")], "{path}");
            for tool in ["fail", "hold", "none"] {
                let name = format!("{prefix}{tool}");
                let answer = client.ask("tools/call", json!({ "name": name, "arguments": {} })).await;
                assert_eq!(answer["error"]["message"], format!("Unknown tool: {name}"), "{answer}");
            }
        }
    }
    assert!(one.asked("tools/call").is_empty());
}

const TOOLSET: &str = r#"
[toolsets.desk]
upstreams = ["two", "one"]
tools = ["two__fail", "echo"]
instructions = "For the desk."

[toolsets.desk.overrides.two__echo]
name = "say"
title = "Say it"
description = "Says what it is told."
annotations = { readOnlyHint = true }
fixed = { message = "always this" }

[toolsets.desk.overrides.two__fail]
hidden = ["message"]
"#;

#[tokio::test]
async fn a_toolset_serves_what_it_picks_as_it_is_written() {
    let (one, two) = stubs().await;
    let config = [TOOLSET.to_owned(), one.config("one"), two.config("two")].concat();
    let gateway = Gateway::start(&config).await;
    for client in [Client::modern(&gateway, "/mcp/desk"), Client::legacy(&gateway, "/mcp/desk").await] {
        let tools = client.list("tools/list", "tools").await;
        assert_eq!(texts(&tools, "name"), ["two__fail", "say", "one__echo"]);
        let say = &tools[1];
        assert_eq!(say["title"], "Say it");
        assert_eq!(say["description"], "Says what it is told.");
        assert_eq!(say["annotations"], json!({ "readOnlyHint": true }));
        assert_eq!(say["inputSchema"]["properties"].get("message"), None, "{say}");
        assert!(!say["inputSchema"]["required"].to_string().contains("message"), "{say}");
        assert_eq!(tools[0]["inputSchema"]["properties"].get("message"), None, "{}", tools[0]);
        client.ask("tools/call", json!({ "name": "two__fail", "arguments": { "message": "m", "other": 1 } })).await;
        assert_eq!(two.asked("tools/call").pop().unwrap().message()["params"]["arguments"], json!({ "other": 1 }));
        assert_eq!(shown(&client).await.len(), 3, "it names tools alone");
        client.call("say", json!({ "message": "something else", "other": 1 })).await;
        let sent = two.asked("tools/call").pop().unwrap().message()["params"].clone();
        assert_eq!(sent["name"], "echo");
        assert_eq!(sent["arguments"], json!({ "message": "always this", "other": 1 }));
        for name in ["two__echo", "one__fail", "one__none", "three__x"] {
            let answer = client.ask("tools/call", json!({ "name": name, "arguments": {} })).await;
            assert_eq!(answer["error"]["message"], format!("Unknown tool: {name}"), "{answer}");
        }
    }
    let greeting = Client::legacy(&gateway, "/mcp/desk").await;
    assert_eq!(greeting.greeting()["instructions"], "For the desk.");
    // `/mcp` is as it was.
    assert_eq!(Client::modern(&gateway, "/mcp").tools().await.len(), 6);
}

#[tokio::test]
async fn a_toolset_may_leave_names_as_they_are() {
    let (one, two) = stubs().await;
    let set = "[toolsets.plain]\nprefix = false\nupstreams = [\"one\"]\n";
    let config = [set.to_owned(), one.config("one"), two.config("two")].concat();
    let gateway = Gateway::start(&config).await;
    for client in [Client::modern(&gateway, "/mcp/plain"), Client::legacy(&gateway, "/mcp/plain").await] {
        assert_eq!(client.tools().await, ["echo", "fail", "burst"]);
        client.call("echo", json!({ "message": "hi" })).await;
        let answer = client.ask("tools/call", json!({ "name": "none", "arguments": {} })).await;
        assert_eq!(answer["error"]["message"], "Unknown tool: none", "{answer}");
    }
    assert!(two.asked("tools/call").is_empty());
}

#[tokio::test]
async fn rules_hold_for_toolsets_subscriptions_and_completions() {
    let (issuer, (one, two)) = (Issuer::start().await, stubs().await);
    let rules = "[[access.rules]]\nendpoints = [\"desk\"]\ntools = [\"two__*\"]\n\
                 [[access.rules]]\nendpoints = [\"mcp\"]\nprompts = [\"greet\"]\nresources = [\"one://public/*\"]\n\
                 [[access.rules]]\nendpoints = [\"one\"]\nresources = [\"one://public/a\"]\n";
    let config = [auth(&issuer), rules.to_owned(), TOOLSET.to_owned(), one.config("one"), two.config("two")].concat();
    let gateway = Gateway::start(&config).await;
    let ada = token(&issuer, "ada", &[]);
    for client in both(&gateway, "/mcp/desk", &ada).await {
        assert_eq!(client.tools().await, ["two__fail", "say"]);
    }
    for client in both(&gateway, "/mcp", &ada).await {
        assert_eq!(client.tools().await, Vec::<String>::new());
        for (reference, there) in [
            (json!({ "type": "ref/prompt", "name": "one__greet" }), true),
            (json!({ "type": "ref/prompt", "name": "one__scold" }), false),
            (json!({ "type": "ref/resource", "uri": "one://public/{x}" }), true),
            (json!({ "type": "ref/resource", "uri": "one://private/b" }), false),
        ] {
            let before = one.asked("completion/complete").len();
            let argument = json!({ "name": "x", "value": "" });
            client.ask("completion/complete", json!({ "ref": reference, "argument": argument })).await;
            assert_eq!(one.asked("completion/complete").len() - before, usize::from(there), "{reference}");
        }
    }
    for client in both(&gateway, "/mcp/one", &ada).await {
        let listed = client.ask("resources/templates/list", json!({})).await;
        assert_eq!(listed["result"]["resourceTemplates"][0]["uriTemplate"], "one://public/{x}", "{listed}");
        // Its server completes it with any of its addresses, and some are not allowed.
        let before = one.asked("completion/complete").len();
        let reference = json!({ "type": "ref/resource", "uri": "one://public/{x}" });
        let asked = json!({ "ref": reference, "argument": { "name": "x", "value": "" } });
        let answer = client.ask("completion/complete", asked).await;
        assert!(answer["error"].is_object() && one.asked("completion/complete").len() == before, "{answer}");
    }
    let legacy = Client::legacy_with(&gateway, "/mcp", &ada, &json!({})).await;
    for (uri, there) in [("one://public/a", true), ("one://private/b", false), ("two://public/a", false)] {
        let (before, _) = (one.asked("resources/subscribe").len(), two.asked("resources/subscribe").len());
        legacy.ask("resources/subscribe", json!({ "uri": uri })).await;
        assert_eq!(one.asked("resources/subscribe").len() - before, usize::from(there), "{uri}");
    }
    assert!(two.asked("resources/subscribe").is_empty());
    let answer: Value = legacy.ask("resources/subscribe", json!({ "uri": "one://private/b" })).await;
    assert_eq!(answer["error"]["code"], -32002, "{answer}");
}

#[tokio::test]
async fn what_was_decided_about_a_call_can_be_asked_later() {
    let one = Stub::start().await;
    let rules = "[audit]\npath = \"audit.jsonl\"\n[[access.rules]]\nname = \"echo only\"\ntools = [\"echo\"]\n\
                 [[access.rules]]\nname = \"polite\"\neffect = \"deny\"\ntools = [\"echo\"]\nwhen = \"args.message == 'no'\"\n";
    let gateway = Gateway::start(&(rules.to_owned() + &one.config("one"))).await;
    let client = Client::modern(&gateway, "/mcp");
    let refused = client.ask("tools/call", json!({ "name": "one__echo", "arguments": { "message": "no" } })).await;
    let text = refused["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    let id = text.split("call ").nth(1).unwrap().trim_end_matches(')').to_owned();
    client.call("one__echo", json!({ "message": "yes" })).await;
    gateway.logs(&id).await;
    let folder = gateway.directory().to_owned();
    let explained = until_some("the call is in the audit log", || {
        let mut weir = Command::new(weir_tests::paths::weir());
        let output = weir.args(["access", "explain", &id]).current_dir(&folder).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    })
    .await;
    assert!(explained.contains("decision   denied") && explained.contains("rule       polite"), "{explained}");
    let mut weir = Command::new(weir_tests::paths::weir());
    let output = weir.args(["access", "explain", &id, "--json"]).current_dir(&folder).output().unwrap();
    let record: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&record["decision"], &record["upstream"]), (&json!("denied"), &json!("one")), "{record}");
    assert!(explained.contains("name       one__echo") && explained.contains("upstream   one"), "{explained}");
}

#[tokio::test]
async fn what_a_caller_sees_is_printed_with_the_rule_that_decides() {
    let (one, two) = stubs().await;
    let later = "[[access.rules]]\nname = \"later\"\neffect = \"deny\"\nenforce = false\nprompts = [\"one__greet\"]\n\
                 [[access.rules]]\nname = \"reds\"\nupstreams = [\"two\"]\ntools = [\"fail\"]\nwhen = \"caller.claims.team == 'red'\"\n\
                 [[access.rules]]\nname = \"programs\"\nissuers = [\"weir:keys\"]\ntools = [\"fail\"]\n";
    let config = [RULES, later, &one.config("one"), &two.config("two")].concat();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("weir.toml"), config).unwrap();
    let printed = async |arguments: &[&str]| {
        let mut weir = Command::new(weir_tests::paths::weir());
        weir.args(["check", "--as"]).args(arguments).current_dir(folder.path());
        let output = tokio::task::spawn_blocking(move || weir.output().unwrap()).await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        text
    };
    let of_key = printed(&["ci", "--key", "ci"]).await;
    assert!(of_key.contains("    sees    tool               fail  (rule `programs`)"), "{of_key}");
    let text = printed(&["ada", "--group", "readers", "--claims", r#"{"team": "red"}"#]).await;
    for line in [
        "    sees    tool               echo  (rule `readers`)",
        "    sees    prompt             greet  (rule `readers`; tried out: denied by rule `later`)",
        "    hidden  tool               fail  (no rule allows it)",
        "    hidden  tool               burst  (rule `nobody bursts`)",
        "    sees    resource template  one://public/{x}  (rule `readers`)",
        "    sees    tool               fail  (rule `reds`)",
    ] {
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
    }
}

/// A stream on which a client hears of changes, in the way of its era.
async fn hearing(client: &Client, is_modern: bool) -> weir_tests::events::Events {
    if !is_modern {
        return client.stream().await;
    }
    let wish = json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": true } });
    let (_, request) = client.request("subscriptions/listen", wish);
    let mut events = client.send(request).await.events();
    let first = events.next_message().await.unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    events
}

#[tokio::test]
async fn a_change_is_told_to_those_who_see_it_and_to_nobody_else() {
    let issuer = Issuer::start().await;
    let offer = |tools: &[&str], prompts: Value| Offer {
        tools: tools.iter().map(|name| (*name).to_owned()).collect(),
        capabilities: json!({ "prompts": {}, "resources": {} }),
        lists: json!({ "prompts/list": prompts }),
        listens: true,
        ..Offer::default()
    };
    let prompts = json!([{ "name": "greet" }, { "name": "scold" }]);
    let one = Stub::offering(offer(&["echo", "fail", "burst"], prompts.clone())).await;
    let (_, two) = stubs().await;
    let config = auth(&issuer) + &one.config("one") + &two.config("two") + RULES;
    let gateway = Gateway::start(&config).await;
    gateway.logs("Weir is ready for clients").await;
    weir_tests::wait::until("the upstream is listened to", || one.subscriptions() > 0).await;
    let (reader, ops) = (token(&issuer, "ada", &["readers"]), token(&issuer, "bob", &["ops"]));
    let (readers, operators) = (both(&gateway, "/mcp", &reader).await, both(&gateway, "/mcp", &ops).await);
    for client in readers.iter().chain(&operators) {
        shown(client).await;
    }
    let (mut read, mut operated) = (Vec::new(), Vec::new());
    for (clients, streams) in [(&readers, &mut read), (&operators, &mut operated)] {
        for (client, is_modern) in clients.iter().zip([true, false]) {
            streams.push(hearing(client, is_modern).await);
        }
    }
    // In both eras, for Weir keeps the lists of each.
    weir_tests::wait::until("the upstream is listened to", || one.listeners() > 0).await;
    let change = |method: &str| {
        one.publish(method);
        one.announce(method);
    };
    // Readers may use one tool alone.
    one.offer(offer(&["echo", "fail", "burst", "secret"], prompts));
    change("notifications/tools/list_changed");
    for events in &mut operated {
        assert_eq!(events.next_message().await.unwrap()["method"], "notifications/tools/list_changed");
    }
    let prompts = json!([{ "name": "greet", "description": "in a friendly way" }, { "name": "scold" }]);
    one.offer(offer(&["echo", "fail", "burst", "secret"], prompts));
    change("notifications/prompts/list_changed");
    for events in read.iter_mut().chain(&mut operated) {
        assert_eq!(events.next_message().await.unwrap()["method"], "notifications/prompts/list_changed");
    }
}

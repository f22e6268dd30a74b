//! Several accounts of one service: each call goes out with the login of the account that it names.

use serde_json::{Value, json};
use weir_tests::client::texts;
use weir_tests::stub::{Offer, Seen};
use weir_tests::terminal::{ENVIRONMENT, auth, config, config_beside, ended, lines, page, sign_in, start};
use weir_tests::tokens::claims;
use weir_tests::wait::until;
use weir_tests::{Authority, Bridge, Browser, Client, Gateway, Issuer, Stub};

use crate::sign_in::{AUDIENCE, modern, proved, text};

const ACCOUNTS: &str = "auth = \"oauth\"\naccounts = [\"work\", \"home\"]\n";

/// A gateway with two accounts of `u`, at which ada is signed in for work and bob at home.
async fn signed_in(upstream: &Stub, more: &str) -> Gateway {
    let gateway = Gateway::start_with(&(config(upstream, ACCOUNTS) + more), &ENVIRONMENT).await;
    for (account, person) in [("work", "ada"), ("home", "bob")] {
        let mut process = auth(&gateway, &["login", "u", "--as", account, "--no-browser"]);
        let shown = Browser::of(person).open(&page(&mut process).await).await;
        assert!(shown.text.contains("Weir has what it needs"), "{}", shown.text);
        let (code, said) = ended(process).await;
        assert!(code == Some(0) && said.contains(&format!("Signed in at u-{account}")), "{said}");
    }
    gateway.healthy(&["u-work", "u-home"]).await;
    gateway
}

/// Both eras at an endpoint.
async fn both(gateway: &Gateway, path: &str) -> [Client; 2] {
    [Client::legacy(gateway, path).await, Client::modern(gateway, path)]
}

/// The latest call that came to an upstream: as whom, and with which arguments.
fn latest(upstream: &Stub) -> (String, Value) {
    let call = upstream.asked("tools/call").pop().unwrap();
    (person(&call), call.message()["params"]["arguments"].clone())
}

fn person(seen: &Seen) -> String {
    let token = seen.header("authorization").unwrap().strip_prefix("Bearer ").unwrap();
    claims(token)["sub"].as_str().unwrap().to_owned()
}

/// The argument of a tool that chooses the account.
async fn argument(client: &Client, tool: &str, name: &str) -> Value {
    let tools = client.list("tools/list", "tools").await;
    let tool = tools.iter().find(|one| one["name"] == tool).unwrap_or_else(|| panic!("no {tool} in {tools:?}"));
    tool["inputSchema"]["properties"][name].clone()
}

#[tokio::test]
async fn an_argument_chooses_the_login() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = signed_in(&upstream, "").await;
    for (path, tool) in [("/mcp", "u__echo"), ("/mcp/u", "echo")] {
        for client in both(&gateway, path).await {
            let tools = client.tools().await;
            assert_eq!(tools.iter().filter(|name| name.ends_with("echo")).count(), 1, "{tools:?}");
            let shown = argument(&client, tool, "account").await;
            assert_eq!((&shown["enum"], &shown["default"]), (&json!(["work", "home"]), &json!("work")));
            for (account, person) in
                [(json!({}), "ada"), (json!({ "account": "home" }), "bob"), (json!({ "account": "work" }), "ada")]
            {
                let mut arguments = json!({ "message": account.to_string() });
                arguments.as_object_mut().unwrap().extend(account.as_object().unwrap().clone());
                let result = client.call(tool, arguments).await;
                assert_eq!(text(&result), account.to_string());
                assert_eq!(latest(&upstream), (person.to_owned(), json!({ "message": account.to_string() })), "{path}");
            }
            let before = upstream.asked("tools/call").len();
            for wrong in [json!("other"), json!(null), json!("u-home"), json!(["home"])] {
                let told = client.call(tool, json!({ "message": "m", "account": wrong })).await;
                assert_eq!(told["isError"], true, "{told}");
                assert_eq!(text(&told), "`account` must be an account at `u`: \"work\" or \"home\"");
            }
            assert_eq!(upstream.asked("tools/call").len(), before, "a call of no account went out");
        }
    }
    let mut front = Bridge::start(&[&gateway.url("/mcp/u")]);
    front.shake_hands(json!({})).await;
    let arguments = json!({ "message": "m", "account": "home" });
    front.ask("tools/call", json!({ "name": "echo", "arguments": arguments })).await;
    assert_eq!(latest(&upstream).0, "bob");
    gateway.logs("\"account\":\"home\"").await;
}

#[tokio::test]
async fn each_account_has_an_endpoint_and_nothing_of_the_other() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = signed_in(&upstream, "").await;
    for (path, person) in [("/mcp/u-work", "ada"), ("/mcp/u-home", "bob")] {
        for client in both(&gateway, path).await {
            let before = upstream.seen().len();
            assert_eq!(argument(&client, "echo", "account").await, Value::Null);
            client.call("echo", json!({ "message": "m" })).await;
            for seen in &upstream.seen()[before..] {
                assert_eq!(self::person(seen), person, "{path}");
            }
        }
    }
    // Each session is its own account's, from its first request to its last.
    let mut people = std::collections::BTreeMap::<String, String>::new();
    for seen in upstream.seen() {
        if let Some(session) = seen.header("mcp-session-id") {
            let person = person(&seen);
            assert_eq!(*people.entry(session.to_owned()).or_insert(person.clone()), person);
        }
    }
    assert!(people.len() > 1, "{people:?}");

    let (code, said) = ended(auth(&gateway, &["logout", "u", "--as", "home"])).await;
    assert!(code == Some(0) && said.contains("Signed out of u-home"), "{said}");
    let (code, said) = ended(auth(&gateway, &["status", "u"])).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("u-work  oauth  signed in") && said.contains("not signed in; sign in with"), "{said}");
    assert_eq!(ended(auth(&gateway, &["status", "u", "--as", "work"])).await.0, Some(0));
    for client in both(&gateway, "/mcp/u").await {
        client.call("echo", json!({ "message": "m" })).await;
        assert_eq!(latest(&upstream).0, "ada");
        // Once before the login, and once again without it.
        until("the gateway has noticed", || lines(&gateway, "weir auth login u-home") == 2).await;
        let before = upstream.asked("tools/call").len();
        let told = client.call("echo", json!({ "message": "m", "account": "home" })).await;
        assert!(told["isError"] == true && text(&told).contains("u-home"), "{told}");
        assert_eq!(upstream.asked("tools/call").len(), before, "it went out as somebody else");
    }
    for (name, account, why) in [
        ("u", "other", "known: work, home"),
        ("u-work", "other", "has no accounts"),
        ("v", "work", "there is no upstream `v`"),
        ("http://127.0.0.1:1/", "work", "an upstream of the configuration"),
    ] {
        let (code, said) = ended(auth(&gateway, &["login", name, "--as", account])).await;
        assert!(code == Some(1) && said.contains(why), "{said}");
    }
}

#[tokio::test]
async fn a_login_from_before_is_of_no_account_and_can_be_forgotten() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let before = start(&upstream, "auth = \"oauth\"").await;
    sign_in(&before, &[]).await;
    let gateway = Gateway::start_with(&config_beside(&before, &upstream, ACCOUNTS), &ENVIRONMENT).await;
    gateway.settle(&["u-work", "u-home"], "auth_required").await;
    for said in ["Forgot what was kept at u;", "There is no login at u-work."] {
        let (code, shown) = ended(auth(&gateway, &["logout", "u"])).await;
        assert!(code == Some(0) && shown.contains(said), "{shown}");
    }
}

#[tokio::test]
async fn a_prefix_chooses_the_login() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let gateway = signed_in(&upstream, "account_by = \"prefix\"\n").await;
    for path in ["/mcp", "/mcp/u"] {
        for client in both(&gateway, path).await {
            for (tool, person) in [("u-work__echo", "ada"), ("u-home__echo", "bob")] {
                assert_eq!(argument(&client, tool, "account").await, Value::Null);
                let arguments = json!({ "message": "m", "account": "mine" });
                client.call(tool, arguments.clone()).await;
                assert_eq!(latest(&upstream), (person.to_owned(), arguments));
            }
            assert_eq!(client.ask("tools/call", json!({ "name": "u__echo" })).await["error"]["code"], -32602);
        }
    }
}

#[tokio::test]
async fn prompts_are_chosen_by_argument_too() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let prompt = json!({ "name": "p", "arguments": [{ "name": "x" }] });
    let capabilities = json!({ "prompts": {}, "completions": {} });
    upstream.offer(Offer { capabilities, lists: json!({ "prompts/list": [prompt] }), ..Offer::default() });
    let gateway = signed_in(&upstream, "").await;
    for client in both(&gateway, "/mcp").await {
        let prompts = client.list("prompts/list", "prompts").await;
        assert_eq!(texts(&prompts, "name"), ["u__p"]);
        assert_eq!(texts(prompts[0]["arguments"].as_array().unwrap(), "name"), ["account", "x"]);
        for (account, person) in [("work", "ada"), ("home", "bob")] {
            let arguments = json!({ "x": "1", "account": account });
            client.ask("prompts/get", json!({ "name": "u__p", "arguments": arguments })).await;
            let seen = upstream.asked("prompts/get").pop().unwrap();
            assert_eq!(
                (self::person(&seen), &seen.message()["params"]["arguments"]),
                (person.into(), &json!({ "x": "1" }))
            );
            let of = json!({ "type": "ref/prompt", "name": "u__p" });
            let params = json!({ "ref": of, "argument": { "name": "x", "value": "" }, "context": { "arguments": { "account": account, "y": 1.0 } } });
            client.ask("completion/complete", params).await;
            let seen = upstream.asked("completion/complete").pop().unwrap();
            let given = &seen.message()["params"]["context"]["arguments"];
            assert_eq!((self::person(&seen), given), (person.into(), &json!({ "y": 1.0 })));
        }
        let told = client.ask("prompts/get", json!({ "name": "u__p", "arguments": { "account": "x" } })).await;
        assert_eq!(told["error"]["code"], -32602, "{told}");
    }
}

#[tokio::test]
async fn rules_see_the_account() {
    let authority = Authority::start(3600);
    let upstream = authority.upstream().await;
    let rules = r#"
        [[access.rules]]
        upstreams = ["u"]
        [[access.rules]]
        effect = "deny"
        accounts = ["home"]
        tools = ["u__hold"]
        [[access.rules]]
        effect = "deny"
        tools = ["burst"]
        when = "call.account == 'work'"
        [toolsets.mine]
        upstreams = ["u-home"]
        prefix = false
        [toolsets.named]
        tools = ["u__echo"]
    "#;
    let gateway = signed_in(&upstream, rules).await;
    for client in both(&gateway, "/mcp").await {
        assert_eq!(argument(&client, "u__echo", "account").await["enum"], json!(["work", "home"]));
        assert_eq!(argument(&client, "u__hold", "account").await["enum"], json!(["work"]));
        let burst = argument(&client, "u__burst", "account").await;
        assert_eq!((&burst["enum"], &burst["default"]), (&json!(["home"]), &Value::Null));
        for (tool, arguments) in [
            ("u__hold", json!({ "account": "home" })),
            ("u__burst", json!({ "account": "work" })),
            // The default does not turn into another account.
            ("u__burst", json!({})),
        ] {
            let told = client.call(tool, arguments).await;
            assert!(told["isError"] == true && text(&told).contains("must be an account at `u`"), "{told}");
        }
        client.call("u__burst", json!({ "message": "m", "account": "home" })).await;
        assert_eq!(latest(&upstream).0, "bob");
        let denied = client.ask("tools/call", json!({ "name": "u-home__hold", "arguments": {} })).await;
        assert_eq!(denied["error"]["code"], -32602, "{denied}");
    }
    assert_eq!(lines(&gateway, " matches `"), 0, "{}", gateway.log());
    for client in both(&gateway, "/mcp/mine").await {
        assert_eq!(argument(&client, "echo", "account").await, Value::Null, "there is nothing to choose from");
        client.call("echo", json!({ "message": "m" })).await;
        assert_eq!(latest(&upstream).0, "bob");
    }
    for client in both(&gateway, "/mcp/named").await {
        assert_eq!(client.tools().await, ["u__echo"]);
        client.call("u__echo", json!({ "message": "m", "account": "home" })).await;
        assert_eq!(latest(&upstream).0, "bob");
    }
}

#[tokio::test]
async fn a_missing_login_is_asked_for_by_its_account() {
    let (authority, issuer) = (Authority::start(3600), Issuer::start().await);
    let upstream = authority.upstream().await;
    let gateway = proved(&issuer, &format!("{}{ACCOUNTS}owner = \"principal\"\n", upstream.config("u"))).await;
    let ada = issuer.token("ada", AUDIENCE);
    let opens = json!({ "elicitation": { "form": {}, "url": {} } });
    let client = Client::legacy_with(&gateway, "/mcp", &ada, &opens).await;
    let call = async |account: &str| {
        let arguments = json!({ "message": "hi", "account": account });
        client.ask("tools/call", json!({ "name": "u__echo", "arguments": arguments })).await
    };
    let about = |told: &Value| told["error"]["data"]["elicitations"][0]["message"].as_str().unwrap().to_owned();
    let told = call("home").await;
    assert!(about(&told).contains("`u-home`"), "{told}");
    let mut browser = Browser::of("ada-at-home");
    let page = browser.open(told["error"]["data"]["elicitations"][0]["url"].as_str().unwrap()).await;
    let page = browser.press(&page, "connect").await;
    assert!(page.text.contains("connect/u-work/login"), "{}", page.text);
    let page = browser.press(&page, "connect/u-home/login").await;
    assert!(page.text.contains("Signed in at u-home"), "{}", page.text);

    assert_eq!(text(&call("home").await["result"]), "hi");
    assert_eq!(latest(&upstream).0, "ada-at-home");
    // One account's login is no other's.
    let told = call("work").await;
    assert!(about(&told).contains("`u-work`"), "{told}");
    assert_eq!(argument(&client, "u__echo", "account").await["enum"], json!(["work", "home"]));
    assert_eq!(argument(&client, "u__sign_in", "account").await, Value::Null, "only one is left");

    let client = Client::modern(&gateway, "/mcp").with_token(&ada);
    let asked = modern(&client, "u__echo", json!({})).await;
    assert!(asked["result"]["inputRequests"]["sign_in_u-work"].is_object(), "{asked}");
    let answer = modern(&client, "u__echo", json!({ "arguments": { "message": "hi", "account": "home" } })).await;
    assert_eq!(text(&answer["result"]), "hi");
}

//! Approvals on a page, by whoever may approve.

use serde_json::{Value, json};
use weir_tests::client::{answer, with_meta};
use weir_tests::events::Events;
use weir_tests::peer::free_port;
use weir_tests::tokens::token_of;
use weir_tests::{Authority, Browser, Client, Gateway, Issuer, Stub};

use super::{OWN, calls, is_asked, modern, reply, rules};
use crate::sign_in::{AUDIENCE, text};

/// A gateway whose callers and approvers sign in at an authorization server: bob and carol are in `ops`, and so is ada.
async fn team(approve: &str) -> (Authority, Gateway, Stub) {
    team_under(&rules(approve), "").await
}

/// The same under these rules, and with these lines about the upstream.
async fn team_under(rules: &str, upstream: &str) -> (Authority, Gateway, Stub) {
    let groups = json!({ "ada": ["ops"], "bob": ["ops"], "carol": ["ops"], "eve": ["sales"] });
    let authority = Authority::with(&json!({ "names": true, "groups": groups, "claims": { "groups": ["ops"] } }));
    let stub = Stub::start().await;
    let port = free_port();
    let root = format!("public_url = \"http://127.0.0.1:{port}\"\n");
    let auth = format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n", authority.issuer());
    let config = [root, auth, rules.to_owned(), stub.config("stub"), upstream.to_owned()].concat();
    let environment = [("WEIR_TESTS_SECRET", "s3cret"), ("RUST_LOG", "info")];
    let gateway = Gateway::start_at_with(port, &config, &environment).await;
    (authority, gateway, stub)
}

async fn client(authority: &Authority, gateway: &Gateway, person: &str) -> (Client, Browser) {
    let mut browser = Browser::of(person);
    let token = token_of(authority.issuer(), &mut browser, AUDIENCE).await;
    (Client::modern(gateway, "/mcp").with_token(&token), browser)
}

/// The last part of an address.
pub(crate) fn link_id(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

/// The link in the text that a caller is told.
pub(crate) fn link(told: &Value) -> String {
    let words = text(&told["result"]).split_whitespace().find(|word| word.starts_with("http"));
    words.unwrap_or_else(|| panic!("no link: {told}")).trim_end_matches('.').to_owned()
}

#[tokio::test]
async fn somebody_else_approves_on_their_own_page() {
    let (authority, gateway, stub) = team(r#"{ by = ["group:ops", "subject:dan"] }"#).await;
    let (ada, mut hers) = client(&authority, &gateway, "ada").await;
    let evil = "<script>alert('x')</script>";
    let arguments = json!({ "message": evil });
    let told = modern(&ada, "stub__echo", arguments.clone(), json!({})).await;
    assert!(told["result"]["isError"] == true && text(&told["result"]).contains("group:ops or subject:dan"), "{told}");
    let link = link(&told);
    assert!(link.starts_with(&gateway.url("/connect/approve/")), "{link}");

    // Four eyes: ada is in the group, and does not approve her own call. Eve is not in it.
    for browser in [&mut hers, &mut Browser::of("eve")] {
        let page = browser.open(&gateway.url("/connect")).await;
        assert!(page.status == 200 && !page.text.contains("Waiting for your approval"), "{}", page.text);
        assert_eq!(browser.open(&link).await.status, 404);
        let key = page.text.split("name=\"key\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
        let form = format!("key={}&answer=approve", key.unwrap_or_default());
        let sent = browser.send(&link, &form).await;
        assert!([403, 404].contains(&sent.status), "{}", sent.text);
    }
    // Nor does what a client says count.
    let id = link_id(&link);
    let claimed = json!({ "requestState": format!("weir-approval-{id}"), "inputResponses": { "approval": { "action": "accept" } } });
    let claimed = modern(&ada, "stub__echo", arguments.clone(), claimed).await;
    assert!(claimed["result"]["isError"] == true && calls(&stub) == 0, "{claimed}");

    // The link leads through the sign-in to the list.
    let mut bob = Browser::of("bob");
    let page = bob.open(&link).await;
    assert!(page.text.contains("Waiting for your approval") && page.text.contains("ada calls it"), "{}", page.text);
    let page = bob.open(&link).await;
    assert!(page.status == 200 && page.text.contains("rule") | page.text.contains("Rule"), "{}", page.text);
    assert!(page.text.contains("&lt;script&gt;") && !page.text.contains("<script"), "{}", page.text);
    // Another browser's form, and one without a key.
    let (to, fields) = page.form(link_id(&page.url));
    assert_eq!(bob.send(&to, "answer=approve").await.status, 403);
    let mut carol = Browser::of("carol");
    carol.open(&gateway.url("/connect")).await;
    assert_eq!(carol.send(&to, &format!("key={}&answer=approve", fields[0].1)).await.status, 403);
    assert_eq!(calls(&stub), 0);

    let done = bob.send(&to, &format!("key={}&answer=approve", fields[0].1)).await;
    assert!(done.text.contains("Approved: echo of stub"), "{}", done.text);
    assert_eq!(bob.open(&link).await.status, 404, "it is answered");

    // It is ada's, and for these arguments.
    let (eve, _) = client(&authority, &gateway, "eve").await;
    assert_eq!(modern(&eve, "stub__echo", arguments.clone(), json!({})).await["result"]["isError"], true);
    let other = modern(&ada, "stub__echo", json!({ "message": "other" }), json!({})).await;
    assert_eq!(other["result"]["isError"], true);
    let done = modern(&ada, "stub__echo", arguments.clone(), json!({})).await;
    assert_eq!(text(&done["result"]), evil, "{done}");
    let again = modern(&ada, "stub__echo", arguments, json!({})).await;
    assert!(again["result"]["isError"] == true && calls(&stub) == 1, "{again}");
    gateway.logs("\"approved_by\":\"bob\"").await;
}

/// Without a rule that asks anybody.
#[tokio::test]
async fn what_a_policy_asks_waits_on_the_page_too() {
    let folder = tempfile::tempdir().unwrap();
    let judge = folder.path().join("judge.wasm");
    std::fs::write(&judge, weir_guests::JUDGE).unwrap();
    let policy = format!(
        "[[upstreams.stub.policies]]\ncomponent = {judge:?}\ngrants = [\"clock\", \"store\"]\n\
         settings = {{ see = \"facts\", do = \"ask=group:ops\" }}\n"
    );
    let (authority, gateway, stub) = team_under("", &policy).await;
    gateway.logs("upstream is healthy").await;
    let (ada, _) = client(&authority, &gateway, "ada").await;
    let told = modern(&ada, "stub__echo", json!({ "message": "hi" }), json!({})).await;
    let link = link(&told);
    let page = Browser::of("bob").open(&link).await;
    assert!(page.text.contains("Waiting for your approval") && page.text.contains("ada calls it"), "{}", page.text);
    assert_eq!(calls(&stub), 0);
}

/// A call that waits for its own person goes on at once when another one answers on the page.
#[tokio::test]
async fn an_answer_on_the_page_wakes_the_call_that_waits() {
    let (authority, gateway, stub) = team(r#"{ by = ["caller", "group:ops"] }"#).await;
    let token = token_of(authority.issuer(), &mut Browser::of("ada"), AUDIENCE).await;
    let ada = Client::legacy_with(&gateway, "/mcp", &token, &json!({ "elicitation": {} })).await;
    let mut bob = Browser::of("bob");
    bob.open(&gateway.url("/connect")).await;
    for (decision, says) in [("approve", "hi"), ("refuse", "`bob` has refused it")] {
        let params = json!({ "name": "stub__echo", "arguments": { "message": "hi" } });
        let (id, request) = ada.request("tools/call", params);
        let mut events: Events = ada.send(request).await.events();
        let question = loop {
            let message = events.next_message().await.expect("a question");
            if message["method"] == "elicitation/create" {
                break message;
            }
        };
        let page = bob.open(&gateway.url("/connect")).await;
        let path = page.text.split("href=\"connect/approve/").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let page = bob.open(&gateway.url(&format!("/connect/approve/{path}"))).await;
        let (to, fields) = page.form(link_id(&page.url));
        bob.send(&to, &format!("key={}&answer={decision}", fields[0].1)).await;
        let mut cancelled = false;
        let answer = loop {
            let message = events.next_message().await.expect("an answer");
            if message["id"] == json!(id) {
                break message;
            }
            cancelled |=
                message["method"] == "notifications/cancelled" && message["params"]["requestId"] == question["id"];
        };
        assert!(cancelled && text(&answer["result"]).contains(says), "{answer}");
    }
    assert_eq!(calls(&stub), 1);
    gateway.logs("\"approved_by\":\"bob\"").await;
}

#[tokio::test]
async fn a_refusal_is_told_to_the_caller() {
    let (authority, gateway, stub) = team(r#"{ by = "subject:bob" }"#).await;
    let (ada, _) = client(&authority, &gateway, "ada").await;
    let told = modern(&ada, "stub__echo", json!({ "message": "hi" }), json!({})).await;
    let mut bob = Browser::of("bob");
    bob.open(&gateway.url("/connect")).await;
    let page = bob.open(&link(&told)).await;
    let (to, fields) = page.form(link_id(&page.url));
    let done = bob.send(&to, &format!("key={}&answer=refuse", fields[0].1)).await;
    assert!(done.text.contains("Refused: echo of stub"), "{}", done.text);
    let told = modern(&ada, "stub__echo", json!({ "message": "hi" }), json!({})).await;
    assert!(text(&told["result"]).contains("`bob` has refused it") && calls(&stub) == 0, "{told}");
}

#[tokio::test]
async fn a_caller_without_forms_approves_on_the_page() {
    let issuer = Issuer::start().await;
    let stub = Stub::start().await;
    let port = free_port();
    let auth =
        format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\ntrust_sign_in_links = true\n", issuer.issuer());
    let root = format!("public_url = \"http://127.0.0.1:{port}\"\n");
    let gateway = Gateway::start_at(port, &[root, auth, rules(OWN), stub.config("stub")].concat()).await;
    let ada = Client::legacy_with(&gateway, "/mcp", &issuer.token("ada", AUDIENCE), &json!({})).await;
    let told = ada.call("stub__echo", json!({ "message": "hi" })).await;
    let mut browser = Browser::new();
    let page = browser.open(&link(&json!({ "result": told }))).await;
    let page = browser.press(&page, "connect").await;
    let path = page.text.split("href=\"connect/approve/").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let page = browser.open(&gateway.url(&format!("/connect/approve/{path}"))).await;
    let (to, fields) = page.form(link_id(&page.url));
    browser.send(&to, &format!("key={}&answer=approve", fields[0].1)).await;
    assert_eq!(text(&ada.call("stub__echo", json!({ "message": "hi" })).await), "hi");
    let eve = Client::legacy_with(&gateway, "/mcp", &issuer.token("eve", AUDIENCE), &json!({})).await;
    assert_eq!(eve.call("stub__echo", json!({ "message": "hi" })).await["isError"], true);
}

/// Approves what waits for the person of this link, and gives what was shown before.
pub(crate) async fn approve_at_page(gateway: &Gateway, link: &str) {
    let mut browser = Browser::new();
    let page = browser.open(link).await;
    let page = browser.press(&page, "connect").await;
    let path = page.text.split("href=\"connect/approve/").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let page = browser.open(&gateway.url(&format!("/connect/approve/{path}"))).await;
    let (to, fields) = page.form(link_id(&page.url));
    browser.send(&to, &format!("key={}&answer=approve", fields[0].1)).await;
}

/// Clients that open addresses and show no forms are sent to the page. That they say they have opened it approves nothing.
#[tokio::test]
async fn a_client_that_opens_addresses_is_sent_to_the_page() {
    let (issuer, stub, port) = (Issuer::start().await, Stub::start().await, free_port());
    let auth =
        format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\ntrust_sign_in_links = true\n", issuer.issuer());
    let root = format!("public_url = \"http://127.0.0.1:{port}\"\n");
    let gateway = Gateway::start_at(port, &[root, auth, rules(OWN), stub.config("stub")].concat()).await;

    let client = Client::modern(&gateway, "/mcp/stub").with_token(&issuer.token("ada", AUDIENCE));
    let ask = async |message: &str, more: Value| {
        let mut params = json!({ "name": "echo", "arguments": { "message": message } });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (id, request) =
            client.request_with("tools/call", with_meta(params, &json!({ "elicitation": { "url": {} } })));
        answer(client.send(client.dressed(request, "tools/call", &json!({ "name": "echo" }))).await, id).await
    };
    let sent = ask("hi", json!({})).await;
    let question = &sent["result"]["inputRequests"]["approval"]["params"];
    assert_eq!((&sent["result"]["resultType"], &question["mode"]), (&json!("input_required"), &json!("url")), "{sent}");
    let declined = ask("hi", reply(&sent, "decline")).await;
    assert!(text(&declined["result"]).contains("not approved"), "{declined}");
    let sent = ask("hi", json!({})).await;
    let link = sent["result"]["inputRequests"]["approval"]["params"]["url"].as_str().unwrap();
    let (done, ()) = tokio::join!(ask("hi", reply(&sent, "accept")), async {
        let mut browser = Browser::new();
        browser.open(link).await;
        assert_eq!(calls(&stub), 0, "to open the page is no approval");
        approve_at_page(&gateway, link).await;
    });
    assert_eq!((text(&done["result"]), calls(&stub)), ("hi", 1), "{done}");

    let token = issuer.token("ada", AUDIENCE);
    let legacy = Client::legacy_with(&gateway, "/mcp/stub", &token, &json!({ "elicitation": { "url": {} } })).await;
    let params = json!({ "name": "echo", "arguments": { "message": "again" } });
    for _ in 0..2 {
        let told = legacy.ask("tools/call", params.clone()).await;
        assert_eq!(told["error"]["code"], -32042, "{told}");
        assert_eq!(told["error"]["data"]["elicitations"][0]["mode"], "url", "{told}");
    }
    let mut stream = legacy.stream().await;
    let told = legacy.ask("tools/call", params.clone()).await;
    let elicitation = &told["error"]["data"]["elicitations"][0];
    approve_at_page(&gateway, elicitation["url"].as_str().unwrap()).await;
    let complete = loop {
        let message = stream.next_message().await.unwrap();
        if message["method"] == "notifications/elicitation/complete" {
            break message;
        }
    };
    assert_eq!(complete["params"]["elicitationId"], elicitation["elicitationId"], "{complete}");
    assert_eq!(text(&legacy.result("tools/call", params).await), "again");
}

/// A call whose person is at the page has taken no slot that others may want, and waits for its own request alone.
#[tokio::test]
async fn a_call_that_waits_for_its_page_holds_up_nobody() {
    let (issuer, stub, port) = (Issuer::start().await, Stub::start().await, free_port());
    let auth =
        format!("[auth]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\ntrust_sign_in_links = true\n", issuer.issuer());
    let root = format!("public_url = \"http://127.0.0.1:{port}\"\nlimits.tool.calls = 1\n");
    let gateway = Gateway::start_at(port, &[root, auth, rules(OWN), stub.config("stub")].concat()).await;
    let [ada, eve] =
        ["ada", "eve"].map(|who| Client::modern(&gateway, "/mcp/stub").with_token(&issuer.token(who, AUDIENCE)));
    let ask = async |client: &Client, more: Value| {
        let mut params = json!({ "name": "echo", "arguments": { "message": "hi" } });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (id, request) =
            client.request_with("tools/call", with_meta(params, &json!({ "elicitation": { "url": {} } })));
        answer(client.send(client.dressed(request, "tools/call", &json!({ "name": "echo" }))).await, id).await
    };
    let sent = ask(&ada, json!({})).await;
    let link = sent["result"]["inputRequests"]["approval"]["params"]["url"].as_str().unwrap();
    let (done, ()) = tokio::join!(ask(&ada, reply(&sent, "accept")), async {
        for _ in 0..20 {
            assert!(is_asked(&ask(&eve, json!({})).await), "there is room for others");
        }
        // What is another's, or nobody's, is not waited for.
        let made_up = json!({ "result": { "requestState": "weir-approval-page-x.y" } });
        for state in [&sent, &made_up] {
            let told = ask(&eve, reply(state, "accept")).await;
            assert!(is_asked(&told), "{told}");
        }
        approve_at_page(&gateway, link).await;
    });
    assert_eq!((text(&done["result"]), calls(&stub)), ("hi", 1), "{done}");
}

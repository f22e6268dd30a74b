//! Policies about calls: what they decide is carried out, in each era and at each endpoint, and one that fails or lies harms
//! nobody else.

use std::fs;

use serde_json::{Value, json};
use weir_tests::{Client, Gateway, Stub, client::with_meta, stub::Offer, wait::until};

/// A gateway before a stub with policies of these settings, in this order, and beside it the same stub without any.
struct Judged {
    gateway: Gateway,
    stub: Stub,
    _directory: tempfile::TempDir,
}

impl Judged {
    async fn by(policies: &[&str]) -> Self {
        let offer = Offer { tools: ["echo", "other", "burst", "read"].map(str::to_owned).to_vec(), ..Offer::default() };
        let stub = Stub::offering(offer).await;
        let directory = tempfile::tempdir().unwrap();
        let config = Self::config(&stub, directory.path(), policies);
        let gateway = Gateway::start(&config).await;
        gateway.healthy(&["judged", "free"]).await;
        Self { gateway, stub, _directory: directory }
    }

    fn config(stub: &Stub, directory: &std::path::Path, policies: &[&str]) -> String {
        let file = directory.join("judge.wasm");
        fs::write(&file, weir_guests::JUDGE).unwrap();
        let mut config = stub.config("judged");
        for (number, policy) in policies.iter().enumerate() {
            config += &format!(
                "[[upstreams.judged.policies]]\ncomponent = {file:?}\ngrants = [\"clock\", \"store\"]\n\
                 store = \"{number}\"\n{policy}\n"
            );
        }
        config + &stub.config("free")
    }

    /// A client of each era at each endpoint, with what goes before the name of a tool.
    async fn everywhere(&self) -> Vec<(Client, &'static str)> {
        vec![
            (Client::legacy(&self.gateway, "/mcp").await, "judged__"),
            (Client::legacy(&self.gateway, "/mcp/judged").await, ""),
            (Client::modern(&self.gateway, "/mcp"), "judged__"),
            (Client::modern(&self.gateway, "/mcp/judged"), ""),
        ]
    }

    /// What the stub was last asked to do.
    fn last_call(&self) -> Value {
        self.stub.asked("tools/call").last().map(|seen| seen.message()["params"].clone()).unwrap_or_default()
    }
}

fn settings(see: &str, what: &str) -> String {
    format!("settings = {{ see = {see:?}, do = {what:?} }}")
}

fn said(result: &Value) -> (&str, bool) {
    (result["content"][0]["text"].as_str().unwrap_or_default(), result["isError"] == true)
}

#[tokio::test]
async fn a_request_is_refused_in_words_for_the_model() {
    let judged = Judged::by(&[&settings("facts", "deny=ask the desk instead")]).await;
    for (client, prefix) in judged.everywhere().await {
        let result = client.call(&format!("{prefix}echo"), json!({ "message": "hello" })).await;
        assert_eq!(said(&result), ("ask the desk instead", true), "{result}");
    }
    assert!(judged.stub.asked("tools/call").is_empty(), "nothing of it goes out");
    let free = Client::modern(&judged.gateway, "/mcp/free").call("echo", json!({ "message": "hello" })).await;
    assert_eq!(said(&free), ("hello", false));
    judged.gateway.logs("ask the desk instead").await;
}

#[tokio::test]
async fn what_a_client_watches_and_lists_at_many_upstreams_is_decided_about_at_each() {
    let methods = ["subscriptions/listen", "tasks/list"];
    let policies =
        methods.map(|method| settings("facts", "deny=not for you").replace("{ ", &format!("{{ on = {method:?}, ")));
    let offer = Offer {
        capabilities: json!({ "extensions": { "io.modelcontextprotocol/tasks": {} }, "tasks": { "list": {} } }),
        listens: true,
        ..Offer::default()
    };
    let (stub, directory) = (Stub::offering(offer).await, tempfile::tempdir().unwrap());
    let config = Judged::config(&stub, directory.path(), &policies.each_ref().map(String::as_str));
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["judged", "free"]).await;

    let client = Client::modern(&gateway, "/mcp");
    let able = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let wish = json!({ "notifications": { "taskIds": ["judged__task-1", "free__task-2"] } });
    let before = stub.subscriptions();
    let (_, request) = client.request_with("subscriptions/listen", with_meta(wish, &able));
    let mut events = client.send(request).await.events();
    let granted = events.next_message().await.unwrap();
    assert_eq!(granted["params"]["notifications"]["taskIds"], json!(["free__task-2"]), "{granted}");
    assert_eq!(stub.subscriptions(), before + 1);

    let client = Client::legacy(&gateway, "/mcp").await;
    client.call("judged__echo", json!({ "message": "hello" })).await;
    client.call("free__echo", json!({ "message": "hello" })).await;
    let listed = client.list("tasks/list", "tasks").await;
    assert_eq!((listed.len(), stub.asked("tasks/list").len()), (1, 1), "one of the two upstreams is asked: {listed:?}");
}

#[tokio::test]
async fn a_request_that_only_reads_goes_out_while_a_policy_decides_about_it() {
    let beside = |what: &str| format!("mode = \"beside\"\n{}", settings("body", what));
    let mask = settings("answers", "mask=hello>masked");
    let judged = Judged::by(&[&beside("label=x"), &mask]).await;
    for (client, prefix) in judged.everywhere().await {
        let result = client.call(&format!("{prefix}read"), json!({ "message": "hello" })).await;
        assert_eq!(said(&result), ("masked", false), "the other policies decide about the answer: {result}");
    }

    let judged = Judged::by(&[&beside("late=not that"), &mask]).await;
    for (at, (client, prefix)) in judged.everywhere().await.into_iter().enumerate() {
        let result = client.call(&format!("{prefix}echo"), json!({ "message": "hello" })).await;
        assert_eq!(said(&result), ("not that", true), "{result}");
        assert_eq!(judged.stub.asked("tools/call").len(), at, "what may change something waits");
        let result = client.call(&format!("{prefix}read"), json!({ "message": "hello" })).await;
        assert_eq!(said(&result), ("not that", true), "{result}");
        assert_eq!(judged.stub.asked("tools/call").len(), at + 1, "what only reads has gone out");
    }
    judged.gateway.logs("not that").await;
}

#[tokio::test]
async fn what_changes_a_request_comes_too_late_beside_the_upstream() {
    for what in ["swap=hello>bye", "ask=group:ops", "header=x-team:a"] {
        let judged = Judged::by(&[&format!("mode = \"beside\"\n{}", settings("body", what))]).await;
        let client = Client::modern(&judged.gateway, "/mcp/judged");
        let result = client.call("read", json!({ "message": "hello" })).await;
        assert!(said(&result).1 && said(&result).0.contains("mode = \"enforce\""), "{what}: {result}");
    }
    let judged = Judged::by(&[&format!("mode = \"beside\"\n{}", settings("facts", "answer={'content':[]}"))]).await;
    let result = Client::modern(&judged.gateway, "/mcp/judged").call("read", json!({ "message": "hello" })).await;
    assert_eq!(result["content"], json!([]), "its own answer takes the place of the upstream's: {result}");
}

#[tokio::test]
async fn the_answer_of_a_policy_passes_through_those_before_it() {
    let answer = settings("facts", "answer={'content':[{'type':'text','text':'hello'}]}");
    let mask = settings("answers", "mask=hello>masked");
    let late = format!("mode = \"beside\"\n{}", settings("body", "late=not that"));
    for (policies, expected) in [
        ([&mask, &answer], ("masked", false)),
        ([&answer, &mask], ("hello", false)),
        ([&mask, &format!("mode = \"beside\"\n{answer}")], ("masked", false)),
        ([&late, &answer], ("not that", true)),
    ] {
        let judged = Judged::by(&policies.map(String::as_str)).await;
        for (client, prefix) in judged.everywhere().await {
            let result = client.call(&format!("{prefix}read"), json!({ "message": "x" })).await;
            assert_eq!(said(&result), expected, "{policies:?}: {result}");
        }
    }
}

#[tokio::test]
async fn a_refusal_may_be_an_error_with_a_code() {
    let judged = Judged::by(&[&settings("facts", "code=-32003")]).await;
    for (client, prefix) in judged.everywhere().await {
        let answer = client.ask("tools/call", json!({ "name": format!("{prefix}echo"), "arguments": {} })).await;
        assert_eq!((&answer["error"]["code"], &answer["error"]["message"]), (&json!(-32003), &json!("by code")));
    }
}

#[tokio::test]
async fn a_request_goes_on_changed_and_the_next_policy_sees_it_so() {
    let judged =
        Judged::by(&[&settings("body", "swap=hello>goodbye"), &settings("body", "swap=goodbye>farewell")]).await;
    for (client, prefix) in judged.everywhere().await {
        let arguments = json!({ "message": "hello" });
        let params =
            json!({ "name": format!("{prefix}echo"), "arguments": arguments, "_meta": { "progressToken": "kept" } });
        let result = client.result("tools/call", params).await;
        assert_eq!(said(&result), ("farewell", false));
        let sent = judged.last_call();
        assert_eq!(sent["arguments"]["message"], "farewell");
        assert_eq!(sent["name"], "echo");
        assert!(!sent["_meta"]["progressToken"].is_null(), "what is for client and server stays: {sent}");
    }
}

#[tokio::test]
async fn arguments_that_travel_in_headers_too_change_there() {
    let offer = Offer { tools: vec!["regional".to_owned()], ..Offer::default() };
    let stub = Stub::offering(offer).await;
    let directory = tempfile::tempdir().unwrap();
    let config = Judged::config(&stub, directory.path(), &[&settings("body", "swap=east>west")]);
    let gateway = Gateway::start(&config).await;
    gateway.healthy(&["judged"]).await;
    let client = Client::modern(&gateway, "/mcp/judged");
    let params = json!({ "name": "regional", "arguments": { "message": "east" } });
    let (id, request) = client.request("tools/call", params);
    let request = request.header("mcp-param-region", "east");
    let answer = weir_tests::client::answer(client.send(request).await, id).await;
    assert_eq!(said(&answer["result"]), ("west", false), "{answer}");
    let seen = stub.asked("tools/call");
    assert_eq!(seen.last().and_then(|seen| seen.header("mcp-param-region")), Some("west"));
}

#[tokio::test]
async fn rules_decide_anew_about_a_changed_request() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let rules = "[[access.rules]]\nname = \"small\"\nupstreams = \"*\"\nwhen = \"!has(args.message) || args.message != 'goodbye'\"\n";
    let config = Judged::config(&stub, directory.path(), &[&settings("body", "swap=hello>goodbye")]);
    let gateway = Gateway::start(&(config + rules)).await;
    gateway.healthy(&["judged", "free"]).await;
    for client in [Client::modern(&gateway, "/mcp/judged"), Client::legacy(&gateway, "/mcp/judged").await] {
        let result = client.call("echo", json!({ "message": "fine" })).await;
        assert_eq!(said(&result), ("fine", false));
        let result = client.call("echo", json!({ "message": "hello" })).await;
        assert!(said(&result).1 && said(&result).0.contains("no rule allows"), "{result}");
    }
    assert!(stub.asked("tools/call").iter().all(|seen| seen.message()["params"]["arguments"]["message"] == "fine"));
}

#[tokio::test]
async fn a_policy_may_answer_itself_and_may_set_headers_and_labels() {
    let own = "answer={'content':[{'type':'text','text':'from the policy'}]}";
    let judged = Judged::by(&[&settings("facts", own)]).await;
    for (client, prefix) in judged.everywhere().await {
        let result = client.call(&format!("{prefix}echo"), json!({})).await;
        assert_eq!(said(&result), ("from the policy", false));
    }
    assert!(judged.stub.asked("tools/call").is_empty());

    let judged = Judged::by(&[&settings("facts", "header=x-team:desk"), &settings("facts", "label=by the desk")]).await;
    for (client, prefix) in judged.everywhere().await {
        client.call(&format!("{prefix}echo"), json!({})).await;
        assert_eq!(judged.stub.asked("tools/call").last().and_then(|seen| seen.header("x-team")), Some("desk"));
    }
    judged.gateway.logs("seen=by the desk").await;
}

#[tokio::test]
async fn a_header_of_a_policy_takes_the_place_of_no_credential() {
    let (stub, directory) = (Stub::start().await, tempfile::tempdir().unwrap());
    let headers = "headers = { x-api-key = \"of-the-operator\" }\n[[upstreams.judged.policies]]";
    let config = Judged::config(&stub, directory.path(), &[&settings("facts", "header=x-api-key:of-the-policy")]);
    let gateway = Gateway::start(&config.replace("[[upstreams.judged.policies]]", headers)).await;
    gateway.healthy(&["judged"]).await;
    for client in [Client::legacy(&gateway, "/mcp/judged").await, Client::modern(&gateway, "/mcp/judged")] {
        client.call("echo", json!({})).await;
        let keys = stub.asked("tools/call").last().unwrap().headers.get_all("x-api-key").iter().count();
        assert_eq!(keys, 1);
        assert_eq!(stub.asked("tools/call").last().unwrap().header("x-api-key"), Some("of-the-operator"));
    }
    gateway.logs("a header of a call is not sent").await;
}

#[tokio::test]
async fn answers_are_changed_on_their_way_back_in_the_reverse_order() {
    let judged =
        Judged::by(&[&settings("answers", "mask=goodbye>farewell"), &settings("answers", "mask=hello>goodbye")]).await;
    for (client, prefix) in judged.everywhere().await {
        for tool in ["echo", "burst"] {
            let result = client.call(&format!("{prefix}{tool}"), json!({ "message": "hello" })).await;
            assert_eq!(said(&result), ("farewell", false), "{tool}: {result}");
        }
    }
}

#[tokio::test]
async fn a_policy_is_told_again_what_it_said_of_the_call() {
    let judged = Judged::by(&[&settings("facts answers", "memory=what was said before")]).await;
    for (client, prefix) in judged.everywhere().await {
        let result = client.call(&format!("{prefix}echo"), json!({ "message": "hello" })).await;
        assert_eq!(said(&result), ("what was said before", false));
    }
}

#[tokio::test]
async fn each_event_of_a_stream_is_decided_about() {
    let progress = |messages: &[Value]| messages.iter().filter(|one| one["method"] == "notifications/progress").count();
    for (what, count, text) in [("mute", 0, "done"), ("count", 2, "enough"), ("pass", 10, "done")] {
        let judged = Judged::by(&[&settings("events", what)]).await;
        for (client, prefix) in judged.everywhere().await {
            let meta = json!({ "progressToken": "t" });
            let params = json!({ "name": format!("{prefix}burst"), "arguments": { "message": "done" }, "_meta": meta });
            let (id, request) = client.request("tools/call", params);
            let messages = client.send(request).await.messages().await;
            assert_eq!(progress(&messages), count, "{what}: {messages:?}");
            let last: Vec<&Value> = messages.iter().filter(|message| message["id"] == id).collect();
            assert_eq!(last.len(), 1, "{what}: one answer and no more");
            assert_eq!(said(&last[0]["result"]).0, text, "{what}");
        }
    }
}

#[tokio::test]
async fn a_call_is_cut_where_the_policy_says_so() {
    let judged = Judged::by(&[&settings("answers", "cut=not for you")]).await;
    for (client, prefix) in judged.everywhere().await {
        let result = client.call(&format!("{prefix}echo"), json!({ "message": "secret" })).await;
        assert_eq!(said(&result), ("not for you", true));
        assert!(!result.to_string().contains("secret"));
    }
}

#[tokio::test]
async fn what_a_policy_hides_is_neither_seen_nor_used() {
    let judged = Judged::by(&[&settings("tools", "hide=other")]).await;
    for (client, prefix) in judged.everywhere().await {
        let tools = client.tools().await;
        assert!(tools.contains(&format!("{prefix}echo")) && !tools.contains(&format!("{prefix}other")), "{tools:?}");
        let hidden = client.ask("tools/call", json!({ "name": format!("{prefix}other"), "arguments": {} })).await;
        let unknown = client.ask("tools/call", json!({ "name": format!("{prefix}nothing"), "arguments": {} })).await;
        assert_eq!(hidden["error"]["code"], unknown["error"]["code"], "{hidden}");
        assert!(!hidden["error"].is_null(), "{hidden}");
        let shown = client.call(&format!("{prefix}echo"), json!({ "message": "hello" })).await;
        assert_eq!(said(&shown), ("hello", false));
    }
    assert!(judged.stub.asked("tools/call").iter().all(|seen| seen.message()["params"]["name"] == "echo"));
    judged.gateway.logs("it is not for models").await;
}

#[tokio::test]
async fn a_pattern_for_what_a_policy_hides_matches_something() {
    let (stub, directory) = (Stub::start().await, tempfile::tempdir().unwrap());
    let limits = "[limits.tools.judged__fail]\ncalls = 1\n[limits.tools.judged__fial]\ncalls = 1\n";
    let config = Judged::config(&stub, directory.path(), &[&settings("tools", "hide=fail")]);
    let gateway = Gateway::start(&(limits.to_owned() + &config)).await;
    gateway.logs("no tool matches `judged__fial`").await;
    assert_eq!(gateway.log().matches(" matches `").count(), 1, "{}", gateway.log());
}

#[tokio::test]
async fn entries_are_edited() {
    let judged = Judged::by(&[&settings("tools", "edit=Reviewed. ")]).await;
    for (client, prefix) in judged.everywhere().await {
        let tools = client.list("tools/list", "tools").await;
        let description = |name: &str| {
            let tool = tools.iter().find(|tool| tool["name"] == format!("{prefix}{name}")).unwrap();
            tool["description"].as_str().unwrap().to_owned()
        };
        assert_eq!(
            (description("echo").as_str(), description("other").as_str()),
            ("Reviewed. The stub's echo", "The stub's other")
        );
    }
}

#[tokio::test]
async fn decisions_about_facts_are_kept_apart_by_what_they_are_about() {
    let judged = Judged::by(&[&settings("facts", "once")]).await;
    let client = Client::modern(&judged.gateway, "/mcp/judged");
    let words = async |tool: &str| said(&client.call(tool, json!({})).await).0.to_owned();
    let (first, again, other) = (words("echo").await, words("echo").await, words("other").await);
    assert_eq!(first, again, "it is kept");
    assert_ne!(first, other, "another tool is another question");
}

#[tokio::test]
async fn a_decision_that_is_kept_speaks_for_its_own_policy_and_says_all_again() {
    let kept = [settings("facts", "keep"), settings("facts", "keep=often")];
    for more in ["swap=hello>goodbye", "deny=no"] {
        let judged = Judged::by(&[&kept[0], &kept[1], &settings("body", more)]).await;
        for (client, prefix) in judged.everywhere().await {
            for _ in 0..2 {
                let result = client.call(&format!("{prefix}echo"), json!({ "message": "hello" })).await;
                let expected = if more == "deny=no" { ("no", true) } else { ("goodbye", false) };
                assert_eq!(said(&result), expected, "{result}");
            }
        }
        until("each call has its label", || judged.gateway.log().matches("seen=often").count() == 8).await;
    }
    let judged = Judged::by(&[&kept[0]]).await;
    let client = Client::modern(&judged.gateway, "/mcp/judged");
    for tool in ["echo", "echo", "other", "echo"] {
        client.call(tool, json!({ "message": "hello" })).await;
    }
    assert_eq!(judged.stub.asked("tools/call").len(), 4);
}

#[tokio::test]
async fn a_policy_is_told_who_calls_what() {
    let judged = Judged::by(&[&settings("facts", "team")]).await;
    let result = Client::modern(&judged.gateway, "/mcp/judged").call("echo", json!({})).await;
    assert!(said(&result).0.starts_with("judged tools/call echo"), "{result}");
}

#[tokio::test]
async fn what_is_only_tried_out_changes_nothing_and_is_logged() {
    let shadow = |see: &str, what: &str| settings(see, what) + "\nmode = \"shadow\"";
    let judged =
        Judged::by(&[&shadow("facts", "deny=no"), &shadow("answers", "cut=no"), &shadow("tools", "hide=other")]).await;
    for (client, prefix) in judged.everywhere().await {
        let result = client.call(&format!("{prefix}other"), json!({ "message": "hello" })).await;
        assert_eq!(said(&result), ("hello", false));
        assert!(client.tools().await.contains(&format!("{prefix}other")));
    }
    judged.gateway.logs("would deny: no; policy").await;
    judged.gateway.logs("would cut what came back").await;
    judged.gateway.logs("\"would\":\"cut\"").await;
    judged.gateway.logs("\"would\":\"hide\"").await;
    let metrics = judged.gateway.metrics();
    let mut counted = metrics.lines().filter(|line| line.starts_with("weir_policy_entries_shadowed_total{"));
    assert!(counted.any(|line| !line.ends_with(" 0")), "{metrics}");
}

#[tokio::test]
async fn a_policy_that_changes_a_call_leaves_what_others_would_have_decided_in_the_log() {
    let shadow = settings("facts", "deny=no") + "\nmode = \"shadow\"";
    let judged = Judged::by(&[&shadow, &settings("body", "swap=hello>goodbye")]).await;
    let result = Client::modern(&judged.gateway, "/mcp/judged").call("echo", json!({ "message": "hello" })).await;
    assert_eq!(said(&result), ("goodbye", false));
    judged.gateway.logs("would deny: no").await;
}

#[tokio::test]
async fn a_policy_that_fails_refuses_its_calls_or_is_skipped_as_configured() {
    for (see, what) in [
        ("facts", "trap"),
        ("body", "spin"),
        ("facts", "huge"),
        ("facts", "recurse"),
        ("facts", "fill"),
        ("answers", "after-trap"),
    ] {
        let judged = Judged::by(&[&settings(see, what)]).await;
        let client = Client::modern(&judged.gateway, "/mcp/judged");
        let result = client.call("echo", json!({ "message": "hello" })).await;
        assert!(said(&result).1 && said(&result).0.contains("judge.wasm"), "{what}: {result}");
        let free = Client::modern(&judged.gateway, "/mcp/free").call("echo", json!({ "message": "hello" })).await;
        assert_eq!(said(&free), ("hello", false), "{what}");

        let judged = Judged::by(&[&(settings(see, what) + "\non_failure = \"skip\"")]).await;
        let result = Client::modern(&judged.gateway, "/mcp/judged").call("echo", json!({ "message": "hello" })).await;
        assert_eq!(said(&result), ("hello", false), "{what}");
        judged.gateway.logs("calls go on without it").await;
    }
}

#[tokio::test]
async fn decisions_that_cannot_be_carried_out_refuse_the_call() {
    for (see, what, why) in [
        ("facts", "blind", "replaces what it did not want to see"),
        ("body", "swap=echo>other", "changes `name`"),
        ("body", "swap={>[", "no JSON object"),
        ("body", "swap='name'>'name':'other','name'", "`name` twice"),
        ("facts", "answer=[1]", "no JSON object"),
        ("facts", "header=authorization:x", "credentials are for"),
        ("facts", "header=mcp-name:x", "belongs to the gateway"),
        ("facts", "ask=everybody", "an approver is"),
        ("answers", "swallow", "drops the answer"),
        ("answers", "broken", "no JSON object"),
    ] {
        let judged = Judged::by(&[&settings(see, what)]).await;
        let client = Client::modern(&judged.gateway, "/mcp/judged");
        let result = client.call("echo", json!({ "message": "hello" })).await;
        assert!(said(&result).1 && said(&result).0.contains(why), "{what}: {result}");
    }
}

#[tokio::test]
async fn entries_without_a_usable_decision_are_not_served() {
    for what in ["few", "trap", "rename"] {
        let stub = Stub::start().await;
        let directory = tempfile::tempdir().unwrap();
        let config = Judged::config(&stub, directory.path(), &[&settings("tools", what)]);
        let gateway = Gateway::start(&config).await;
        gateway.healthy(&["free"]).await;
        gateway.settle(&["judged"], "degraded").await;
        let tools = Client::modern(&gateway, "/mcp").tools().await;
        assert!(tools.iter().all(|tool| tool.starts_with("free__")) && !tools.is_empty(), "{what}: {tools:?}");
        let answer = Client::modern(&gateway, "/mcp/judged").ask("tools/call", json!({ "name": "echo" })).await;
        assert!(!answer["error"].is_null(), "{what}: {answer}");
    }
}

#[tokio::test]
async fn a_template_that_is_hidden_hides_what_it_leads_to() {
    let template = |name: &str| json!({ "uriTemplate": format!("stub://{name}/{{id}}"), "name": name });
    let offer = Offer {
        capabilities: json!({ "resources": {} }),
        lists: json!({
            "resources/list": [{ "uri": "stub://closed/listed", "name": "listed" }],
            "resources/templates/list": [template("open"), template("closed")],
        }),
        ..Offer::default()
    };
    let stub = Stub::offering(offer).await;
    let directory = tempfile::tempdir().unwrap();
    let policies = &[&*settings("templates", "hide=stub://closed/{id}")];
    let gateway = Gateway::start(&Judged::config(&stub, directory.path(), policies)).await;
    gateway.healthy(&["judged", "free"]).await;
    for client in [Client::modern(&gateway, "/mcp/judged"), Client::legacy(&gateway, "/mcp/judged").await] {
        let templates = client.list("resources/templates/list", "resourceTemplates").await;
        assert_eq!(templates.iter().map(|one| &one["name"]).collect::<Vec<_>>(), ["open"]);
        for (uri, is_read) in [("stub://open/1", true), ("stub://closed/1", false), ("stub://closed/listed", true)] {
            let answer = client.ask("resources/read", json!({ "uri": uri })).await;
            assert_eq!(answer["result"]["contents"][0]["text"] == "read", is_read, "{uri}: {answer}");
        }
    }
    let read = stub.asked("resources/read");
    assert!(read.iter().all(|seen| seen.message()["params"]["uri"] != "stub://closed/1"));
}

#[tokio::test]
async fn an_entry_that_is_too_long_to_be_looked_at_hides_itself_alone() {
    let tool = |name: &str, length: usize| json!({ "name": name, "description": "x".repeat(length), "inputSchema": { "type": "object" } });
    let lists = json!({ "tools/list": [tool("long", 1 << 20), tool("echo", 10)] });
    let stub = Stub::offering(Offer { lists, ..Offer::default() }).await;
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&Judged::config(&stub, directory.path(), &[&settings("tools", "nothing")])).await;
    gateway.healthy(&["judged", "free"]).await;
    for client in [Client::modern(&gateway, "/mcp"), Client::legacy(&gateway, "/mcp").await] {
        assert_eq!(client.tools().await, ["judged__echo", "free__long", "free__echo"]);
        let answer = client.ask("tools/call", json!({ "name": "judged__long", "arguments": {} })).await;
        assert!(!answer["error"].is_null(), "{answer}");
    }
    assert!(stub.asked("tools/call").is_empty());
    gateway.logs("`long` is hidden by policy").await;
}

#[tokio::test]
async fn a_call_waits_for_the_person_that_a_policy_asks() {
    let judged = Judged::by(&[&settings("facts", "ask=group:ops")]).await;
    let result = Client::modern(&judged.gateway, "/mcp/judged").call("echo", json!({ "message": "hello" })).await;
    let (text, is_error) = said(&result);
    assert!(is_error && text.contains("needs an approval") && text.contains("group:ops"), "{result}");
    assert!(judged.stub.asked("tools/call").is_empty());
}

#[tokio::test]
async fn settings_that_a_policy_refuses_stop_the_start() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.toml");
    for (policy, why) in [
        (settings("nobody", ""), "set `see` to something"),
        (settings("", ""), "wants to see nothing"),
        ("mode = \"loud\"".to_owned(), "shadow"),
    ] {
        fs::write(&file, Judged::config(&stub, directory.path(), &[&policy])).unwrap();
        let checked =
            std::process::Command::new(weir_tests::paths::weir()).arg("check").arg("-c").arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert_eq!(checked.status.code(), Some(64), "{said}");
        assert!(said.contains(why), "{said}");
    }
}

#[tokio::test]
async fn no_card_number_reaches_a_model_behind_the_example() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mask-cards.wasm");
    fs::write(&file, weir_guests::MASK_CARDS).unwrap();
    let policy = format!("[[upstreams.shop.policies]]\ncomponent = {:?}\n", file.display().to_string());
    let gateway = Gateway::start(&(stub.config("shop") + &policy)).await;
    gateway.healthy(&["shop"]).await;
    for client in [Client::legacy(&gateway, "/mcp").await, Client::modern(&gateway, "/mcp")] {
        let result = client.call("shop__echo", json!({ "message": "paid with 4111 1111 1111 1111" })).await;
        assert_eq!(said(&result), ("paid with **** **** **** 1111", false));
    }
    gateway.logs("masked-cards=1").await;
}

#[tokio::test]
async fn what_a_policy_asks_is_asked_beside_what_a_rule_asks() {
    let stub = Stub::start().await;
    let directory = tempfile::tempdir().unwrap();
    let rules = "[[access.rules]]\nname = \"asks\"\ntools = [\"*\"]\napprove = { by = \"caller\" }\n\n";
    let config = Judged::config(&stub, directory.path(), &[&settings("facts", "ask=group:ops")]);
    let gateway = Gateway::start(&(rules.to_owned() + &config)).await;
    gateway.healthy(&["judged"]).await;
    let capabilities = json!({ "elicitation": {} });
    let client = Client::legacy_at(gateway.address(), "/mcp/judged", weir_tests::LEGACY, &capabilities).await;
    let (id, request) = client.request("tools/call", json!({ "name": "echo", "arguments": { "message": "hello" } }));
    let mut events = client.send(request).await.events();
    let question = events.next_message().await.unwrap();
    assert_eq!(question["method"], "elicitation/create");
    let accepted = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": {} } });
    assert_eq!(client.send(client.post(accepted.to_string())).await.status, 202);
    let answer = events.next_message().await.unwrap();
    assert_eq!(answer["id"], id);
    assert!(said(&answer["result"]).0.contains("group:ops"), "the policy still asks: {answer}");
    assert!(stub.asked("tools/call").is_empty());
}

#[tokio::test]
async fn what_a_policy_keeps_outlives_a_restart() {
    let (stub, directory) = (Stub::start().await, tempfile::tempdir().unwrap());
    let mut config = Judged::config(&stub, directory.path(), &[&settings("facts", "calls=3")]);
    // The same component at another upstream begins anew.
    let again = Judged::config(&stub, directory.path(), &[&settings("facts", "calls=3")]);
    let again = again.replace("upstreams.judged", "upstreams.other");
    config += again.split("[upstreams.free]").next().unwrap();
    let state = directory.path().join("state");
    let environment = [("XDG_STATE_HOME", state.to_str().unwrap())];
    let mut answers = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::start_with(&config, &environment).await;
        gateway.healthy(&["judged", "other"]).await;
        let client = Client::modern(&gateway, "/mcp");
        for _ in 0..2 {
            answers.push(client.call("judged__echo", json!({ "message": "hello" })).await);
        }
        assert_eq!(said(&client.call("other__echo", json!({ "message": "hello" })).await), ("hello", false));
    }
    let answers: Vec<_> = answers.iter().map(said).collect();
    let hello = ("hello", false);
    assert_eq!(answers, [hello, hello, hello, ("these were your 3 calls", true)]);
}

#[tokio::test]
async fn a_policy_that_hoards_fills_its_own_store_alone() {
    let judged = Judged::by(&[&settings("facts", "hoard"), &settings("body", "allow")]).await;
    let client = Client::modern(&judged.gateway, "/mcp");
    let result = client.call("judged__echo", json!({ "message": "hello" })).await;
    assert_eq!(
        said(&result).0,
        "Err(StoreError::Limit(\"a policy keeps at most 2 MiB for one upstream\"))",
        "{result}"
    );
    assert_eq!(said(&client.call("free__echo", json!({ "message": "hello" })).await), ("hello", false));
}

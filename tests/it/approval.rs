//! Calls that a rule allows only once a person has approved them.

pub(crate) mod page;

use rustix::process::Signal;
use serde_json::{Value, json};
use weir_tests::client::{answer, with_meta};
use weir_tests::events::Events;
use weir_tests::stub::Offer;
use weir_tests::{Bridge, Client, Gateway, LEGACY, Peer, Stub};

use crate::sign_in::text;

/// Rules under which everything may be called, and this holds of `echo`.
pub(crate) fn rules(approve: &str) -> String {
    format!(
        "[[access.rules]]\nname = \"rest\"\n\n[[access.rules]]\nname = \"asks\"\ntools = [\"echo\"]\napprove = {approve}\n\n"
    )
}

pub(crate) const OWN: &str = r#"{ by = "caller" }"#;

async fn local(approve: &str, offer: Offer) -> (Gateway, Stub) {
    let stub = Stub::offering(offer).await;
    let gateway = Gateway::start(&(rules(approve) + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    (gateway, stub)
}

fn calls(stub: &Stub) -> usize {
    stub.asked("tools/call").len()
}

/// A legacy call whose person does `action` when asked; what it was asked, and the answer.
async fn asked(client: &Client, tool: &str, arguments: Value, action: &str) -> (Option<Value>, Value) {
    let (id, request) = client.request("tools/call", json!({ "name": tool, "arguments": arguments }));
    let response = client.send(request).await;
    let mut events: Events = response.events();
    let mut question = None;
    loop {
        let message = events.next_message().await.expect("an answer before the end");
        if message["method"] == "elicitation/create" {
            let result =
                json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "action": action, "content": {} } });
            assert_eq!(client.send(client.post(result.to_string())).await.status, 202);
            question = Some(message);
        } else if message["id"] == json!(id) {
            return (question, message);
        }
    }
}

/// A modern call, of a client whose person can be shown forms.
pub(crate) async fn modern(client: &Client, tool: &str, arguments: Value, more: Value) -> Value {
    let mut params = json!({ "name": tool, "arguments": arguments });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let params = with_meta(params, &json!({ "elicitation": { "form": {}, "url": {} } }));
    let (id, request) = client.request_with("tools/call", params);
    answer(client.send(client.dressed(request, "tools/call", &json!({ "name": tool }))).await, id).await
}

pub(crate) fn reply(asked: &Value, action: &str) -> Value {
    let state = &asked["result"]["requestState"];
    json!({ "requestState": state, "inputResponses": { "approval": { "action": action, "content": {} } } })
}

pub(crate) fn is_asked(answer: &Value) -> bool {
    answer["result"]["resultType"] == "input_required" && answer["result"]["inputRequests"]["approval"].is_object()
}

#[tokio::test]
async fn a_legacy_client_s_person_is_asked_on_the_stream_of_the_call() {
    let (gateway, stub) = local(OWN, Offer::default()).await;
    for (path, tool) in [("/mcp", "stub__echo"), ("/mcp/stub", "echo")] {
        let before = calls(&stub);
        let client = Client::legacy_at(gateway.address(), path, LEGACY, &json!({ "elicitation": {} })).await;
        assert!(client.tools().await.contains(&tool.to_owned()), "lists show it");
        let arguments = json!({ "message": "1000 EUR" });
        for action in ["decline", "cancel"] {
            let (question, answer) = asked(&client, tool, arguments.clone(), action).await;
            let question = question.unwrap()["params"]["message"].as_str().unwrap().to_owned();
            assert!(question.contains("1000 EUR") && question.contains("`echo` of `stub`"), "{question}");
            assert!(
                answer["result"]["isError"] == true && text(&answer["result"]).contains("not approved"),
                "{answer}"
            );
        }
        assert_eq!(calls(&stub), before, "nothing has gone out");
        let (question, answer) = asked(&client, tool, arguments.clone(), "accept").await;
        assert!(question.is_some() && text(&answer["result"]) == "1000 EUR", "{answer}");
        // The approval is used up.
        let (question, _) = asked(&client, tool, arguments, "decline").await;
        assert!(question.is_some() && calls(&stub) == before + 1);
        // Other tools are not concerned.
        let prefix = tool.trim_end_matches("echo");
        let done = client.call(&format!("{prefix}burst"), json!({ "message": "free" })).await;
        assert_eq!(text(&done), "free");
    }
    let given = "\"approved_by\":\"local\"";
    gateway.logs(given).await;
    for event in ["approval asked", "approval given", "approval refused"] {
        gateway.logs(event).await;
    }
}

#[tokio::test]
async fn a_caller_has_a_share_of_calls_that_wait_for_their_person() {
    let stub = Stub::start().await;
    let limits = "limits.principal.pending_inputs = 2\n".to_owned();
    let gateway = Gateway::start(&(limits + &rules(OWN) + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::legacy_at(gateway.address(), "/mcp/stub", LEGACY, &json!({ "elicitation": {} })).await;
    let call = || client.request("tools/call", json!({ "name": "echo", "arguments": { "message": "the same" } }));
    for _ in 0..2 {
        let mut events = client.send(call().1).await.events();
        let question = events.next_message().await.unwrap();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        // It hangs up, and the call waits on.
    }
    let (id, request) = call();
    let full = answer(client.send(request).await, id).await;
    assert!(full["error"]["message"].as_str().unwrap().contains("`limits.principal.pending_inputs`"), "{full}");
    assert_eq!(calls(&stub), 0);
}

/// What a program behind `weir connect` asks is asked of its person, in either era.
#[tokio::test]
async fn a_client_on_standard_input_is_asked() {
    let (gateway, stub) = local(OWN, Offer::default()).await;
    let mut bridge = Bridge::start(&[&gateway.url("/mcp")]);
    bridge.shake_hands(json!({ "elicitation": {} })).await;
    let call = json!({ "name": "stub__echo", "arguments": { "message": "by line" } });
    for (action, out) in [("decline", 0), ("accept", 1)] {
        let id = bridge.request("tools/call", call.clone()).await;
        let question = bridge.called("elicitation/create").await;
        let result = json!({ "action": action, "content": {} });
        bridge.say(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })).await;
        let answer = bridge.answer(&json!(id)).await;
        assert_eq!(answer["result"]["isError"] == true, action == "decline", "{answer}");
        assert_eq!(calls(&stub), out);
    }
    let told = bridge.ask_modern("tools/call", call).await;
    assert!(is_asked(&told) || told["result"]["isError"] == true, "{told}");
    assert_eq!(calls(&stub), 1);
}

/// Each call of a batch (2025-03-26) is asked about for itself.
#[tokio::test]
async fn no_call_of_a_batch_goes_out_with_another() {
    let (gateway, stub) = local(OWN, Offer::default()).await;
    let elicitation = json!({ "elicitation": {} });
    let client = Client::legacy_at(gateway.address(), "/mcp", "2025-03-26", &elicitation).await;
    let call = |id: &str, message: &str| {
        let params = json!({ "name": "stub__echo", "arguments": { "message": message } });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
    };
    let batch = json!([call("a", "yes"), call("b", "no"), call("c", "yes")]);
    // The answers come as one array, so what is asked comes on the other stream.
    let mut events = client.stream().await;
    let (request, address) = (client.post(batch.to_string()), gateway.address());
    let answers = tokio::spawn(async move { request.send(address).await.messages().await });
    for _ in 0..3 {
        let message = events.next_message().await.expect("each call is asked about");
        let action = if message.to_string().contains("yes") { "accept" } else { "decline" };
        let result = json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "action": action, "content": {} } });
        assert_eq!(client.send(client.post(result.to_string())).await.status, 202);
    }
    let answers = answers.await.unwrap();
    let answered = |id: &str| answers.iter().find(|answer| answer["id"] == id).unwrap();
    assert_eq!(answered("b")["result"]["isError"], true);
    let out: Vec<Value> = stub.asked("tools/call").iter().map(|seen| seen.message()["params"].clone()).collect();
    assert_eq!(out.len(), 2, "two that are alike need two approvals: {answers:?}");
    assert!(out.iter().all(|params| params["arguments"]["message"] == "yes"), "{out:?}");
}

/// A call that becomes a task is asked about before there is one.
#[tokio::test]
async fn a_call_that_becomes_a_task_is_asked_about() {
    let everything = Peer::everything().await;
    let rules = rules(OWN).replace("echo", "simulate-*");
    let gateway = Gateway::start(&(rules + &everything.config("all"))).await;
    gateway.healthy(&["all"]).await;
    let client = Client::legacy_at(gateway.address(), "/mcp", LEGACY, &json!({ "elicitation": {} })).await;
    let params = json!({
        "name": "all__simulate-research-query", "arguments": { "topic": "weirs" }, "task": { "ttl": 60_000 },
    });
    for (action, has_task) in [("decline", false), ("accept", true)] {
        let (id, request) = client.request("tools/call", params.clone());
        let mut events = client.send(request).await.events();
        let question = events.next_message().await.expect("a question");
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let result = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": action, "content": {} } });
        assert_eq!(client.send(client.post(result.to_string())).await.status, 202);
        let answer = loop {
            let message = events.next_message().await.expect("an answer");
            if message["id"] == json!(id) {
                break message;
            }
        };
        assert_eq!(answer["result"]["task"].is_object(), has_task, "{answer}");
        assert_eq!(client.list("tasks/list", "tasks").await.len(), usize::from(has_task));
    }
}

#[tokio::test]
async fn a_call_without_an_id_goes_nowhere() {
    let (ruled, stub) = local(OWN, Offer::default()).await;
    let free = Gateway::start(&stub.config("stub")).await;
    free.healthy(&["stub"]).await;
    for gateway in [&ruled, &free] {
        for (path, tool) in [("/mcp", "stub__echo"), ("/mcp/stub", "echo")] {
            let (legacy, modern) = (Client::legacy(gateway, path).await, Client::modern(gateway, path));
            for client in [&legacy, &modern] {
                client.notify("tools/call", json!({ "name": tool, "arguments": { "message": "unasked" } })).await;
                let other = tool.replace("echo", "burst");
                assert_eq!(text(&client.call(&other, json!({ "message": "asked" })).await), "asked");
            }
        }
    }
    let called = stub.asked("tools/call");
    assert!(called.iter().all(|seen| seen.message()["params"]["name"] == "burst"), "{called:?}");
}

#[tokio::test]
async fn a_question_shows_all_that_is_approved() {
    let (gateway, stub) = local(OWN, Offer::default()).await;
    let client = Client::legacy_at(gateway.address(), "/mcp", LEGACY, &json!({ "elicitation": {} })).await;
    let arguments = json!({ "a": "x".repeat(1100), "message": "1000 EUR" });
    let (id, request) = client.request("tools/call", json!({ "name": "stub__echo", "arguments": arguments }));
    let told = answer(client.send(request).await, id).await;
    assert!(text(&told["result"]).contains("/connect"), "{told}");
    let (question, _) = asked(&client, "stub__echo", json!({ "message": "\u{202e}a\u{1b}[2J" }), "decline").await;
    let shown = question.unwrap()["params"]["message"].as_str().unwrap().to_owned();
    assert!(!shown.contains(['\u{202e}', '\u{1b}']), "{shown}");
    assert_eq!(calls(&stub), 0);
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_its_person_is_asked_does_not_go_out() {
    let (gateway, stub) = local(OWN, Offer::default()).await;
    let client = Client::legacy_at(gateway.address(), "/mcp", LEGACY, &json!({ "elicitation": {} })).await;
    let params = json!({ "name": "stub__echo", "arguments": { "message": "late" } });
    let (id, request) = client.request("tools/call", params);
    let mut events = client.send(request).await.events();
    let question = events.next_message().await.unwrap();
    assert_eq!(client.notify("notifications/cancelled", json!({ "requestId": id })).await, 202);
    assert!(events.next_message().await.is_none(), "it hears nothing more");
    let late = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": {} } });
    client.send(client.post(late.to_string())).await;
    let (_, answer) = asked(&client, "stub__echo", json!({ "message": "next" }), "accept").await;
    assert_eq!(text(&answer["result"]), "next");
    assert_eq!(calls(&stub), 1, "the cancelled call did not go out");
}

#[tokio::test]
async fn a_modern_client_is_asked_by_an_answer_and_its_state_opens_nothing_else() {
    let (gateway, stub) = local(OWN, Offer::default()).await;
    for (path, tool) in [("/mcp", "stub__echo"), ("/mcp/stub", "echo")] {
        let before = calls(&stub);
        let client = Client::modern(&gateway, path);
        let (hundred, million) = (json!({ "message": "100" }), json!({ "message": "1000000" }));
        let first = modern(&client, tool, hundred.clone(), json!({})).await;
        assert!(is_asked(&first), "{first}");

        // A state for other arguments, a forged one, and a refusal.
        let swapped = modern(&client, tool, million.clone(), reply(&first, "accept")).await;
        assert!(
            is_asked(&swapped) && swapped["result"]["requestState"] != first["result"]["requestState"],
            "{swapped}"
        );
        let forged = json!({ "requestState": format!("weir-approval-{}", "0".repeat(64)),
            "inputResponses": { "approval": { "action": "accept" } } });
        assert!(is_asked(&modern(&client, tool, hundred.clone(), forged).await));
        let foreign = json!({ "requestState": "state", "inputResponses": { "approval": { "action": "accept" } } });
        assert!(is_asked(&modern(&client, tool, hundred.clone(), foreign).await));
        let declined = modern(&client, tool, million, reply(&swapped, "decline")).await;
        assert!(text(&declined["result"]).contains("not approved"), "{declined}");
        assert_eq!(calls(&stub), before);

        let done = modern(&client, tool, hundred.clone(), reply(&first, "accept")).await;
        assert_eq!(text(&done["result"]), "100", "{done}");
        let replayed = modern(&client, tool, hundred, reply(&first, "accept")).await;
        assert!(is_asked(&replayed), "an approval is good once: {replayed}");
        assert_eq!(calls(&stub), before + 1);
        for seen in stub.asked("tools/call") {
            assert!(seen.message()["params"].get("requestState").is_none(), "it is between the client and Weir");
        }
    }
}

#[tokio::test]
async fn a_request_survives_its_process() {
    let stub = Stub::start().await;
    let config = rules(OWN) + &stub.config("stub");
    let mut gateway = Gateway::start(&config).await;
    let arguments = json!({ "message": "still there" });
    let first = modern(&Client::modern(&gateway, "/mcp"), "stub__echo", arguments.clone(), json!({})).await;
    assert!(is_asked(&first), "{first}");
    let state = gateway.directory().to_str().unwrap().to_owned();
    gateway.signal(Signal::TERM);
    gateway.end().await;
    let next = Gateway::start_with(&config, &[("XDG_STATE_HOME", &state)]).await;
    let done = modern(&Client::modern(&next, "/mcp"), "stub__echo", arguments, reply(&first, "accept")).await;
    assert_eq!(text(&done["result"]), "still there", "{done}");
}

#[tokio::test]
async fn an_approval_is_for_the_server_that_was_meant() {
    let (stub, other) = tokio::join!(Stub::start(), Stub::start());
    let gateway = Gateway::start(&(rules(OWN) + &stub.config("stub"))).await;
    let client = Client::modern(&gateway, "/mcp");
    let arguments = json!({ "message": "for the first" });
    let first = modern(&client, "stub__echo", arguments.clone(), json!({})).await;
    assert!(is_asked(&first), "{first}");
    gateway.configure(&(rules(OWN) + &other.config("stub")));
    gateway.signal(Signal::HUP);
    gateway.logs("the configuration was reloaded").await;
    let again = modern(&client, "stub__echo", arguments, reply(&first, "accept")).await;
    assert!(is_asked(&again), "{again}");
    assert_eq!((calls(&stub), calls(&other)), (0, 0));
}

#[tokio::test]
async fn one_approval_lets_one_of_many_calls_out() {
    let (gateway, stub) = local(OWN, Offer::default()).await;
    let client = Client::modern(&gateway, "/mcp");
    let arguments = json!({ "message": "once" });
    let first = modern(&client, "stub__echo", arguments.clone(), json!({})).await;
    let again = || modern(&client, "stub__echo", arguments.clone(), reply(&first, "accept"));
    let all = tokio::join!(again(), again(), again(), again());
    let done = [all.0, all.1, all.2, all.3]
        .iter()
        .filter(|answer| !is_asked(answer) && answer["result"]["isError"] != true)
        .count();
    assert_eq!((done, calls(&stub)), (1, 1));
}

#[tokio::test]
async fn an_approved_call_goes_on_when_its_upstream_asks_too() {
    let tools = ["echo", "visit"].map(str::to_owned).to_vec();
    let stub = Stub::offering(Offer { tools, legacy: false, ..Offer::default() }).await;
    let rules = rules(OWN).replace("echo", "visit");
    let gateway = Gateway::start(&(rules + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let arguments = json!({ "message": "hi" });
    let first = modern(&client, "stub__visit", arguments.clone(), json!({})).await;
    assert!(is_asked(&first), "{first}");
    let second = modern(&client, "stub__visit", arguments.clone(), reply(&first, "accept")).await;
    assert!(second["result"]["resultType"] == "input_required" && !is_asked(&second), "{second}");
    let requests = second["result"]["inputRequests"].as_object().unwrap();
    let name = requests.keys().next().unwrap().clone();
    let back =
        json!({ "requestState": second["result"]["requestState"], "inputResponses": { name: { "action": "accept" } } });
    let other = modern(&client, "stub__visit", json!({ "message": "other" }), back.clone()).await;
    assert!(is_asked(&other), "the state of one call does not open another: {other}");
    let done = modern(&client, "stub__visit", arguments.clone(), back.clone()).await;
    assert_eq!(done["result"]["resultType"], "complete", "{done}");
    let replayed = modern(&client, "stub__visit", arguments, back).await;
    assert!(is_asked(&replayed), "a state is good once: {replayed}");
}

#[tokio::test]
async fn conditions_say_which_calls_are_asked_about_and_what_denies_wins() {
    let rules = r#"
[[access.rules]]
name = "rest"

[[access.rules]]
name = "large"
tools = ["echo"]
approve = { by = "caller", when = "args.amount > 100", expires = "1s" }

[[access.rules]]
name = "never"
effect = "deny"
tools = ["echo"]
when = "has(args.amount) && args.amount > 10000"
"#;
    let stub = Stub::start().await;
    let gateway = Gateway::start(&(rules.to_owned() + &stub.config("stub"))).await;
    gateway.healthy(&["stub"]).await;
    let client = Client::modern(&gateway, "/mcp");
    let call = |arguments: Value, more: Value| modern(&client, "stub__echo", arguments, more);
    let small = call(json!({ "message": "x", "amount": 1 }), json!({})).await;
    assert_eq!(text(&small["result"]), "x");
    assert!(is_asked(&call(json!({ "message": "x", "amount": 101 }), json!({})).await));
    // What cannot be evaluated is asked about.
    assert!(is_asked(&call(json!({ "message": "x" }), json!({})).await));
    let denied = call(json!({ "message": "x", "amount": 10_001 }), json!({})).await;
    assert!(text(&denied["result"]).contains("rule `never`"), "{denied}");

    // A request expires, and then what answers it is nothing.
    let arguments = json!({ "message": "late", "amount": 500 });
    let first = call(arguments.clone(), json!({})).await;
    let state = first["result"]["requestState"].clone();
    while call(arguments.clone(), json!({})).await["result"]["requestState"] == state {}
    assert!(is_asked(&call(arguments, reply(&first, "accept")).await));
    // A client without forms is told where.
    let plain = Client::legacy(&gateway, "/mcp").await;
    let told = plain.call("stub__echo", json!({ "message": "x", "amount": 500 })).await;
    assert!(text(&told).contains(&gateway.url("/connect")) && text(&told).contains("rule `large`"), "{told}");
}

#[tokio::test]
async fn nobody_has_more_requests_than_their_share() {
    let (gateway, stub) = local(OWN, Offer::default()).await;
    let client = Client::modern(&gateway, "/mcp");
    for number in 0..20 {
        assert!(is_asked(&modern(&client, "stub__echo", json!({ "message": number.to_string() }), json!({})).await));
    }
    let full = modern(&client, "stub__echo", json!({ "message": "one more" }), json!({})).await;
    assert!(full["result"]["isError"] == true && text(&full["result"]).contains("20 calls"), "{full}");
    assert!(
        is_asked(&modern(&client, "stub__echo", json!({ "message": "3" }), json!({})).await),
        "it is there already"
    );
    assert_eq!(calls(&stub), 0);
}

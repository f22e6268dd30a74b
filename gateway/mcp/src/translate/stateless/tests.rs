#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn declared(capabilities: &str) -> Declared {
    let params =
        format!(r#"{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"clientInfo":{{"name":"c"}}}}"#);
    Declared::of(&message(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#)))
}

#[test]
fn a_request_says_what_the_client_has_declared_and_no_more() {
    let client = declared(
        r#"{"elicitation":{},"roots":{"listChanged":true},"tasks":{},"extensions":{"io.modelcontextprotocol/tasks":{},"x/y":{"z":1}}}"#,
    );
    let call = message(
        r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","arguments":{"n":1.50e0},"_meta":{"progressToken":"p"}}}"#,
    );
    let meta = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"roots":{},"extensions":{"x/y":{"z":1}}}"#;
    assert_eq!(
        text(&client.request(&call, 7, Some("error"))),
        format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"t","arguments":{{"n":1.50e0}},"_meta":{{"progressToken":"p",{meta},"io.modelcontextprotocol/logLevel":"error"}}}}}}"#
        )
    );
    let bare = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    let request = message(text(&client.request(&bare, 8, None)));
    assert_eq!(text(request.params().unwrap()), format!(r#"{{"_meta":{{{meta}}}}}"#));
    let nobody = declared("{}").request(&bare, 1, None);
    assert!(text(&nobody).contains(r#"clientCapabilities":{}"#));
}

#[test]
fn a_server_is_introduced_in_the_words_of_the_client() {
    let discovered = br#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{},"io.modelcontextprotocol/ui":{}}},"instructions":"I","ttlMs":1,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}}}"#;
    assert_eq!(
        text(&initialized(discovered, "2025-06-18", "up")),
        r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/ui":{}}},"serverInfo":{"name":"s","version":"2"},"instructions":"I"}"#
    );
    assert_eq!(
        text(&initialized(b"{}", "2025-11-25", "up")),
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"up","version":"0"}}"#
    );
}

#[test]
fn an_answer_loses_what_only_modern_clients_know() {
    let answer = message(
        r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","tools":[{"name":"a","x":1e400}],"ttlMs":5,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{},"k":1}}}"#,
    );
    assert_eq!(
        text(&legacy_answer(&answer, b"\"c\"", method::TOOLS_LIST, true)),
        r#"{"jsonrpc":"2.0","id":"c","result":{"tools":[{"name":"a","x":1e400}],"_meta":{"k":1}}}"#
    );
    let bare = message(
        r#"{"jsonrpc":"2.0","id":7,"result":{"_meta":{"io.modelcontextprotocol/serverInfo":{}},"resultType":"complete","ttlMs":2}}"#,
    );
    assert_eq!(
        text(&legacy_answer(&bare, b"1", method::TOOLS_CALL, true)),
        r#"{"jsonrpc":"2.0","id":1,"result":{"ttlMs":2}}"#
    );
    let bad = r#"{"name":"b","inputSchema":{"x-mcp-header":"A"}}"#;
    let list = message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{bad},{{"name":"a"}}]}}}}"#));
    let shown = |over_http| text(&legacy_answer(&list, b"1", method::TOOLS_LIST, over_http)).contains(bad);
    assert_eq!((shown(true), shown(false)), (false, true));
    let other = message(r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"task"}}"#);
    assert!(text(&legacy_answer(&other, b"1", method::TOOLS_CALL, true)).contains(r#""isError":true"#));
}

#[test]
fn errors_have_the_codes_of_their_era() {
    let of = |code: i64, method: &str, rest: &str| {
        let error = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":{code},"message":"m"{rest}}}}}"#);
        message(text(&legacy_answer(&message(&error), b"1", method, true)))
    };
    assert_eq!(of(-32602, "resources/read", r#","data":{"uri":"x:y"}"#).error_code(), Some(-32002));
    assert_eq!(of(-32602, "resources/read", "").error_code(), Some(-32602));
    assert_eq!(of(-32602, "tools/call", r#","data":{"uri":"x:y"}"#).error_code(), Some(-32602));
    assert_eq!(of(-32055, "tools/list", "").error_code(), Some(-32603));
    assert_eq!(of(-32601, "x", "").error_code(), Some(-32601));
    let needed = r#","data":{"requiredCapabilities":{"sampling":{}}}"#;
    assert!(text(of(-32021, "tools/call", needed).bytes()).contains("a client that declares `sampling`"));
    assert_eq!(of(-32021, "prompts/get", needed).error_code(), Some(-32600));
}

#[test]
fn questions_and_answers_cross_as_they_are() {
    let answer = message(
        r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"m","n":1.0}},"b":{"method":"roots/list"}},"requestState":"s\u0041"}}"#,
    );
    let asks = asked(&answer).unwrap().unwrap();
    assert_eq!(asks.state.as_deref(), Some(&br#""s\u0041""#[..]));
    let names: Vec<_> = asks.questions.iter().map(|(name, question)| (name.as_str(), question.method())).collect();
    assert_eq!(names, [("a", "elicitation/create"), ("b", "roots/list")]);
    assert_eq!(
        text(&question(&asks.questions[0].1, b"3", "e")),
        r#"{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"message":"m","n":1.0}}"#
    );
    let form = declared(r#"{"elicitation":{}}"#).asks();
    assert_eq!(check(form, &asks.questions[0].1), Ok(()));
    assert_eq!(check(form, &asks.questions[1].1), Err(Unaskable::Undeclared("roots/list".into())));

    let call = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{}}}"#);
    let given = [("a".to_owned(), Bytes::from_static(br#"{"action":"decline"}"#))];
    assert_eq!(
        text(&again(&call, 2, Some(&responses(&given)), asks.state.as_deref())),
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t","_meta":{},"inputResponses":{"a":{"action":"decline"}},"requestState":"s\u0041"}}"#
    );
    let plain = message(r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete"}}"#);
    assert!(asked(&plain).is_none());
    let nothing = message(r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required"}}"#);
    assert_eq!(asked(&nothing).unwrap().unwrap_err(), Unaskable::Unreadable);
}

#[test]
fn an_address_to_visit_is_named_or_shown() {
    let visit = message(
        r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"mode":"url","message":"Sign in","url":"https://x.test/"}}"#,
    );
    assert!(text(&question(&visit, b"1", "e7")).contains(r#""elicitationId":"e7""#));
    let why = check(declared(r#"{"elicitation":{}}"#).asks(), &visit).unwrap_err();
    assert_eq!(why.to_string(), "Sign in\nhttps://x.test/");
    assert_eq!(check(declared(r#"{"elicitation":{"url":{}}}"#).asks(), &visit), Ok(()));
}

#[test]
fn a_client_that_fails_to_answer_is_taken_at_its_word() {
    let error = message(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no user"}}"#);
    let form = message(r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#);
    assert_eq!(text(&response(&form, &error).unwrap()), r#"{"action":"cancel"}"#);
    let roots = message(r#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#);
    assert_eq!(response(&roots, &error).unwrap_err(), "the client did not answer `roots/list`: no user");
}

#[test]
fn changes_come_without_what_brought_them() {
    let client = declared("{}");
    let request = message(text(&listen(&client, 4, true, &["x:a".to_owned()])));
    let wish = json::get(request.params().unwrap(), &["notifications"]).unwrap();
    assert_eq!(
        text(wish),
        r#"{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["x:a"]}"#
    );
    let granted = message(
        r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":4},"notifications":{"resourceSubscriptions":["x:a"]}}}"#,
    );
    assert_eq!(acknowledged(&granted).unwrap(), ["x:a"]);
    let change = message(
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:a","_meta":{"io.modelcontextprotocol/subscriptionId":4}}}"#,
    );
    assert_eq!(acknowledged(&change), None);
    assert_eq!(
        text(&unsubscribed(&change)),
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:a"}}"#
    );
}

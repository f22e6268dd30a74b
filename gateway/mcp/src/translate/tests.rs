use super::*;

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","arguments":{"n":1.50e0},"requestState":"s","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","x/y":1,"progressToken":"p","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{"tools":{}},"extensions":{"z":{}}},"io.modelcontextprotocol/logLevel":"info"},"inputResponses":{}}}"#;

#[test]
fn a_request_loses_what_only_modern_servers_know() {
    assert_eq!(
        text(&legacy_request(&message(CALL), 7)),
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","arguments":{"n":1.50e0},"_meta":{"x/y":1,"progressToken":7}}}"#
    );
    let bare = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    assert_eq!(text(&legacy_request(&bare, 9)), r#"{"jsonrpc":"2.0","id":9,"method":"tools/list"}"#);
}

#[test]
fn a_session_declares_only_what_the_client_declared_and_weir_can_serve() {
    let info = r#"{"name":"weir","version":"1"}"#;
    let asking = Asks::of_request(&message(CALL));
    assert_eq!(
        text(&asking.initialize(info)),
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{"form":{}},"sampling":{"tools":{}}},"clientInfo":{"name":"weir","version":"1"}}}"#
    );
    let silent = Asks::of_request(&message(r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#));
    assert!(text(&silent.initialize(info)).contains(r#""capabilities":{},"clientInfo":{"name":"weir""#));
}

#[test]
fn what_a_client_calls_itself_makes_no_difference() {
    let other = CALL.replace(r#"{"name":"c","version":"1"}"#, r#"{"name":"d","version":"2"}"#);
    assert_eq!(Asks::of_request(&message(CALL)), Asks::of_request(&message(&other)));
}

#[test]
fn only_declared_questions_are_allowed() {
    let asks = Asks::of_request(&message(CALL));
    let question = |method: &str, params: &str| {
        message(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#))
    };
    assert!(asks.allows(&question("elicitation/create", "{}")));
    assert!(asks.allows(&question("elicitation/create", r#"{"mode":"form"}"#)));
    assert!(!asks.allows(&question("elicitation/create", r#"{"mode":"url"}"#)));
    assert!(asks.allows(&question("sampling/createMessage", "{}")));
    assert!(!asks.allows(&question("roots/list", "{}")));
    assert!(!asks.allows(&question("ping", "{}")));
}

#[test]
fn a_result_says_what_it_is() {
    let answer = message(r#"{"jsonrpc":"2.0","id":7,"result":{"content":[1.0],"_meta":{"k":1}}}"#);
    assert_eq!(
        text(&modern_answer(&answer, b"\"a\"", "tools/call", Some(br#"{"name":"s"}"#))),
        r#"{"jsonrpc":"2.0","id":"a","result":{"content":[1.0],"_meta":{"k":1,"io.modelcontextprotocol/serverInfo":{"name":"s"}},"resultType":"complete"}}"#
    );
    let empty = message(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
    assert_eq!(
        text(&modern_answer(&empty, b"1", "tools/list", None)),
        r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private"}}"#
    );
}

#[test]
fn error_codes_move_to_where_the_modern_era_has_them() {
    let error = |code: i64| message(&format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":{code},"message":"m"}}}}"#));
    let code = |code| {
        let bytes = modern_answer(&error(code), b"\"a\"", "resources/read", None);
        let message = Message::parse(bytes).unwrap();
        (message.id().map(<[u8]>::to_vec), message.error_code().unwrap())
    };
    let cases = [(-32002, -32602), (-32601, -32601), (-32000, -32000), (-32050, -32603), (-32042, -32603), (5, 5)];
    for (legacy, modern) in cases {
        assert_eq!(code(legacy), (Some(b"\"a\"".to_vec()), modern), "{legacy}");
    }
    // What the modern era means by it is passed on: the client can do something about it.
    let lacks = |data: &str| {
        let error = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":-32021,"message":"m","data":{data}}}}}"#);
        Message::parse(modern_answer(&message(&error), b"1", "tools/call", None)).unwrap().error_code().unwrap()
    };
    assert_eq!(lacks(r#"{"requiredCapabilities":{"sampling":{}}}"#), -32021);
    assert_eq!([lacks("{}"), lacks(r#"{"requiredCapabilities":1}"#), code(-32021).1], [-32603; 3]);
    let nameless = message(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}"#);
    let named = Message::parse(modern_answer(&nameless, b"3", "x", None)).unwrap();
    assert_eq!(named.id(), Some(&b"3"[..]));
}

#[test]
fn addresses_to_visit_become_a_tool_error_that_names_them() {
    let error = message(
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32042,"message":"Sign in","data":{"elicitations":[{"mode":"url","message":"GitHub","url":"https://x.test/a","elicitationId":"e"}]}}}"#,
    );
    let bytes = modern_answer(&error, b"1", "tools/call", Some(b"{}"));
    assert!(Message::parse(bytes.clone()).is_ok());
    assert!(
        text(&bytes)
            .contains(r#""isError":true,"content":[{"type":"text","text":"Sign in\nGitHub https://x.test/a"}]"#)
    );
}

#[test]
fn discovery_is_what_initialize_said() {
    let said = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{}},"serverInfo":{"name":"s","version":"1"},"instructions":"I"}"#;
    assert_eq!(
        text(&discovered(said)),
        r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"instructions":"I","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}"#
    );
    assert!(json::scan(&discovered(b"{}")).is_ok());
}

#[test]
fn log_messages_are_filtered_by_level() {
    let log = |level: &str| {
        message(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}","data":1}}}}"#
        ))
    };
    assert!(is_logged("info", &log("info")));
    assert!(is_logged("info", &log("error")));
    assert!(!is_logged("warning", &log("info")));
    assert!(is_logged("emergency", &log("odd")));
    assert!(!is_logged("odd", &log("emergency")));
}

#[test]
fn a_notification_is_marked_as_part_of_a_subscription() {
    let changed = message(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    assert_eq!(
        text(&subscribed(&changed, b"\"s\"")),
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"}}}"#
    );
}

#[test]
fn questions_become_an_answer_that_asks_first() {
    let roots = message(r#"{"jsonrpc":"2.0","id":4,"method":"roots/list"}"#);
    let form = message(
        r#"{"jsonrpc":"2.0","id":5,"method":"elicitation/create","params":{"message":"m","elicitationId":"e","n":1.0,"_meta":{"progressToken":1}}}"#,
    );
    assert_eq!(
        text(&input_required(b"1", &[("a".into(), &roots), ("b".into(), &form)], "s", Some(b"{}"))),
        r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},"b":{"method":"elicitation/create","params":{"message":"m","n":1.0}}},"requestState":"s","_meta":{"io.modelcontextprotocol/serverInfo":{}}}}"#
    );
    assert!(may_ask("tools/call") && !may_ask("tools/list"));
    assert_eq!(question_name(&roots).as_deref(), Some("client_roots"));
    assert_eq!(question_name(&form), None);
    let named = |fields: &str| {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":5,"method":"elicitation/create","params":{{"requestedSchema":{{"properties":{fields}}}}}}}"#
        );
        question_name(&message(&text))
    };
    assert_eq!(named(r#"{"name":{}}"#).as_deref(), Some("user_name"));
    assert_eq!((named(r#"{"a":{},"b":{}}"#), named(r#"{"a b":{}}"#), named("{}")), (None, None, None));
}

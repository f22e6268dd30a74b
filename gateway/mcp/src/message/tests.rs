use super::*;

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn refused(text: &str) -> ParseError {
    match InboundRequest::parse(Bytes::copy_from_slice(text.as_bytes())) {
        Err(error) => error,
        Ok(_) => panic!("accepted: {text}"),
    }
}

fn edited(text: &str, edit: impl FnOnce(Edit<'_>) -> Edit<'_>) -> String {
    let out = edit(message(text).edit()).finish();
    message(std::str::from_utf8(&out).unwrap());
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn kinds_are_told_apart() {
    for (text, kind, id, method) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, Kind::Request, Some("1"), "ping"),
        (r#" {"method":"m","params":null,"id":"a","jsonrpc":"2\u002e0"} "#, Kind::Request, Some("\"a\""), "m"),
        (
            r#"{"jsonrpc":"2.0","id":-1152921504606846977,"method":"p\u0069ng"}"#,
            Kind::Request,
            Some("-1152921504606846977"),
            "ping",
        ),
        (r#"{"jsonrpc":"2.0","method":"notifications/x","params":{}}"#, Kind::Notification, None, "notifications/x"),
        (r#"{"jsonrpc":"2.0","id":0,"result":{}}"#, Kind::Response, Some("0"), ""),
        (r#"{"jsonrpc":"2.0","id":0,"result":null,"extra":[1]}"#, Kind::Response, Some("0"), ""),
        (r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600}}"#, Kind::Error, Some("\"server-error\""), ""),
        (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, Kind::Error, None, ""),
        (r#"{"jsonrpc":"2.0","error":{"code":1e3,"message":""}}"#, Kind::Error, None, ""),
    ] {
        let message = message(text);
        assert_eq!(message.kind(), kind, "{text}");
        assert_eq!(message.id(), id.map(str::as_bytes), "{text}");
        assert_eq!(message.method(), method, "{text}");
        assert_eq!(&message.bytes()[..], text.as_bytes());
    }
}

#[test]
fn what_is_no_message_is_refused() {
    for text in [
        "1",
        "null",
        "\"\"",
        "{}",
        "[]",
        "[1]",
        "[{}]",
        r#"{"jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#,
        r#"{"jsonrpc":2.0,"id":1,"method":"m"}"#,
        r#"{"id":1,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1.0,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1e2,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":[1],"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":"x"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{},"params":[]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","error":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"params":{}}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#,
        r#"{"jsonrpc":"2.0","id":{},"error":{}}"#,
    ] {
        let error = refused(text);
        assert!(matches!(error, ParseError::InvalidRequest(_)), "{text}: {error}");
        assert_eq!(error.code(), -32600);
    }
    let batch = Bytes::from_static(br#"[{"jsonrpc":"2.0","method":"m"}]"#);
    assert!(matches!(Message::parse(batch), Err(ParseError::InvalidRequest(_))));
}

#[test]
fn broken_json_is_the_graver_fault() {
    for text in ["", "{", "[", "[1,", r#"{"jsonrpc":"1.0""#, r#"{"jsonrpc":"2.0","id":1,"method":"m"} x"#, "[{]", "[]]"]
    {
        let error = refused(text);
        assert!(matches!(error, ParseError::Json { .. }), "{text}: {error}");
        assert_eq!(error.code(), -32700);
    }
    let latin1 = Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xe9\"}");
    assert_eq!(Message::parse(latin1).unwrap_err(), ParseError::Json { offset: 27, what: "not UTF-8" });
    let deep = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"a":{}}}}}"#, "[".repeat(2000));
    assert_eq!(refused(&deep), ParseError::TooDeep);
    assert_eq!(refused(&deep).code(), -32700);
}

#[test]
fn depth_counts_from_the_outside() {
    let body =
        |n: usize| format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"a":{}{}}}}}"#, "[".repeat(n), "]".repeat(n));
    message(&body(json::MAX_DEPTH - 2));
    assert_eq!(refused(&body(json::MAX_DEPTH - 1)), ParseError::TooDeep);
    InboundRequest::parse(format!("[{}]", body(json::MAX_DEPTH - 3)).into()).unwrap();
    assert_eq!(refused(&format!("[{}]", body(json::MAX_DEPTH - 2))), ParseError::TooDeep);
}

#[test]
fn batches_are_bounded_and_whole() {
    let batch = |n: usize| format!(" [{}] ", vec![r#" {"jsonrpc":"2.0","method":"m"} "#; n].join(","));
    for n in [1, 2, MAX_BATCH] {
        let InboundRequest::Batch(messages) = InboundRequest::parse(batch(n).into()).unwrap() else {
            panic!("not a batch")
        };
        assert_eq!(messages.len(), n);
        assert!(messages.iter().all(|m| &m.bytes()[..] == br#"{"jsonrpc":"2.0","method":"m"}"#));
    }
    assert!(matches!(refused(&batch(MAX_BATCH + 1)), ParseError::InvalidRequest(what) if what.contains("100")));
    assert!(matches!(refused("[]"), ParseError::InvalidRequest("the batch is empty")));
    refused(r#"[{"jsonrpc":"2.0","method":"m"},{"jsonrpc":"2.0"}]"#);

    let two = r#"[ {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a"}} ,{"jsonrpc":"2.0","id":8,"result":{}}]"#;
    let inbound = InboundRequest::parse(two.into()).unwrap();
    let [first, second] = inbound.messages() else { panic!("not two") };
    assert_eq!((first.id(), first.name().as_deref()), (Some(&b"7"[..]), Some("a")));
    assert_eq!((second.id(), second.result()), (Some(&b"8"[..]), Some(&b"{}"[..])));
    let out = first.edit().set(Field::Name, "\"b\"").finish();
    assert_eq!(&out[..], br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"b"}}"#);
}

#[test]
fn a_new_member_goes_to_the_end_whatever_stands_there() {
    for (before, after) in [
        (r#"{}"#, r#"{"t":1}"#),
        (r#"{ }"#, r#"{ "t":1}"#),
        ("{\"a\":{} \n}", "{\"a\":{},\"t\":1 \n}"),
        // The name is in a value.
        (r#"{"a":"t"}"#, r#"{"a":"t","t":1}"#),
        (r#"{"a":{"t":2}}"#, r#"{"a":{"t":2},"t":1}"#),
        // The name is there, however it is written.
        (r#"{"t":2,"a":3}"#, r#"{"t":1,"a":3}"#),
        (r#"{"\u0074":2}"#, r#"{"\u0074":1}"#),
        (r#"{"a":"\n"}"#, r#"{"a":"\n","t":1}"#),
    ] {
        let text = |meta| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"_meta":{meta}}}}}"#);
        assert_eq!(edited(&text(before), |edit| edit.put(Object::Meta, "t", "1")), text(after));
    }
}

#[test]
fn fields_are_found_by_their_place() {
    let m = message(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","name":"top","params":{"name":"a\u0062","uri":"u:","cursor":"",
        "taskId":"t","requestId":9,"progressToken":1,"arguments":{"name":"x","_meta":{"progressToken":2}},"requestState":"s",
        "inputResponses":{},"ref":{"type":"ref/prompt","name":"p","uri":"q"},"_meta":{"progressToken":1e400,"x/y":[1],
        "io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/subscriptionId":5,
        "io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"debug",
        "io.modelcontextprotocol/clientInfo":{"name":"c"}}}}"#,
    );
    assert_eq!(m.name().as_deref(), Some("ab"));
    assert_eq!(m.uri().as_deref(), Some("u:"));
    assert_eq!(m.cursor().as_deref(), Some(""));
    assert_eq!(m.task_id().as_deref(), Some("t"));
    assert_eq!(m.request_id(), Some(&b"9"[..]));
    assert_eq!(m.progress_token(), Some(&b"1e400"[..]));
    assert_eq!(m.reference(), Some(Reference::Prompt("p".into())));
    assert_eq!(m.claimed_version().as_deref(), Some("2026-07-28"));
    assert_eq!(m.meta("x/y"), Some(&b"[1]"[..]));
    assert_eq!(m.raw(Field::SubscriptionId), Some(&b"5"[..]));
    assert_eq!(m.raw(Field::ClientCapabilities), Some(&b"{}"[..]));
    assert_eq!(m.text(Field::LogLevel).as_deref(), Some("debug"));
    assert_eq!(m.raw(Field::ClientInfo), Some(&br#"{"name":"c"}"#[..]));
    assert_eq!(m.text(Field::RequestState).as_deref(), Some("s"));
    assert_eq!(m.raw(Field::InputResponses), Some(&b"{}"[..]));
    assert_eq!(m.raw(Field::Arguments), Some(&br#"{"name":"x","_meta":{"progressToken":2}}"#[..]));
    assert_eq!((m.raw(Field::ResultType), m.result(), m.error()), (None, None, None));

    let m = message(
        r#"{"jsonrpc":"2.0","id":1,"result":{"name":"n","resultType":"input_required","requestState":"s","nextCursor":"c",
        "_meta":{"io.modelcontextprotocol/subscriptionId":7}}}"#,
    );
    assert_eq!((m.name(), m.text(Field::ResultType).as_deref()), (None, Some("input_required")));
    assert_eq!(m.text(Field::NextCursor).as_deref(), Some("c"));
    assert_eq!(m.meta("io.modelcontextprotocol/subscriptionId"), Some(&b"7"[..]));

    let m = message(
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","_meta":{"progressToken":3}}}"#,
    );
    assert_eq!(m.progress_token(), Some(&b"\"t\""[..]));
    let m = message(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"a":1}}}"#);
    assert_eq!((m.error_code(), m.raw(Field::ErrorData)), (Some(-32042), Some(&br#"{"a":1}"#[..])));
    let m = message(
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"ref":{"type":"ref/resource","uri":"file:///{p}"}}}"#,
    );
    assert_eq!(m.reference(), Some(Reference::Resource("file:///{p}".into())));
    let m =
        message(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"ref":{"type":"ref/tool","name":"x"},"name":1}}"#);
    assert_eq!((m.reference(), m.name(), m.raw(Field::Name)), (None, None, Some(&b"1"[..])));
}

#[test]
fn of_equal_keys_below_the_message_the_last_one_counts() {
    let m = message(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"safe","na\u006de":"real"}}"#);
    assert_eq!(m.name().as_deref(), Some("real"));
    // Nothing of an object that is overruled may shine through.
    let m = message(
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1},"ref":{"type":"ref/prompt","name":"p"},"_meta":{},"ref":{"type":"ref/prompt"}}}"#,
    );
    assert_eq!((m.progress_token(), m.reference()), (None, None));
}

#[test]
fn a_message_that_readers_read_differently_is_refused() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"\u0069d":2}"#,
        r#"{"jsonrpc":"2.0","id":1,"ID":2,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"Result":{},"result":{}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/m","METHOD":"","ID":1,"Result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","\u006dethod":"b"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{},"params":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":1},"error":{"message":""}}"#,
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"result":{}}"#,
    ] {
        assert!(matches!(refused(text), ParseError::InvalidRequest(_)), "{text}");
    }
    message(r#"{"jsonrpc":"2.0","id":1,"identity":2,"result":{"id":1,"ID":2,"id":3}}"#);
    message(r#"{"jsonrpc":"2.0","id":1,"method":"vendor/m","params":{"Name":1,"uri":2,"uri":3}}"#);
}

#[test]
fn what_a_request_is_about_is_there_once() {
    for (method, params) in [
        ("tools/call", r#""name":"safe","name":"real""#),
        ("tools/call", r#""name":"safe","n\u0061me":"real""#),
        ("tools/call", r#""name":"safe","Name":"real""#),
        (r"tools/c\u0061ll", r#""NAME":"real""#),
        ("tools/call", r#""name":"a","arguments":{},"argument\u017f":{"x":1}"#),
        ("tasks/get", r#""tas\u212aId":"a","taskId":"b""#),
        ("resources/read", r#""uri":"a","URI":"b""#),
        ("resources/subscribe", r#""URI":"b""#),
        ("completion/complete", r#""ref":{"type":"ref/prompt","name":"a"},"ref":{"type":"ref/prompt","name":"b"}"#),
        ("completion/complete", r#""ref":{"type":"ref/prompt","name":"a","Name":"b"}"#),
        ("completion/complete", r#""Ref":{"type":"ref/prompt","name":"a"}"#),
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","params":{{{params}}},"id":1,"method":"{method}"}}"#);
        assert!(matches!(refused(&text), ParseError::InvalidRequest(_)), "{text}");
    }
    message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","type":1,"arguments":{"Name":1}}}"#);
}

#[test]
fn an_answer_is_one_to_the_request_that_it_names() {
    let is = |text: &str, id: &str| message(text).answer_to(id.as_bytes()).map(|m| m.id().unwrap().to_vec());
    for (text, id) in [
        (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, "7"),
        (r#"{"jsonrpc":"2.0","id":"a\u0062","result":{}}"#, "\"ab\""),
        (r#"{"jsonrpc":"2.0","id":"7","error":{"code":1}}"#, "\"7\""),
    ] {
        assert!(is(text, id).is_some(), "{text}");
    }
    for (text, id) in [
        (r#"{"jsonrpc":"2.0","id":8,"result":{}}"#, "7"),
        (r#"{"jsonrpc":"2.0","id":"7","result":{}}"#, "7"),
        (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, "\"7\""),
        (r#"{"jsonrpc":"2.0","id":-0,"result":{}}"#, "0"),
        (r#"{"jsonrpc":"2.0","id":"\ud800","result":{}}"#, "\"\\udc00\""),
        (r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#, "7"),
        (r#"{"jsonrpc":"2.0","method":"ping"}"#, "7"),
    ] {
        assert_eq!(is(text, id), None, "{text}");
    }
    for text in [r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#, r#"{"jsonrpc":"2.0","error":{"code":1}}"#] {
        assert_eq!(is(text, "7"), Some(b"7".to_vec()), "it could not read the request");
    }
}

#[test]
fn nothing_of_the_content_is_printed() {
    let m = message(r#"{"jsonrpc":"2.0","id":"secret","method":"tools/call","params":{"name":"secret"}}"#);
    assert_eq!(format!("{m:?}"), r#"Message { kind: Request, method: "tools/call", .. }"#);
    assert!(!format!("{}", refused(r#"{"jsonrpc":"2.0","secret":1}"#)).contains("secret"));
}

#[test]
fn one_line_keeps_the_meaning() {
    let m = message("{\"jsonrpc\":\"2.0\",\r\n\t\"method\":\"a\\nb\"}\n");
    assert_eq!(&m.one_line()[..], b"{\"jsonrpc\":\"2.0\",  \t\"method\":\"a\\nb\"} ");
    let m = message(r#"{"jsonrpc":"2.0","method":"m"}"#);
    assert_eq!(m.one_line().as_ptr(), m.bytes().as_ptr());
}

#[test]
fn fields_are_set_where_they_are() {
    let text = r#"{"x":1e400 , "jsonrpc":"2.0","id": 1 ,"method":"vendor/call","params":{"name":"a" ,"arguments":{"k":1.0},"name": "b"}}"#;
    assert_eq!(
        edited(text, |e| e.set(Field::Name, "\"up__b\"").set(Field::Id, "99").set(Field::Uri, "\"no\"")),
        r#"{"x":1e400 , "jsonrpc":"2.0","id": 99 ,"method":"vendor/call","params":{"name":"a" ,"arguments":{"k":1.0},"name": "up__b"}}"#
    );
    assert_eq!(edited(text, |e| e.set(Field::Id, "2").set(Field::Id, "3")), text.replace("\"id\": 1", "\"id\": 3"));
    // The enclosing change wins, in whichever order they come.
    let whole = text.replace(r#"{"name":"a" ,"arguments":{"k":1.0},"name": "b"}"#, "{}");
    assert_eq!(
        edited(text, |e| e.set(Field::Name, "\"c\"").set(Field::Params, "{}").set(Field::Arguments, "[]")),
        whole
    );
    let m = message(text);
    assert_eq!(m.edit().set(Field::Uri, "\"no\"").remove(Object::Meta, "x").finish().as_ptr(), m.bytes().as_ptr());
}

#[test]
fn members_are_put_and_removed() {
    let put = |text: &str, object, key: &str, raw: &str| edited(text, |e| e.put(object, key, raw));
    let bare = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
    assert_eq!(put(bare, Object::Body, "a", "1"), r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}"#);
    assert_eq!(
        put(bare, Object::Meta, "a\"", "1"),
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"a\"":1}}}"#
    );
    let null = r#"{"jsonrpc":"2.0","id":1,"params": null,"method":"m"}"#;
    assert_eq!(
        put(null, Object::Meta, "a", "1"),
        r#"{"jsonrpc":"2.0","id":1,"params": {"_meta":{"a":1}},"method":"m"}"#
    );
    let empty = r#"{"jsonrpc":"2.0","id":1,"result":{ "_meta":{ } }}"#;
    assert_eq!(
        edited(empty, |e| e.put(Object::Meta, "a", "1").put(Object::Meta, "b", "2").put(
            Object::Body,
            "resultType",
            "\"complete\""
        )),
        r#"{"jsonrpc":"2.0","id":1,"result":{ "_meta":{ "a":1,"b":2},"resultType":"complete" }}"#
    );
    let full = r#"{"jsonrpc":"2.0","id":1,"result":{"a":1 , "b":2,"\u0061":3, "c":4}}"#;
    let body = |edit: fn(Edit<'_>) -> Edit<'_>| {
        let out = edited(full, edit);
        out.strip_prefix(r#"{"jsonrpc":"2.0","id":1,"result":"#).unwrap().strip_suffix('}').unwrap().to_owned()
    };
    assert_eq!(body(|e| e.put(Object::Body, "a", "9")), r#"{"a":1 , "b":2,"\u0061":9, "c":4}"#);
    assert_eq!(body(|e| e.remove(Object::Body, "a")), r#"{"b":2, "c":4}"#);
    assert_eq!(body(|e| e.remove(Object::Body, "c").remove(Object::Body, "b")), r#"{"a":1,"\u0061":3}"#);
    assert_eq!(body(|e| ["a", "b", "c"].iter().fold(e, |e, k| e.remove(Object::Body, k))), "{}");
    let all = |e: Edit<'_>| -> Vec<u8> {
        ["a", "b", "c"].iter().fold(e, |e, k| e.remove(Object::Body, k)).put(Object::Body, "d", "0").finish().to_vec()
    };
    assert!(all(message(full).edit()).ends_with(br#""result":{"d":0}}"#));
    assert_eq!(
        body(|e| e.remove(Object::Body, "b").put(Object::Body, "b", "5")),
        r#"{"a":1 , "b":5,"\u0061":3, "c":4}"#
    );
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#;
    assert_eq!(edited(error, |e| e.put(Object::Meta, "a", "1")), error);
    assert_eq!(put(error, Object::Body, "data", "{}"), r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"data":{}}}"#);
    assert_eq!(put(error, Object::Message, "id", "2"), r#"{"jsonrpc":"2.0","id":2,"error":{"code":1}}"#);
}

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn out(text: &str, asked: &PublicNames) -> String {
    let message = message(text);
    let bytes = outward(&message, "a", asked).unwrap_or_else(|| message.bytes().clone());
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn inw(text: &str) -> String {
    let message = message(text);
    String::from_utf8(inward(&message, "a").unwrap_or_else(|| message.bytes().clone()).to_vec()).unwrap()
}

#[test]
fn an_id_can_be_taken_apart_again() {
    for native in ["1", "a__b", "__", ""] {
        assert_eq!(split(&id("files", native)), Some(("files", native)));
    }
    assert_eq!(split("plain"), None);
    assert_eq!(split("__x"), None);
}

#[test]
fn tasks_are_named_wherever_they_are_mentioned() {
    let result = |body: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{body}}}"#);
    for (asked, body, named) in [
        (PublicNames::Call, r#"{"task":{"taskId":"t","ttl":1e400}}"#, r#"{"task":{"taskId":"a__t","ttl":1e400}}"#),
        (PublicNames::Call, r#"{"resultType":"task","taskId":"t"}"#, r#"{"resultType":"task","taskId":"a__t"}"#),
        (PublicNames::Call, r#"{"taskId":"t","content":[]}"#, r#"{"taskId":"t","content":[]}"#),
        (PublicNames::Task, r#"{"taskId":"t","status":"working"}"#, r#"{"taskId":"a__t","status":"working"}"#),
        (
            PublicNames::Tasks,
            r#"{"tasks":[{"taskId":"t"},{"taskId":"u"}]}"#,
            r#"{"tasks":[{"taskId":"a__t"},{"taskId":"a__u"}]}"#,
        ),
        (PublicNames::Plain, r#"{"taskId":"t"}"#, r#"{"taskId":"t"}"#),
        (
            PublicNames::Plain,
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#,
            r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"a__t"}}}"#,
        ),
        (PublicNames::Task, r#"{"taskId":7}"#, r#"{"taskId":7}"#),
    ] {
        assert_eq!(out(&result(body), &asked), result(named));
    }
    let status =
        r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"t","status":"working"}}"#;
    assert_eq!(out(status, &PublicNames::Plain), status.replace("\"t\"", "\"a__t\""));
}

#[test]
fn a_client_mentions_tasks_by_the_same_names() {
    let get = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{{"taskId":"{id}"}}}}"#);
    assert_eq!(inw(&get("a__t")), get("t"));
    assert_eq!(inw(&get("b__t")), get("b__t"));
    assert_eq!(inw(&get("t")), get("t"));
    let answer = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"_meta":{{"io.modelcontextprotocol/related-task":{{"taskId":"{id}"}}}}}}}}"#
        )
    };
    assert_eq!(inw(&answer("a__t")), answer("t"));
    assert_eq!(inw(&answer("the-clients-own")), answer("the-clients-own"));
}

#[test]
fn a_log_message_says_who_speaks() {
    let log = |params: &str| format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{params}}}"#);
    assert_eq!(
        out(&log(r#"{"level":"info","data":1}"#), &PublicNames::Plain),
        log(r#"{"level":"info","data":1,"logger":"a"}"#)
    );
    assert_eq!(out(&log(r#"{"logger":"db","data":1}"#), &PublicNames::Plain), log(r#"{"logger":"a/db","data":1}"#));
}

#[test]
fn what_was_read_keeps_the_address_it_was_asked_by() {
    let asked = PublicNames::Read { native: "ui://x".into(), public: "ui://a__x".into() };
    let read = r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"ui://x","text":"1"},{"uri":"ui://y"}]}}"#;
    assert_eq!(out(read, &asked), read.replace("ui://x", "ui://a__x"));
}

#[test]
fn a_tool_names_its_interface_in_either_place() {
    assert_eq!(interface(br#"{"_meta":{"ui":{"resourceUri":"ui://x"}}}"#), [br#""ui://x""#]);
    assert_eq!(interface(br#"{"_meta":{"ui/resourceUri":"ui://x"}}"#), [br#""ui://x""#]);
    assert!(interface(br#"{"name":"x"}"#).is_empty());
}

//! Many requests on one pipe: what comes back reaches the one who asked, under the ids it knows.

use super::super::multiplex::{MAX_WAITING, overflow};
use super::*;

fn say(id: Value, token: Value, lines: &[&str]) -> Message {
    call(id, "say", &json!({"lines": lines, "_meta": {"progressToken": token}}))
}

/// What the process was answered to its request `id`.
async fn heard(process: &Process, id: &str) -> Value {
    let lines = result(&mut ask(process, "heard", &json!({})).await).await.unwrap();
    let lines = lines.as_array().unwrap().iter().map(|line| serde_json::from_str(line.as_str().unwrap()).unwrap());
    lines.into_iter().find(|line: &Value| line["id"] == id).unwrap()
}

#[tokio::test]
async fn clients_with_the_same_ids_and_tokens_do_not_meet() {
    let process = start(&peer(&[])).await;
    let mut clients = Vec::new();
    for n in 0..40 {
        let progress = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":TOKEN,"progress":{n}}}}}"#
        );
        let answer = format!(r#"{{"jsonrpc":"2.0","id":ID,"result":{n}}}"#);
        let request = say(json!("same"), json!("token"), &[&progress, &answer]);
        clients.push(process.request(&request, OnDrop::Cancel, Whose::Client).await.unwrap());
    }
    for (n, exchange) in clients.iter_mut().enumerate().rev() {
        let messages = all(exchange).await.unwrap();
        assert_eq!(messages[0]["params"], json!({"progressToken": "token", "progress": n}));
        assert_eq!(messages[1], json!({"jsonrpc": "2.0", "id": "same", "result": n}));
        assert_eq!(next(exchange).await, Ok(None));
    }
    stop(&process).await;
}

#[tokio::test]
async fn answers_may_come_in_any_order_and_errors_are_answers() {
    let process = start(&peer(&[])).await;
    let silent = say(json!(7), json!(7), &[]);
    let mut first = process.request(&silent, OnDrop::Cancel, Whose::Client).await.unwrap();
    let key = first.key().0;
    let late = format!(r#"{{"jsonrpc":"2.0","id":{key},"error":{{"code":-32000,"message":"no"}}}}"#);
    let unknown = r#"{"jsonrpc":"2.0","id":999999,"result":0}"#;
    let quoted = r#"{"jsonrpc":"2.0","id":"ID","result":2}"#;
    let mut second = process
        .request(&say(json!(8), json!(8), &[unknown, quoted, &late]), OnDrop::Cancel, Whose::Client)
        .await
        .unwrap();
    assert_eq!(result(&mut second).await, Ok(json!(2)));
    assert_eq!(next(&mut first).await.unwrap().unwrap()["error"]["code"], -32000);
    stop(&process).await;
}

#[tokio::test]
async fn an_error_without_id_answers_the_only_request() {
    let process = start(&peer(&[])).await;
    for id in [r#""id":null,"#, ""] {
        let line = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32700,"message":"what?"}}}}"#);
        let mut alone = ask(&process, "say", &json!({"lines": [line]})).await;
        let answer = next(&mut alone).await.unwrap().unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32700)));

        let waiting = ask(&process, "say", &json!({"lines": []})).await;
        let both = [&line, r#"{"jsonrpc":"2.0","id":ID,"result":"mine"}"#];
        let mut second = ask(&process, "say", &json!({"lines": both})).await;
        assert_eq!(result(&mut second).await, Ok(json!("mine")));
        drop(waiting);
    }
    stop(&process).await;
}

#[tokio::test]
async fn a_request_without_token_gets_none_and_progress_for_it_is_dropped() {
    let process = start(&peer(&[])).await;
    let lines = [
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":ID,"progress":1}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"result":0}"#,
    ];
    let mut exchange = ask(&process, "say", &json!({"lines": lines})).await;
    assert_eq!(all(&mut exchange).await.unwrap().len(), 1);
    stop(&process).await;
}

#[tokio::test]
async fn related_messages_reach_the_latest_request_and_changes_reach_nobody_in_particular() {
    let process = start(&peer(&[])).await;
    let mut unsolicited = unasked(&process).unwrap();
    assert!(unasked(&process).is_none());
    let mut listening = process
        .request(&call(json!("ears"), "subscriptions/listen", &json!({})), OnDrop::Cancel, Whose::Client)
        .await
        .unwrap();
    let subscription = |method: &str| {
        let key = listening.key().0;
        json!({"jsonrpc": "2.0", "method": method,
               "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": key}}})
        .to_string()
    };
    let lines = [
        r#"{"jsonrpc":"2.0","id":5,"method":"elicitation/create","params":{}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#,
        &subscription("notifications/tools/list_changed"),
        r#"{"jsonrpc":"2.0","id":ID,"result":0}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"stray"}}"#,
    ];
    let mut calling = process.request(&say(json!(1), json!(1), &lines), OnDrop::Cancel, Whose::Client).await.unwrap();

    let messages = all(&mut calling).await.unwrap();
    assert_eq!(messages[0]["id"], 5);
    assert_eq!(messages[1]["method"], "notifications/message");
    assert_eq!(messages[2]["result"], 0);
    let heard = next(&mut listening).await.unwrap().unwrap();
    assert_eq!(heard["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "ears");
    for method in ["notifications/tools/list_changed", "notifications/message"] {
        let stray = timeout(PATIENCE, unsolicited.next()).await.unwrap().unwrap();
        assert_eq!(stray.method(), method);
    }
    drop(unsolicited);
    assert!(unasked(&process).is_some());
    stop(&process).await;
}

/// A question and a log message that name no request, and the answer to the request that caused them.
const UNNAMED: [&str; 3] = [
    r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#,
    r#"{"jsonrpc":"2.0","id":ID,"result":0}"#,
];

#[tokio::test]
async fn of_many_clients_none_hears_what_may_be_another_ones() {
    let process = start(&peer(&[])).await;
    process.stream().multiplex().serve_many();
    let tool = |lines: &[&str]| call(json!(1), "tools/call", &json!({"lines": lines}));
    let alone = all(&mut process.request(&tool(&UNNAMED), OnDrop::Cancel, Whose::Client).await.unwrap()).await.unwrap();
    assert_eq!(alone.len(), 3);

    let mut first = process.request(&tool(&[]), OnDrop::Cancel, Whose::Client).await.unwrap();
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":1}}"#, first.key().0);
    let lines: Vec<&str> = UNNAMED.into_iter().chain([answer.as_str()]).collect();
    let mut second = process.request(&tool(&lines), OnDrop::Cancel, Whose::Client).await.unwrap();
    assert_eq!(all(&mut second).await.unwrap().len(), 1);
    assert_eq!(all(&mut first).await.unwrap().len(), 1);
    let refused = heard(&process, "q").await;
    assert_eq!(refused["error"]["code"], -32601);
    stop(&process).await;
}

#[tokio::test]
async fn requests_of_weir_are_asked_nothing() {
    let process = start(&peer(&[])).await;
    let mut client = process.request(&say(json!(1), json!(1), &[]), OnDrop::Cancel, Whose::Client).await.unwrap();
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":1}}"#, client.key().0);
    let lines: Vec<&str> = UNNAMED.into_iter().chain([answer.as_str()]).collect();
    let mut own = process.request(&say(json!(2), json!(2), &lines), OnDrop::Cancel, Whose::Weir).await.unwrap();
    assert_eq!(all(&mut own).await.unwrap().len(), 1);
    assert_eq!(all(&mut client).await.unwrap().len(), 3);

    process.stream().multiplex().serve_unasked();
    let mut own = process.request(&say(json!(3), json!(3), &UNNAMED), OnDrop::Cancel, Whose::Weir).await.unwrap();
    assert_eq!(all(&mut own).await.unwrap().len(), 1);
    assert_eq!(heard(&process, "q").await["error"]["code"], -32601);
    stop(&process).await;
}

#[tokio::test]
async fn all_who_share_a_process_hear_it_and_none_ends_what_another_watches() {
    let process = start(&peer(&[])).await;
    process.stream().multiplex().serve_together();
    let mut listeners = [unasked(&process).unwrap(), unasked(&process).unwrap()];
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let lines = [changed, r#"{"jsonrpc":"2.0","id":ID,"result":0}"#];
    all(&mut ask(&process, "say", &json!({"lines": lines})).await).await.unwrap();
    for listener in &mut listeners {
        let message = timeout(PATIENCE, listener.next()).await.unwrap().unwrap();
        assert_eq!(message.method(), "notifications/tools/list_changed");
    }
    let watch = |method: &str| call(json!("w"), method, &json!({"uri": "x:a"}));
    let mut watching = Vec::new();
    for _ in 0..2 {
        let subscribe = watch("resources/subscribe");
        watching.push(process.request(&subscribe, OnDrop::Abandon, Whose::Client).await.unwrap());
    }
    let unsubscribe = watch("resources/unsubscribe");
    let mut first = process.request(&unsubscribe, OnDrop::Abandon, Whose::Client).await.unwrap();
    assert_eq!(next(&mut first).await.unwrap().unwrap(), json!({"jsonrpc": "2.0", "id": "w", "result": {}}));
    let last = process.request(&unsubscribe, OnDrop::Abandon, Whose::Client).await.unwrap();
    let lines = result(&mut ask(&process, "heard", &json!({})).await).await.unwrap();
    let told =
        |method: &str| lines.as_array().unwrap().iter().filter(|line| line.as_str().unwrap().contains(method)).count();
    assert_eq!((told("resources/subscribe"), told("resources/unsubscribe")), (2, 1));
    drop(last);
    stop(&process).await;
    for listener in &mut listeners {
        assert_eq!(timeout(PATIENCE, listener.next()).await.unwrap().unwrap_err(), StdioError::Stopped.into());
    }
}

#[tokio::test]
async fn of_what_nobody_listens_to_the_latest_is_kept() {
    let process = start(&peer(&[])).await;
    let total = MAX_WAITING + 10;
    let lines: Vec<String> = (0..total)
        .map(|n| {
            json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": n}}).to_string()
        })
        .chain([r#"{"jsonrpc":"2.0","id":ID,"result":0}"#.into()])
        .collect();
    all(&mut ask(&process, "say", &json!({"lines": lines})).await).await.unwrap();
    let mut unsolicited = unasked(&process).unwrap();
    for n in total - MAX_WAITING..total {
        let message = timeout(PATIENCE, unsolicited.next()).await.unwrap().unwrap();
        let value: Value = serde_json::from_slice(message.bytes()).unwrap();
        assert_eq!(value["params"]["uri"], n);
    }
    stop(&process).await;
    assert_eq!(unsolicited.next().await.unwrap_err(), StdioError::Stopped.into());
}

#[tokio::test]
async fn a_slow_reader_loses_its_own_exchange_only() {
    let process = start(&peer(&[])).await;
    let flood = json!({"count": MAX_WAITING + 50, "_meta": {"progressToken": 1}});
    let mut slow = ask(&process, "burst", &flood).await;
    let mut other = ask(&process, "echo", &json!({"text": "still here"})).await;
    assert_eq!(result(&mut other).await, Ok(json!("still here")));
    assert_eq!(next(&mut slow).await, Err(overflow()));
    assert_eq!(next(&mut slow).await, Err(overflow()));

    let mut attentive = ask(&process, "burst", &json!({"count": 200, "_meta": {"progressToken": 1}})).await;
    assert_eq!(all(&mut attentive).await.unwrap().len(), 201);
    stop(&process).await;
}

#[tokio::test]
async fn a_pretty_printed_message_is_sent_as_one_line() {
    let process = start(&peer(&[])).await;
    let pretty = "{\r\n  \"jsonrpc\": \"2.0\",\n  \"id\": 1,\r  \"method\": \"heard\",\n\n  \"params\": {\"a\\n\": \"\\r\"}\n}\n";
    process.notify(&parsed("{\"jsonrpc\":\"2.0\",\r\n\"method\":\"notifications/x\"}")).await.unwrap();
    let mut exchange = process.request(&parsed(pretty), OnDrop::Cancel, Whose::Client).await.unwrap();
    let heard = result(&mut exchange).await.unwrap();
    assert_eq!(heard[0], "{\"jsonrpc\":\"2.0\",  \"method\":\"notifications/x\"}\n");
    let line = heard[1].as_str().unwrap();
    assert_eq!(line.find(['\n', '\r']), Some(line.len() - 1));
    assert!(line.contains(r#""a\n""#));
    assert_eq!(heard.as_array().unwrap().len(), 2);
    stop(&process).await;
}

#[tokio::test]
async fn what_is_no_message_is_skipped() {
    let process = start(&peer(&[])).await;
    let lines = [
        "Server listening…",
        "",
        "   ",
        "[]",
        "{\"jsonrpc\":",
        "null",
        r#"{"jsonrpc":"2.0","id":ID,"result":"clean"}"#,
    ];
    assert_eq!(result(&mut ask(&process, "say", &json!({"lines": lines})).await).await, Ok(json!("clean")));
    // Bytes that are no UTF-8, a NUL, and a line end in the style of another system.
    let mut exchange = ask(&process, "raw", &json!({"hex": "fffe7b220a000d0a"})).await;
    assert_eq!(result(&mut exchange).await, Ok(json!("done")));
    stop(&process).await;
}

#[tokio::test]
async fn large_messages_pass_both_ways() {
    let process = start(&peer(&[])).await;
    let mut exchange = ask(&process, "big", &json!({"bytes": 10 << 20})).await;
    assert_eq!(result(&mut exchange).await.unwrap().as_str().unwrap().len(), 10 << 20);
    let text = "y".repeat(10 << 20);
    let mut exchange = ask(&process, "echo", &json!({"text": text})).await;
    assert_eq!(result(&mut exchange).await, Ok(json!(text)));
    stop(&process).await;
}

#[tokio::test]
async fn a_dropped_exchange_cancels_or_not_as_told() {
    let process = start(&peer(&[])).await;
    let silent = say(json!("mine"), json!(1), &[]);
    let cancelled = process.request(&silent, OnDrop::Cancel, Whose::Client).await.unwrap();
    let told = process.request(&silent, OnDrop::Cancel, Whose::Client).await.unwrap();
    let abandoned = process.request(&silent, OnDrop::Abandon, Whose::Client).await.unwrap();
    let opening =
        process.request(&call(json!(1), "initialize", &json!({})), OnDrop::Cancel, Whose::Client).await.unwrap();
    let keys = [cancelled.key().0, told.key().0];
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                        "params": {"requestId": "mine", "reason": "enough"}});
    process.cancel(told.key(), &message(&notice)).await.unwrap();
    process.cancel(told.key(), &message(&notice)).await.unwrap();
    drop((cancelled, told, abandoned, opening));

    let heard = result(&mut ask(&process, "heard", &json!({})).await).await.unwrap();
    let cancellations: Vec<Value> = heard
        .as_array()
        .unwrap()
        .iter()
        .map(|line| serde_json::from_str::<Value>(line.as_str().unwrap()).unwrap())
        .filter(|message| message["method"] == "notifications/cancelled")
        .map(|message| message["params"].clone())
        .collect();
    assert_eq!(cancellations[0], json!({"requestId": keys[1], "reason": "enough"}));
    assert_eq!(cancellations[1]["requestId"], keys[0]);
    assert_eq!(cancellations.len(), 2);
    stop(&process).await;
}

#[tokio::test]
async fn an_answered_exchange_cancels_nothing() {
    let process = start(&peer(&[])).await;
    let mut exchange = ask(&process, "echo", &json!({"text": 1})).await;
    all(&mut exchange).await.unwrap();
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    process.cancel(exchange.key(), &message(&notice)).await.unwrap();
    drop(exchange);
    let heard = result(&mut ask(&process, "heard", &json!({})).await).await.unwrap();
    assert_eq!(heard.as_array().unwrap().len(), 2);
    stop(&process).await;
}

#[tokio::test]
async fn what_is_no_request_is_not_sent_as_one() {
    let process = start(&peer(&[])).await;
    let notification = parsed(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    let error = process.request(&notification, OnDrop::Cancel, Whose::Client).await.err().unwrap();
    assert!(matches!(error, SendError::NotMcp(_)), "{error}");
    let exchange = ask(&process, "say", &json!({"lines": []})).await;
    let error = process.cancel(exchange.key(), &notification).await.unwrap_err();
    assert!(matches!(error, SendError::NotMcp(_)), "{error}");
    stop(&process).await;
}

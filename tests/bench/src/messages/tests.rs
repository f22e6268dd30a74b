use super::*;

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

fn burst(steps: &[usize], id: u64) -> Vec<u8> {
    let mut body = String::from(": hello\n\n");
    for step in steps {
        body.push_str(&format!(
            "event: message\r\ndata: {{\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":{id},\"progress\":{step},\"total\":10}}}}\r\n\r\n"
        ));
    }
    body.push_str(&format!(
        "data:{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[{{\"text\":\"done\"}}]}}}}\n\n"
    ));
    body.into_bytes()
}

#[test]
fn counts_every_event_of_a_burst() {
    let id = FIRST_ID + 7;
    let all: Vec<usize> = (1..=BURST_EVENTS).collect();
    let whole = burst(&all, id);
    assert_eq!(check_fully(Workload::Burst, id, &Message { head: HEAD, body: &whole }), Ok(()));
    let cut = burst(&all[..8], id);
    assert_eq!(
        check(Workload::Burst, id, &Message { head: HEAD, body: &cut }),
        Err(AnswerError::EventsLost { lost: 2 })
    );
    let swapped = burst(&[2, 1, 3, 4, 5, 6, 7, 8, 9, 10], id);
    assert!(matches!(
        check(Workload::Burst, id, &Message { head: HEAD, body: &swapped }),
        Err(AnswerError::EventsLost { .. })
    ));
    let other = check(Workload::Burst, id + 1, &Message { head: HEAD, body: &whole });
    assert!(matches!(other, Err(AnswerError::NoResult(_))));
}

#[test]
fn refuses_errors_and_short_answers() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
    let error = br#"{"jsonrpc":"2.0","id":1000000001,"error":{"code":-32602,"message":"unknown tool"}}"#;
    let refused = check(Workload::Call(10), 1_000_000_001, &Message { head, body: error });
    assert!(matches!(refused, Err(AnswerError::NoResult(_))));
    let result = br#"{"jsonrpc":"2.0","id":1000000001,"result":{"content":[]}}"#;
    let short = check(Workload::Call(4096), 1_000_000_001, &Message { head, body: result });
    assert_eq!(short, Err(AnswerError::Short(result.len())));
    let status = check(Workload::Burst, 1, &Message { head: b"HTTP/1.1 503 Busy\r\n\r\n", body: b"later" });
    assert_eq!(status, Err(AnswerError::Status { status: 503, body: "later".to_owned() }));
}

#[test]
fn ids_change_in_place() {
    let target = Target {
        address: ([127, 0, 0, 1], 80).into(),
        path: "/mcp".to_owned(),
        prefix: "bench__",
        token: None,
        other: None,
    };
    let mut request = request(&target, Era::Modern, Workload::Burst, None);
    let length = request.next().len();
    let bytes = String::from_utf8_lossy(request.next()).into_owned();
    assert_eq!(bytes.len(), length);
    assert_eq!(bytes.matches("1000000002").count(), 2, "id and progress token: {bytes}");
    assert!(bytes.contains("mcp-name: bench__burst\r\n"));
}

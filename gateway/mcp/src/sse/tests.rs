use super::*;

fn events(bytes: &[u8]) -> Vec<Event> {
    let mut decoder = Decoder::new(1 << 20);
    decoder.feed(bytes);
    std::iter::from_fn(|| decoder.next_event().unwrap()).collect()
}

fn event(name: Option<&str>, id: Option<&str>, data: &'static str) -> Event {
    Event { event: name.map(Into::into), id: id.map(Into::into), retry: None, data: data.into() }
}

#[test]
fn the_examples_of_the_standard() {
    assert_eq!(events(b"data: YHOO\ndata: +2\ndata: 10\n\n"), [event(None, None, "YHOO\n+2\n10")]);
    assert_eq!(
        events(b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n"),
        [
            event(None, Some("1"), "first event"),
            event(None, Some(""), "second event"),
            event(None, None, " third event")
        ]
    );
    assert_eq!(events(b"data\n\ndata\ndata\n\ndata:"), [event(None, None, ""), event(None, None, "\n")]);
    assert_eq!(events(b"data:test\n\ndata: test\n\n"), [event(None, None, "test"), event(None, None, "test")]);
}

#[test]
fn all_line_ends_and_the_mark() {
    for stream in
        ["event: a\ndata: b\nid: c\n\n", "event: a\rdata: b\rid: c\r\r", "\u{feff}event: a\r\ndata: b\r\nid: c\r\n\r\n"]
    {
        assert_eq!(events(stream.as_bytes()), [event(Some("a"), Some("c"), "b")], "{stream:?}");
    }
    assert_eq!(events("data: a\n\n\u{feff}data: b\n\n".as_bytes()), [event(None, None, "a")]);
    // The event is whole with the CR; nobody waits for an LF that may never come.
    assert_eq!(events(b"data: a\r\r").len(), 1);
    assert_eq!(events(b"data: a\r\n\r").len(), 1);
}

#[test]
fn odd_fields_are_left_out() {
    assert_eq!(
        events(b"id: a\0b\nretry: 1x\nretry: -1\nretry:\nDATA: x\nfoo: bar\ndata: y\n\n"),
        [event(None, None, "y")]
    );
    assert_eq!(events(b"event: only\n\nid: 7\n\n: ping\n\n"), []);
    assert_eq!(
        events(b"event: a\nevent: b\ndata: x\n\ndata: y\n\n"),
        [event(Some("b"), None, "x"), event(None, None, "y")]
    );
    let got = events(b"retry: 500\nid: 1\ndata: \n\n");
    assert_eq!(got, [Event { retry: Some(500), ..event(None, Some("1"), "") }]);
    assert!(
        got[0].is_message()
            && event(Some("message"), None, "").is_message()
            && !event(Some("endpoint"), None, "").is_message()
    );
}

#[test]
fn the_stream_remembers_id_and_retry() {
    let mut decoder = Decoder::new(100);
    decoder.feed(b"id: 1\nretry: 10\n\ndata: x\n\nid: 2\nretry: 99999999999999999999999\n");
    assert_eq!(decoder.next_event().unwrap(), Some(event(None, None, "x")));
    assert_eq!(decoder.next_event().unwrap(), None);
    // The block with id 2 is not over, so it does not count yet.
    assert_eq!((decoder.last_id(), decoder.retry()), (Some("1"), Some(10)));
    decoder.feed(b"\n");
    assert_eq!(decoder.next_event().unwrap(), None);
    assert_eq!((decoder.last_id(), decoder.retry()), (Some("2"), Some(10)));
}

#[test]
fn events_are_bounded_and_streams_are_not() {
    let refuses = |stream: &[u8]| {
        let mut decoder = Decoder::new(20);
        stream.chunks(7).any(|chunk| {
            decoder.feed(chunk);
            loop {
                match decoder.next_event() {
                    Err(error) => break error.limit == 20,
                    Ok(None) => break false,
                    Ok(Some(_)) => {}
                }
            }
        })
    };
    assert!(!refuses(&b"data: 12345678901234\n\n".repeat(50)));
    assert!(!refuses(&b": ping\n".repeat(50)));
    assert!(refuses(b"data: 123456789012345\n\n"));
    assert!(refuses(b"data: 123456789012345"));
    assert!(refuses(&b"data: 1\n".repeat(3)));
    assert!(refuses(&b"id: 1\n".repeat(5)));
    assert!(refuses(&[b':'; 21]));
}

#[test]
fn an_event_that_is_too_large_is_passed_over() {
    let long = "x".repeat(50);
    for large in [
        format!("data: {long}\n\n"),
        format!("data: {long}\r\n\r\n"),
        format!("data: a{long}\ndata: {long}\nid: 7\n\n"),
        format!("data: a\n{}\n", "data: b\n".repeat(10)),
    ] {
        let stream = format!("data: before\n\n{large}data: behind\n\n");
        for width in [1, 3, 20, 1000] {
            let (mut decoder, mut heard) = (Decoder::new(20), Vec::new());
            for chunk in stream.as_bytes().chunks(width) {
                decoder.feed(chunk);
                loop {
                    match decoder.next_event() {
                        Ok(Some(event)) => heard.push(String::from_utf8(event.data.to_vec()).unwrap()),
                        Ok(None) => break,
                        Err(TooLarge { start, .. }) => {
                            assert!(start.is_empty() || stream.contains(std::str::from_utf8(&start).unwrap()));
                            heard.push("too large".into());
                        }
                    }
                }
                assert!(decoder.buffer.len() <= 20 + width);
            }
            assert_eq!(heard, ["before", "too large", "behind"], "{large:?} by {width}");
        }
    }
}

#[test]
fn the_end_of_an_event_that_is_too_large_is_told_with_it() {
    let (start, end) = (r#"{"result":""#, r#"x","id":7}"#);
    for fields in ["", "id: 3\n"] {
        let stream = format!("{fields}data: {start}{}{end}\n\ndata: behind\n\n", "x".repeat(3 * KEPT));
        for width in [1, 7, 1000, 100_000] {
            let (mut decoder, mut heard) = (Decoder::new(KEPT), Vec::new());
            decoder.wait_for_ends();
            for chunk in stream.as_bytes().chunks(width) {
                decoder.feed(chunk);
                loop {
                    match decoder.next_event() {
                        Ok(Some(event)) => heard.push(String::from_utf8(event.data.to_vec()).unwrap()),
                        Ok(None) => break,
                        Err(large) => {
                            assert!(large.start.starts_with(start.as_bytes()) && large.end.ends_with(end.as_bytes()));
                            assert!(large.end.len() <= KEPT);
                            heard.push("too large".into());
                        }
                    }
                }
            }
            assert_eq!(heard, ["too large", "behind"], "{fields:?} by {width}");
        }
    }
}

#[test]
fn events_are_written_so_that_they_come_back() {
    let mut out = BytesMut::new();
    encode(&Event { retry: Some(9), ..event(Some("message"), Some("s_1"), "a\nb\r\nc\rd\n") }, &mut out);
    assert_eq!(&out[..], b"event: message\nid: s_1\nretry: 9\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \n\n");
    assert_eq!(events(&out), [Event { retry: Some(9), ..event(Some("message"), Some("s_1"), "a\nb\nc\nd\n") }]);

    out.clear();
    encode(&event(Some("a\ndata: evil"), Some("1\r2"), " lead"), &mut out);
    encode(&event(None, Some("1\x002"), ""), &mut out);
    assert_eq!(&out[..], b"data:  lead\n\ndata: \n\n");
    assert_eq!(events(&out), [event(None, None, " lead"), event(None, None, "")]);
    assert_eq!(events(KEEP_ALIVE), []);
}

#[test]
fn data_in_one_line_is_not_copied() {
    let mut decoder = Decoder::new(100);
    decoder.feed(b"data: abc\n\n");
    let at = decoder.buffer.as_ptr() as usize;
    let event = decoder.next_event().unwrap().unwrap();
    assert_eq!(event.data.as_ptr() as usize, at + 6);
}

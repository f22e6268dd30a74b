//! What must hold for any input: the bodies of the fuzz targets, which an ordinary test runs over the seeds too.

use bytes::{Bytes, BytesMut};
use weir_mcp::sse::{Decoder, Event, Splitter, encode};
use weir_mcp::{Claims, Field, Inbound, Message, Object, classify, headers, json, method};

/// Reads a body, looks at every part of it, changes it, and reads the change.
pub fn message(input: &[u8]) {
    let valid = json::scan(input).is_ok();
    let inbound = Inbound::parse(Bytes::copy_from_slice(input));
    if let Err(error) = &inbound {
        assert_eq!(error.code(), if valid { -32600 } else { -32700 });
    }
    let Ok(inbound) = inbound else { return };
    assert!(valid);
    let _ = classify(&inbound, &Claims { version: Some("2026-07-28"), ..Claims::default() });
    for message in inbound.messages() {
        look(message);
        let edit = message.edit().set(Field::Name, "\"n\"").set(Field::Id, "1");
        let edit = edit.put(Object::Meta, "k", "1e400").remove(Object::Body, "name").put(Object::Body, "ttlMs", "0");
        let changed = Message::parse(edit.finish()).expect("a change keeps the message whole");
        assert_eq!(changed.kind(), message.kind());
        assert_eq!(changed.method(), message.method());
        assert!(changed.name().is_none());
        assert!(message.id().is_none() || changed.id() == Some(b"1"));
    }
}

fn look(message: &Message) {
    let _ = (message.name(), message.uri(), message.cursor(), message.task_id(), message.reference());
    let _ = (message.claimed_version(), message.error_code(), message.meta("k"), method::route(message.method()));
    assert!(json::scan(&message.one_line()).is_ok());
    for raw in [message.params(), message.result(), message.error(), message.id()].into_iter().flatten() {
        assert!(json::scan(raw).is_ok());
        for (key, value) in json::members(raw) {
            assert!(json::get(raw, &[&key]).is_some() || key.contains('\u{fffd}'));
            assert!(json::scan(value).is_ok());
        }
    }
}

/// Passes a stream on in pieces: nothing is lost or changed, and each piece that says so ends between two events.
fn split(input: &[u8]) {
    for (bound, width) in [(usize::MAX, 3), (4, 3), (0, 1), (16, 64)] {
        let mut splitter = Splitter::new(bound);
        let (mut passed, mut ids) = (Vec::new(), Vec::new());
        for chunk in input.chunks(width) {
            let piece = splitter.push(Bytes::copy_from_slice(chunk), |id| ids.push(id.to_vec()));
            passed.extend_from_slice(&piece);
            let mut decoder = Decoder::new(usize::MAX);
            decoder.feed(&passed);
            while decoder.next_event().expect("no bound").is_some() {}
            if bound == usize::MAX {
                assert!(splitter.is_between_events());
                let last = decoder.last_id().filter(|id| !id.is_empty());
                let told = splitter.last_id().map(String::from_utf8_lossy);
                assert_eq!(told.as_deref(), last);
                assert_eq!(splitter.retry(), decoder.retry());
            }
        }
        assert!(input.starts_with(&passed));
        assert!(input.len() - passed.len() <= bound);
        assert_eq!(ids.last().map(Vec::as_slice).filter(|id| !id.is_empty()), splitter.last_id());
    }
}

/// Reads a stream in two ways of cutting it, writes the events, and reads those.
pub fn sse(input: &[u8]) {
    let whole = read([input]);
    assert_eq!(whole, read(input.chunks(3)));
    split(input);
    let Some(events) = whole else { return };
    let mut out = BytesMut::new();
    for event in &events {
        encode(event, &mut out);
    }
    // A NUL or line break cannot be in what was read, so nothing is lost on the way out.
    let kept = |event: &Event| (event.event.clone(), event.id.clone(), event.retry);
    let mut decoder = Decoder::new(usize::MAX);
    decoder.feed(&out);
    for event in &events {
        let again = decoder.next_event().expect("no bound").expect("as many events");
        assert_eq!((kept(&again), &again.data), (kept(event), &event.data));
    }
    assert_eq!(decoder.next_event(), Ok(None));
}

fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Option<Vec<Event>> {
    let mut decoder = Decoder::new(1024);
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.feed(chunk);
        while let Some(event) = decoder.next_event().ok()? {
            events.push(event);
        }
    }
    Some(events)
}

/// Reads header values and writes them again.
pub fn headers(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let encoded = headers::encode_value(&text);
    assert!(encoded.bytes().all(|b| matches!(b, b' '..=b'~' | b'\t')));
    assert_eq!(headers::decode_value(&encoded).as_deref(), Some(&*text));
    if let Some(value) = headers::decode_value(&text) {
        let again = headers::encode_value(&value);
        assert_eq!(headers::decode_value(&again).as_deref(), Some(&*value));
    }
    let both = headers::accepts_json(&text) && headers::accepts_events(&text);
    assert_eq!(headers::accepts_json_and_events(&text), both);
    let _ = (headers::is_json(&text), headers::is_event_stream(&text), headers::param_value(input));
}

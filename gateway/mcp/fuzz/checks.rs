//! What must hold for any input: the bodies of the fuzz targets, which an ordinary test runs over the seeds too.

use bytes::{Bytes, BytesMut};
use weir_mcp::cursor::CursorPosition;
use weir_mcp::public::{self, PublicNames};
use weir_mcp::sse::{Decoder, Event, encode};
use weir_mcp::translate::{self, Declared};
use weir_mcp::{Claims, Field, InboundRequest, Kind, Message, Object, classify, headers, json, method, mirrored};

/// Reads a body, looks at every part of it, changes it, and reads the change.
pub fn message(input: &[u8]) {
    let valid = json::scan(input).is_ok();
    let inbound = InboundRequest::parse(Bytes::copy_from_slice(input));
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

/// Takes a message for everything that is translated between a legacy client and a modern server.
pub fn translated(input: &[u8]) {
    let Ok(message) = Message::parse(Bytes::copy_from_slice(input)) else { return };
    let whole = |bytes: Bytes| Message::parse(bytes).expect("what is translated is whole");
    let declared = Declared::of(&message);
    if message.kind() == Kind::Request {
        let request = whole(declared.request(&message, 7, Some("info")));
        assert_eq!((request.id(), request.method()), (Some(&b"7"[..]), message.method()));
        assert_eq!(request.claimed_version().as_deref(), Some("2026-07-28"));
        assert_eq!(request.params().and_then(|p| json::get(p, &["arguments"])), message.raw(Field::Arguments));
        let again = whole(translate::again(&request, 8, Some(b"{}"), Some(b"\"s\"")));
        assert_eq!(again.raw(Field::RequestState), Some(&b"\"s\""[..]));
        let _ = translate::check(declared.asks(), &message);
        let _ = whole(translate::question(&message, b"1", "e"));
    }
    if matches!(message.kind(), Kind::Response | Kind::Error) {
        for method in ["tools/list", "tools/call", "resources/read"] {
            assert_eq!(whole(translate::legacy_answer(&message, b"9", method, true)).id(), Some(&b"9"[..]));
        }
        if let Some(Ok(asked)) = translate::asked(&message) {
            assert_eq!(asked.state.as_deref(), message.raw(Field::RequestState).filter(|raw| raw.starts_with(b"\"")));
            assert!(asked.questions.len() <= translate::QUESTIONS);
        }
        let _ = translate::missing(&message, declared.asks(), None);
        let result = message.result().unwrap_or(b"{}");
        assert!(json::scan(&translate::initialized(result, "2025-11-25", "x")).is_ok());
        for tool in json::get(result, &["tools"]).into_iter().flat_map(json::elements) {
            for mirrored in mirrored::mirrored(tool).unwrap_or_default() {
                let value = mirrored.value(input);
                assert!(value.is_none_or(|value| mirrored.agrees(input, Some(&value))));
            }
        }
    }
    if message.kind() == Kind::Notification {
        let _ = (translate::acknowledged(&message), whole(translate::unsubscribed(&message)));
    }
}

/// Reads a stream in two ways of cutting it, writes the events, and reads those.
pub fn sse(input: &[u8]) {
    let whole = read([input]);
    assert_eq!(whole, read(input.chunks(3)));
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

/// Reads what stands in a cursor, and writes it again.
pub fn cursor(input: &[u8]) {
    if let Some(position) = CursorPosition::decode(input) {
        assert_eq!(position.encode(), input);
    }
}

/// Gives the ids in a message public names and takes them away again: nothing else may change.
pub fn public(input: &[u8]) {
    let Ok(message) = Message::parse(Bytes::copy_from_slice(input)) else { return };
    let read = PublicNames::Read { native: "ui://x".into(), public: "ui://a__x".into() };
    for asked in [PublicNames::Plain, PublicNames::Call, PublicNames::Task, PublicNames::Tasks, read] {
        let Some(outward) = public::outward(&message, "a", &asked) else { continue };
        let outward = Message::parse(outward).expect("a message stays one");
        assert_eq!((outward.kind(), outward.method(), outward.id()), (message.kind(), message.method(), message.id()));
    }
    let Some(inward) = public::inward(&message, "a") else { return };
    let inward = Message::parse(inward).expect("a message stays one");
    assert_eq!((inward.kind(), inward.method(), inward.id()), (message.kind(), message.method(), message.id()));
    if let Some(("a", native)) = message.task_id().as_deref().and_then(public::split)
        && method::route(message.method()) == method::Route::Task
    {
        assert_eq!(inward.task_id().as_deref(), Some(native));
    }
}

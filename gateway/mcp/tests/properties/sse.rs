//! Events are the same however the connection cuts the stream, and come back as they were written.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use weir_mcp::sse::{Decoder, Event, encode};

/// The events, and what the stream remembers.
type Read = (Vec<Event>, Option<String>, Option<u64>);

fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Read {
    let mut decoder = Decoder::new(1 << 20);
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.feed(chunk);
        while let Some(event) = decoder.next_event().unwrap() {
            events.push(event);
        }
    }
    (events, decoder.last_id().map(str::to_owned), decoder.retry())
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "\r\n\r\n",
        "data",
        "data:",
        "data: ",
        ":",
        " ",
        "id: 1",
        "id:\0",
        "id",
        "event: a",
        "event:",
        "retry: 5",
        "retry: x",
        "x: y",
        "{\"a\":1}",
        "é",
        "\u{feff}",
        "\0",
    ]);
    vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes())
}

fn line() -> impl Strategy<Value = Option<String>> {
    prop::option::of("[^\r\n\0]{0,8}")
}

fn event() -> impl Strategy<Value = Event> {
    (line(), line(), prop::option::of(any::<u64>()), "(.|\n|\r){0,30}").prop_map(|(event, id, retry, data)| Event {
        event,
        id,
        retry,
        data: Bytes::from(data),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_make_no_difference(stream in stream(), cuts in vec(any::<prop::sample::Index>(), 0..12)) {
        let whole = read([&stream[..]]);
        prop_assert_eq!(&read(stream.chunks(1)), &whole);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).chain([0, stream.len()]).collect();
        at.sort_unstable();
        prop_assert_eq!(&read(at.windows(2).map(|ends| &stream[ends[0]..ends[1]])), &whole);
    }

    #[test]
    fn written_events_come_back(events in vec(event(), 0..5)) {
        let mut out = BytesMut::new();
        for event in &events {
            encode(event, &mut out);
        }
        let expected: Vec<Event> = events
            .into_iter()
            .map(|event| {
                let data = String::from_utf8(event.data.to_vec()).unwrap();
                Event { data: data.replace("\r\n", "\n").replace('\r', "\n").into(), ..event }
            })
            .collect();
        prop_assert_eq!(read([&out[..]]).0, expected);
    }
}

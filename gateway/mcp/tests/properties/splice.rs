//! The promise of the gateway: what is not spliced is not touched.

use bytes::Bytes;
use proptest::prelude::*;
use weir_mcp::{Field, Kind, Message, Object, json};

use crate::generate::{message, scalar};
use crate::json::members_elsewhere;

/// Every field with the path by which another reader finds it; `*` is `params` or `result`.
const PATHS: [(Field, &[&str]); 20] = [
    (Field::Id, &["id"]),
    (Field::Method, &["method"]),
    (Field::Params, &["params"]),
    (Field::Result, &["result"]),
    (Field::Error, &["error"]),
    (Field::Name, &["params", "name"]),
    (Field::Uri, &["params", "uri"]),
    (Field::Cursor, &["params", "cursor"]),
    (Field::Arguments, &["params", "arguments"]),
    (Field::RequestId, &["params", "requestId"]),
    (Field::TaskId, &["params", "taskId"]),
    (Field::InputResponses, &["params", "inputResponses"]),
    (Field::ResultType, &["result", "resultType"]),
    (Field::NextCursor, &["result", "nextCursor"]),
    (Field::RequestState, &["*", "requestState"]),
    (Field::ReferenceType, &["params", "ref", "type"]),
    (Field::ReferenceName, &["params", "ref", "name"]),
    (Field::Meta, &["*", "_meta"]),
    (Field::SubscriptionId, &["*", "_meta", "io.modelcontextprotocol/subscriptionId"]),
    (Field::ProtocolVersion, &["*", "_meta", "io.modelcontextprotocol/protocolVersion"]),
];

/// Fields that never lie within one another.
const APART: [Field; 10] = [
    Field::Id,
    Field::Method,
    Field::Name,
    Field::Uri,
    Field::Cursor,
    Field::RequestState,
    Field::ReferenceName,
    Field::ProgressToken,
    Field::ProtocolVersion,
    Field::NextCursor,
];

fn parse(text: impl Into<Bytes>) -> Message {
    Message::parse(text.into()).unwrap()
}

/// The value at a path, by way of `serde_json`; the error says that it could not read the object.
fn elsewhere<'a>(raw: &'a [u8], path: &[&str]) -> Result<Option<&'a [u8]>, ()> {
    let Some((first, rest)) = path.split_first() else { return Ok(Some(raw)) };
    if raw.first() != Some(&b'{') {
        return Ok(None);
    }
    match members_elsewhere(raw).ok_or(())?.get(*first) {
        Some(value) => elsewhere(value.get().as_bytes(), rest),
        None => Ok(None),
    }
}

/// The message with the given fields cut out.
fn without(message: &Message, fields: &[Field]) -> Vec<u8> {
    let base = message.bytes().as_ptr() as usize;
    let mut cuts: Vec<(usize, usize)> = fields
        .iter()
        .filter_map(|field| message.raw(*field))
        .map(|raw| (raw.as_ptr() as usize - base, raw.len()))
        .collect();
    cuts.sort_unstable();
    let mut rest = Vec::new();
    let mut at = 0;
    for (start, length) in cuts {
        rest.extend_from_slice(&message.bytes()[at..start]);
        at = start + length;
    }
    rest.extend_from_slice(&message.bytes()[at..]);
    rest
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fields_are_where_another_reader_finds_them(text in message()) {
        let message = parse(text.clone());
        for (field, path) in PATHS {
            let body = if message.kind() == Kind::Response { "result" } else { "params" };
            if message.kind() == Kind::Error && path[0] == "*" {
                prop_assert_eq!(message.raw(field), None);
                continue;
            }
            let path: Vec<&str> = path.iter().map(|name| if *name == "*" { body } else { name }).collect();
            let Ok(expected) = elsewhere(text.trim().as_bytes(), &path) else { continue };
            prop_assert_eq!(message.raw(field), expected, "{:?}", path);
        }
    }

    #[test]
    fn bytes_around_set_fields_stay(
        text in message(),
        fields in prop::sample::subsequence(APART.to_vec(), 0..APART.len()),
        value in scalar(),
        id in prop::sample::select(vec!["7", "\"x\""]),
    ) {
        let before = parse(text);
        let raw = |field: Field| match field {
            Field::Id => id.to_owned(),
            // A progress message finds its token elsewhere, so the method must stay one that is not.
            Field::Method if before.method() == "notifications/progress" => "\"notifications\\/progress\"".to_owned(),
            Field::Method => "\"changed\"".to_owned(),
            _ => value.clone(),
        };
        let edit = fields.iter().fold(before.edit(), |edit, field| edit.set(*field, raw(*field)));
        let after = parse(edit.finish());
        prop_assert_eq!(without(&before, &fields), without(&after, &fields));
        prop_assert_eq!(before.kind(), after.kind());
        for field in fields {
            let expected = before.raw(field).map(|_| raw(field).into_bytes());
            prop_assert_eq!(after.raw(field).map(<[u8]>::to_vec), expected, "{:?}", field);
        }
    }

    #[test]
    fn members_around_a_change_stay(text in message(), key in "[xyn]|name|_meta|résumé", put in any::<bool>(), value in scalar()) {
        let before = parse(text);
        let edit = before.edit();
        let edit = if put { edit.put(Object::Body, &key, &value) } else { edit.remove(Object::Body, &key) };
        let after = parse(edit.finish());
        let body = |message: &Message| {
            let raw = message.params().or(message.result()).or(message.error()).unwrap_or(b"{}").to_vec();
            json::members(&raw).map(|(key, value)| (key.into_owned(), value.to_vec())).collect::<Vec<_>>()
        };
        let mut expected = body(&before);
        let value = value.into_bytes();
        if !put {
            expected.retain(|(name, _)| *name != key);
        } else if let Some(last) = expected.iter_mut().rfind(|(name, _)| *name == key) {
            last.1 = value;
        } else {
            expected.push((key, value));
        }
        prop_assert_eq!(body(&after), expected);
        let [around_before, around_after] =
            [&before, &after].map(|message| without(message, &[Field::Params, Field::Result, Field::Error]));
        prop_assert_eq!(around_before, around_after);
    }

    #[test]
    fn meta_can_always_be_put(text in message(), value in scalar()) {
        let before = parse(text);
        let after = parse(before.edit().put(Object::Meta, "weir/x", &value).finish());
        let expected = (before.kind() != Kind::Error).then_some(value.as_bytes());
        prop_assert_eq!(after.meta("weir/x"), expected);
        let outer = [Field::Params, Field::Result, Field::Error];
        prop_assert_eq!(without(&before, &outer), without(&after, &outer));
        let back = parse(after.edit().remove(Object::Meta, "weir/x").finish());
        prop_assert_eq!(back.meta("weir/x"), None);
        if before.raw(Field::Meta).is_some_and(|raw| raw.starts_with(b"{")) {
            prop_assert_eq!(back.bytes(), before.bytes());
        }
    }
}

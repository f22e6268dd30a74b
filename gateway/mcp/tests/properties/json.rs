//! What is accepted as JSON, and what is found in it, agrees with `serde_json`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use weir_mcp::json;

use crate::generate::{body, document};

/// Syntax only: numbers of any size and unpaired surrogates are fine.
fn accepted_elsewhere(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// The members as `serde_json` sees them, the last one of equal keys.
pub(crate) fn members_elsewhere(raw: &[u8]) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(std::str::from_utf8(raw).ok()?).ok()
}

/// One change to a document: at a place, to a byte that often matters.
fn damage() -> impl Strategy<Value = (u8, prop::sample::Index, u8)> {
    let byte = prop_oneof![
        3 => prop::sample::select(b"\"\\{}[]:,0123456789.eE+-tfnu \n\t\x00\x1f/".to_vec()),
        1 => any::<u8>(),
    ];
    (0..4_u8, any::<prop::sample::Index>(), byte)
}

fn apply(bytes: &mut Vec<u8>, (how, at, byte): (u8, prop::sample::Index, u8)) {
    if bytes.is_empty() {
        return;
    }
    let at = at.index(bytes.len());
    match how {
        0 => bytes[at] = byte,
        1 => bytes.insert(at, byte),
        2 => drop(bytes.remove(at)),
        _ => bytes.truncate(at),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_documents_are_accepted(text in document()) {
        prop_assert_eq!(json::scan(text.as_bytes()), Ok(()));
        prop_assert!(accepted_elsewhere(text.as_bytes()));
    }

    #[test]
    fn damaged_documents_are_judged_alike(text in document(), damages in prop::collection::vec(damage(), 1..4)) {
        let mut bytes = text.into_bytes();
        for damage in damages {
            apply(&mut bytes, damage);
        }
        prop_assert_eq!(json::scan(&bytes).is_ok(), accepted_elsewhere(&bytes), "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn bytes_without_sense_are_judged_alike(bytes in prop::collection::vec(damage().prop_map(|damage| damage.2), 0..12)) {
        prop_assert_eq!(json::scan(&bytes).is_ok(), accepted_elsewhere(&bytes));
    }

    #[test]
    fn members_are_the_same(text in body()) {
        let raw = text.as_bytes();
        let Some(expected) = members_elsewhere(raw) else { return Ok(()) };
        let found: BTreeMap<Cow<'_, str>, &[u8]> = json::members(raw).collect();
        prop_assert_eq!(found.len(), expected.len());
        for (key, value) in expected {
            prop_assert_eq!(found.get(key.as_str()).copied(), Some(value.get().as_bytes()));
            prop_assert_eq!(json::get(raw, &[&key]), Some(value.get().as_bytes()));
        }
    }

    #[test]
    fn elements_are_the_same(items in prop::collection::vec(document(), 0..6)) {
        let text = format!("[{}]", items.join(","));
        let found: Vec<&[u8]> = json::elements(text.as_bytes()).collect();
        let expected: Vec<&RawValue> = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(found, expected.iter().map(|raw| raw.get().as_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn strings_are_the_same(text in any::<String>()) {
        let quoted = json::quote(&text);
        prop_assert_eq!(serde_json::from_str::<String>(&quoted).ok(), Some(text.clone()));
        let foreign = serde_json::to_string(&text).unwrap();
        let decoded = json::string(foreign.as_bytes());
        prop_assert_eq!(decoded.as_deref(), Some(text.as_str()));
    }
}

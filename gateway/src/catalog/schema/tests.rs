#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use weir_mcp::json;

use super::*;

/// Entries with one thing wrong each. The clients' own tests have the same file.
const MALFORMED: &[u8] = include_bytes!("../../../../tests/peers/malformed.json");

fn text(raw: &[u8], key: &str) -> String {
    json::string(json::get(raw, &[key]).unwrap()).unwrap().into_owned()
}

#[test]
fn what_clients_refuse_is_found_and_nothing_else() {
    json::scan(MALFORMED).unwrap();
    let mut seen = 0;
    for case in json::elements(MALFORMED) {
        let kind = ListKind::of_method(&text(case, "list")).unwrap();
        let entry = json::get(case, &["entry"]).unwrap();
        let found = match fault(kind, entry) {
            None => "nobody",
            Some(SchemaFault { legacy: true, .. }) => "legacy",
            Some(SchemaFault { legacy: false, .. }) => "all",
        };
        assert_eq!(found, text(case, "refused_by"), "{}", String::from_utf8_lossy(entry));
        seen += 1;
    }
    assert!(seen > 50, "{seen} cases");
}

#[test]
fn a_fault_says_where_it_is() {
    let why = |entry: &str| fault(ListKind::Tool, entry.as_bytes()).unwrap().why;
    assert_eq!(why(r#"{"name":"t"}"#), "`inputSchema` is missing");
    assert_eq!(why(r#"{"name":"t","inputSchema":true}"#), "`inputSchema` is no object");
    assert_eq!(why(r#"{"name":"t","inputSchema":{"type":"array"}}"#), "`inputSchema.type` is not \"object\"");
    assert_eq!(
        why(r#"{"name":"t","inputSchema":{"type":"object","properties":{"a":true}}}"#),
        "`inputSchema.properties.a` is no object"
    );
    assert_eq!(
        why(r#"{"name":"t","inputSchema":{"type":"object"},"icons":[{"src":"x","theme":"red"}]}"#),
        "`icons[].theme` is not \"light\" or \"dark\""
    );
}

#[test]
fn a_fault_for_all_counts_before_one_for_some() {
    let entry = r#"{"inputSchema":{"type":"object","required":[1]},"name":"t","_meta":[]}"#;
    assert_eq!(
        fault(ListKind::Tool, entry.as_bytes()).unwrap(),
        SchemaFault { why: "`_meta` is no object".into(), legacy: false }
    );
}

#[test]
fn moments_are_told_from_other_texts() {
    for good in ["2026-01-31T12:00:00Z", "2024-02-29T23:59:59.123456+14:00"] {
        assert!(is_moment(good.as_bytes()), "{good}");
    }
    for bad in [
        "",
        "2026-01-31",
        "2026-01-31 12:00:00Z",
        "2026-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00+1:00",
        "26-01-31T12:00:00Z",
        "2026-01-31T12:00:00Zé",
        "aaaa-aa-aaTaa:aa:aaZ",
    ] {
        assert!(!is_moment(bad.as_bytes()), "{bad}");
    }
}

#[test]
fn no_table_is_longer_than_there_is_room_for() {
    for entry in &ENTRIES {
        assert!(matches!(entry, Entry(members) if COMMON.len() + members.len() <= MOST));
    }
}

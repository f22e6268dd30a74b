//! Random JSON as text, so that numbers, escapes, white space and doubled keys are what a sender might really write.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Keys that Weir looks for, plainly and with escapes, among keys it does not.
const KEYS: [&str; 24] = [
    "name",
    "na\\u006de",
    "\\u006eam\\u0065",
    "uri",
    "cursor",
    "taskId",
    "requestId",
    "progressToken",
    "arguments",
    "requestState",
    "inputResponses",
    "_meta",
    "\\u005fmeta",
    "ref",
    "type",
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol\\/subscriptionId",
    "io.modelcontextprotocol/clientCapabilities",
    "resultType",
    "nextCursor",
    "",
    "x",
    "\\\\name",
    "n\\u00e4me",
];

const SCALARS: [&str; 16] = [
    "null",
    "true",
    "false",
    "0",
    "-0",
    "1e400",
    "-1.5E-7",
    "1152921504606846977",
    "12345678901234567890123",
    "\"ref/prompt\"",
    "\"2026-07-28\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ud800\"",
    "\"\\\"}]\\\\\"",
    "\"a\"",
    "\"\"",
];

pub(crate) fn space() -> impl Strategy<Value = &'static str> + Clone {
    prop_oneof![6 => Just(""), 1 => select(vec![" ", "\n", "\t\r\n  "])]
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![Just("\\n".to_owned()), Just("\\u0000".to_owned()), "[a-zA-Z é日😀{}:,\\[\\]]{0,40}",];
    vec(piece, 0..4).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

/// A scalar, as it is written.
pub(crate) fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => select(SCALARS.to_vec()).prop_map(str::to_owned),
        2 => text(),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => any::<f64>().prop_filter("JSON has no infinities", |n| n.is_finite()).prop_map(|n| format!("{n:e}")),
    ]
}

pub(crate) fn key() -> impl Strategy<Value = String> {
    prop_oneof![5 => select(KEYS.to_vec()).prop_map(|key| format!("\"{key}\"")), 1 => text()]
}

fn object(members: Vec<(String, String, &'static str)>) -> String {
    let members = members.iter().map(|(key, value, space)| format!("{space}{key}{space}:{value}{space}"));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

/// Any document.
pub(crate) fn document() -> impl Strategy<Value = String> {
    scalar().prop_recursive(6, 64, 6, |inner| {
        let array = (vec(inner.clone(), 0..6), space())
            .prop_map(|(items, space)| format!("[{space}{}{space}]", items.join(&format!("{space},"))));
        prop_oneof![array, vec((key(), inner, space()), 0..8).prop_map(object)]
    })
}

/// An object with keys that matter, some of them doubled.
pub(crate) fn body() -> impl Strategy<Value = String> {
    vec((key(), document(), space()), 0..8).prop_map(object)
}

/// A valid message, with its members in any order, some of them unknown.
pub(crate) fn message() -> impl Strategy<Value = String> {
    let id = select(vec!["1", "\"a\"", "-1152921504606846977", "\"\\u0031\""]);
    let method = select(vec!["vendor/call", "m\\u0065thod", "notifications/progress"]);
    let huge = prop_oneof![12 => Just(0_usize), 1 => Just(1 << 20)];
    let kind = 0..4_usize;
    (kind, id, method, body(), vec((key(), document()), 0..3), huge, space()).prop_perturb(
        |(kind, id, method, body, extra, huge, space), mut random| {
            let mut members = vec!["\"jsonrpc\":\"2.0\"".to_owned()];
            if kind != 1 {
                members.push(format!("\"id\":{id}"));
            }
            if kind < 2 {
                members.push(format!("\"method\":\"{method}\""));
            }
            let name = ["params", "par\\u0061ms", "result", "error"][kind];
            members.push(format!("\"{name}\"{space}:{body}"));
            members.extend(extra.iter().map(|(key, value)| format!("{key}:{value}")));
            if huge > 0 {
                members.push(format!("\"huge\":\"{}\"", "y".repeat(huge)));
            }
            for at in (1..members.len()).rev() {
                members.swap(at, random.random_range(0..=at));
            }
            format!("{space}{{{}}}{space}", members.join(&format!(",{space}")))
        },
    )
}

//! How long it takes to scan a message: `cargo run --release -p weir-mcp --example scan_speed`.
//!
//! The scan is paid for every message that passes through the gateway, so a change to it should be measured before and
//! after. Prints the best of many rounds, which is what the code costs when nothing else disturbs it.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a measurement needs a clock and prints; only the library must be pure"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_mcp::{Field, Message, json};

fn main() {
    let plain = "The quick brown fox jumps over the lazy dog. ".repeat(1457);
    let code = "    let x = compute(\"a\\\\b\", 17);\n".repeat(1900);
    let foreign = "Größe, 日本語 und mehr Text ".repeat(1900);
    let numbers: Vec<String> = (0..9000).map(|n| format!("{}", n * 7919 % 100_003)).collect();
    let records = "{\"id\":12,\"name\":\"item\",\"ok\":true,\"tags\":[\"a\",\"b\"],\"at\":null},".repeat(1050);
    for (what, arguments) in [
        ("tools/call, small", r#"{"city":"Oslo","days":3}"#.to_owned()),
        ("plain text", format!("{{\"text\":{}}}", json::quote(&plain[..65_536]))),
        ("source code with escapes", format!("{{\"text\":{}}}", json::quote(&code))),
        ("text beyond ASCII", format!("{{\"text\":{}}}", json::quote(&foreign))),
        ("array of numbers", format!("{{\"rows\":[{}]}}", numbers.join(","))),
        ("small records", format!("{{\"rows\":[{}]}}", records.trim_end_matches(','))),
    ] {
        let body = Bytes::from(format!(
            r#"{{"jsonrpc":"2.0","id":41,"method":"tools/call","params":{{"name":"files__read","arguments":{arguments}}}}}"#
        ));
        let scan = best(|| drop(black_box(Message::parse(black_box(body.clone())))));
        let message = Message::parse(body.clone()).expect("a message");
        let edit = best(|| {
            let edit = message.edit().set(Field::Name, "\"read\"").set(Field::Id, "7");
            drop(black_box(edit.finish()));
        });
        let rate = body.len() as f64 / scan;
        println!("{what:26} {:6} B   scan {scan:9.0} ns ({rate:5.1} GB/s)   splice {edit:7.0} ns", body.len());
    }
}

/// Nanoseconds of one call, the best of the rounds that fit into half a second.
fn best(mut run: impl FnMut()) -> f64 {
    const CALLS: u32 = 64;
    let begin = Instant::now();
    let mut best = f64::MAX;
    while begin.elapsed() < Duration::from_millis(500) {
        let round = Instant::now();
        for _ in 0..CALLS {
            run();
        }
        best = best.min(round.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    best
}

//! A guest that logs far too much, and answers nevertheless.

use weir_policy::{Attempt, Connection, Step, Upstream, capability::log};

struct Flood;

impl Connection for Flood {
    fn next(_: Upstream, _: Vec<Attempt>) -> Step {
        let line = format!("flood\n\u{1b}[2J{}", "x".repeat(8 << 10));
        for _ in 0..1000 {
            log::warn(&line);
        }
        Step::stop("dry again")
    }
}

weir_policy::export_connection!(Flood);

//! A guest that wants all the memory there is.

use std::hint::black_box;

use weir_policy::{Attempt, Connection, Step, Upstream};

struct Bomb;

impl Connection for Bomb {
    fn next(_: Upstream, _: Vec<Attempt>) -> Step {
        let mut all = Vec::new();
        loop {
            // Not touched: a machine with slow pages must find it greedy and not late.
            all.push(black_box(Vec::<u8>::with_capacity(1 << 20)));
        }
    }
}

weir_policy::export_connection!(Bomb);

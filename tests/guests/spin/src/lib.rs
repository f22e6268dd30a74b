//! A guest that never answers.

use std::hint::spin_loop;

use weir_policy::{Attempt, Connection, Step, Upstream};

struct Spin;

impl Connection for Spin {
    fn next(_: Upstream, _: Vec<Attempt>) -> Step {
        loop {
            spin_loop();
        }
    }
}

weir_policy::export_connection!(Spin);

//! The shipped policy that finds out how an upstream is reached. Decisions are in `machine`; this is the way out of the
//! component.

pub mod machine;
mod message;

use weir_policy::{Attempt, Connection, Step, Upstream};

struct Fallback;

impl Connection for Fallback {
    fn next(to: Upstream, history: Vec<Attempt>) -> Step {
        machine::next(&to, &history)
    }
}

weir_policy::export_connection!(Fallback);

//! A guest that panics at every question.

use weir_policy::{Attempt, Choice, Connection, Credentials, Question, Step, Upstream};

struct Trap;

impl Connection for Trap {
    fn next(_: Upstream, _: Vec<Attempt>) -> Step {
        panic!("on purpose")
    }
}

impl Credentials for Trap {
    fn choose(_: Question) -> Choice {
        panic!("on purpose")
    }
}

weir_policy::export_connection!(Trap);
weir_policy::export_credentials!(Trap);

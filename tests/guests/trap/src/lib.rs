//! A guest that panics at every question.

use weir_policy::{Attempt, Connection, Credentials, Decision, Question, Step, Upstream};

struct Trap;

impl Connection for Trap {
    fn next(_: Upstream, _: Vec<Attempt>) -> Step {
        panic!("on purpose")
    }
}

impl Credentials for Trap {
    fn decide(_: Question) -> Decision {
        panic!("on purpose")
    }
}

weir_policy::export_connection!(Trap);
weir_policy::export_credentials!(Trap);

//! A guest that panics with a secret in its mouth.

use weir_policy::{
    Credentials, Decision, Question,
    capability::{log, secrets},
};

struct Leaker;

impl Credentials for Leaker {
    fn decide(_: Question) -> Decision {
        log::panics();
        panic!("it is {:?}", secrets::read("token"))
    }
}

weir_policy::export_credentials!(Leaker);

//! A guest that panics with a secret in its mouth.

use weir_policy::{
    Choice, Credentials, Question,
    capability::{log, secrets},
};

struct Leaker;

impl Credentials for Leaker {
    fn choose(_: Question) -> Choice {
        log::panics();
        panic!("it is {:?}", secrets::read("token"))
    }
}

weir_policy::export_credentials!(Leaker);

//! A guest that panics with a secret in its mouth, or stops with it if its settings say `stop`.

use weir_policy::{
    Credentials, Decision, Question,
    capability::{log, secrets},
};

struct Leaker;

impl Credentials for Leaker {
    fn decide(question: Question) -> Decision {
        let secret = secrets::read("token");
        if question.upstream.settings.contains("stop") {
            return Decision::Stop(format!("it is {}", secret.unwrap_or_default()));
        }
        log::panics();
        panic!("it is {secret:?}")
    }
}

weir_policy::export_credentials!(Leaker);

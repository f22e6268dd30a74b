//! The shipped policy for upstreams that are opened by a token from an authorization server: it says when the token that Weir
//! keeps will do, when it is renewed, and when a new one is needed. Decisions are in `machine`, what it stops with in
//! `message`; this is the way out of the component.

pub mod machine;
mod message;

use weir_policy::{Credentials, Decision, Question};

struct OAuth;

impl Credentials for OAuth {
    fn decide(about: Question) -> Decision {
        machine::decide(&about)
    }
}

weir_policy::export_credentials!(OAuth);

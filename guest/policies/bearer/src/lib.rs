//! The shipped policy for upstreams that are opened by a token from the configuration: it places the secret `token` in
//! `Authorization: Bearer` without reading it. Decisions are in `machine`; this is the way out of the component.

pub mod machine;

use weir_policy::{Credentials, Decision, Question};

struct Bearer;

impl Credentials for Bearer {
    fn decide(about: Question) -> Decision {
        machine::decide(&about)
    }
}

weir_policy::export_credentials!(Bearer);

//! The shipped policy for upstreams that are opened by a token from the configuration: it places the secret `token` in
//! `Authorization: Bearer` without reading it. Decisions are in `machine`; this is the way out of the component.

pub mod machine;

use weir_policy::{Choice, Credentials, Question};

struct Bearer;

impl Credentials for Bearer {
    fn choose(about: Question) -> Choice {
        machine::choose(&about)
    }
}

weir_policy::export_credentials!(Bearer);

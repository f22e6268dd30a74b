//! The shipped policy that keeps personal data from the model: it replaces what its detectors find in answers. Where
//! `reversible` is set, it puts the values back into the arguments of later calls.
//!
//! Weir keeps a store for each upstream. So `<email:1>` of one upstream is another value, or none, at the next.
//!
//! The grant `store` is needed even where nothing is reversible, for the component imports it.

#![cfg_attr(test, allow(clippy::expect_used, reason = "a test may stop at the first surprise"))]

mod base64;
mod detect;
mod document;
mod machine;
mod mapping;
mod pattern;
mod placeholder;
mod search;
mod settings;
mod text;
mod vault;

use weir_policy::{Upstream, calls::*};

struct Redact;

impl Calls for Redact {
    fn wants(settings: String) -> Result<Interest, String> {
        machine::wants(&settings)
    }

    fn before(about: Call, params: Option<String>) -> Decision {
        machine::before(&about, params.as_deref(), &vault::Granted)
    }

    fn after(about: Call, memory: String, what: Content) -> AnswerDecision {
        machine::after(&about, memory, what, &vault::Granted)
    }

    fn entries(_: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        entries.iter().map(|_| EntryVerdict::Show).collect()
    }
}

weir_policy::export_calls!(Redact);

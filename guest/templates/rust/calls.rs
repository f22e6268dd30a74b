//! A policy about calls: nothing is deleted.

use weir_policy::{Upstream, calls::*};

struct Policy;

impl Calls for Policy {
    /// What it wants to see. What it does not want to see never crosses to it.
    fn wants(_settings: String) -> Result<Interest, String> {
        Ok(Interest { request: Detail::Facts, ..Interest::in_methods(["tools/call"]).of_names(["delete_*"]) })
    }

    /// What becomes of a request. The decision is kept for a minute for calls with the same facts.
    fn before(about: Call, _params: Option<String>) -> Decision {
        let name = about.name.unwrap_or_default();
        Decision::deny(format!("{name} is not allowed here: nothing is deleted; archive it instead")).for_seconds(60)
    }

    /// What becomes of what comes back.
    fn after(_: Call, memory: String, _: Content) -> AnswerDecision {
        AnswerDecision::pass(memory)
    }

    /// What becomes of entries of lists.
    fn entries(_: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        entries.iter().map(|_| EntryVerdict::Show).collect()
    }
}

weir_policy::export_calls!(Policy);

//! The policy `weir:shape`: results of tools that are too large for a model's context are cut.
//!
//! One answer of some tools fills the context of a model. This policy leaves out what the operator does not want, cuts long
//! arrays, and holds the rest to a budget. It stores what it cuts off for an hour. A link in the result names the resource
//! that has it, and only the same caller can read that.
//!
//! | setting | meaning |
//! | --- | --- |
//! | `budget_bytes` | the most that a result delivers; 32768 unless it is said |
//! | `items` | the most elements of an array; no limit unless it is said |
//! | `ttl_seconds` | how long the rest can be read; 3600 unless it is said |
//! | `tools` | a list of `names` with `keep`, `drop`, `items` and `budget_bytes` of their own; the first that fits counts |

#![cfg_attr(test, allow(clippy::expect_used, reason = "a test may stop at the first surprise"))]

mod caller;
mod notice;
mod page;
mod part;
mod parts_store;
mod path;
mod pattern;
mod policy;
mod reshape;
mod resource;
mod scan;
mod settings;
mod shaped;

use weir_policy::{Upstream, calls::*};

struct Shape;

impl Calls for Shape {
    fn wants(settings: String) -> Result<Interest, String> {
        policy::wants(&settings)
    }

    fn before(about: Call, _: Option<String>) -> Decision {
        policy::before(&about, &parts_store::Granted)
    }

    fn after(about: Call, memory: String, what: Content) -> AnswerDecision {
        policy::after(&about, memory, what, &parts_store::Granted)
    }

    fn entries(_: Upstream, entries: Vec<Entry>) -> Vec<EntryVerdict> {
        entries.iter().map(policy::entry).collect()
    }
}

weir_policy::export_calls!(Shape);

//! What the operator is told of the merged lists: which names were cut, which addresses are hidden, and which templates are
//! too much.

use std::collections::HashSet;

use crate::{catalog::names, config::UpstreamName};

use super::{ListKind, MergedLists, Offer};

/// How many names and addresses are told of.
const ROOM: usize = 1000;

/// How much of a template goes into the log, in characters.
const TEMPLATE_IN_LOG: usize = 64;

/// What has been told. Each is said once, however often its upstream comes and goes, and in however many eras.
#[derive(Default)]
pub(in crate::catalog) struct Reported {
    said: HashSet<(ListKind, UpstreamName, String)>,
    /// The patterns that match nothing now.
    unmatched: Vec<String>,
}

impl Reported {
    /// Tells what is new.
    pub(in crate::catalog) fn report(&mut self, merged: &MergedLists) {
        for (upstream, (count, first)) in merged.templates.unmatched() {
            let first: String = first.chars().take(TEMPLATE_IN_LOG).collect();
            if self.is_new(ListKind::Template, upstream, &format!("{count} not matched, {first}")) {
                tracing::warn!(
                    %upstream,
                    count,
                    first,
                    "templates that are too long, have too many expressions or break off are listed, but on /mcp no \
                     address is matched with them"
                );
            }
        }
        for kind in ListKind::ALL {
            let list = &merged.lists[kind as usize];
            for (upstream, key) in &list.hidden {
                if self.is_new(kind, upstream, key) {
                    tracing::warn!(%upstream, key, "offered by an earlier upstream too, which has it on /mcp");
                }
            }
            for (public, offer) in list.offers.iter().filter(|_| kind.is_renamed()) {
                let Offer { upstream, native, .. } = offer;
                // What was cut ends in a hash.
                if !public.ends_with(native.as_str()) && self.is_new(kind, upstream, native) {
                    tracing::warn!(%upstream, native, public, "name over {} characters is shortened", names::BUDGET);
                }
            }
        }
    }

    /// Tells which patterns have come to match nothing.
    pub(in crate::catalog) fn report_unmatched(&mut self, unmatched: Vec<String>) {
        for text in unmatched.iter().filter(|text| !self.unmatched.contains(text)) {
            tracing::warn!("{text}");
        }
        self.unmatched = unmatched;
    }

    fn is_new(&mut self, kind: ListKind, upstream: &UpstreamName, key: &str) -> bool {
        if self.said.len() > ROOM || !self.said.insert((kind, upstream.clone(), key.to_owned())) {
            return false;
        }
        if self.said.len() > ROOM {
            tracing::warn!("over {ROOM} names and addresses are shortened or offered twice; no more are logged");
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn each_conflict_is_new_once_and_there_is_a_limit() {
        let [a, b] = ["a", "b"].map(|name| name.parse::<UpstreamName>().unwrap());
        let mut reported = Reported::default();
        assert!(reported.is_new(ListKind::Resource, &a, "x://1"));
        assert!(!reported.is_new(ListKind::Resource, &a, "x://1"));
        assert!(reported.is_new(ListKind::Resource, &b, "x://1"));
        assert!(reported.is_new(ListKind::Template, &a, "x://1"));
        let new = (0..2 * ROOM).filter(|at| reported.is_new(ListKind::Tool, &a, &at.to_string())).count();
        assert_eq!(new, ROOM - 3);
    }
}

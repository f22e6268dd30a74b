//! What the operator is told of the merged lists: which names were cut, which addresses are hidden, and which templates are
//! too much.

use std::collections::HashSet;

use crate::catalog::names;

use super::{ListKind, MergedLists};

/// How many names and addresses are told of.
const ROOM: usize = 1000;

/// How much of a template goes into the log, in characters.
const TEMPLATE_IN_LOG: usize = 64;

/// What has been told. Each is said once, however often its upstream comes and goes, and in however many eras.
#[derive(Default)]
pub(in crate::catalog) struct Reported {
    said: HashSet<(ListKind, usize, String)>,
}

impl Reported {
    /// Tells what is new.
    pub(in crate::catalog) fn report(&mut self, merged: &MergedLists, upstreams: &[&str]) {
        for (place, (count, first)) in merged.templates.unmatched() {
            let upstream = upstreams.get(place).copied().unwrap_or_default();
            let first: String = first.chars().take(TEMPLATE_IN_LOG).collect();
            if self.is_new(ListKind::Template, place, &format!("{count} not matched, {first}")) {
                tracing::warn!(
                    upstream,
                    count,
                    first,
                    "templates that are too long, have too many expressions or break off are listed, but on /mcp no \
                     address is matched with them"
                );
            }
        }
        for kind in ListKind::ALL {
            let list = &merged.lists[kind as usize];
            for (place, key) in &list.hidden {
                let upstream = upstreams.get(*place).copied().unwrap_or_default();
                if self.is_new(kind, *place, key) {
                    tracing::warn!(upstream, key, "offered by an earlier upstream too, which has it on /mcp");
                }
            }
            for (public, offer) in list.offers.iter().filter(|_| kind.is_renamed()) {
                let upstream = upstreams.get(offer.upstream).copied().unwrap_or_default();
                let native = &offer.native;
                // What was cut is shorter than the whole.
                if public.len() < names::whole(upstream, native) && self.is_new(kind, offer.upstream, native) {
                    tracing::warn!(upstream, native, public, "name over {} characters is shortened", names::BUDGET);
                }
            }
        }
    }

    fn is_new(&mut self, kind: ListKind, upstream: usize, key: &str) -> bool {
        if self.said.len() > ROOM || self.said.contains(&(kind, upstream, key.to_owned())) {
            return false;
        }
        self.said.insert((kind, upstream, key.to_owned()));
        if self.said.len() > ROOM {
            tracing::warn!("over {ROOM} names and addresses are shortened or offered twice; no more are logged");
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_conflict_is_new_once_and_there_is_a_limit() {
        let mut reported = Reported::default();
        assert!(reported.is_new(ListKind::Resource, 1, "x://1"));
        assert!(!reported.is_new(ListKind::Resource, 1, "x://1"));
        assert!(reported.is_new(ListKind::Resource, 2, "x://1"));
        assert!(reported.is_new(ListKind::Template, 1, "x://1"));
        let new = (0..2 * ROOM).filter(|at| reported.is_new(ListKind::Tool, 0, &at.to_string())).count();
        assert_eq!(new, ROOM - 3);
    }
}

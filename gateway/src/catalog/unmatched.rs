//! Patterns of rules and toolsets that match nothing, which the operator is told: a typing error there hides a tool, or
//! leaves one open.

use weir_mcp::ListKind;

use crate::config::{ItemPattern, ItemPatterns, Pattern, Selection, Selections, UpstreamName};

use super::CatalogUpstreams;

/// A pattern, and what it is of: a kind of item at some upstreams.
struct WrittenPattern<'a> {
    /// The rule or toolset, for the log.
    of: String,
    upstreams: &'a [Pattern],
    kind: ListKind,
    pattern: &'a ItemPattern,
}

impl CatalogUpstreams {
    /// The patterns that match nothing of what their upstreams offer, in words. One whose upstream has not been reached may
    /// match yet.
    pub(super) fn unmatched(&self) -> Vec<String> {
        let items = self.items();
        let known = |name: &UpstreamName| self.entries.get(name).is_some_and(|entry| entry.knows(None));
        let is_open = |written: &WrittenPattern<'_>| {
            let concerned = || items.iter().filter(|(name, _)| written.concerns(name.as_str()));
            let matched =
                concerned().any(|(name, items)| items.iter().any(|item| written.matches(name.as_str(), item)));
            !matched && concerned().all(|(name, _)| known(name))
        };
        self.patterns().into_iter().filter(is_open).map(|written| written.text()).collect()
    }

    fn patterns(&self) -> Vec<WrittenPattern<'_>> {
        let mut all = Vec::new();
        for rule in self.snapshot.access().rules() {
            let ItemPatterns { tools, prompts, resources } = &rule.items;
            let of = format!("rule `{}`", rule.name);
            for (kind, list) in [(ListKind::Tool, tools), (ListKind::Prompt, prompts), (ListKind::Resource, resources)]
            {
                let written = |pattern| WrittenPattern { of: of.clone(), upstreams: &rule.upstreams, kind, pattern };
                all.extend(list.iter().flatten().map(written));
            }
        }
        for config in self.snapshot.toolsets().filter_map(|toolset| toolset.config()) {
            let Selections { tools, prompts, resources } = &config.items;
            let of = format!("toolset `{}`", config.name);
            let listed = [(ListKind::Tool, tools), (ListKind::Prompt, prompts), (ListKind::Resource, resources)];
            for (kind, selection) in listed.into_iter().filter_map(|(kind, list)| Some((kind, list.as_ref()?))) {
                let Selection { allow, deny } = selection;
                let written = |pattern| WrittenPattern { of: of.clone(), upstreams: &config.upstreams, kind, pattern };
                all.extend(allow.iter().flatten().chain(deny).map(written));
            }
            let (kind, upstreams) = (ListKind::Tool, &config.upstreams);
            let written = |(pattern, _)| WrittenPattern { of: of.clone(), upstreams, kind, pattern };
            all.extend(config.overrides.iter().map(|(pattern, changed)| (pattern, changed)).map(written));
        }
        all
    }
}

impl WrittenPattern<'_> {
    fn concerns(&self, upstream: &str) -> bool {
        let picked = self.upstreams.is_empty() || self.upstreams.iter().any(|pattern| pattern.matches(upstream));
        picked && self.pattern.upstream.as_ref().is_none_or(|pattern| pattern.matches(upstream))
    }

    fn matches(&self, upstream: &str, (kind, native): &(ListKind, String)) -> bool {
        match (self.kind, kind) {
            (ListKind::Resource, ListKind::Template) => self.pattern.may_match(upstream, native),
            (own, kind) => own == *kind && self.pattern.matches(upstream, native),
        }
    }

    fn text(&self) -> String {
        format!("{}: no {} matches `{}`", self.of, self.kind.noun(), self.pattern)
    }
}

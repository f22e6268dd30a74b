//! Patterns of the configuration that match nothing, which the operator is told: a typing error there hides a tool, or leaves
//! one open.

use std::sync::Arc;

use weir_mcp::{Era, ListKind};

use crate::config::{ItemPattern, ItemPatterns, OwnLimits, Pattern, Selection, Selections, UpstreamName};

use super::{CatalogSnapshot, CatalogUpstreams};

/// A pattern, and what it is of: a kind of item at some upstreams.
struct WrittenPattern<'a> {
    /// The rule, toolset or table, for the log.
    of: &'a str,
    upstreams: &'a [Pattern],
    /// The upstream that says with it what of itself is served.
    own: Option<&'a UpstreamName>,
    kind: ListKind,
    pattern: &'a ItemPattern,
}

/// What each upstream has, as it calls it.
type UpstreamItems = Vec<(UpstreamName, Vec<(ListKind, String)>)>;

impl CatalogUpstreams {
    /// The patterns that match nothing of what their upstreams offer, in words. One whose upstream has not been reached
    /// may match yet, and so may one that is of disabled upstreams alone.
    pub(super) fn unmatched(&self) -> Vec<String> {
        let (seen, decided, unserved) = (self.items(), self.decided(), self.unserved());
        let mut open = Vec::new();
        self.each_pattern(|written| {
            let concerned = seen.iter().chain(&decided).filter(|(name, _)| written.concerns(name));
            let withheld = unserved.iter().filter(|(name, _)| written.own == Some(name));
            let matched = concerned
                .chain(withheld)
                .any(|(name, items)| items.iter().any(|item| written.matches(name.as_str(), item)));
            let mut reached = seen.iter().filter(|(name, _)| written.concerns(name)).peekable();
            let waits = reached.peek().is_none() && self.snapshot.disabled().iter().any(|name| written.concerns(name));
            let is_known = !waits && reached.all(|(name, _)| self.has_listed(name, written.kind));
            if !matched && is_known {
                open.push(written.text());
            }
        });
        open
    }

    /// Whether it is known what an upstream offers of a kind.
    fn has_listed(&self, upstream: &UpstreamName, kind: ListKind) -> bool {
        let has = |failed: ListKind| failed == kind || (failed, kind) == (ListKind::Template, ListKind::Resource);
        self.view(upstream).is_some_and(|view| !view.failed.iter().any(|(failed, _)| has(*failed)))
    }

    fn view(&self, upstream: &UpstreamName) -> Option<Arc<CatalogSnapshot>> {
        let entry = self.entries.get(upstream)?;
        entry.view(Era::Modern).or_else(|| entry.view(Era::Legacy))
    }

    /// What upstreams offer, and the configuration does not serve.
    fn unserved(&self) -> UpstreamItems {
        let of = |name: &UpstreamName| {
            let view = self.view(name)?;
            let named = |kind: ListKind| view.unserved[kind as usize].iter().map(move |key| (kind, key.clone()));
            Some((name.clone(), ListKind::ALL.into_iter().flat_map(named).collect()))
        };
        self.entries.keys().filter_map(of).collect()
    }

    /// What their policies have decided about, shown or hidden.
    fn decided(&self) -> UpstreamItems {
        let of = |name: &UpstreamName| {
            let view = self.view(name)?;
            let named =
                |kind: ListKind| view.decided[kind as usize].iter().flatten().map(move |(key, _)| (kind, key.clone()));
            Some((name.clone(), ListKind::ALL.into_iter().flat_map(named).collect()))
        };
        self.entries.keys().filter_map(of).collect()
    }

    fn each_pattern(&self, mut each: impl FnMut(WrittenPattern<'_>)) {
        for rule in self.snapshot.access().rules() {
            let ItemPatterns { tools, prompts, resources } = &rule.items;
            let of = format!("rule `{}`", rule.name);
            let listed = [(ListKind::Tool, tools), (ListKind::Prompt, prompts), (ListKind::Resource, resources)];
            for (kind, pattern) in
                listed.into_iter().flat_map(|(kind, list)| list.iter().flatten().map(move |one| (kind, one)))
            {
                each(WrittenPattern { of: &of, upstreams: &rule.upstreams, own: None, kind, pattern });
            }
        }
        for config in self.snapshot.toolsets().filter_map(|toolset| toolset.config()) {
            let of = format!("toolset `{}`", config.name);
            let overridden = config.overrides.iter().map(|(pattern, _)| (ListKind::Tool, pattern));
            for (kind, pattern) in selected(&config.items).chain(overridden) {
                each(WrittenPattern { of: &of, upstreams: &config.upstreams, own: None, kind, pattern });
            }
        }
        for upstream in self.snapshot.upstreams() {
            let of = format!("upstream `{}`", upstream.key());
            let own = upstream.key();
            for (kind, pattern) in selected(upstream.served()) {
                each(WrittenPattern { of: &of, upstreams: &[], own: Some(own), kind, pattern });
            }
        }
        for OwnLimits { whose, table, .. } in &self.snapshot.limits().own.tools {
            each(WrittenPattern { of: table, upstreams: &[], own: None, kind: ListKind::Tool, pattern: whose });
        }
    }
}

/// The patterns of what is selected, and of what is taken out again.
fn selected(items: &Selections) -> impl Iterator<Item = (ListKind, &ItemPattern)> {
    let Selections { tools, prompts, resources } = items;
    let listed = [(ListKind::Tool, tools), (ListKind::Prompt, prompts), (ListKind::Resource, resources)];
    listed.into_iter().flat_map(|(kind, selection)| {
        let patterns = selection.iter().flat_map(|Selection { allow, deny }| allow.iter().flatten().chain(deny));
        patterns.map(move |pattern| (kind, pattern))
    })
}

impl WrittenPattern<'_> {
    fn concerns(&self, upstream: &UpstreamName) -> bool {
        let picked =
            self.upstreams.is_empty() || self.upstreams.iter().any(|pattern| pattern.matches(upstream.as_str()));
        picked
            && self.own.is_none_or(|own| own == upstream)
            && self.pattern.upstream.as_ref().is_none_or(|pattern| pattern.matches(upstream.as_str()))
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

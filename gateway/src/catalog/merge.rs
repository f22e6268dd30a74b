//! The views of all upstreams as one: what a client is shown, and where each name leads.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use weir_mcp::{Era, json};

use super::{
    names, template,
    view::{Entry, View},
};

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `tools/list`
    Tool,
    /// `prompts/list`
    Prompt,
    /// `resources/list`
    Resource,
    /// `resources/templates/list`
    Template,
}

/// The merged lists of one era.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    lists: [List; 4],
    templates: Vec<(String, usize)>,
    /// `capabilities` for `initialize` or `server/discover`, raw.
    pub capabilities: String,
    /// The upstreams' instructions, each under its name.
    pub instructions: Option<String>,
}

/// Where a name leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The upstream's place in the configuration.
    pub upstream: usize,
    /// What the upstream itself calls it.
    pub native: String,
}

#[derive(Clone, Debug, Default)]
struct List {
    /// The whole `result`, ready to be sent.
    result: Bytes,
    offers: HashMap<String, Offer>,
    /// What an earlier upstream offers too.
    hidden: HashSet<(usize, String)>,
}

impl Kind {
    /// All kinds, in the order they are fetched.
    pub(super) const ALL: [Self; 4] = [Self::Tool, Self::Prompt, Self::Resource, Self::Template];

    /// The kind that a method lists.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// The method that lists it.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tool => "tools/list",
            Self::Prompt => "prompts/list",
            Self::Resource => "resources/list",
            Self::Template => "resources/templates/list",
        }
    }

    pub(super) const fn list(self) -> &'static str {
        match self {
            Self::Tool => "tools",
            Self::Prompt => "prompts",
            Self::Resource => "resources",
            Self::Template => "resourceTemplates",
        }
    }

    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Tool | Self::Prompt => "name",
            Self::Resource => "uri",
            Self::Template => "uriTemplate",
        }
    }

    pub(super) const fn capability(self) -> &'static str {
        match self {
            Self::Tool => "tools",
            Self::Prompt => "prompts",
            Self::Resource | Self::Template => "resources",
        }
    }

    const fn is_renamed(self) -> bool {
        matches!(self, Self::Tool | Self::Prompt)
    }
}

impl Merged {
    /// Merges what is known, in the order of the configuration.
    pub(super) fn new(era: Era, names: &[&str], views: &[Option<Arc<View>>]) -> Self {
        let known =
            || names.iter().enumerate().zip(views).filter_map(|((at, name), view)| Some((at, *name, view.as_deref()?)));
        let mut merged = Self::default();
        let freshness = freshness(era, known().map(|(_, _, view)| view));
        for kind in Kind::ALL {
            let mut writer = ListWriter::new(kind);
            for (upstream, name, view) in known() {
                for entry in view.entries(kind) {
                    writer.add(upstream, name, entry);
                }
            }
            if kind == Kind::Template {
                merged.templates = writer.order.clone();
            }
            merged.lists[kind as usize] = writer.finish(&freshness);
        }
        merged.capabilities = capabilities(era, known().map(|(_, _, view)| view));
        merged.instructions = instructions(known().map(|(_, name, view)| (name, view)));
        merged
    }

    /// The whole `result` of a list, as JSON.
    #[must_use]
    pub fn result(&self, kind: Kind) -> &Bytes {
        &self.lists[kind as usize].result
    }

    /// Where a public name leads.
    #[must_use]
    pub fn find(&self, kind: Kind, name: &str) -> Option<&Offer> {
        self.lists[kind as usize].offers.get(name)
    }

    /// Which upstream has the resource at `uri`: the one that lists it, else the one with a template that it fits.
    #[must_use]
    pub fn find_resource(&self, uri: &str) -> Option<usize> {
        let listed = self.find(Kind::Resource, uri).or_else(|| self.find(Kind::Template, uri));
        listed.map(|offer| offer.upstream).or_else(|| {
            self.templates.iter().find(|(known, _)| template::fits(known, uri)).map(|(_, upstream)| *upstream)
        })
    }

    /// Whether the list of a kind is the same in both.
    pub(super) fn same(&self, other: &Self, kind: Kind) -> bool {
        self.result(kind) == other.result(kind)
    }

    /// Tells the operator which names were cut and which addresses are hidden, once for each.
    pub(super) fn report(&self, before: &Self, upstreams: &[&str]) {
        for kind in Kind::ALL {
            let (now, then) = (&self.lists[kind as usize], &before.lists[kind as usize]);
            for (upstream, key) in now.hidden.difference(&then.hidden) {
                let upstream = upstreams.get(*upstream).copied().unwrap_or_default();
                tracing::warn!(upstream, key, "offered by an earlier upstream too, which has it on /mcp");
            }
            let (now, then) = (&now.offers, &then.offers);
            for (public, offer) in now.iter().filter(|(public, offer)| then.get(*public) != Some(offer)) {
                let upstream = upstreams.get(offer.upstream).copied().unwrap_or_default();
                if kind.is_renamed() && *public != format!("{upstream}__{}", offer.native) {
                    tracing::warn!(
                        upstream,
                        native = offer.native,
                        public,
                        "name over {} characters is shortened",
                        names::BUDGET
                    );
                }
            }
        }
    }
}

/// One list being written.
struct ListWriter {
    kind: Kind,
    body: BytesMut,
    offers: HashMap<String, Offer>,
    order: Vec<(String, usize)>,
    hidden: HashSet<(usize, String)>,
}

impl ListWriter {
    fn new(kind: Kind) -> Self {
        let mut body = BytesMut::new();
        body.put_slice(format!(r#"{{"{}":["#, kind.list()).as_bytes());
        Self { kind, body, offers: HashMap::new(), order: Vec::new(), hidden: HashSet::new() }
    }

    /// Adds an entry unless its name or address is taken: the first in the configuration has it.
    fn add(&mut self, upstream: usize, name: &str, entry: &Entry) {
        let public = if self.kind.is_renamed() { names::public(name, &entry.key) } else { entry.key.clone() };
        if let Some(taken) = self.offers.get(&public) {
            if taken.upstream != upstream {
                tracing::warn!(
                    upstream = name,
                    key = public,
                    "offered by an earlier upstream too, which has it on /mcp"
                );
            }
            return;
        }
        if !self.order.is_empty() {
            self.body.put_u8(b',');
        }
        match json::get(&entry.raw, &[self.kind.key()]).filter(|_| self.kind.is_renamed()) {
            Some(span) => {
                // The slice lies in the entry, so its place follows from the addresses.
                let start = span.as_ptr() as usize - entry.raw.as_ptr() as usize;
                let (head, tail) = (&entry.raw[..start], &entry.raw[start + span.len()..]);
                self.body.put_slice(head);
                self.body.put_slice(json::quote(&public).as_bytes());
                self.body.put_slice(tail);
            }
            None => self.body.put_slice(&entry.raw),
        }
        self.order.push((public.clone(), upstream));
        self.offers.insert(public, Offer { upstream, native: entry.key.clone() });
    }

    fn finish(mut self, freshness: &str) -> List {
        self.body.put_slice(b"]");
        self.body.put_slice(freshness.as_bytes());
        self.body.put_slice(b"}");
        List { result: self.body.freeze(), offers: self.offers, hidden: self.hidden }
    }
}

/// The members that a modern list result ends in: kept as long as the shortest-lived part, shared only if all parts may
/// be (MCP 2026-07-28, server/utilities/caching).
fn freshness<'a>(era: Era, views: impl Iterator<Item = &'a View>) -> String {
    if era == Era::Legacy {
        return String::new();
    }
    let (mut ttl, mut public, mut any) = (Duration::MAX, true, false);
    for view in views {
        any = true;
        ttl = ttl.min(view.ttl.unwrap_or_default());
        public &= view.public;
    }
    let ttl = if ttl == Duration::MAX { 0 } else { ttl.as_millis() };
    let scope = if public && any { "public" } else { "private" };
    format!(r#","resultType":"complete","ttlMs":{ttl},"cacheScope":"{scope}""#)
}

/// The union of what upstreams can do, in Weir's own words: lists change when upstreams come and go.
fn capabilities<'a>(era: Era, views: impl Iterator<Item = &'a View>) -> String {
    let (mut prompts, mut resources) = (false, false);
    let (mut subscribe, mut logging, mut completions) = (false, false, false);
    for view in views {
        let has = |path: &[&str]| json::get(&view.capabilities, path).is_some();
        prompts |= has(&["prompts"]);
        resources |= has(&["resources"]);
        logging |= has(&["logging"]);
        completions |= has(&["completions"]);
        subscribe |= json::get(&view.capabilities, &["resources", "subscribe"]) == Some(b"true");
    }
    // Always offered: an upstream that is still being reached may bring some.
    let mut text = String::from(r#"{"tools":{"listChanged":true}"#);
    if prompts {
        text.push_str(r#","prompts":{"listChanged":true}"#);
    }
    if resources {
        // Writing to a string cannot fail.
        let _ = write!(text, r#","resources":{{"listChanged":true,"subscribe":{}}}"#, subscribe && era == Era::Legacy);
    }
    for (there, name) in [(logging, "logging"), (completions, "completions")] {
        if there {
            let _ = write!(text, r#","{name}":{{}}"#);
        }
    }
    text.push('}');
    text
}

fn instructions<'a>(views: impl Iterator<Item = (&'a str, &'a View)>) -> Option<String> {
    let parts: Vec<String> =
        views.filter_map(|(name, view)| Some(format!("# {name}\n\n{}", view.instructions.as_deref()?))).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

#[cfg(test)]
mod tests;

//! The views of all upstreams as one: what a client is shown, and where each name leads.

mod accounts;
mod interfaces;
mod list;
mod report;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use indexmap::IndexMap;
use weir_mcp::{Era, ListKind};

use crate::{
    access::Toolset,
    config::{Account, UpstreamName},
    sealed_state::SealedState,
};

use super::{
    snapshot::{CatalogSnapshot, Freshness},
    starting,
    template::Templates,
    traits::{Traits, capabilities},
};

pub use accounts::AccountChoice;
use accounts::Services;
use interfaces::Interfaces;
use list::{ListWriter, PreparedList};
pub(super) use report::Reported;

/// How the addresses begin that policies have made: of `weir:shape`, which keeps what is too long for a model.
const OF_POLICIES: &str = "weir-shape://";

/// The merged lists of one era.
///
/// One for all callers, of what is asked for in Weir's own name and with the credential that all share; where callers have
/// logins of their own, one for each of them.
#[derive(Clone, Debug, Default)]
pub struct MergedLists {
    lists: [PreparedList; 4],
    templates: Templates,
    /// In the order of the configuration, without those of which nothing is known, or only that they wait for a login.
    traits: IndexMap<UpstreamName, Traits>,
    interfaces: Interfaces,
    /// For each scheme that some address has, the upstream that has it alone.
    schemes: HashMap<String, Option<UpstreamName>>,
    /// `capabilities` for `initialize` or `server/discover`, raw.
    pub capabilities: String,
    /// The upstreams' instructions, each under its name.
    pub instructions: Option<String>,
    /// How long what is said of all upstreams holds, and for whom: members of a modern result.
    pub freshness: String,
}

/// Where a name leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The upstream.
    pub upstream: UpstreamName,
    /// What the upstream itself calls it.
    pub native: String,
    /// How a call chooses among the accounts of its service, of which `upstream` is one; none where there is no choice.
    pub accounts: Option<AccountChoice>,
}

/// What is known of one upstream.
#[derive(Clone, Debug)]
pub(super) struct KnownUpstream {
    pub(super) name: UpstreamName,
    /// Which account of a service it is.
    pub(super) account: Option<Account>,
    /// None where nothing is known.
    pub(super) view: Option<Arc<CatalogSnapshot>>,
    /// Whether it has not been reached or given up on yet.
    pub(super) starting: bool,
}

impl KnownUpstream {
    /// What the names of its tools and prompts begin with.
    fn prefix(&self) -> &UpstreamName {
        let by_argument = self.account.as_ref().filter(|account| account.by_argument);
        by_argument.map_or(&self.name, |account| &account.service)
    }
}

/// How lists are cut into pages, and who may share them.
#[derive(Clone, Copy)]
pub(super) struct Paging<'a> {
    /// Seals cursors.
    pub(super) seal: &'a SealedState,
    /// How many entries a page has.
    pub(super) size: usize,
    /// Whether rules show different lists to different callers, so that no cache may give one's to another.
    pub(super) private: bool,
}

/// Which lists somebody has seen, by what they contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenLists([Option<u64>; 4]);

impl SeenLists {
    /// Takes note of the lists of these kinds, and says whether one of them is another than before.
    pub fn note(&mut self, now: Self, kinds: &[ListKind]) -> bool {
        let mut differs = false;
        for kind in kinds.iter().map(|kind| *kind as usize) {
            differs |= self.0[kind].is_none() || self.0[kind] != now.0[kind];
            self.0[kind] = now.0[kind];
        }
        differs
    }
}

impl MergedLists {
    /// Merges what is known, in the order of the configuration.
    pub(super) fn new(era: Era, upstreams: &[KnownUpstream], toolset: &Toolset, paging: Paging<'_>) -> Self {
        let known = || upstreams.iter().filter_map(|known| Some((&known.name, known.view.as_deref()?)));
        let starting: Vec<&UpstreamName> =
            upstreams.iter().filter(|known| known.starting).map(|known| &known.name).collect();
        let mut merged = Self { interfaces: Interfaces::new(known()), ..Self::default() };
        // What is about to change is not kept.
        let soon = || (!starting.is_empty()).then(Freshness::default);
        let lists = freshness(era, !paging.private, known().map(|(_, view)| view.lasts).chain(soon()));
        merged.freshness = freshness(era, !paging.private, known().map(|(_, view)| view.discovery_lasts).chain(soon()));
        let services = Services::new(era, upstreams);
        for kind in ListKind::ALL {
            let mut writer = ListWriter::new(kind, toolset.has_prefix(), paging.size);
            for (known, view) in upstreams.iter().filter_map(|known| Some((known, known.view.as_deref()?))) {
                for entry in view.entries(kind).iter().filter(|entry| era == Era::Modern || !entry.modern_only) {
                    writer.add(known, entry, &merged.interfaces, &services);
                }
            }
            match kind {
                ListKind::Tool if !starting.is_empty() => {
                    starting::tool(upstreams.iter().map(|known| &known.name)).iter().for_each(|tool| writer.push(tool));
                }
                ListKind::Tool | ListKind::Prompt => {}
                ListKind::Resource => writer.offer(merged.interfaces.unlisted()),
                ListKind::Template => merged.templates = Templates::new(writer.order()),
            }
            merged.note_schemes(writer.order());
            merged.lists[kind as usize] = writer.finish(era, &lists, paging.seal);
        }
        let there = known().filter(|(_, view)| !view.waits);
        merged.traits = there.map(|(upstream, view)| (upstream.clone(), Traits::of(era, view))).collect();
        let all_known = merged.traits.len() == upstreams.len();
        merged.capabilities = capabilities(era, merged.traits.values(), all_known);
        merged.instructions = match toolset.instructions() {
            Some(own) => Some(own.to_owned()),
            None => instructions(&starting, upstreams),
        };
        merged
    }

    /// The `result` of the first page of a list, as JSON.
    #[must_use]
    pub fn result(&self, kind: ListKind) -> &Bytes {
        self.lists[kind as usize].first()
    }

    /// How many bytes its pages have.
    pub(super) fn bytes(&self) -> usize {
        self.lists.iter().map(PreparedList::bytes).sum()
    }

    /// The `result` of the page that a cursor leads to; none if the cursor is not from here or the list is another now.
    #[must_use]
    pub fn page(&self, era: Era, kind: ListKind, cursor: &str, seal: &SealedState) -> Option<&Bytes> {
        self.lists[kind as usize].page(&list::purpose(era, kind), cursor, seal)
    }

    /// Where a public name leads.
    #[must_use]
    pub fn find(&self, kind: ListKind, name: &str) -> Option<&Offer> {
        self.lists[kind as usize].offers.get(name)
    }

    /// Which upstream has the resource at `uri`, and what it calls it: the one whose policy has made the address, else the
    /// one that lists it, else the one with a template that it fits, else the only one that has such resources at all, since
    /// not everything needs to be listed.
    #[must_use]
    pub fn find_resource<'a>(&'a self, uri: &'a str) -> Option<(&'a UpstreamName, &'a str)> {
        if let Some(upstream) = self.of_policy(uri) {
            return Some((upstream, uri));
        }
        let listed = self.find(ListKind::Resource, uri).or_else(|| self.find(ListKind::Template, uri));
        if let Some(offer) = listed {
            return Some((&offer.upstream, &offer.native));
        }
        let fits = self.templates.find(uri);
        fits.or_else(|| self.only_with(uri)).map(|upstream| (upstream, uri))
    }

    /// The upstream of `weir-shape://<upstream>/<id>`, where a policy answers instead of it. No upstream can take such an
    /// address for itself.
    fn of_policy(&self, uri: &str) -> Option<&UpstreamName> {
        let (upstream, _) = uri.strip_prefix(OF_POLICIES)?.split_once('/')?;
        self.traits.get_key_value(upstream).map(|(name, _)| name)
    }

    /// The address by which clients know a resource of an upstream, where it is another one.
    #[must_use]
    pub fn public_address(&self, upstream: &UpstreamName, native: &str) -> Option<&str> {
        self.interfaces.renamed(upstream, native)
    }

    /// What an upstream can do; nothing as long as nothing is known of it.
    #[must_use]
    pub fn traits(&self, upstream: &UpstreamName) -> Option<&Traits> {
        self.traits.get(upstream)
    }

    /// The upstreams that declare the extension that a method belongs to.
    pub fn declaring<'a>(&'a self, method: &'a str) -> impl Iterator<Item = &'a UpstreamName> + 'a {
        self.traits.iter().filter(|(_, traits)| traits.declares(method)).map(|(upstream, _)| upstream)
    }

    /// What tells these lists from others.
    #[must_use]
    pub fn seen(&self) -> SeenLists {
        SeenLists(ListKind::ALL.map(|kind| Some(self.lists[kind as usize].version)))
    }

    /// Whether the list of a kind is the same in both.
    pub(super) fn same(&self, other: &Self, kind: ListKind) -> bool {
        self.lists[kind as usize].version == other.lists[kind as usize].version
    }

    fn note_schemes(&mut self, addresses: &[(String, UpstreamName)]) {
        for (address, upstream) in addresses {
            if let Some((scheme, _)) = address.split_once("://") {
                let alone = self.schemes.entry(scheme.to_owned()).or_insert_with(|| Some(upstream.clone()));
                alone.take_if(|known| *known != *upstream);
            }
        }
    }

    /// The only upstream whose addresses begin like this one, or the only one with resources.
    fn only_with(&self, uri: &str) -> Option<&UpstreamName> {
        let scheme = uri.split_once("://").map(|(scheme, _)| scheme);
        if let Some(alone) = scheme.and_then(|scheme| self.schemes.get(scheme)) {
            return alone.as_ref();
        }
        let mut with = self.traits.iter().filter(|(_, traits)| traits.resources).map(|(upstream, _)| upstream);
        with.next().filter(|_| with.next().is_none())
    }
}

/// The members that a modern result about all upstreams ends in: kept as long as the shortest-lived part, shared only if
/// they `may_be` and all parts are (MCP 2026-07-28, server/utilities/caching).
fn freshness(era: Era, may_be: bool, parts: impl Iterator<Item = Freshness>) -> String {
    if era == Era::Legacy {
        return String::new();
    }
    let (mut ttl, mut public, mut any) = (Duration::MAX, may_be, false);
    for part in parts {
        any = true;
        ttl = ttl.min(part.ttl.unwrap_or_default());
        public &= part.public;
    }
    let ttl = if ttl == Duration::MAX { 0 } else { ttl.as_millis() };
    let scope = if public && any { "public" } else { "private" };
    format!(r#","resultType":"complete","ttlMs":{ttl},"cacheScope":"{scope}""#)
}

fn instructions(starting: &[&UpstreamName], upstreams: &[KnownUpstream]) -> Option<String> {
    let soon = (!starting.is_empty()).then(|| starting::instructions(starting));
    let own = upstreams.iter().filter_map(|known| {
        let text = known.view.as_ref()?.instructions.as_deref()?;
        Some(format!("# {}\n\n{text}", known.prefix()))
    });
    let mut parts: Vec<String> = soon.into_iter().chain(own).collect();
    // All accounts of a service have the same.
    parts.dedup();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

#[cfg(test)]
mod tests;

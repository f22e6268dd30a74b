//! User interfaces of tools (MCP Apps): resources at `ui://` that a tool names in its `_meta`.
//!
//! The first upstream with an address has it, as with every resource. But a tool of a later one must not be shown with the
//! interface of another server, so there the address carries the upstream's name: `ui://<upstream>__<rest>`, in the tool,
//! in the list of resources and in what is read.

use std::collections::{HashMap, HashSet};

use weir_mcp::{json, public};

use crate::{catalog::snapshot::CatalogSnapshot, config::UpstreamName};

use super::{ListKind, Offer};

const SCHEME: &str = "ui://";

/// Whose each interface is.
#[derive(Clone, Debug, Default)]
pub(super) struct Interfaces {
    /// By the address that clients know.
    offers: HashMap<String, Offer>,
    /// What clients call the interfaces that cannot keep their address, by upstream and native address.
    renamed: HashMap<(UpstreamName, String), String>,
}

impl Interfaces {
    pub(super) fn new<'a>(views: impl Iterator<Item = (&'a UpstreamName, &'a CatalogSnapshot)>) -> Self {
        let mut all = Self::default();
        for (upstream, view) in views {
            for native in addresses(view) {
                let free = all.offers.get(&native).is_none_or(|offer| offer.upstream == *upstream);
                let public = match native.strip_prefix(SCHEME) {
                    Some(rest) if !free => [SCHEME, &public::id(upstream.as_str(), rest)].concat(),
                    _ => native.clone(),
                };
                if public != native {
                    all.renamed.insert((upstream.clone(), native.clone()), public.clone());
                }
                all.offers.entry(public).or_insert(Offer { upstream: upstream.clone(), native, accounts: None });
            }
        }
        all
    }

    /// What clients call an upstream's address, where it is another one.
    pub(super) fn renamed(&self, upstream: &UpstreamName, native: &str) -> Option<&str> {
        if self.renamed.is_empty() {
            return None;
        }
        self.renamed.get(&(upstream.clone(), native.to_owned())).map(String::as_str)
    }

    /// The parts of a tool that name an interface by an address that it cannot keep, and what stands there instead.
    pub(super) fn changes<'t>(&self, upstream: &UpstreamName, tool: &'t [u8]) -> Vec<(&'t [u8], String)> {
        if self.renamed.is_empty() {
            return Vec::new();
        }
        let public = |native: &[u8]| self.renamed(upstream, &json::string(native)?).map(json::quote);
        public::interface(tool).into_iter().filter_map(|native| Some((native, public(native)?))).collect()
    }

    /// All of them: a server need not list what its tools name.
    pub(super) fn unlisted(&self) -> impl Iterator<Item = (String, Offer)> {
        self.offers.iter().map(|(public, offer)| (public.clone(), offer.clone()))
    }
}

/// The addresses of a view's interfaces, each once.
fn addresses(view: &CatalogSnapshot) -> HashSet<String> {
    let tools =
        view.entries(ListKind::Tool).iter().flat_map(|tool| public::interface(&tool.raw)).filter_map(json::string);
    let tools = tools.map(|address| address.into_owned());
    let listed = view.entries(ListKind::Resource).iter().map(|resource| resource.key.clone());
    tools.chain(listed).filter(|address| address.starts_with(SCHEME)).collect()
}

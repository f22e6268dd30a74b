//! What an endpoint for several upstreams serves, and under which names.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU64, Ordering},
};

use weir_mcp::ListKind;

use crate::config::{ItemPattern, MERGED_ENDPOINT, ToolOverride, ToolsetConfig, UpstreamName};

use super::{grants::INTERFACE, is_each_served, selection, selects};

/// What is served at an endpoint where Weir itself answers for its upstreams.
#[derive(Debug)]
pub struct Toolset {
    /// What follows `/mcp/`; [`MERGED_ENDPOINT`] for `/mcp` itself.
    name: Box<str>,
    /// Apart for each choice that is read, so that lists made for one are not taken for those of another.
    id: u64,
    picks: Picks,
}

#[derive(Debug, PartialEq, Eq)]
enum Picks {
    All,
    /// One upstream under its own names, of which a caller sees a part.
    One(UpstreamName),
    Chosen(Box<ToolsetConfig>),
}

/// Where an entry stands in its list, and how it is shown otherwise.
#[derive(Clone, Copy, Debug)]
pub struct EntryPlace<'a> {
    /// Which of the patterns has chosen it.
    pub order: usize,
    /// How it is shown and called otherwise.
    pub changed: Option<&'a ToolOverride>,
}

impl Toolset {
    /// All upstreams, at `/mcp`.
    pub fn all() -> &'static Arc<Self> {
        static EVERYTHING: LazyLock<Arc<Toolset>> =
            LazyLock::new(|| Arc::new(Toolset { name: MERGED_ENDPOINT.into(), id: 0, picks: Picks::All }));
        &EVERYTHING
    }

    /// One upstream under its own names, for callers who see a part of it.
    #[must_use]
    pub fn one(upstream: &UpstreamName) -> Arc<Self> {
        Arc::new(Self { name: upstream.as_str().into(), id: 0, picks: Picks::One(upstream.clone()) })
    }

    /// What the operator has put together.
    #[must_use]
    pub fn chosen(config: &ToolsetConfig) -> Arc<Self> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let (name, id) = (config.name.as_str().into(), IDS.fetch_add(1, Ordering::Relaxed));
        Arc::new(Self { name, id, picks: Picks::Chosen(Box::new(config.clone())) })
    }

    /// As the operator has written it; none for what is not written.
    #[must_use]
    pub fn config(&self) -> Option<&ToolsetConfig> {
        match &self.picks {
            Picks::Chosen(config) => Some(config),
            Picks::All | Picks::One(_) => None,
        }
    }

    /// Tells apart choices of the same name, of which one was read after the other.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Its endpoint, as rules and the log call it.
    #[must_use]
    pub const fn name(&self) -> &str {
        &self.name
    }

    /// Whether nothing of any upstream is left out or shown otherwise.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        matches!(self.picks, Picks::All)
    }

    /// Whether names begin with that of their upstream.
    #[must_use]
    pub const fn has_prefix(&self) -> bool {
        match &self.picks {
            Picks::All => true,
            Picks::One(_) => false,
            Picks::Chosen(config) => config.prefix,
        }
    }

    /// The one upstream that a name belongs to which no list has; none where names begin with their upstream.
    #[must_use]
    pub const fn only(&self) -> Option<&UpstreamName> {
        match &self.picks {
            Picks::One(upstream) => Some(upstream),
            Picks::All | Picks::Chosen(_) => None,
        }
    }

    /// Its own `instructions`.
    #[must_use]
    pub fn instructions(&self) -> Option<&str> {
        match &self.picks {
            Picks::All | Picks::One(_) => None,
            Picks::Chosen(config) => config.instructions.as_deref(),
        }
    }

    /// Where an upstream stands among those that it picks from; none if it does not.
    #[must_use]
    pub fn order(&self, upstream: &str) -> Option<usize> {
        match &self.picks {
            Picks::All => Some(0),
            Picks::One(one) => (one.as_str() == upstream).then_some(0),
            Picks::Chosen(config) if config.upstreams.is_empty() => Some(0),
            Picks::Chosen(config) => config.upstreams.iter().position(|pattern| pattern.matches(upstream)),
        }
    }

    /// Where an item of an upstream stands; none if it is not served here.
    #[must_use]
    pub fn place(&self, kind: ListKind, upstream: &str, native: &str) -> Option<EntryPlace<'_>> {
        self.order(upstream)?;
        let Picks::Chosen(config) = &self.picks else { return Some(EntryPlace { order: 0, changed: None }) };
        let named = &config.items;
        let order = match selection(named, kind) {
            Some(selection) => selects(selection, kind, upstream, native)?,
            None if named.tools.is_none() && named.prompts.is_none() && named.resources.is_none() => 0,
            // The interface of a tool (MCP Apps) goes with the tools of its upstream.
            None if native.starts_with(INTERFACE) && named.tools.is_some() => 0,
            None => return None,
        };
        let of_it = |(pattern, _): &&(ItemPattern, ToolOverride)| pattern.matches(upstream, native);
        let changed = config.overrides.iter().find(of_it).filter(|_| kind == ListKind::Tool);
        Some(EntryPlace { order, changed: changed.map(|(_, changed)| changed) })
    }

    /// Whether an item of an upstream is served here.
    #[must_use]
    pub fn serves(&self, kind: ListKind, upstream: &str, native: &str) -> bool {
        self.place(kind, upstream, native).is_some()
    }

    /// Whether each address that a template of an upstream stands for is served here.
    #[must_use]
    pub fn serves_each(&self, upstream: &str, template: &str) -> bool {
        let each = match &self.picks {
            Picks::All | Picks::One(_) => true,
            Picks::Chosen(config) => is_each_served(&config.items, upstream, template),
        };
        each && self.serves(ListKind::Template, upstream, template)
    }

    /// Whether whatever an upstream has is served here.
    #[must_use]
    pub fn serves_whole(&self, upstream: &str) -> bool {
        let whole = match &self.picks {
            Picks::All | Picks::One(_) => true,
            Picks::Chosen(config) => {
                config.items.tools.is_none() && config.items.prompts.is_none() && config.items.resources.is_none()
            }
        };
        whole && self.order(upstream).is_some()
    }
}

/// Whether the same is served under the same name.
impl PartialEq for Toolset {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.picks == other.picks
    }
}

impl Eq for Toolset {}

//! The configuration in force.
//!
//! A [`Snapshot`] never changes. A new configuration is a new snapshot, into which unchanged upstreams are carried over.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::{
    access::{Access, Item, Toolset},
    caller::Caller,
    config::{Config, Limits, MERGED_ENDPOINT, UpstreamName},
    upstream::Upstream,
};

/// What everything that serves a call reads of the configuration.
pub struct Snapshot {
    upstreams: IndexMap<UpstreamName, Arc<Upstream>>,
    /// What `/mcp/<name>` is for those who see a part of the upstream.
    parts: IndexMap<UpstreamName, Arc<Toolset>>,
    limits: Limits,
    access: Access,
    toolsets: Vec<Arc<Toolset>>,
    disabled: Vec<UpstreamName>,
}

impl Snapshot {
    /// A snapshot of these upstreams, which are in the order of the configuration and have different names.
    pub fn new(upstreams: impl IntoIterator<Item = Arc<Upstream>>, limits: Limits) -> Self {
        let upstreams: IndexMap<_, _> =
            upstreams.into_iter().map(|upstream| (upstream.key().clone(), upstream)).collect();
        let parts = upstreams.keys().map(|name| (name.clone(), Toolset::one(name))).collect();
        Self { upstreams, parts, limits, access: Access::new(None), toolsets: Vec::new(), disabled: Vec::new() }
    }

    /// The same under the rules of a configuration, and with its toolsets.
    #[must_use]
    pub fn governed(mut self, by: &Config) -> Self {
        self.access = Access::new(by.access.as_ref());
        self.toolsets = by.toolsets.iter().map(Toolset::chosen).collect();
        self.disabled = by.upstreams.iter().filter(|it| !it.enabled).map(|it| it.name.clone()).collect();
        self
    }

    /// Who may see and call what.
    #[must_use]
    pub const fn access(&self) -> &Access {
        &self.access
    }

    /// Whether a caller may use anything of an upstream, at whichever endpoint.
    #[must_use]
    pub fn may_use(&self, caller: Option<&Arc<Caller>>, upstream: &str) -> bool {
        let grants = Caller::grants(caller, &self.access);
        let toolsets = self.toolsets.iter().filter(|toolset| toolset.order(upstream).is_some());
        let mut endpoints = [MERGED_ENDPOINT, upstream].into_iter().chain(toolsets.map(|toolset| toolset.name()));
        endpoints.any(|endpoint| grants.sees(endpoint, upstream, Item::Any))
    }

    /// What a caller gets at `/mcp/<name>` who sees a part of the upstream.
    #[must_use]
    pub fn part(&self, name: &str) -> Option<&Arc<Toolset>> {
        self.parts.get(name)
    }

    /// The toolsets, in the order of the configuration.
    pub fn toolsets(&self) -> impl ExactSizeIterator<Item = &Arc<Toolset>> + Clone {
        self.toolsets.iter()
    }

    /// The toolset of this name.
    #[must_use]
    pub fn toolset(&self, name: &str) -> Option<&Arc<Toolset>> {
        self.toolsets.iter().find(|toolset| toolset.name() == name)
    }

    /// The enabled upstreams, in the order of the configuration.
    pub fn upstreams(&self) -> impl ExactSizeIterator<Item = &Arc<Upstream>> + Clone {
        self.upstreams.values()
    }

    /// The names of upstreams that the configuration has disabled.
    #[must_use]
    pub fn disabled(&self) -> &[UpstreamName] {
        &self.disabled
    }

    /// Whether the rules are those of another snapshot.
    #[must_use]
    pub fn has_rules_of(&self, other: &Self) -> bool {
        self.access.rules() == other.access.rules()
    }

    /// Whether everybody sees the same of the same upstreams as under another snapshot.
    #[must_use]
    pub fn shows_the_same_as(&self, other: &Self) -> bool {
        self.has_rules_of(other) && self.toolsets == other.toolsets
    }

    /// The upstream of this name.
    pub fn upstream(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.upstreams.get(name)
    }

    /// The bounds on what a client or an upstream may take.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }
}

//! The configuration in force.
//!
//! A [`Snapshot`] never changes. A new configuration is a new snapshot, into which unchanged upstreams are carried over.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::{
    config::{Limits, UpstreamName},
    upstream::Upstream,
};

/// What everything that serves a call reads of the configuration.
pub struct Snapshot {
    upstreams: IndexMap<UpstreamName, Arc<Upstream>>,
    limits: Limits,
}

impl Snapshot {
    /// A snapshot of these upstreams, which are in the order of the configuration and have different names.
    pub fn new(upstreams: impl IntoIterator<Item = Arc<Upstream>>, limits: Limits) -> Self {
        let upstreams = upstreams.into_iter().map(|upstream| (upstream.key().clone(), upstream)).collect();
        Self { upstreams, limits }
    }

    /// The enabled upstreams, in the order of the configuration.
    pub fn upstreams(&self) -> impl ExactSizeIterator<Item = &Arc<Upstream>> + Clone {
        self.upstreams.values()
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

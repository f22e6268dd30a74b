//! What clients are told while upstreams are still starting.
//!
//! A client reads `instructions` once, and a model sees tools alone. So both say that more will come: the instructions
//! name the upstreams, and one tool of Weir's own answers how each stands. The tool goes when all have started or failed.

use std::sync::Arc;

use bytes::Bytes;
use weir_flow::UpstreamState;
use weir_mcp::json;

use crate::{access::Item, config::UpstreamName};

use super::{Catalog, entry::CatalogEntry, view::Viewer};

/// The name that an upstream would have to collide with the tool.
const OWN: &str = "weir";

/// What the tool is called.
pub const STATUS: &str = "weir__status";

/// The tool; none if its name is an upstream's.
pub(super) fn tool<'a>(mut upstreams: impl Iterator<Item = &'a UpstreamName>) -> Option<Bytes> {
    let text = "Some MCP servers of this gateway are still starting, and their tools are not listed yet. Call this to \
                learn which, and which have failed.";
    let free = upstreams.all(|name| name.as_str() != OWN);
    free.then(|| {
        let text = json::quote(text);
        let raw = format!(
            r#"{{"name":"{STATUS}","title":"Status of the MCP servers","description":{text},"inputSchema":{{"type":"object","properties":{{}}}},"annotations":{{"readOnlyHint":true}}}}"#
        );
        raw.into()
    })
}

/// The line that `instructions` begin with.
pub(super) fn instructions(starting: &[&UpstreamName]) -> String {
    let names: Vec<String> = starting.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "These MCP servers are still starting: {}. Their tools are listed once they have started.",
        names.join(", ")
    )
}

impl Catalog {
    /// How each upstream stands, for a call of [`STATUS`]; none if the name is an upstream's.
    #[must_use]
    pub fn status(&self, viewer: &Viewer<'_>) -> Option<String> {
        let current = self.current.load();
        if current.snapshot.upstream(OWN).is_some() {
            return None;
        }
        let line = |entry: &Arc<CatalogEntry>| {
            let (name, status) = (entry.upstream.name(), entry.upstream.status());
            match (status.error, status.tools) {
                (Some(why), _) => format!("`{name}`: {}: {why}", status.state),
                (None, _) if entry.lock().is_starting() => format!("`{name}`: starting"),
                (None, Some(tools)) if status.state == UpstreamState::Healthy => {
                    format!("`{name}`: healthy, {tools} tools")
                }
                (None, _) => format!("`{name}`: {}", status.state),
            }
        };
        let grants = viewer.grants(&current.snapshot);
        let sees =
            |name: &str| viewer.toolset.order(name).is_some() && grants.sees(viewer.toolset.name(), name, Item::Any);
        let seen = current.entries.values().filter(|entry| sees(entry.upstream.name()));
        let lines: Vec<String> = seen.map(line).collect();
        Some(lines.join("\n"))
    }
}

//! `/readyz`: whether to send work here, and how each upstream stands.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use crate::{catalog::Catalog, credential::StoreStanding, telemetry::audit, upstream::Upstream};

#[derive(Serialize)]
struct ReadyReport<'a> {
    state: &'static str,
    /// Why the audit log cannot be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<String>,
    /// Why the shared store cannot be asked, or a file of logins takes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<&'a str>,
    upstreams: Vec<HealthLine<'a>>,
}

#[derive(Serialize)]
pub(super) struct HealthLine<'a> {
    name: &'a str,
    state: String,
    era: Option<String>,
    transport: Option<String>,
    tools: Option<usize>,
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The status and the body.
///
/// Ready means that every upstream has been reached or given up on once, or has been waited for long enough: one that is
/// down is its own trouble, and is told in the body, unless nobody is to be told any `names` here. It is not while calls
/// are refused because they cannot be recorded, nor before a shared store has answered: without it Weir has no credentials.
/// A store that goes away later, or a file on a full or read-only file system, is told in the body. It goes away for all gateways at once, which have those in memory.
pub(super) fn ready(catalog: &Arc<Catalog>, store: &StoreStanding, draining: bool, names: bool) -> (u16, Bytes) {
    let state = state(catalog, store, draining);
    let snapshot = catalog.snapshot();
    let upstreams = snapshot.upstreams().filter(|_| names);
    let upstreams = upstreams.map(|upstream| line(upstream)).collect();
    let store = store.failure().map(|why| if names { why } else { "the store cannot be used" });
    let report = ReadyReport { state, audit: audit::failure(), store, upstreams };
    let body = serde_json::to_vec(&report).unwrap_or_default();
    (if state == "ready" { 200 } else { 503 }, body.into())
}

/// Whether Weir takes calls, and if not, why.
pub(super) fn state(catalog: &Arc<Catalog>, store: &StoreStanding, draining: bool) -> &'static str {
    match (draining, audit::refusal(), catalog.ready() && !store.is_awaited()) {
        (true, _, _) => "draining",
        (false, Some(_), _) => "unrecorded",
        (false, None, true) => "ready",
        (false, None, false) => "starting",
    }
}

pub(super) fn line(upstream: &Upstream) -> HealthLine<'_> {
    let status = upstream.status();
    HealthLine {
        name: upstream.name(),
        state: status.state.to_string(),
        era: status.era.map(|era| era.to_string()),
        transport: status.transport.map(|transport| transport.to_string()),
        tools: status.tools,
        error: status.error,
        warnings: status.warnings,
    }
}

//! Whether a call may go on: the one place where rules refuse it.

use std::sync::Arc;

use weir_mcp::{
    ListKind,
    message::{Field, Reference},
    method,
};

use crate::{
    access::{AccessRequest, Decision, Grants, Item},
    caller::Caller,
    catalog::{Catalog, ClientInfo},
    session::Endpoint,
    snapshot::Snapshot,
    upstream::Upstream,
};

use super::{
    Proxy, RequestContext,
    route::{Target, named_kind},
};

/// What of an upstream a message is about.
pub(super) enum TargetItem {
    /// What the message names.
    Named,
    /// This, as the upstream calls it.
    One(ListKind, String),
    /// A task of it, or what belongs to a request that runs.
    Any,
    /// Nothing in particular.
    Whole,
}

impl Proxy {
    /// What is decided about a call: the one place where rules refuse it.
    pub(super) fn authorize(&self, context: &RequestContext, target: &Target) -> Decision {
        let snapshot = self.snapshot();
        let authorized = |grants: &Grants| self.authorized(grants, context, target);
        Caller::with_grants(context.caller.as_ref(), snapshot.access(), authorized)
    }

    fn authorized(&self, grants: &Grants, context: &RequestContext, target: &Target) -> Decision {
        let (upstream, message) = (&target.upstream, &context.message);
        let named = match (&target.item, method::route(message.method())) {
            (TargetItem::Named, method::Route::Name) => message.name(),
            (TargetItem::Named, method::Route::Uri) => message.uri(),
            _ => None,
        };
        let native = target.name.as_deref().or(named.as_deref()).unwrap_or_default();
        let reference = message.reference();
        let item = match &target.item {
            TargetItem::One(ListKind::Template, uri) => Item::Each(uri),
            TargetItem::One(kind, name) => Item::One(*kind, name),
            TargetItem::Any => Item::Any,
            TargetItem::Whole => Item::Whole,
            TargetItem::Named => match method::route(message.method()) {
                method::Route::Name => Item::One(named_kind(message), native),
                method::Route::Uri => Item::One(ListKind::Resource, native),
                method::Route::Task => Item::Any,
                method::Route::Reference => match &reference {
                    Some(Reference::Prompt(name)) => Item::One(ListKind::Prompt, name),
                    Some(Reference::Resource(uri)) => Item::Each(uri),
                    None => Item::Whole,
                },
                // A list, or what else belongs to a server whatever it has. At an address of one upstream nobody filters it,
                // so the rules that are in force by now must still hide nothing there.
                method::Route::None if method::is_known(message.method()) => match &context.endpoint {
                    Endpoint::One(upstream) if !grants.are_whole_at(upstream.name(), upstream.name()) => Item::Whole,
                    _ => Item::Any,
                },
                method::Route::None => Item::Whole,
            },
        };
        if !is_served(&context.endpoint, upstream, item) || !is_in_lists(&self.catalog, context.who(), upstream, item) {
            return Decision::default();
        }
        // What other methods call arguments, their servers do not look at.
        let has_arguments = matches!(message.method(), method::TOOLS_CALL | method::PROMPTS_GET);
        let sent = || message.raw(Field::Arguments).filter(|_| has_arguments);
        let arguments = target.arguments.as_deref().map(str::as_bytes).or_else(sent);
        let (endpoint, method) = (context.endpoint.name(), message.method());
        let facts = AccessRequest { endpoint, upstream: upstream.name(), item, method, arguments };
        grants.authorize(&facts)
    }
}

/// Whether an item of an upstream is served at an endpoint, whoever calls.
fn is_served(endpoint: &Endpoint, upstream: &Upstream, item: Item<'_>) -> bool {
    let (toolset, name) = (endpoint.toolset(), upstream.name());
    match item {
        Item::One(kind, native) => {
            upstream.serves(kind, native) && toolset.is_none_or(|toolset| toolset.serves(kind, name, native))
        }
        Item::Each(template) => {
            upstream.serves_each(template) && toolset.is_none_or(|toolset| toolset.serves_each(name, template))
        }
        Item::Any => toolset.is_none_or(|toolset| toolset.order(name).is_some()),
        Item::Whole => upstream.serves_whole() && toolset.is_none_or(|toolset| toolset.serves_whole(name)),
    }
}

/// Whether the upstream's policies leave an item in the lists of a caller with this client.
fn is_in_lists(
    catalog: &Catalog,
    (caller, client): (Option<&Arc<Caller>>, Option<ClientInfo<'_>>),
    upstream: &Upstream,
    item: Item<'_>,
) -> bool {
    match item {
        Item::One(kind, native) => catalog.shows(caller, client, upstream, (kind, native)),
        Item::Each(template) => catalog.shows(caller, client, upstream, (ListKind::Template, template)),
        Item::Any | Item::Whole => true,
    }
}

/// Whether a caller may know of an item at an endpoint with this client.
pub(super) fn is_shown(
    catalog: &Catalog,
    endpoint: &Endpoint,
    (caller, client): (Option<&Arc<Caller>>, Option<ClientInfo<'_>>),
    upstream: &Upstream,
    item: Item<'_>,
) -> bool {
    is_allowed(&catalog.snapshot(), endpoint, caller, upstream, item)
        && is_in_lists(catalog, (caller, client), upstream, item)
}

/// The same, as far as the configuration says it.
pub(super) fn is_allowed(
    snapshot: &Snapshot,
    endpoint: &Endpoint,
    caller: Option<&Arc<Caller>>,
    upstream: &Upstream,
    item: Item<'_>,
) -> bool {
    let sees = |grants: &Grants| grants.sees(endpoint.name(), upstream.name(), item);
    is_served(endpoint, upstream, item) && Caller::with_grants(caller, snapshot.access(), sees)
}

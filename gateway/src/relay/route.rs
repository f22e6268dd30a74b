//! Where a message goes.
//!
//! On `/mcp/<name>` everything goes to that upstream as it came. On `/mcp` the catalog turns public names into the
//! upstream's own, and Weir answers by itself what concerns all upstreams.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{
    Era, Message, answer,
    message::{Field, Kind, Reference},
    method,
};

use crate::{
    catalog::{self, Merged},
    session::Endpoint,
    upstream::Ticket,
};

use super::{Answer, Inquiry, Relay};

/// What becomes of a request.
#[allow(clippy::large_enum_variant, reason = "one lives for a moment; a box would cost each call an allocation")]
pub(super) enum Route {
    /// Weir has the answer.
    Answered(Answer),
    /// It goes to an upstream.
    Upstream(Leg),
}

/// One message's way to one upstream.
pub(super) struct Leg {
    /// The upstream's place.
    pub(super) upstream: usize,
    /// What is sent.
    pub(super) body: Bytes,
    /// What `Mcp-Name` says, in the upstream's own terms.
    pub(super) name: Option<String>,
    /// The running request that it is or concerns.
    pub(super) ticket: Option<Arc<Ticket>>,
}

impl Relay {
    /// Where a request goes.
    pub(super) async fn route(self: &Arc<Self>, inquiry: &Inquiry) -> Route {
        let message = &inquiry.message;
        if let Endpoint::One(upstream) = inquiry.endpoint {
            return Route::Upstream(Leg::unchanged(upstream, message, inquiry.era));
        }
        if let Some(answer) = self.answer(inquiry).await {
            return Route::Answered(answer);
        }
        let offers = self.catalog.known(inquiry.era);
        let leg = match method::route(message.method()) {
            method::Route::Name => by_name(&offers, message),
            method::Route::Uri => by_uri(&offers, message),
            method::Route::Reference => by_reference(&offers, message),
            method::Route::Task | method::Route::None => {
                let text =
                    format!("`{}` is not available on /mcp; use the upstream's own /mcp/<name>", message.method());
                return Route::Answered(Answer::error(inquiry.era, message, answer::METHOD_NOT_FOUND, &text));
            }
        };
        match leg {
            Ok(leg) => Route::Upstream(leg),
            Err(unknown) => Route::Answered(self.unknown(inquiry, &unknown)),
        }
    }

    /// Where a notification or an answer goes; nowhere if it concerns nobody.
    pub(super) fn route_message(&self, inquiry: &Inquiry) -> Vec<Leg> {
        let message = &inquiry.message;
        let unchanged = |upstream| Leg::unchanged(upstream, message, inquiry.era);
        if message.method() == method::CANCELLED {
            let running = inquiry.session.as_ref().zip(message.request_id());
            let running = running.and_then(|(session, id)| session.runs_at(id));
            return running
                .map(|(upstream, ticket)| Leg { ticket: Some(ticket), ..unchanged(upstream) })
                .into_iter()
                .collect();
        }
        let session = match (inquiry.endpoint, &inquiry.session) {
            (Endpoint::One(upstream), _) => return vec![unchanged(upstream)],
            (Endpoint::All, Some(session)) => session,
            (Endpoint::All, None) => return Vec::new(),
        };
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => {
                let answered = session.answered(message);
                answered.map(|(upstream, body)| Leg { upstream, body, name: None, ticket: None }).into_iter().collect()
            }
            (_, "notifications/roots/list_changed") => {
                session.lines.all().into_iter().map(|(upstream, _)| unchanged(upstream)).collect()
            }
            // `initialized` is told to each upstream when it is opened; the rest means nothing to any of them.
            _ => Vec::new(),
        }
    }

    /// A name that leads nowhere, or to an upstream that this client's era cannot reach.
    fn unknown(&self, inquiry: &Inquiry, unknown: &Unknown) -> Answer {
        let other = match inquiry.era {
            Era::Legacy => Era::Modern,
            Era::Modern => Era::Legacy,
        };
        let elsewhere = match unknown {
            Unknown::Name(kind, name) => self.catalog.known(other).find(*kind, name).map(|offer| offer.upstream),
            Unknown::Uri(uri) => self.catalog.known(other).find_resource(uri),
        };
        if let Some(upstream) = elsewhere {
            let text = format!(
                "upstream `{}` speaks only the {other} era of MCP and this client the {} one",
                self.upstream(upstream).name(),
                inquiry.era
            );
            return Answer::error(inquiry.era, &inquiry.message, answer::INVALID_PARAMS, &text);
        }
        let (code, text) = match unknown {
            Unknown::Name(catalog::Kind::Prompt, name) => (answer::INVALID_PARAMS, format!("Unknown prompt: {name}")),
            Unknown::Name(_, name) => (answer::INVALID_PARAMS, format!("Unknown tool: {name}")),
            Unknown::Uri(uri) if inquiry.era == Era::Legacy => {
                (answer::RESOURCE_NOT_FOUND, format!("Resource not found: {uri}"))
            }
            Unknown::Uri(uri) => (answer::INVALID_PARAMS, format!("Resource not found: {uri}")),
        };
        Answer::error(inquiry.era, &inquiry.message, code, &text)
    }
}

impl Leg {
    /// A message that goes on as it came.
    fn unchanged(upstream: usize, message: &Message, era: Era) -> Self {
        let name = (era == Era::Modern).then(|| method::target(message)).flatten();
        Self { upstream, body: message.bytes().clone(), name: name.map(|name| name.into_owned()), ticket: None }
    }
}

/// What was asked for and is not there.
enum Unknown {
    Name(catalog::Kind, String),
    Uri(String),
}

fn by_name(offers: &Merged, message: &Message) -> Result<Leg, Unknown> {
    let kind = if message.method().starts_with("prompts/") { catalog::Kind::Prompt } else { catalog::Kind::Tool };
    let name = message.name().unwrap_or_default();
    let offer = offers.find(kind, &name).ok_or_else(|| Unknown::Name(kind, name.into_owned()))?;
    let body = message.edit().set(Field::Name, weir_mcp::json::quote(&offer.native).as_bytes()).finish();
    Ok(Leg { upstream: offer.upstream, body, name: Some(offer.native.clone()), ticket: None })
}

fn by_uri(offers: &Merged, message: &Message) -> Result<Leg, Unknown> {
    let uri = message.uri().unwrap_or_default();
    let upstream = offers.find_resource(&uri).ok_or_else(|| Unknown::Uri(uri.clone().into_owned()))?;
    Ok(Leg { upstream, body: message.bytes().clone(), name: Some(uri.into_owned()), ticket: None })
}

fn by_reference(offers: &Merged, message: &Message) -> Result<Leg, Unknown> {
    match message.reference() {
        Some(Reference::Prompt(name)) => {
            let kind = catalog::Kind::Prompt;
            let offer = offers.find(kind, &name).ok_or_else(|| Unknown::Name(kind, name.into_owned()))?;
            let native = weir_mcp::json::quote(&offer.native);
            let body = message.edit().set(Field::ReferenceName, native.as_bytes()).finish();
            Ok(Leg { upstream: offer.upstream, body, name: None, ticket: None })
        }
        Some(Reference::Resource(uri)) => {
            let upstream = offers.find_resource(&uri).ok_or_else(|| Unknown::Uri(uri.into_owned()))?;
            Ok(Leg { upstream, body: message.bytes().clone(), name: None, ticket: None })
        }
        None => Err(Unknown::Name(catalog::Kind::Prompt, String::new())),
    }
}

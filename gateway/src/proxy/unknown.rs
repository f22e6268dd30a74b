//! What a caller is told of a name that leads nowhere, or nowhere that they may know of.

use weir_mcp::{Era, ListKind, answer, message::Reference, method, public, status::http_status, translate::TASKS};

use crate::{access::Item, config::UpstreamName};

use super::{
    Answer, Proxy, RequestContext,
    authorize::is_shown,
    route::{Target, named_kind},
    sign_in::told,
};

/// What was asked for and is not there.
pub(super) enum UnknownTarget {
    Name(ListKind, String),
    /// None of the accounts of a service, and what to write instead.
    Account(String),
    Uri(String),
    Task,
    /// Tasks, by a client that has not said that it can have any.
    Undeclared,
    /// A method that names nothing by which to route it, and the upstreams that may know it.
    Method(Vec<UpstreamName>),
}

impl Proxy {
    /// A name that leads nowhere, or to an upstream that this client's era cannot reach.
    pub(super) fn unknown(&self, context: &RequestContext, unknown: &UnknownTarget) -> Answer {
        let other = match context.era {
            Era::Legacy => Era::Modern,
            Era::Modern => Era::Legacy,
        };
        if matches!(unknown, UnknownTarget::Account(_)) && !self.knows_service(context) {
            let message = &context.message;
            let name = message.name().unwrap_or_default().into_owned();
            return nowhere(context, &UnknownTarget::Name(named_kind(message), name));
        }
        let offers = || self.catalog.known(context.viewer(), other);
        let elsewhere = match unknown {
            UnknownTarget::Name(kind, name) => offers().find(*kind, name).map(|offer| offer.upstream.clone()),
            UnknownTarget::Uri(uri) => offers().find_resource(uri).map(|(upstream, _)| upstream.clone()),
            UnknownTarget::Account(_) | UnknownTarget::Undeclared | UnknownTarget::Task | UnknownTarget::Method(_) => {
                None
            }
        };
        if let Some(upstream) = elsewhere {
            let era = context.era;
            let text =
                format!("upstream `{upstream}` speaks only the {other} era of MCP and this client the {era} one");
            return Answer::error(context.era, &context.message, answer::INVALID_PARAMS, &text);
        }
        nowhere(context, unknown)
    }
}

impl Proxy {
    /// Whether a caller may know of the service whose accounts it is to choose from: of what it names, or of each account.
    fn knows_service(&self, context: &RequestContext) -> bool {
        let name = context.message.name().unwrap_or_default();
        let offers = self.catalog.known(context.viewer(), context.era);
        let service = public::split(&name).map_or(context.endpoint.name(), |(service, _)| service);
        let (snapshot, caller) = (self.snapshot(), context.who());
        let mut accounts = snapshot
            .upstreams()
            .filter(|upstream| upstream.account().is_some_and(|account| account.service.as_str() == service));
        offers.find(named_kind(&context.message), &name).is_some()
            || accounts.all(|upstream| is_shown(&self.catalog, &context.endpoint, caller, upstream, Item::Any))
    }
}

impl Target {
    /// What a caller is told of it who may not know that it is there.
    pub(super) fn as_unknown(&self, context: &RequestContext) -> UnknownTarget {
        let message = &context.message;
        match method::route(message.method()) {
            method::Route::Name => UnknownTarget::Name(named_kind(message), message.name().unwrap_or_default().into()),
            method::Route::Uri => UnknownTarget::Uri(message.uri().unwrap_or_default().into()),
            method::Route::Reference => match message.reference() {
                Some(Reference::Resource(uri)) => UnknownTarget::Uri(uri.into()),
                Some(Reference::Prompt(name)) => UnknownTarget::Name(ListKind::Prompt, name.into()),
                None => UnknownTarget::Name(ListKind::Prompt, String::new()),
            },
            method::Route::Task => UnknownTarget::Task,
            method::Route::None => UnknownTarget::Method(Vec::new()),
        }
    }
}

/// The answer to a call of what is not there, or not for this caller.
pub(super) fn nowhere(context: &RequestContext, unknown: &UnknownTarget) -> Answer {
    let (code, text) = match unknown {
        // A model reads what a tool says, and can put it right.
        UnknownTarget::Account(text) if context.message.method() == method::TOOLS_CALL => {
            return told(context, text, true);
        }
        UnknownTarget::Account(text) => (answer::INVALID_PARAMS, text.clone()),
        UnknownTarget::Name(ListKind::Prompt, name) => (answer::INVALID_PARAMS, format!("Unknown prompt: {name}")),
        UnknownTarget::Name(_, name) => (answer::INVALID_PARAMS, format!("Unknown tool: {name}")),
        UnknownTarget::Uri(uri) if context.era == Era::Legacy => {
            (answer::RESOURCE_NOT_FOUND, format!("Resource not found: {uri}"))
        }
        UnknownTarget::Uri(uri) => (answer::INVALID_PARAMS, format!("Resource not found: {uri}")),
        UnknownTarget::Undeclared => {
            let data = format!("{{\"requiredCapabilities\":{{\"extensions\":{{\"{TASKS}\":{{}}}}}}}}");
            let text = "tasks need a client that declares the extension";
            let error = answer::error(context.message.id(), answer::MISSING_CAPABILITY, text, Some(&data));
            return Answer::whole(http_status(context.era, answer::MISSING_CAPABILITY), error);
        }
        UnknownTarget::Task => (answer::INVALID_PARAMS, "Unknown task".into()),
        UnknownTarget::Method(which) => (answer::METHOD_NOT_FOUND, elsewhere_text(context.message.method(), which)),
    };
    Answer::error(context.era, &context.message, code, &text)
}

/// Where a method that cannot be routed may be called instead.
fn elsewhere_text(method: &str, which: &[UpstreamName]) -> String {
    let paths: Vec<String> = which.iter().map(|upstream| format!("/mcp/{upstream}")).collect();
    if paths.is_empty() {
        return format!("`{method}` is not available on /mcp; use the upstream's own /mcp/<name>");
    }
    format!("`{method}` could go to more than one upstream; use {}", paths.join(" or "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use weir_mcp::Message;

    use super::*;
    use crate::{access::Toolset, proxy::Body, session::Endpoint};

    /// Status, code and text of the answer to a client of an era.
    fn told(era: Era, method: &str, unknown: &UnknownTarget) -> (u16, i64, String) {
        let message = Message::parse(answer::request(b"1", method, Some(b"{}"))).unwrap();
        let context = RequestContext {
            era,
            endpoint: Endpoint::Merged(std::sync::Arc::clone(Toolset::all())),
            caller: None,
            principal: "ada".into(),
            message,
            version: None,
            headers: Vec::new(),
            session: None,
        };
        let answer = nowhere(&context, unknown);
        let Body::Whole(pieces) = answer.body else { panic!("no whole answer") };
        let error = Message::parse(pieces.concat().into()).unwrap();
        (answer.status, error.error_code().unwrap(), error.text(weir_mcp::Field::ErrorMessage).unwrap().into_owned())
    }

    #[test]
    fn each_era_is_told_in_its_own_way_that_nothing_is_there() {
        let tool = UnknownTarget::Name(ListKind::Tool, "x".to_owned());
        let prompt = UnknownTarget::Name(ListKind::Prompt, "x".to_owned());
        let uri = UnknownTarget::Uri("a://b".to_owned());
        for (era, unknown, status, code, text) in [
            (Era::Legacy, &tool, 200, answer::INVALID_PARAMS, "Unknown tool: x"),
            (Era::Modern, &tool, 200, answer::INVALID_PARAMS, "Unknown tool: x"),
            (Era::Legacy, &prompt, 200, answer::INVALID_PARAMS, "Unknown prompt: x"),
            (Era::Legacy, &uri, 200, answer::RESOURCE_NOT_FOUND, "Resource not found: a://b"),
            (Era::Modern, &uri, 200, answer::INVALID_PARAMS, "Resource not found: a://b"),
            (
                Era::Modern,
                &UnknownTarget::Undeclared,
                400,
                answer::MISSING_CAPABILITY,
                "tasks need a client that declares the extension",
            ),
        ] {
            assert_eq!(told(era, method::TOOLS_CALL, unknown), (status, code, text.to_owned()), "{era}");
        }
    }

    #[test]
    fn a_method_that_several_upstreams_have_is_asked_for_at_each() {
        let method = "x/y";
        let of = |names: &[&str]| UnknownTarget::Method(names.iter().map(|name| name.parse().unwrap()).collect());
        let (_, code, text) = told(Era::Modern, method, &of(&["a", "b"]));
        assert_eq!(
            (code, &*text),
            (answer::METHOD_NOT_FOUND, "`x/y` could go to more than one upstream; use /mcp/a or /mcp/b")
        );
        let (.., text) = told(Era::Legacy, method, &of(&[]));
        assert_eq!(text, "`x/y` is not available on /mcp; use the upstream's own /mcp/<name>");
    }
}

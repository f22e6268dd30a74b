//! Where a message goes.
//!
//! On `/mcp/<name>` everything goes to that upstream as it came. On `/mcp` the catalog turns public names into the
//! upstream's own, and Weir answers by itself what concerns all upstreams.

use std::sync::Arc;

use bytes::Bytes;
use weir_mcp::{
    Era, Message, ParseError, answer, json,
    message::{Field, Kind, Reference},
    method,
    public::{self, PublicNames},
    status::http_status,
    translate::TASKS,
};

use crate::{
    catalog::{self, MergedLists, Traits},
    config::UpstreamName,
    session::{Endpoint, RunningRequest},
    upstream::Upstream,
};

use super::{Answer, Proxy, RequestContext, sign_in::SignInResult};

/// What becomes of a request.
#[allow(clippy::large_enum_variant, reason = "one lives for a moment; a box would cost each call an allocation")]
pub(super) enum Route {
    /// Weir has the answer.
    Answered(Answer),
    /// It leads nowhere, and this says so.
    Unknown(Answer),
    /// It goes to an upstream.
    Upstream(Target),
}

/// One message's way to one upstream.
pub(super) struct Target {
    /// Where it goes.
    pub(super) upstream: Arc<Upstream>,
    /// What is sent.
    pub(super) body: Bytes,
    /// What `Mcp-Name` says, in the upstream's own terms.
    pub(super) name: Option<String>,
    /// The running request that it is or concerns.
    pub(super) run: Option<Arc<RunningRequest>>,
    /// What in the answer needs a public name; none if the answer need not be looked at.
    pub(super) asked: Option<PublicNames>,
}

impl Target {
    /// What is sent, read; not again where it is what the client sent.
    pub(super) fn message(&self, context: &RequestContext) -> Result<Message, ParseError> {
        let sent = context.message.bytes();
        let same = self.body.as_ptr() == sent.as_ptr() && self.body.len() == sent.len();
        if same { Ok(context.message.clone()) } else { Message::parse(self.body.clone()) }
    }
}

impl Proxy {
    /// Where a request goes.
    pub(super) async fn route(self: &Arc<Self>, context: &RequestContext) -> Route {
        let message = &context.message;
        if let Endpoint::One(upstream) = &context.endpoint {
            return Route::Upstream(Target::unchanged(upstream, message, context.era));
        }
        if let Some(answer) = self.answer(context).await {
            return Route::Answered(answer);
        }
        let mut offers = self.catalog.known(context.caller.as_ref(), context.era);
        let mut target = self.find(&offers, context, NameScope::Listed);
        if target.is_err() {
            if let Some(answer) = self.status(context) {
                return Route::Answered(answer);
            }
            // It may be one that this client, or all of its era, have not listed since it is there.
            offers = Box::pin(self.catalog.merged(context.caller.as_ref(), context.era)).await;
            target = self.find(&offers, context, NameScope::Listed);
        }
        if let Err(UnknownTarget::Name(_, name)) = &target {
            match Box::pin(self.behind_sign_in(context, &offers, name)).await {
                Some(SignInResult::Answered(answer)) => return Route::Answered(*answer),
                Some(SignInResult::Listed(offers)) => target = self.find(&offers, context, NameScope::Listed),
                None => {}
            }
        }
        if target.is_err() {
            target = self.find(&offers, context, NameScope::Any);
        }
        match target {
            Ok(target) => Route::Upstream(target),
            Err(unknown) => Route::Unknown(self.unknown(context, &unknown)),
        }
    }

    fn find(&self, offers: &MergedLists, context: &RequestContext, names: NameScope) -> Result<Target, UnknownTarget> {
        match method::route(context.message.method()) {
            method::Route::Name => self.by_name(offers, context, names),
            method::Route::Uri => self.by_uri(offers, &context.message),
            method::Route::Reference => self.by_reference(offers, &context.message, names),
            method::Route::Task => self.by_task(offers, context),
            method::Route::None => self.by_extension(offers, context),
        }
    }

    /// Where a notification or an answer goes; nowhere if it concerns nobody.
    pub(super) fn route_message(&self, context: &RequestContext) -> Vec<Target> {
        let message = &context.message;
        let unchanged = |upstream: &Arc<Upstream>| Target::unchanged(upstream, message, context.era);
        if message.method() == method::CANCELLED {
            let running = context.session.as_ref().zip(message.request_id());
            let running = running.and_then(|(session, id)| session.runs_at(id));
            let target = running.map(|run| Target { run: Some(Arc::clone(&run)), ..unchanged(&run.upstream) });
            return target.into_iter().collect();
        }
        let session = match (&context.endpoint, &context.session) {
            (Endpoint::One(upstream), _) => return vec![unchanged(upstream)],
            (Endpoint::All, Some(session)) => session,
            (Endpoint::All, None) => return Vec::new(),
        };
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => {
                let answered = session.answered(message);
                answered.and_then(|(upstream, body)| self.inward(&upstream, body)).into_iter().collect()
            }
            (_, method::PROGRESS) => {
                let progressed = session.progressed(message);
                progressed.and_then(|(upstream, body)| self.inward(&upstream, body)).into_iter().collect()
            }
            (_, method::ROOTS_CHANGED) => {
                session.channels.all().iter().map(|(upstream, _)| unchanged(upstream)).collect()
            }
            // `initialized` is told to each upstream when it is opened.
            (_, method) => {
                let offers = self.catalog.known(context.caller.as_ref(), context.era);
                let upstream = alone(offers.declaring(method)).and_then(|name| self.snapshot().upstream(name.as_str()));
                upstream.map(unchanged).into_iter().collect()
            }
        }
    }

    fn by_name(
        &self,
        offers: &MergedLists,
        context: &RequestContext,
        names: NameScope,
    ) -> Result<Target, UnknownTarget> {
        let message = &context.message;
        let kind =
            if message.method().starts_with("prompts/") { catalog::ListKind::Prompt } else { catalog::ListKind::Tool };
        let name = message.name().unwrap_or_default();
        let (upstream, traits, native) = self.named(offers, kind, &name, names)?;
        let body = message.edit().set(Field::Name, json::quote(native).as_bytes()).finish();
        let tasks = message.method() == method::TOOLS_CALL && traits.is_some_and(|is| is.tasks);
        let asked = (tasks && may_become_task(context)).then_some(PublicNames::Call);
        Ok(Target { upstream, body, name: Some(native.to_owned()), run: None, asked })
    }

    fn by_reference(&self, offers: &MergedLists, message: &Message, names: NameScope) -> Result<Target, UnknownTarget> {
        match message.reference() {
            Some(Reference::Prompt(name)) => {
                let (upstream, _, native) = self.named(offers, catalog::ListKind::Prompt, &name, names)?;
                let body = message.edit().set(Field::ReferenceName, json::quote(native).as_bytes()).finish();
                Ok(Target { upstream, body, name: None, run: None, asked: None })
            }
            Some(Reference::Resource(uri)) => {
                let (upstream, _) = self.addressed(offers, &uri)?;
                Ok(Target { upstream, body: message.bytes().clone(), name: None, run: None, asked: None })
            }
            None => Err(UnknownTarget::Name(catalog::ListKind::Prompt, String::new())),
        }
    }

    /// Whose a public name is, what that upstream can do as far as is known, and what it calls it.
    fn named<'a>(
        &self,
        offers: &'a MergedLists,
        kind: catalog::ListKind,
        name: &'a str,
        names: NameScope,
    ) -> Result<(Arc<Upstream>, Option<&'a Traits>, &'a str), UnknownTarget> {
        let unknown = || UnknownTarget::Name(kind, name.to_owned());
        let found = match offers.find(kind, name) {
            // What only stands in for an upstream that waits for a login is Weir's own.
            Some(offer) => offers.traits(&offer.upstream).map(|is| (offer.upstream.as_str(), Some(is), &*offer.native)),
            None => public::split(name)
                .filter(|(_, native)| names == NameScope::Any && !native.is_empty())
                .map(|(upstream, native)| (upstream, None, native)),
        };
        let (upstream, traits, native) = found.ok_or_else(unknown)?;
        let upstream = self.snapshot().upstream(upstream).ok_or_else(unknown)?;
        Ok((Arc::clone(upstream), traits.or_else(|| offers.traits(upstream.key())), native))
    }

    /// Whose a public address is, and what it is called there.
    fn addressed<'a>(&self, offers: &'a MergedLists, uri: &'a str) -> Result<(Arc<Upstream>, &'a str), UnknownTarget> {
        let found = offers.find_resource(uri);
        let found = found.and_then(|(name, native)| Some((self.snapshot().upstream(name.as_str())?, native)));
        let (upstream, native) = found.ok_or_else(|| UnknownTarget::Uri(uri.to_owned()))?;
        Ok((Arc::clone(upstream), native))
    }

    fn by_uri(&self, offers: &MergedLists, message: &Message) -> Result<Target, UnknownTarget> {
        let uri = message.uri().unwrap_or_default();
        let (upstream, native) = self.addressed(offers, &uri)?;
        let name = Some(native.to_owned());
        if native == uri {
            return Ok(Target { upstream, body: message.bytes().clone(), name, run: None, asked: None });
        }
        let body = message.edit().set(Field::Uri, json::quote(native)).finish();
        let asked = Some(PublicNames::Read { native: native.to_owned(), public: uri.clone().into_owned() });
        Ok(Target { upstream, body, name, run: None, asked })
    }

    /// The way to the upstream whose task it is: public ids begin with its name.
    fn by_task(&self, offers: &MergedLists, context: &RequestContext) -> Result<Target, UnknownTarget> {
        let message = &context.message;
        if self.upstreams_with(offers, |traits| traits.tasks).next().is_none() {
            return Err(UnknownTarget::Method(Vec::new()));
        }
        if context.era == Era::Modern && !declares_tasks(message) {
            return Err(UnknownTarget::Undeclared);
        }
        let public = message.task_id().ok_or(UnknownTarget::Task)?;
        let (name, native) = public::split(&public).ok_or(UnknownTarget::Task)?;
        let has_tasks = |upstream: &&Arc<Upstream>| offers.traits(upstream.key()).is_some_and(|traits| traits.tasks);
        let upstream = Arc::clone(self.snapshot().upstream(name).filter(has_tasks).ok_or(UnknownTarget::Task)?);
        // What `tasks/result` gives back is the answer to the call, which mentions the task in `_meta` only.
        let asked = if message.method() == method::TASKS_RESULT { PublicNames::Plain } else { PublicNames::Task };
        let body = public::inward(message, name).unwrap_or_else(|| message.bytes().clone());
        Ok(Target { upstream, body, name: Some(native.to_owned()), run: None, asked: Some(asked) })
    }

    /// The way to the only upstream that declares the extension that a method belongs to.
    fn by_extension(&self, offers: &MergedLists, context: &RequestContext) -> Result<Target, UnknownTarget> {
        let message = &context.message;
        let upstream = alone(offers.declaring(message.method()));
        let upstream = upstream.and_then(|name| self.snapshot().upstream(name.as_str()));
        let unknown = || UnknownTarget::Method(offers.declaring(message.method()).cloned().collect());
        let upstream = upstream.ok_or_else(unknown)?;
        Ok(Target { asked: Some(PublicNames::Plain), ..Target::unchanged(upstream, message, context.era) })
    }

    /// The answer of a client to an upstream's question, as the upstream takes it.
    fn inward(&self, upstream: &UpstreamName, body: Bytes) -> Option<Target> {
        let upstream = Arc::clone(self.snapshot().upstream(upstream.as_str())?);
        let named = Message::parse(body.clone()).ok();
        let named = named.and_then(|message| public::inward(&message, upstream.name()));
        Some(Target { upstream, body: named.unwrap_or(body), name: None, run: None, asked: None })
    }

    /// The upstreams that have what is asked for.
    pub(super) fn upstreams_with(
        &self,
        offers: &MergedLists,
        has: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = &Arc<Upstream>> {
        self.snapshot().upstreams().filter(move |upstream| offers.traits(upstream.key()).is_some_and(&has))
    }

    /// A name that leads nowhere, or to an upstream that this client's era cannot reach.
    fn unknown(&self, context: &RequestContext, unknown: &UnknownTarget) -> Answer {
        let other = match context.era {
            Era::Legacy => Era::Modern,
            Era::Modern => Era::Legacy,
        };
        let offers = || self.catalog.known(context.caller.as_ref(), other);
        let elsewhere = match unknown {
            UnknownTarget::Name(kind, name) => offers().find(*kind, name).map(|offer| offer.upstream.clone()),
            UnknownTarget::Uri(uri) => offers().find_resource(uri).map(|(upstream, _)| upstream.clone()),
            UnknownTarget::Undeclared | UnknownTarget::Task | UnknownTarget::Method(_) => None,
        };
        if let Some(upstream) = elsewhere {
            let era = context.era;
            let text =
                format!("upstream `{upstream}` speaks only the {other} era of MCP and this client the {era} one");
            return Answer::error(context.era, &context.message, answer::INVALID_PARAMS, &text);
        }
        let (code, text) = match unknown {
            UnknownTarget::Name(catalog::ListKind::Prompt, name) => {
                (answer::INVALID_PARAMS, format!("Unknown prompt: {name}"))
            }
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
}

impl Target {
    /// A message that goes on as it came.
    pub(super) fn unchanged(upstream: &Arc<Upstream>, message: &Message, era: Era) -> Self {
        let name = (era == Era::Modern).then(|| method::target(message)).flatten();
        let name = name.map(|name| name.into_owned());
        Self { upstream: Arc::clone(upstream), body: message.bytes().clone(), name, run: None, asked: None }
    }
}

/// Which names lead somewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NameScope {
    /// Those that are listed.
    Listed,
    /// All that begin with an upstream's: a server can have tools for some clients only, and one that is down lists none.
    /// It is the one to say so.
    Any,
}

/// What was asked for and is not there.
enum UnknownTarget {
    Name(catalog::ListKind, String),
    Uri(String),
    Task,
    /// Tasks, by a client that has not said that it can have any.
    Undeclared,
    /// A method that names nothing by which to route it, and the upstreams that may know it.
    Method(Vec<UpstreamName>),
}

/// The one and only, if there is just one.
fn alone<'a>(mut upstreams: impl Iterator<Item = &'a UpstreamName>) -> Option<&'a UpstreamName> {
    upstreams.next().filter(|_| upstreams.next().is_none())
}

/// Where a method that cannot be routed may be called instead.
fn elsewhere_text(method: &str, which: &[UpstreamName]) -> String {
    let paths: Vec<String> = which.iter().map(|upstream| format!("/mcp/{upstream}")).collect();
    if paths.is_empty() {
        return format!("`{method}` is not available on /mcp; use the upstream's own /mcp/<name>");
    }
    format!("`{method}` could go to more than one upstream; use {}", paths.join(" or "))
}

/// Whether the answer to a call may be a task: its client must have said so, for the call or for itself.
fn may_become_task(context: &RequestContext) -> bool {
    match context.era {
        Era::Legacy => context.message.member("task").is_some(),
        Era::Modern => declares_tasks(&context.message),
    }
}

/// Whether a modern client has said that it can have tasks.
fn declares_tasks(message: &Message) -> bool {
    let declared = message.raw(Field::ClientCapabilities);
    declared.and_then(|declared| json::get(declared, &["extensions", TASKS])).is_some()
}

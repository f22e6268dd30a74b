//! Where a message goes.
//!
//! On `/mcp/<name>` everything goes to that upstream as it came. On `/mcp` the catalog turns public names into the
//! upstream's own, and Weir answers by itself what concerns all upstreams.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use tokio::sync::watch;
use weir_mcp::{
    Era, ListKind, Message, ParseError, json,
    message::{Field, Kind, Object, Reference},
    method,
    public::{self, PublicNames},
    translate::TASKS,
};

use crate::{
    access::{Decision, Toolset},
    catalog::{AccountChoice, MergedLists, Traits},
    config::{RuleConfig, ToolOverride, UpstreamName},
    session::{Endpoint, RunningRequest},
    task::on_heap,
    telemetry::CallOutcome,
    upstream::Upstream,
};

use super::{
    Answer, CallLog, Proxy, RequestContext,
    authorize::TargetItem,
    sign_in::{SignInResult, told},
    unknown::{UnknownTarget, nowhere},
};

/// What says to which trace a request belongs: headers, and keys of `_meta` (SEP-414).
const TRACE_CONTEXT: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// The longest part of it that goes on in a message, in bytes (W3C Baggage, section 3.3.2).
const LONGEST_CONTEXT: usize = 8192;

/// What becomes of a request.
#[allow(clippy::large_enum_variant, reason = "one lives for a moment; a box would cost each call an allocation")]
pub(super) enum Route {
    /// Weir has the answer.
    Answered(Box<Answer>),
    /// It leads nowhere that the caller may know of, and this says so.
    Unknown(Box<Answer>),
    /// A rule denies it.
    Denied(Box<DeniedCall>),
    /// It goes to an upstream.
    Upstream(Target),
}

/// A call that a rule denies.
pub(super) struct DeniedCall {
    pub(super) upstream: Arc<Upstream>,
    pub(super) decision: Decision,
    pub(super) answer: Answer,
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
    /// What rules have to allow.
    pub(super) item: TargetItem,
    /// The arguments that are sent, where they are not those of the client.
    pub(super) arguments: Option<String>,
    /// The rules that want it approved first.
    pub(super) approvals: Vec<Arc<RuleConfig>>,
    /// The same of policies, whatever the rules say.
    pub(super) policy_approvals: Vec<Arc<RuleConfig>>,
    /// Ends the answer, where that would go on for ever, when what was decided about it may be decided otherwise.
    pub(super) superseded: Option<watch::Receiver<bool>>,
}

impl Target {
    /// Has the message itself say to which trace it belongs, where headers do that do not go on (SEP-414).
    pub(super) fn carry_trace(&mut self, context: &RequestContext) {
        let Ok(message) = self.message(context) else { return };
        let named = |name: &str| TRACE_CONTEXT.contains(&name) && message.meta(name).is_none();
        let said =
            context.headers.iter().filter(|(name, value)| named(name.as_str()) && value.len() <= LONGEST_CONTEXT);
        let said: Vec<_> =
            said.filter_map(|(name, value)| Some((name.as_str(), json::quote(value.to_str().ok()?)))).collect();
        if !said.is_empty() {
            let edit = said.iter().fold(message.edit(), |edit, (name, value)| edit.put(Object::Meta, name, value));
            self.body = edit.finish();
        }
    }

    /// What is sent, read; not again where it is what the client sent.
    pub(super) fn message(&self, context: &RequestContext) -> Result<Message, ParseError> {
        let sent = context.message.bytes();
        let same = self.body.as_ptr() == sent.as_ptr() && self.body.len() == sent.len();
        if same { Ok(context.message.clone()) } else { Message::parse(self.body.clone()) }
    }
}

impl Proxy {
    /// Where a request goes, if its caller may have it go there.
    pub(super) async fn route(self: &Arc<Self>, context: &RequestContext, record: &mut CallLog) -> Route {
        // Before anything is decided, so that no later configuration is missed.
        let superseded = method::is_endless(context.message.method()).then(|| self.catalog.superseded());
        let route = self.find_route(context).await;
        let Route::Upstream(mut target) = route else { return route };
        target.superseded = superseded;
        let mut decision = self.authorize(context, &target);
        record.decided(&decision);
        if decision.allowed {
            target.approvals = std::mem::take(&mut decision.approvals);
            return Route::Upstream(target);
        }
        let answer = if decision.by_arguments {
            let rule = decision.rule.as_deref().unwrap_or_default();
            told(context, &format!("not allowed with these arguments (rule `{rule}`, call {})", record.id), true)
        } else {
            // As if it did not exist.
            nowhere(context, &target.as_unknown(context))
        };
        Route::Denied(Box::new(DeniedCall { upstream: target.upstream, decision, answer }))
    }

    async fn find_route(self: &Arc<Self>, context: &RequestContext) -> Route {
        let message = &context.message;
        let toolset = match &context.endpoint {
            Endpoint::One(upstream) => return Route::Upstream(Target::unchanged(upstream, message, context.era)),
            Endpoint::Merged(toolset) => toolset,
        };
        if let Some(answer) = self.answer(context).await {
            return Route::Answered(Box::new(answer));
        }
        let viewer = context.viewer();
        let mut offers = self.catalog.known(viewer, context.era);
        let mut target = self.find(&offers, context, toolset, NameScope::Listed);
        if target.is_err() {
            if let Some(answer) = self.status(context) {
                return Route::Answered(Box::new(answer));
            }
            // It may be one that this client, or all of its era, have not listed since it is there.
            offers = on_heap(|| self.catalog.merged(viewer, context.era)).await;
            target = self.find(&offers, context, toolset, NameScope::Listed);
        }
        if let Err(UnknownTarget::Name(_, name)) = &target {
            match Box::pin(self.behind_sign_in(context, &offers, name)).await {
                Some(SignInResult::Answered(answer)) => return Route::Answered(answer),
                Some(SignInResult::Listed(offers)) => target = self.find(&offers, context, toolset, NameScope::Listed),
                None => {}
            }
        }
        if target.is_err() {
            target = self.find(&offers, context, toolset, NameScope::Any);
        }
        match target {
            Ok(target) => Route::Upstream(target),
            Err(unknown) => Route::Unknown(Box::new(self.unknown(context, &unknown))),
        }
    }

    fn find(
        &self,
        offers: &MergedLists,
        context: &RequestContext,
        toolset: &Toolset,
        names: NameScope,
    ) -> Result<Target, UnknownTarget> {
        match method::route(context.message.method()) {
            method::Route::Name => self.by_name(offers, context, toolset, names),
            method::Route::Uri => self.by_uri(offers, &context.message),
            method::Route::Reference => self.by_reference(offers, &context.message, toolset, names),
            method::Route::Task => self.by_task(offers, context),
            method::Route::None => self.by_extension(offers, context),
        }
    }

    /// Where a notification or an answer goes; nowhere if it concerns nobody.
    pub(super) fn route_message(&self, context: &RequestContext) -> Vec<Target> {
        let message = &context.message;
        // Without an id it has no answer, but its upstream might do what it says, and nobody has asked whether it may.
        if message.kind() == Kind::Notification && method::route(message.method()) != method::Route::None {
            return Vec::new();
        }
        let unchanged = |upstream: &Arc<Upstream>| Target::unchanged(upstream, message, context.era);
        if message.method() == method::CANCELLED {
            let running = context.session.as_ref().zip(message.request_id());
            let running = running.and_then(|(session, id)| session.runs_at(id));
            let target = running.map(|run| Target { run: Some(Arc::clone(&run)), ..unchanged(&run.upstream) });
            return target.into_iter().collect();
        }
        let session = match (&context.endpoint, &context.session) {
            (Endpoint::One(upstream), _) => return self.to_one(context, unchanged(upstream)),
            (Endpoint::Merged(_), Some(session)) => session,
            (Endpoint::Merged(_), None) => return Vec::new(),
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
                let offers = self.catalog.known(context.viewer(), context.era);
                let upstream = alone(offers.declaring(method)).and_then(|name| self.upstream(name.as_str()));
                let target = upstream.map(|upstream| Target { item: TargetItem::Whole, ..unchanged(&upstream) });
                target.filter(|target| self.lets_pass(context, target)).into_iter().collect()
            }
        }
    }

    /// The same at an endpoint of one upstream. What an extension has is nobody's item, so rules have to allow it as a whole.
    fn to_one(&self, context: &RequestContext, target: Target) -> Vec<Target> {
        let message = &context.message;
        let is_own = message.kind() != Kind::Notification
            || matches!(message.method(), method::PROGRESS | method::ROOTS_CHANGED | method::INITIALIZED);
        (is_own || self.lets_pass(context, &target)).then_some(target).into_iter().collect()
    }

    /// Whether rules let a notification pass. Nobody answers one, so the records alone say that they do not.
    fn lets_pass(&self, context: &RequestContext, target: &Target) -> bool {
        let decision = self.authorize(context, target);
        if !decision.allowed || decision.shadow.is_some() {
            let mut record = CallLog::new(context);
            record.goes_to(&target.upstream);
            record.decided(&decision);
            if !decision.allowed {
                record.fail(CallOutcome::Refused, decision.to_string());
            }
            record.finish(202, 0);
        }
        decision.allowed
    }

    fn by_name(
        &self,
        offers: &MergedLists,
        context: &RequestContext,
        toolset: &Toolset,
        names: NameScope,
    ) -> Result<Target, UnknownTarget> {
        let message = &context.message;
        let kind = named_kind(message);
        let name = message.name().unwrap_or_default();
        let given = message.raw(Field::Arguments);
        let NamedItem { upstream, traits, native, chosen_by } =
            self.named(offers, (kind, &name, given), toolset, names)?;
        let changed = toolset.place(kind, upstream.name(), native).and_then(|place| place.changed);
        let arguments =
            (changed.is_some() || chosen_by.is_some()).then(|| arguments(given, changed, chosen_by.as_deref()));
        let edit = || message.edit().set(Field::Name, json::quote(native).as_bytes());
        let body = match &arguments {
            Some(arguments) => edit().put(Object::Body, "arguments", arguments).finish(),
            None if native == name => message.bytes().clone(),
            None => edit().finish(),
        };
        let tasks = message.method() == method::TOOLS_CALL && traits.is_some_and(|is| is.tasks);
        let asked = (tasks && may_become_task(context)).then_some(PublicNames::Call);
        let name = Some(native.to_owned());
        Ok(Target { name, asked, arguments, ..Target::new(upstream, body, TargetItem::Named) })
    }

    fn by_reference(
        &self,
        offers: &MergedLists,
        message: &Message,
        toolset: &Toolset,
        names: NameScope,
    ) -> Result<Target, UnknownTarget> {
        match message.reference() {
            Some(Reference::Prompt(name)) => {
                let given = message.params().and_then(|params| json::get(params, &["context", "arguments"]));
                let NamedItem { upstream, native, chosen_by, .. } =
                    self.named(offers, (ListKind::Prompt, &name, given), toolset, names)?;
                let mut body = message.edit().set(Field::ReferenceName, json::quote(native).as_bytes()).finish();
                if let Some(own) = chosen_by
                    && let Some(given) = json::get(&body, &["params", "context", "arguments"])
                {
                    body = public::replaced(&body, vec![(given, arguments(Some(given), None, Some(&own)))]);
                }
                let item = TargetItem::One(ListKind::Prompt, native.to_owned());
                Ok(Target::new(upstream, body, item))
            }
            Some(Reference::Resource(uri)) => {
                let (upstream, native) = self.addressed(offers, &uri)?;
                let item = TargetItem::One(ListKind::Template, native.to_owned());
                Ok(Target::new(upstream, message.bytes().clone(), item))
            }
            None => Err(UnknownTarget::Name(ListKind::Prompt, String::new())),
        }
    }

    /// Whose a public name is with these arguments, and what it is called there.
    fn named<'a>(
        &self,
        offers: &'a MergedLists,
        (kind, name, arguments): (ListKind, &'a str, Option<&[u8]>),
        toolset: &'a Toolset,
        names: NameScope,
    ) -> Result<NamedItem<'a>, UnknownTarget> {
        let unknown = || UnknownTarget::Name(kind, name.to_owned());
        let mut accounts = None;
        let found = match offers.find(kind, name) {
            // What only stands in for an upstream that waits for a login is Weir's own.
            Some(offer) => {
                accounts = offer.accounts.as_ref().map(Cow::Borrowed);
                offers.traits(&offer.upstream).map(|_| (offer.upstream.as_str(), &*offer.native))
            }
            None => self
                .unlisted(toolset, name)
                .filter(|(_, native)| names == NameScope::Any && !native.is_empty())
                // It is known by another name here.
                .filter(|(upstream, native)| {
                    let place = toolset.place(kind, upstream, native);
                    place.and_then(|place| place.changed).is_none_or(|changed| changed.name.is_none())
                })
                .inspect(|(upstream, _)| accounts = self.accounts(toolset, upstream).map(Cow::Owned)),
        };
        let (upstream, native) = found.ok_or_else(unknown)?;
        let (upstream, chosen_by) = match accounts {
            Some(accounts) => {
                let (chosen, is_named) = accounts.choose(arguments).map_err(UnknownTarget::Account)?;
                let chosen = self.upstream(chosen.as_str());
                (chosen, is_named.then(|| accounts.argument.clone()))
            }
            None => (self.upstream(upstream), None),
        };
        let upstream = upstream.ok_or_else(unknown)?;
        let traits = offers.traits(upstream.key());
        Ok(NamedItem { upstream, traits, native, chosen_by })
    }

    /// Whose a name must be that no list has, and what it is called there.
    fn unlisted<'a>(&self, toolset: &'a Toolset, name: &'a str) -> Option<(&'a str, &'a str)> {
        match toolset.only() {
            Some(upstream) => Some((upstream.as_str(), name)),
            None if toolset.has_prefix() => public::split(name),
            None => self.accounts(toolset, toolset.name()).map(|_| (toolset.name(), name)),
        }
    }

    /// How a call that no list has chooses among the accounts of a service; none if it has none at this endpoint.
    pub(super) fn accounts(&self, toolset: &Toolset, service: &str) -> Option<AccountChoice> {
        let snapshot = self.snapshot();
        let here = snapshot.upstreams().filter(|upstream| toolset.order(upstream.name()).is_some());
        let accounts = here.filter_map(|upstream| Some((upstream.account()?, upstream.key())));
        AccountChoice::among(accounts.filter(|(account, _)| account.by_argument && account.service.as_str() == service))
    }

    /// Whose a public address is, and what it is called there.
    fn addressed<'a>(&self, offers: &'a MergedLists, uri: &'a str) -> Result<(Arc<Upstream>, &'a str), UnknownTarget> {
        let found = offers.find_resource(uri);
        let found = found.and_then(|(name, native)| Some((self.upstream(name.as_str())?, native)));
        found.ok_or_else(|| UnknownTarget::Uri(uri.to_owned()))
    }

    fn by_uri(&self, offers: &MergedLists, message: &Message) -> Result<Target, UnknownTarget> {
        let uri = message.uri().unwrap_or_default();
        let (upstream, native) = self.addressed(offers, &uri)?;
        let name = Some(native.to_owned());
        if native == uri {
            return Ok(Target { name, ..Target::new(upstream, message.bytes().clone(), TargetItem::Named) });
        }
        let body = message.edit().set(Field::Uri, json::quote(native)).finish();
        let asked = Some(PublicNames::Read { native: native.to_owned(), public: uri.clone().into_owned() });
        Ok(Target { name, asked, ..Target::new(upstream, body, TargetItem::Named) })
    }

    /// The way to the upstream whose task it is: public ids begin with its name.
    fn by_task(&self, offers: &MergedLists, context: &RequestContext) -> Result<Target, UnknownTarget> {
        let message = &context.message;
        if self.upstreams_with(offers, |traits| traits.tasks).is_empty() {
            return Err(UnknownTarget::Method(Vec::new()));
        }
        if context.era == Era::Modern && !declares_tasks(message) {
            return Err(UnknownTarget::Undeclared);
        }
        let public = message.task_id().ok_or(UnknownTarget::Task)?;
        let (name, native) = public::split(&public).ok_or(UnknownTarget::Task)?;
        let has_tasks = |upstream: &Arc<Upstream>| offers.traits(upstream.key()).is_some_and(|traits| traits.tasks);
        let upstream = self.upstream(name).filter(has_tasks).ok_or(UnknownTarget::Task)?;
        // What `tasks/result` gives back is the answer to the call, which mentions the task in `_meta` only.
        let asked = if message.method() == method::TASKS_RESULT { PublicNames::Plain } else { PublicNames::Task };
        let body = public::inward(message, name).unwrap_or_else(|| message.bytes().clone());
        let name = Some(native.to_owned());
        Ok(Target { name, asked: Some(asked), ..Target::new(upstream, body, TargetItem::Any) })
    }

    /// The way to the only upstream that declares the extension that a method belongs to.
    fn by_extension(&self, offers: &MergedLists, context: &RequestContext) -> Result<Target, UnknownTarget> {
        let message = &context.message;
        let upstream = alone(offers.declaring(message.method()));
        let upstream = upstream.and_then(|name| self.upstream(name.as_str()));
        let unknown = || UnknownTarget::Method(offers.declaring(message.method()).cloned().collect());
        let upstream = upstream.ok_or_else(unknown)?;
        Ok(Target {
            asked: Some(PublicNames::Plain),
            item: TargetItem::Whole,
            ..Target::unchanged(&upstream, message, context.era)
        })
    }

    /// The answer of a client to an upstream's question, as the upstream takes it.
    fn inward(&self, upstream: &UpstreamName, body: Bytes) -> Option<Target> {
        let upstream = self.upstream(upstream.as_str())?;
        let named = Message::parse(body.clone()).ok();
        let named = named.and_then(|message| public::inward(&message, upstream.name()));
        Some(Target::new(upstream, named.unwrap_or(body), TargetItem::Any))
    }

    /// The upstreams that have what is asked for.
    pub(super) fn upstreams_with(&self, offers: &MergedLists, has: impl Fn(&Traits) -> bool) -> Vec<Arc<Upstream>> {
        let has = |upstream: &&Arc<Upstream>| offers.traits(upstream.key()).is_some_and(&has);
        self.snapshot().upstreams().filter(has).cloned().collect()
    }
}

impl Target {
    /// What is sent where, and what rules have to allow for that.
    const fn new(upstream: Arc<Upstream>, body: Bytes, item: TargetItem) -> Self {
        Self {
            upstream,
            body,
            name: None,
            run: None,
            asked: None,
            item,
            arguments: None,
            approvals: Vec::new(),
            policy_approvals: Vec::new(),
            superseded: None,
        }
    }

    /// A message that goes on as it came.
    pub(super) fn unchanged(upstream: &Arc<Upstream>, message: &Message, era: Era) -> Self {
        let name = (era == Era::Modern).then(|| method::target(message)).flatten();
        let name = name.map(|name| name.into_owned());
        Self { name, ..Self::new(Arc::clone(upstream), message.bytes().clone(), TargetItem::Named) }
    }
}

/// Which kind of thing `name` names in `params`.
pub(super) fn named_kind(message: &Message) -> ListKind {
    if message.method().starts_with("prompts/") { ListKind::Prompt } else { ListKind::Tool }
}

/// Where a name leads.
struct NamedItem<'a> {
    upstream: Arc<Upstream>,
    /// What that can do, as far as is known.
    traits: Option<&'a Traits>,
    /// What it calls it.
    native: &'a str,
    /// The argument that has chosen the account, which is not for the upstream.
    chosen_by: Option<String>,
}

/// The arguments that are sent: those of the client that it may give and that are not Weir's own, and those that the
/// operator has fixed.
fn arguments(given: Option<&[u8]>, changed: Option<&ToolOverride>, own: Option<&str>) -> String {
    let hides = |name: &str| own == Some(name) || changed.is_some_and(|changed| changed.hides(name));
    let given = json::members(given.unwrap_or(b"{}")).filter(|(name, _)| !hides(name));
    let given = given.map(|(name, raw)| format!("{}:{}", json::quote(&name), String::from_utf8_lossy(raw)));
    let fixed = changed
        .map_or(&[][..], |changed| &changed.fixed)
        .iter()
        .map(|(name, raw)| format!("{}:{raw}", json::quote(name)));
    let all: Vec<String> = given.chain(fixed).collect();
    format!("{{{}}}", all.join(","))
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

/// The one and only, if there is just one.
fn alone<'a>(mut upstreams: impl Iterator<Item = &'a UpstreamName>) -> Option<&'a UpstreamName> {
    upstreams.next().filter(|_| upstreams.next().is_none())
}

/// Whether the answer to a call may be a task: its client must have said so, for the call or for itself.
fn may_become_task(context: &RequestContext) -> bool {
    match context.era {
        Era::Legacy => context.message.member("task").is_some(),
        Era::Modern => declares_tasks(&context.message),
    }
}

/// Whether a modern client has said that it can have tasks.
pub(super) fn declares_tasks(message: &Message) -> bool {
    let declared = message.raw(Field::ClientCapabilities);
    declared.and_then(|declared| json::get(declared, &["extensions", TASKS])).is_some()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_client_neither_gives_nor_changes_what_the_operator_has_fixed() {
        let changed = ToolOverride {
            fixed: vec![("project".to_owned(), "\"DESK\"".to_owned())],
            hidden: vec!["assignee".to_owned()],
            ..ToolOverride::default()
        };
        let sent = |given: &str| arguments(Some(given.as_bytes()), Some(&changed), None);
        assert_eq!(sent(r#"{"a":[1, 2],"project":"X","assignee":"eve"}"#), r#"{"a":[1, 2],"project":"DESK"}"#);
        // However the client spells it.
        assert_eq!(sent(r#"{"\u0070roject":"X"}"#), r#"{"project":"DESK"}"#);
        assert_eq!(sent("{}"), r#"{"project":"DESK"}"#);
        assert_eq!(arguments(None, Some(&changed), None), r#"{"project":"DESK"}"#);
        // What chooses among accounts is for Weir.
        assert_eq!(arguments(Some(br#"{"a":1,"account":"work"}"#), None, Some("account")), r#"{"a":1}"#);
    }

    #[test]
    fn a_method_goes_to_the_only_upstream_that_has_it() {
        let names: [UpstreamName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        assert_eq!(alone(names[..1].iter()), Some(&names[0]));
        assert_eq!(alone(names.iter()), None);
        assert_eq!(alone([].iter()), None);
    }
}

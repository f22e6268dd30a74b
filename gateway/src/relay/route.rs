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
    public::{self, Asked},
    status::http_status,
    translate::TASKS,
};

use crate::{
    catalog::{self, Merged, Traits},
    session::{Endpoint, Run},
};

use super::{Answer, Inquiry, Relay, sign_in::Behind};

/// What becomes of a request.
#[allow(clippy::large_enum_variant, reason = "one lives for a moment; a box would cost each call an allocation")]
pub(super) enum Route {
    /// Weir has the answer.
    Answered(Answer),
    /// It leads nowhere, and this says so.
    Unknown(Answer),
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
    pub(super) run: Option<Arc<Run>>,
    /// What in the answer needs a public name; none if the answer need not be looked at.
    pub(super) asked: Option<Asked>,
}

impl Leg {
    /// What is sent, read; not again where it is what the client sent.
    pub(super) fn message(&self, inquiry: &Inquiry) -> Result<Message, ParseError> {
        let sent = inquiry.message.bytes();
        let same = self.body.as_ptr() == sent.as_ptr() && self.body.len() == sent.len();
        if same { Ok(inquiry.message.clone()) } else { Message::parse(self.body.clone()) }
    }
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
        let mut offers = self.catalog.known(inquiry.caller.as_ref(), inquiry.era);
        let mut leg = self.find(&offers, inquiry, Names::Listed);
        if leg.is_err() {
            if let Some(answer) = self.status(inquiry) {
                return Route::Answered(answer);
            }
            // It may be one that this client, or all of its era, have not listed since it is there.
            offers = Box::pin(self.catalog.merged(inquiry.caller.as_ref(), inquiry.era)).await;
            leg = self.find(&offers, inquiry, Names::Listed);
        }
        if let Err(Unknown::Name(_, name)) = &leg {
            match Box::pin(self.behind_sign_in(inquiry, &offers, name)).await {
                Some(Behind::Answered(answer)) => return Route::Answered(*answer),
                Some(Behind::Listed(offers)) => leg = self.find(&offers, inquiry, Names::Listed),
                None => {}
            }
        }
        if leg.is_err() {
            leg = self.find(&offers, inquiry, Names::Any);
        }
        match leg {
            Ok(leg) => Route::Upstream(leg),
            Err(unknown) => Route::Unknown(self.unknown(inquiry, &unknown)),
        }
    }

    fn find(&self, offers: &Merged, inquiry: &Inquiry, names: Names) -> Result<Leg, Unknown> {
        match method::route(inquiry.message.method()) {
            method::Route::Name => self.by_name(offers, inquiry, names),
            method::Route::Uri => by_uri(offers, &inquiry.message),
            method::Route::Reference => self.by_reference(offers, &inquiry.message, names),
            method::Route::Task => self.by_task(offers, inquiry),
            method::Route::None => self.by_extension(offers, inquiry),
        }
    }

    /// Where a notification or an answer goes; nowhere if it concerns nobody.
    pub(super) fn route_message(&self, inquiry: &Inquiry) -> Vec<Leg> {
        let message = &inquiry.message;
        let unchanged = |upstream| Leg::unchanged(upstream, message, inquiry.era);
        if message.method() == method::CANCELLED {
            let running = inquiry.session.as_ref().zip(message.request_id());
            let running = running.and_then(|(session, id)| session.runs_at(id));
            let leg = running.map(|run| Leg { run: Some(Arc::clone(&run)), ..unchanged(run.upstream) });
            return leg.into_iter().collect();
        }
        let session = match (inquiry.endpoint, &inquiry.session) {
            (Endpoint::One(upstream), _) => return vec![unchanged(upstream)],
            (Endpoint::All, Some(session)) => session,
            (Endpoint::All, None) => return Vec::new(),
        };
        match (message.kind(), message.method()) {
            (Kind::Response | Kind::Error, _) => {
                let answered = session.answered(message);
                answered.map(|(upstream, body)| self.inward(upstream, body)).into_iter().collect()
            }
            (_, method::PROGRESS) => {
                let progressed = session.progressed(message);
                progressed.map(|(upstream, body)| self.inward(upstream, body)).into_iter().collect()
            }
            (_, method::ROOTS_CHANGED) => {
                session.lines.all().into_iter().map(|(upstream, _)| unchanged(upstream)).collect()
            }
            // `initialized` is told to each upstream when it is opened.
            (_, method) => alone(self.catalog.known(inquiry.caller.as_ref(), inquiry.era).declaring(method))
                .map(unchanged)
                .into_iter()
                .collect(),
        }
    }

    fn by_name(&self, offers: &Merged, inquiry: &Inquiry, names: Names) -> Result<Leg, Unknown> {
        let message = &inquiry.message;
        let kind = if message.method().starts_with("prompts/") { catalog::Kind::Prompt } else { catalog::Kind::Tool };
        let name = message.name().unwrap_or_default();
        let (upstream, native) = self.named(offers, kind, &name, names)?;
        let body = message.edit().set(Field::Name, json::quote(native).as_bytes()).finish();
        let tasks = message.method() == method::TOOLS_CALL && offers.traits(upstream).is_some_and(|is| is.tasks);
        let asked = (tasks && may_become_task(inquiry)).then_some(Asked::Call);
        Ok(Leg { upstream, body, name: Some(native.to_owned()), run: None, asked })
    }

    fn by_reference(&self, offers: &Merged, message: &Message, names: Names) -> Result<Leg, Unknown> {
        match message.reference() {
            Some(Reference::Prompt(name)) => {
                let (upstream, native) = self.named(offers, catalog::Kind::Prompt, &name, names)?;
                let body = message.edit().set(Field::ReferenceName, json::quote(native).as_bytes()).finish();
                Ok(Leg { upstream, body, name: None, run: None, asked: None })
            }
            Some(Reference::Resource(uri)) => {
                let (upstream, _) = offers.find_resource(&uri).ok_or_else(|| Unknown::Uri(uri.clone().into_owned()))?;
                Ok(Leg { upstream, body: message.bytes().clone(), name: None, run: None, asked: None })
            }
            None => Err(Unknown::Name(catalog::Kind::Prompt, String::new())),
        }
    }

    /// Whose a public name is, and what it is called there.
    fn named<'a>(
        &self,
        offers: &'a Merged,
        kind: catalog::Kind,
        name: &'a str,
        names: Names,
    ) -> Result<(usize, &'a str), Unknown> {
        if let Some(offer) = offers.find(kind, name) {
            // What only stands in for an upstream that waits for a login is Weir's own.
            return match offers.traits(offer.upstream) {
                Some(_) => Ok((offer.upstream, &offer.native)),
                None => Err(Unknown::Name(kind, name.to_owned())),
            };
        }
        let split = public::split(name).filter(|(_, native)| names == Names::Any && !native.is_empty());
        let named = split.and_then(|(upstream, native)| Some((self.catalog.position(upstream)?, native)));
        named.ok_or_else(|| Unknown::Name(kind, name.to_owned()))
    }

    /// The way to the upstream whose task it is: public ids begin with its name.
    fn by_task(&self, offers: &Merged, inquiry: &Inquiry) -> Result<Leg, Unknown> {
        let message = &inquiry.message;
        if !self.upstreams_with(offers, |traits| traits.tasks).any(|_| true) {
            return Err(Unknown::Method(Vec::new()));
        }
        if inquiry.era == Era::Modern && !declares_tasks(message) {
            return Err(Unknown::Undeclared);
        }
        let public = message.task_id().ok_or(Unknown::Task)?;
        let (name, native) = public::split(&public).ok_or(Unknown::Task)?;
        let upstream = self.catalog.position(name).filter(|at| offers.traits(*at).is_some_and(|traits| traits.tasks));
        let upstream = upstream.ok_or(Unknown::Task)?;
        // What `tasks/result` gives back is the answer to the call, which mentions the task in `_meta` only.
        let asked = if message.method() == method::TASKS_RESULT { Asked::Plain } else { Asked::Task };
        let body = public::inward(message, name).unwrap_or_else(|| message.bytes().clone());
        Ok(Leg { upstream, body, name: Some(native.to_owned()), run: None, asked: Some(asked) })
    }

    /// The way to the only upstream that declares the extension that a method belongs to.
    fn by_extension(&self, offers: &Merged, inquiry: &Inquiry) -> Result<Leg, Unknown> {
        let message = &inquiry.message;
        let declaring: Vec<usize> = offers.declaring(message.method()).collect();
        let upstream = alone(declaring.iter().copied()).ok_or(Unknown::Method(declaring))?;
        Ok(Leg { asked: Some(Asked::Plain), ..Leg::unchanged(upstream, message, inquiry.era) })
    }

    /// The answer of a client to an upstream's question, as the upstream takes it.
    fn inward(&self, upstream: usize, body: Bytes) -> Leg {
        let named = Message::parse(body.clone()).ok();
        let named = named.and_then(|message| public::inward(&message, self.upstream(upstream).name()));
        Leg { upstream, body: named.unwrap_or(body), name: None, run: None, asked: None }
    }

    /// The upstreams that have what is asked for.
    pub(super) fn upstreams_with(&self, offers: &Merged, has: impl Fn(&Traits) -> bool) -> impl Iterator<Item = usize> {
        (0..self.catalog.upstreams().len()).filter(move |place| offers.traits(*place).is_some_and(&has))
    }

    /// Where a method that cannot be routed may be called instead.
    fn elsewhere(&self, method: &str, which: &[usize]) -> String {
        let paths: Vec<String> = which.iter().map(|place| format!("/mcp/{}", self.upstream(*place).name())).collect();
        if paths.is_empty() {
            return format!("`{method}` is not available on /mcp; use the upstream's own /mcp/<name>");
        }
        format!("`{method}` could go to more than one upstream; use {}", paths.join(" or "))
    }

    /// A name that leads nowhere, or to an upstream that this client's era cannot reach.
    fn unknown(&self, inquiry: &Inquiry, unknown: &Unknown) -> Answer {
        let other = match inquiry.era {
            Era::Legacy => Era::Modern,
            Era::Modern => Era::Legacy,
        };
        let elsewhere = match unknown {
            Unknown::Name(kind, name) => {
                self.catalog.known(inquiry.caller.as_ref(), other).find(*kind, name).map(|offer| offer.upstream)
            }
            Unknown::Uri(uri) => {
                self.catalog.known(inquiry.caller.as_ref(), other).find_resource(uri).map(|(upstream, _)| upstream)
            }
            Unknown::Undeclared | Unknown::Task | Unknown::Method(_) => None,
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
            Unknown::Undeclared => {
                let data = format!("{{\"requiredCapabilities\":{{\"extensions\":{{\"{TASKS}\":{{}}}}}}}}");
                let text = "tasks need a client that declares the extension";
                let error = answer::error(inquiry.message.id(), answer::MISSING_CAPABILITY, text, Some(&data));
                return Answer::whole(http_status(inquiry.era, answer::MISSING_CAPABILITY), error);
            }
            Unknown::Task => (answer::INVALID_PARAMS, "Unknown task".into()),
            Unknown::Method(which) => (answer::METHOD_NOT_FOUND, self.elsewhere(inquiry.message.method(), which)),
        };
        Answer::error(inquiry.era, &inquiry.message, code, &text)
    }
}

impl Leg {
    /// A message that goes on as it came.
    pub(super) fn unchanged(upstream: usize, message: &Message, era: Era) -> Self {
        let name = (era == Era::Modern).then(|| method::target(message)).flatten();
        let name = name.map(|name| name.into_owned());
        Self { upstream, body: message.bytes().clone(), name, run: None, asked: None }
    }
}

/// Which names lead somewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Those that are listed.
    Listed,
    /// All that begin with an upstream's: a server can have tools for some clients only, and one that is down lists none.
    /// It is the one to say so.
    Any,
}

/// What was asked for and is not there.
enum Unknown {
    Name(catalog::Kind, String),
    Uri(String),
    Task,
    /// Tasks, by a client that has not said that it can have any.
    Undeclared,
    /// A method that names nothing by which to route it, and the upstreams that may know it.
    Method(Vec<usize>),
}

/// The one and only, if there is just one.
fn alone(mut places: impl Iterator<Item = usize>) -> Option<usize> {
    places.next().filter(|_| places.next().is_none())
}

/// Whether the answer to a call may be a task: its client must have said so, for the call or for itself.
fn may_become_task(inquiry: &Inquiry) -> bool {
    match inquiry.era {
        Era::Legacy => inquiry.message.member("task").is_some(),
        Era::Modern => declares_tasks(&inquiry.message),
    }
}

/// Whether a modern client has said that it can have tasks.
fn declares_tasks(message: &Message) -> bool {
    let declared = message.raw(Field::ClientCapabilities);
    declared.and_then(|declared| json::get(declared, &["extensions", TASKS])).is_some()
}

fn by_uri(offers: &Merged, message: &Message) -> Result<Leg, Unknown> {
    let uri = message.uri().unwrap_or_default();
    let (upstream, native) = offers.find_resource(&uri).ok_or_else(|| Unknown::Uri(uri.clone().into_owned()))?;
    let name = Some(native.to_owned());
    if native == uri {
        return Ok(Leg { upstream, body: message.bytes().clone(), name, run: None, asked: None });
    }
    let body = message.edit().set(Field::Uri, json::quote(native)).finish();
    let asked = Some(Asked::Read { native: native.to_owned(), public: uri.clone().into_owned() });
    Ok(Leg { upstream, body, name, run: None, asked })
}

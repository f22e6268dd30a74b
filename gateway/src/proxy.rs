//! The way of a call: the one place where catalog, policy, credentials and upstream meet.
//!
//! [`Proxy::request`] finds out where a request goes ([`route`]) and whether it may ([`authorize`]), drives one
//! [`weir_flow::call`] there ([`drive`]) and hands back an [`Answer`] whose body is pulled by the server as it comes
//! ([`answer_stream`]). What Weir answers by itself on the aggregate is in [`aggregate`]; how legacy sessions begin and end
//! in [`legacy`], and how they hear in [`forward`]; how clients and upstreams of different eras meet in [`translate`].

pub mod activity;
mod aggregate;
mod answer;
mod approval;
mod attempt;
mod beside;
mod authorize;
mod namespace;
mod deadline;
mod decide;
mod decided_answer;
mod answer_stream;
mod drive;
mod legacy;
mod forward;
mod handover;
mod pending_answer;
pub mod recorder;
mod restore;
mod retire;
mod route;
mod sign_in;
mod task_owner;
mod tasks;
mod translate;
mod unknown;
mod watch;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use weir_mcp::{Era, Field, Kind, Message, method};

use crate::{
    access::{Grants, Item, Toolset},
    admission::{Admission, AdmittedCall, NotAdmitted},
    caller::Caller,
    catalog::{Catalog, ClientInfo, CurrentSnapshot, Viewer},
    config::{MERGED_ENDPOINT, UpstreamName},
    http::{HeaderName, HeaderValue},
    replica::Replicas,
    session::{Endpoint, Session, SessionOwner, SessionRegistry, Sessions},
    snapshot::Snapshot,
    task::on_heap,
    telemetry::CallOutcome,
    upstream::Upstream,
};

use decide::Forwarded;
use decided_answer::DecidedCall;

pub use answer::{Answer, Body, CLIENT_GONE, CallLog};
pub use answer_stream::{AnswerStream, KeepStream, StreamClose, StreamItem};
pub use pending_answer::{PendingAnswer, WholeAnswer};
pub use retire::Retired;

/// Everything that calls go through.
pub struct Proxy {
    catalog: Arc<Catalog>,
    sessions: Arc<Sessions>,
    /// The legacy sessions of modern clients.
    pool: translate::SharedSessionPool,
    /// Calls at legacy upstreams that wait for their clients' answers.
    pending: Arc<translate::PendingInput>,
    /// Long lists that are translated time and again.
    list_cache: Arc<translate::ListCache>,
    /// How many calls may go to upstreams.
    admission: ArcSwap<Admission>,
    /// How callers sign in; none where there is no page for it.
    prompt: Option<sign_in::SignInPrompt>,
    /// Whose the tasks are; none where there is only one caller.
    tasks: Option<task_owner::TaskMarks>,
    /// Where the sessions of all gateways stand; none if this one is alone.
    registry: Option<Arc<SessionRegistry>>,
    /// The other gateways; if this one is alone, the process that it has taken over from.
    replicas: Option<Arc<Replicas>>,
    /// Whether another process has taken over.
    is_replaced: AtomicBool,
    /// Approved calls that go on when their clients come back.
    continued: Arc<approval::ContinuedCalls>,
    /// Turns true when the gateway ends.
    stopping: tokio::sync::watch::Sender<bool>,
}

/// One message from a client, with what goes along.
#[derive(Clone)]
pub struct RequestContext {
    /// The client's era.
    pub era: Era,
    /// Where it came in.
    pub endpoint: Endpoint,
    /// Who sent it; none where everybody may.
    pub caller: Option<Arc<Caller>>,
    /// Whose share it uses of what all share.
    pub principal: Arc<str>,
    /// The message.
    pub message: Message,
    /// `MCP-Protocol-Version`, where the client sent it.
    pub version: Option<HeaderValue>,
    /// Headers that may travel.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The client's session, in the legacy era.
    pub session: Option<Arc<Session>>,
}

impl RequestContext {
    /// Who looks at what, where lists are asked for.
    pub(in crate::proxy) fn viewer(&self) -> Viewer<'_> {
        viewer(Some(&self.endpoint), self.caller.as_ref(), self.client())
    }

    /// The session, if this gateway has but a copy of it.
    pub(in crate::proxy) fn copy(&self) -> Option<&Arc<Session>> {
        self.session.as_ref().filter(|session| session.is_copy())
    }

    /// Who calls, and with which client.
    fn who(&self) -> (Option<&Arc<Caller>>, Option<ClientInfo<'_>>) {
        (self.caller.as_ref(), self.client())
    }

    /// What the client says of itself: when its session began, or with each request.
    fn client(&self) -> Option<ClientInfo<'_>> {
        match &self.session {
            Some(session) => session.client_info(),
            None => self.message.raw(Field::ClientInfo).map(ClientInfo::Raw),
        }
    }

    /// The first message of a legacy client.
    pub(in crate::proxy) fn introducing(owner: &SessionOwner, endpoint: Endpoint, initialize: &Message) -> Self {
        let (caller, message, principal) = (owner.caller.clone(), initialize.clone(), Arc::clone(owner.principal()));
        Self {
            era: Era::Legacy,
            endpoint,
            caller,
            principal,
            message,
            version: None,
            headers: Vec::new(),
            session: None,
        }
    }
}

/// Who looks at what: at an endpoint of a single upstream all are looked at.
fn viewer<'a>(
    endpoint: Option<&'a Endpoint>,
    caller: Option<&'a Arc<Caller>>,
    client: Option<ClientInfo<'a>>,
) -> Viewer<'a> {
    let toolset = match endpoint {
        Some(Endpoint::Merged(toolset)) => toolset,
        Some(Endpoint::One(_)) | None => Toolset::all(),
    };
    Viewer { caller, toolset, client }
}

impl Proxy {
    /// A proxy over these offers and sessions.
    pub fn new(catalog: Arc<Catalog>, sessions: Arc<Sessions>) -> Self {
        let snapshot = catalog.snapshot();
        let limits = snapshot.limits();
        Self {
            pool: translate::SharedSessionPool::new(limits.pooled_sessions),
            pending: Arc::new(translate::PendingInput::new(limits.pending_inputs)),
            admission: ArcSwap::from_pointee(Admission::new(limits)),
            catalog,
            sessions,
            list_cache: Arc::default(),
            prompt: None,
            tasks: None,
            registry: None,
            replicas: None,
            is_replaced: AtomicBool::default(),
            continued: Arc::default(),
            stopping: tokio::sync::watch::Sender::default(),
        }
    }

    /// The offers.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The configuration in force.
    pub fn snapshot(&self) -> CurrentSnapshot {
        self.catalog.snapshot()
    }

    /// The upstream of this name.
    #[must_use]
    pub fn upstream(&self, name: &str) -> Option<Arc<Upstream>> {
        self.snapshot().upstream(name).cloned()
    }

    /// The sessions.
    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// The same where sessions go on at other gateways.
    #[must_use]
    pub fn sharing(self, registry: Arc<SessionRegistry>) -> Self {
        let replicas = Arc::clone(registry.replicas());
        Self { registry: Some(registry), ..self.knowing(Some(replicas)) }
    }

    /// The same where what others have can be sent to them.
    #[must_use]
    pub fn knowing(self, replicas: Option<Arc<Replicas>>) -> Self {
        if let Some(replicas) = &replicas {
            self.pending.name_gateway(&replicas.me().id);
        }
        Self { replicas, ..self }
    }

    /// The other gateways; if this one is alone, the process that it has taken over from.
    #[must_use]
    pub const fn replicas(&self) -> Option<&Arc<Replicas>> {
        self.replicas.as_ref()
    }

    /// Whether something here waits for what its client says next, or runs for a session.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.pending.is_waited_for() || self.sessions.list().iter().any(|session| session.is_busy())
    }

    /// Whether another process has taken over, with what sessions have open at upstreams.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Leaves the sessions at upstreams to the process that has taken over. Most of these have one stream for each.
    pub fn hand_over(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
        if self.registry.is_some() {
            return;
        }
        for session in self.sessions.list() {
            for (upstream, _) in session.channels.all().iter().filter(|(_, channel)| channel.travels().is_some()) {
                session.forwarders.end(upstream.key());
            }
        }
    }

    /// Has other gateways that share this secret take what clients carry for this one.
    pub fn share_state(&self, secret: &[u8; 32]) {
        self.catalog.share_cursors(secret);
        if let Some(prompt) = &self.prompt {
            prompt.share_state(secret);
        }
    }

    /// The gateway at which a request goes on, as its client says who carries a state of it.
    #[must_use]
    pub fn waits_at(&self, message: &Message) -> Option<String> {
        translate::gateway_of(message)
    }

    /// Where the sessions of all gateways stand; none if this one is alone.
    #[must_use]
    pub const fn registry(&self) -> Option<&Arc<SessionRegistry>> {
        self.registry.as_ref()
    }

    /// The endpoint of this name, as a caller finds it.
    #[must_use]
    pub fn endpoint_of(&self, name: &str, caller: Option<&Arc<Caller>>) -> Option<Endpoint> {
        match name {
            MERGED_ENDPOINT => Some(Endpoint::Merged(Arc::clone(Toolset::all()))),
            name => self.endpoint(name, caller),
        }
    }

    /// What a caller finds at `/mcp/<name>`; none if nothing is there, or nothing that they may use.
    #[must_use]
    pub fn endpoint(&self, name: &str, caller: Option<&Arc<Caller>>) -> Option<Endpoint> {
        let snapshot = self.snapshot();
        Caller::with_grants(caller, snapshot.access(), |grants| endpoint_for(&snapshot, grants, name))
    }

    /// Whether a caller still finds the same there: the same upstream, or the same choice of several.
    #[must_use]
    pub fn still(&self, endpoint: &Endpoint, caller: Option<&Arc<Caller>>) -> bool {
        let all = endpoint.toolset().is_some_and(|toolset| toolset.is_all());
        all || self.endpoint(endpoint.name(), caller).as_ref() == Some(endpoint)
    }

    /// Resolves when a caller no longer finds the same there. Cancel-safe.
    async fn moved(self: Arc<Self>, endpoint: Endpoint, caller: Option<Arc<Caller>>) {
        loop {
            let mut superseded = self.catalog.superseded();
            if !self.still(&endpoint, caller.as_ref()) {
                return;
            }
            drop(superseded.wait_for(|superseded| *superseded).await);
        }
    }

    /// The names below `/mcp/` at which a caller finds something.
    #[must_use]
    pub fn endpoints(&self, caller: Option<&Arc<Caller>>) -> Vec<String> {
        let snapshot = self.snapshot();
        let names = snapshot.upstreams().map(|upstream| upstream.name());
        let names = names.chain(snapshot.toolsets().map(|toolset| toolset.name()));
        names.filter(|name| self.endpoint(name, caller).is_some()).map(str::to_owned).collect()
    }

    /// The limits of calls.
    #[must_use]
    pub fn admission(&self) -> Arc<Admission> {
        self.admission.load_full()
    }

    /// Takes a request to its answer.
    pub async fn request(self: &Arc<Self>, context: &RequestContext, record: &mut CallLog) -> Answer {
        if let Some(refusal) = Answer::unrecorded(&context.message, record) {
            return refusal;
        }
        if let Err(why) = self.admission.load().request(&context.principal) {
            return Answer::not_admitted(context, &why, record);
        }
        if method::is_endless(context.message.method()) {
            let upstream = match &context.endpoint {
                Endpoint::One(upstream) => Some(upstream.name()),
                Endpoint::Merged(toolset) => toolset.only().map(UpstreamName::as_str),
            };
            match self.admission.load().stream(&context.principal, upstream) {
                Ok(permit) => record.hold(permit),
                Err(reached) => return Answer::not_admitted(context, &NotAdmitted::Full(reached), record),
            }
        }
        match task_owner::task_owner(context) {
            // Boxed: few calls may become tasks.
            Some(owner) => Box::pin(self.carry_for_owner(owner, context, record)).await,
            None => self.carry(context, record).await,
        }
    }

    /// The same, once it is known whose its tasks are.
    async fn carry(self: &Arc<Self>, context: &RequestContext, record: &mut CallLog) -> Answer {
        if context.message.raw(Field::RequestState).is_some() {
            // Boxed: few calls come back with answers, and every call would have room for it.
            return Box::pin(self.carry_again(context, record)).await;
        }
        self.route_and_drive(context, None, record).await
    }

    /// The same for a call that comes back with answers. Who asked is Weir, or else the upstream.
    async fn carry_again(self: &Arc<Self>, context: &RequestContext, record: &mut CallLog) -> Answer {
        if let Some(came) = self.signed_in(context).await {
            return match came {
                Ok(call) => self.route_and_drive(&call, None, record).await,
                Err(answer) => answer,
            };
        }
        if let Some((call, reply)) = approval::reply_in(context) {
            self.page_settled(context, &reply).await;
            return self.route_and_drive(&call, Some(reply), record).await;
        }
        self.route_and_drive(context, None, record).await
    }

    /// `reply` is what the client's own person has said to a question whether the call is approved.
    async fn route_and_drive(
        self: &Arc<Self>,
        context: &RequestContext,
        reply: Option<approval::Reply>,
        record: &mut CallLog,
    ) -> Answer {
        match self.route(context, record).await {
            route::Route::Answered(answer) => *answer,
            route::Route::Denied(denied) => {
                let route::DeniedCall { upstream, decision, answer } = *denied;
                record.goes_to(&upstream);
                record.fail(CallOutcome::Refused, decision.to_string());
                answer
            }
            route::Route::Unknown(answer) => {
                record.fail(CallOutcome::Refused, "nothing is called so");
                *answer
            }
            route::Route::Upstream(mut target) => {
                record.goes_to(&target.upstream);
                if let Err(why) = self.limit(context, &target, reply.is_some(), record) {
                    return Answer::not_admitted(context, &why, record);
                }
                // Where Weir's own span is in the message, the rest of the trace context goes with it.
                let in_message = record.span.is_some() || !target.upstream.carries_headers();
                if in_message && !context.headers.is_empty() {
                    target.carry_trace(context);
                }
                if let Some(span) = &record.span {
                    // A legacy client sends no `Mcp-Name`, and what goes on as it came has no other name.
                    let own = method::target(&context.message);
                    span.goes_to(target.name.as_deref().or(own.as_deref()), target.upstream.server_address());
                }
                if decide::is_asked(context, &target, record) {
                    return self.decide_and_drive(context, target, reply, record).await;
                }
                self.approve_and_drive(context, target, reply, record).await
            }
        }
    }

    /// Takes a request to its upstream, with what policies decide about it and about its answer.
    async fn decide_and_drive(
        self: &Arc<Self>,
        context: &RequestContext,
        target: route::Target,
        reply: Option<approval::Reply>,
        record: &mut CallLog,
    ) -> Answer {
        let Forwarded { context: changed, target, call } = match self.decide(context, target, record).await {
            Ok(forwarded) => forwarded,
            Err(answer) => return *answer,
        };
        let context = changed.as_deref().unwrap_or(context);
        match call {
            None => self.approve_and_drive(context, target, reply, record).await,
            // Boxed: few upstreams have such policies, and every call would have room for it.
            Some(call) => on_heap(|| self.drive_decided(context, target, reply, call, record)).await,
        }
    }

    /// Takes a request to its upstream while policies decide about it, or before they decide about its answer.
    async fn drive_decided(
        self: &Arc<Self>,
        context: &RequestContext,
        target: route::Target,
        reply: Option<approval::Reply>,
        mut call: Box<DecidedCall>,
        record: &mut CallLog,
    ) -> Answer {
        let answer = match call.is_checked() {
            true => self.check_and_drive(context, target, reply, &mut call, record).await,
            false => Ok(self.approve_and_drive(context, target, reply, record).await),
        };
        match answer {
            Ok(answer) if call.wants_more() => answer.decided(call, record).await,
            Ok(answer) | Err(answer) => answer,
        }
    }

    async fn approve_and_drive(
        self: &Arc<Self>,
        context: &RequestContext,
        mut target: route::Target,
        reply: Option<approval::Reply>,
        record: &mut CallLog,
    ) -> Answer {
        if target.approvals.is_empty() && target.policy_approvals.is_empty() {
            return self.drive(context, &mut target, record).await;
        }
        if let Some(copy) = context.copy() {
            copy.leave_to_owner(&context.message);
            return Answer::at_owner();
        }
        self.approve(context, target, reply, record).await
    }

    /// Takes what the limits of calls allow, for as long as the call lasts.
    pub(in crate::proxy) fn limit(
        &self,
        context: &RequestContext,
        target: &route::Target,
        comes_back: bool,
        record: &mut CallLog,
    ) -> Result<(), NotAdmitted> {
        let message = &context.message;
        if method::is_endless(message.method()) {
            return Ok(());
        }
        let is_tool = message.method() == method::TOOLS_CALL;
        let name = is_tool.then(|| target.name.as_deref().map(Cow::Borrowed).or_else(|| message.name())).flatten();
        let permit = self.admission.load().call(&AdmittedCall {
            principal: &context.principal,
            upstream: target.upstream.name(),
            tool: name.as_deref(),
            arguments: message.raw(Field::Arguments),
            // A call that comes back with answers is still the same one. Whether it is one is not known here.
            continues: comes_back || message.raw(Field::RequestState).is_some(),
        })?;
        record.hold(permit);
        Ok(())
    }

    /// Passes on a notification or the answer to an upstream's question; there is nothing to wait for.
    pub async fn pass(self: &Arc<Self>, context: &RequestContext) {
        let message = &context.message;
        if let Some(session) = &context.session {
            // What a call at an upstream without sessions waits for.
            if matches!(message.kind(), Kind::Response | Kind::Error) && session.settle(message) {
                return;
            }
        }
        for target in self.route_message(context) {
            let run = target.run.clone();
            self.pass_on(context, &target).await;
            // The only message that concerns a request which runs: from here on nothing of it is for the client.
            if let Some(run) = run {
                run.cancel();
            }
        }
    }
}

/// What somebody with these grants finds at `/mcp/<name>`.
fn endpoint_for(snapshot: &Snapshot, grants: &Grants, name: &str) -> Option<Endpoint> {
    if let Some(toolset) = snapshot.toolset(name) {
        let mut picked = snapshot.upstreams().filter(|upstream| toolset.order(upstream.name()).is_some());
        let sees = picked.any(|upstream| grants.sees(name, upstream.name(), Item::Any));
        return sees.then(|| Endpoint::Merged(Arc::clone(toolset)));
    }
    let upstream = snapshot.upstream(name)?;
    if upstream.serves_whole() && grants.are_whole_at(name, name) {
        return Some(Endpoint::One(Arc::clone(upstream)));
    }
    grants.sees(name, name, Item::Any).then(|| snapshot.part(name).cloned().map(Endpoint::Merged)).flatten()
}

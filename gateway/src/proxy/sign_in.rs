//! What a caller is told whose call needs a login that they have not given yet, and how the call goes on when they have.
//!
//! They are told once for all upstreams that wait for them, in the way that their client understands: a legacy client that
//! opens addresses gets the error made for it (MCP 2025-11-25, client/elicitation), a modern one an answer that asks
//! (2026-07-28, basic/patterns/mrtr), and any other a plain error with the link in it. A modern client comes back with
//! what it was given, and its call waits here until the login is there; a legacy one is told when to call again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use weir_flow::UpstreamState;
use weir_mcp::{
    Era, Field, ListKind, Message, Object, answer, json, method, public,
    translate::{input_required, may_ask},
};

use crate::{
    access::Item,
    caller::Caller,
    catalog::{MergedLists, SIGN_IN},
    credential::{CredentialManager, CredentialOwner, Needed, SignInState, Standing},
    sealed_state::SealedState,
    session::Session,
    sign_in_links::SignInLinks,
    telemetry::{CallOutcome, NEEDS_SIGN_IN},
    upstream::{CredentialError, Upstream},
};

use super::{Answer, CallLog, Proxy, RequestContext, authorize::is_shown, task_owner::TaskMarks};

/// How long a call that came back waits for its login. Clients wait for 60 seconds before they give up.
pub(super) const PATIENCE: Duration = Duration::from_secs(50);

/// "URL elicitation is required" (MCP 2025-11-25, client/elicitation).
pub(super) const URL_REQUIRED: i64 = -32042;

/// What it takes to have callers sign in.
pub(super) struct SignInPrompt {
    pub(super) manager: Arc<CredentialManager>,
    pub(super) invitations: Arc<SignInLinks>,
    pub(super) seal: SealedState,
}

/// What stands before a name that is not known.
pub(super) enum SignInResult {
    /// Nothing but this: a login is missing, or is there now.
    Answered(Box<Answer>),
    /// A login that has just come: these are the offers now.
    Listed(Arc<MergedLists>),
}

/// A login that somebody has to give.
struct RequestedSignIn {
    upstream: String,
    /// Where the caller can; none if that is not theirs to do, or not with a browser.
    link: Option<String>,
    /// What to do, in a sentence.
    text: String,
}

impl Proxy {
    /// Has callers sign in at the page that these links lead to, and keeps their tasks apart.
    pub fn signing_in(mut self, manager: Arc<CredentialManager>, invitations: Arc<SignInLinks>) -> Self {
        self.tasks = Some(TaskMarks::new(Arc::clone(&manager)));
        self.prompt = Some(SignInPrompt { manager, invitations, seal: SealedState::default() });
        self
    }

    /// The answer to a call that needs a login first.
    pub(super) async fn ask_to_sign_in(
        &self,
        context: &RequestContext,
        needed: &Needed,
        record: &mut CallLog,
    ) -> Answer {
        if let Some(copy) = context.copy() {
            copy.leave_to_owner(&context.message);
            return Answer::at_owner();
        }
        record.fail(CallOutcome::SignIn, NEEDS_SIGN_IN);
        self.sign_in_answer(context, needed).await
    }

    async fn sign_in_answer(&self, context: &RequestContext, needed: &Needed) -> Answer {
        let message = &context.message;
        let Some(prompt) = &self.prompt else { return plain(context, &needed.to_string()) };
        let usable = |upstream: &str| self.snapshot().may_use(context.caller.as_ref(), upstream);
        let wanted = prompt.wanted(context.caller.as_ref(), needed, usable).await;
        let links: Vec<(&RequestedSignIn, &str)> =
            wanted.iter().filter_map(|wanted| Some((wanted, wanted.link.as_deref()?))).collect();
        let own = links.first().is_some_and(|(wanted, _)| wanted.upstream == needed.upstream);
        if !own || !opens_addresses(context) {
            return plain(context, &sentences(&wanted));
        }
        match context.era {
            Era::Legacy => {
                let session = context.session.as_deref();
                let elicitations: Vec<String> =
                    links.iter().map(|(wanted, link)| legacy(session, wanted, link)).collect();
                let data = format!("{{\"elicitations\":[{}]}}", elicitations.join(","));
                Answer::whole(200, answer::error(message.id(), URL_REQUIRED, &sentences(&wanted), Some(&data)))
            }
            // What has a state already is in the middle of something else, and only these may be asked.
            Era::Modern if may_ask(message.method()) && message.raw(Field::RequestState).is_none() => {
                let names: Vec<&str> = links.iter().map(|(wanted, _)| wanted.upstream.as_str()).collect();
                let Some(state) = prompt.seal.seal(names.join("\n").as_bytes(), &bound(context)) else {
                    return plain(context, &sentences(&wanted));
                };
                let questions = links.iter().filter_map(|(wanted, link)| {
                    let params = elicitation(None, wanted, link);
                    let question = answer::request(b"0", "elicitation/create", Some(params.as_bytes()));
                    Some((format!("sign_in_{}", wanted.upstream), Message::parse(question).ok()?))
                });
                let questions: Vec<(String, Message)> = questions.collect();
                let questions: Vec<(String, &Message)> =
                    questions.iter().map(|(key, question)| (key.clone(), question)).collect();
                let id = message.id().unwrap_or(b"null");
                Answer::whole(200, input_required(id, &questions, &state, None))
            }
            Era::Modern => plain(context, &sentences(&wanted)),
        }
    }

    /// What is to be said of a name that is not known because its upstream waits for a login, or did until a moment ago;
    /// none if that is not why.
    pub(super) async fn behind_sign_in(
        &self,
        context: &RequestContext,
        offers: &MergedLists,
        name: &str,
    ) -> Option<SignInResult> {
        let prompt = self.prompt.as_ref()?;
        let stands_in = offers.find(ListKind::Tool, name).filter(|offer| offer.native == SIGN_IN);
        let (upstream, native) = match stands_in {
            Some(offer) => (offer.upstream.as_str(), SIGN_IN),
            None => public::split(name)?,
        };
        let accounts = stands_in.and_then(|offer| offer.accounts.clone());
        let accounts = accounts.or_else(|| self.accounts(context.endpoint.toolset()?, upstream));
        let chosen = accounts.as_ref().map(|accounts| accounts.choose(context.message.raw(Field::Arguments)).ok());
        let upstream = match &chosen {
            Some(chosen) => chosen.as_ref()?.0.as_str(),
            None => upstream,
        };
        let snapshot = self.snapshot();
        let upstream = snapshot.upstream(upstream).filter(|upstream| upstream.takes_sign_ins())?;
        if !is_shown(&self.catalog, &context.endpoint, context.who(), upstream, Item::Any) {
            return None;
        }
        let account = prompt.manager.account(upstream.name()).filter(|account| account.is_for_people())?;
        let owner = account.asker(context.caller.as_ref())?.owner;
        let missing = match account.state(&owner).await.ok()?.standing {
            Standing::Missing | Standing::Ended | Standing::TooLittle => true,
            Standing::Unasked => upstream.status().state.wants_login(),
            Standing::Good => {
                let listed = self.once_listed(context, upstream).await;
                let known = |offers: &Arc<MergedLists>| offers.find(ListKind::Tool, name).is_some();
                if native != SIGN_IN || listed.as_ref().is_some_and(known) {
                    return listed.map(SignInResult::Listed);
                }
                let text =
                    format!("Signed in at `{}`. Its tools are listed now, or as soon as it answers.", upstream.name());
                return Some(SignInResult::Answered(Box::new(told(context, &text, false))));
            }
        };
        if !missing || has_given_up(context, upstream).await {
            return None;
        }
        let needed = account.need(&owner, &[], None).await;
        Some(SignInResult::Answered(Box::new(self.sign_in_answer(context, &needed).await)))
    }

    /// Waits until an upstream is listed whose login has just come.
    async fn once_listed(&self, context: &RequestContext, upstream: &Upstream) -> Option<Arc<MergedLists>> {
        if upstream.is_personal {
            return None;
        }
        let mut changes = self.catalog.changes();
        let end = Instant::now() + upstream.timeouts.list;
        loop {
            let offers = self.catalog.merged(context.viewer(), context.era).await;
            if offers.traits(upstream.key()).is_some() {
                return Some(offers);
            }
            let state = upstream.status().state;
            if !state.wants_login() && !matches!(state, UpstreamState::Connecting | UpstreamState::Healthy) {
                return None;
            }
            timeout_at(end, changes.changed()).await.ok()?.ok()?;
        }
    }

    /// Takes up a call whose client was asked to have somebody sign in: waits for that, and gives the call as it was; or
    /// the answer, if nobody will. None if the state in it is another's.
    pub(super) async fn signed_in(&self, context: &RequestContext) -> Option<Result<RequestContext, Answer>> {
        let prompt = self.prompt.as_ref()?;
        let message = &context.message;
        let names = prompt.seal.open(&message.text(Field::RequestState)?, &bound(context))?;
        let names = String::from_utf8(names).ok()?;
        let first = names.split('\n').next().unwrap_or_default();
        let given = message.raw(Field::InputResponses).unwrap_or(b"{}");
        let refuses = |(key, response): (std::borrow::Cow<'_, str>, &[u8])| {
            let action = json::get(response, &["action"]).and_then(json::string);
            key.strip_prefix("sign_in_") == Some(first) && action.as_deref() != Some("accept")
        };
        if json::members(given).any(|(key, response)| refuses((key, response))) {
            return Some(Err(plain(context, &format!("the sign-in at `{first}` was declined"))));
        }
        prompt.wait(context.caller.as_ref(), first).await;
        let edit = message.edit().remove(Object::Body, "requestState").remove(Object::Body, "inputResponses");
        let message = Message::parse(edit.finish()).ok()?;
        Some(Ok(RequestContext { message, session: None, ..context.clone() }))
    }

    /// Tells legacy clients whose sign-ins are done that they can call again. Ends with the process.
    pub async fn announce_sign_ins(&self) {
        let Some(prompt) = &self.prompt else { return };
        let mut changes = prompt.manager.changes();
        // First those of the process before, which may be done by now.
        loop {
            for session in self.sessions.waiting() {
                for (upstream, id) in session.awaited() {
                    if prompt.is_good(session.caller().as_ref(), &upstream).await {
                        session.queue.push(elicitation_complete(&id));
                        session.no_longer_awaits(&upstream);
                    }
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
            self.catalog.logins_changed();
        }
    }
}

/// Whether a policy has something else to say than that somebody must sign in.
async fn has_given_up(context: &RequestContext, upstream: &Upstream) -> bool {
    let asked = upstream.credential(context.caller.as_ref(), None).await;
    matches!(asked, Err(CredentialError::Denied(_) | CredentialError::Failed(_)))
}

impl SignInPrompt {
    /// Has other gateways that share this secret take what clients carry.
    pub(super) fn share_state(&self, secret: &[u8; 32]) {
        self.seal.share(secret, "sign-in");
    }

    /// The logins that a caller is to give: the one that is needed now first, then all the others that are missing.
    async fn wanted(
        &self,
        caller: Option<&Arc<Caller>>,
        needed: &Needed,
        usable: impl Fn(&str) -> bool,
    ) -> Vec<RequestedSignIn> {
        let mut all = vec![self.one(caller, needed)];
        let states = self.manager.states(caller).await.unwrap_or_default();
        let others = |state: &SignInState| state.upstream != needed.upstream && usable(&state.upstream);
        for state in states.into_iter().filter(|state| state.for_people && others(state)) {
            let missing = matches!(state.standing, Standing::Missing | Standing::Ended | Standing::TooLittle);
            if let Some(account) = self.manager.account(&state.upstream).filter(|_| missing) {
                let wanted = self.one(caller, &account.need(&state.owner, &[], None).await);
                // What is not the caller's to do is said when it is in the way.
                all.extend(Some(wanted).filter(|wanted| wanted.link.is_some()));
            }
        }
        all
    }

    fn one(&self, caller: Option<&Arc<Caller>>, needed: &Needed) -> RequestedSignIn {
        let upstream = needed.upstream.clone();
        let local = caller.is_some_and(|caller| caller.is_local());
        let by_code = self.manager.account(&upstream).is_some_and(|account| account.is_by_code());
        // What everybody shares is not one principal's to give.
        let own = local || needed.owner != CredentialOwner::Shared;
        let link = self.invitations.link(caller).filter(|_| own && !by_code);
        let what = needed.what();
        let text = match (&link, &needed.command) {
            (Some(link), _) => format!("{what}: open {link}"),
            (None, Some(command)) if local => format!("{what}: run `{command}`"),
            (None, _) => format!("{what} by the operator of this gateway"),
        };
        RequestedSignIn { upstream, link, text }
    }

    async fn is_good(&self, caller: Option<&Arc<Caller>>, upstream: &str) -> bool {
        let Some(account) = self.manager.account(upstream) else { return false };
        let Some(asker) = account.asker(caller) else { return false };
        account.state(&asker.owner).await.is_ok_and(|state| state.standing == Standing::Good)
    }

    /// Waits until a caller's login is there, for as long as a client waits for its answer.
    async fn wait(&self, caller: Option<&Arc<Caller>>, upstream: &str) {
        let mut changes = self.manager.changes();
        let end = Instant::now() + PATIENCE;
        while !self.is_good(caller, upstream).await {
            if !matches!(timeout_at(end, changes.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}

/// What a legacy client hears once what it was sent to a page for is done (MCP 2025-11-25, client/elicitation).
pub(super) fn elicitation_complete(id: &str) -> Bytes {
    let params = format!("{{\"elicitationId\":{}}}", json::quote(id));
    answer::notification("notifications/elicitation/complete", Some(params.as_bytes()))
}

/// Whether a client opens addresses that it is given.
pub(super) fn opens_addresses(context: &RequestContext) -> bool {
    let has = |raw: Option<&[u8]>, path: &[&str]| raw.and_then(|raw| json::get(raw, path)).is_some();
    match (context.era, &context.session) {
        (Era::Modern, _) => has(context.message.raw(Field::ClientCapabilities), &["elicitation", "url"]),
        (Era::Legacy, Some(session)) => has(session.initialize.params(), &["capabilities", "elicitation", "url"]),
        // It is about to say so.
        (Era::Legacy, None) => has(context.message.params(), &["capabilities", "elicitation", "url"]),
    }
}

/// What the state of a call is good for: the caller, and the same call.
fn bound(context: &RequestContext) -> Vec<u8> {
    let target = method::target(&context.message).unwrap_or_default();
    let caller = context.caller.as_ref().map_or("", |caller| caller.id());
    ["sign-in", context.message.method(), caller, &target].join("\n").into_bytes()
}

fn legacy(session: Option<&Session>, wanted: &RequestedSignIn, link: &str) -> String {
    let id = match session {
        Some(session) => session.awaits(&wanted.upstream),
        None => crate::sign_in_links::random(),
    };
    elicitation(Some(&id.unwrap_or_default()), wanted, link)
}

fn elicitation(id: Option<&str>, wanted: &RequestedSignIn, link: &str) -> String {
    let text = json::quote(&format!("Sign in so that `{}` can be used.", wanted.upstream));
    let id = id.map(|id| format!("\"elicitationId\":{},", json::quote(id))).unwrap_or_default();
    format!("{{\"mode\":\"url\",{id}\"url\":{},\"message\":{text}}}", json::quote(link))
}

fn sentences(wanted: &[RequestedSignIn]) -> String {
    let texts: Vec<&str> = wanted.iter().map(|wanted| wanted.text.as_str()).collect();
    texts.join("; ")
}

/// For clients that can only be told: what a model reads for a tool, and an error for the rest.
fn plain(context: &RequestContext, text: &str) -> Answer {
    told(context, text, true)
}

pub(super) fn told(context: &RequestContext, text: &str, is_error: bool) -> Answer {
    let message = &context.message;
    if message.method() != method::TOOLS_CALL {
        return Answer::whole(200, answer::error(message.id(), answer::INTERNAL, text, None));
    }
    let kind = if context.era == Era::Modern { "\"resultType\":\"complete\"," } else { "" };
    let text = json::quote(text);
    let result = format!("{{{kind}\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"isError\":{is_error}}}");
    Answer::result(message, result.into())
}

//! What a caller is told whose call needs a login that they have not given yet, and how the call goes on when they have.
//!
//! They are told once for all upstreams that wait for them, in the way that their client understands: a legacy client that
//! opens addresses gets the error made for it (MCP 2025-11-25, client/elicitation), a modern one an answer that asks
//! (2026-07-28, basic/patterns/mrtr), and any other a plain error with the link in it. A modern client comes back with
//! what it was given, and its call waits here until the login is there; a legacy one is told when to call again.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use weir_mcp::{
    Era, Field, Message, Object, answer, json, method, public,
    translate::{input_required, may_ask},
};

use crate::{
    caller::Caller,
    catalog::{self, Merged, SIGN_IN},
    invite::Invitations,
    login::{Needed, Owner, Standing, Wallet},
    observe::{NEEDS_SIGN_IN, Outcome},
    seal::Seal,
    session::Session,
    upstream::{CredentialError, State as Health},
};

use super::{Answer, Inquiry, Record, Relay};

/// How long a call that came back waits for its login. Clients wait for 60 seconds before they give up.
const PATIENCE: Duration = Duration::from_secs(50);

/// "URL elicitation is required" (MCP 2025-11-25, client/elicitation).
const URL_REQUIRED: i64 = -32042;

/// What it takes to have callers sign in.
pub(super) struct Desk {
    wallet: Arc<Wallet>,
    invitations: Arc<Invitations>,
    seal: Seal,
}

/// What stands before a name that is not known.
pub(super) enum Behind {
    /// Nothing but this: a login is missing, or is there now.
    Answered(Box<Answer>),
    /// A login that has just come: these are the offers now.
    Listed(Arc<Merged>),
}

/// A login that somebody has to give.
struct Wanted {
    upstream: String,
    /// Where the caller can; none if that is not theirs to do, or not with a browser.
    link: Option<String>,
    /// What to do, in a sentence.
    text: String,
}

impl Relay {
    /// Has callers sign in at the page that these invitations lead to.
    #[must_use]
    pub fn signing_in(mut self, wallet: Arc<Wallet>, invitations: Arc<Invitations>) -> Self {
        self.desk = Some(Desk { wallet, invitations, seal: Seal::default() });
        self
    }

    /// The answer to a call that needs a login first.
    pub(super) async fn ask_to_sign_in(&self, inquiry: &Inquiry, needed: &Needed, record: &mut Record) -> Answer {
        record.fail(Outcome::SignIn, NEEDS_SIGN_IN);
        self.sign_in_answer(inquiry, needed).await
    }

    async fn sign_in_answer(&self, inquiry: &Inquiry, needed: &Needed) -> Answer {
        let message = &inquiry.message;
        let Some(desk) = &self.desk else { return plain(inquiry, &needed.to_string()) };
        let wanted = desk.wanted(inquiry.caller.as_ref(), needed).await;
        let links: Vec<(&Wanted, &str)> =
            wanted.iter().filter_map(|wanted| Some((wanted, wanted.link.as_deref()?))).collect();
        let own = links.first().is_some_and(|(wanted, _)| wanted.upstream == needed.upstream);
        if !own || !opens_addresses(inquiry) {
            return plain(inquiry, &sentences(&wanted));
        }
        match inquiry.era {
            Era::Legacy => {
                let session = inquiry.session.as_deref();
                let elicitations: Vec<String> =
                    links.iter().map(|(wanted, link)| legacy(session, wanted, link)).collect();
                let data = format!("{{\"elicitations\":[{}]}}", elicitations.join(","));
                Answer::whole(200, answer::error(message.id(), URL_REQUIRED, &sentences(&wanted), Some(&data)))
            }
            // What has a state already is in the middle of something else, and only these may be asked.
            Era::Modern if may_ask(message.method()) && message.raw(Field::RequestState).is_none() => {
                let names: Vec<&str> = links.iter().map(|(wanted, _)| wanted.upstream.as_str()).collect();
                let Some(state) = desk.seal.seal(names.join("\n").as_bytes(), &bound(inquiry)) else {
                    return plain(inquiry, &sentences(&wanted));
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
            Era::Modern => plain(inquiry, &sentences(&wanted)),
        }
    }

    /// What is to be said of a name that is not known because its upstream waits for a login, or did until a moment ago;
    /// none if that is not why.
    pub(super) async fn behind_sign_in(&self, inquiry: &Inquiry, offers: &Merged, name: &str) -> Option<Behind> {
        let desk = self.desk.as_ref()?;
        let stands_in = offers.find(catalog::Kind::Tool, name).filter(|offer| offer.native == SIGN_IN);
        let (upstream, place, native) = match stands_in {
            Some(offer) => (self.upstream(offer.upstream).name(), offer.upstream, SIGN_IN),
            None => {
                let (upstream, native) = public::split(name)?;
                (upstream, self.catalog.position(upstream)?, native)
            }
        };
        if !self.upstream(place).takes_sign_ins() {
            return None;
        }
        let account = desk.wallet.account(upstream).filter(|account| account.is_for_people())?;
        let owner = account.asker(inquiry.caller.as_ref())?.owner;
        let missing = match account.state(&owner).await.ok()?.standing {
            Standing::Missing | Standing::Ended | Standing::TooLittle => true,
            Standing::Unasked => self.upstream(place).status().state.wants_login(),
            Standing::Good => {
                let listed = self.once_listed(inquiry, place).await;
                let known = |offers: &Arc<Merged>| offers.find(catalog::Kind::Tool, name).is_some();
                if native != SIGN_IN || listed.as_ref().is_some_and(known) {
                    return listed.map(Behind::Listed);
                }
                let text = format!("Signed in at `{upstream}`. Its tools are listed now, or as soon as it answers.");
                return Some(Behind::Answered(Box::new(told(inquiry, &text, false))));
            }
        };
        if !missing || self.has_given_up(inquiry, place).await {
            return None;
        }
        let needed = account.need(&owner, &[], None).await;
        Some(Behind::Answered(Box::new(self.sign_in_answer(inquiry, &needed).await)))
    }

    /// Whether a policy has something else to say than that somebody must sign in.
    async fn has_given_up(&self, inquiry: &Inquiry, place: usize) -> bool {
        let asked = self.upstream(place).credential(inquiry.caller.as_ref(), None).await;
        matches!(asked, Err(CredentialError::Failed(_)))
    }

    /// Waits until an upstream is listed whose login has just come.
    async fn once_listed(&self, inquiry: &Inquiry, place: usize) -> Option<Arc<Merged>> {
        let upstream = self.upstream(place);
        if upstream.is_personal() {
            return None;
        }
        let mut changes = self.catalog.changes();
        let end = Instant::now() + upstream.list_timeout();
        loop {
            let offers = self.catalog.merged(inquiry.caller.as_ref(), inquiry.era).await;
            if offers.traits(place).is_some() {
                return Some(offers);
            }
            let state = upstream.status().state;
            if !state.wants_login() && !matches!(state, Health::Connecting | Health::Healthy) {
                return None;
            }
            timeout_at(end, changes.changed()).await.ok()?.ok()?;
        }
    }

    /// Takes up a call whose client was asked to have somebody sign in: waits for that, and gives the call as it was; or
    /// the answer, if nobody will. None if the state in it is another's.
    pub(super) async fn signed_in(&self, inquiry: &Inquiry) -> Option<Result<Inquiry, Answer>> {
        let desk = self.desk.as_ref()?;
        let message = &inquiry.message;
        let names = desk.seal.open(&message.text(Field::RequestState)?, &bound(inquiry))?;
        let names = String::from_utf8(names).ok()?;
        let first = names.split('\n').next().unwrap_or_default();
        let given = message.raw(Field::InputResponses).unwrap_or(b"{}");
        let refuses = |(key, response): (std::borrow::Cow<'_, str>, &[u8])| {
            let action = json::get(response, &["action"]).and_then(json::string);
            key.strip_prefix("sign_in_") == Some(first) && action.as_deref() != Some("accept")
        };
        if json::members(given).any(|(key, response)| refuses((key, response))) {
            return Some(Err(plain(inquiry, &format!("the sign-in at `{first}` was declined"))));
        }
        desk.wait(inquiry.caller.as_ref(), first).await;
        let edit = message.edit().remove(Object::Body, "requestState").remove(Object::Body, "inputResponses");
        let message = Message::parse(edit.finish()).ok()?;
        Some(Ok(Inquiry {
            era: inquiry.era,
            endpoint: inquiry.endpoint,
            caller: inquiry.caller.clone(),
            principal: Arc::clone(&inquiry.principal),
            message,
            version: inquiry.version.clone(),
            headers: inquiry.headers.clone(),
            session: None,
        }))
    }

    /// Tells legacy clients whose sign-ins are done that they can call again. Ends with the process.
    pub async fn announce_sign_ins(&self) {
        let Some(desk) = &self.desk else { return };
        let mut changes = desk.wallet.changes();
        while changes.changed().await.is_ok() {
            self.catalog.logins_changed();
            for session in self.sessions.waiting() {
                for (upstream, id) in session.awaited() {
                    if desk.is_good(session.caller().as_ref(), &upstream).await {
                        let params = format!("{{\"elicitationId\":{}}}", json::quote(&id));
                        let done = answer::notification("notifications/elicitation/complete", Some(params.as_bytes()));
                        session.outbox.push(done);
                        session.no_longer_awaits(&upstream);
                    }
                }
            }
        }
    }
}

impl Desk {
    /// The logins that a caller is to give: the one that is needed now first, then all the others that are missing.
    async fn wanted(&self, caller: Option<&Arc<Caller>>, needed: &Needed) -> Vec<Wanted> {
        let mut all = vec![self.one(caller, needed)];
        let states = self.wallet.states(caller).await.unwrap_or_default();
        for state in states.into_iter().filter(|state| state.for_people && state.upstream != needed.upstream) {
            let missing = matches!(state.standing, Standing::Missing | Standing::Ended | Standing::TooLittle);
            if let Some(account) = self.wallet.account(&state.upstream).filter(|_| missing) {
                let wanted = self.one(caller, &account.need(&state.owner, &[], None).await);
                // What is not the caller's to do is said when it is in the way.
                all.extend(Some(wanted).filter(|wanted| wanted.link.is_some()));
            }
        }
        all
    }

    fn one(&self, caller: Option<&Arc<Caller>>, needed: &Needed) -> Wanted {
        let upstream = needed.upstream.clone();
        let local = caller.is_some_and(|caller| caller.is_local());
        let by_code = self.wallet.account(&upstream).is_some_and(|account| account.is_by_code());
        // What everybody shares is not one principal's to give.
        let own = local || needed.owner != Owner::Shared;
        let link = self.invitations.link(caller).filter(|_| own && !by_code);
        let what = needed.what();
        let text = match (&link, &needed.command) {
            (Some(link), _) => format!("{what}: open {link}"),
            (None, Some(command)) if local => format!("{what}: run `{command}`"),
            (None, _) => format!("{what} by the operator of this gateway"),
        };
        Wanted { upstream, link, text }
    }

    async fn is_good(&self, caller: Option<&Arc<Caller>>, upstream: &str) -> bool {
        let Some(account) = self.wallet.account(upstream) else { return false };
        let Some(asker) = account.asker(caller) else { return false };
        account.state(&asker.owner).await.is_ok_and(|state| state.standing == Standing::Good)
    }

    /// Waits until a caller's login is there, for as long as a client waits for its answer.
    async fn wait(&self, caller: Option<&Arc<Caller>>, upstream: &str) {
        let mut changes = self.wallet.changes();
        let end = Instant::now() + PATIENCE;
        while !self.is_good(caller, upstream).await {
            if !matches!(timeout_at(end, changes.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }
}

/// Whether a client opens addresses that it is given.
fn opens_addresses(inquiry: &Inquiry) -> bool {
    let has = |raw: Option<&[u8]>, path: &[&str]| raw.and_then(|raw| json::get(raw, path)).is_some();
    match (inquiry.era, &inquiry.session) {
        (Era::Modern, _) => has(inquiry.message.raw(Field::ClientCapabilities), &["elicitation", "url"]),
        (Era::Legacy, Some(session)) => has(session.initialize.params(), &["capabilities", "elicitation", "url"]),
        // It is about to say so.
        (Era::Legacy, None) => has(inquiry.message.params(), &["capabilities", "elicitation", "url"]),
    }
}

/// What the state of a call is good for: the caller, and the same call.
fn bound(inquiry: &Inquiry) -> Vec<u8> {
    let target = method::target(&inquiry.message).unwrap_or_default();
    let caller = inquiry.caller.as_ref().map_or("", |caller| caller.id());
    ["sign-in", inquiry.message.method(), caller, &target].join("\n").into_bytes()
}

fn legacy(session: Option<&Session>, wanted: &Wanted, link: &str) -> String {
    let id = match session {
        Some(session) => session.awaits(&wanted.upstream),
        None => crate::invite::random(),
    };
    elicitation(Some(&id.unwrap_or_default()), wanted, link)
}

fn elicitation(id: Option<&str>, wanted: &Wanted, link: &str) -> String {
    let text = json::quote(&format!("Sign in so that `{}` can be used.", wanted.upstream));
    let id = id.map(|id| format!("\"elicitationId\":{},", json::quote(id))).unwrap_or_default();
    format!("{{\"mode\":\"url\",{id}\"url\":{},\"message\":{text}}}", json::quote(link))
}

fn sentences(wanted: &[Wanted]) -> String {
    let texts: Vec<&str> = wanted.iter().map(|wanted| wanted.text.as_str()).collect();
    texts.join("; ")
}

/// For clients that can only be told: what a model reads for a tool, and an error for the rest.
fn plain(inquiry: &Inquiry, text: &str) -> Answer {
    told(inquiry, text, true)
}

pub(super) fn told(inquiry: &Inquiry, text: &str, is_error: bool) -> Answer {
    let message = &inquiry.message;
    if message.method() != method::TOOLS_CALL {
        return Answer::whole(200, answer::error(message.id(), answer::INTERNAL, text, None));
    }
    let kind = if inquiry.era == Era::Modern { "\"resultType\":\"complete\"," } else { "" };
    let text = json::quote(text);
    let result = format!("{{{kind}\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"isError\":{is_error}}}");
    Answer::result(message, result.into())
}

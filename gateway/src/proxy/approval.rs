//! Calls that a rule allows only once a person has approved them.
//!
//! Whoever is asked, the way is the same: a request is put into the store under a digest of the call ([`Approvals`]),
//! somebody answers it there, and a call of the same digest uses the approval up when it goes out. So nothing that a client
//! carries opens anything by itself.
//!
//! Where callers may approve their own calls and the client shows forms, its person is asked in the middle of the call: a
//! legacy client by a request on the stream of the call, a modern one by an answer that asks (MCP 2026-07-28,
//! basic/patterns/mrtr). Otherwise the client gets a tool error that says who can approve, where, and to call again.
//!
//! A modern upstream that asks something of its own makes the client call again. That is still the approved call, if it
//! brings the state that the upstream has given it ([`ContinuedCalls`]).

mod asked;
mod continued;

use std::{
    borrow::Cow,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use weir_mcp::{
    Era, Field, Message, Object, answer, json,
    translate::{Asks, input_required},
};

use crate::{
    config::{ApprovalConfig, Approver, RuleConfig},
    credential::{Approval, ApprovalError, ApprovalState, Approvals, Listing},
    session::Session,
    sign_in_links,
    telemetry::{CallOutcome, printable},
    upstream::Upstream,
};

use super::{
    Answer, AnswerStream, Body, CallLog, Proxy, RequestContext,
    answer::limited,
    deadline::Deadline,
    route::Target,
    sign_in::{PATIENCE, SignInPrompt, URL_REQUIRED, elicitation_complete, opens_addresses, told},
    translate::InputStream,
};

use asked::{AskedCall, PendingApproval};
pub(super) use continued::{ApprovedCall, ContinuedCalls};
use continued::{Digest, sha256};

/// What the state begins with that a modern client carries; the id of the request follows.
const STATE: &str = "weir-approval-";

/// The same where the person was sent to a page.
const LINK_STATE: &str = "weir-approval-page-";

/// The name of the question for a modern client.
const QUESTION: &str = "approval";

/// How long the arguments may be that a question at the client shows, in bytes. Longer ones are shown on a page.
const SHOWN: usize = 1024;

/// What the person at a client has said to a request.
pub(super) struct Reply {
    id: String,
    action: ReplyAction,
    /// What the request stands under, where the person was sent to a page: what is said there counts, and not that it was
    /// opened.
    page: Option<String>,
}

/// As elicitations are answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyAction {
    Accept,
    Decline,
    /// Neither, which leaves it open.
    Cancel,
}

/// What there is for a call and one of the rules that want it approved.
enum Standing {
    Given(Box<Listing>, String),
    Refused(String),
    /// The person at the client was asked, and has said nothing.
    Dismissed,
    Waiting(Box<Approval>),
}

/// A call that needs approval: what an approval is bound to.
struct ApprovableCall<'a> {
    principal: &'a str,
    endpoint: &'a str,
    upstream: &'a Upstream,
    tool: Cow<'a, str>,
    arguments: &'a [u8],
}

/// What a modern client brings back when its person was asked, and the call as it was before.
pub(super) fn reply_in(context: &RequestContext) -> Option<(RequestContext, Reply)> {
    let message = &context.message;
    let state = message.text(Field::RequestState).filter(|_| context.era == Era::Modern)?;
    let (id, page) = match state.strip_prefix(LINK_STATE) {
        Some(rest) => rest.split_once('.').map(|(id, key)| (id, Some(key.to_owned())))?,
        None => (state.strip_prefix(STATE)?, None),
    };
    let given = message.raw(Field::InputResponses).unwrap_or(b"{}");
    let reply = Reply { id: id.to_owned(), action: action(json::get(given, &[QUESTION])), page };
    let edit = message.edit().remove(Object::Body, "requestState").remove(Object::Body, "inputResponses");
    let message = Message::parse(edit.finish()).ok()?;
    Some((RequestContext { message, ..context.clone() }, reply))
}

/// What an elicitation was answered with.
fn action(result: Option<&[u8]>) -> ReplyAction {
    let action = result.and_then(|result| json::get(result, &["action"])).and_then(json::string);
    match action.as_deref() {
        Some("accept") => ReplyAction::Accept,
        Some("decline") => ReplyAction::Decline,
        _ => ReplyAction::Cancel,
    }
}

impl<'a> ApprovableCall<'a> {
    fn of(context: &'a RequestContext, target: &'a Target) -> Self {
        let message = &context.message;
        let named = target.name.as_deref().map(Cow::Borrowed).or_else(|| message.name());
        let sent = target.arguments.as_deref().map(str::as_bytes);
        Self {
            // Of an unknown caller its share is all that tells it from others.
            principal: context.caller.as_ref().map_or(&context.principal, |caller| caller.id()),
            endpoint: context.endpoint.name(),
            upstream: &target.upstream,
            tool: named.unwrap_or_default(),
            arguments: sent.or_else(|| message.raw(Field::Arguments)).unwrap_or(b"{}"),
        }
    }

    /// Of the call, byte for byte, and of where it goes: another server by the same name needs another approval.
    fn digest(&self) -> Digest {
        let Self { principal, endpoint, upstream, tool, arguments } = self;
        let (name, reach) = (upstream.name().as_bytes(), upstream.reach_digest());
        sha256(&[principal.as_bytes(), endpoint.as_bytes(), name, reach, tool.as_bytes(), arguments])
    }

    /// What an approval by a rule stands under. Another rule, or other approvers, need another one.
    fn approval_key(&self, rule: &RuleConfig, approve: &ApprovalConfig) -> String {
        let digest = sha256(&[&self.digest(), rule.name.as_bytes(), approve.to_string().as_bytes()]);
        hex::encode(digest)
    }

    /// For whoever has to decide; none if a question cannot show all of it.
    fn shown(&self) -> Option<String> {
        if self.arguments.len() > SHOWN {
            return None;
        }
        let arguments = String::from_utf8_lossy(self.arguments);
        Some(format!("`{}` of `{}` with the arguments {}", self.tool, self.upstream.name(), printable(&arguments)))
    }
}

impl Proxy {
    /// Waits while a call's own person is at the page that they were sent to, for as long as a client waits for its answer.
    /// The call has taken nothing yet that others may want, and all is decided anew when it goes on.
    pub(super) async fn page_settled(&self, context: &RequestContext, reply: &Reply) {
        let Some(key) = reply.page.as_deref().filter(|_| reply.action == ReplyAction::Accept) else { return };
        let Some(prompt) = &self.prompt else { return };
        let approvals = prompt.manager.approvals();
        let own = context.caller.as_ref().map_or(&context.principal, |caller| caller.id());
        if let Ok(Some(there)) = approvals.get(key).await
            && there.approval.id == reply.id
            && there.approval.principal == **own
            && let Ok(_waits) = self.pending.room(&context.principal)
        {
            drop(tokio::time::timeout(PATIENCE, approvals.settled(key)).await);
        }
    }

    /// Tells legacy clients that were sent to a page when it is answered, so that they call again. Ends with the process.
    pub async fn announce_approvals(&self) {
        let Some(prompt) = &self.prompt else { return };
        let approvals = prompt.manager.approvals();
        loop {
            let looks = async {
                for session in self.sessions.awaiting_approvals() {
                    for (key, id) in session.awaited_approvals() {
                        announce(approvals, &session, &key, &id).await;
                    }
                }
            };
            approvals.changed_since(looks).await;
        }
    }

    /// Takes a call to its upstream if it is approved; otherwise has somebody asked.
    pub(super) fn approve<'a>(
        self: &'a Arc<Self>,
        context: &'a RequestContext,
        target: Target,
        reply: Option<Reply>,
        record: &'a mut CallLog,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(self.check_approvals(context, target, reply, record))
    }

    async fn check_approvals(
        self: &Arc<Self>,
        context: &RequestContext,
        target: Target,
        reply: Option<Reply>,
        record: &mut CallLog,
    ) -> Answer {
        let call = ApprovableCall::of(context, &target);
        // A rule that has come since asks anew.
        let rules = target.approvals.iter().chain(&target.policy_approvals);
        let rules = rules.filter_map(|rule| Some(call.approval_key(rule, rule.approve.as_ref()?)));
        let digest = sha256(&[&call.digest(), rules.collect::<String>().as_bytes()]);
        if reply.is_none() && self.continued.take(&digest, &context.message) {
            record.approved("an earlier round".to_owned());
            return self.drive_approved(context, target, digest, record).await;
        }
        let Some(prompt) = &self.prompt else {
            return failed(context, record, "this gateway has no store for approvals");
        };
        let approvals = prompt.manager.approvals();
        let (mut given, mut names) = (Vec::new(), Vec::new());
        for rule in target.approvals.iter().chain(&target.policy_approvals) {
            let Some(approve) = &rule.approve else { continue };
            match standing(approvals, (context, &call), (rule, approve), reply.as_ref(), record).await {
                Ok(Standing::Given(listing, by)) => {
                    given.push(listing);
                    names.push(by);
                }
                Ok(Standing::Refused(by)) => return refused(context, record, rule, &format!("`{by}` has refused it")),
                Ok(Standing::Dismissed) => return refused(context, record, rule, "the question was dismissed"),
                Ok(Standing::Waiting(waiting)) => {
                    let rule = Arc::clone(rule);
                    let was_asked = reply.as_ref().is_some_and(|reply| reply.id == waiting.id);
                    return self.ask(context, target, (rule, waiting), (prompt, was_asked), record).await;
                }
                Err(why) => return failed(context, record, &why.to_string()),
            }
        }
        for one in &given {
            match approvals.take(one).await {
                Ok(true) => {}
                Ok(false) => return failed(context, record, "another call has just used the approval; call again"),
                Err(why) => return failed(context, record, &why.to_string()),
            }
        }
        record.approved(names.join(", "));
        self.drive_approved(context, target, digest, record).await
    }

    /// Takes an approved call to its upstream, and lets it go on if that asks its client something.
    async fn drive_approved(
        self: &Arc<Self>,
        context: &RequestContext,
        mut target: Target,
        call: Digest,
        record: &mut CallLog,
    ) -> Answer {
        let mut answer = self.drive(context, &mut target, record).await;
        // In a session an upstream asks its client without ending the call.
        if context.era == Era::Legacy {
            return answer;
        }
        let approved = ApprovedCall::new(&self.continued, call, &context.principal);
        // Few calls need an approval, so that the answer may be gathered here.
        if let Body::Json(pending) = answer.body {
            let mut whole = pending.gather().await;
            answer.status = whole.status;
            record.came_to(&mut whole);
            answer.body = Body::Whole([whole.message, Bytes::new(), Bytes::new()]);
        }
        match &mut answer.body {
            Body::Whole(parts) => approved.answered(&parts.concat().into()),
            Body::Events(stream) => stream.approved = Some(Box::new(approved)),
            Body::Empty | Body::Json(_) => {}
        }
        answer
    }

    /// Has somebody asked: the person at the client, if it may be that one, or those whom the client tells.
    async fn ask(
        self: &Arc<Self>,
        context: &RequestContext,
        target: Target,
        (rule, waiting): (Arc<RuleConfig>, Box<Approval>),
        (prompt, was_asked): (&SignInPrompt, bool),
        record: &mut CallLog,
    ) -> Answer {
        let by = waiting.by.join(" or ");
        let own = rule.approve.as_ref().is_some_and(|approve| approve.by.contains(&Approver::Caller));
        let question = ApprovableCall::of(context, &target).shown().filter(|_| own);
        let question = question.map(|shown| form(&format!("Approve {shown}?")));
        if let (Era::Legacy, Some(session), Some(form)) = (context.era, &context.session, &question)
            && session.stateless().declared.asks().form
        {
            let session = Arc::clone(session);
            let key =
                rule.approve.as_ref().map(|approve| ApprovableCall::of(context, &target).approval_key(&rule, approve));
            let request = PendingApproval { key: key.unwrap_or_default(), waiting, form: form.clone() };
            return self.ask_in_session(context, target, (session, request), record).await;
        }
        record.fail(CallOutcome::Approval, format!("rule `{}` asks {by}", rule.name));
        if context.era == Era::Modern
            && let Some(form) = question.filter(|_| Asks::of_request(&context.message).form)
        {
            let question = answer::request(b"0", "elicitation/create", Some(form.as_bytes()));
            if let Ok(question) = Message::parse(question) {
                let id = context.message.id().unwrap_or(b"null");
                let state = format!("{STATE}{}", waiting.id);
                return Answer::whole(200, input_required(id, &[(QUESTION.to_owned(), &question)], &state, None));
            }
        }
        // The caller's own link is for nobody else.
        let own_link = prompt.invitations.link(context.caller.as_ref()).filter(|_| own);
        if let Some(link) = own_link.as_deref().filter(|_| !was_asked && opens_addresses(context)) {
            let call = ApprovableCall::of(context, &target);
            let key = rule.approve.as_ref().map(|approve| call.approval_key(&rule, approve)).unwrap_or_default();
            return by_link(context, (&waiting, &key), link);
        }
        let for_others = waiting.by.iter().any(|by| *by != Approver::Caller.to_string());
        let own_link = own_link.map(|link| format!(" Open {link} to do so yourself.")).unwrap_or_default();
        let page = format!(" Others open {}/approve/{}.", prompt.invitations.page(), waiting.id);
        let others = if for_others { page.as_str() } else { "" };
        let minutes = Duration::from_millis(waiting.expires).as_secs().div_ceil(60);
        let text = format!(
            "This call needs an approval within {minutes} min (rule `{}`). Who can approve it: {by}.{own_link}{others} Then \
             call again with the same arguments.",
            rule.name
        );
        told(context, &text, true)
    }

    /// Asks the person at a legacy client on the stream of the call, which goes on with what they say.
    async fn ask_in_session(
        self: &Arc<Self>,
        context: &RequestContext,
        target: Target,
        (session, request): (Arc<Session>, PendingApproval),
        record: &mut CallLog,
    ) -> Answer {
        let expires = Duration::from_millis(request.waiting.expires);
        let room = match self.pending.room(&context.principal) {
            Ok(room) => room,
            Err(full) => {
                record.fail(limited(full.status()), full.to_string());
                return Answer::full(context.message.id(), &full);
            }
        };
        // A person may take long, and others may call meanwhile.
        record.release();
        let upstream = Arc::clone(&target.upstream);
        let deadline = Deadline::of(&upstream, Instant::now() + expires);
        let running = session.run(&context.message, &upstream);
        let run = running.as_ref().map(|running| Arc::clone(&running.run));
        let part = record.part_of(context);
        let (proxy, call, asked) = (Arc::clone(self), context.clone(), Arc::clone(&session));
        let work = move |reporter| async move {
            let asking = AskedCall { proxy, context: call, target, request, record: part, run, room };
            asking.finish(&asked, expires, &reporter).await
        };
        let stream = InputStream::of(session, deadline.last, running, work);
        let stream = AnswerStream::input_loop(stream, &context.message, &upstream, deadline);
        match stream.answer(Era::Legacy, record).await {
            Ok(answer) => answer,
            Err(_) => failed(context, record, "the call came to nothing"),
        }
    }
}

/// Tells a client that a request is answered, and forgets what it need not hear of any more.
async fn announce(approvals: &Approvals, session: &Session, key: &str, id: &str) {
    // What cannot be read now is looked at again.
    let Ok(there) = approvals.get(key).await else { return };
    match there.filter(|there| there.approval.id == id).map(|there| there.approval.state) {
        Some(ApprovalState::Waiting) => return,
        // Also where it has expired, or another call has used it: the client calls again and learns that.
        Some(_) | None => session.queue.push(elicitation_complete(id)),
    }
    session.no_longer_awaits_approval(id);
}

/// Has the person open a page where they can approve the call (MCP 2025-11-25, client/elicitation; 2026-07-28,
/// basic/patterns/mrtr). That they open it approves nothing.
fn by_link(context: &RequestContext, (waiting, key): (&Approval, &str), link: &str) -> Answer {
    let id = context.message.id();
    let text = format!("Approve or refuse the call of `{}` at `{}`.", waiting.tool, waiting.upstream);
    let (url, shown) = (json::quote(link), json::quote(&text));
    match context.era {
        Era::Legacy => {
            if let Some(session) = &context.session {
                session.awaits_approval(key, &waiting.id);
            }
            let elicitation =
                format!(r#"{{"mode":"url","elicitationId":"{}","url":{url},"message":{shown}}}"#, waiting.id);
            let data = format!("{{\"elicitations\":[{elicitation}]}}");
            let text = format!("{text} Open {link}, and call again with the same arguments.");
            Answer::whole(200, answer::error(id, URL_REQUIRED, &text, Some(&data)))
        }
        Era::Modern => {
            let params = format!(r#"{{"mode":"url","url":{url},"message":{shown}}}"#);
            let question = answer::request(b"0", "elicitation/create", Some(params.as_bytes()));
            let state = format!("{LINK_STATE}{}.{key}", waiting.id);
            match Message::parse(question) {
                Ok(question) => {
                    let asked = [(QUESTION.to_owned(), &question)];
                    Answer::whole(200, input_required(id.unwrap_or(b"null"), &asked, &state, None))
                }
                Err(_) => told(context, &text, true),
            }
        }
    }
}

/// What there is for a call and a rule, after what the person at the client has said; a new request if there is nothing.
async fn standing(
    approvals: &Approvals,
    (context, call): (&RequestContext, &ApprovableCall<'_>),
    (rule, approve): (&RuleConfig, &ApprovalConfig),
    mut reply: Option<&Reply>,
    record: &CallLog,
) -> Result<Standing, ApprovalError> {
    let key = call.approval_key(rule, approve);
    let subject = context.caller.as_ref().map_or("", |caller| &caller.principal().subject);
    while let Some(there) = approvals.get(&key).await? {
        match &there.approval.state {
            ApprovalState::Given(by) => {
                let by = by.clone();
                return Ok(Standing::Given(Box::new(there), by));
            }
            ApprovalState::Refused(by) => return Ok(Standing::Refused(by.clone())),
            ApprovalState::Waiting | ApprovalState::Used => {}
        }
        // What a client says is said by its own person, so it counts where callers approve their own calls.
        let is_answer = |reply: &&Reply| {
            (reply.page.is_none() || reply.action != ReplyAction::Accept)
                && reply.id == there.approval.id
                && there.approval.may_be_answered_by(call.principal, None)
        };
        let by = answerer(context);
        match reply.take().filter(is_answer).map(|reply| reply.action) {
            None => return Ok(Standing::Waiting(Box::new(there.approval))),
            Some(ReplyAction::Cancel) => return Ok(Standing::Dismissed),
            Some(ReplyAction::Accept) => {
                if approvals.answer(&there, ApprovalState::Given(by.to_owned())).await? {
                    there.approval.told(by, issuer(context), true);
                }
            }
            // A caller may change their own mind, so nothing is kept of it.
            Some(ReplyAction::Decline) => {
                if approvals.take(&there).await? {
                    there.approval.told(by, issuer(context), false);
                }
                return Ok(Standing::Refused(by.to_owned()));
            }
        }
    }
    let id = sign_in_links::random().ok_or_else(|| ApprovalError::Full("the system has no randomness".to_owned()))?;
    let wanted = Approval {
        id,
        principal: call.principal.to_owned(),
        subject: subject.to_owned(),
        endpoint: call.endpoint.to_owned(),
        upstream: call.upstream.name().to_owned(),
        tool: call.tool.clone().into_owned(),
        rule: rule.name.to_string(),
        by: approve.by.iter().map(ToString::to_string).collect(),
        call: record.id.to_string(),
        expires: u64::try_from(approve.expires.as_millis()).unwrap_or(u64::MAX),
        until: 0,
        length: call.arguments.len(),
        state: ApprovalState::Waiting,
    };
    let (waiting, is_new) = approvals.ask(&key, wanted, call.arguments).await?;
    if is_new {
        waiting.record(&waiting.by.join(" or ")).asked();
    }
    Ok(Standing::Waiting(Box::new(waiting)))
}

/// As whom the person at the client answers.
fn answerer(context: &RequestContext) -> &str {
    let subject = context.caller.as_ref().map_or("", |caller| &caller.principal().subject);
    if subject.is_empty() { "caller" } else { subject }
}

fn issuer(context: &RequestContext) -> Option<&str> {
    context.caller.as_ref().and_then(|caller| caller.principal().issuer.as_deref())
}

/// The form that asks for nothing but a yes or a no.
fn form(text: &str) -> String {
    format!("{{\"message\":{},\"requestedSchema\":{{\"type\":\"object\",\"properties\":{{}}}}}}", json::quote(text))
}

fn refused(context: &RequestContext, record: &mut CallLog, rule: &RuleConfig, why: &str) -> Answer {
    record.fail(CallOutcome::Refused, format!("not approved (rule `{}`): {why}", rule.name));
    told(context, &format!("This call was not approved (rule `{}`): {why}.", rule.name), true)
}

fn failed(context: &RequestContext, record: &mut CallLog, why: &str) -> Answer {
    record.fail(CallOutcome::Refused, format!("not approved: {why}"));
    told(context, &format!("This call cannot be approved: {why}."), true)
}

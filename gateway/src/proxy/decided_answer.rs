//! What the `calls` policies of an upstream decide about what comes back: the one place where policies change an answer.

use std::{
    borrow::Cow,
    sync::{Arc, MutexGuard, PoisonError},
};

use bytes::Bytes;
use weir_flow::facts::UpstreamFacts;
use weir_mcp::{Era, Kind, Message, answer, json, method, public};

use crate::{
    caller::Caller,
    policy::{AnswerVerdict, Asked, CallInterest, CallPolicy, CallQuestion, Content, Denial, Detail},
    session::Endpoint,
    telemetry::{CallId, CallOutcome},
    upstream::Upstream,
};

use super::{
    Answer, Body, CallLog, RequestContext,
    beside::ChecksBeside,
    decide::{self, PolicyNotes, SharedNotes, complete},
    route::Target,
};

/// A call that policies decide about, with what they remember of it.
pub(super) struct DecidedCall {
    pub(super) upstream: Arc<Upstream>,
    /// The request's id, raw.
    pub(super) request: Bytes,
    id: CallId,
    endpoint: Endpoint,
    caller: Option<Arc<Caller>>,
    client: Option<String>,
    /// Its name, where policies tell clients apart.
    client_name: Option<String>,
    pub(super) era: Era,
    pub(super) method: String,
    pub(super) name: Option<String>,
    notes: SharedNotes,
    /// The policies that the call concerns, by their places, and what each wants to be told again.
    pub(super) followed: Vec<(usize, String)>,
    answers: bool,
    events: bool,
    /// What is decided while the upstream works.
    pub(super) beside: ChecksBeside,
}

/// What one policy has made of a message.
enum Turn {
    Unchanged,
    Replaced(Box<Message>),
    Dropped,
    /// The call ends, and why.
    Cut(Denial, String),
}

/// What has become of a message.
pub(super) enum DecidedMessage {
    /// The client gets this.
    Pass(Bytes),
    /// The client does not get it.
    Drop,
    /// The call ends with this, and why.
    Cut(Bytes, String),
}

impl DecidedCall {
    pub(super) fn new(context: &RequestContext, target: &Target, record: &mut CallLog) -> Self {
        let message = &context.message;
        let tells_apart = target.upstream.policies().is_some_and(|policies| !policies.classes().is_empty());
        let client_name = context.client().filter(|_| tells_apart).map(|client| client.name().into_owned());
        let name = decide::named(context, target).map(Cow::into_owned);
        Self {
            upstream: Arc::clone(&target.upstream),
            request: Bytes::copy_from_slice(message.id().unwrap_or(b"null")),
            id: record.id,
            endpoint: context.endpoint.clone(),
            caller: context.caller.clone(),
            client: record.client().map(str::to_owned),
            client_name,
            era: context.era,
            method: message.method().to_owned(),
            name,
            notes: record.notes(),
            followed: Vec::new(),
            answers: false,
            events: false,
            beside: ChecksBeside::default(),
        }
    }

    /// Notes that a policy decides about this call, and how much of it.
    pub(super) fn follow(&mut self, at: usize, interest: &CallInterest) {
        let (answers, events) = (interest.answer > Detail::Nothing, interest.event > Detail::Nothing);
        if answers || events {
            self.followed.push((at, String::new()));
        }
        self.answers |= answers;
        self.events |= events;
    }

    /// Takes note of what a policy wants to be told again.
    pub(super) fn remember(&mut self, at: usize, memory: String) {
        if let Some(known) = self.followed.iter_mut().find(|(place, _)| *place == at) {
            known.1 = memory;
        }
    }

    /// Whether some policy wants to see what comes back.
    pub(super) const fn wants_more(&self) -> bool {
        self.answers || self.events
    }

    pub(super) fn labels(&self) -> Vec<(String, String)> {
        self.notes().labels.clone()
    }

    pub(super) fn label(&self, more: &[(String, String)]) {
        /// Of all policies together.
        const MOST: usize = 64;
        let labels = &mut self.notes().labels;
        let free = MOST.saturating_sub(labels.len());
        labels.extend(more.iter().take(free).cloned());
    }

    fn notes(&self) -> MutexGuard<'_, PolicyNotes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a policy in shadow mode would have made of something that comes back; once, however often.
    fn note_shadow(&self, policy: &CallPolicy, verdict: &AnswerVerdict) {
        let would = match verdict {
            AnswerVerdict::Pass => return,
            AnswerVerdict::Replace(_) => "replace",
            AnswerVerdict::Drop => "drop",
            AnswerVerdict::Cut(_) => "cut",
        };
        tracing::info!(target: "policy", policy = policy.name(), call_id = %self.id, would, "decided in shadow mode");
        let would = format!("policy {} would {would} what came back", policy.name());
        let shadow = &mut self.notes().shadow;
        if !shadow.contains(&would) {
            shadow.push(would);
        }
    }

    /// What a policy is told of it.
    pub(super) fn facts<'a>(
        &'a self,
        policy: &'a CallPolicy,
        upstream: &'a UpstreamFacts,
        labels: &'a [(String, String)],
    ) -> CallQuestion<'a> {
        let groups = &policy.interest().clients;
        CallQuestion {
            id: Some(self.id),
            upstream,
            endpoint: self.endpoint.name(),
            principal: self.caller.as_ref().map(|caller| caller.principal()),
            principal_digest: self.caller.as_ref().map(|caller| caller.digest()),
            client: self.client.as_deref(),
            client_group: self.client_name.as_deref().and_then(|name| groups.find(name)).map(AsRef::as_ref),
            era: self.era,
            method: &self.method,
            name: self.name.as_deref(),
            labels,
            input_schema: None,
        }
    }

    /// The answer that refuses it.
    pub(super) fn refusal(&self, denial: &Denial) -> Answer {
        let status = denial.code.map_or(200, |code| weir_mcp::status::http_status(self.era, code.into()));
        Answer::whole(status, self.denied(denial))
    }

    /// The answer to a call whose policy has failed.
    pub(super) fn failed(&self, why: String, record: &mut CallLog) -> Answer {
        record.fail(CallOutcome::Denied, why.clone());
        self.refusal(&Denial { code: None, text: why })
    }

    /// The same as a message.
    fn denied(&self, denial: &Denial) -> Bytes {
        let Denial { code, text } = denial;
        if code.is_some() || self.method != method::TOOLS_CALL {
            let code = code.map_or(answer::INTERNAL, i64::from);
            return answer::error(Some(&self.request), code, text, None);
        }
        let result = format!(r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#, json::quote(text));
        answer::result(&self.request, complete(self.era, &result).as_bytes())
    }

    /// What becomes of a message of the upstream. Cancel-safe: what was not decided to the end is not remembered.
    pub(super) async fn decide(&mut self, message: &Bytes) -> DecidedMessage {
        let upstream = Arc::clone(&self.upstream);
        let Some(policies) = upstream.policies() else { return DecidedMessage::Pass(message.clone()) };
        let Ok(mut read) = Message::parse(message.clone()) else {
            let why = "nobody can read what came back".to_owned();
            return DecidedMessage::Cut(self.denied(&Denial { code: None, text: why.clone() }), why);
        };
        if !(if read.is_answer() { self.answers } else { self.events }) {
            return DecidedMessage::Pass(message.clone());
        }
        let mut followed = self.followed.clone();
        let mut dropped = false;
        // Back the way that the request has come.
        for (at, memory) in followed.iter_mut().rev() {
            let Some(policy) = policies.all().get(*at) else { continue };
            match self.ask(policy, policies.upstream(), memory, &read).await {
                Turn::Unchanged => {}
                Turn::Replaced(replaced) => read = *replaced,
                Turn::Dropped => {
                    dropped = true;
                    break;
                }
                Turn::Cut(denial, why) => return DecidedMessage::Cut(self.denied(&denial), why),
            }
        }
        self.followed = followed;
        if dropped { DecidedMessage::Drop } else { DecidedMessage::Pass(read.bytes().clone()) }
    }

    /// What one policy makes of a message.
    async fn ask(&self, policy: &CallPolicy, of: &UpstreamFacts, memory: &mut String, read: &Message) -> Turn {
        let (interest, kind) = (policy.interest(), read.kind());
        let (raw, detail) = match kind {
            Kind::Response => (read.result(), interest.answer),
            Kind::Error => (read.error(), interest.answer),
            Kind::Request | Kind::Notification => (Some(&read.bytes()[..]), interest.event),
        };
        let Some(raw) = raw.filter(|_| detail > Detail::Nothing) else { return Turn::Unchanged };
        let text = String::from_utf8_lossy(raw);
        let content = match kind {
            Kind::Response => Content::Result(&text),
            Kind::Error => Content::Error(&text),
            Kind::Request | Kind::Notification => Content::Event(&text),
        };
        let labels = self.labels();
        let decision = match policy.after(&self.facts(policy, of, &labels), memory, content).await {
            Asked::Decided(decision) => decision,
            Asked::Skipped => return Turn::Unchanged,
            Asked::Refused(why) => return Turn::failed(why.to_string()),
        };
        *memory = decision.memory;
        if !policy.is_enforced() {
            self.note_shadow(policy, &decision.verdict);
            return Turn::Unchanged;
        }
        self.label(&decision.labels);
        let unusable =
            |what: &str| Turn::failed(format!("policy {} gave an answer that cannot be used: {what}", policy.name()));
        match decision.verdict {
            AnswerVerdict::Pass => Turn::Unchanged,
            AnswerVerdict::Replace(new) => {
                let new = if kind == Kind::Response { complete(self.era, &new) } else { new };
                let replaced = Message::parse(public::replaced(read.bytes(), vec![(raw, new)]));
                replaced.map_or_else(
                    |_| unusable("nobody can read the message any more"),
                    |message| Turn::Replaced(Box::new(message)),
                )
            }
            AnswerVerdict::Drop if kind == Kind::Request => unusable("it drops a request, which its server waits for"),
            AnswerVerdict::Drop => Turn::Dropped,
            AnswerVerdict::Cut(denial) => {
                let why = format!("policy {}: {}", policy.name(), denial.text);
                Turn::Cut(denial, why)
            }
        }
    }

    /// What becomes of an answer, and why it is none of the upstream's, if so.
    pub(super) async fn whole(&mut self, message: Bytes) -> (Bytes, Option<String>) {
        match self.decide(&message).await {
            DecidedMessage::Pass(message) => (message, None),
            DecidedMessage::Cut(message, why) => (message, Some(why)),
            DecidedMessage::Drop => (message, None),
        }
    }
}

impl Turn {
    fn failed(why: String) -> Self {
        Self::Cut(Denial { code: None, text: why.clone() }, why)
    }
}

impl Answer {
    /// The same answer, about which policies decide before the client gets it.
    pub(super) async fn decided(mut self, mut call: Box<DecidedCall>, record: &mut CallLog) -> Self {
        match &mut self.body {
            // What Weir says itself is no answer of the upstream.
            Body::Whole(_) if record.failure.is_some() => {}
            Body::Whole(parts) => {
                let message = parts.concat().into();
                let (message, failure) = call.whole(message).await;
                *parts = [message, Bytes::new(), Bytes::new()];
                if let Some(why) = failure {
                    record.fail(CallOutcome::Denied, why);
                }
            }
            Body::Json(pending) => pending.decided = Some(call),
            Body::Events(stream) => stream.decide_with(call),
            Body::Empty => {}
        }
        self
    }
}

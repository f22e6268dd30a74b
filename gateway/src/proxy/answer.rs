//! What a client is given back, before it becomes HTTP.

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock, OnceLock, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use memchr::memmem;
use weir_flow::Failure;
use weir_mcp::{Era, Field, Kind, Message, answer, json, method};

use crate::{
    access::Decision,
    admission::{CallPermit, NotAdmitted},
    caller::Caller,
    http::HeaderValue,
    quota::Reached,
    replica::MISDIRECTED,
    session,
    telemetry::{
        CallId, CallOutcome, CallRecord, CallSpan, NEEDS_SIGN_IN, TRACEPARENT, TraceParent,
        audit::{self, RecordedArguments},
        metrics::OWN_CALLS,
    },
    upstream::{Upstream, UpstreamUse},
};

use super::{
    RequestContext, WholeAnswer,
    activity::{self, CallSummary, EndedCall, RunningCall},
    answer_stream::AnswerStream,
    decide::{PolicyNotes, SharedNotes},
    pending_answer::PendingAnswer,
    recorder,
    sign_in::told,
};

/// One answer on its way to a client.
#[must_use]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// `Mcp-Session-Id`, where a session begins.
    pub session: Option<HeaderValue>,
    /// `Allow`, where the method is the trouble.
    pub allow: Option<&'static str>,
    /// The rest.
    pub body: Body,
    /// `Retry-After` in seconds, where it is known when to come again.
    pub retry_after: Option<u64>,
    /// For the log; none for what is no call.
    pub record: Option<CallLog>,
}

/// What follows the head.
pub enum Body {
    /// Nothing.
    Empty,
    /// JSON that is all here, in pieces that are sent one after the other.
    Whole([Bytes; 3]),
    /// JSON as it comes from an upstream.
    Json(Box<PendingAnswer>),
    /// An event stream.
    Events(Box<AnswerStream>),
}

/// How much of a method or id that a client sent goes into the log, in bytes.
const WORD_IN_LOG: usize = 64;
/// How much of a name.
const NAME_IN_LOG: usize = 1024;

/// The status of an answer whose client went away, as nginx writes it; nobody is there to receive it.
pub const CLIENT_GONE: u16 = 499;

/// What the log will say of a call.
pub struct CallLog {
    /// What the log calls it.
    pub id: CallId,
    start: Instant,
    /// The method, the name, the id and the client, one after the other: most calls need no more room than for one text.
    text: String,
    /// Where each of them ends.
    ends: [usize; 4],
    era: Era,
    caller: Option<Arc<Caller>>,
    session: Option<Arc<str>>,
    /// What its client says of its trace.
    trace: Option<TraceParent>,
    /// None if it is not traced.
    pub(super) span: Option<Arc<CallSpan>>,
    received: usize,
    /// For the audit log.
    arguments: Option<RecordedArguments>,
    /// The other end of the connection.
    pub peer: Option<SocketAddr>,
    /// The upstream that answers; none if Weir does.
    pub upstream: Option<Arc<Upstream>>,
    /// Keeps the upstream from being closed where the configuration has it no more.
    _use: Option<UpstreamUse>,
    /// The rule that decided, where there are rules.
    rule: Option<Arc<str>>,
    /// Who has approved it; shared by all that works on the call.
    approved: Option<Arc<OnceLock<String>>>,
    /// What rules that are only tried out would have decided.
    shadow: Option<String>,
    /// What policies have said of it.
    notes: Option<SharedNotes>,
    /// How often the request was sent.
    pub attempts: u32,
    /// Why the call failed.
    pub failure: Option<String>,
    /// What it came to; where there is a failure, whose it is.
    pub outcome: CallOutcome,
    /// Shows that it runs.
    running: Option<RunningCall>,
    /// What the limits of calls have given it.
    permit: Option<CallPermit>,
}

/// A call that is over, and whose records are to be written.
pub(super) struct FinishedCall {
    log: CallLog,
    at: SystemTime,
    took: Duration,
    status: u16,
    sent: u64,
    labels: Vec<(String, String)>,
    approved_by: Option<String>,
}

impl Answer {
    /// A status and nothing else.
    pub const fn empty(status: u16) -> Self {
        Self { status, session: None, allow: None, retry_after: None, body: Body::Empty, record: None }
    }

    /// A message that is all here.
    pub const fn whole(status: u16, message: Bytes) -> Self {
        let body = Body::Whole([message, Bytes::new(), Bytes::new()]);
        Self { status, session: None, allow: None, retry_after: None, body, record: None }
    }

    /// An event stream.
    pub fn events(delivery: AnswerStream) -> Self {
        Self {
            status: 200,
            session: None,
            allow: None,
            retry_after: None,
            body: Body::Events(Box::new(delivery)),
            record: None,
        }
    }

    /// The answer to a request that Weir answers by itself; `result` is JSON that is ready.
    pub fn result(request: &Message, result: Bytes) -> Self {
        let id = request.id().unwrap_or(b"null");
        let mut head = Vec::with_capacity(32 + id.len());
        head.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        head.extend_from_slice(id);
        head.extend_from_slice(br#","result":"#);
        let body = Body::Whole([head.into(), result, Bytes::from_static(b"}")]);
        Self { status: 200, session: None, allow: None, retry_after: None, body, record: None }
    }

    /// A JSON-RPC error; the status follows from the era and the code.
    pub fn error(era: Era, request: &Message, code: i64, message: &str) -> Self {
        let status = weir_mcp::status::http_status(era, code);
        Self::whole(status, answer::error(request.id(), code, message, None))
    }

    /// A call that came to nothing.
    pub fn failed(request: &Message, upstream: &str, failure: &Failure) -> Self {
        Self::whole(200, failure_message(request.id(), upstream, failure))
    }

    /// No answer: the gateway that has the session of the request has to give one, and nothing was sent.
    pub(super) fn at_owner() -> Self {
        Self::empty(MISDIRECTED)
    }

    /// Whether it is none, and another gateway has to give it.
    pub const fn is_at_owner(&self) -> bool {
        self.status == MISDIRECTED && matches!(self.body, Body::Empty)
    }

    /// A limit was reached.
    pub fn full(id: Option<&[u8]>, reached: &Reached) -> Self {
        Self::whole(reached.status(), answer::error(id, answer::INTERNAL, &reached.to_string(), None))
    }

    /// The answer to a call that may not go on, for it could not be recorded.
    pub(super) fn unrecorded(request: &Message, record: &mut CallLog) -> Option<Self> {
        let why = audit::refusal()?;
        let answer = Self::whole(503, answer::error(request.id(), answer::INTERNAL, &why, None));
        record.fail(CallOutcome::Limited, why);
        Some(answer)
    }

    /// A call that a limit of calls stops.
    pub(super) fn not_admitted(context: &RequestContext, why: &NotAdmitted, record: &mut CallLog) -> Self {
        let text = why.to_string();
        let answer = match why {
            NotAdmitted::Repeated { .. } => told(context, &text, true),
            NotAdmitted::Full(_) | NotAdmitted::Rate { .. } => {
                let error = answer::error(context.message.id(), answer::INTERNAL, &text, None);
                Self { retry_after: why.retry_after(), ..Self::whole(why.status(), error) }
            }
        };
        record.fail(limited(why.status()), text);
        answer
    }

    /// Adds what the log will say.
    pub fn recorded(mut self, mut record: CallLog) -> Self {
        if let Some(opened) = &self.session {
            record.session = Some(session::shown(opened));
        }
        match &mut self.body {
            Body::Events(stream) => stream.record = Some(record),
            Body::Json(_) => self.record = Some(record),
            Body::Empty | Body::Whole(_) => {
                record.release();
                self.record = Some(record);
            }
        }
        self
    }
}

/// The JSON-RPC error that tells a client why its call failed.
pub(super) fn failure_message(id: Option<&[u8]>, upstream: &str, failure: &Failure) -> Bytes {
    let message = format!("upstream `{upstream}` {failure}");
    answer::error(id, answer::INTERNAL, &message, None)
}

impl CallLog {
    /// A call that begins now.
    pub fn new(context: &RequestContext) -> Self {
        let RequestContext { message, era, caller, session, headers, .. } = context;
        let mut record = Self::of(message, *era, caller.as_ref());
        record.trace = record.trace.or_else(|| {
            let (_, value) = headers.iter().find(|(name, _)| name.as_str() == TRACEPARENT)?;
            TraceParent::parse(value.as_bytes())
        });
        if let Some(session) = session {
            record.add(&session.client, 3);
            record.session = Some(Arc::clone(&session.shown));
        }
        let traced = record.caller.as_ref().and_then(|caller| caller.traced());
        record.span = CallSpan::begin(record.trace.as_ref(), record.id, traced, record.start);
        if let Some(span) = &record.span {
            let version = context.version.as_ref().and_then(|version| version.to_str().ok());
            if let Some(version) = version.or_else(|| Some(session.as_ref()?.version())) {
                span.speaks(version);
            }
        }
        record
    }

    /// The same for a message of this era, of which no more is known.
    pub fn of(message: &Message, era: Era, caller: Option<&Arc<Caller>>) -> Self {
        let mut record = Self {
            id: CallId::next(),
            start: Instant::now(),
            text: String::with_capacity(128),
            ends: [0; 4],
            era,
            caller: caller.cloned(),
            session: None,
            trace: traced(message),
            span: None,
            received: message.bytes().len(),
            arguments: RecordedArguments::of(message),
            peer: None,
            upstream: None,
            _use: None,
            rule: None,
            approved: None,
            shadow: None,
            notes: None,
            attempts: 0,
            failure: None,
            outcome: CallOutcome::Ok,
            running: None,
            permit: None,
        };
        record.add(cut(message.method(), WORD_IN_LOG), 0);
        record.add(cut(&message.name().or_else(|| message.uri()).unwrap_or_default(), NAME_IN_LOG), 1);
        let id = std::str::from_utf8(message.id().unwrap_or_default()).unwrap_or_default();
        record.add(cut(id.trim_matches('"'), WORD_IN_LOG), 2);
        let said = match message.raw(Field::ClientInfo) {
            None if message.method() == method::INITIALIZE => {
                message.params().and_then(|params| json::get(params, &["clientInfo"]))
            }
            said => said,
        };
        if let Some(said) = said {
            session::add_client(said, &mut record.text);
        }
        record.ends[3] = record.text.len();
        record
    }

    /// Notes what the rules have decided.
    pub(super) fn decided(&mut self, decision: &Decision) {
        self.rule.clone_from(&decision.rule);
        if let Some(would) = &decision.shadow {
            self.shadowed(&would.to_string());
        }
    }

    /// Notes what a rule or a policy would have decided that is only tried out.
    pub(super) fn shadowed(&mut self, would: &str) {
        match &mut self.shadow {
            // A rule is asked again about a request that a policy has changed.
            Some(before) if before.split("; ").any(|one| one == would) => {}
            Some(before) => *before = format!("{before}; {would}"),
            None => self.shadow = Some(would.to_owned()),
        }
    }

    /// Where policies put what they say of the call.
    pub(super) fn notes(&mut self) -> SharedNotes {
        Arc::clone(self.notes.get_or_insert_default())
    }

    /// Whether policies have said something of the call, or work on it.
    pub(super) const fn has_notes(&self) -> bool {
        self.notes.is_some()
    }

    /// What the client calls itself.
    pub(super) fn client(&self) -> Option<&str> {
        Some(self.part(3)).filter(|client| !client.is_empty())
    }

    /// Notes who has approved the call.
    pub(super) fn approved(&mut self, by: String) {
        // The first word counts.
        drop(self.approved.get_or_insert_default().set(by));
    }

    /// A log of work on the same call, whose line this one writes.
    pub(super) fn part_of(&mut self, context: &RequestContext) -> Self {
        let approved = Some(Arc::clone(self.approved.get_or_insert_default()));
        let (notes, span) = (self.notes.clone(), self.span.clone());
        Self { id: self.id, approved, notes, span, ..Self::new(context) }
    }

    /// Notes that the call came to nothing, and why.
    pub fn fail(&mut self, outcome: CallOutcome, why: impl Into<String>) {
        (self.outcome, self.failure) = (outcome, Some(why.into()));
    }

    /// Takes note of where the call goes.
    pub(super) fn goes_to(&mut self, upstream: &Arc<Upstream>) {
        self.upstream = Some(Arc::clone(upstream));
        self._use = Some(upstream.used());
        if self.part(0) != method::LISTEN {
            self.running = Some(activity::begin(self.facts(self.text.clone())));
        }
    }

    fn facts(&self, text: String) -> CallSummary {
        CallSummary {
            id: self.id,
            start: self.start,
            text,
            ends: self.ends,
            upstream: self.upstream.as_ref().map(|upstream| upstream.key().clone()),
            principal: Caller::apart(self.caller.as_ref()),
            session: self.session.clone(),
        }
    }

    /// Holds what is given back when the call is over.
    pub(super) fn hold(&mut self, permit: impl Into<CallPermit>) {
        self.permit = Some(permit.into());
    }

    /// The same for work that goes on when its client has left; none if nothing is held.
    pub(super) fn share_permit(&mut self) -> Option<CallPermit> {
        let [own, other] = self.permit.take()?.share();
        self.permit = Some(own);
        Some(other)
    }

    /// Takes note that the answer is all here. Gives back what the call holds before the answer is out: whoever has it may
    /// call again at once.
    pub fn release(&mut self) {
        self.permit = None;
        if let Some(span) = &self.span {
            span.note_answered();
        }
    }

    /// Notes what the answer comes to.
    pub fn came_to(&mut self, whole: &mut WholeAnswer) {
        (self.outcome, self.failure) = (whole.outcome, whole.failure.take());
        self.note_error(whole.outcome, &whole.message);
    }

    /// Notes the code of an upstream's error for the span.
    pub(super) fn note_error(&self, outcome: CallOutcome, answer: &Bytes) {
        if let Some(span) = self.span.as_ref().filter(|_| outcome == CallOutcome::Error)
            && let Some(code) = Message::parse(answer.clone()).ok().and_then(|answer| answer.error_code())
        {
            span.note_code(code);
        }
    }

    fn add(&mut self, part: &str, place: usize) {
        self.text.truncate(if place == 0 { 0 } else { self.ends[place - 1] });
        self.text.push_str(part);
        self.ends[place] = self.text.len();
    }

    fn part(&self, place: usize) -> &str {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        self.text.get(start..self.ends[place]).unwrap_or_default()
    }

    /// The call is over: `sent` bytes of the answer are out, or it will never be. Its records are written soon.
    pub fn finish(mut self, status: u16, sent: u64) {
        self.outcome = match (&self.failure, self.outcome) {
            (Some(why), _) if why == NEEDS_SIGN_IN => CallOutcome::SignIn,
            (Some(_), CallOutcome::Ok | CallOutcome::ToolError) => CallOutcome::Failed,
            (None, _) if status == CLIENT_GONE => CallOutcome::Cancelled,
            (_, outcome) => outcome,
        };
        // What others add from now on comes too late.
        let taken = |notes: SharedNotes| std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner));
        let PolicyNotes { labels, shadow } = self.notes.take().map(taken).unwrap_or_default();
        shadow.iter().for_each(|would| self.shadowed(would));
        let took = self.start.elapsed();
        let finite = (self.part(0) != method::LISTEN).then_some(took);
        let calls = self.upstream.as_ref().map_or(&OWN_CALLS, |upstream| &upstream.calls);
        calls.count(self.outcome, self.attempts, finite);
        if self.shadow.is_some() {
            calls.count_shadowed();
        }
        (self._use, self.permit) = (None, None);
        let approved_by = self.approved.take().and_then(|by| by.get().cloned());
        let at = SystemTime::now();
        recorder::record(FinishedCall { log: self, at, took, status, sent, labels, approved_by });
    }
}

impl FinishedCall {
    /// When it ended.
    pub(super) fn ended(&self) -> Instant {
        self.log.start + self.took
    }

    /// Whether it keeps much until its records are written.
    pub(super) fn is_large(&self) -> bool {
        self.log.arguments.as_ref().is_some_and(RecordedArguments::are_large)
    }

    /// Writes all records of it.
    pub(super) fn write(self) {
        let Self { mut log, at, took, status, sent, labels, approved_by } = self;
        let record = CallRecord {
            id: log.id,
            at,
            upstream: log.upstream.as_ref().map_or("-", |upstream| upstream.name()),
            account: log.upstream.as_ref().and_then(|upstream| Some(&*upstream.account()?.name)),
            method: log.part(0),
            name: log.part(1),
            request: log.part(2),
            era: log.era,
            principal: log.caller.as_ref().map(|caller| caller.principal()),
            client: log.client(),
            session: log.session.as_deref(),
            trace: log.trace.as_ref(),
            span: log.span.as_deref(),
            peer: log.peer,
            status,
            attempts: log.attempts,
            took,
            received: log.received as u64,
            sent,
            outcome: log.outcome,
            rule: log.rule.as_deref(),
            approved_by: approved_by.as_deref(),
            shadow: log.shadow.as_deref(),
            labels: &labels,
            failure: log.failure.as_deref(),
            arguments: log.arguments.as_ref(),
        };
        record.write();
        let text = std::mem::take(&mut log.text);
        let (facts, outcome, attempts, received) = (log.facts(text), log.outcome, log.attempts, log.received as u64);
        let (rule, failure) = (log.rule.take(), log.failure.take());
        activity::end(EndedCall { facts, took, outcome, status, attempts, rule, failure, received, sent });
    }
}

/// The trace that a request says it belongs to (SEP-414).
fn traced(message: &Message) -> Option<TraceParent> {
    let meta = message.raw(Field::Meta)?;
    // Few requests say so, and a look for the word costs next to nothing.
    static WORD: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(TRACEPARENT));
    WORD.find(meta)?;
    TraceParent::parse(json::string(json::get(meta, &[TRACEPARENT])?)?.as_bytes())
}

/// What it comes to that an upstream has answered this.
pub(super) fn answered(answer: &Message) -> CallOutcome {
    match answer.kind() {
        Kind::Error => CallOutcome::Error,
        Kind::Response if answer.raw(Field::IsError) == Some(b"true") => CallOutcome::ToolError,
        Kind::Response | Kind::Request | Kind::Notification => CallOutcome::Ok,
    }
}

/// What it comes to that a call has no answer.
pub(super) fn outcome(failure: &Failure) -> CallOutcome {
    match failure {
        Failure::Policy(_) => CallOutcome::Denied,
        _ => CallOutcome::Failed,
    }
}

/// What a call comes to that a limit refuses with this status: 503 says that it is not the caller's doing.
pub(super) const fn limited(status: u16) -> CallOutcome {
    if status == 503 { CallOutcome::Limited } else { CallOutcome::Refused }
}

fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

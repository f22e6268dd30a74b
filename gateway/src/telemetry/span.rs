//! The span of a call, and one for each attempt at its upstream.
//!
//! Names are those of OpenTelemetry's semantic conventions for MCP (gen-ai/mcp, in development) where they have one, and
//! begin with `weir.` otherwise. A call that is not traced has no [`CallSpan`].

use std::{
    borrow::Cow,
    cell::RefCell,
    sync::Arc,
    time::{Instant, SystemTime},
};

use bytes::Bytes;
use parking_lot::Mutex;
use weir_mcp::method;

use crate::rate::Pace;

use super::{
    CallId, CallOutcome, CallRecord, TraceParent,
    call::{shown, without_query, without_secrets},
    export_queue::SPANS,
    otlp::{CLIENT, SERVER, SpanWriter, number_head, text_head},
    printable,
    sampling::{is_sampled, with_principal},
};

/// How many attempts of one call are recorded. A call asks its client a few times, and sends again a few times each.
const ATTEMPTS: usize = 64;

/// How much of a message is recorded, in bytes.
const MESSAGE: usize = 512;

/// A call that is traced.
#[derive(Debug)]
pub struct CallSpan {
    context: TraceParent,
    start: SystemTime,
    progress: Mutex<CallProgress>,
}

/// What happens to the call meanwhile.
#[derive(Debug, Default)]
struct CallProgress {
    version: Option<String>,
    target: Option<String>,
    address: Option<(String, u16)>,
    attempts: Vec<AttemptSpan>,
    answered: Option<SystemTime>,
    code: Option<i64>,
}

/// One attempt at an upstream.
#[derive(Debug)]
struct AttemptSpan {
    context: TraceParent,
    start: SystemTime,
    end: Option<SystemTime>,
    status: Option<u16>,
    failure: Option<AttemptFailure>,
}

#[derive(Debug)]
struct AttemptFailure {
    /// The value of `error.type`.
    kind: Cow<'static, str>,
    why: String,
}

impl CallSpan {
    /// The span of a call of somebody that begins now; none if the call is not traced.
    #[must_use]
    pub fn begin(parent: Option<&TraceParent>, call: CallId, caller: Option<&Pace>, now: Instant) -> Option<Arc<Self>> {
        let is_sampled = is_sampled(parent, call, caller, now);
        let context = is_sampled.then(|| parent.map_or_else(TraceParent::root, TraceParent::child))??;
        Some(Arc::new(Self { context, start: SystemTime::now(), progress: Mutex::default() }))
    }

    /// The ids of the call's own span.
    pub const fn context(&self) -> &TraceParent {
        &self.context
    }

    /// Notes the version of MCP that its client speaks.
    pub fn speaks(&self, version: &str) {
        self.progress.lock().version = Some(printable(version).into_owned());
    }

    /// Notes what is called at the upstream, in the upstream's own terms, and host and port of its address; a process has
    /// none.
    pub fn goes_to(&self, target: Option<&str>, address: Option<(String, u16)>) {
        let mut progress = self.progress.lock();
        (progress.target, progress.address) = (target.map(str::to_owned), address);
    }

    /// Begins an attempt, which ends the one before; none if there were too many. What is sent says the ids.
    pub fn begin_attempt(&self, start: SystemTime) -> Option<TraceParent> {
        let mut progress = self.progress.lock();
        progress.end_attempt();
        if progress.attempts.len() == ATTEMPTS {
            return None;
        }
        let context = self.context.child()?;
        progress.answered = None;
        progress.attempts.push(AttemptSpan { context, start, end: None, status: None, failure: None });
        Some(context)
    }

    /// Notes the status of the attempt's reply.
    pub fn reply(&self, status: u16) {
        if let Some(attempt) = self.progress.lock().attempts.last_mut() {
            attempt.status = Some(status);
        }
    }

    /// Ends an attempt without a reply. `kind` is the value of `error.type`.
    pub fn fail_attempt(&self, kind: Cow<'static, str>, why: &str) {
        let mut progress = self.progress.lock();
        if let Some(attempt) = progress.attempts.last_mut().filter(|attempt| attempt.end.is_none()) {
            attempt.failure = Some(AttemptFailure { kind, why: message(why).into_owned() });
        }
        progress.end_attempt();
    }

    /// Ends an attempt whose reply is not the call's answer. What happens until the next one is not the upstream's doing.
    pub fn end_attempt(&self) {
        self.progress.lock().end_attempt();
    }

    /// Notes that the upstream's answer is all there.
    pub fn note_answered(&self) {
        self.progress.lock().answered.get_or_insert_with(SystemTime::now);
    }

    /// Notes the code of the upstream's JSON-RPC error.
    pub fn note_code(&self, code: i64) {
        self.progress.lock().code = Some(code);
    }

    /// Queues the spans of a finished call.
    pub(super) fn write(&self, record: &CallRecord<'_>, call_id: &str, client_address: Option<&str>) {
        thread_local! {
            static JSON: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let progress = self.progress.lock();
        JSON.with_borrow_mut(|json| {
            self.put(record, &progress, (call_id, client_address), json);
            SPANS.push(Bytes::copy_from_slice(json));
            for (at, attempt) in (1..).zip(&progress.attempts) {
                self.put_attempt(record, &progress, (at, attempt), json);
                SPANS.push(Bytes::copy_from_slice(json));
            }
        });
    }

    fn put(
        &self,
        record: &CallRecord<'_>,
        progress: &CallProgress,
        (call_id, client_address): (&str, Option<&str>),
        to: &mut Vec<u8>,
    ) {
        let is_routed = record.upstream != "-";
        // What nobody serves may be called anything.
        let name = if is_routed { shown(record.name) } else { "" };
        let (name, parent) = (span_name(record.method, name), record.trace.map(TraceParent::span));
        let times = [self.start, self.start + record.took];
        let mut span = SpanWriter::begin(to, &self.context, parent, (SERVER, &name), times);
        span.text(text_head!("mcp.method.name"), record.method);
        put_target(&mut span, record.method, record.name);
        put_client(&mut span, record, client_address);
        let texts = [
            (text_head!("jsonrpc.request.id"), Some(record.request)),
            (text_head!("mcp.protocol.version"), progress.version.as_deref()),
            (text_head!("mcp.session.id"), record.session),
            (text_head!("weir.upstream"), Some(record.upstream).filter(|_| is_routed)),
            (text_head!("weir.account"), record.account),
            (text_head!("weir.outcome"), Some(record.outcome.text())),
            (text_head!("weir.blame"), Some(record.outcome.blame())),
            (text_head!("weir.client"), record.client),
            (text_head!("weir.rule"), record.rule),
            (text_head!("weir.approved_by"), record.approved_by),
        ];
        for (head, text) in texts {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                span.text(head, &printable(text));
            }
        }
        span.text(text_head!("weir.call_id"), call_id);
        span.text(text_head!("weir.era"), record.era.text());
        span.number(number_head!("weir.attempts"), record.attempts.into());
        end(span, record, progress);
    }

    fn put_attempt(
        &self,
        record: &CallRecord<'_>,
        progress: &CallProgress,
        (at, attempt): (u64, &AttemptSpan),
        to: &mut Vec<u8>,
    ) {
        let target = progress.target.as_deref().unwrap_or_default();
        let (name, parent) = (span_name(record.method, shown(target)), Some(self.context.span()));
        let times = [attempt.start, attempt.end.or(progress.answered).unwrap_or(self.start + record.took)];
        let mut span = SpanWriter::begin(to, &attempt.context, parent, (CLIENT, &name), times);
        span.text(text_head!("mcp.method.name"), record.method);
        span.text(text_head!("weir.upstream"), record.upstream);
        span.number(number_head!("weir.attempt"), at);
        put_target(&mut span, record.method, target);
        put_server(&mut span, progress.address.as_ref(), attempt.status);
        match &attempt.failure {
            Some(AttemptFailure { kind, why }) => {
                span.text(text_head!("error.type"), kind);
                span.end(true, Some(why));
            }
            // The one that brings the answer comes to what the call comes to, unless Weir has decided that.
            None if attempt.end.is_none() && record.outcome.is_of_attempt() => end(span, record, progress),
            None => span.end(false, None),
        }
    }
}

impl CallProgress {
    fn end_attempt(&mut self) {
        let answered = self.answered;
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.end.get_or_insert_with(|| answered.unwrap_or_else(SystemTime::now));
        }
    }
}

fn message(why: &str) -> Cow<'_, str> {
    printable(&why[..why.floor_char_boundary(MESSAGE)])
}

/// The method, and what it is about where that is one of few.
fn span_name<'a>(called: &'a str, target: &str) -> Cow<'a, str> {
    match called {
        method::TOOLS_CALL | method::PROMPTS_GET if !target.is_empty() => {
            Cow::Owned([called, " ", &printable(target)].concat())
        }
        _ => Cow::Borrowed(called),
    }
}

/// What is called.
fn put_target(span: &mut SpanWriter<'_>, called: &str, target: &str) {
    if called == method::TOOLS_CALL {
        span.text(text_head!("gen_ai.operation.name"), "execute_tool");
    }
    if target.is_empty() {
        return;
    }
    match called {
        method::TOOLS_CALL => span.text(text_head!("gen_ai.tool.name"), &printable(without_query(target))),
        method::PROMPTS_GET => span.text(text_head!("gen_ai.prompt.name"), &printable(without_query(target))),
        method::RESOURCES_READ | method::SUBSCRIBE | method::UNSUBSCRIBE => {
            span.text(text_head!("mcp.resource.uri"), &printable(&without_secrets(target)));
        }
        _ => {}
    }
}

/// Who has called, and over what.
fn put_client(span: &mut SpanWriter<'_>, record: &CallRecord<'_>, address: Option<&str>) {
    match record.peer.zip(address.and_then(|address| address.rsplit_once(':'))) {
        Some((peer, (host, _))) => {
            span.text(text_head!("network.transport"), "tcp");
            span.text(text_head!("network.protocol.name"), "http");
            span.text(text_head!("client.address"), host.trim_matches(['[', ']']));
            span.number(number_head!("client.port"), peer.port().into());
            span.number(number_head!("http.response.status_code"), record.status.into());
        }
        None => span.text(text_head!("network.transport"), "pipe"),
    }
    if let Some(principal) = record.principal.filter(|_| with_principal()) {
        span.text(text_head!("user.id"), &principal.subject);
    }
}

/// Whom an attempt was made at, and over what.
fn put_server(span: &mut SpanWriter<'_>, address: Option<&(String, u16)>, status: Option<u16>) {
    let Some((host, port)) = address else { return span.text(text_head!("network.transport"), "pipe") };
    span.text(text_head!("network.transport"), "tcp");
    span.text(text_head!("network.protocol.name"), "http");
    span.text(text_head!("server.address"), host);
    span.number(number_head!("server.port"), (*port).into());
    if let Some(status) = status {
        span.number(number_head!("http.response.status_code"), status.into());
    }
}

/// Ends a span with what the call came to.
fn end(mut span: SpanWriter<'_>, record: &CallRecord<'_>, progress: &CallProgress) {
    if matches!(record.outcome, CallOutcome::Ok | CallOutcome::SignIn | CallOutcome::Approval) {
        return span.end(false, None);
    }
    let code = progress.code.filter(|_| record.outcome == CallOutcome::Error).map(|code| code.to_string());
    if let Some(code) = &code {
        span.text(text_head!("rpc.response.status_code"), code);
    }
    let failed = progress.attempts.last().and_then(|attempt| attempt.failure.as_ref());
    let kind = match (&code, failed) {
        (Some(code), _) => code,
        (None, Some(failure)) if record.outcome == CallOutcome::Failed => &*failure.kind,
        (None, _) => record.outcome.text(),
    };
    span.text(text_head!("error.type"), kind);
    span.end(true, record.failure.map(message).as_deref());
}

//! The span of a call, and one for each attempt at its upstream.
//!
//! Names are those of OpenTelemetry's semantic conventions for MCP (gen-ai/mcp, in development) where they have one, and
//! begin with `weir.` otherwise. The decision to trace a call is made once, when it begins: that of the client where it
//! sends a trace context and the configuration lets it decide, else by chance. A call that is not traced has no [`CallSpan`].

use std::{
    borrow::Cow,
    cell::RefCell,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use bytes::Bytes;
use parking_lot::Mutex;
use weir_mcp::method;

use super::{
    CallId, CallOutcome, CallRecord, TraceParent,
    call::{shown, without_query, without_secrets},
    export_queue::SPANS,
    otlp::{Attribute, CLIENT, SERVER, Span, SpanStatus},
    printable,
};

/// How many attempts of one call are recorded. A call asks its client a few times, and sends again a few times each.
const ATTEMPTS: usize = 64;

/// How many attributes a span has at most.
const MOST_ATTRIBUTES: usize = 24;

/// How much of a message is recorded, in bytes.
const MESSAGE: usize = 512;

/// Which share of the calls is traced that clients do not decide of, in 1/2³², and one more; zero if no call is traced.
static SAMPLE: AtomicU64 = AtomicU64::new(0);

/// Whether a client that sends a trace context decides of its calls.
static PARENT_BASED: AtomicBool = AtomicBool::new(true);

/// Whether spans say who called.
static WITH_PRINCIPAL: AtomicBool = AtomicBool::new(false);

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

/// From now on traces a share of the calls, in 1/2³²; with none no call is traced. With `parent_based` that is the share of
/// calls without a trace context, and of the others those whose client records them.
pub fn sample(share: Option<u64>, parent_based: bool, with_principal: bool) {
    WITH_PRINCIPAL.store(with_principal, Relaxed);
    PARENT_BASED.store(parent_based, Relaxed);
    SAMPLE.store(share.map_or(0, |share| share + 1), Relaxed);
}

impl CallSpan {
    /// The span of a call that begins now; none if the call is not traced.
    #[must_use]
    pub fn begin(parent: Option<&TraceParent>, call: CallId) -> Option<Arc<Self>> {
        let share = SAMPLE.load(Relaxed).checked_sub(1)?;
        let is_sampled = match parent {
            Some(parent) if PARENT_BASED.load(Relaxed) => parent.is_sampled(),
            _ => u64::from(call.chance()) < share,
        };
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
    pub(super) fn write(&self, record: &CallRecord<'_>) {
        let progress = self.progress.lock();
        push(&self.span(record, &progress));
        for (at, attempt) in progress.attempts.iter().enumerate() {
            push(&self.attempt_span(record, &progress, (at, attempt)));
        }
    }

    fn span<'a>(&'a self, record: &'a CallRecord<'_>, progress: &'a CallProgress) -> Span<'a> {
        let is_routed = record.upstream != "-";
        // What nobody serves may be called anything.
        let name = is_routed.then(|| shown(record.name)).filter(|name| !name.is_empty());
        let mut attributes = Vec::with_capacity(MOST_ATTRIBUTES);
        attributes.push(Attribute::text("mcp.method.name", record.method));
        add_target(&mut attributes, record.method, record.name);
        add_client(&mut attributes, record);
        let texts = [
            ("jsonrpc.request.id", Some(record.request)),
            ("mcp.protocol.version", progress.version.as_deref()),
            ("mcp.session.id", record.session),
            ("weir.upstream", Some(record.upstream).filter(|_| is_routed)),
            ("weir.account", record.account),
            ("weir.outcome", Some(record.outcome.text())),
            ("weir.blame", Some(record.outcome.blame())),
            ("weir.client", record.client),
            ("weir.rule", record.rule),
            ("weir.approved_by", record.approved_by),
        ];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text.filter(|text| !text.is_empty())?)));
        attributes.extend(texts.map(|(key, text)| Attribute::text(key, printable(text))));
        attributes.push(Attribute::text("weir.call_id", record.id.to_string()));
        attributes.push(Attribute::text("weir.era", record.era.text()));
        attributes.push(Attribute::number("weir.attempts", record.attempts.into()));
        let status = add_outcome(&mut attributes, record, progress);
        Span {
            trace_id: self.context.trace(),
            span_id: self.context.span(),
            parent_span_id: record.trace.map(TraceParent::span),
            name: name.map_or_else(|| record.method.to_owned(), |name| span_name(record.method, name)),
            kind: SERVER,
            start_time_unix_nano: self.start,
            end_time_unix_nano: self.start + record.took,
            attributes,
            status,
        }
    }

    fn attempt_span<'a>(
        &'a self,
        record: &'a CallRecord<'_>,
        progress: &'a CallProgress,
        (at, attempt): (usize, &'a AttemptSpan),
    ) -> Span<'a> {
        let target = progress.target.as_deref().unwrap_or_default();
        let mut attributes = Vec::with_capacity(MOST_ATTRIBUTES);
        attributes.push(Attribute::text("mcp.method.name", record.method));
        attributes.push(Attribute::text("weir.upstream", record.upstream));
        attributes.push(Attribute::number("weir.attempt", i64::try_from(at + 1).unwrap_or(i64::MAX)));
        add_target(&mut attributes, record.method, target);
        add_server(&mut attributes, progress.address.as_ref(), attempt.status);
        let status = match &attempt.failure {
            Some(AttemptFailure { kind, why }) => {
                attributes.push(Attribute::text("error.type", &**kind));
                SpanStatus::failed(Some(Cow::Borrowed(why)))
            }
            // The one that brings the answer comes to what the call comes to, unless Weir has decided that.
            None if attempt.end.is_none() && record.outcome.is_of_attempt() => {
                add_outcome(&mut attributes, record, progress)
            }
            None => SpanStatus::default(),
        };
        Span {
            trace_id: attempt.context.trace(),
            span_id: attempt.context.span(),
            parent_span_id: Some(self.context.span()),
            name: span_name(record.method, shown(target)),
            kind: CLIENT,
            start_time_unix_nano: attempt.start,
            end_time_unix_nano: attempt.end.or(progress.answered).unwrap_or(self.start + record.took),
            attributes,
            status,
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

fn push(span: &Span<'_>) {
    thread_local! {
        static JSON: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    JSON.with_borrow_mut(|json| {
        json.clear();
        match serde_json::to_writer(&mut *json, span) {
            Ok(()) => SPANS.push(Bytes::copy_from_slice(json)),
            Err(_) => SPANS.note_dropped(1),
        }
    });
}

fn message(why: &str) -> Cow<'_, str> {
    printable(&why[..why.floor_char_boundary(MESSAGE)])
}

/// The method, and what it is about where that is one of few.
fn span_name(called: &str, target: &str) -> String {
    match called {
        method::TOOLS_CALL | method::PROMPTS_GET if !target.is_empty() => format!("{called} {}", printable(target)),
        _ => called.to_owned(),
    }
}

/// What is called.
fn add_target<'a>(attributes: &mut Vec<Attribute<'a>>, called: &str, target: &'a str) {
    if called == method::TOOLS_CALL {
        attributes.push(Attribute::text("gen_ai.operation.name", "execute_tool"));
    }
    let (key, target) = match called {
        method::TOOLS_CALL => ("gen_ai.tool.name", printable(without_query(target))),
        method::PROMPTS_GET => ("gen_ai.prompt.name", printable(without_query(target))),
        method::RESOURCES_READ | method::SUBSCRIBE | method::UNSUBSCRIBE => {
            ("mcp.resource.uri", Cow::Owned(printable(&without_secrets(target)).into_owned()))
        }
        _ => return,
    };
    if !target.is_empty() {
        attributes.push(Attribute::text(key, target));
    }
}

/// Who has called, and over what.
fn add_client<'a>(attributes: &mut Vec<Attribute<'a>>, record: &'a CallRecord<'_>) {
    match record.peer {
        Some(peer) => add_peer(attributes, peer, record.status),
        None => attributes.push(Attribute::text("network.transport", "pipe")),
    }
    let principal = record.principal.filter(|_| WITH_PRINCIPAL.load(Relaxed));
    attributes.extend(principal.map(|principal| Attribute::text("user.id", principal.subject.as_str())));
}

fn add_peer(attributes: &mut Vec<Attribute<'_>>, peer: SocketAddr, status: u16) {
    attributes.push(Attribute::text("network.transport", "tcp"));
    attributes.push(Attribute::text("network.protocol.name", "http"));
    attributes.push(Attribute::text("client.address", peer.ip().to_string()));
    attributes.push(Attribute::number("client.port", peer.port().into()));
    attributes.push(Attribute::number("http.response.status_code", status.into()));
}

/// Whom an attempt was made at, and over what.
fn add_server<'a>(attributes: &mut Vec<Attribute<'a>>, address: Option<&'a (String, u16)>, status: Option<u16>) {
    let Some((host, port)) = address else {
        attributes.push(Attribute::text("network.transport", "pipe"));
        return;
    };
    attributes.push(Attribute::text("network.transport", "tcp"));
    attributes.push(Attribute::text("network.protocol.name", "http"));
    attributes.push(Attribute::text("server.address", host));
    attributes.push(Attribute::number("server.port", (*port).into()));
    attributes.extend(status.map(|status| Attribute::number("http.response.status_code", status.into())));
}

/// What a call came to.
fn add_outcome<'a>(
    attributes: &mut Vec<Attribute<'a>>,
    record: &'a CallRecord<'_>,
    progress: &'a CallProgress,
) -> SpanStatus<'a> {
    if matches!(record.outcome, CallOutcome::Ok | CallOutcome::SignIn | CallOutcome::Approval) {
        return SpanStatus::default();
    }
    let code = progress.code.filter(|_| record.outcome == CallOutcome::Error).map(|code| code.to_string());
    if let Some(code) = &code {
        attributes.push(Attribute::text("rpc.response.status_code", code.clone()));
    }
    let failed = progress.attempts.last().and_then(|attempt| attempt.failure.as_ref());
    let kind = match (code, failed) {
        (Some(code), _) => Cow::Owned(code),
        (None, Some(failure)) if record.outcome == CallOutcome::Failed => Cow::Borrowed(&*failure.kind),
        (None, _) => Cow::Borrowed(record.outcome.text()),
    };
    attributes.push(Attribute::text("error.type", kind));
    SpanStatus::failed(record.failure.map(message))
}

//! `GET /calls` and `GET /sessions`: what goes on at this moment.

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;

use crate::{
    proxy::{
        activity::{CallSummary, EndedCall},
        recorder,
    },
    session::{Session, Sessions},
};

/// How many running calls, and how many sessions, one answer lists.
const LISTED: usize = 256;

#[derive(Serialize)]
struct CallReport<'a> {
    id: String,
    upstream: Option<&'a str>,
    method: &'a str,
    name: &'a str,
    principal: Option<&'a str>,
    client: &'a str,
    session: Option<&'a str>,
    /// Since it came in.
    age_ms: u64,
    #[serde(flatten)]
    end: Option<EndReport<'a>>,
}

#[derive(Serialize)]
struct EndReport<'a> {
    outcome: &'static str,
    duration_ms: f64,
    status: u16,
    attempts: u32,
    rule: Option<&'a str>,
    error: Option<&'a str>,
    bytes_received: u64,
    bytes_sent: u64,
}

#[derive(Serialize)]
struct SessionReport<'a> {
    session: &'a str,
    client: &'a str,
    principal: Option<String>,
    endpoint: &'a str,
    version: &'a str,
    /// How many upstreams it has open.
    upstreams: usize,
    /// For how long its client has been silent; none while it has a stream open or a request running.
    idle_seconds: Option<u64>,
}

/// The calls that run, and the last ones that ended, the newest first.
pub(super) fn calls() -> Bytes {
    let (running, ended) = recorder::calls();
    let count = running.len();
    let running: Vec<_> = running.iter().take(LISTED).map(|facts| CallReport::of(facts, None)).collect();
    let ended: Vec<_> = ended.iter().map(|call| CallReport::of(&call.facts, Some(EndReport::of(call)))).collect();
    json!({ "running_count": count, "running": running, "ended": ended }).to_string().into()
}

/// The sessions of legacy clients, those used last first. The modern era has none.
pub(super) fn sessions(sessions: &Sessions) -> Bytes {
    let mut all = sessions.list();
    let count = all.len();
    // What is in use has no time at which it fell silent, and comes first.
    all.sort_by_cached_key(|session| session.idle_since().map(|since| since.elapsed()));
    let listed: Vec<_> = all.iter().take(LISTED).map(|session| SessionReport::of(session)).collect();
    json!({ "count": count, "sessions": listed }).to_string().into()
}

impl<'a> CallReport<'a> {
    fn of(facts: &'a CallSummary, end: Option<EndReport<'a>>) -> Self {
        Self {
            id: facts.id.to_string(),
            upstream: facts.upstream.as_ref().map(|name| name.as_str()),
            method: facts.method(),
            name: facts.name(),
            principal: facts.principal(),
            client: facts.client(),
            session: facts.session.as_deref(),
            age_ms: u64::try_from(facts.start.elapsed().as_millis()).unwrap_or(u64::MAX),
            end,
        }
    }
}

impl<'a> EndReport<'a> {
    fn of(call: &'a EndedCall) -> Self {
        Self {
            outcome: call.outcome.text(),
            duration_ms: (call.took.as_secs_f64() * 1e6).round() / 1e3,
            status: call.status,
            attempts: call.attempts,
            rule: call.rule.as_deref(),
            error: call.failure.as_deref(),
            bytes_received: call.received,
            bytes_sent: call.sent,
        }
    }
}

impl<'a> SessionReport<'a> {
    fn of(session: &'a Session) -> Self {
        let caller = session.caller().filter(|caller| !caller.is_local());
        Self {
            session: &session.shown,
            client: &session.client,
            principal: caller.map(|caller| caller.principal().subject.clone()),
            endpoint: session.endpoint.name(),
            version: session.version(),
            upstreams: session.channels.all().len(),
            idle_seconds: session.idle_since().map(|since| since.elapsed().as_secs()),
        }
    }
}

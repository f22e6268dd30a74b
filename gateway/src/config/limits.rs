//! What clients and upstreams may take, and how long Weir waits.

use std::{sync::Arc, time::Duration};

use crate::quota::{OwnShare, OwnShares, Shares};

use super::access::ItemPattern;

/// Who vouches for those who call with an API key. No authorization server is called so, for it is no URL with a host.
pub const API_KEY_ISSUER: &str = "weir:keys";

/// The bounds on what a client or an upstream may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body, in bytes; more is answered with 413.
    pub body: usize,
    /// How long a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// How long a kept-alive connection may stay silent.
    pub idle_timeout: Duration,
    /// How long running calls may take to finish when the gateway stops.
    pub drain: Duration,
    /// How long a legacy session may stay unused before it ends.
    pub session_idle: Duration,
    /// How long the body of a request may take, beside the time that its bytes give it.
    pub body_timeout: Duration,
    /// How many connections of clients may be open at once; each address has a principal's share. Those
    /// to an upstream are counted apart.
    pub connections: Shares,
    /// How much there may be of large request bodies at once, in bytes.
    pub body_memory: Shares,
    /// How many legacy sessions may exist at once.
    pub sessions: Shares,
    /// How many child processes may run at once.
    pub processes: Shares,
    /// How many child processes may be starting at once.
    pub concurrent_starts: usize,
    /// How many legacy sessions modern clients may share at once.
    pub pooled_sessions: Shares,
    /// How many calls may wait for their clients' input at once.
    pub pending_inputs: Shares,
    /// How many tokens may be on their way to an issuer that says what they are good for.
    pub introspections: Shares,
    /// How much is kept of the event streams of legacy sessions, in bytes.
    pub replay_buffer: Shares,
    /// How many entries a page of a merged list has.
    pub page_size: usize,
    /// The longest message of an upstream, in bytes.
    pub message: usize,
    /// How much is kept of the lists of each upstream, in bytes.
    pub list: usize,
    /// How many decisions one policy may have at once, where it may ask services.
    pub policy: PolicyLimits,
    /// How many calls may be under way to upstreams at once.
    pub calls: Shares,
    /// How many calls of one tool may be under way at once; any number if it is none.
    pub tool_calls: Option<usize>,
    /// How many streams of notifications clients may have open at once that are no session's.
    pub streams: Shares,
    /// How often calls may come.
    pub calls_per_minute: CallRates,
    /// How many calls to upstreams each principal may make in a day of UTC; any number if it is none.
    pub calls_per_day: Option<usize>,
    /// How often one caller may call one tool with the same arguments in each `repeated_window`; as often as it likes if it
    /// is none.
    pub repeated_calls: Option<usize>,
    /// See `repeated_calls`.
    pub repeated_window: Duration,
    /// The numbers of those who have others than the rest of their kind.
    pub own: NamedLimits,
}

/// Those who have numbers of their own, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedLimits {
    /// API keys, by what stands for their principals.
    pub keys: Vec<OwnLimits<Arc<str>>>,
    /// Upstreams, by name.
    pub upstreams: Vec<OwnLimits<Arc<str>>>,
    /// Tools, each by itself; the first pattern that matches counts.
    pub tools: Vec<OwnLimits<ItemPattern>>,
}

/// Which numbers somebody has instead of those of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnLimits<T> {
    /// Who has them.
    pub whose: T,
    /// The table of the configuration that says so.
    pub table: String,
    /// The numbers.
    pub numbers: OwnNumbers,
}

/// The numbers of one; none where it has that of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnNumbers {
    /// Calls under way.
    pub calls: Option<usize>,
    /// Requests in a minute.
    pub requests_per_minute: Option<usize>,
    /// Calls in a minute.
    pub calls_per_minute: Option<usize>,
    /// Calls in a day of UTC.
    pub calls_per_day: Option<usize>,
    /// Streams of notifications.
    pub streams: Option<usize>,
    /// Child processes.
    pub processes: Option<usize>,
}

/// What stands for whoever calls with the API key of this name.
#[must_use]
pub fn key_principal(name: &str) -> Arc<str> {
    [API_KEY_ISSUER, name].join("\n").into()
}

/// One number of those that have it, as a quota or a rate takes it.
pub fn own_shares<T: Clone, C: FromIterator<(T, OwnShare)>>(
    all: &[OwnLimits<T>],
    name: &str,
    one: impl Fn(&OwnNumbers) -> Option<usize>,
) -> C {
    let share = |own: &OwnLimits<T>| {
        let key = format!("{}.{name}", own.table).into();
        Some((own.whose.clone(), OwnShare { limit: one(&own.numbers)?, key }))
    };
    all.iter().filter_map(share).collect()
}

impl NamedLimits {
    /// One number of all that a quota tells apart.
    pub fn shares(&self, name: &str, one: impl Fn(&OwnNumbers) -> Option<usize>) -> OwnShares {
        OwnShares { principals: own_shares(&self.keys, name, &one), upstreams: own_shares(&self.upstreams, name, &one) }
    }
}

impl Limits {
    /// These with those of `new` that can come into force while Weir serves, and the keys of the others that differ.
    #[must_use]
    pub fn reloaded(&self, new: &Self) -> (Self, Vec<&'static str>) {
        let next = Self {
            body: new.body,
            header_timeout: new.header_timeout,
            idle_timeout: new.idle_timeout,
            drain: new.drain,
            body_timeout: new.body_timeout,
            connections: Shares { upstream: self.connections.upstream, ..new.connections },
            body_memory: new.body_memory,
            concurrent_starts: new.concurrent_starts,
            introspections: new.introspections,
            replay_buffer: new.replay_buffer,
            list: new.list,
            session_idle: new.session_idle,
            sessions: new.sessions,
            processes: new.processes,
            pooled_sessions: new.pooled_sessions,
            pending_inputs: new.pending_inputs,
            page_size: new.page_size,
            calls: new.calls,
            tool_calls: new.tool_calls,
            streams: new.streams,
            calls_per_minute: new.calls_per_minute,
            calls_per_day: new.calls_per_day,
            own: new.own.clone(),
            repeated_calls: new.repeated_calls,
            repeated_window: new.repeated_window,
            ..self.clone()
        };
        let rest = [
            ("limits.upstream.connections", self.connections.upstream == new.connections.upstream),
            ("limits.message", self.message == new.message),
            ("limits.policy", self.policy == new.policy),
        ];
        (next, rest.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect())
    }
}

/// How many calls may come in a minute; any number where it is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallRates {
    /// Requests of each principal, those that Weir answers itself included.
    pub requests: Option<usize>,
    /// From each principal.
    pub principal: Option<usize>,
    /// To each upstream.
    pub upstream: Option<usize>,
    /// Of each tool.
    pub tool: Option<usize>,
}

/// How many decisions one policy may have at once, where it may ask services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyLimits {
    /// Those that run.
    pub running: usize,
    /// Those that are queued.
    pub queued: usize,
}

/// How long to wait for an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For the answer to `initialize` or `server/discover` over HTTP, in each attempt.
    pub initialize: Duration,
    /// Between two reads of an answer.
    pub read: Duration,
    /// For a whole call, all attempts together.
    pub overall: Duration,
    /// For a call that reports progress, which puts off the end of `overall`.
    pub progress: Duration,
    /// For its part in a list of all upstreams.
    pub list: Duration,
    /// For a process from its start to its first answer.
    pub start: Duration,
    /// For the answer to a probe.
    pub probe: Duration,
    /// From one probe to the next.
    pub probe_interval: Duration,
}

impl Timeouts {
    /// For a whole call, whether it reports progress or not.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.overall.max(self.progress)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 4 << 20,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(10),
            session_idle: Duration::from_secs(30 * 60),
            connections: Shares { total: 16_384, principal: 4096, upstream: 8192 },
            body_memory: Shares { total: 512 << 20, principal: 128 << 20, upstream: usize::MAX },
            sessions: Shares { total: 10_000, principal: 2500, upstream: usize::MAX },
            processes: Shares { total: 500, principal: 100, upstream: 250 },
            concurrent_starts: 4,
            pooled_sessions: Shares { total: 1000, principal: 250, upstream: 500 },
            pending_inputs: Shares { total: 1000, principal: 100, upstream: 500 },
            introspections: Shares { total: 64, principal: 16, upstream: usize::MAX },
            replay_buffer: Shares { total: 64 << 20, principal: 16 << 20, upstream: usize::MAX },
            page_size: 1000,
            message: 32 << 20,
            list: 8 << 20,
            policy: PolicyLimits::default(),
            calls: Shares { total: 16_384, principal: 4096, upstream: 8192 },
            tool_calls: None,
            streams: Shares { total: 16_384, principal: 4096, upstream: 8192 },
            calls_per_minute: CallRates::default(),
            calls_per_day: None,
            repeated_calls: None,
            repeated_window: Duration::from_secs(60),
            own: NamedLimits::default(),
        }
    }
}

impl Default for PolicyLimits {
    fn default() -> Self {
        Self { running: 16, queued: 256 }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            initialize: Duration::from_secs(10),
            read: Duration::from_secs(60),
            overall: Duration::from_secs(5 * 60),
            progress: Duration::from_secs(60 * 60),
            list: Duration::from_secs(5),
            start: Duration::from_secs(2 * 60),
            probe: Duration::from_secs(10),
            probe_interval: Duration::from_secs(30),
        }
    }
}

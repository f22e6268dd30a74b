//! The bounds on what clients and upstreams may take, and who has numbers of their own.

use std::sync::Arc;

use super::account;
use super::context::Context;
use crate::config::access::ItemPattern;
use crate::config::quantity::{Period, Size};
use crate::config::read::{At, Setting};
use crate::config::value::Count;
use crate::config::written::{self, Root};
use crate::config::{
    CallRates, Limits, NamedLimits, OwnLimits, OwnNumbers, PolicyLimits, UpstreamConfig, key_principal,
};

/// How many keys, and how many patterns of tools, may have numbers of their own.
const MOST_NAMED: usize = 1000;

/// A total and the shares that are named, each with its default where it is not written.
macro_rules! shares {
    ($kind:ident, $written:ident.$name:ident, $default:ident $(, $share:ident)*) => {{
        let mut shares = $default.$name;
        shares.total = $written.$name.or($kind(shares.total)).0;
        $(if let Some(at) = $written.$share.set() {
            shares.$share = at.value.$name.or($kind(shares.$share)).0;
        })*
        shares
    }};
}

pub(super) fn limits(root: &Root, upstreams: &[UpstreamConfig], context: &mut Context<'_, '_>) -> Limits {
    let own = own(root, upstreams, context);
    let default = Limits { own, ..Limits::default() };
    let Some(written) = root.limits.set().map(|at| &at.value) else {
        return default;
    };
    let policy = written.policy.set().map_or(default.policy, |at| PolicyLimits {
        running: at.value.running.or(Count(default.policy.running)).0,
        queued: at.value.queued.or(Count(default.policy.queued)).0,
    });
    macro_rules! optional {
        ($share:ident, $name:ident) => {
            written.$share.set().and_then(|at| at.value.$name.set()).map(|at| at.value.0)
        };
    }
    let calls_per_minute = CallRates {
        requests: optional!(principal, requests_per_minute),
        principal: optional!(principal, calls_per_minute),
        upstream: optional!(upstream, calls_per_minute),
        tool: optional!(tool, calls_per_minute),
    };
    Limits {
        calls: shares!(Count, written.calls, default, principal, upstream),
        tool_calls: optional!(tool, calls),
        streams: shares!(Count, written.streams, default, principal, upstream),
        calls_per_minute,
        calls_per_day: optional!(principal, calls_per_day),
        repeated_calls: written.repeated_calls.set().map(|at| at.value.0),
        repeated_window: written.repeated_window.or(Period(default.repeated_window)).0,
        body: written.body.or(Size(default.body)).0,
        body_timeout: written.body_timeout.or(Period(default.body_timeout)).0,
        connections: shares!(Count, written.connections, default, principal, upstream),
        processes: shares!(Count, written.processes, default, principal, upstream),
        pooled_sessions: shares!(Count, written.pooled_sessions, default, principal, upstream),
        pending_inputs: shares!(Count, written.pending_inputs, default, principal, upstream),
        introspections: shares!(Count, written.introspections, default, principal),
        header_timeout: written.header_timeout.or(Period(default.header_timeout)).0,
        idle_timeout: written.idle_timeout.or(Period(default.idle_timeout)).0,
        drain: written.drain.or(Period(default.drain)).0,
        session_idle: written.session_idle.or(Period(default.session_idle)).0,
        concurrent_starts: written.concurrent_starts.or(Count(default.concurrent_starts)).0,
        sessions: shares!(Count, written.sessions, default, principal),
        body_memory: shares!(Size, written.body_memory, default, principal),
        replay_buffer: shares!(Size, written.replay_buffer, default, principal),
        page_size: written.page_size.or(Count(default.page_size)).0,
        message: written.message.or(Size(default.message)).0,
        list: written.list.or(Size(default.list)).0,
        policy,
        own: default.own,
    }
}

fn own(root: &Root, upstreams: &[UpstreamConfig], context: &mut Context<'_, '_>) -> NamedLimits {
    let limits = root.limits.set().map(|at| &at.value);
    let keys = limits.and_then(|limits| limits.keys.set());
    if let Some(at) = keys.filter(|_| !root.api_keys.or(false)) {
        let hint = "api_keys = true".to_owned();
        context.report.add(at.key.clone(), "`limits.keys` needs API keys, and none are accepted", Some(hint));
    }
    let key = |(name, at): &(String, At<written::KeyLimits>)| {
        let written = &at.value;
        let numbers = OwnNumbers {
            calls: count(&written.calls),
            requests_per_minute: count(&written.requests_per_minute),
            calls_per_minute: count(&written.calls_per_minute),
            calls_per_day: count(&written.calls_per_day),
            streams: count(&written.streams),
            processes: count(&written.processes),
        };
        OwnLimits { whose: key_principal(name), table: format!("limits.keys.{name}"), numbers }
    };
    let keys: Vec<_> = keys.map_or(&[][..], |at| &at.value.0).iter().map(key).collect();
    let written = limits.and_then(|limits| limits.tools.set()).map_or(&[][..], |at| &at.value.0);
    let mut tools = Vec::new();
    for (text, at) in written {
        match text.parse::<ItemPattern>() {
            Ok(pattern) => {
                let written::OwnToolLimits { calls, calls_per_minute } = &at.value;
                let [calls, calls_per_minute] = [calls, calls_per_minute].map(count);
                let numbers = OwnNumbers { calls, calls_per_minute, ..OwnNumbers::default() };
                let whose = account::item(pattern, upstreams);
                tools.push(OwnLimits { whose, table: format!("limits.tools.\"{text}\""), numbers });
            }
            Err(why) => context.report.add(at.key.clone(), why.message, Some(why.hint.into_owned())),
        }
    }
    if let Some(at) = root.limits.set().filter(|_| keys.len().max(tools.len()) > MOST_NAMED) {
        let message = format!("over {MOST_NAMED} keys or patterns have limits of their own");
        context.report.add(at.key.clone(), message, None);
    }
    NamedLimits { keys, upstreams: of_upstreams(root, upstreams), tools }
}

/// Each account of a service has what its upstream says.
fn of_upstreams(root: &Root, upstreams: &[UpstreamConfig]) -> Vec<OwnLimits<Arc<str>>> {
    let written = root.upstreams.set().map_or(&[][..], |at| &at.value.0);
    let own = |upstream: &UpstreamConfig| {
        let name = upstream.account.as_ref().map_or(&upstream.name, |account| &account.service);
        let (_, at) = written.iter().find(|(written, _)| written == name.as_str())?;
        let written::WrittenOwnLimits { calls, calls_per_minute, streams, processes } = &at.value.limits.set()?.value;
        let [calls, calls_per_minute, streams, processes] = [calls, calls_per_minute, streams, processes].map(count);
        let numbers = OwnNumbers { calls, calls_per_minute, streams, processes, ..OwnNumbers::default() };
        Some(OwnLimits { whose: upstream.name.as_str().into(), table: format!("upstreams.{name}.limits"), numbers })
    };
    upstreams.iter().filter_map(own).collect()
}

fn count(written: &Setting<Count>) -> Option<usize> {
    written.set().map(|at| at.value.0)
}

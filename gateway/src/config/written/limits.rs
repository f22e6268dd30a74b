//! The bounds on what clients and upstreams may take.

use crate::config::quantity::{Period, Size};
use crate::config::read::table;
use crate::config::value::{Count, NamedValues};

table! {
    /// The bounds on what clients and upstreams may take. A reload puts them in force, but for `message`, `policy`
    /// and `upstream.connections`, which need a restart.
    #[schemars(rename = "Limits")]
    struct WrittenLimits("a table") {
        /// The largest request body. Default: `"4MiB"`.
        body: Size,
        /// How long a client may take to send the head of a request. Default: `"10s"`.
        header_timeout: Period,
        /// How long a client may take to send the body of a request; each 8 KiB that come give it one second more.
        /// Default: `"30s"`.
        body_timeout: Period,
        /// How long a kept-alive connection may stay silent. Default: `"60s"`.
        idle_timeout: Period,
        /// How long running calls may take to finish when Weir stops. Default: `"10s"`.
        drain: Period,
        /// How many connections of clients may be open at once; each request over HTTP/2 counts as one more. Fewer where
        /// the system's limit of open files is low: three eighths of that are left for upstreams. Default: 16384.
        connections: Count,
        /// How many calls may be under way to upstreams at once. More are answered with 503. Default: 16384.
        calls: Count,
        /// How many streams of notifications (`subscriptions/listen`) may be open at once. Default: 16384.
        streams: Count,
        /// How often one caller may call one tool with the same arguments within `repeated_window`. Beyond that the
        /// model is told that it repeats itself. Default: as often as it likes.
        repeated_calls: Count,
        /// See `repeated_calls`. Default: `"1m"`.
        repeated_window: Period,
        /// How much memory the bodies of requests may take together, of those over 64 KiB. Default: `"512MiB"`.
        body_memory: Size,
        /// How long a session may stay unused before it ends. Default: `"30m"`.
        session_idle: Period,
        /// How many sessions may exist at once. Default: 10000.
        sessions: Count,
        /// How many child processes may run at once. Default: 500.
        processes: Count,
        /// How many sessions at legacy upstreams modern clients may share at once. Default: 1000.
        pooled_sessions: Count,
        /// How many calls may wait for their clients' input at once. Default: 1000.
        pending_inputs: Count,
        /// How many tokens may be checked by introspection at once. Default: 64.
        introspections: Count,
        /// How many child processes may be starting at once; others wait for their turn. Default: 4.
        concurrent_starts: Count,
        /// How much of the event streams of all sessions is kept for clients that lose their connection and come back;
        /// a sixteenth of it for each session at most. Default: `"64MiB"`.
        replay_buffer: Size,
        /// How many tools, prompts, resources or templates `/mcp` puts on one page of a list. Default: 1000.
        page_size: Count,
        /// The longest message that an upstream may send, on any transport. A longer one fails its call.
        /// Default: `"32MiB"`.
        message: Size,
        /// How much is kept of the lists of each upstream, all kinds together; what is beyond is left out.
        /// Default: `"8MiB"`.
        list: Size,
        /// How much of each total one principal may take. Without `auth` each address is one.
        principal: PrincipalLimits,
        /// How much of each total one upstream may take.
        upstream: UpstreamLimits,
        /// How often one tool of one upstream may be called, whoever calls it.
        tool: ToolLimits,
        /// API keys that may take another number than each principal, by name.
        keys: NamedValues<KeyLimits>,
        /// Tools that may be called another number of times than each tool, by pattern: `"github__create_*"`. Each tool
        /// counts by itself; the first pattern that matches counts.
        tools: NamedValues<OwnToolLimits>,
        /// How many decisions of one policy may wait for a service that it asks (the grant `"http"`).
        policy: WrittenPolicyLimits,
    }

    /// How much of each total one principal may take. Without `auth` each address is one.
    struct PrincipalLimits("a table such as { sessions = 2500 }") {
        /// Connections from one address, whoever calls. Default: 4096.
        connections: Count,
        /// Requests in a minute, those that Weir answers itself included, such as lists; as many at once, then evenly. More
        /// are answered with 429. Default: any number.
        requests_per_minute: Count,
        /// Calls under way to upstreams. Default: 4096.
        calls: Count,
        /// Calls to upstreams in a minute; as many at once, then evenly. More are answered with 429. Default: any number.
        calls_per_minute: Count,
        /// Calls to upstreams in a day of UTC, counted in the login store, so that a restart changes nothing. More are
        /// answered with 429. Default: any number.
        calls_per_day: Count,
        /// Streams of notifications. Default: 4096.
        streams: Count,
        /// Bodies of requests. Default: `"128MiB"`.
        body_memory: Size,
        /// Sessions. Default: 2500.
        sessions: Count,
        /// Child processes. Default: 100.
        processes: Count,
        /// Shared sessions at legacy upstreams. Default: 250.
        pooled_sessions: Count,
        /// Calls that wait for input. Default: 100.
        pending_inputs: Count,
        /// Tokens that are checked by introspection, from one address. Default: 16.
        introspections: Count,
        /// What is kept of event streams. Default: `"16MiB"`.
        replay_buffer: Size,
    }

    /// How much of each total one upstream may take.
    struct UpstreamLimits("a table such as { processes = 250 }") {
        /// Connections to it that are in use. Default: 8192.
        connections: Count,
        /// Calls under way to it. Default: 8192.
        calls: Count,
        /// Calls to it in a minute; as many at once, then evenly. More are answered with 503. Default: any number.
        calls_per_minute: Count,
        /// Streams of notifications at `/mcp/<upstream>`. Default: 8192.
        streams: Count,
        /// Child processes. Default: 250.
        processes: Count,
        /// Shared sessions of modern clients. Default: 500.
        pooled_sessions: Count,
        /// Calls that wait for input. Default: 500.
        pending_inputs: Count,
    }

    /// How often one tool of one upstream may be called, whoever calls it.
    struct ToolLimits("a table such as { calls_per_minute = 60 }") {
        /// Calls under way. Default: any number.
        calls: Count,
        /// Calls in a minute; as many at once, then evenly. More are answered with 503. Default: any number.
        calls_per_minute: Count,
    }

    /// How many decisions of one policy may wait for a service that it asks (the grant `"http"`).
    #[schemars(rename = "PolicyLimits")]
    struct WrittenPolicyLimits("a table such as { running = 32 }") {
        /// Decisions that run at once; 64 of all such policies together. Default: 16.
        running: Count,
        /// Decisions that are queued behind those. Default: 256.
        queued: Count,
    }

    /// What callers with one API key may take, instead of what `limits.principal` says of each principal.
    struct KeyLimits("a table such as { calls_per_minute = 60 }") {
        /// Requests in a minute, those that Weir answers itself included; as many at once, then evenly.
        requests_per_minute: Count,
        /// Calls under way to upstreams.
        calls: Count,
        /// Calls to upstreams in a minute; as many at once, then evenly.
        calls_per_minute: Count,
        /// Calls to upstreams in a day of UTC.
        calls_per_day: Count,
        /// Streams of notifications.
        streams: Count,
        /// Child processes.
        processes: Count,
    }

    /// What one upstream may take, instead of what `limits.upstream` says of each.
    #[schemars(rename = "OwnLimits")]
    struct WrittenOwnLimits("a table such as { calls = 10 }") {
        /// Calls under way to it.
        calls: Count,
        /// Calls to it in a minute; as many at once, then evenly.
        calls_per_minute: Count,
        /// Streams of notifications at `/mcp/<upstream>`.
        streams: Count,
        /// Child processes.
        processes: Count,
    }

    /// How often each tool that a pattern matches may be called, instead of what `limits.tool` says of each.
    struct OwnToolLimits("a table such as { calls = 1 }") {
        /// Calls under way, streams of answers included.
        calls: Count,
        /// Calls in a minute; as many at once, then evenly.
        calls_per_minute: Count,
    }
}

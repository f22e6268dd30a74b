//! Weir: one address for all of a team's MCP servers.
//!
//! # The way of a call
//!
//! 1. [`server`] reads the head, checks Host and Origin, authenticates the caller, and reads the body within limits. It
//!    makes a [`proxy::RequestContext`]: principal, client era, endpoint, session, message.
//! 2. `weir_mcp` scans the envelope once. Arguments and results stay the bytes that came in: Weir splices what it owns
//!    (names, ids, tokens) and never renders anew what it does not. Numbers keep their digits, keys their order, and
//!    unknown fields and methods pass through. The same scan and the headers tell the client's era.
//! 3. A legacy client enters through [`session`], which adds what its session remembers. The stateless call is the
//!    spine; the session is an adapter.
//! 4. `proxy::route` turns the public name into an upstream of the [`snapshot`] and its own name, as [`catalog`] knows
//!    them. What nobody lists still goes to the upstream that the name begins with; any other name is an unknown tool.
//!    From here on the call holds its upstream.
//! 5. `Proxy::authorize` asks the rules of [`access`]: **the only place where a call is refused by a rule.** The same rules
//!    decide what [`catalog`] lists. Then [`admission`] takes what the limits allow, and gives it back when the call is over.
//!    If a rule wants a person to approve the call, `Proxy::approve` asks one, and lets approved calls go on.
//! 6. `Proxy::decide` asks the upstream's `calls` policies, if it has any: **the only place where a policy refuses or changes
//!    a request.** With `mode = "beside"` one decides in `proxy::beside` while the upstream works. What they want to see of the
//!    answer passes `proxy::decided_answer` on its way back.
//! 7. `proxy::drive` chooses the codec by the eras of client and upstream, in one `match`. Then one loop over
//!    [`weir_flow::call`] takes the request to its reply: credential, channel, attempt, outcome, and again. **This is the
//!    only place where a call is repeated or lost.** Which credential and which channel is decided by components in
//!    [`policy`]. Their answers are cached, so a call in the steady state asks no policy.
//! 8. [`upstream`] places the credential and sends the request, over [`http`] or to a child process.
//! 9. The answer is a stream of messages. `proxy::namespace` gives what is in it a public name: the only place where an
//!    answer of the same era is changed. Between the eras `proxy::translate` changes requests and answers.
//! 10. [`server`] encodes the answer: JSON, events or lines. After its first byte nothing is tried again.
//! 11. [`telemetry`] counts the call, writes one line, and a record of the audit log.
//!
//! A call that needs a login of its caller says where to sign in, and goes on when that is done ([`credential`],
//! [`sign_in_links`]).
//!
//! Each module uses only those before it in the list below; a test keeps it so.

pub mod counters;
pub mod quota;
pub mod rate;
pub mod open_files;
pub mod task;
pub mod config;
pub mod access;
pub mod admission;
pub mod caller;
pub mod telemetry;
pub mod components;
pub mod policy;
pub mod http;
pub mod otlp;
pub mod audit_export;
pub mod telemetry_export;
pub mod credential;
pub mod replica;
pub mod upstream;
pub mod snapshot;
pub mod sealed_state;
pub mod catalog;
pub mod session;
pub mod sign_in_links;
pub mod proxy;
pub mod server;
pub mod stdio_server;
pub mod demo;
pub mod cli;

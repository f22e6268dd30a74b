//! Weir: one address for all of a team's MCP servers.
//!
//! # The way of a call
//!
//! 1. [`server`] reads the head, checks Host and Origin, finds out who calls ([`caller`]), caps and reads the body.
//! 2. `weir_mcp` scans the envelope once. Arguments and results stay the bytes that came in: Weir splices what it owns
//!    (names, ids, tokens) and never renders anew what it does not, so numbers keep their digits, keys their order, and
//!    unknown fields and methods pass through. The same scan and the headers tell the client's era.
//! 3. A legacy client enters through [`session`], which adds what its session remembers. The stateless call is the
//!    spine; the session is an adapter.
//! 4. [`catalog`] turns the public name into an upstream and its own name. What nobody lists still goes to the upstream
//!    that the name begins with, which may have it for some clients only; any other name is an unknown tool.
//! 5. [`proxy`] drives one [`weir_flow::Call`]: credential, connection, attempt, outcome, and again, until it may
//!    deliver. Which credential and which connection is decided by components in [`policy`]; their answers are kept, so
//!    a call in the steady state asks nobody. A call can be refused before the attempt, repeated where that is safe,
//!    and lost only with an error that says so. One that needs a login of its caller says where to sign in, and goes on
//!    when that is done ([`credential`], [`sign_in_links`]).
//! 6. [`upstream`] sends it, over [`http`] or to a child process.
//! 7. [`server`] streams the answer. After its first byte there is no way back.
//! 8. [`telemetry`] writes one line.
//!
//! Each module uses only those before it in the list below; a test keeps it so.

pub mod quota;
pub mod open_files;
pub mod task;
pub mod config;
pub mod caller;
pub mod telemetry;
pub mod policy;
pub mod http;
pub mod credential;
pub mod upstream;
pub mod sealed_state;
pub mod catalog;
pub mod session;
pub mod sign_in_links;
pub mod proxy;
pub mod server;
pub mod demo;
pub mod cli;

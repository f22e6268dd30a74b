//! The harness: a gateway on a free port, real servers and clients around it, and clients of our own that can
//! misbehave in ways that real ones cannot.
//!
//! Nothing here uses the gateway's crates. What the tests take for right is written down once more, from the
//! specification, so that a mistake in the gateway is not repeated by its tests.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a harness that cannot go on fails the test it serves")]

pub mod authority;
pub mod balancer;
pub mod bridge;
pub mod browser;
pub mod chromium;
pub mod client;
pub mod collector;
pub mod cutter;
pub mod drill;
pub mod driver;
pub mod events;
pub mod gateway;
pub mod hostile;
pub mod http;
pub mod issuer;
pub mod matrix;
pub mod paths;
pub mod peer;
pub mod process;
pub mod redis;
pub mod remote;
pub mod screen;
pub mod restart;
pub mod soak;
pub mod sse;
pub mod stub;
pub mod suite;
pub mod terminal;
pub mod tokens;
mod verify;
pub mod wait;

pub use authority::Authority;
pub use bridge::Bridge;
pub use browser::Browser;
pub use client::{Client, LEGACY, MODERN};
pub use gateway::Gateway;
pub use http::{Request, Response};
pub use issuer::Issuer;
pub use peer::Peer;
pub use stub::Stub;

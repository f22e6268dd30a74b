//! Policies as the gateway meets them: the shipped ones, and guests that mean harm.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may stop at the first surprise")]

#[path = "policy/bench.rs"]
mod bench;
#[path = "policy/fuzz.rs"]
mod fuzz;
#[path = "policy/hostile.rs"]
mod hostile;
#[path = "policy/load.rs"]
mod load;
#[path = "policy/shipped.rs"]
mod shipped;

//! What wit-bindgen makes of `wit/policy.wit`: one module for each world that a policy may implement, with the same types.
//!
//! It is kept as text: the macro that would make it takes half a minute to build. `tests/bindings.rs` holds it to the
//! contract, and writes it anew with `UPDATE=1`.

#![allow(unsafe_code, reason = "generated code crosses the component boundary")]
#![allow(missing_docs, unreachable_pub, unused_qualifications, reason = "generated code")]
#![allow(clippy::all, clippy::use_self, clippy::unwrap_used, reason = "generated code")]
#![allow(clippy::allow_attributes_without_reason, reason = "generated code")]

/// The world `calls-policy`.
#[rustfmt::skip]
pub mod calls;

/// The world `connection-policy`, and the capabilities.
#[rustfmt::skip]
pub mod connection;

/// The world `credentials-policy`.
#[rustfmt::skip]
pub mod credentials;

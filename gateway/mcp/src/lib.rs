//! The Model Context Protocol as bytes: what a message is, where it may be touched, and which rules it must keep.
//!
//! Pure: no I/O, no clock, no async. Everything here is a function from bytes to facts or from facts to bytes. A message
//! is scanned once ([`Message`]) and from then on only spliced; nothing is ever rendered anew.

pub mod answer;
pub mod classify;
pub mod cursor;
pub mod era;
pub mod headers;
pub mod json;
mod list_kind;
pub mod message;
pub mod method;
pub mod mirrored;
pub mod public;
pub mod sse;
pub mod status;
pub mod translate;

pub use classify::{Claims, Rejection, classify};
pub use era::Era;
pub use list_kind::ListKind;
pub use message::{Edit, Field, InboundRequest, Kind, Message, Object, ParseError, Reference};

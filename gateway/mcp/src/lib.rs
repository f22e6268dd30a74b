//! The Model Context Protocol as bytes: what a message is, where it may be touched, and which rules it must keep.
//!
//! Pure: no I/O, no clock, no async. Everything here is a function from bytes to facts or from facts to bytes.

pub mod era;

pub use era::Era;

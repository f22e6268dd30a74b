//! What several tests need, and what is about the crate as a whole.

mod panics;
pub(crate) mod scripted;

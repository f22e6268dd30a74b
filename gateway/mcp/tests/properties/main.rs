//! Properties that hold for any input, and the seeds of the fuzz targets run as ordinary tests.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail where it stands")]

mod generate;
mod json;
mod seeds;
mod splice;
mod sse;

//! The components that the binary carries; the normal build makes them from `guest/policies`.

/// Decides how an upstream is reached: Streamable HTTP first, then what the answers point to.
pub const FALLBACK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fallback.wasm"));

/// Places the secret called `token` in `Authorization: Bearer`.
pub const BEARER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bearer.wasm"));

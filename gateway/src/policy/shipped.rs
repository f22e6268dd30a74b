//! The components that the binary carries; the normal build makes them from `guest/policies`.

/// Decides how an upstream is reached: Streamable HTTP first, then what the answers point to.
pub const FALLBACK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fallback.wasm"));

/// Places the secret called `token` in `Authorization: Bearer`.
pub const BEARER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bearer.wasm"));

/// Decides when a token of an authorization server is used, renewed or fetched anew.
pub const OAUTH: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/oauth.wasm"));

/// Those that decide about calls, by the names that follow `weir:` in the configuration.
pub const CALLS: [(&str, &[u8]); 0] = [];

/// What those are called that nobody has to name.
pub const NAMES: [&str; 3] = ["fallback", "bearer", "oauth"];

//! The components that the binary carries; the normal build makes them from `guest/policies`.

use thiserror::Error;

use crate::config::similar_word;

/// Decides how an upstream is reached: Streamable HTTP first, then what the answers point to.
pub const FALLBACK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fallback.wasm"));

/// Places the secret called `token` in `Authorization: Bearer`.
pub const BEARER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bearer.wasm"));

/// Decides when a token of an authorization server is used, renewed or fetched anew.
pub const OAUTH: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/oauth.wasm"));

/// How those are told from files that somebody has to name.
pub use crate::config::SHIPPED as PREFIX;

/// Those that decide about calls, by the names that follow the [`PREFIX`].
pub const CALLS: [(&str, &[u8]); 5] = [
    ("interceptor", include_bytes!(concat!(env!("OUT_DIR"), "/interceptor.wasm"))),
    ("pin", include_bytes!(concat!(env!("OUT_DIR"), "/pin.wasm"))),
    ("redact", include_bytes!(concat!(env!("OUT_DIR"), "/redact.wasm"))),
    ("schema", include_bytes!(concat!(env!("OUT_DIR"), "/schema.wasm"))),
    ("shape", include_bytes!(concat!(env!("OUT_DIR"), "/shape.wasm"))),
];

/// Those that decide where nobody has named one.
const UNNAMED: [(&str, &[u8]); 3] = [("fallback", FALLBACK), ("bearer", BEARER), ("oauth", OAUTH)];

/// What those are called that nobody has to name.
pub const NAMES: [&str; 3] = ["fallback", "bearer", "oauth"];

/// No component that the binary carries has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no policy `{PREFIX}{name}`; {}", hint(name))]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
}

/// The component that follows the [`PREFIX`] under this name.
///
/// # Errors
///
/// If there is none.
pub fn by_name(name: &str) -> Result<&'static [u8], UnknownPolicy> {
    let found = CALLS.iter().find(|(known, _)| *known == name);
    found.map(|(_, wasm)| *wasm).ok_or_else(|| UnknownPolicy { name: name.to_owned() })
}

/// The same among all, for those who look into them.
///
/// # Errors
///
/// If there is none.
pub fn any_by_name(name: &str) -> Result<&'static [u8], UnknownPolicy> {
    let unnamed = UNNAMED.iter().find(|(known, _)| *known == name);
    unnamed.map_or_else(|| by_name(name), |(_, wasm)| Ok(*wasm))
}

fn hint(name: &str) -> String {
    match similar_word(name, CALLS.iter().map(|(name, _)| *name)) {
        Some(near) => format!("did you mean `{PREFIX}{near}`?"),
        None => {
            let known = CALLS.iter().map(|(name, _)| format!("`{PREFIX}{name}`"));
            format!("there are {}", known.collect::<Vec<_>>().join(", "))
        }
    }
}

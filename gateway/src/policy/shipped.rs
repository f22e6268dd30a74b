//! The components that the binary carries; the normal build makes them from `guest/policies`.

use std::{io::Read, sync::OnceLock};

use flate2::read::GzDecoder;
use thiserror::Error;

use crate::config::similar_word;

/// A component that the binary carries compressed: few gateways use them all.
#[derive(Debug)]
pub struct ShippedComponent {
    compressed: &'static [u8],
    wasm: OnceLock<Vec<u8>>,
}

macro_rules! shipped {
    ($name:literal) => {
        ShippedComponent {
            compressed: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".wasm.gz")),
            wasm: OnceLock::new(),
        }
    };
}

impl ShippedComponent {
    /// Its bytes.
    pub fn wasm(&self) -> &[u8] {
        self.wasm.get_or_init(|| {
            let mut wasm = Vec::new();
            // What the build has compressed comes out again, as a test shows for each. Half a component is none.
            if GzDecoder::new(self.compressed).read_to_end(&mut wasm).is_err() {
                wasm.clear();
            }
            wasm
        })
    }
}

/// Decides how an upstream is reached: Streamable HTTP first, then what the answers point to.
pub static FALLBACK: ShippedComponent = shipped!("fallback");

/// Places the secret called `token` in `Authorization: Bearer`.
pub static BEARER: ShippedComponent = shipped!("bearer");

/// Decides when a token of an authorization server is used, renewed or fetched anew.
pub static OAUTH: ShippedComponent = shipped!("oauth");

/// How those are told from files that somebody has to name.
pub use crate::config::SHIPPED as PREFIX;

/// Those that decide about calls, by the names that follow the [`PREFIX`].
static CALLS: [(&str, ShippedComponent); 5] = [
    ("interceptor", shipped!("interceptor")),
    ("pin", shipped!("pin")),
    ("redact", shipped!("redact")),
    ("schema", shipped!("schema")),
    ("shape", shipped!("shape")),
];

/// Those that decide where nobody has named one.
const UNNAMED: [(&str, &ShippedComponent); 3] = [("fallback", &FALLBACK), ("bearer", &BEARER), ("oauth", &OAUTH)];

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
    found.map(|(_, component)| component.wasm()).ok_or_else(|| UnknownPolicy { name: name.to_owned() })
}

/// The same among all, for those who look into them.
///
/// # Errors
///
/// If there is none.
pub fn any_by_name(name: &str) -> Result<&'static [u8], UnknownPolicy> {
    let unnamed = UNNAMED.iter().find(|(known, _)| *known == name);
    unnamed.map_or_else(|| by_name(name), |(_, component)| Ok(component.wasm()))
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

#[cfg(test)]
mod tests {
    use super::{CALLS, NAMES, any_by_name};

    #[test]
    fn each_is_a_component_under_its_name() {
        for name in NAMES.into_iter().chain(CALLS.iter().map(|(name, _)| *name)) {
            let wasm = any_by_name(name);
            assert!(wasm.is_ok_and(|wasm| wasm.starts_with(b"\0asm")), "{name}");
        }
    }
}

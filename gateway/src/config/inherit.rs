//! Which of Weir's own environment variables a program inherits.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::Environment;

/// The variable that has the key of the login store unless the configuration names another.
pub(super) const STORE_KEY: &str = "WEIR_STORE_KEY";

/// The variable that has the password of a shared store unless the configuration names another.
pub(super) const STORE_PASSWORD: &str = "WEIR_STORE_PASSWORD";

/// What each child inherits, as with the MCP SDKs. Everything else, our own secrets included, stays here.
const ALWAYS: [&str; 6] = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"];

/// What is inherited unless the configuration says otherwise: the way out, whom to trust there, language and time.
pub(super) const DEFAULT: [&str; 13] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "LANG",
    "LC_*",
    "TZ",
];

/// The names that `patterns` mean here. One with a `*` covers none of Weir's own and none that the file refers to
/// (`secret`): whoever wants a program to have such a variable names it.
pub(super) fn names(patterns: &[String], secret: &BTreeSet<String>, environment: &dyn Environment) -> Vec<String> {
    let mut names = BTreeSet::new();
    for pattern in patterns {
        match pattern.strip_suffix('*') {
            None => {
                names.insert(pattern.clone());
            }
            Some(start) => names.extend(
                environment
                    .names()
                    .into_iter()
                    .filter(|name| name.starts_with(start) && !name.starts_with("WEIR_") && !secret.contains(name)),
            ),
        }
    }
    names.into_iter().collect()
}

/// What a child inherits of Weir's own environment: these names and a few harmless ones.
pub fn variables(names: &[String]) -> impl Iterator<Item = (&str, OsString)> {
    let names = ALWAYS.into_iter().chain(names.iter().map(String::as_str));
    names.filter_map(|name| {
        let value = std::env::var_os(name)?;
        // An exported shell function, which is code (the SDKs leave it out too).
        (!value.as_encoded_bytes().starts_with(b"()")).then_some((name, value))
    })
}

//! An answer with a token, read with patience, for a login depends on it: numbers as text, a missing type.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use weir_store::Secret;

use crate::{Scopes, discover::lenient};

/// What an authorization server gave (RFC 6749 §5.1).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Tokens {
    #[serde(rename = "access_token", deserialize_with = "secret")]
    pub access: Secret,
    /// Buys the next one.
    #[serde(rename = "refresh_token", default, deserialize_with = "optional_secret")]
    pub refresh: Option<Secret>,
    /// How the first is shown: `Bearer` or `DPoP` (RFC 6749 §7.1).
    #[serde(rename = "token_type", default, deserialize_with = "lenient")]
    pub scheme: Option<String>,
    /// How long the first is good, from when it was asked for.
    #[serde(rename = "expires_in", default, deserialize_with = "seconds")]
    pub lifetime: Option<Duration>,
    /// What it may do, where that differs from what was asked for.
    #[serde(rename = "scope", default, deserialize_with = "scopes")]
    pub scopes: Option<Scopes>,
    /// Who signed in (OpenID Connect).
    #[serde(rename = "id_token", default, deserialize_with = "optional_secret")]
    pub identity: Option<Secret>,
    /// What kind of token it is (RFC 8693).
    #[serde(rename = "issued_token_type")]
    pub kind: Option<String>,
}

impl Tokens {
    /// Whether the access token is bound to the key of the request's proof (RFC 9449 §5).
    pub fn is_bound(&self) -> bool {
        self.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("dpop"))
    }
}

fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
    Ok(Secret::new(String::deserialize(from)?))
}

fn optional_secret<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Secret>, D::Error> {
    Ok(Option::deserialize(from)?.map(Secret::new))
}

fn scopes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Scopes>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    Ok(text.map(|text| Scopes::parse(&text)).filter(|scopes| !scopes.is_empty()))
}

/// A number, a number in quotes, or nothing.
fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    /// A token for longer than this is for ever.
    const YEARS: f64 = 100.0 * 365.0 * 86_400.0;
    let number = match serde_json::Value::deserialize(from)? {
        serde_json::Value::Number(number) => number.as_f64(),
        serde_json::Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    Ok(number.filter(|seconds| (0.0..YEARS).contains(seconds)).map(Duration::from_secs_f64))
}

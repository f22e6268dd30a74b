//! An answer with a token, read with patience, for a login depends on it: numbers as text, a missing type.

use std::time::Duration;

use oauth2::{AccessToken, RefreshToken};
use serde::Deserialize;
use weir_store::Secret;

use crate::{Scopes, Tokens};

/// An answer with a token (RFC 6749 §5.1), read with patience.
#[derive(Debug, Deserialize)]
pub(crate) struct TokenReply {
    access_token: AccessToken,
    #[serde(default, deserialize_with = "seconds")]
    expires_in: Option<Duration>,
    refresh_token: Option<RefreshToken>,
    scope: Option<String>,
    id_token: Option<AccessToken>,
    issued_token_type: Option<String>,
}

impl From<TokenReply> for Tokens {
    fn from(reply: TokenReply) -> Self {
        let identity = reply.id_token.map(|token| Secret::new(token.into_secret()));
        Self {
            access: Secret::new(reply.access_token.into_secret()),
            refresh: reply.refresh_token.map(|token| Secret::new(token.into_secret())),
            lifetime: reply.expires_in,
            scopes: reply.scope.map(|scope| Scopes::parse(&scope)).filter(|scopes| !scopes.is_empty()),
            identity,
            kind: reply.issued_token_type,
        }
    }
}

/// A number, a number in quotes, or nothing.
fn seconds<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    /// A token for longer than this is for ever.
    const YEARS: f64 = 100.0 * 365.0 * 86_400.0;
    let number = match serde_json::Value::deserialize(from)? {
        serde_json::Value::Number(number) => number.as_f64(),
        serde_json::Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    Ok(number.filter(|seconds| (0.0..YEARS).contains(seconds)).map(Duration::from_secs_f64))
}

//! What comes back from the token endpoint, and what a refusal means for the login.

use std::time::Duration;

use thiserror::Error;

use crate::{HttpError, KeyFault};

pub use endpoint::TokenEndpoint;
pub use reply::Tokens;

mod endpoint;
mod reply;

/// Why there is no token. Never holds one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TokenError {
    /// What was there before is as good as before.
    #[error("the authorization server has trouble: {reason}; this is likely to pass")]
    Temporary {
        reason: String,
        /// How long the server asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// `invalid_grant` (RFC 6749 §5.2).
    #[error("the authorization server does not accept the login any more; sign in again")]
    InvalidGrant,
    #[error("the authorization server does not accept this client; check its id and secret, or let it register again")]
    InvalidClient,
    #[error("the authorization server refuses: {0}")]
    Refused(String),
    #[error("the sign-in was refused")]
    Denied,
    #[error("nobody signed in in time; start again")]
    Expired,
    /// RFC 6749 §5.2 demands a reason: this is more likely of something in between than of the server.
    #[error("{origin} answers {status} without a reason; sign in again if that stays so")]
    Unclear { origin: String, status: u16 },
    #[error("{0} answers with something that is no token")]
    Malformed(String),
    /// RFC 9449 §5: who wants a bound token does not use another.
    #[error(
        "{0} gives a token that is bound to no key, and `dpop` or the upstream asks for one; set `oauth = {{ dpop = false }}` if it need not be"
    )]
    Unbound(String),
    #[error("the authorization server has no {0}")]
    Unsupported(&'static str),
    #[error(transparent)]
    Http(HttpError),
    #[error(transparent)]
    Key(#[from] KeyFault),
}
impl TokenError {
    /// Whether the same request may succeed later.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Temporary { .. })
    }

    pub(crate) fn from_code(code: &str) -> Self {
        match code {
            "temporarily_unavailable" | "server_error" => {
                Self::Temporary { reason: code.to_owned(), retry_after: None }
            }
            "invalid_grant" => Self::InvalidGrant,
            "invalid_client" | "unauthorized_client" => Self::InvalidClient,
            "access_denied" => Self::Denied,
            "expired_token" => Self::Expired,
            // RFC 6749 §5.2: printable ASCII. It is the server's word, so it is short and one word.
            other if !other.is_empty() && other.len() <= 64 && other.bytes().all(|b| b.is_ascii_graphic()) => {
                Self::Refused(other.to_owned())
            }
            _ => Self::Refused("for a reason that cannot be shown".to_owned()),
        }
    }
}

impl From<HttpError> for TokenError {
    fn from(error: HttpError) -> Self {
        if error.is_temporary() {
            Self::Temporary { reason: error.to_string(), retry_after: None }
        } else {
            Self::Http(error)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn an_answer_is_read_with_patience() {
        for (text, lifetime) in [
            (r#"{"access_token":"a","expires_in":3600,"token_type":"Bearer"}"#, Some(3600)),
            (r#"{"access_token":"a","expires_in":"3600","token_type":"bearer"}"#, Some(3600)),
            (r#"{"access_token":"a","expires_in":3600.5}"#, Some(3600)),
            (r#"{"access_token":"a","expires_in":null,"scope":null,"refresh_token":null}"#, None),
            (r#"{"access_token":"a","expires_in":-1}"#, None),
            (r#"{"access_token":"a","expires_in":1e300}"#, None),
        ] {
            let tokens: Tokens = serde_json::from_str(text).unwrap();
            assert_eq!(tokens.lifetime.map(|lifetime| lifetime.as_secs()), lifetime, "{text}");
            assert_eq!(tokens.access.expose(), "a");
        }
    }

    #[test]
    fn a_code_says_what_becomes_of_the_login() {
        assert!(TokenError::from_code("temporarily_unavailable").is_temporary());
        assert!(TokenError::from_code("server_error").is_temporary());
        assert_eq!(TokenError::from_code("invalid_grant"), TokenError::InvalidGrant);
        assert_eq!(TokenError::from_code("invalid_target"), TokenError::Refused("invalid_target".to_owned()));
        let hostile = TokenError::from_code("x\n\u{1b}[31m");
        assert!(!hostile.to_string().contains('\n'), "{hostile}");
    }

    #[test]
    fn nothing_shows_a_token() {
        let text = r#"{"access_token":"hunter2","refresh_token":"hunter2","id_token":"hunter2"}"#;
        let reply: Tokens = serde_json::from_str(text).unwrap();
        assert!(!format!("{reply:?}").contains("hunter2"));
    }
}

//! What an authorization server says when it refuses (RFC 6749 §5.2, RFC 8707 §2).

use std::{
    fmt,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::telemetry::Refusals;

/// A refusal. Its text holds no secret.
#[derive(Clone, Debug)]
pub(in crate::server) struct OAuthError {
    pub(super) status: u16,
    /// The code of the specification.
    pub(super) code: &'static str,
    text: String,
    /// When to come again, in seconds.
    pub(super) retry_after: Option<u64>,
}

impl OAuthError {
    fn new(status: u16, code: &'static str, text: impl ToString) -> Self {
        Self { status, code, text: text.to_string(), retry_after: None }
    }

    /// Something is missing or there twice.
    pub(super) fn request(text: impl ToString) -> Self {
        Self::new(400, "invalid_request", text)
    }

    /// Nobody knows the client, or it has not proved who it is.
    pub(super) fn client(text: impl ToString) -> Self {
        Self::new(401, "invalid_client", text)
    }

    /// What a client says of itself is not as it should be (RFC 7591 §3.2.2).
    pub(super) fn metadata(text: impl ToString) -> Self {
        Self::new(400, "invalid_client_metadata", text)
    }

    /// The code or assertion is not good.
    pub(super) fn grant(text: &impl ToString) -> Self {
        Self::new(400, "invalid_grant", text.to_string())
    }

    /// There is no such way to a token.
    pub(super) fn grant_type() -> Self {
        Self::new(400, "unsupported_grant_type", "this `grant_type` is not known here")
    }

    pub(super) fn scope(text: impl ToString) -> Self {
        Self::new(400, "invalid_scope", text)
    }

    /// The resource is not of this gateway.
    pub(super) fn target() -> Self {
        Self::new(400, "invalid_target", "the `resource` is no endpoint of this gateway")
    }

    pub(super) fn method() -> Self {
        Self::new(405, "invalid_request", "this method is not allowed here")
    }

    pub(super) fn too_many(wait: Duration) -> Self {
        let retry_after = Some(wait.as_secs() + 1);
        Self { retry_after, ..Self::new(429, "slow_down", "too many requests from this address") }
    }

    /// It is likely to pass; the log says what it is. Strangers can bring it about as often as they like.
    pub(super) fn unavailable(why: &dyn fmt::Display) -> Self {
        static LINES: Refusals = Refusals::new();
        if let Some(suppressed) = LINES.admit(Instant::now()) {
            tracing::error!(suppressed, "no token can be issued: {why}");
        }
        let text = "tokens cannot be issued now; try again";
        Self { retry_after: Some(5), ..Self::new(503, "temporarily_unavailable", text) }
    }

    pub(super) fn body(&self) -> Value {
        json!({ "error": self.code, "error_description": self.text })
    }
}

impl fmt::Display for OAuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

//! Giving tokens back (RFC 7009).

use weir_store::Secret;

use crate::{Http, TokenEndpoint, TokenError};

/// Which token is given back, as a hint for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    Access,
    /// The refresh token, and with it the whole login.
    Refresh,
}

/// Has the server forget a token. One that it does not know counts as forgotten.
///
/// # Errors
/// If the server has no such endpoint or did not do it. The token is then to be forgotten here all the same.
pub async fn revoke(
    http: &Http,
    endpoint: &TokenEndpoint<'_>,
    token: &Secret,
    kind: Revoked,
) -> Result<(), TokenError> {
    let url = endpoint.server.revocation_endpoint.as_ref().ok_or(TokenError::Unsupported("revocation endpoint"))?;
    let hint = match kind {
        Revoked::Access => "access_token",
        Revoked::Refresh => "refresh_token",
    };
    let fields = [("token", token.expose()), ("token_type_hint", hint)];
    // The resource is no parameter of this endpoint.
    endpoint.post(http, url, &fields).await.map(drop)
}

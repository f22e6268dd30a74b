//! Tokens that nobody signs in for: client credentials, refreshing, and exchanging one token for another.

use weir_store::Secret;

use crate::{Http, Scopes, TokenEndpoint, TokenError, Tokens};

/// What a token is, to those who exchange it (RFC 8693 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Access,
    /// A token of who signed in.
    Identity,
    /// An assertion that another authorization server accepts (ID-JAG).
    Assertion,
    /// A token as a JWT, whatever it is for.
    Jwt,
}

/// A token to be exchanged for another.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub token: &'a Secret,
    pub kind: TokenKind,
}

/// RFC 8693 §2.1.
const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
/// RFC 7523 §2.1.
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

impl TokenKind {
    fn uri(self) -> &'static str {
        match self {
            Self::Access => "urn:ietf:params:oauth:token-type:access_token",
            Self::Identity => "urn:ietf:params:oauth:token-type:id_token",
            Self::Assertion => "urn:ietf:params:oauth:token-type:id-jag",
            Self::Jwt => "urn:ietf:params:oauth:token-type:jwt",
        }
    }
}

/// A token for the client itself (RFC 6749 §4.4).
///
/// # Errors
/// If the server does not give one.
pub async fn client_credentials(
    http: &Http,
    endpoint: &TokenEndpoint<'_>,
    scopes: &Scopes,
) -> Result<Tokens, TokenError> {
    endpoint.grant(http, &[("grant_type", "client_credentials"), ("scope", &scopes.render())]).await
}

/// A new token for an old login (RFC 6749 §6). A server that rotates gives a new refresh token too, and the old one is
/// worth nothing from then on.
///
/// # Errors
/// If the server does not give one; [`TokenError::InvalidGrant`] is the end of the login.
pub async fn refresh(http: &Http, endpoint: &TokenEndpoint<'_>, token: &Secret) -> Result<Tokens, TokenError> {
    endpoint.grant(http, &[("grant_type", "refresh_token"), ("refresh_token", token.expose())]).await
}

/// One token for another (RFC 8693): of the caller for one of the upstream.
///
/// # Errors
/// If the server does not give one.
pub async fn exchange(
    http: &Http,
    endpoint: &TokenEndpoint<'_>,
    subject: Subject<'_>,
    wanted: Option<TokenKind>,
    audience: Option<&str>,
    scopes: &Scopes,
) -> Result<Tokens, TokenError> {
    let fields = [
        ("grant_type", EXCHANGE),
        ("subject_token", subject.token.expose()),
        ("subject_token_type", subject.kind.uri()),
        ("requested_token_type", wanted.map(TokenKind::uri).unwrap_or_default()),
        ("audience", audience.unwrap_or_default()),
        ("scope", &scopes.render()),
    ];
    endpoint.grant(http, &fields).await
}

/// What the company's identity provider vouches for, for the upstream's own authorization server: the identity of the
/// caller becomes an assertion (ID-JAG), and that becomes a token (RFC 8693, then RFC 7523 §2.1).
///
/// `provider` is the identity provider, `endpoint` the upstream's server.
///
/// # Errors
/// If either does not play its part.
pub async fn vouched(
    http: &Http,
    provider: &TokenEndpoint<'_>,
    subject: Subject<'_>,
    endpoint: &TokenEndpoint<'_>,
    scopes: &Scopes,
) -> Result<Tokens, TokenError> {
    let asked = TokenEndpoint { resource: endpoint.resource, ..*provider };
    let audience = Some(endpoint.server.issuer.as_str());
    let given = exchange(http, &asked, subject, Some(TokenKind::Assertion), audience, scopes).await?;
    let said = given.kind.as_deref();
    if said.is_some_and(|kind| kind != TokenKind::Assertion.uri()) {
        return Err(TokenError::Malformed("the identity provider".to_owned()));
    }
    assertion(http, endpoint, &given.access, scopes).await
}

/// A token for a statement that somebody signed whom the server trusts (RFC 7523 §2.1): of an identity provider, or of
/// the platform on which a workload runs.
///
/// # Errors
/// If the server does not give one.
pub async fn assertion(
    http: &Http,
    endpoint: &TokenEndpoint<'_>,
    statement: &Secret,
    scopes: &Scopes,
) -> Result<Tokens, TokenError> {
    let fields = [("grant_type", JWT_BEARER), ("assertion", statement.expose()), ("scope", &scopes.render())];
    endpoint.grant(http, &fields).await
}

#[cfg(test)]
mod tests;

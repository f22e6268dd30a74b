//! The first three steps in a row: from the refusal of an upstream to the server that makes tokens for it.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use thiserror::Error;
use url::Url;

use crate::{Challenge, Http, HttpError, ProofDemand, ServerMetadata, http::origin, resource, server};

/// Where tokens for an upstream come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    /// What tokens are asked for (RFC 8707).
    pub resource: String,
    /// All scopes that the upstream names.
    pub scopes: Vec<String>,
    /// Who makes them.
    pub server: ServerMetadata,
    /// Whether the upstream wants them bound to a key.
    pub demand: ProofDemand,
}

/// Why it is not known where tokens come from.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DiscoveryError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{origin} answers {status}; this is likely to pass")]
    Trouble { origin: String, status: u16 },
    #[error("the metadata of {upstream} is about another resource; tokens for it would not be safe")]
    OtherResource { upstream: String },
    #[error("the upstream names an authorization server that is no URL")]
    Issuer,
    #[error("the metadata of {asked} names another issuer; it may be an attempt to mix servers up")]
    OtherIssuer { asked: String },
    #[error("{issuer} publishes no metadata of an authorization server")]
    NoServerMetadata { issuer: String },
}

impl DiscoveryError {
    /// Whether the same may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Http(error) => error.is_temporary(),
            Self::Trouble { .. } => true,
            _ => false,
        }
    }
}

/// Finds where tokens for the upstream at `url` come from. `challenge` is from its refusal.
///
/// Where the authorization server is `known`, only what the upstream says of itself is asked for, and nothing is amiss if
/// it says nothing. `preferred` is who made the credential that is there already, if any: of several servers it is
/// preferred, so that a list in another order asks nobody to sign in again.
///
/// # Errors
/// If that cannot be found out; see [`DiscoveryError::is_temporary`].
pub async fn discover(
    http: &Http,
    url: &Url,
    challenge: Option<&Challenge>,
    known: Option<&str>,
    preferred: Option<&str>,
) -> Result<Discovered, DiscoveryError> {
    let found = resource::find(http, url, challenge.and_then(Challenge::resource_metadata)).await?;
    let demand = ProofDemand::of(challenge, found.as_ref());
    let (resource, named, scopes) = match found {
        Some(found) => (found.resource, found.authorization_servers, found.scopes_supported),
        None => (resource::identifier(url), Vec::new(), Vec::new()),
    };
    let chosen = named.iter().find(|server| Some(server.as_str()) == preferred).or(named.first());
    let server = match known.or(chosen.map(String::as_str)) {
        Some(issuer) => server::find(http, issuer).await?,
        None => old(http, url).await?,
    };
    Ok(Discovered { resource, scopes, server, demand })
}

/// Whether the upstream at `url` names who makes tokens for it, and `issuer` is not among them, letter by letter. An
/// upstream that names nobody has not said anything against anybody.
///
/// # Errors
/// If that cannot be found out.
pub async fn names_others(
    http: &Http,
    url: &Url,
    challenge: Option<&Challenge>,
    issuer: &str,
) -> Result<bool, DiscoveryError> {
    let found = resource::find(http, url, challenge.and_then(Challenge::resource_metadata)).await?;
    let named = found.map(|found| found.authorization_servers).unwrap_or_default();
    Ok(!named.is_empty() && named.iter().all(|named| named != issuer))
}

/// Before protected resource metadata (MCP 2025-03-26) the upstream's host was the authorization server, with or without
/// metadata.
async fn old(http: &Http, url: &Url) -> Result<ServerMetadata, DiscoveryError> {
    let issuer = origin(url);
    let mut place = url.clone();
    place.set_query(None);
    place.set_fragment(None);
    let at = |path: &str| {
        let mut place = place.clone();
        place.set_path(path);
        place
    };
    for name in ["oauth-authorization-server", "openid-configuration"] {
        let found = read::<ServerMetadata>(http, &at(&format!("/.well-known/{name}"))).await?;
        let Some(found) = found else { continue };
        // No text of an issuer was given to compare with, but it must be this host.
        if !Url::parse(&found.issuer).is_ok_and(|named| named.origin() == url.origin()) {
            return Err(DiscoveryError::OtherIssuer { asked: issuer });
        }
        return Ok(found);
    }
    Ok(ServerMetadata {
        issuer,
        authorization_endpoint: Some(at("/authorize")),
        token_endpoint: Some(at("/token")),
        registration_endpoint: Some(at("/register")),
        // That version of the specification demanded PKCE of every server, and clients that need no secret.
        code_challenge_methods_supported: vec!["S256".to_owned()],
        token_endpoint_auth_methods_supported: Some(vec!["none".to_owned()]),
        ..ServerMetadata::default()
    })
}

/// Reads a document; none if it is not there. A page for people in its place, as some hosts serve for everything, counts
/// as not there.
pub(crate) async fn read<T: DeserializeOwned>(http: &Http, place: &Url) -> Result<Option<T>, DiscoveryError> {
    let answer = match http.get(place).await {
        Ok(answer) => answer,
        // It leads to a page elsewhere, often to a form for signing in.
        Err(HttpError::Redirect(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let status = answer.status.as_u16();
    match status {
        200..300 => Ok(serde_json::from_slice(&answer.body).ok()),
        408 | 425 | 429 | 500.. => Err(DiscoveryError::Trouble { origin: origin(place), status }),
        _ => Ok(None),
    }
}

/// A field that is not as it should be counts as missing: documents in the wild have `null` and `""` in places where
/// nothing depends on them.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(from: D) -> Result<T, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(from)?).unwrap_or_default())
}

#[cfg(test)]
mod tests;

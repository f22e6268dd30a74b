//! Fourth step: who Weir is to this server. Registered by its owner, else by a document that the server reads (Client ID
//! Metadata Documents), else by asking it (RFC 7591), else the owner must be asked.
//!
//! A registration belongs to the issuer that gave it, to the address to which users come back, and to the grants it is
//! for. It is kept, and made anew when its server has forgotten it ([`forget`], [`is_doubtful`], [`is_gone`]).

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use url::Url;
use weir_store::{Clock, Secret, Store, StoreError};

use crate::{
    ClientAuth, DiscoveryError, Http, HttpError, OAuthApplication, Redirect, ServerMetadata,
    discover::lenient,
    http::{is_loopback, origin},
    redirect,
};

pub use doubt::{begun, is_doubtful, is_gone, returned};
pub use kept::forget;

mod doubt;
mod kept;
mod pin;

/// What stands for the issuer in the URL of a document, as it is written in a URL.
const ISSUER: &str = "%7Bissuer%7D";

/// The metadata document of a client, from this very URL; `null` if what is there is not JSON
/// (draft-ietf-oauth-client-id-metadata-document §4).
///
/// # Errors
/// If the document cannot be read.
pub async fn client_document(http: &Http, url: &Url) -> Result<Value, DiscoveryError> {
    let answer = http.get_here(url).await?;
    match answer.status.as_u16() {
        200 => Ok(serde_json::from_slice(&answer.body).unwrap_or_default()),
        status => Err(DiscoveryError::Trouble { origin: origin(url), status }),
    }
}

/// What Weir is to servers that do not know it yet.
#[derive(Clone, Debug)]
pub struct Registration {
    /// From the config; it wins.
    pub known: Option<KnownClient>,
    /// Where the document of [`document()`] is published: https, with a path. One for each issuer where it holds `{issuer}`.
    pub document: Option<Url>,
    /// What users read when they are asked.
    pub name: String,
    /// Where users come back to; none for a client that nobody comes back to, such as one that signs in with a code.
    pub redirect: Option<Redirect>,
    /// The grants that it will use. That of an authorization code takes somewhere to come back to.
    pub grants: Vec<&'static str>,
    /// What the owner writes into the config to say who Weir is, for messages; none if they are told elsewhere.
    pub key: Option<&'static str>,
}

/// A client that the owner has registered.
#[derive(Clone, Debug)]
pub struct KnownClient {
    /// With its way to show itself; of a secret, header or body is chosen as the server likes.
    pub client: OAuthApplication,
    /// The only issuer that may see it; any, if it is not given.
    pub issuer: Option<String>,
    /// Where no issuer is given: the name of the upstream under which the first one is remembered, which is the only one
    /// from then on. None if it has nothing to show that is secret.
    pub upstream: Option<String>,
}

/// Why Weir is nobody to a server. Never holds a secret.
#[derive(Debug, Error)]
pub enum RegistrationError {
    #[error("{origin} lets no client register itself{how}")]
    ByHand {
        origin: String,
        /// What the owner can do, as the rest of a sentence; empty if that is told elsewhere.
        how: String,
    },
    #[error("the client in the config is for another issuer than {0}, which the upstream names now")]
    OtherIssuer(String),
    #[error(
        "the secret of its client is for {before}, and the upstream names another issuer now; if that is right, write \
         oauth = {{ issuer = \"{now}\" }}"
    )]
    Moved { before: String, now: String },
    #[error(
        "another version of weir has kept for which issuer the secret of the client at {upstream} is, and this one cannot \
         read that; write oauth = {{ issuer = \"…\" }}"
    )]
    Unreadable { upstream: String },
    #[error("{origin} does not register Weir: {code}")]
    Refused { origin: String, code: String },
    #[error("{origin} does not register anybody now ({status}); this is likely to pass")]
    Trouble { origin: String, status: u16 },
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Registration {
    /// Where users come back to from a server.
    pub fn redirect_for(&self, server: &ServerMetadata) -> Option<String> {
        self.redirect.as_ref().map(|redirect| redirect.of(&server.issuer))
    }
}

/// Who Weir is to `server`, registering it if need be.
///
/// # Errors
/// If it cannot become anybody there.
pub async fn client(
    http: &Http,
    store: &dyn Store,
    clock: &Clock,
    server: &ServerMetadata,
    wanted: &Registration,
) -> Result<OAuthApplication, RegistrationError> {
    if let Some(known) = &wanted.known {
        pin::hold(store, server, known).await?;
    }
    if let Some(client) = unasked(server, wanted)? {
        return Ok(client);
    }
    if let Some(kept) = kept::get(store, server, wanted).await? {
        return Ok(kept);
    }
    let endpoint = server.registration_endpoint.as_ref().ok_or_else(|| by_hand(server, wanted))?;
    let (client, lifetime) = register(http, clock, endpoint, server, wanted).await?;
    kept::put(store, clock, server, wanted, &client, lifetime).await?;
    Ok(client)
}

/// The only issuer that may see the client of the config, if that is so because it was the first.
///
/// # Errors
/// If the store cannot be read.
pub async fn pinned(store: &dyn Store, wanted: &Registration) -> Result<Option<String>, RegistrationError> {
    match &wanted.known {
        Some(known) => pin::first(store, known).await,
        None => Ok(None),
    }
}

/// Who Weir is to `server` without being registered by it; none if it has to be. Needs no store.
///
/// # Errors
/// If the client of the config is for another server.
pub fn unasked(server: &ServerMetadata, wanted: &Registration) -> Result<Option<OAuthApplication>, RegistrationError> {
    if let Some(known) = &wanted.known {
        if known.issuer.as_ref().is_some_and(|issuer| *issuer != server.issuer) {
            return Err(RegistrationError::OtherIssuer(shown(server)));
        }
        return Ok(Some(OAuthApplication {
            id: known.client.id.clone(),
            auth: as_liked(server, known.client.auth.clone()),
        }));
    }
    let document = wanted.document.as_ref().filter(|url| is_document(url));
    let document = document.filter(|_| server.client_id_metadata_document_supported);
    Ok(document.map(|url| OAuthApplication::public(document_url(url, &server.issuer))))
}

/// Where the document for an issuer is.
pub fn document_url(url: &Url, issuer: &str) -> String {
    url.as_str().replace(ISSUER, &redirect::name(issuer))
}

/// What is to be published at `url`, or written where a client is registered by hand, of one that comes back to these
/// addresses.
pub fn document(url: Option<&str>, name: &str, redirects: &[String]) -> Value {
    let mut document = description(name, redirects, &["authorization_code", "refresh_token"], "none");
    if let (Some(fields), Some(url)) = (document.as_object_mut(), url) {
        fields.insert("client_id".to_owned(), url.into());
    }
    document
}

/// The same client with its secret where the server likes it.
fn as_liked(server: &ServerMetadata, auth: ClientAuth) -> ClientAuth {
    match auth {
        ClientAuth::Basic(secret)
            if !server.has_auth("client_secret_basic") && server.has_auth("client_secret_post") =>
        {
            ClientAuth::Post(secret)
        }
        ClientAuth::Post(secret)
            if !server.has_auth("client_secret_post") && server.has_auth("client_secret_basic") =>
        {
            ClientAuth::Basic(secret)
        }
        other => other,
    }
}

fn is_document(url: &Url) -> bool {
    url.scheme() == "https" && url.path() != "/" && url.fragment().is_none()
}

fn description(name: &str, redirects: &[String], grants: &[&str], method: &str) -> Value {
    // RFC 7591 §2.1: grants and response types go together.
    let responses: &[&str] = if grants.contains(&"authorization_code") { &["code"] } else { &[] };
    json!({
        "client_name": name,
        "redirect_uris": redirects,
        "grant_types": grants,
        "response_types": responses,
        "token_endpoint_auth_method": method,
        "application_type": kind(redirects),
    })
}

/// OpenID Connect Registration 1.0 §2: a program on the user's machine is `native`, and may come back to any port. What
/// comes back with TLS is a site, wherever it is.
fn kind(redirects: &[String]) -> &'static str {
    let native = |url: Url| match url.scheme() {
        "http" => is_loopback(&url),
        scheme => scheme != "https",
    };
    if redirects.iter().all(|text| Url::parse(text).is_ok_and(native)) { "native" } else { "web" }
}

async fn register(
    http: &Http,
    clock: &Clock,
    endpoint: &Url,
    server: &ServerMetadata,
    wanted: &Registration,
) -> Result<(OAuthApplication, Option<Duration>), RegistrationError> {
    let method = ["none", "client_secret_basic", "client_secret_post"]
        .into_iter()
        .find(|method| server.has_auth(method))
        .unwrap_or("none");
    let redirects: Vec<String> = wanted.redirect_for(server).into_iter().collect();
    let description = description(&wanted.name, &redirects, &wanted.grants, method);
    let answer = http.post(endpoint, "application/json", description.to_string(), HeaderMap::new()).await?;
    let (origin, status) = (origin(endpoint), answer.status.as_u16());
    match status {
        200..300 => {}
        408 | 425 | 429 | 500.. => return Err(RegistrationError::Trouble { origin, status }),
        _ => {
            let code = serde_json::from_slice::<Value>(&answer.body)
                .ok()
                .and_then(|body| Some(body.get("error")?.as_str()?.to_owned()))
                .filter(|code| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_graphic()));
            return Err(RegistrationError::Refused {
                origin,
                code: code.unwrap_or_else(|| format!("status {status}")),
            });
        }
    }
    let given: Given = serde_json::from_slice(&answer.body)
        .map_err(|_| RegistrationError::Refused { origin, code: "an answer without a client id".to_owned() })?;
    let now = clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // RFC 7591 §3.2.1: 0 is never.
    let lifetime = Some(given.client_secret_expires_at).filter(|at| *at > 0).map(|at| at.saturating_sub(now));
    let method = given.token_endpoint_auth_method.as_deref().unwrap_or(method);
    let auth = ClientAuth::with_secret(given.client_secret.map(Secret::new), method);
    Ok((OAuthApplication { id: given.client_id, auth }, lifetime.map(Duration::from_secs)))
}

fn by_hand(server: &ServerMetadata, wanted: &Registration) -> RegistrationError {
    let what = match wanted.redirect_for(server) {
        None => format!("may use {}", wanted.grants.join(" and ")),
        Some(redirect) => format!("comes back to {redirect}"),
    };
    let how =
        wanted.key.map(|key| format!("; register one there that {what}, and write its id into the config: {key}"));
    RegistrationError::ByHand { origin: shown(server), how: how.unwrap_or_default() }
}

fn shown(server: &ServerMetadata) -> String {
    Url::parse(&server.issuer).map_or_else(|_| "the authorization server".to_owned(), |url| origin(&url))
}

/// RFC 7591 §3.2.1.
#[derive(Deserialize)]
struct Given {
    client_id: String,
    #[serde(default, deserialize_with = "lenient")]
    client_secret: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    client_secret_expires_at: u64,
    #[serde(default, deserialize_with = "lenient")]
    token_endpoint_auth_method: Option<String>,
}

#[cfg(test)]
mod tests;

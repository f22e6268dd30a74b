//! Whether a server still knows whom it has registered.
//!
//! Where it is asked for a token it says so. But where a person is sent to its page it tells that person, who can do
//! nothing about it, and nobody else (RFC 6749 §4.1.2.1): for Weir they just do not come back. So whoever begins anew after
//! that does so with a new registration. Where strangers could bring that about, the server is asked instead.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use weir_store::{Clock, Key, Store, StoreError, Value};
use zeroize::Zeroizing;

use crate::{CredentialOwner, Http, OAuthApplication, Prepared, ServerMetadata, TokenEndpoint, TokenError};

use super::{Registration, kept};

/// The namespace of sign-ins that nobody has come back from yet.
const NAMESPACE: &str = "begun";

/// For how long somebody who has not come back counts.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Notes that somebody is sent to a server's page. Only a registration of before that was prepared can be forgotten: if
/// nobody comes back from one that was made for them, another would not help.
///
/// # Errors
/// If the store cannot be used.
pub async fn begun(store: &dyn Store, prepared: &Prepared, who: &CredentialOwner) -> Result<(), StoreError> {
    let Prepared { server, client, begun, .. } = prepared;
    if !kept::registered(store, &server.issuer, &client.id, Some(*begun)).await?.is_empty() {
        let value = Value { about: String::new(), secret: Zeroizing::default() };
        store.put(&key(prepared, who), &value, Some(REMEMBERED)).await?;
    }
    Ok(())
}

/// Notes that they have come back: the server knows the client.
///
/// # Errors
/// If the store cannot be written.
pub async fn returned(store: &dyn Store, prepared: &Prepared, who: &CredentialOwner) -> Result<(), StoreError> {
    store.delete(&key(prepared, who)).await.map(drop)
}

/// Whether somebody was sent to a server's page before and did not come back: it may not know the client any more.
///
/// # Errors
/// If the store cannot be read.
pub async fn is_doubtful(store: &dyn Store, prepared: &Prepared, who: &CredentialOwner) -> Result<bool, StoreError> {
    Ok(store.get(&key(prepared, who)).await?.is_some())
}

/// Whether `server` has registered Weir and does not know it any more, as far as it says. It is brought a code that it has
/// never given: a client that it does not know is refused before that is looked at (RFC 6749 §5.2).
///
/// # Errors
/// If the store cannot be read.
pub async fn is_gone(
    http: &Http,
    store: &dyn Store,
    clock: &Clock,
    server: &ServerMetadata,
    wanted: &Registration,
) -> Result<Option<OAuthApplication>, StoreError> {
    let mut random = [0; 32];
    let kept = kept::get(store, server, wanted).await?.filter(|_| getrandom::fill(&mut random).is_ok());
    let Some(client) = kept else { return Ok(None) };
    let made_up = URL_SAFE_NO_PAD.encode(random);
    let endpoint = TokenEndpoint { server, client: &client, resource: None, proof: None, clock };
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", &made_up),
        ("redirect_uri", &wanted.redirect_for(server).unwrap_or_default()),
        ("code_verifier", &made_up),
    ];
    let refused = endpoint.grant(http, &fields).await;
    Ok(matches!(refused, Err(TokenError::InvalidClient)).then_some(client))
}

fn key(prepared: &Prepared, who: &CredentialOwner) -> Key {
    let Prepared { server, client, .. } = prepared;
    Key::new(NAMESPACE, &[&[server.issuer.as_str(), &client.id], &who.parts()[..]].concat())
}

//! Who somebody is: a sign-in that ends with an ID token (OpenID Connect Core 1.0 §3.1).
//!
//! It goes the way of every other sign-in, and asks for nothing but a name. The token is good for this one sign-in alone,
//! because it says the nonce that went out with it; the access token that comes along is thrown away.

use oauth2::CsrfToken;
use thiserror::Error;
use weir_store::{Clock, Secret};

use crate::{
    Callback, Http, OAuthApplication, PendingSignIn, ServerMetadata, SignIn, SignInError, TokenError,
    inbound::{Rejected, VerifiedToken, Verifier},
};

/// Why it is not known who somebody is. Holds no token.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IdentityError {
    #[error(transparent)]
    SignIn(#[from] SignInError),
    #[error("{0} gives no ID token (OpenID Connect)")]
    Nobody(String),
    #[error(transparent)]
    Rejected(#[from] Rejected),
}

/// What a name is called by; asked for where the server has them, for a name that people know themselves by.
const KNOWN_BY: [&str; 2] = ["profile", "email"];

/// It has people choose an account, takes no `login`, and does not say so in its metadata.
const GOOGLE: &str = "https://accounts.google.com";

/// A sign-in at `server` that says who comes back to `redirect`; `anew` if it is to be somebody else than the one whom the
/// server remembers.
pub fn sign_in(server: &ServerMetadata, client: &OAuthApplication, redirect: &str, anew: bool) -> SignIn {
    let offered = |scope: &&str| server.scopes_supported.iter().any(|known| known == scope);
    let scopes = ["openid"].into_iter().chain(KNOWN_BY.into_iter().filter(offered));
    // Every OpenID provider must know `login` (OpenID Connect Core §15.1), and only some let people choose.
    let chooses =
        server.issuer == GOOGLE || server.prompt_values_supported.iter().any(|prompt| prompt == "select_account");
    SignIn {
        server: server.clone(),
        client: client.clone(),
        redirect: redirect.to_owned(),
        resource: None,
        scopes: scopes.map(str::to_owned).collect(),
        nonce: Some(Secret::new(CsrfToken::new_random().into_secret())),
        prompt: anew.then_some(if chooses { "select_account" } else { "login" }),
        proof: None,
    }
}

/// Ends a sign-in that [`sign_in`] was for: who it was.
///
/// # Errors
/// If it did not end well, or nothing that can be believed says who it was.
pub async fn finish(
    pending: PendingSignIn,
    http: &Http,
    verifier: &Verifier,
    callback: Callback,
    clock: &Clock,
) -> Result<VerifiedToken, IdentityError> {
    let SignIn { client, nonce, server, .. } = pending.what().clone();
    let nobody = || IdentityError::Nobody(server.issuer.clone());
    let tokens = match pending.finish(http, callback, clock).await {
        // A server that knows no `openid`.
        Err(SignInError::Token(TokenError::Refused(code))) if code == "invalid_scope" => return Err(nobody()),
        tokens => tokens?,
    };
    let (token, nonce) = tokens.identity.zip(nonce).ok_or_else(nobody)?;
    Ok(verifier.verify_identity(token.expose(), &client.id, nonce.expose()).await?)
}

#[cfg(test)]
mod tests;

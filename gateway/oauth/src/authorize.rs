//! Fifth step: the user signs in (RFC 6749 §4.1 with PKCE S256, RFC 7636; `iss`, RFC 9207).
//!
//! What is known of a sign-in that is under way is taken out when the user comes back, so a link works once. It belongs
//! to whom it was made for: the one who comes back must bring the same binding.

use oauth2::{
    AuthUrl, ClientId, CsrfToken, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, Scope, basic::BasicClient,
};
use thiserror::Error;
use url::{Url, form_urlencoded};
use weir_store::{Clock, Secret};

use crate::{
    Http, HttpError, KeyBinding, OAuthApplication, Scopes, ServerMetadata, TokenEndpoint, TokenError, Tokens,
    http::origin,
};

pub use pending::{PendingSignIns, SIGN_IN_TIME};

mod pending;

/// What a sign-in is for.
#[derive(Clone, Debug)]
pub struct SignIn {
    pub server: ServerMetadata,
    pub client: OAuthApplication,
    /// Where the user comes back to, exactly as registered.
    pub redirect: String,
    /// For what (RFC 8707); none for servers that do not bear it.
    pub resource: Option<String>,
    /// To do what; empty to leave that to the server.
    pub scopes: Scopes,
    /// What an ID token has to say, where it is asked who signs in (OpenID Connect Core §3.1.2.1).
    pub nonce: Option<Secret>,
    /// What the server shall ask its user, whatever it knows already (OpenID Connect Core §3.1.2.1).
    pub prompt: Option<&'static str>,
    /// The key that the tokens are to be bound to.
    pub proof: Option<KeyBinding>,
}

/// A sign-in that waits for its user. Holds the verifier of PKCE, so it is not to be shown.
pub struct PendingSignIn {
    what: SignIn,
    state: Secret,
    verifier: PkceCodeVerifier,
}

/// What the user brings back, and where to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callback {
    /// Of the address that they have come to.
    path: String,
    /// Names the sign-in, which only the one who began it can.
    pub(crate) state: Option<Secret>,
    /// Buys the token.
    code: Option<Secret>,
    /// Says who sent the user.
    issuer: Option<String>,
    /// Says why there is no code.
    error: Option<String>,
}

/// Why a sign-in did not end well. Nothing that was there before is harmed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SignInError {
    #[error("{0} does not offer PKCE with S256, without which a sign-in can be stolen; Weir does not use it")]
    NoPkce(String),
    #[error("{0} has no page to sign in; use the device flow or client credentials there")]
    NoPage(String),
    #[error("the address to come back to is no URL")]
    Redirect,
    #[error(
        "this sign-in is not known here: its link was used, has expired, or was made for somebody else; start again"
    )]
    Unknown,
    #[error("another server than the one asked answered the sign-in; it may be an attempt to mix servers up")]
    Issuer,
    #[error("the sign-in came back without a code")]
    NoCode,
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// Starts a sign-in: the page to send the user to, and what to keep until then.
///
/// # Errors
/// If the server cannot do it, or its page is not one to send anybody to.
pub fn begin(http: &Http, what: SignIn) -> Result<(Url, PendingSignIn), SignInError> {
    let shown =
        || Url::parse(&what.server.issuer).map_or_else(|_| "the authorization server".to_owned(), |url| origin(&url));
    // Many OpenID providers do S256 and do not say so. Who signs in there is bound by the nonce too.
    if !what.server.has_pkce() && what.nonce.is_none() {
        return Err(SignInError::NoPkce(shown()));
    }
    let page = what.server.authorization_endpoint.clone().ok_or_else(|| SignInError::NoPage(shown()))?;
    // The user's browser goes there, so a private address is harmless, but `javascript:` is not.
    match page.scheme() {
        "https" => {}
        _ => http.check(&page)?,
    }
    let redirect = RedirectUrl::new(what.redirect.clone()).map_err(|_| SignInError::Redirect)?;
    let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
    let client = BasicClient::new(ClientId::new(what.client.id.clone()))
        .set_auth_uri(AuthUrl::from_url(page))
        .set_redirect_uri(redirect);
    let mut request = client
        .authorize_url(CsrfToken::new_random)
        .set_pkce_challenge(challenge)
        .add_scopes(what.scopes.iter().map(|scope| Scope::new(scope.to_owned())));
    if let Some(resource) = &what.resource {
        request = request.add_extra_param("resource", resource.clone());
    }
    if let Some(nonce) = &what.nonce {
        request = request.add_extra_param("nonce", nonce.expose().to_owned());
    }
    // RFC 9449 §10: a stolen code is of no use to who has not the key.
    if let Some(proof) = &what.proof {
        request = request.add_extra_param("dpop_jkt", proof.key.thumbprint().to_owned());
    }
    // OpenID Connect Core §11: without it the scope is to be ignored.
    let offline = what.scopes.iter().any(|scope| scope == "offline_access").then_some("consent");
    if let Some(prompt) = what.prompt.or(offline) {
        request = request.add_extra_param("prompt", prompt);
    }
    let (url, state) = request.url();
    let state = Secret::new(state.into_secret());
    Ok((url, PendingSignIn { what, state, verifier }))
}

impl PendingSignIn {
    pub fn what(&self) -> &SignIn {
        &self.what
    }

    /// The name under which the user comes back.
    pub fn state(&self) -> &Secret {
        &self.state
    }

    /// Ends a sign-in: what the user brought is checked and exchanged.
    ///
    /// # Errors
    /// If it is not for this sign-in, not from the server asked, or not accepted.
    pub async fn finish(self, http: &Http, callback: Callback, clock: &Clock) -> Result<Tokens, SignInError> {
        let known = callback.state.as_ref().is_some_and(|state| same(state.expose(), self.state.expose()));
        if !known {
            return Err(SignInError::Unknown);
        }
        self.check_issuer(&callback)?;
        if let Some(why) = callback.refusal() {
            return Err(why.into());
        }
        let code = callback.code.ok_or(SignInError::NoCode)?;
        let SignIn { server, client, redirect, resource, proof, .. } = &self.what;
        let endpoint = TokenEndpoint { server, client, resource: resource.as_deref(), proof: proof.as_ref(), clock };
        let fields = [
            ("grant_type", "authorization_code"),
            ("code", code.expose()),
            ("redirect_uri", redirect),
            ("code_verifier", self.verifier.secret()),
        ];
        Ok(endpoint.grant(http, &fields).await?)
    }

    /// RFC 9700 §4.4.2: the user has come to the address of the server asked, which others send nobody to. RFC 9207 §2.4:
    /// who says that it names itself must, and whoever names itself must be the one asked.
    fn check_issuer(&self, callback: &Callback) -> Result<(), SignInError> {
        let server = &self.what.server;
        if !callback.is_at(&self.what.redirect) {
            return Err(SignInError::Issuer);
        }
        match callback.issuer.as_deref() {
            Some(named) if named == server.issuer => Ok(()),
            None if !server.authorization_response_iss_parameter_supported => Ok(()),
            _ => Err(SignInError::Issuer),
        }
    }
}

impl Callback {
    /// From the path and the query of the address. Of a name given twice the first counts.
    pub fn parse(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut callback = Self { path: path.to_owned(), ..Self::default() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()).take(32) {
            let value = value.into_owned();
            match name.as_ref() {
                "state" => {
                    callback.state.get_or_insert_with(|| Secret::new(value));
                    continue;
                }
                "iss" => callback.issuer.get_or_insert(value),
                "error" => callback.error.get_or_insert(value),
                "code" => {
                    callback.code.get_or_insert_with(|| Secret::new(value));
                    continue;
                }
                _ => continue,
            };
        }
        callback
    }

    /// Whether the user has come to this address. What a proxy in front of it takes from the path is not compared.
    pub(crate) fn is_at(&self, redirect: &str) -> bool {
        self.path.starts_with('/') && redirect.ends_with(&self.path)
    }

    /// Why there is no code, if it says so. Anybody can write that into an address, so it is no more than a word.
    pub fn refusal(&self) -> Option<TokenError> {
        self.error.as_deref().map(TokenError::from_code)
    }

    /// Whether it brings a no in place of a code.
    pub fn is_refusal(&self) -> bool {
        self.error.is_some()
    }
}

/// Compares without telling by the time it takes how much is right.
pub(crate) fn same(left: &str, right: &str) -> bool {
    let differ = left.bytes().zip(right.bytes()).fold(0, |differ, (left, right)| differ | (left ^ right));
    left.len() == right.len() && differ == 0
}

#[cfg(test)]
mod tests;

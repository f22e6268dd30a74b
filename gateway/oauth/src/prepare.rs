//! Steps one to five in a row: all that must be known of an upstream before anybody signs in.

use std::time::SystemTime;

use thiserror::Error;
use url::Url;
use weir_store::{Clock, Store};

use crate::{
    Challenge, CredentialOwner, Discovered, DiscoveryError, Http, KeyBinding, KeyFault, Login, LoginKey,
    OAuthApplication, ProofDemand, Registration, RegistrationError, Scopes, ServerMetadata, SignIn, TokenEndpoint,
    Tokens, Wishes, discover::discover, registration, scope, server,
};

/// What the config says of an upstream.
#[derive(Clone, Debug)]
pub struct PreparedUpstream {
    pub name: String,
    pub url: Url,
    /// Its authorization server, if it is not asked for it.
    pub issuer: Option<String>,
    /// Who Weir is to its authorization server.
    pub registration: Registration,
    /// What to ask for; as the servers say, if it is not given.
    pub scopes: Option<Scopes>,
    /// Whether requests say what tokens are for (RFC 8707): some servers refuse those that do.
    pub names_resource: bool,
    /// Whether somebody signs in, so that a refresh token is of use.
    pub signs_in: bool,
    /// Whether tokens are bound to a key (RFC 9449); as the upstream asks, if it is not given.
    pub dpop: Option<bool>,
}

/// All that a sign-in or a grant needs.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub upstream: String,
    pub url: Url,
    pub server: ServerMetadata,
    /// Who Weir is there.
    pub client: OAuthApplication,
    /// What tokens are asked for.
    pub resource: Option<String>,
    /// Where the user comes back to, if there is one.
    pub redirect: Option<String>,
    /// What they shall allow. To be replaced for a step-up.
    pub scopes: Scopes,
    /// When that was begun to be found out. A registration that is younger cannot have been forgotten by its server: if that
    /// refuses it, another would not help.
    pub begun: SystemTime,
    /// The key that tokens are to be bound to.
    pub proof: Option<KeyBinding>,
}

/// Why that is not known.
#[derive(Debug, Error)]
pub enum PrepareError {
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error(transparent)]
    Registration(#[from] RegistrationError),
    #[error(transparent)]
    Key(#[from] KeyFault),
}

impl PrepareError {
    /// Whether the same may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Discovery(error) => error.is_temporary(),
            Self::Registration(RegistrationError::Http(error)) => error.is_temporary(),
            Self::Key(_) => false,
            Self::Registration(error) => matches!(error, RegistrationError::Trouble { .. }),
        }
    }
}

/// Finds out what a sign-in for an upstream needs. `challenge` is from its refusal, `issuer` from a login that is there.
/// Of several servers that the upstream names, it is the one that has seen a secret of the config before, else `issuer`.
///
/// # Errors
/// If that cannot be found out; nothing that is kept is changed then.
pub async fn prepare(
    http: &Http,
    store: &dyn Store,
    clock: &Clock,
    upstream: &PreparedUpstream,
    challenge: Option<&Challenge>,
    issuer: Option<&str>,
) -> Result<Prepared, PrepareError> {
    let begun = clock.now();
    let pinned = match &upstream.issuer {
        Some(_) => None,
        None => registration::pinned(store, &upstream.registration).await?,
    };
    let (known, preferred) = (upstream.issuer.as_deref(), pinned.as_deref().or(issuer));
    let found = discover(http, &upstream.url, challenge, known, preferred).await?;
    let Discovered { resource, scopes, server, demand } = found;
    let proof = KeyBinding::choose(upstream.dpop, demand, &server)?;
    let client = registration::client(http, store, clock, &server, &upstream.registration).await?;
    let wishes = Wishes {
        configured: upstream.scopes.as_ref(),
        challenge,
        resource: &scopes,
        server: &server.scopes_supported,
        offline: upstream.signs_in,
    };
    let scopes = scope::choose(&wishes);
    Ok(Prepared { proof, ..upstream.prepared(server, client, Some(resource), scopes, begun) })
}

/// The same for a login that is there and that nobody has refused: it stays at its server, whatever the upstream names
/// now, and that server alone is asked what it says of itself. What it said before is good enough if it says nothing.
///
/// # Errors
/// As [`prepare`], which it is where the config has changed since the login was made.
pub async fn prepare_again(
    http: &Http,
    store: &dyn Store,
    clock: &Clock,
    upstream: &PreparedUpstream,
    before: &Login,
) -> Result<Prepared, PrepareError> {
    let issuer = before.server.issuer.as_str();
    let pinned = registration::pinned(store, &upstream.registration).await?;
    if !upstream.has_made(before) || pinned.is_some_and(|pinned| pinned != issuer) {
        return prepare(http, store, clock, upstream, None, Some(issuer)).await;
    }
    let begun = clock.now();
    let server = server::find(http, issuer).await.unwrap_or_else(|_| before.server.clone());
    let client = registration::client(http, store, clock, &server, &upstream.registration).await?;
    let scopes = upstream.scopes.iter().fold(before.scopes.clone(), |all, scopes| all.union(scopes));
    let proof = match &before.proof {
        Some(proof) if upstream.dpop != Some(false) => Some(proof.with(proof.bound || upstream.dpop == Some(true))),
        _ => KeyBinding::choose(upstream.dpop, ProofDemand::Unsaid, &server)?,
    };
    Ok(Prepared { proof, ..upstream.prepared(server, client, before.resource.clone(), scopes, begun) })
}

impl PreparedUpstream {
    /// Whether the config says nothing else of a login than it did when that was made: by whom, for whom, for what.
    fn has_made(&self, login: &Login) -> bool {
        let known = self.registration.known.as_ref();
        self.issuer.as_ref().is_none_or(|issuer| *issuer == login.server.issuer)
            && known.is_none_or(|known| known.client.id == login.client.id)
            && (!self.names_resource || login.resource.is_some())
    }

    /// `resource` is what was found.
    fn prepared(
        &self,
        server: ServerMetadata,
        client: OAuthApplication,
        resource: Option<String>,
        scopes: Scopes,
        begun: SystemTime,
    ) -> Prepared {
        let resource = resource.filter(|_| self.names_resource);
        let (upstream, url, redirect) = (self.name.clone(), self.url.clone(), self.registration.redirect_for(&server));
        Prepared { upstream, url, server, client, resource, redirect, scopes, begun, proof: None }
    }
}

impl Prepared {
    /// Where a login of this owner is kept.
    pub fn key(&self, owner: CredentialOwner) -> LoginKey {
        LoginKey { upstream: self.upstream.clone(), owner, issuer: self.server.issuer.clone() }
    }

    /// A sign-in with a browser.
    pub fn sign_in(&self) -> SignIn {
        SignIn {
            server: self.server.clone(),
            client: self.client.clone(),
            redirect: self.redirect.clone().unwrap_or_default(),
            resource: self.resource.clone(),
            scopes: self.scopes.clone(),
            nonce: None,
            prompt: None,
            proof: self.proof.clone(),
        }
    }

    /// The token endpoint, for a grant or a device.
    pub fn endpoint<'a>(&'a self, clock: &'a Clock) -> TokenEndpoint<'a> {
        let (resource, proof) = (self.resource.as_deref(), self.proof.as_ref());
        TokenEndpoint { server: &self.server, client: &self.client, resource, proof, clock }
    }

    /// What to keep of `tokens` that were asked for at `asked`.
    pub fn login(&self, tokens: Tokens, asked: SystemTime) -> Login {
        let (resource, client, server) = (self.resource.clone(), self.client.clone(), self.server.clone());
        let proof = self.proof.as_ref().map(|proof| proof.with(tokens.is_bound()));
        Login { proof, ..Login::new(tokens, &self.url, resource, &self.scopes, client, server, asked) }
    }
}

#[cfg(test)]
mod tests;

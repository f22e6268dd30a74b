//! Who may call Weir, what opens an upstream, and where logins are kept.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_store::{PasswordSource, RedisTarget, RedisUrlError};

use super::{SecretSource, inherit::STORE_PASSWORD};

/// What opens an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Nothing is sent but what its headers are, and nothing is asked for.
    None,
    /// Nothing was said. If the upstream asks for a login, it is offered.
    Unsaid,
    /// A token in the `Authorization` header (RFC 6750 §2.1).
    Bearer(SecretSource),
    /// A token of an authorization server.
    OAuth(Box<OAuthClient>),
}

/// How a token is got from an authorization server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoginFlow {
    /// A person signs in with a browser (RFC 6749 §4.1).
    #[default]
    AuthorizationCode,
    /// A person types a code on another device (RFC 8628).
    DeviceCode,
    /// Weir proves who it is itself (RFC 6749 §4.4).
    ClientCredentials,
    /// The platform says who this workload is (RFC 7523 §2.1).
    JwtBearer,
    /// The caller's identity is exchanged (RFC 8693).
    TokenExchange,
}

/// What a token is said to be when it is exchanged (RFC 8693 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectType {
    /// An access token.
    AccessToken,
    /// A token of who signed in (OpenID Connect).
    IdToken,
    /// A JWT, whatever it is for.
    Jwt,
}

/// Whose a login is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoginOwner {
    /// One for all callers.
    #[default]
    Shared,
    /// One for each.
    Principal,
}

/// How Weir is a client of an upstream's authorization server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OAuthClient {
    /// The way to a token.
    pub flow: LoginFlow,
    /// Whose it is.
    pub owner: LoginOwner,
    /// The authorization server, if the upstream is not asked for it. Whatever is exchanged goes to one that is named here
    /// or to the identity provider.
    pub issuer: Option<String>,
    /// Weir's name there, if it is not registered when it first comes.
    pub client_id: Option<String>,
    /// Its password.
    pub client_secret: Option<SecretSource>,
    /// The key that it signs with instead, and how; PEM.
    pub private_key: Option<SecretSource>,
    /// How it signs; by the kind of key if this is none.
    pub algorithm: Option<&'static str>,
    /// The statement of the platform that it shows instead.
    pub client_assertion: Option<SecretSource>,
    /// The statement of the platform that is exchanged.
    pub assertion: Option<SecretSource>,
    /// The scopes to ask for; empty for those that the upstream names.
    pub scopes: Vec<String>,
    /// The token that is exchanged; none for the caller's own.
    pub subject_token: Option<SecretSource>,
    /// What it is said to be; none for an access token, or for a token of who signed in at an identity provider.
    pub subject_token_type: Option<SubjectType>,
    /// For whom a token is exchanged.
    pub audience: Option<String>,
    /// Whether requests name the upstream as `resource` (RFC 8707).
    pub resource: bool,
    /// Whether tokens are bound to a key (RFC 9449); none to do as the upstream asks.
    pub dpop: Option<bool>,
    /// Whether authorization servers may be at private addresses.
    pub private_network: bool,
    /// How long before its end a token is renewed.
    pub renew_before: Option<Duration>,
    /// Where the caller's identity is exchanged first.
    pub identity_provider: Option<IdentityProvider>,
}

/// The authorization server that vouches for callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityProvider {
    /// Where tokens are exchanged.
    pub token_endpoint: String,
    /// Weir's name there.
    pub client_id: Option<String>,
    /// Its password there.
    pub client_secret: Option<SecretSource>,
}

/// Whose tokens clients must bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundAuth {
    /// The authorization server, exactly as `iss` names it.
    pub issuer: String,
    /// What `aud` must name.
    pub audience: String,
    /// The signatures that are accepted.
    pub algorithms: Vec<&'static str>,
    /// Where its keys are, if its metadata does not say.
    pub jwks: Option<String>,
    /// What a token must allow, all of it.
    pub scopes: Vec<String>,
    /// The claim that lists the groups of a caller.
    pub groups_claim: String,
    /// Weir's name there, if it is not registered when somebody first comes to sign in.
    pub client_id: Option<String>,
    /// Its password there.
    pub client_secret: Option<SecretSource>,
    /// The key that it signs with instead; PEM.
    pub private_key: Option<SecretSource>,
    /// How its tokens are checked by asking it; none for JWTs, which its keys check.
    pub introspection: Option<TokenIntrospection>,
    /// Whether its tokens must be bound to a key that the caller proves to hold.
    pub require_dpop: bool,
    /// Whether proofs must have a nonce of Weir.
    pub dpop_nonce: bool,
    /// Whether whoever brings a link to sign in is taken for the caller it was made for.
    pub trust_sign_in_links: bool,
}

/// How an issuer is asked what a token is good for (RFC 7662).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIntrospection {
    /// Where; none for what its metadata says.
    pub endpoint: Option<String>,
    /// How long an answer is good for.
    pub cache: Duration,
}

/// Weir as an authorization server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationServerConfig {
    /// How long an access token is good for.
    pub access_token_lifetime: Duration,
    /// How people sign in with their clients; none if they do not.
    pub sign_in: Option<ClientSignIn>,
    /// The clients that the operator names.
    pub clients: Vec<AuthorizedClient>,
}

/// How people sign in to Weir with their MCP clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSignIn {
    /// Whether clients that the operator has not named may be used.
    pub registration: bool,
    /// Whether documents of clients may be at private addresses.
    pub private_network: bool,
    /// How long after a sign-in its client gets new access tokens.
    pub refresh_token_lifetime: Duration,
}

/// A client of Weir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizedClient {
    /// Its name.
    pub client_id: String,
    /// How it proves who it is.
    pub proof: ClientProof,
    /// Where browsers may return to it.
    pub redirect_uris: Vec<String>,
}

/// How a client proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientProof {
    /// Not at all.
    None,
    /// With a secret.
    Secret(SecretSource),
    /// With statements that a key of this set has signed (RFC 7523 §2.2).
    Keys(String),
}

/// Where logins are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoginStore {
    /// The file; none if the system names no place for it.
    pub path: Option<PathBuf>,
    /// The server that has it in place of the file; none if there is none.
    pub shared: Option<SharedStore>,
    /// Where its key is; none for the system's keyring or a file beside the store.
    pub key: Option<SecretSource>,
}

/// A server that several gateways share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedStore {
    /// Where it is, without a password.
    pub url: String,
    /// What its keys begin with; none for the usual prefix.
    pub prefix: Option<String>,
    pub password: Option<SecretSource>,
    pub sentinel_password: Option<SecretSource>,
    /// The certificates that are trusted; none for those of the system.
    pub ca: Option<PathBuf>,
}

/// Where the password of a shared store is that no configuration names; none if it is nowhere.
#[must_use]
pub fn store_password() -> Option<SecretSource> {
    std::env::var_os(STORE_PASSWORD).map(|_| SecretSource::Env(STORE_PASSWORD.to_owned()))
}

impl SharedStore {
    /// The server. Reads no secret.
    ///
    /// # Errors
    /// If the URL leads to none.
    pub fn target(&self) -> Result<RedisTarget, RedisUrlError> {
        let source = |source: &SecretSource| -> PasswordSource {
            let source = source.clone();
            Arc::new(move || source.read().map_err(|why| why.to_string()))
        };
        let mut target = RedisTarget::parse(&self.url)?;
        if let Some(prefix) = &self.prefix {
            target = target.with_prefix(prefix)?;
        }
        target.password = self.password.as_ref().map(source);
        target.sentinel_password = self.sentinel_password.as_ref().map(source);
        target.ca.clone_from(&self.ca);
        Ok(target)
    }
}

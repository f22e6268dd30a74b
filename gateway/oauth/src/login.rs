//! A login as it is kept: everything that is needed to use and to refresh it, so that neither asks anybody who the
//! servers are.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use url::Url;
use weir_store::{Clock, Key, Listed, Secret, Value, Version};
use zeroize::Zeroizing;

use crate::{
    Http, KeyBinding, OAuthApplication, ProofKey, Revoked, Scopes, ServerMetadata, TokenEndpoint, TokenError, Tokens,
    client::ClientRecord, discover::lenient, revoke::revoke,
};

/// Whose login it is, for which upstream, and who gave it. A credential of one issuer is never shown to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LoginKey {
    /// The name of the upstream in the config.
    pub upstream: String,
    /// Who it belongs to.
    pub owner: CredentialOwner,
    /// The issuer of the authorization server.
    pub issuer: String,
}

/// Who a login belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CredentialOwner {
    /// Everybody who calls.
    Shared,
    /// One principal: who vouches for it, and its subject there.
    Principal(String, String),
}

#[derive(Clone, Debug)]
pub struct Login {
    /// The origin that may see the access token, and no other.
    pub origin: String,
    /// What it is for (RFC 8707).
    pub resource: Option<String>,
    /// What it may do, as far as that is known.
    pub scopes: Scopes,
    pub access: Secret,
    /// When it was made.
    pub issued: SystemTime,
    /// When that ends; none if nobody said.
    pub expires: Option<SystemTime>,
    /// Buys the next one.
    pub refresh: Option<Secret>,
    /// As whom it was made.
    pub client: OAuthApplication,
    /// Where it is refreshed and given back.
    pub server: ServerMetadata,
    /// The key that its tokens were asked for with, and whether the access token is bound to it (RFC 9449).
    pub proof: Option<KeyBinding>,
    /// Set when the server has ended it: only a new sign-in helps.
    pub ended: bool,
}

/// What may be shown of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginSummary {
    /// Whose, for what, from whom.
    pub key: LoginKey,
    /// The only origin that may see its access token.
    pub origin: String,
    /// When its access token was made.
    pub issued: SystemTime,
    pub scopes: Scopes,
    /// When its access token ends.
    pub expires: Option<SystemTime>,
    /// Whether it can be refreshed.
    pub refreshable: bool,
    /// Whether its access token is bound to a key (RFC 9449).
    pub bound: bool,
    /// Whether only a new sign-in helps.
    pub ended: bool,
    /// Which writing of it this is: the later of two logins has the greater one.
    pub version: Version,
}

const NAMESPACE: &str = "login";

impl LoginKey {
    /// The namespace of logins in a store.
    pub const NAMESPACE: &str = NAMESPACE;

    /// Where it is in the store.
    pub(crate) fn place(&self) -> Key {
        self.key(NAMESPACE)
    }

    /// Who may refresh it.
    pub(crate) fn lease(&self) -> Key {
        self.key("refresh")
    }

    /// Where all logins are in a store, or where those at one upstream are, of one owner.
    pub fn range(upstream: Option<&str>, owner: Option<&CredentialOwner>) -> Key {
        let parts: Vec<&str> = upstream.into_iter().chain(owner.into_iter().flat_map(CredentialOwner::parts)).collect();
        Key::new(NAMESPACE, &parts)
    }

    /// What is kept in another namespace for this login. The logins of one owner at one upstream are one range.
    pub fn key(&self, namespace: &str) -> Key {
        let mut parts = vec![self.upstream.as_str()];
        parts.extend(self.owner.parts());
        parts.push(&self.issuer);
        Key::new(namespace, &parts)
    }

    fn from_key(key: &Key) -> Option<Self> {
        let parts = key.parts();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (upstream, owner, issuer) = match parts[..] {
            [upstream, "shared", issuer] => (upstream, CredentialOwner::Shared, issuer),
            [upstream, "principal", of, subject, issuer] => {
                (upstream, CredentialOwner::Principal(of.to_owned(), subject.to_owned()), issuer)
            }
            _ => return None,
        };
        Some(Self { upstream: upstream.to_owned(), owner, issuer: issuer.to_owned() })
    }
}

impl CredentialOwner {
    /// It as parts of a key.
    pub(crate) fn parts(&self) -> Vec<&str> {
        match self {
            Self::Shared => vec!["shared"],
            Self::Principal(issuer, subject) => vec!["principal", issuer, subject],
        }
    }
}

impl Login {
    /// A login from a sign-in that has just ended well. `asked` is what it was asked to do, `now` when that was.
    pub fn new(
        tokens: Tokens,
        upstream: &Url,
        resource: Option<String>,
        asked: &Scopes,
        client: OAuthApplication,
        server: ServerMetadata,
        now: SystemTime,
    ) -> Self {
        Self {
            origin: crate::http::origin(upstream),
            resource,
            scopes: tokens.scopes.unwrap_or_else(|| asked.clone()),
            issued: time(millis(now)),
            expires: tokens.lifetime.and_then(|lifetime| now.checked_add(lifetime)),
            access: tokens.access,
            refresh: tokens.refresh,
            client,
            server,
            proof: None,
            ended: false,
        }
    }

    /// The same login with the tokens of a refresh. A server that does not rotate gives no new refresh token.
    pub(crate) fn renewed(&self, tokens: Tokens, now: SystemTime) -> Self {
        Self {
            proof: self.proof.as_ref().map(|proof| proof.with(tokens.is_bound())),
            scopes: tokens.scopes.unwrap_or_else(|| self.scopes.clone()),
            issued: time(millis(now)),
            expires: tokens.lifetime.and_then(|lifetime| now.checked_add(lifetime)),
            access: tokens.access,
            refresh: tokens.refresh.or_else(|| self.refresh.clone()),
            ended: false,
            ..self.clone()
        }
    }

    /// Has the server forget it (RFC 7009): its refresh token, or where there is none its access token.
    pub(crate) async fn revoke(&self, http: &Http, clock: &Clock) -> Result<(), TokenError> {
        let refresh = self.refresh.as_ref().map(|token| (token, Revoked::Refresh));
        let (token, kind) = refresh.unwrap_or((&self.access, Revoked::Access));
        revoke(http, &self.endpoint(clock), token, kind).await
    }

    /// Whether its access token is bound to a key.
    pub(crate) fn is_bound(&self) -> bool {
        self.proof.as_ref().is_some_and(|proof| proof.bound)
    }

    pub(crate) fn endpoint<'a>(&'a self, clock: &'a Clock) -> TokenEndpoint<'a> {
        let (resource, proof) = (self.resource.as_deref(), self.proof.as_ref());
        TokenEndpoint { server: &self.server, client: &self.client, resource, proof, clock }
    }

    /// Whether its access token is good for at least `margin` more, as far as anybody said.
    pub(crate) fn is_good(&self, now: SystemTime, margin: Duration) -> bool {
        self.expires.is_none_or(|expires| now.checked_add(margin).is_some_and(|until| until < expires))
    }

    pub(crate) fn value(&self) -> Value {
        let kept = EncryptedPart::from(self);
        Value {
            about: serde_json::to_string(&LoginRecord::from(self)).unwrap_or_default(),
            secret: Zeroizing::new(serde_json::to_vec(&kept).unwrap_or_default()),
        }
    }

    pub(crate) fn from_value(value: &Value) -> Option<Self> {
        let about: LoginRecord = serde_json::from_str(&value.about).ok()?;
        let kept: EncryptedPart = serde_json::from_slice(&value.secret).ok()?;
        kept.into_login(&about)
    }
}

impl LoginSummary {
    /// Of a login that the store has not got yet in place of the version given.
    pub(crate) fn of(key: LoginKey, login: &Login, version: Version) -> Self {
        LoginRecord::from(login).summary(key, version)
    }

    /// From a list of the store.
    pub fn from_listed(listed: &Listed) -> Option<Self> {
        let about: LoginRecord = serde_json::from_str(&listed.about).ok()?;
        Some(about.summary(LoginKey::from_key(&listed.key)?, listed.version))
    }
}

/// What anybody may read.
#[derive(Deserialize, Serialize)]
struct LoginRecord {
    origin: String,
    scopes: String,
    /// In milliseconds since 1970.
    issued: u64,
    /// In milliseconds since 1970.
    expires: Option<u64>,
    refreshable: bool,
    #[serde(default)]
    bound: bool,
    ended: bool,
}

impl From<&Login> for LoginRecord {
    fn from(login: &Login) -> Self {
        Self {
            origin: login.origin.clone(),
            scopes: login.scopes.render(),
            issued: millis(login.issued),
            expires: login.expires.map(millis),
            refreshable: login.refresh.is_some(),
            bound: login.is_bound(),
            ended: login.ended,
        }
    }
}

impl LoginRecord {
    fn summary(self, key: LoginKey, version: Version) -> LoginSummary {
        LoginSummary {
            key,
            origin: self.origin,
            issued: time(self.issued),
            scopes: Scopes::parse(&self.scopes),
            expires: self.expires.map(time),
            refreshable: self.refreshable,
            bound: self.bound,
            ended: self.ended,
            version,
        }
    }
}

/// What is encrypted. The one place where secrets are written.
#[derive(Deserialize, Serialize)]
struct EncryptedPart {
    #[serde(default, deserialize_with = "lenient")]
    resource: Option<String>,
    access: String,
    #[serde(default, deserialize_with = "lenient")]
    refresh: Option<String>,
    client: ClientRecord,
    issuer: String,
    token_endpoint: Option<Url>,
    revocation_endpoint: Option<Url>,
    /// The key of the login, PKCS#8 in base64.
    #[serde(default, deserialize_with = "lenient")]
    proof: Option<String>,
}

impl From<&Login> for EncryptedPart {
    fn from(login: &Login) -> Self {
        Self {
            resource: login.resource.clone(),
            access: login.access.expose().to_owned(),
            refresh: login.refresh.as_ref().map(|token| token.expose().to_owned()),
            client: ClientRecord::from(&login.client),
            issuer: login.server.issuer.clone(),
            token_endpoint: login.server.token_endpoint.clone(),
            revocation_endpoint: login.server.revocation_endpoint.clone(),
            proof: login.proof.as_ref().map(|proof| proof.key.stored().expose().to_owned()),
        }
    }
}

impl EncryptedPart {
    fn into_login(self, about: &LoginRecord) -> Option<Login> {
        // Without its key a login is of no use, so one that cannot be read makes the whole unreadable.
        let key = self.proof.map(|key| ProofKey::restore(Secret::new(key)).ok_or(())).transpose().ok()?;
        Some(Login {
            proof: key.map(|key| KeyBinding { key: Arc::new(key), bound: about.bound }),
            origin: about.origin.clone(),
            resource: self.resource,
            scopes: Scopes::parse(&about.scopes),
            access: Secret::new(self.access),
            issued: time(about.issued),
            expires: about.expires.map(time),
            refresh: self.refresh.map(Secret::new),
            client: self.client.into_client(),
            server: ServerMetadata {
                issuer: self.issuer,
                token_endpoint: self.token_endpoint,
                revocation_endpoint: self.revocation_endpoint,
                ..ServerMetadata::default()
            },
            ended: about.ended,
        })
    }
}

pub(crate) fn millis(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis)).unwrap_or(UNIX_EPOCH)
}

//! The access tokens that Weir issues itself: how they are made (RFC 9068), and what they open.
//!
//! A caller stays who it is at the issuer that vouched for it, so rules and credentials are the same whichever token it
//! brings. The claim `idp` has the name of that issuer, which must still be one of the configuration.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use weir_oauth::{
    Clock,
    inbound::{Algorithm, Issuer, Rejected, VerifiedToken, Verifier},
};

use crate::{
    config::{AuthorizationServerConfig, Config},
    credential::{CredentialManager, IssuerStore, TokenGrant},
    sign_in_links::random,
    telemetry::Refusals,
};

use super::{issuer::LEEWAY, resource::Resource};

/// Who vouched for the caller.
const VOUCHED_BY: &str = "idp";
/// The longest token, in bytes: clients put it into a header.
const LONGEST: usize = 12 * 1024;

/// Weir as an issuer of access tokens.
pub(in crate::server) struct OwnTokens {
    /// Its name.
    pub(in crate::server) issuer: String,
    /// Whether people sign in here with their clients.
    pub(super) signs_in: bool,
    /// How long a token is good for.
    pub(in crate::server) lifetime: Duration,
    pub(in crate::server) store: IssuerStore,
    pub(in crate::server) clock: Clock,
    verifier: Verifier,
    /// What the log has of keys that could not be read: whoever sends a token brings that about.
    unread: Refusals,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(in crate::server) enum MintError {
    #[error("the groups of the caller make a token of more than {LONGEST} bytes")]
    TooLong,
    #[error("Weir can sign no token: {0}")]
    Unavailable(String),
}

impl OwnTokens {
    pub(super) fn new(
        config: &Config,
        settings: &AuthorizationServerConfig,
        manager: &CredentialManager,
        resource: &Resource,
        clock: Clock,
    ) -> Option<Arc<Self>> {
        let issuer = config.public_url.clone()?;
        let checked = Issuer {
            issuer: issuer.clone(),
            audiences: resource.addresses(),
            keys: None,
            leeway: LEEWAY,
            algorithms: vec![Algorithm::ES256],
            groups: "groups".to_owned(),
        };
        let verifier = Verifier::local(checked, clock.clone());
        let (lifetime, store) = (settings.access_token_lifetime, manager.issuer_store());
        Some(Arc::new(Self {
            issuer,
            signs_in: settings.sign_in.is_some(),
            lifetime,
            store,
            clock,
            verifier,
            unread: Refusals::new(),
        }))
    }

    /// Who calls with a token, by the name of the issuer that vouched for them.
    pub(super) async fn check(&self, token: &str) -> Result<VerifiedToken, Rejected> {
        match self.store.keys().await {
            Ok(keys) => self.verifier.set_keys(keys.public.clone()),
            // What was read before is still good.
            Err(why) => {
                if let Some(suppressed) = self.unread.admit(Instant::now()) {
                    tracing::error!(suppressed, "the keys of Weir's own tokens cannot be read: {why}");
                }
            }
        }
        let found = self.verifier.verify(token).await?;
        let issuer = found.claims.get(VOUCHED_BY).and_then(Value::as_str).ok_or(Rejected::Missing(VOUCHED_BY))?;
        Ok(VerifiedToken { issuer: issuer.to_owned(), ..found })
    }

    /// Makes a token.
    pub(in crate::server) async fn mint(&self, grant: &TokenGrant) -> Result<String, MintError> {
        let unavailable = |why: &dyn std::fmt::Display| MintError::Unavailable(why.to_string());
        let keys = self.store.keys().await.map_err(|why| unavailable(&why))?;
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = random().ok_or_else(|| unavailable(&"the system has no randomness to give"))?;
        let mut claims = json!({
            "iss": self.issuer,
            "sub": grant.subject,
            "aud": grant.resource,
            "client_id": grant.client,
            "scope": grant.scope,
            "iat": now,
            "exp": now + self.lifetime.as_secs(),
            "jti": id,
        });
        claims[VOUCHED_BY] = grant.vouched_by.as_str().into();
        if !grant.groups.is_empty() {
            claims["groups"] = grant.groups.as_slice().into();
        }
        for (name, value) in &grant.claims {
            claims[name] = value.clone();
        }
        let token = keys.signing.sign("at+jwt", &claims).ok_or_else(|| unavailable(&"the key does not sign"))?;
        if token.len() > LONGEST { Err(MintError::TooLong) } else { Ok(token) }
    }

    /// What time it is.
    pub(in crate::server) fn now(&self) -> SystemTime {
        self.clock.now()
    }
}

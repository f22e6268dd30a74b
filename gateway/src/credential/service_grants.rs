//! Tokens that Weir gets without anybody: in its own name, or with the identity that a caller has brought.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use url::Url;
use weir_flow::facts::TokenOutcome;
use weir_oauth::{
    Challenge, ClientAuth, Clock, Http, Login, LoginKey, OAuthApplication, Obtain, Prepared, Renewal, Scopes, Secret,
    ServerMetadata, Subject, TokenEndpoint, TokenError, TokenKind, Tokens, grants, prepare, prepare_again,
    registration,
};
use weir_store::Store;

use crate::config::{IdentityProvider, LoginFlow, SubjectType};

use super::{TokenSubject, UpstreamAuth, settings};

/// A registration that is refused sooner than this would not get better by being made again.
const JUST_MADE: Duration = Duration::from_secs(3600);

/// One way to a token, with all that it takes.
struct ServiceGrants {
    http: Http,
    store: Arc<dyn Store>,
    clock: Clock,
    prepared: Prepared,
    way: ServiceGrant,
}

enum ServiceGrant {
    /// RFC 6749 §4.4.
    Credentials,
    /// RFC 7523 §2.1, with a statement of the platform.
    Workload(Secret),
    /// RFC 8693.
    Exchange { subject: Secret, kind: TokenKind, audience: Option<String> },
    /// The same at the company's identity provider, and what that vouches for at the upstream's server (ID-JAG).
    Vouched { subject: Secret, kind: TokenKind, provider: Box<ServerMetadata>, client: OAuthApplication },
}

impl UpstreamAuth {
    /// Where a login of its own is kept, and how it is made. `before` is the one that is there, which must not become
    /// less; it moves to another issuer only if the upstream has refused its token with a `challenge`, or if the
    /// configuration says something else than when it was made.
    pub(super) async fn prepared_alone(
        &self,
        asker: &TokenSubject,
        scopes: &[String],
        challenge: Option<&Challenge>,
        before: Option<&Login>,
    ) -> Result<(LoginKey, Renewal), TokenOutcome> {
        let (opened, http) = self.tools().await.map_err(TokenOutcome::Failed)?;
        let upstream = settings::upstream(&self.name, &self.url, &self.oauth, self.document.as_ref(), None, false)
            .map_err(|why| TokenOutcome::Failed(why.to_string()))?;
        let way = self.way(asker)?;
        let clock = &self.token_store.clock;
        let store = opened.store.as_ref();
        let prepared = match (before, challenge) {
            (Some(before), None) => prepare_again(http, store, clock, &upstream, before).await,
            _ => {
                let issuer = before.map(|login| login.server.issuer.as_str());
                prepare(http, store, clock, &upstream, challenge, issuer).await
            }
        };
        let mut prepared = prepared.map_err(|why| match why.is_temporary() {
            true => TokenOutcome::Failed(why.to_string()),
            false => TokenOutcome::Denied(why.to_string()),
        })?;
        if !scopes.is_empty() {
            prepared.scopes = scopes.iter().cloned().collect::<Scopes>();
        } else if let Some(before) = before {
            prepared.scopes = prepared.scopes.union(&before.scopes);
        }
        let key = prepared.key(asker.owner.clone());
        let (http, store) = (http.clone(), Arc::clone(&opened.store));
        let alone = ServiceGrants { http, store, clock: clock.clone(), prepared, way };
        Ok((key, Renewal::Obtain(Arc::new(alone))))
    }

    fn way(&self, asker: &TokenSubject) -> Result<ServiceGrant, TokenOutcome> {
        if let (LoginFlow::JwtBearer, Some(source)) = (self.oauth.flow, &self.oauth.assertion) {
            // The platform may write it a moment later.
            let statement = source.read().map_err(|why| TokenOutcome::Failed(why.to_string()))?;
            return Ok(ServiceGrant::Workload(statement));
        }
        if self.oauth.flow != LoginFlow::TokenExchange {
            return Ok(ServiceGrant::Credentials);
        }
        let subject = match &self.oauth.subject_token {
            Some(source) => source.read().map_err(|why| TokenOutcome::Denied(why.to_string()))?,
            None => {
                let none = || TokenOutcome::Denied("the caller has brought no token to exchange".to_owned());
                asker.token.clone().ok_or_else(none)?
            }
        };
        let kind = self.oauth.subject_token_type.map(|kind| match kind {
            SubjectType::AccessToken => TokenKind::Access,
            SubjectType::IdToken => TokenKind::Identity,
            SubjectType::Jwt => TokenKind::Jwt,
        });
        match &self.oauth.identity_provider {
            None => {
                let (kind, audience) = (kind.unwrap_or(TokenKind::Access), self.oauth.audience.clone());
                Ok(ServiceGrant::Exchange { subject, kind, audience })
            }
            Some(provider) => {
                let (provider, client) = identity_provider(provider).map_err(TokenOutcome::Failed)?;
                // What it vouches for is who somebody is.
                let kind = kind.unwrap_or(TokenKind::Identity);
                Ok(ServiceGrant::Vouched { subject, kind, provider: Box::new(provider), client })
            }
        }
    }
}

fn identity_provider(written: &IdentityProvider) -> Result<(ServerMetadata, OAuthApplication), String> {
    let endpoint: Url = written.token_endpoint.parse().map_err(|_| "the token endpoint is no URL".to_owned())?;
    let auth = match &written.client_secret {
        Some(source) => ClientAuth::Basic(source.read().map_err(|why| why.to_string())?),
        None => ClientAuth::None,
    };
    let server = ServerMetadata {
        issuer: endpoint.origin().ascii_serialization(),
        token_endpoint: Some(endpoint),
        ..ServerMetadata::default()
    };
    Ok((server, OAuthApplication { id: written.client_id.clone().unwrap_or_default(), auth }))
}

impl ServiceGrants {
    async fn ask(&self) -> Result<Tokens, TokenError> {
        let (endpoint, scopes) = (self.prepared.endpoint(&self.clock), &self.prepared.scopes);
        match &self.way {
            ServiceGrant::Credentials => grants::client_credentials(&self.http, &endpoint, scopes).await,
            ServiceGrant::Workload(statement) => {
                let given = grants::assertion(&self.http, &endpoint, statement, scopes).await;
                given.map_err(|why| match why {
                    TokenError::InvalidGrant => {
                        let why = "the `assertion` is not accepted (invalid_grant); check its audience and expiry";
                        TokenError::Refused(why.to_owned())
                    }
                    why => why,
                })
            }
            ServiceGrant::Exchange { subject, kind, audience } => {
                let subject = Subject { token: subject, kind: *kind };
                grants::exchange(&self.http, &endpoint, subject, None, audience.as_deref(), scopes).await
            }
            ServiceGrant::Vouched { subject, kind, provider, client } => {
                let subject = Subject { token: subject, kind: *kind };
                let provider =
                    TokenEndpoint { server: provider, client, resource: None, proof: None, clock: &self.clock };
                grants::vouched(&self.http, &provider, subject, &endpoint, scopes).await
            }
        }
    }

    /// The server does not know Weir. It may have forgotten what it registered; then the next attempt registers anew.
    async fn disowned(&self) {
        let Prepared { server, client, .. } = &self.prepared;
        let before = self.clock.now().checked_sub(JUST_MADE);
        // Should that fail, the same is done after the next refusal.
        drop(registration::forget(self.store.as_ref(), &server.issuer, &client.id, before).await);
    }
}

#[async_trait]
impl Obtain for ServiceGrants {
    async fn obtain(&self) -> Result<Login, TokenError> {
        let asked = self.clock.now();
        let tokens = self.ask().await;
        if matches!(tokens, Err(TokenError::InvalidClient)) {
            self.disowned().await;
        }
        Ok(self.prepared.login(tokens?, asked))
    }
}

//! Tokens that Weir gets without anybody: in its own name, or with the identity that a caller has brought.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use url::Url;
use weir_flow::facts::Ending;
use weir_oauth::{
    Challenge, Client, ClientAuth, Clock, Endpoint, Http, Login, LoginKey, Obtain, Prepared, Renewal, Scopes, Secret,
    ServerMetadata, Subject, TokenError, TokenKind, Tokens, grants, prepare, prepare_again, registration,
};
use weir_store::Store;

use crate::config::{Flow, IdentityProvider, SubjectType};

use super::{Account, Asker, settings};

/// A registration that is refused sooner than this would not get better by being made again.
const JUST_MADE: Duration = Duration::from_secs(3600);

/// One way to a token, with all that it takes.
struct Alone {
    http: Http,
    store: Arc<dyn Store>,
    clock: Clock,
    prepared: Prepared,
    way: Way,
}

enum Way {
    /// RFC 6749 §4.4.
    Credentials,
    /// RFC 8693.
    Exchange { subject: Secret, kind: TokenKind, audience: Option<String> },
    /// The same at the company's identity provider, and what that vouches for at the upstream's server (ID-JAG).
    Vouched { subject: Secret, kind: TokenKind, provider: Box<ServerMetadata>, client: Client },
}

impl Account {
    /// Where a login of its own is kept, and how it is made. `before` is the one that is there, which must not become
    /// less; it moves to another issuer only if the upstream has refused its token with a `challenge`, or if the
    /// configuration says something else than when it was made.
    pub(super) async fn prepared_alone(
        &self,
        asker: &Asker,
        scopes: &[String],
        challenge: Option<&Challenge>,
        before: Option<&Login>,
    ) -> Result<(LoginKey, Renewal), Ending> {
        let (opened, http) = self.tools().await.map_err(Ending::Failed)?;
        let upstream = settings::upstream(&self.name, &self.url, &self.oauth, self.document.as_ref(), None, false)
            .map_err(|why| Ending::Failed(why.to_string()))?;
        let way = self.way(asker)?;
        let clock = &self.vault.clock;
        let store = opened.store.as_ref();
        let prepared = match (before, challenge) {
            (Some(before), None) => prepare_again(http, store, clock, &upstream, before).await,
            _ => {
                let issuer = before.map(|login| login.server.issuer.as_str());
                prepare(http, store, clock, &upstream, challenge, issuer).await
            }
        };
        let mut prepared = prepared.map_err(|why| match why.is_temporary() {
            true => Ending::Failed(why.to_string()),
            false => Ending::Denied(why.to_string()),
        })?;
        if !scopes.is_empty() {
            prepared.scopes = scopes.iter().cloned().collect::<Scopes>();
        } else if let Some(before) = before {
            prepared.scopes = prepared.scopes.union(&before.scopes);
        }
        let key = prepared.key(asker.owner.clone());
        let (http, store) = (http.clone(), Arc::clone(&opened.store));
        let alone = Alone { http, store, clock: clock.clone(), prepared, way };
        Ok((key, Renewal::Obtain(Arc::new(alone))))
    }

    fn way(&self, asker: &Asker) -> Result<Way, Ending> {
        if self.oauth.flow != Flow::TokenExchange {
            return Ok(Way::Credentials);
        }
        let subject = match &self.oauth.subject_token {
            Some(source) => {
                let token = source.read().map_err(|why| Ending::Denied(why.to_string()))?;
                Secret::new(token.expose().to_owned())
            }
            None => {
                let none = || Ending::Denied("the caller has brought no token to exchange".to_owned());
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
                Ok(Way::Exchange { subject, kind, audience })
            }
            Some(provider) => {
                let (provider, client) = identity_provider(provider).map_err(Ending::Failed)?;
                // What it vouches for is who somebody is.
                let kind = kind.unwrap_or(TokenKind::Identity);
                Ok(Way::Vouched { subject, kind, provider: Box::new(provider), client })
            }
        }
    }
}

fn identity_provider(written: &IdentityProvider) -> Result<(ServerMetadata, Client), String> {
    let endpoint: Url = written.token_endpoint.parse().map_err(|_| "the token endpoint is no URL".to_owned())?;
    let auth = match &written.client_secret {
        Some(source) => {
            let secret = source.read().map_err(|why| why.to_string())?;
            ClientAuth::Basic(Secret::new(secret.expose().to_owned()))
        }
        None => ClientAuth::None,
    };
    let server = ServerMetadata {
        issuer: endpoint.origin().ascii_serialization(),
        token_endpoint: Some(endpoint),
        ..ServerMetadata::default()
    };
    Ok((server, Client { id: written.client_id.clone().unwrap_or_default(), auth }))
}

impl Alone {
    async fn ask(&self) -> Result<Tokens, TokenError> {
        let (endpoint, scopes) = (self.prepared.endpoint(&self.clock), &self.prepared.scopes);
        match &self.way {
            Way::Credentials => grants::client_credentials(&self.http, &endpoint, scopes).await,
            Way::Exchange { subject, kind, audience } => {
                let subject = Subject { token: subject, kind: *kind };
                grants::exchange(&self.http, &endpoint, subject, audience.as_deref(), scopes).await
            }
            Way::Vouched { subject, kind, provider, client } => {
                let subject = Subject { token: subject, kind: *kind };
                let provider = Endpoint { server: provider, client, resource: None, clock: &self.clock };
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
impl Obtain for Alone {
    async fn obtain(&self) -> Result<Login, TokenError> {
        let asked = self.clock.now();
        let tokens = self.ask().await;
        if matches!(tokens, Err(TokenError::InvalidClient)) {
            self.disowned().await;
        }
        Ok(self.prepared.login(tokens?, asked))
    }
}

//! Who Weir is to the issuer of its callers, where people say at the page who they are.
//!
//! It becomes a client there as it does at the authorization servers of upstreams, and is registered but once where both
//! are the same.

use std::sync::Arc;

use url::Url;
use weir_oauth::{Http, OAuthApplication, PrepareError, RegistrationError, ServerMetadata, registration};

use crate::config::{Config, InboundAuth};

use super::{CredentialManager, SignInFailure, TokenStoreError, settings, token_store::TokenStore};

/// Weir as a client of the issuer of its callers.
pub struct Identity {
    token_store: Arc<TokenStore>,
    inbound: InboundAuth,
    document: Option<Url>,
}

impl CredentialManager {
    /// Weir as a client of one of the issuers in a configuration.
    pub fn identity(&self, config: &Config, inbound: &InboundAuth) -> Identity {
        let document = config.client_metadata_url.as_deref().and_then(|url| url.parse().ok());
        Identity { token_store: Arc::clone(&self.token_store), inbound: inbound.clone(), document }
    }
}

impl Identity {
    /// Who Weir is to `server`, which is the issuer; registered there if need be, also if it was and the issuer does not
    /// know it any more, to have people come back to `redirect`.
    ///
    /// # Errors
    /// If it is nobody there. The store is opened only if there is something to be kept.
    pub async fn client(
        &self,
        http: &Http,
        server: &ServerMetadata,
        redirect: &str,
    ) -> Result<OAuthApplication, SignInFailure> {
        let wanted = settings::of_callers(&self.inbound, self.document.as_ref(), redirect)?;
        if let Some(client) = registration::unasked(server, &wanted).map_err(PrepareError::from)? {
            return Ok(client);
        }
        let (store, clock) = (self.token_store.open().await?.store.as_ref(), &self.token_store.clock);
        let gone = registration::is_gone(http, store, clock, server, &wanted).await.map_err(TokenStoreError::from)?;
        if let Some(gone) = gone {
            registration::forget(store, &server.issuer, &gone.id, None).await.map_err(TokenStoreError::from)?;
        }
        let client = registration::client(http, store, clock, server, &wanted).await;
        Ok(client.map_err(PrepareError::from)?)
    }

    /// Forgets that the issuer has registered `client`, so that it is done anew; false if that is not how Weir is known
    /// there.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn forget(
        &self,
        server: &ServerMetadata,
        client: &OAuthApplication,
        redirect: &str,
    ) -> Result<bool, SignInFailure> {
        let wanted = settings::of_callers(&self.inbound, self.document.as_ref(), redirect)?;
        if registration::unasked(server, &wanted).map_err(PrepareError::from)?.is_some() {
            return Ok(false);
        }
        let opened = self.token_store.open().await?;
        let forgotten = registration::forget(opened.store.as_ref(), &server.issuer, &client.id, None).await;
        forgotten.map_err(TokenStoreError::from)?;
        Ok(true)
    }
}

impl SignInFailure {
    /// Whether only the operator can help, by registering Weir.
    pub const fn is_nobody(&self) -> bool {
        matches!(
            self,
            Self::Prepare(PrepareError::Registration(
                RegistrationError::ByHand { .. }
                    | RegistrationError::Refused { .. }
                    | RegistrationError::OtherIssuer(_)
            ))
        )
    }

    /// Whether the same may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Prepare(why) => why.is_temporary(),
            _ => self.is_away(),
        }
    }

    /// Whether the store is away, and nothing was done.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Store(why) if why.is_away())
    }
}

//! What becomes of the registration of Weir at a server that may have forgotten it.

use std::time::SystemTime;

use weir_oauth::{CredentialOwner, Http, LoginKey, Logins, Prepared, TokenError, registration};

use super::{TokenStoreError, UpstreamAuth, token_store::TokenStore};

impl UpstreamAuth {
    /// A server does not know a client any more: if that is one that it has registered, the next who comes registers anew.
    /// With `before`, only if it has done so before then. Says whether it has.
    pub(super) async fn disowned(
        &self,
        issuer: &str,
        client: &str,
        before: Option<SystemTime>,
    ) -> Result<bool, TokenStoreError> {
        let opened = self.token_store.open().await?;
        Ok(registration::forget(opened.store.as_ref(), issuer, client, before).await?)
    }

    /// The same in the course of a sign-in: not for one that was registered for it.
    pub(super) async fn refused(&self, prepared: &Prepared) -> Result<bool, TokenStoreError> {
        let Prepared { server, client, begun, .. } = prepared;
        self.disowned(&server.issuer, &client.id, Some(*begun)).await
    }
}

impl TokenStore {
    /// Forgets the logins of an owner at an upstream, for `origin` or all, and has their servers forget them. What Weir was
    /// registered as for that is forgotten where nobody is left who signed in at the server: whoever comes next starts anew.
    /// Says whether there was a login, and what was said to it.
    pub(super) async fn sign_out(
        &self,
        http: &Http,
        upstream: &str,
        owner: &CredentialOwner,
        origin: Option<&str>,
    ) -> Result<Option<Result<(), TokenError>>, TokenStoreError> {
        let opened = self.open().await?;
        let clients = clients(&opened.logins, upstream, owner).await?;
        let said = opened.logins.forget(http, upstream, owner, origin).await?;
        let left = opened.logins.list(&[LoginKey::range(None, None)]).await?;
        for (issuer, client) in clients {
            // The others would have to be registered again for nothing.
            if !left.iter().any(|login| login.key.issuer == issuer) {
                registration::forget(opened.store.as_ref(), &issuer, &client, None).await?;
            }
        }
        self.changes.tell(upstream, owner);
        Ok(said)
    }
}

/// As whom an owner has signed in at an upstream: the issuers, and the clients there.
async fn clients(
    logins: &Logins,
    upstream: &str,
    owner: &CredentialOwner,
) -> Result<Vec<(String, String)>, TokenStoreError> {
    let mut clients = Vec::new();
    for login in logins.list(&[LoginKey::range(Some(upstream), Some(owner))]).await? {
        // One that cannot be read says nothing of it.
        let kept = logins.get(&login.key).await.ok().flatten();
        clients.extend(kept.map(|kept| (login.key.issuer, kept.client.id)));
    }
    Ok(clients)
}

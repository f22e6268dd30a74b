//! What becomes of the registration of Weir at a server that may have forgotten it.

use std::time::SystemTime;

use weir_oauth::{Owner, Prepared, registration};

use super::{Account, WalletError};

impl Account {
    /// A server does not know a client any more: if that is one that it has registered, the next who comes registers anew.
    /// With `before`, only if it has done so before then. Says whether it has.
    pub(super) async fn disowned(
        &self,
        issuer: &str,
        client: &str,
        before: Option<SystemTime>,
    ) -> Result<bool, WalletError> {
        let opened = self.vault.open().await?;
        Ok(registration::forget(opened.store.as_ref(), issuer, client, before).await?)
    }

    /// The same in the course of a sign-in: not for one that was registered for it.
    pub(super) async fn refused(&self, prepared: &Prepared) -> Result<bool, WalletError> {
        let Prepared { server, client, begun, .. } = prepared;
        self.disowned(&server.issuer, &client.id, Some(*begun)).await
    }

    /// Whether an owner was sent to a server's page before and did not come back: it may not know Weir any more.
    pub(super) async fn is_doubtful(&self, owner: &Owner, prepared: &Prepared) -> Result<bool, WalletError> {
        let (opened, Prepared { server, client, .. }) = (self.vault.open().await?, prepared);
        Ok(registration::is_doubtful(opened.store.as_ref(), &server.issuer, &client.id, owner).await?)
    }

    /// An owner is sent to a server's page.
    pub(super) async fn begun(&self, owner: &Owner, prepared: &Prepared) -> Result<(), WalletError> {
        let (opened, Prepared { server, client, begun, .. }) = (self.vault.open().await?, prepared);
        Ok(registration::begun(opened.store.as_ref(), &server.issuer, &client.id, owner, *begun).await?)
    }

    /// An owner has come back.
    pub(super) async fn returned(&self, owner: &Owner, prepared: &Prepared) -> Result<(), WalletError> {
        let (opened, Prepared { server, client, .. }) = (self.vault.open().await?, prepared);
        Ok(registration::returned(opened.store.as_ref(), &server.issuer, &client.id, owner).await?)
    }

    /// As whom an owner has signed in here: the issuers, and the clients there.
    pub(super) async fn clients(&self, owner: &Owner) -> Result<Vec<(String, String)>, WalletError> {
        let opened = self.vault.open().await?;
        let mut clients = Vec::new();
        for login in opened.logins.list().await? {
            if login.key.upstream == self.name && login.key.owner == *owner {
                // One that cannot be read says nothing of it.
                let kept = opened.logins.get(&login.key).await.ok().flatten();
                clients.extend(kept.map(|kept| (login.key.issuer, kept.client.id)));
            }
        }
        Ok(clients)
    }
}

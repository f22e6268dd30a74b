//! Taking logins away that their owners do not: those of people who have left, and of upstreams that are not in the
//! configuration any more.

use std::collections::HashMap;

use url::Url;
use weir_oauth::{AddressPolicy, CredentialOwner, LoginKey, TokenError};

use super::{CredentialManager, SignInFailure};

impl CredentialManager {
    /// Forgets the logins that are kept under the name of an upstream, of all owners that `whose` chooses, and has their
    /// servers forget them (RFC 7009). Gives for each owner what the server said.
    ///
    /// # Errors
    /// If the store cannot be used. What was not forgotten until then is kept.
    pub async fn forget(
        &self,
        upstream: &str,
        whose: impl Fn(&CredentialOwner) -> bool,
    ) -> Result<Vec<(CredentialOwner, Result<(), TokenError>)>, SignInFailure> {
        let all = self.token_store.list(&[LoginKey::range(Some(upstream), None)]).await?.into_iter();
        let theirs = all.filter(|login| whose(&login.key.owner));
        let origins: HashMap<CredentialOwner, String> = theirs.map(|login| (login.key.owner, login.origin)).collect();
        let mut said = Vec::new();
        for (owner, origin) in origins {
            let http = match self.account(upstream) {
                Some(account) => account.http().map_err(TokenError::from)?.clone(),
                // Of an upstream that is gone it is known where it was.
                None => {
                    let reach = Url::parse(&origin).map(|url| AddressPolicy::toward(&url)).unwrap_or_default();
                    self.token_store.http(reach).map_err(TokenError::from)?
                }
            };
            let told = self.token_store.sign_out(&http, upstream, &owner, None).await?;
            said.extend(told.map(|told| (owner, told)));
        }
        Ok(said)
    }
}

//! For whom a credential is asked for.

use std::sync::Arc;

use weir_flow::facts::Principal;
use weir_oauth::{CredentialOwner, Secret};

use crate::{caller::Caller, config};

/// Whose credential it is to be, and what is known of them.
#[derive(Clone)]
pub struct TokenSubject {
    pub owner: CredentialOwner,
    /// What a policy is told of them; none where all callers share a credential.
    pub principal: Option<Principal>,
    /// The token that they came with, to be exchanged and never to be passed on.
    pub token: Option<Secret>,
}

/// What stands for an issuer where nobody vouches for the caller.
const LOCAL: &str = "local";

impl TokenSubject {
    /// Everybody.
    pub const fn shared() -> Self {
        Self { owner: CredentialOwner::Shared, principal: None, token: None }
    }

    /// Whose credential a caller uses; none for Weir itself where each caller has their own. Where nobody has `proved` who
    /// they are, everybody is the same local caller.
    pub fn of(owner: config::LoginOwner, proved: bool, caller: Option<&Arc<Caller>>) -> Option<Self> {
        match (owner, caller) {
            (config::LoginOwner::Shared, _) => Some(Self::shared()),
            (config::LoginOwner::Principal, Some(caller)) => Some(Self::principal(caller)),
            (config::LoginOwner::Principal, None) => (!proved).then(Self::local),
        }
    }

    /// One principal.
    pub fn principal(caller: &Caller) -> Self {
        let principal = caller.principal();
        let issuer = principal.issuer.clone().unwrap_or_else(|| LOCAL.to_owned());
        Self {
            owner: CredentialOwner::Principal(issuer, principal.subject.clone()),
            principal: Some(principal.clone()),
            token: caller.token().cloned(),
        }
    }

    /// Whoever calls from this machine, where no tokens are asked for.
    pub fn local() -> Self {
        Self::principal(&Arc::clone(&Caller::local()))
    }
}

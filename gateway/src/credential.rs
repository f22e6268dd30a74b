//! The logins at upstreams: where they are kept, how a token is made without anybody, and how somebody signs in.
//!
//! A [`CredentialManager`] is made from the configuration and touches nothing until an upstream needs a login. Only then is
//! its store opened, or made, and its key asked for. Each upstream that may need one has an [`UpstreamAuth`] in it, which does
//! what a policy decides ([`weir_flow::facts::CredentialDecision`]). What a person has to do is in `sign_in`; who Weir is
//! where people say who they are, in `identity`.
//!
//! # The way of a token
//!
//! A credential belongs to an upstream, an owner and an issuer. `upstream::credential` keeps the header that a policy has
//! chosen for an owner: it is the only copy of a token in memory. A call in the steady state looks there and nowhere else.
//! Only a question to the policy comes here:
//!
//! 1. [`UpstreamAuth::stored`] finds the latest login of the owner, by a range of the store, without its secrets.
//! 2. [`UpstreamAuth::token`] reads the login that the policy presents.
//! 3. [`UpstreamAuth::renew`] and [`UpstreamAuth::obtain`] make another.
//!
//! All of them go through [`weir_oauth::Logins`], which alone reads, writes and renews logins. News of a login, from here or
//! from another process, ends what the header's cache holds of it ([`Mark`]).

mod api_keys;
mod approvals;
mod call_counts;
mod upstream_auth;
mod service_grants;
mod renewal;
mod subject;
mod forget;
mod client_grants;
mod handed_over;
mod identity;
mod issuer_store;
mod limit_usage;
mod policy_store;
mod registered;
mod replica_store;
mod settings;
mod shell;
mod sign_in;
mod store_copy;
mod stored_secrets;
mod token_store;
mod wanted;
mod watch;

use std::sync::Arc;

use arc_swap::ArcSwap;

use weir_oauth::{LoginKey, LoginSummary, PendingSignIns};

use crate::config::{self, Auth, Config};

pub use api_keys::{ApiKey, ApiKeyError, ApiKeys, KeyLookup, KnownKey, PREFIX as API_KEY_PREFIX};
pub use approvals::{Approval, ApprovalError, ApprovalState, Approvals, Listing, MOST_ARGUMENTS};
pub use client_grants::{ClientGrant, CodeBinding, Redeemed, TokenGrant};
pub use identity::Identity;
pub use issuer_store::{IssuerKeys, IssuerStore, IssuerStoreError};
pub use policy_store::PolicyStores;
pub use replica_store::{Replica, ReplicaStore, SessionRecord, StoredEvent};
pub use settings::{NAME as CLIENT_NAME, application};
pub use sign_in::{Needed, SignInFailure, SignInState, Standing, TokenIssuer};
pub use store_copy::{StoreCopy, StoreReport};
pub use stored_secrets::{StoredSecrets, read_stored};
pub use subject::TokenSubject;
pub use token_store::{StoreStanding, TokenStoreError};
pub use upstream_auth::UpstreamAuth;
pub use watch::Mark;
pub use weir_oauth::{CredentialOwner, Redirect, Secret};

use token_store::{RegistrationPage, TokenStore};

/// All logins of one configuration.
pub struct CredentialManager {
    token_store: Arc<TokenStore>,
    /// In the order of the configuration.
    accounts: ArcSwap<Vec<Arc<UpstreamAuth>>>,
    pending: PendingSignIns<sign_in::Purpose>,
    approvals: Approvals,
    /// Whether the store is needed whatever the upstreams ask for.
    needs_store: bool,
    /// What tells this gateway from others at a shared store: its machine, its folder there, and where it listens.
    gateway: String,
}

impl CredentialManager {
    /// The logins that `config` speaks of; `plaintext` to keep them unprotected. Opens nothing.
    pub fn new(config: &Config, plaintext: bool) -> Arc<Self> {
        let token_store = Arc::new(TokenStore::new(&config.store, plaintext));
        let pending = PendingSignIns::new(token_store.clock.clone());
        let mut rules = config.access.iter().flat_map(|access| &access.rules);
        let mut policies = config.upstreams.iter().flat_map(|upstream| &upstream.policies);
        let needs_store = config.api_keys
            || config.authorization_server.is_some()
            || config.inbound.iter().any(|inbound| inbound.dpop_nonce)
            || rules.any(|rule| rule.approve.is_some())
            || policies.any(|policy| policy.keeps());
        let approvals = Approvals::new(Arc::clone(&token_store));
        let machine = rustix::system::uname();
        let gateway = format!("{:?} {:?} {:?}", machine.nodename(), config.store.path, config.listen);
        let manager = Self { token_store, accounts: ArcSwap::default(), pending, approvals, needs_store, gateway };
        manager.put(manager.accounts_of(config, |_| false));
        Arc::new(manager)
    }

    /// The logins that `config` speaks of. Those of upstreams that are the `same` as before are carried over.
    pub fn accounts_of(&self, config: &Config, same: impl Fn(&str) -> bool) -> Vec<Arc<UpstreamAuth>> {
        let mut accounts = Vec::new();
        for upstream in config.upstreams.iter().filter(|upstream| upstream.enabled) {
            if let (config::Reach::Http(reach), Auth::OAuth(_) | Auth::Unsaid) = (&upstream.reach, &upstream.auth) {
                let name = upstream.name.as_str();
                let known = self.account(name).filter(|_| same(name));
                let new = || Arc::new(UpstreamAuth::new(Arc::clone(&self.token_store), config, upstream, reach));
                accounts.push(known.unwrap_or_else(new));
            }
        }
        accounts
    }

    /// Puts these logins in force.
    pub fn put(&self, accounts: Vec<Arc<UpstreamAuth>>) {
        self.accounts.store(Arc::new(accounts));
    }

    /// The account at an upstream; none if it can have no login.
    pub fn account(&self, upstream: &str) -> Option<Arc<UpstreamAuth>> {
        self.accounts.load().iter().find(|account| account.name() == upstream).cloned()
    }

    /// The key that marks whose task an id is of: the same for all processes at the store, and for good.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn task_key(&self) -> Result<[u8; 32], TokenStoreError> {
        self.token_store.shared_key("task-key").await
    }

    /// All accounts, in the order of the configuration.
    pub fn accounts(&self) -> Vec<Arc<UpstreamAuth>> {
        self.accounts.load().to_vec()
    }

    /// The calls that wait for an approval.
    pub const fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    /// Says at which URL people find the page where they sign in, and whether whoever comes there may sign in for all.
    /// The first word counts.
    pub fn set_page(&self, url: String, for_all: bool) {
        drop(self.token_store.page.set(RegistrationPage { url, for_all }));
    }

    /// All logins, without their secrets. Needs no key, and makes no file.
    ///
    /// # Errors
    /// If there is a store that cannot be read.
    pub async fn list(&self) -> Result<Vec<LoginSummary>, TokenStoreError> {
        self.token_store.list(&[LoginKey::range(None, None)]).await
    }

    /// Whether the key that the operator has named for the store is one, and that of the store that is there. Concerns
    /// nobody if no upstream takes a login and no client brings an API key. Makes no store.
    ///
    /// # Errors
    /// If it is not.
    pub async fn check_key(&self) -> Result<(), TokenStoreError> {
        let is_needed = !self.accounts.load().is_empty() || self.needs_store || self.is_shared();
        if is_needed { self.token_store.check_key().await } else { Ok(()) }
    }

    /// Opens the store, if it is there, as the first call that needs a login would; whether it is there.
    ///
    /// # Errors
    /// If no key opens it, or something else is wrong with it.
    pub async fn check_store(&self) -> Result<bool, TokenStoreError> {
        let is_there = self.token_store.place.may_hold();
        if is_there {
            self.token_store.open().await?;
        }
        Ok(is_there)
    }

    /// Whether other machines may share the store.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.token_store.place, token_store::StorePlace::Shared(_))
    }

    /// How a shared store stands.
    #[must_use]
    pub fn store_standing(&self) -> StoreStanding {
        self.token_store.standing.lock().clone()
    }

    /// Waits until what servers have given is kept. To be called before the program ends.
    pub async fn close(&self) {
        if let Some(opened) = self.token_store.opened.get() {
            opened.logins.close().await;
        }
    }
}

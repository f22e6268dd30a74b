//! Calls that wait for an approval, and approvals that wait for their call.
//!
//! Each is one value of the store, under a digest of the call: who calls what, where, with which arguments, by which rule.
//! So an approval is good for that very call, survives a restart, and is seen by each process that shares the store. It is
//! used up by compare-and-swap, so one call alone goes out with it. Without a place for a store they are kept in memory.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use weir_flow::facts::Principal;
use weir_store::{Key, MemoryStore, Store, StoreError, Swap, Value, Version};

use crate::{config::Approver, telemetry::ApprovalRecord};

use super::{TokenStoreError, token_store::TokenStore};

/// How many requests of one principal may wait or be good.
const SHARE: usize = 20;

/// How many there may be in all.
const MOST: usize = 1000;

/// The longest arguments that are kept to be shown, in bytes.
pub const MOST_ARGUMENTS: usize = 8 * 1024;

/// The longest other text that is kept of a call, in bytes.
const MOST_TEXT: usize = 2048;

/// How long it is remembered that an approval was used up: only for those that are looking at it now.
const USED: Duration = Duration::from_secs(1);

/// How often those that wait look for the answers that other processes have put into the store.
const LOOK: Duration = Duration::from_secs(3);

const NAMESPACE: &str = "approvals";

/// All of them.
pub struct Approvals {
    token_store: Arc<TokenStore>,
    memory: MemoryStore,
    /// Whoever counts and adds, so that limits hold.
    adding: tokio::sync::Mutex<()>,
    /// Wakes those that wait for an answer.
    changed: tokio::sync::Notify,
}

/// A request for an approval, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Names it in links: random, so that nobody can guess it.
    pub id: String,
    /// Whose call it is, as [`crate::caller::Caller::id`] has it.
    pub principal: String,
    /// The caller's subject, to be shown; empty for an unknown caller.
    pub subject: String,
    /// The endpoint that was called.
    pub endpoint: String,
    /// The upstream.
    pub upstream: String,
    /// The tool, as the upstream calls it.
    pub tool: String,
    /// The rule that wants the approval.
    pub rule: String,
    /// Who may approve, as in the configuration.
    pub by: Vec<String>,
    /// The call that asked first.
    pub call: String,
    /// How long a request waits and an approval is good, in milliseconds.
    pub expires: u64,
    /// When this ends, in milliseconds since 1970.
    pub until: u64,
    /// How long the arguments are, in bytes.
    pub length: usize,
    /// What became of it.
    pub state: ApprovalState,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// Nobody has answered.
    #[default]
    Waiting,
    /// A principal of this subject has approved it.
    Given(String),
    /// A principal of this subject has refused it.
    Refused(String),
    /// A call went out with it.
    Used,
}

/// One of them, as it is in the store.
#[derive(Clone, Debug)]
pub struct Listing {
    /// What it says.
    pub approval: Approval,
    key: Key,
    version: Version,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// A limit is reached.
    #[error("{0}; wait until one is answered or expires")]
    Full(String),
    /// The store fails.
    #[error(transparent)]
    Store(#[from] TokenStoreError),
}

impl ApprovalError {
    /// Whether the store is away, and what failed is worth another try soon.
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Store(why) if why.is_away())
    }
}

impl From<StoreError> for ApprovalError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

impl Approval {
    /// Whether somebody may answer it. `principal` is as in [`Approval::principal`]. Unless it is said that callers approve
    /// their own calls, nobody does, whichever group they are in.
    #[must_use]
    pub fn may_be_answered_by(&self, principal: &str, who: Option<&Principal>) -> bool {
        let own = self.principal == principal;
        self.by.iter().filter_map(|by| by.parse().ok()).any(|by| match by {
            Approver::Caller => own,
            Approver::Group(name) => !own && who.is_some_and(|who| who.groups.contains(&name)),
            Approver::Subject(name) => !own && who.is_some_and(|who| who.subject == name),
        })
    }

    /// What the log says of it; `by` is [`Approval::by`] in one text.
    pub fn record<'a>(&'a self, by: &'a str) -> ApprovalRecord<'a> {
        let Self { call, subject, endpoint, upstream, tool, rule, .. } = self;
        ApprovalRecord { call, caller: subject, endpoint, upstream, tool, rule, by }
    }

    /// Tells the log that somebody has answered it.
    pub fn told(&self, approver: &str, issuer: Option<&str>, approved: bool) {
        self.record(&self.by.join(" or ")).answered(approver, issuer, approved);
    }

    /// Whether it is too long for the store.
    fn is_too_long(&self) -> bool {
        let texts = [&self.principal, &self.endpoint, &self.upstream, &self.tool, &self.rule];
        texts.iter().map(|text| text.len()).sum::<usize>() > MOST_TEXT
    }
}

impl Approvals {
    pub(super) fn new(token_store: Arc<TokenStore>) -> Self {
        let memory = MemoryStore::new(token_store.clock.clone());
        Self { token_store, memory, adding: tokio::sync::Mutex::default(), changed: tokio::sync::Notify::new() }
    }

    /// What is there for the call of this digest.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn get(&self, digest: &str) -> Result<Option<Listing>, ApprovalError> {
        let key = Key::new(NAMESPACE, &[digest]);
        let Some(entry) = self.store().await?.get(&key).await? else { return Ok(None) };
        Ok(listing(key, &entry.value.about, entry.version).filter(|found| found.approval.state != ApprovalState::Used))
    }

    /// Adds a request for the call of this digest, unless there is one, which is then given back. The arguments are kept
    /// where they are not too long. Says whether it is new.
    ///
    /// # Errors
    /// If a limit is reached, or the store cannot be written.
    pub async fn ask(
        &self,
        digest: &str,
        mut wanted: Approval,
        arguments: &[u8],
    ) -> Result<(Approval, bool), ApprovalError> {
        if wanted.is_too_long() {
            return Err(ApprovalError::Full(format!("its names are longer than {MOST_TEXT} bytes in all")));
        }
        let _adding = self.adding.lock().await;
        let key = Key::new(NAMESPACE, &[digest]);
        let store = self.store().await?;
        let there = store.get(&key).await?;
        let version = there.as_ref().map(|entry| entry.version);
        let there = there.and_then(|entry| listing(key.clone(), &entry.value.about, entry.version));
        if let Some(there) = there.filter(|there| there.approval.state != ApprovalState::Used) {
            return Ok((there.approval, false));
        }
        let all = self.all().await?;
        let own = all.iter().filter(|one| one.approval.principal == wanted.principal).count();
        if own >= SHARE {
            return Err(ApprovalError::Full(format!("{SHARE} calls of this principal need an approval already")));
        }
        if all.len() >= MOST {
            return Err(ApprovalError::Full(format!("{MOST} calls need an approval already")));
        }
        let expires = Duration::from_millis(wanted.expires);
        wanted.until = self.token_store.clock.millis().saturating_add(wanted.expires);
        let shown = if arguments.len() <= MOST_ARGUMENTS { arguments } else { b"" };
        match store.swap(&key, version, &value(&wanted, shown.to_vec()), Some(expires)).await? {
            Swap::Done(_) => Ok((wanted, true)),
            // Another process has just asked for the same.
            Swap::Lost(_) => Err(ApprovalError::Full("the same call is asked about at this moment".to_owned())),
        }
    }

    /// All that are there, without arguments.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn all(&self) -> Result<Vec<Listing>, ApprovalError> {
        let listed = self.store().await?.list(&[Key::new(NAMESPACE, &[])]).await?;
        let all = listed.into_iter().filter_map(|one| listing(one.key, &one.about, one.version));
        Ok(all.filter(|one| one.approval.state != ApprovalState::Used).collect())
    }

    /// The one of this id.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn find(&self, id: &str) -> Result<Option<Listing>, ApprovalError> {
        Ok(self.all().await?.into_iter().find(|one| one.approval.id == id))
    }

    /// The arguments of a call that waits; none where they are too long to be shown.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn arguments(&self, of: &Listing) -> Result<Option<String>, ApprovalError> {
        let entry = self.store().await?.get(&of.key).await?;
        let kept = entry.map(|entry| entry.value.secret).filter(|_| of.approval.length <= MOST_ARGUMENTS);
        Ok(kept.and_then(|kept| String::from_utf8(kept.to_vec()).ok()))
    }

    /// Answers a request that waits; `false` if it does not wait any more.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn answer(&self, of: &Listing, state: ApprovalState) -> Result<bool, ApprovalError> {
        if of.approval.state != ApprovalState::Waiting {
            return Ok(false);
        }
        let until = self.token_store.clock.millis().saturating_add(of.approval.expires);
        let approval = Approval { state, until, ..of.approval.clone() };
        self.swap(of, &approval, Duration::from_millis(of.approval.expires)).await
    }

    /// Waits until somebody other than `own` has answered the request of this digest.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn answered(&self, digest: &str, own: &str) -> Result<(), ApprovalError> {
        self.until(digest, |there| match there.map(|there| &there.approval.state) {
            Some(ApprovalState::Given(by) | ApprovalState::Refused(by)) => by != own,
            Some(ApprovalState::Waiting | ApprovalState::Used) | None => false,
        })
        .await
    }

    /// Waits while the request of this digest waits for an answer.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn settled(&self, digest: &str) -> Result<(), ApprovalError> {
        self.until(digest, |there| there.is_none_or(|there| there.approval.state != ApprovalState::Waiting)).await
    }

    async fn until(&self, digest: &str, is_so: impl Fn(Option<&Listing>) -> bool) -> Result<(), ApprovalError> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if is_so(self.get(digest).await?.as_ref()) {
                return Ok(());
            }
            let _ = tokio::time::timeout(LOOK, changed).await;
        }
    }

    /// Waits until `looks` has come to an end and some request may have been answered since it began, by this process or
    /// another one.
    pub async fn changed_since(&self, looks: impl Future<Output = ()>) {
        let changed = self.changed.notified();
        let mut changed = std::pin::pin!(changed);
        changed.as_mut().enable();
        looks.await;
        let _ = tokio::time::timeout(LOOK, changed).await;
    }

    /// Uses an approval up, or forgets a request; `false` if that was done already.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn take(&self, of: &Listing) -> Result<bool, ApprovalError> {
        self.swap(of, &Approval { state: ApprovalState::Used, ..of.approval.clone() }, USED).await
    }

    /// Nobody needs the arguments once there is an answer.
    async fn swap(&self, of: &Listing, approval: &Approval, ttl: Duration) -> Result<bool, ApprovalError> {
        let value = value(approval, Vec::new());
        let swap = self.store().await?.swap(&of.key, Some(of.version), &value, Some(ttl)).await?;
        self.changed.notify_waiters();
        Ok(matches!(swap, Swap::Done(_)))
    }

    async fn store(&self) -> Result<&dyn Store, ApprovalError> {
        match self.token_store.open().await {
            Ok(opened) => Ok(opened.store.as_ref()),
            Err(TokenStoreError::NoPlace) => Ok(&self.memory),
            Err(why) => Err(why.into()),
        }
    }
}

fn listing(key: Key, about: &str, version: Version) -> Option<Listing> {
    Some(Listing { approval: serde_json::from_str(about).ok()?, key, version })
}

fn value(approval: &Approval, secret: Vec<u8>) -> Value {
    Value { about: serde_json::to_string(approval).unwrap_or_default(), secret: secret.into() }
}

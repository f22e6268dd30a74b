//! With which credential an upstream is opened: a `credentials` policy decides, this carries it out, and keeps and places
//! what came of it.
//!
//! The policy names a secret or a token and never reads it. What it decided holds for as long as it said, so that a call
//! in the steady state crosses into no guest and looks into no store: it takes one short lock and sees whether there was
//! news of the login. Nothing is kept for two owners at once.

mod ask;
mod place;
mod slot;
mod step_up;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use weir_flow::{
    Origin,
    call::SendError,
    facts::{Refusal, UpstreamFacts},
};
use weir_oauth::{ProofKey, proof};

use crate::{
    caller::Caller,
    config::{self, SecretSource},
    credential::{CredentialOwner, Needed, TokenSubject, UpstreamAuth},
    http::{HeaderName, HeaderValue, Method, Response},
    policy::{Policy, PolicyError, Secrets},
};

use slot::{CredentialSlot, Look};

/// What opens an upstream: a header, for one origin only.
#[derive(Clone)]
pub struct Credential {
    pub(super) name: HeaderName,
    /// Marked sensitive, so that it cannot be printed.
    pub(super) value: HeaderValue,
    issued: Arc<Issued>,
    mark: u64,
    /// What proves that Weir holds its key, if it is bound to one.
    pub(super) bound: Option<Arc<BoundToken>>,
}

/// A token that is bound to a key (RFC 9449). Each request that carries it carries a proof.
pub(super) struct BoundToken {
    key: Arc<ProofKey>,
    /// Of the token.
    hash: String,
}

/// What is true of a token however often it is placed.
struct Issued {
    /// The only one that may see it.
    origin: Origin,
    /// Whether the upstream has let somebody in with it.
    accepted: AtomicBool,
}

/// Where credentials come from.
pub struct CredentialSource {
    /// Who decides.
    pub policy: Policy,
    /// What may be placed, by name.
    pub secrets: Vec<(String, SecretSource)>,
    /// Where tokens are had, if this upstream may need one.
    pub account: Option<Arc<UpstreamAuth>>,
    /// Whose they are, where there is no account to say so.
    pub owner: config::LoginOwner,
    /// Whether callers prove who they are; else everybody is the same local caller.
    pub proved: bool,
}

/// Why there is no credential. Its text is for the operator and holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    #[error("{0}")]
    SignIn(Box<Needed>),
    #[error("each caller signs in here, and Weir itself does not")]
    Personal,
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    Failed(String),
}

/// The credentials of one upstream.
pub(super) struct Credentials {
    source: Option<Arc<CredentialSource>>,
    shared: Arc<CredentialSlot>,
    /// Of those who have their own.
    owners: Mutex<Owners>,
}

#[derive(Default)]
struct Owners {
    slots: HashMap<CredentialOwner, Arc<CredentialSlot>>,
    /// When those were last looked for that are idle.
    looked: Option<Instant>,
}

/// Owners whose credentials are kept at once; of more, those that nobody uses are asked for anew.
const MAX_OWNERS: usize = 10_000;
/// How often to look for credentials that are over and that nobody asks for: they are forgotten.
const LOOK: Duration = Duration::from_secs(600);

impl Credential {
    /// Which one it is: no two that were kept at different times have the same.
    pub(super) const fn mark(&self) -> u64 {
        self.mark
    }

    /// Whether it may travel to this origin.
    pub(super) fn is_for(&self, origin: &Origin) -> bool {
        self.issued.origin.admits(origin)
    }

    /// Says that the upstream has let somebody in with it.
    pub fn accept(&self) {
        // Read first: all calls share it.
        if !self.is_accepted() {
            self.issued.accepted.store(true, Ordering::Relaxed);
        }
    }

    fn is_accepted(&self) -> bool {
        self.issued.accepted.load(Ordering::Relaxed)
    }
}

impl BoundToken {
    /// A proof for one request to `url`, which has no query.
    pub(super) fn proof(&self, method: &Method, url: &str) -> Result<HeaderValue, SendError> {
        let proof = self.key.proof(method.as_str(), url, Some(&self.hash), SystemTime::now());
        proof.map_err(|why| SendError::Unsent(why.to_string()))
    }

    /// Keeps the nonce of an answer from `url`; false if there is none.
    pub(super) fn learn(&self, url: &str, answer: &Response) -> bool {
        self.key.learn(url, answer.header(&proof::DPOP_NONCE))
    }
}

impl Credentials {
    /// Whether the policy that decides can be asked.
    pub(super) async fn test(&self) -> Result<(), PolicyError> {
        match &self.source {
            Some(source) => source.policy.try_instance().await,
            None => Ok(()),
        }
    }

    pub(super) fn new(source: Option<CredentialSource>) -> Self {
        Self { source: source.map(Arc::new), shared: Arc::default(), owners: Mutex::default() }
    }

    /// Whether nobody but callers has any.
    pub(super) fn are_personal(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.asker(None).is_none())
    }

    /// Whether a sign-in may be what is missing.
    pub(super) fn come_from_sign_ins(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.account.is_some())
    }

    /// The credential for a caller to use now; none to go without. `refused` is what the upstream said to an earlier one.
    /// Nobody waits for longer than `patience`; what was begun goes on, and serves those who come later.
    pub(super) async fn get(
        &self,
        caller: Option<&Arc<Caller>>,
        upstream: impl FnOnce() -> UpstreamFacts,
        origin: Option<&Origin>,
        refused: Option<Refusal>,
        patience: Duration,
    ) -> Result<Option<Credential>, CredentialError> {
        let (Some(source), Some(origin)) = (&self.source, origin) else { return Ok(None) };
        let asker = source.asker(caller).ok_or(CredentialError::Personal)?;
        let slot = match &asker.owner {
            CredentialOwner::Shared => Arc::clone(&self.shared),
            owner @ CredentialOwner::Principal(..) => self.slot(owner),
        };
        match slot.look(refused.as_ref()) {
            Look::Good(credential) => return Ok(credential),
            Look::Due(credential) => {
                // Good for a while yet, so nobody waits.
                slot.ask_ahead(Arc::clone(source), asker, upstream(), origin.clone());
                return Ok(credential);
            }
            Look::Nothing => {}
        }
        // Boxed: a call in the steady state would carry its state for nothing.
        let asked = slot.ask(source, &asker, upstream(), origin, refused);
        let late = |_| CredentialError::Failed(format!("there was none within {} s", patience.as_secs()));
        Box::pin(tokio::time::timeout(patience, asked)).await.map_err(late)?
    }

    fn slot(&self, owner: &CredentialOwner) -> Arc<CredentialSlot> {
        let mut owners = self.owners.lock();
        if let Some(slot) = owners.slots.get(owner) {
            return Arc::clone(slot);
        }
        owners.make_room(Instant::now());
        Arc::clone(owners.slots.entry(owner.clone()).or_default())
    }
}

impl CredentialSource {
    /// Whose credential a caller uses; none for Weir itself where each caller has their own.
    fn asker(&self, caller: Option<&Arc<Caller>>) -> Option<TokenSubject> {
        match &self.account {
            Some(account) => account.asker(caller),
            None => TokenSubject::of(self.owner, self.proved, caller),
        }
    }
}

impl Owners {
    /// Whoever waits for a slot holds it.
    fn make_room(&mut self, now: Instant) {
        let full = self.slots.len() >= MAX_OWNERS;
        if full || self.looked.is_none_or(|at| now.duration_since(at) >= LOOK) {
            self.slots.retain(|_, slot| Arc::strong_count(slot) > 1 || !(full || slot.is_idle(now)));
            self.looked = Some(now);
        }
    }
}

impl Secrets for CredentialSource {
    fn read(&self, name: &str) -> Option<String> {
        let (_, source) = self.secrets.iter().find(|(known, _)| known == name)?;
        source.read().ok().map(|secret| secret.expose().to_owned())
    }
}

//! What is kept for one owner, and who asks for more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use weir_flow::{
    Backoff, Origin,
    facts::{Attachment, Refusal, UpstreamFacts},
};
use weir_oauth::LoginSummary;
use weir_store::Version;

use crate::{
    credential::{Mark, TokenSubject},
    task,
};

use super::{Credential, CredentialError, CredentialSource, step_up::StepUpLimiter};

/// The credential of one owner.
#[derive(Default)]
pub(super) struct CredentialSlot {
    kept: Mutex<Option<CachedCredential>>,
    /// Held while the policy is asked, so that many calls ask once.
    asking: tokio::sync::Mutex<()>,
    /// Whether somebody asks already although what is kept is still good.
    ahead: AtomicBool,
    /// How the last question ended that had no answer, and when.
    failed: Mutex<Option<(Instant, CredentialError)>>,
    /// Whether the operator has been told that somebody must sign in.
    told: AtomicBool,
    steps: StepUpLimiter<Version>,
}

/// An answer and how long it holds.
#[derive(Clone)]
pub(super) struct CachedCredential {
    pub(super) credential: Option<Credential>,
    pub(super) attachment: Option<Attachment>,
    /// The login that it is from.
    pub(super) login: Option<LoginSummary>,
    /// When the policy is to be asked again.
    pub(super) due: Instant,
    /// Until when it can be used while that is done.
    pub(super) good: Instant,
    /// Tells whether there was news of the owner's login.
    pub(super) news: Option<Mark>,
    /// When it was renewed to become this.
    pub(super) renewed: Option<Renewed>,
    /// What went wrong while there is a credential all the same.
    pub(super) trouble: Option<String>,
}

/// A renewal that went well.
#[derive(Clone, Copy)]
pub(super) struct Renewed {
    pub(super) at: Instant,
    /// Whether what there was before was refused, rather than near its end.
    pub(super) was_refused: bool,
}

/// What is there for a call.
pub(super) enum Look {
    /// This, without a question.
    Good(Option<Credential>),
    /// This, and the policy is to be asked.
    Due(Option<Credential>),
    /// Nothing.
    Nothing,
}

/// How long after its last answer has ended a slot is idle.
const IDLE: Duration = Duration::from_secs(3600);

/// Numbers the credentials; 0 is none of them.
pub(super) fn next_mark() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Marks a slot whose policy is asked ahead, until this is dropped: also by a panic.
struct Ahead(Arc<CredentialSlot>);

impl Drop for Ahead {
    fn drop(&mut self) {
        self.0.ahead.store(false, Ordering::Release);
    }
}

impl CredentialSlot {
    /// What is there; nothing that is what was refused.
    pub(super) fn look(&self, refused: Option<&Refusal>) -> Look {
        let kept = self.kept.lock();
        let Some(kept) = kept.as_ref() else { return Look::Nothing };
        let is_refused = refused.is_some_and(|refused| refused.credential == kept.credential.as_ref().map(|c| c.mark));
        let now = Instant::now();
        if is_refused || now >= kept.good || kept.news.as_ref().is_some_and(|news| !news.holds()) {
            Look::Nothing
        } else if now >= kept.due {
            Look::Due(kept.credential.clone())
        } else {
            Look::Good(kept.credential.clone())
        }
    }

    /// Whether its last answer is long over, and nobody has asked for another.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let good = self.kept.lock().as_ref().map(|kept| kept.good);
        let failed = self.failed.lock().as_ref().map(|(at, _)| *at);
        good.max(failed).is_none_or(|last| now.saturating_duration_since(last) >= IDLE)
    }

    /// Asks the policy, or waits for the answer to somebody else who does.
    pub(super) async fn ask(
        &self,
        source: &Arc<CredentialSource>,
        asker: &TokenSubject,
        upstream: UpstreamFacts,
        origin: &Origin,
        refused: Option<Refusal>,
    ) -> Result<Option<Credential>, CredentialError> {
        let entered = Instant::now();
        let _asking = self.asking.lock().await;
        // Whoever held the lock may have done the work.
        if let Look::Good(credential) | Look::Due(credential) = self.look(refused.as_ref()) {
            return Ok(credential);
        }
        if let Some((at, why)) = self.failed.lock().clone()
            && at >= entered
        {
            return Err(why);
        }
        let before = self.kept.lock().clone();
        match source.answer(asker, upstream, origin, before, refused, &self.steps).await {
            Ok(kept) => Ok(self.keep(kept)),
            Err(why) => {
                *self.failed.lock() = Some((Instant::now(), why.clone()));
                if let CredentialError::SignIn(needed) = &why
                    && !self.told.swap(true, Ordering::AcqRel)
                {
                    let (command, link) = (needed.command.as_deref(), needed.link.as_deref());
                    tracing::info!(upstream = needed.upstream, command, link, "upstream needs a sign-in");
                }
                Err(why)
            }
        }
    }

    /// Asks the policy while what is kept is still good.
    pub(super) fn ask_ahead(
        self: &Arc<Self>,
        source: Arc<CredentialSource>,
        asker: TokenSubject,
        upstream: UpstreamFacts,
        origin: Origin,
    ) {
        if self.ahead.swap(true, Ordering::AcqRel) {
            return;
        }
        let ahead = Ahead(Arc::clone(self));
        tokio::spawn(async move {
            let slot = &ahead.0;
            let _asking = slot.asking.lock().await;
            if let Look::Due(_) = slot.look(None) {
                let (name, before) = (upstream.name.clone(), slot.kept.lock().clone());
                let trouble = before.as_ref().and_then(|kept| kept.trouble.clone());
                let now = match source.answer(&asker, upstream, &origin, before, None, &slot.steps).await {
                    Ok(kept) => {
                        let trouble = kept.trouble.clone();
                        slot.keep(kept);
                        trouble
                    }
                    Err(why) => slot.put_off(&why),
                };
                if let Some(why) = now.filter(|now| trouble.as_ref() != Some(now)) {
                    tracing::warn!(upstream = name, error = why, "a credential could not be renewed ahead of its end");
                }
            }
        });
    }

    fn keep(&self, kept: CachedCredential) -> Option<Credential> {
        let credential = kept.credential.clone();
        // One that has ended may be shown once more, one that is refused may be renewed again, and news may be of what is
        // known already: whoever was told of that need not be told again.
        let accepted = credential.as_ref().is_some_and(Credential::is_accepted);
        let before = self.kept.lock().replace(kept.clone());
        let version = |kept: &CachedCredential| kept.login.as_ref().map(|login| login.version);
        let is_same = before.as_ref().and_then(version) == version(&kept);
        if kept.login.is_some_and(|login| !login.ended) && !is_same && (kept.renewed.is_none() || accepted) {
            self.told.store(false, Ordering::Release);
        }
        credential
    }

    fn put_off(&self, why: &CredentialError) -> Option<String> {
        let mut kept = self.kept.lock();
        let kept = kept.as_mut()?;
        let mut backoff = Backoff::AHEAD;
        kept.due = Instant::now() + task::pause(&mut backoff);
        kept.trouble = Some(why.to_string());
        kept.trouble.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_leave_a_slot_marked() {
        let slot = Arc::<CredentialSlot>::default();
        slot.ahead.store(true, Ordering::Release);
        let ahead = Ahead(Arc::clone(&slot));
        let work = std::thread::spawn(move || {
            let _ahead = ahead;
            panic!("as asked");
        });
        assert!(work.join().is_err());
        assert!(!slot.ahead.load(Ordering::Acquire), "nobody would ask ahead again");
    }
}

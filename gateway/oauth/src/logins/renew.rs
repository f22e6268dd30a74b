//! One renewal, from the look into the store to the next look.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use weir_flow::Backoff;
use weir_store::{Lease, Swap};

use crate::{Http, Login, LoginKey, TokenEndpoint, TokenError, grants};

use super::{
    LoginError, LoginsShared, Outcome, Renewal, Stale,
    slot::{Pause, RenewalSlot, StoredLogin, is_recent},
};

/// What one task does for all who wait.
#[derive(Clone)]
pub(super) struct Renewing {
    pub(super) shared: Arc<LoginsShared>,
    pub(super) slot: Arc<RenewalSlot>,
    pub(super) http: Http,
    pub(super) key: LoginKey,
    /// What will not do.
    pub(super) stale: Option<Stale>,
    pub(super) renewal: Renewal,
}

/// How often to look whether another process is done.
const LOOK: Duration = Duration::from_millis(100);
/// How long a login that needs nobody is kept after its end, so that what it was good for is asked for again.
const AFTER_ITS_END: Duration = Duration::from_secs(3600);
/// The same, of one of which nobody has said when it ends.
const WITHOUT_AN_END: Duration = Duration::from_secs(7 * 86_400);
/// How often to try again to keep what a server has given, before it is kept in memory alone.
const SAVES: u32 = 2;

impl Renewing {
    pub(super) async fn run(self) -> Outcome {
        let before = self.read().await?;
        if let Some(settled) = self.settled(&before) {
            return settled;
        }
        let lease = match self.lease(&before).await? {
            Ok(lease) => lease,
            Err(done_elsewhere) => return Ok(done_elsewhere),
        };
        let outcome = self.alone().await;
        // It ends by itself, should this fail.
        let _ = self.shared.store.release(lease).await;
        outcome
    }

    /// What needs no server: a login that is good, and one that cannot be made anew now.
    pub(super) fn settled(&self, found: &StoredLogin) -> Option<Outcome> {
        let (now, login) = (self.now(), found.login.as_ref());
        let good = login.filter(|login| login.is_good(now, Duration::ZERO));
        let is_stale = |login: &Login| self.stale.as_ref().is_some_and(|stale| stale.token == login.access);
        if let Some(login) = good.filter(|login| !is_stale(login)) {
            return Some(Ok(Arc::clone(login)));
        }
        if matches!(self.renewal, Renewal::Refresh(_)) {
            match login {
                None => return Some(Err(LoginError::Missing)),
                Some(login) if login.ended || login.refresh.is_none() => return Some(Err(LoginError::Ended)),
                Some(_) => {}
            }
        }
        let state = self.slot.lock();
        let refused = self.stale.as_ref().is_some_and(|stale| stale.refused);
        if let Some(login) = good.filter(|login| is_recent(state.repeated, now) && !(refused && is_stale(login))) {
            return Some(Ok(Arc::clone(login)));
        }
        if refused && is_recent(state.made, now) {
            return Some(Err(LoginError::NotAccepted));
        }
        let pause = state.paused.as_ref().filter(|pause| pause.version == found.version)?;
        let left = pause.until.duration_since(now).ok().filter(|left| !left.is_zero())?;
        let why = match pause.why.clone() {
            TokenError::Temporary { reason, .. } => TokenError::Temporary { reason, retry_after: Some(left) },
            lasting => lasting,
        };
        Some(Err(why.into()))
    }

    /// The right to renew, or what another process has got in the meantime.
    async fn lease(&self, before: &StoredLogin) -> Result<Result<Lease, Arc<Login>>, LoginError> {
        let ttl = self.shared.lease;
        let started = tokio::time::Instant::now();
        loop {
            if let Some(lease) = self.shared.store.lease(&self.key.lease(), ttl).await? {
                return Ok(Ok(lease));
            }
            tokio::time::sleep(LOOK).await;
            let found = self.read().await?;
            if found.version != before.version
                && let Some(Ok(login)) = self.settled(&found)
            {
                return Ok(Err(login));
            }
            // Its holder may have died as this began: by now the lease must have ended.
            if started.elapsed() > ttl + LOOK * 10 {
                let reason = "another process has been refreshing for too long".to_owned();
                return Err(TokenError::Temporary { reason, retry_after: None }.into());
            }
        }
    }

    /// Asks the server. Nobody else does, in any process.
    async fn alone(&self) -> Outcome {
        // Somebody may have done it just before the lease was free.
        let found = self.read().await?;
        if let Some(settled) = self.settled(&found) {
            return settled;
        }
        match self.ask(found.login.as_deref()).await {
            Ok(login) => self.keep(found, login).await,
            Err(TokenError::InvalidGrant) if matches!(self.renewal, Renewal::Refresh(_)) => self.end(found).await,
            Err(why) => {
                self.pause(&found, &why);
                Err(why.into())
            }
        }
    }

    async fn ask(&self, login: Option<&Login>) -> Result<Login, TokenError> {
        let configured = match &self.renewal {
            Renewal::Obtain(source) => return source.obtain().await,
            Renewal::Refresh(configured) => configured.as_ref(),
        };
        let asked = self.now();
        let login = login.ok_or(TokenError::InvalidGrant)?;
        let token = login.refresh.as_ref().ok_or(TokenError::InvalidGrant)?;
        // Another client than the one it was given to cannot use it.
        let client = configured.filter(|client| client.id == login.client.id).unwrap_or(&login.client);
        let endpoint = TokenEndpoint { client, ..login.endpoint(&self.shared.clock) };
        let tokens = grants::refresh(&self.http, &endpoint, token).await?;
        Ok(Login { client: client.clone(), ..login.renewed(tokens, asked) })
    }

    /// Puts what the server gave where the old was, if that is still there.
    async fn keep(&self, found: StoredLogin, login: Login) -> Outcome {
        // The same token is as old as it was, and may end another time.
        let same = found.login.filter(|before| before.access == login.access);
        let repeated = same.as_ref().map(|_| self.now());
        let login = Arc::new(Login { issued: same.map_or(login.issued, |before| before.issued), ..login });
        let mut backoff = Backoff::CALL;
        let swap = loop {
            let ttl = self.time_of(&login);
            match self.shared.store.swap(&self.key.place(), found.version, &login.value(), ttl).await {
                Err(_) if backoff.failures() < SAVES => {
                    tokio::time::sleep(backoff.pause(None, getrandom::u32().unwrap_or_default())).await;
                }
                done => break done,
            }
        };
        let mut state = self.slot.lock();
        match swap {
            Ok(Swap::Done(_)) => {
                (state.made, state.repeated, state.paused) = (Some(self.now()), repeated, None);
                Ok(login)
            }
            // The disk is full or gone. The login lives on in this process, and is saved when that is possible.
            Err(error) => {
                tracing::error!(upstream = self.key.upstream, %error, "a refreshed login could not be saved");
                (state.made, state.repeated) = (Some(self.now()), repeated);
                let unsaved = StoredLogin { login: Some(Arc::clone(&login)), version: found.version };
                self.shared.slots.unsaved.lock().insert(self.key.clone(), unsaved);
                Ok(login)
            }
            Ok(Swap::Lost(_)) => {
                drop(state);
                self.lost(&login).await
            }
        }
    }

    /// Signed in anew, or signed out, while the server was asked: that counts.
    async fn lost(&self, late: &Login) -> Outcome {
        match self.read().await?.login {
            Some(login) if !login.ended => Ok(login),
            Some(_) => Err(LoginError::Ended),
            None => {
                // Who signs out does not expect that a new token is left.
                let _ = late.revoke(&self.http, &self.shared.clock).await;
                Err(LoginError::Missing)
            }
        }
    }

    /// The server does not know the login any more. Unless somebody has put a newer one there, that is its end.
    async fn end(&self, found: StoredLogin) -> Outcome {
        let Some(login) = found.login else { return Err(LoginError::Missing) };
        let ended = Login { ended: true, ..(*login).clone() };
        match self.shared.store.swap(&self.key.place(), found.version, &ended.value(), None).await? {
            Swap::Done(_) => Err(LoginError::Ended),
            Swap::Lost(_) => {
                let newer = self.read().await?;
                self.settled(&newer).unwrap_or(Err(LoginError::Ended))
            }
        }
    }

    /// After trouble the server is left alone for a while, longer each time.
    fn pause(&self, found: &StoredLogin, why: &TokenError) {
        let mut state = self.slot.lock();
        let before = state.paused.take().filter(|pause| pause.version == found.version);
        let mut backoff = before.map_or(Backoff::TOKEN, |pause| pause.backoff);
        let asked = match why {
            TokenError::Temporary { retry_after, .. } => retry_after.unwrap_or_default(),
            TokenError::Unclear { .. } => Duration::ZERO,
            // It will say the same until somebody changes something.
            _ => backoff.cap(),
        };
        let pause = backoff.pause(Some(asked.min(backoff.cap())), getrandom::u32().unwrap_or_default());
        let until = self.now().checked_add(pause);
        state.paused = until.map(|until| Pause { version: found.version, until, why: why.clone(), backoff });
    }

    /// What is in the store; what is in memory alone, as long as that cannot be saved.
    pub(super) async fn read(&self) -> Result<StoredLogin, LoginError> {
        let store = &self.shared.store;
        let unsaved = self.shared.slots.unsaved.lock().get(&self.key).cloned();
        if let Some(StoredLogin { login: Some(login), version }) = &unsaved {
            let swap = store.swap(&self.key.place(), *version, &login.value(), self.time_of(login)).await;
            let mut all = self.shared.slots.unsaved.lock();
            let now = all.get(&self.key).and_then(|unsaved| unsaved.login.as_ref());
            // It may have been replaced or signed out since.
            if now.is_some_and(|now| Arc::ptr_eq(now, login)) {
                if swap.is_err() {
                    return Ok(unsaved.unwrap_or_default());
                }
                // There it is, or something newer.
                all.remove(&self.key);
            }
        }
        let entry = store.get(&self.key.place()).await?;
        let found = entry.and_then(|entry| Some((Arc::new(Login::from_value(&entry.value)?), entry.version)));
        let (login, version) = found.unzip();
        Ok(StoredLogin { login, version })
    }

    /// How long the store keeps a login: for good if somebody has signed in, and else not for long after its end, for
    /// another is made when it is needed.
    fn time_of(&self, login: &Login) -> Option<Duration> {
        match self.renewal {
            Renewal::Refresh(_) => None,
            Renewal::Obtain(_) => Some(match login.expires {
                Some(end) => end.duration_since(self.now()).unwrap_or_default().saturating_add(AFTER_ITS_END),
                None => WITHOUT_AN_END,
            }),
        }
    }

    fn now(&self) -> SystemTime {
        self.shared.clock.now()
    }
}

//! One refresh, from the look into the store to the next look.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use weir_flow::Backoff;
use weir_store::{Lease, Secret, Swap, Version};

use crate::{Http, Login, LoginKey, Revoked, TokenError, grants, revoke::revoke, token::TokenEndpoint};

use super::{Access, LoginError, LoginsShared, Renewal, Stale, TokenSlot};

/// What one task does for all who wait.
pub(super) struct Renewing {
    pub(super) shared: Arc<LoginsShared>,
    pub(super) slot: Arc<TokenSlot>,
    pub(super) http: Http,
    pub(super) key: LoginKey,
    /// What will not do.
    pub(super) stale: Option<Stale>,
    pub(super) renewal: Renewal,
}

/// What is in the store.
type StoredLogin = Option<(Arc<Login>, Version)>;

/// How often to look whether another process is done.
const LOOK: Duration = Duration::from_millis(100);
/// How long a login that needs nobody is kept after its end, so that what it was good for is asked for again.
const AFTER_ITS_END: Duration = Duration::from_secs(3600);
/// The same, of one of which nobody has said when it ends.
const WITHOUT_AN_END: Duration = Duration::from_secs(7 * 86_400);
/// How often to try again to keep what a server has given, before it is kept in memory alone.
const SAVES: u32 = 2;

impl Renewing {
    pub(super) async fn run(self) -> Result<Access, LoginError> {
        match self.renew().await {
            // What is in memory is as good as it was. But nothing is refreshed that could not be kept.
            Err(LoginError::Store(error)) => {
                let login = self.slot.lock().login.clone();
                let usable = login.filter(|login| self.is_usable(login));
                usable.map_or(Err(LoginError::Store(error)), |login| Ok(login.access()))
            }
            outcome => outcome,
        }
    }

    async fn renew(&self) -> Result<Access, LoginError> {
        self.save_unsaved().await;
        let found = self.read().await?;
        if let Some(settled) = self.settled(found.as_ref()) {
            return settled;
        }
        let lease = match self.lease(found.as_ref()).await? {
            Ok(lease) => lease,
            Err(done_elsewhere) => return Ok(done_elsewhere),
        };
        let outcome = self.alone().await;
        // It ends by itself, should this fail.
        let _ = self.shared.store.release(lease).await;
        outcome
    }

    /// What needs no server: a login that is good, and one that cannot be made anew.
    fn settled(&self, found: Option<&(Arc<Login>, Version)>) -> Option<Result<Access, LoginError>> {
        let (now, timing) = (self.now(), &self.shared.timing);
        let login = found.map(|(login, _)| login);
        let usable = login.filter(|login| self.is_usable(login));
        if let Some(login) = usable
            && login.is_good(now, timing.ahead)
        {
            return Some(Ok(login.access()));
        }
        let or_usable = |error| Some(usable.map_or(Err(error), |login| Ok(login.access())));
        if matches!(self.renewal, Renewal::Refresh(_)) {
            match login {
                None => return Some(Err(LoginError::Missing)),
                Some(login) if !login.is_refreshable() => return or_usable(LoginError::Ended),
                Some(_) => {}
            }
        }
        let (made, repeated, paused) = {
            let known = self.slot.lock();
            (known.has_made(now), known.has_repeated(now), known.paused.clone())
        };
        let is_refused = |login: &Login| self.stale.as_ref().is_some_and(|stale| stale.is_refused(&login.access));
        if let Some(login) = login.filter(|login| repeated && !is_refused(login) && login.is_good(now, timing.margin)) {
            return Some(Ok(login.access()));
        }
        if made && self.stale.as_ref().is_some_and(|stale| stale.refused) {
            return Some(Err(LoginError::NotAccepted));
        }
        let (until, why) = paused?;
        let left = until.duration_since(now).ok().filter(|left| !left.is_zero())?;
        let why = match why {
            TokenError::Temporary { reason, .. } => TokenError::Temporary { reason, retry_after: Some(left) },
            lasting => lasting,
        };
        or_usable(why.into())
    }

    /// The right to refresh, or what another process has got in the meantime.
    async fn lease(&self, before: Option<&(Arc<Login>, Version)>) -> Result<Result<Lease, Access>, LoginError> {
        let (store, ttl) = (&self.shared.store, self.shared.timing.lease);
        let started = tokio::time::Instant::now();
        loop {
            if let Some(lease) = store.lease(&self.key.lease(), ttl).await? {
                return Ok(Ok(lease));
            }
            tokio::time::sleep(LOOK).await;
            let found = self.read().await?;
            if found.as_ref().map(|(_, version)| version) != before.map(|(_, version)| version)
                && let Some(Ok(access)) = self.settled(found.as_ref())
            {
                return Ok(Err(access));
            }
            // Its holder may have died as this began: by now the lease must have ended.
            if started.elapsed() > ttl + LOOK * 10 {
                let reason = "another process has been refreshing for too long".to_owned();
                return Err(TokenError::Temporary { reason, retry_after: None }.into());
            }
        }
    }

    /// Asks the server. Nobody else does, in any process.
    async fn alone(&self) -> Result<Access, LoginError> {
        // Somebody may have done it just before the lease was free.
        let found = self.read().await?;
        if let Some(settled) = self.settled(found.as_ref()) {
            return settled;
        }
        let asked = self.now();
        let failed = match self.ask(found.as_ref(), asked).await {
            Ok(login) => return self.keep(found, login).await,
            Err(error) => error,
        };
        if failed == TokenError::InvalidGrant && matches!(self.renewal, Renewal::Refresh(_)) {
            return self.end(found).await;
        }
        self.pause(&failed);
        let usable =
            found.filter(|(login, _)| login.is_usable(self.stale_token(), self.now(), self.shared.timing.margin));
        usable.map_or(Err(failed.into()), |(login, _)| Ok(login.access()))
    }

    async fn ask(&self, found: Option<&(Arc<Login>, Version)>, now: SystemTime) -> Result<Login, TokenError> {
        let configured = match &self.renewal {
            Renewal::Obtain(source) => return source.obtain().await,
            Renewal::Refresh(configured) => configured.as_ref(),
        };
        let (login, _) = found.ok_or(TokenError::InvalidGrant)?;
        let token = login.refresh.as_ref().ok_or(TokenError::InvalidGrant)?;
        // Another client than the one it was given to cannot use it.
        let client = configured.filter(|client| client.id == login.client.id).unwrap_or(&login.client);
        let endpoint = TokenEndpoint { client, ..self.endpoint(login) };
        let tokens = grants::refresh(&self.http, &endpoint, token).await?;
        let client = client.clone();
        Ok(Login { client, ..login.renewed(tokens, now) })
    }

    /// Puts what the server gave where the old was, if that is still there.
    async fn keep(&self, found: StoredLogin, login: Login) -> Result<Access, LoginError> {
        // The same token is as old as it was, and may end another time.
        let same = found.as_ref().map(|(before, _)| before).filter(|before| before.access == login.access);
        let repeated = same.map(|_| self.now());
        let login = Arc::new(Login { issued: same.map_or(login.issued, |before| before.issued), ..login });
        let expected = found.map(|(_, version)| version);
        let mut backoff = Backoff::CALL;
        let swap = loop {
            match self.shared.store.swap(&self.key.place(), expected, &login.value(), self.time_of(&login)).await {
                Ok(swap) => break swap,
                Err(_) if backoff.failures() < SAVES => {
                    tokio::time::sleep(backoff.pause(None, getrandom::u32().unwrap_or_default())).await
                }
                Err(error) => {
                    tracing::error!(upstream = self.key.upstream, %error, "a refreshed login could not be saved");
                    self.slot.lock().repeated = repeated;
                    return Ok(self.keep_in_memory(login, expected));
                }
            }
        };
        match swap {
            Swap::Done(version) => {
                let now = self.now();
                let mut known = self.slot.lock();
                // A sign-in may have come in between.
                if known.version.is_none_or(|known| known < version) {
                    known.keep(Arc::clone(&login), version, now);
                }
                (known.made, known.repeated, known.paused, known.backoff) = (Some(now), repeated, None, None);
                Ok(login.access())
            }
            // Signed in anew, or signed out, while the server was asked: that counts.
            Swap::Lost(_) => match self.read().await? {
                Some((login, _)) if !login.ended => Ok(login.access()),
                Some(_) => Err(LoginError::Ended),
                None => {
                    // Who signs out does not expect that a new token is left.
                    let endpoint = self.endpoint(&login);
                    let token = login.refresh.as_ref().map(|token| (token, Revoked::Refresh));
                    let (token, kind) = token.unwrap_or((&login.access, Revoked::Access));
                    let _ = revoke(&self.http, &endpoint, token, kind).await;
                    Err(LoginError::Missing)
                }
            },
        }
    }

    /// The disk is full or gone. The login lives on in this process, and is saved when that is possible.
    fn keep_in_memory(&self, login: Arc<Login>, version: Option<Version>) -> Access {
        let now = self.now();
        let access = login.access();
        let mut known = self.slot.lock();
        (known.login, known.version, known.read) = (Some(login), version, Some(now));
        (known.unsaved, known.made) = (true, Some(now));
        access
    }

    async fn save_unsaved(&self) {
        let (login, version) = {
            let known = self.slot.lock();
            match &known.login {
                Some(login) if known.unsaved => (Arc::clone(login), known.version),
                _ => return,
            }
        };
        match self.shared.store.swap(&self.key.place(), version, &login.value(), self.time_of(&login)).await {
            Ok(Swap::Done(version)) => self.slot.lock().keep(login, version, self.now()),
            // There is something newer.
            Ok(Swap::Lost(_)) => self.slot.lock().unsaved = false,
            Err(_) => {}
        }
    }

    /// The server does not know the login any more. Unless somebody has put a newer one there, that is its end.
    async fn end(&self, found: StoredLogin) -> Result<Access, LoginError> {
        let Some((login, version)) = found else { return Err(LoginError::Missing) };
        let ended = Arc::new(Login { ended: true, ..(*login).clone() });
        match self.shared.store.swap(&self.key.place(), Some(version), &ended.value(), None).await? {
            Swap::Done(version) => self.slot.lock().keep(Arc::clone(&ended), version, self.now()),
            Swap::Lost(_) => {
                let newer = self.read().await?;
                return self.settled(newer.as_ref()).unwrap_or(Err(LoginError::Ended));
            }
        }
        // Its last access token may have a while to go.
        if self.is_usable(&ended) { Ok(ended.access()) } else { Err(LoginError::Ended) }
    }

    /// After trouble the server is left alone for a while, longer each time.
    fn pause(&self, failed: &TokenError) {
        let timing = &self.shared.timing;
        let mut known = self.slot.lock();
        let asked = match failed {
            TokenError::Temporary { retry_after, .. } => retry_after.unwrap_or_default(),
            TokenError::Unclear { .. } => Duration::ZERO,
            // It will say the same until somebody changes something.
            _ => timing.backoff.cap(),
        };
        let backoff = known.backoff.get_or_insert_with(|| timing.backoff.clone());
        let pause = backoff.pause(Some(asked.min(timing.backoff.cap())), getrandom::u32().unwrap_or_default());
        let until = self.now().checked_add(pause);
        known.paused = until.map(|until| (until, failed.clone()));
    }

    /// What is in the store; what is in memory alone, as long as that could not be saved.
    async fn read(&self) -> Result<StoredLogin, LoginError> {
        let read = self.shared.store.get(&self.key.place()).await;
        {
            let known = self.slot.lock();
            if known.unsaved
                && let (Some(login), Some(version)) = (&known.login, known.version)
            {
                return Ok(Some((Arc::clone(login), version)));
            }
        }
        let found = read?.and_then(|entry| Some((Arc::new(Login::from_value(&entry.value)?), entry.version)));
        let mut known = self.slot.lock();
        match &found {
            Some((login, version)) => {
                // A new sign-in starts with a clean slate.
                if known.version != Some(*version) {
                    (known.paused, known.backoff) = (None, None);
                }
                known.keep(Arc::clone(login), *version, self.now());
            }
            None => (known.login, known.version, known.read) = (None, None, Some(self.now())),
        }
        Ok(found)
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

    fn endpoint<'a>(&'a self, login: &'a Login) -> TokenEndpoint<'a> {
        let (server, client, resource) = (&login.server, &login.client, login.resource.as_deref());
        TokenEndpoint { server, client, resource, clock: &self.shared.clock }
    }

    fn is_usable(&self, login: &Login) -> bool {
        login.is_usable(self.stale_token(), self.now(), self.shared.timing.margin)
    }

    fn stale_token(&self) -> Option<&Secret> {
        self.stale.as_ref().map(|stale| &stale.token)
    }

    fn now(&self) -> SystemTime {
        self.shared.clock.now()
    }
}

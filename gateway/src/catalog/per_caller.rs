//! What upstreams offer that want a login of each caller: asked for each, kept for each, and never shown to another.
//!
//! Nobody can keep such lists in Weir's own name. They are fetched when their caller lists something, all upstreams at
//! once, and kept for as long as the upstream says.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    caller::Caller,
    config::UpstreamName,
    upstream::{ConnectError, Upstream},
};

use super::CatalogSnapshot;

/// How many callers' lists are kept; of more, those of whoever was away for the longest time are forgotten.
const CALLERS: usize = 1024;

/// How long lists are kept when the upstream does not say.
const REFRESH: Duration = Duration::from_secs(60);

/// How long they are kept at least, whatever it says.
const SHORTEST: Duration = Duration::from_secs(5);

/// The lists of all callers.
#[derive(Default)]
pub(super) struct Personal {
    callers: Mutex<HashMap<Arc<str>, Arc<PerCaller>>>,
}

/// The lists of one caller.
pub(super) struct PerCaller {
    views: Mutex<HashMap<UpstreamName, CallerLists>>,
    /// Held while lists are fetched, so that a burst of lists fetches them once.
    fetching: tokio::sync::Mutex<()>,
    used: Mutex<Instant>,
}

struct CallerLists {
    /// None if it could not be had.
    view: Option<Arc<CatalogSnapshot>>,
    until: Instant,
}

impl Personal {
    /// The lists of a caller; none if nobody is calling.
    pub(super) fn of(&self, caller: Option<&Arc<Caller>>) -> Option<Arc<PerCaller>> {
        let id = caller?.id();
        let mut callers = lock(&self.callers);
        if let Some(own) = callers.get(id) {
            *lock(&own.used) = Instant::now();
            return Some(Arc::clone(own));
        }
        if callers.len() >= CALLERS
            && let Some(oldest) = callers.iter().min_by_key(|(_, own)| *lock(&own.used)).map(|(id, _)| Arc::clone(id))
        {
            callers.remove(&oldest);
        }
        let own = PerCaller {
            views: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
            used: Mutex::new(Instant::now()),
        };
        Some(Arc::clone(callers.entry(Arc::clone(id)).or_insert(Arc::new(own))))
    }

    /// Has the lists of an upstream fetched anew when they are asked for next, or those of all.
    pub(super) fn outdate(&self, upstream: Option<&UpstreamName>) {
        for own in lock(&self.callers).values() {
            let mut views = lock(&own.views);
            for (_, kept) in views.iter_mut().filter(|(of, _)| upstream.is_none_or(|upstream| upstream == *of)) {
                kept.until = Instant::now();
            }
        }
    }
}

impl PerCaller {
    /// What is known of an upstream.
    pub(super) fn view(&self, upstream: &UpstreamName) -> Option<Arc<CatalogSnapshot>> {
        lock(&self.views).get(upstream)?.view.clone()
    }

    /// What stands in for an upstream that waits for a login: the same as before, if it did.
    fn waiting(&self, upstream: &UpstreamName) -> Arc<CatalogSnapshot> {
        let waiting = || Arc::new(CatalogSnapshot::waiting(upstream.as_str()));
        self.view(upstream).filter(|view| view.waits).unwrap_or_else(waiting)
    }

    /// Fetches what is not known, or not for sure any more. Whoever is late is left out this time.
    pub(super) async fn refresh(&self, caller: &Arc<Caller>, upstreams: &[Arc<Upstream>]) {
        let _fetching = self.fetching.lock().await;
        let now = Instant::now();
        let fresh = |upstream: &Upstream| lock(&self.views).get(upstream.key()).is_some_and(|kept| kept.until > now);
        let mut asking = JoinSet::new();
        for upstream in upstreams.iter().filter(|upstream| !fresh(upstream)) {
            let (caller, upstream) = (Arc::clone(caller), Arc::clone(upstream));
            asking.spawn(async move {
                let fetched = tokio::time::timeout(upstream.timeouts.list, fetch(&caller, &upstream)).await;
                (upstream, fetched.unwrap_or(Err(Missing::Trouble)))
            });
        }
        while let Some(ended) = asking.join_next().await {
            let Ok((upstream, fetched)) = ended else { continue };
            let name = upstream.key();
            let (view, lasts) = match fetched {
                Ok(mut view) => {
                    let before = self.view(name).filter(|view| !view.waits);
                    let lasts = view.lasts.ttl.filter(|ttl| !ttl.is_zero()).unwrap_or(REFRESH);
                    let lasts = if view.failed.is_empty() { lasts.clamp(SHORTEST, REFRESH) } else { SHORTEST };
                    view.tell(name.as_str(), before.as_deref());
                    before.iter().for_each(|before| view.keep(before));
                    (Some(Arc::new(view)), lasts)
                }
                // When there is a login, it must be seen at once.
                Err(Missing::Login) => (Some(self.waiting(name)), Duration::ZERO),
                Err(Missing::Elsewhere) => (None, Duration::ZERO),
                // What was known stays listed for a moment of trouble.
                Err(Missing::Trouble) => (self.view(name), SHORTEST),
            };
            lock(&self.views).insert(name.clone(), CallerLists { view, until: Instant::now() + lasts });
        }
    }
}

/// Why there is no list.
enum Missing {
    /// The caller has to sign in.
    Login,
    /// Somebody has to, but the caller cannot.
    Elsewhere,
    Trouble,
}

/// The lists of an upstream as a caller sees them, in whichever era it speaks.
async fn fetch(caller: &Arc<Caller>, upstream: &Upstream) -> Result<CatalogSnapshot, Missing> {
    let lease = upstream.lease(Some(caller), None).await.map_err(|why| match why {
        why if why.is_for_caller() => Missing::Login,
        ConnectError::SignIn(_) | ConnectError::Personal => Missing::Elsewhere,
        why => {
            tracing::debug!(upstream = upstream.name(), error = %why, "a caller's lists cannot be had");
            Missing::Trouble
        }
    })?;
    let fetched = CatalogSnapshot::fetch(Some(caller), upstream, &lease).await;
    upstream.close(Some(caller), &lease.channel).await;
    let mut view = fetched.map_err(|why| {
        tracing::debug!(upstream = upstream.name(), error = %why, "a caller's lists cannot be had");
        Missing::Trouble
    })?;
    // Whatever the upstream says of who may share it: this was fetched with one caller's login.
    view.lasts.public = false;
    view.discovery_lasts.public = false;
    Ok(view)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

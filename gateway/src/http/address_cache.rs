//! The addresses of one name, as the resolver said last.
//!
//! The system looks a name up on a thread that nothing stops, of a pool that all of Weir shares. Where no name server
//! answers, that takes long. So there is one lookup at a time, which goes on when nobody waits for it any more.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Mutex, task::JoinHandle, time::timeout};

use super::target::interleaved;

/// How long the addresses of a name are believed.
const RESOLVED: Duration = Duration::from_secs(30);

/// How long the resolver is waited for where it has said something before.
const PATIENCE: Duration = Duration::from_secs(1);

/// The addresses of one name.
#[derive(Default)]
pub(super) struct AddressCache(Mutex<CachedAddresses>);

#[derive(Default)]
struct CachedAddresses {
    known: Option<(Instant, Arc<[SocketAddr]>)>,
    lookup: Option<JoinHandle<Vec<SocketAddr>>>,
    /// When the resolver was last waited for.
    waited: Option<Instant>,
}

impl AddressCache {
    /// The addresses, looked up if they are not known; none if they never were.
    pub(super) async fn get<L, A>(&self, lookup: impl FnOnce() -> L) -> Option<Arc<[SocketAddr]>>
    where
        L: Future<Output = io::Result<A>> + Send + 'static,
        A: Iterator<Item = SocketAddr>,
    {
        let asked = Instant::now();
        let mut cached = self.0.lock().await;
        let CachedAddresses { known, lookup: running, waited } = &mut *cached;
        let is_new = known.as_ref().is_some_and(|(since, _)| since.elapsed() < RESOLVED);
        if !is_new && waited.is_none_or(|at| at < asked) {
            let lookup = running.get_or_insert_with(|| {
                let lookup = lookup();
                tokio::spawn(async { lookup.await.map(interleaved).unwrap_or_default() })
            });
            let patience = if known.is_some() { PATIENCE } else { Duration::MAX };
            if let Ok(found) = timeout(patience, lookup).await {
                *running = None;
                // A resolver that fails for a moment is not a reason to forget what it said before.
                if let Some(found) = found.ok().filter(|found| !found.is_empty()) {
                    *known = Some((Instant::now(), found.into()));
                }
            }
            *waited = Some(Instant::now());
        }
        known.as_ref().map(|(_, addresses)| Arc::clone(addresses))
    }

    /// As after a long while.
    #[cfg(test)]
    pub(super) async fn grow_old(&self) {
        let mut cached = self.0.lock().await;
        cached.known = cached.known.take().and_then(|(since, found)| Some((since.checked_sub(RESOLVED)?, found)));
    }
}

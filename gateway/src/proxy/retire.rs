//! Another configuration comes into force while calls run.
//!
//! A call finishes at the upstream that it began with. Whatever else used an upstream that is not carried over finds the
//! one that has its name now, or ends: lists, notifications, subscriptions, sessions.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    caller::Caller,
    session::{Endpoint, Session},
    snapshot::Snapshot,
    upstream::{Channel, Upstream},
};

use super::{Proxy, translate::SharedSessions};

/// How often it is looked whether calls are over.
const LOOK: Duration = Duration::from_millis(50);

/// What the configuration before has left, until the calls that use it are over.
#[must_use = "what is left must be closed"]
pub struct Retired {
    upstreams: Vec<Arc<Upstream>>,
    /// Sessions of endpoints that are no more, or not what they were.
    sessions: Vec<Arc<Session>>,
    /// What other sessions had open.
    channels: Vec<(Option<Arc<Caller>>, Arc<Upstream>, Channel)>,
    shared: SharedSessions,
}

impl Proxy {
    /// Puts a snapshot in force. Upstreams that are in it and in the one before are not touched.
    pub async fn swap(self: &Arc<Self>, snapshot: Arc<Snapshot>) -> Retired {
        let before = self.snapshot();
        let upstreams = self.catalog.swap(Arc::clone(&snapshot)).await;
        let is_gone = |upstream: &Arc<Upstream>| upstreams.iter().any(|gone| Arc::ptr_eq(gone, upstream));
        if !upstreams.is_empty() || !snapshot.has_rules_of(&before) {
            before.supersede();
        }
        let is_over = |session: &Session| {
            let is_other = match &session.endpoint {
                Endpoint::One(upstream) => is_gone(upstream),
                Endpoint::Merged(toolset) => !snapshot.serves_as_before(toolset, &before),
            };
            // By other rules the caller may find less there, or nothing.
            is_other || !self.still(&session.endpoint, session.caller().as_ref())
        };
        let sessions = self.sessions.take_if(is_over);
        let mut channels = Vec::new();
        for session in self.sessions.list() {
            let taken = upstreams.iter().filter_map(|upstream| Some((upstream, session.channels.leave(upstream)?)));
            channels.extend(taken.map(|(upstream, channel)| (session.caller(), Arc::clone(upstream), channel)));
            for upstream in upstreams.iter().filter(|upstream| !session.watched(upstream.key()).is_empty()) {
                self.watch_on(&session, upstream);
            }
        }
        let shared = self.pool.take(is_gone);
        Retired { upstreams, sessions, channels, shared }
    }

    /// Opens for a session the upstream that has the name of another now, so that it hears of what it watches.
    fn watch_on(self: &Arc<Self>, session: &Arc<Session>, gone: &Upstream) {
        let Some(upstream) = self.upstream(gone.name()) else { return };
        let (proxy, owner) = (Arc::clone(self), Arc::clone(session));
        // The opening is a task of the session, and nobody waits for it here.
        let open = async move { drop(proxy.open_channel(&owner, &upstream).await) };
        session.openings.lock().spawn(open);
    }

    /// Closes what a configuration has left, when the calls that use it are over, or have had the time that they may take.
    pub async fn close(self: &Arc<Self>, retired: Retired) {
        let Retired { upstreams, sessions, channels, shared } = retired;
        let limit = upstreams.iter().map(|upstream| upstream.timeouts.overall).max().unwrap_or_default();
        let runs = || {
            upstreams.iter().any(|upstream| upstream.is_in_use()) || sessions.iter().any(|session| session.is_busy())
        };
        let end = Instant::now() + limit;
        while runs() && Instant::now() < end {
            tokio::time::sleep(LOOK).await;
        }
        let mut closing = JoinSet::new();
        for session in sessions {
            let proxy = Arc::clone(self);
            closing.spawn(async move { proxy.end(&session).await });
        }
        for (caller, upstream, channel) in channels {
            closing.spawn(async move { upstream.close(caller.as_ref(), &channel).await });
        }
        closing.spawn(shared.close());
        closing.join_all().await;
        let stop = |upstream: Arc<Upstream>| async move { upstream.stop().await };
        upstreams.into_iter().map(stop).collect::<JoinSet<()>>().join_all().await;
    }
}

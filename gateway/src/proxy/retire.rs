//! Another configuration comes into force while calls run.
//!
//! A call finishes at the upstream that it began with. Whatever else used an upstream that is not carried over finds the
//! one that has its name now, or ends: lists, notifications, subscriptions, sessions.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use crate::{
    access::Item,
    config::Limits,
    session::Session,
    snapshot::Snapshot,
    upstream::{Channel, Upstream},
};

use super::{Proxy, authorize::is_allowed, translate::SharedSessions};

/// How often it is looked whether calls are over.
const LOOK: Duration = Duration::from_millis(50);

/// What the configuration before has left, until the calls that use it are over.
#[must_use = "what is left must be closed"]
pub struct Retired {
    /// Upstreams that are no more, and the sessions that modern clients share there.
    upstreams: Vec<(Arc<Upstream>, SharedSessions)>,
    /// Sessions of endpoints that are no more, or not what they were.
    sessions: Vec<Arc<Session>>,
    /// What other sessions had open at such upstreams.
    channels: Vec<(Arc<Session>, Arc<Upstream>, Channel)>,
    /// Sessions, and upstreams that the rules have taken from their callers.
    hidden: Vec<(Arc<Session>, Arc<Upstream>)>,
}

impl Proxy {
    fn resize(&self, limits: &Limits) {
        self.admission.store(Arc::new(self.admission.load().with(limits)));
        self.sessions.resize(limits.sessions, limits.session_idle);
        self.sessions.memory().resize(limits.replay_buffer);
        self.pool.resize(limits.pooled_sessions);
        self.pending.resize(limits.pending_inputs);
    }

    /// Puts a snapshot in force. Upstreams that are in it and in the one before are not touched.
    pub async fn swap(self: &Arc<Self>, snapshot: Arc<Snapshot>) -> Retired {
        self.resize(snapshot.limits());
        let gone = self.catalog.swap(Arc::clone(&snapshot)).await;
        let is_over = |session: &Session| !self.still(&session.endpoint, session.caller().as_ref());
        let sessions = self.sessions.take_if(is_over);
        for session in sessions.iter().filter(|session| self.is_narrowed(session)) {
            // Its stream would still say what the caller may no longer know.
            drop(session.queue.take_over());
        }
        let (mut channels, mut hidden) = (Vec::new(), Vec::new());
        for session in self.sessions.list() {
            for upstream in &gone {
                let left = session.channels.leave(upstream);
                channels.extend(left.map(|channel| (Arc::clone(&session), Arc::clone(upstream), channel)));
            }
            for (upstream, _) in session.channels.all() {
                if !sees(&snapshot, &session, &upstream) {
                    hidden.push((Arc::clone(&session), upstream));
                }
            }
            for name in session.watched_upstreams() {
                if let Some(upstream) = snapshot.upstream(name.as_str())
                    && session.channels.get(upstream).is_none()
                    && sees(&snapshot, &session, upstream)
                {
                    self.watch_on(&session, upstream);
                }
            }
        }
        let shared = |gone: Arc<Upstream>| {
            let shared = self.pool.take(|upstream| Arc::ptr_eq(upstream, &gone));
            (gone, shared)
        };
        Retired { upstreams: gone.into_iter().map(shared).collect(), sessions, channels, hidden }
    }

    /// Whether the rules have taken from a session's caller the endpoint, or a part of its upstream.
    fn is_narrowed(&self, session: &Session) -> bool {
        let now = self.endpoint(session.endpoint.name(), session.caller().as_ref());
        now.is_none_or(|now| now.is_merged() != session.endpoint.is_merged())
    }

    /// Opens an upstream for a session, so that it hears of what it watches there.
    fn watch_on(self: &Arc<Self>, session: &Arc<Session>, upstream: &Arc<Upstream>) {
        let (proxy, owner, upstream) = (Arc::clone(self), Arc::clone(session), Arc::clone(upstream));
        // The opening is a task of the session, and nobody waits for it here.
        let open = async move { drop(proxy.open_channel(&owner, &upstream).await) };
        session.openings.lock().spawn(open);
    }

    /// Closes what a configuration has left, each part when the calls that use it are over, or have had the time that they
    /// may take. The end of the gateway ends that time too.
    pub async fn close(self: &Arc<Self>, retired: Retired) {
        let Retired { upstreams, sessions, channels, hidden } = retired;
        let mut closing = JoinSet::new();
        for session in sessions {
            let proxy = Arc::clone(self);
            closing.spawn(async move {
                proxy.over(session.patience(), || session.is_busy() || session.runs_copied()).await;
                proxy.end(&session).await;
            });
        }
        for (session, upstream, channel) in channels {
            let proxy = Arc::clone(self);
            closing.spawn(async move {
                proxy
                    .over(upstream.timeouts.longest(), || session.is_busy_at(&upstream) || session.runs_copied())
                    .await;
                upstream.close(session.caller().as_ref(), &channel).await;
            });
        }
        for (session, upstream) in hidden {
            let proxy = Arc::clone(self);
            closing.spawn(async move {
                proxy
                    .over(upstream.timeouts.longest(), || session.is_busy_at(&upstream) || session.runs_copied())
                    .await;
                // Not if the rules have given it back meanwhile.
                if !sees(&proxy.snapshot(), &session, &upstream)
                    && let Some(channel) = session.channels.leave(&upstream)
                {
                    session.forwarders.end(upstream.key());
                    upstream.close(session.caller().as_ref(), &channel).await;
                }
            });
        }
        for (upstream, shared) in upstreams {
            let proxy = Arc::clone(self);
            closing.spawn(async move {
                proxy.over(upstream.timeouts.longest(), || upstream.is_in_use()).await;
                shared.close().await;
                upstream.stop().await;
            });
        }
        closing.join_all().await;
    }

    /// Resolves when nothing `runs` any more, has had its time, or the proxy stops.
    async fn over(&self, limit: Duration, runs: impl Fn() -> bool) {
        let ended = async {
            while runs() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            _ = tokio::time::timeout(limit, ended) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    }
}

/// Whether a session's caller may know of an upstream there.
fn sees(snapshot: &Snapshot, session: &Session, upstream: &Upstream) -> bool {
    is_allowed(snapshot, &session.endpoint, session.caller().as_ref(), upstream, Item::Any)
}

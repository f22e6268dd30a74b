//! The requests of one client that run, so that what comes later finds them: its cancellation, and their progress.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_mcp::{Message, answer, json, method};

use crate::{
    config::UpstreamName,
    upstream::{Ticket, Upstream},
};

use super::Session;

/// One request on its way.
pub struct RunningRequest {
    /// Where it runs.
    pub upstream: Arc<Upstream>,
    /// Names it to a child process.
    pub ticket: Ticket,
    /// Where its client wants to hear of progress, raw.
    token: Option<Box<[u8]>>,
    /// How far it has come.
    progress: Mutex<f64>,
    cancelled: AtomicBool,
    cancelling: Notify,
}

/// Removes a request from those that run when it is dropped.
#[must_use]
pub struct RunningGuard {
    /// The request.
    pub run: Arc<RunningRequest>,
    session: Arc<Session>,
    id: Box<[u8]>,
}

/// A request that has come for a session, which stays here until this is dropped.
#[must_use]
pub struct SessionHold(Arc<Session>);

/// The requests that run, by the ids that the client gave them, raw.
#[derive(Default)]
pub(super) struct RunningRequests(Mutex<HashMap<Box<[u8]>, Arc<RunningRequest>>>);

impl RunningRequest {
    /// Ends it: its client has cancelled it and waits for nothing more.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.cancelling.notify_waiters();
    }

    /// Resolves when it is cancelled.
    pub async fn cancelled(&self) {
        let mut cancelling = std::pin::pin!(self.cancelling.notified());
        // From here on no cancellation is missed.
        cancelling.as_mut().enable();
        if !self.cancelled.load(Ordering::Acquire) {
            cancelling.await;
        }
    }

    /// Whether it is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Whether progress is this request's.
    pub fn hears(&self, progress: &Message) -> bool {
        self.token.as_deref().is_some_and(|token| progress.progress_token() == Some(token))
    }

    /// Whether progress leads on: each value must be greater than the one before (MCP basic/utilities/progress). What is
    /// no number is not Weir's to judge.
    pub fn advances(&self, progress: &Message) -> bool {
        let value = progress.params().and_then(|params| json::get(params, &["progress"]));
        let Some(value) = value.and_then(|raw| std::str::from_utf8(raw).ok()?.parse::<f64>().ok()) else { return true };
        let mut last = self.progress.lock();
        let more = value > *last;
        if more {
            *last = value;
        }
        more
    }
}

impl RunningRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Where they run.
    pub(super) fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.0.lock().values().map(|run| Arc::clone(&run.upstream)).collect()
    }
}

impl SessionHold {
    /// Another one, for a request that has one or whose session nobody takes out meanwhile.
    pub fn new(session: &Arc<Session>) -> Self {
        session.holds.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(session))
    }

    /// The session.
    #[must_use]
    pub const fn session(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Session {
    /// Notes that a request runs at an upstream, until the guard is dropped.
    pub fn run(self: &Arc<Self>, request: &Message, upstream: &Arc<Upstream>) -> Option<RunningGuard> {
        let id: Box<[u8]> = request.id()?.into();
        let run = Arc::new(RunningRequest {
            upstream: Arc::clone(upstream),
            ticket: Ticket::default(),
            token: request.progress_token().map(Box::from),
            progress: Mutex::new(f64::NEG_INFINITY),
            cancelled: AtomicBool::new(false),
            cancelling: Notify::new(),
        });
        self.running.0.lock().insert(id.clone(), Arc::clone(&run));
        Some(RunningGuard { run, session: Arc::clone(self), id })
    }

    /// The running request with this id.
    pub fn runs_at(&self, id: &[u8]) -> Option<Arc<RunningRequest>> {
        self.running.0.lock().get(id).cloned()
    }

    /// The running request at an upstream whose progress this is.
    pub fn makes_progress(&self, upstream: &UpstreamName, progress: &Message) -> Option<Arc<RunningRequest>> {
        self.running.0.lock().values().find(|run| run.upstream.key() == upstream && run.hears(progress)).cloned()
    }
}

impl RunningGuard {
    /// Whose request it is.
    pub const fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// What tells the upstream to give it up, under the id that the client gave it.
    pub fn cancellation(&self, reason: &str) -> Bytes {
        let (id, reason) = (String::from_utf8_lossy(&self.id), json::quote(reason));
        let params = format!("{{\"requestId\":{id},\"reason\":{reason}}}");
        answer::notification(method::CANCELLED, Some(params.as_bytes()))
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        let mut running = self.session.running.0.lock();
        // A client that gives an id twice has another request there now.
        if running.get(&self.id).is_some_and(|run| Arc::ptr_eq(run, &self.run)) {
            running.remove(&self.id);
        }
        drop(running);
        self.session.touch();
    }
}

//! Child processes that several clients share: one for each era of an upstream, and for each principal unless the
//! configuration has all principals share one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use weir_mcp::{Era, Message};

use super::{lock, stdio::Process};

/// The shared processes of one upstream, by the principal that they are kept apart for.
#[derive(Default)]
pub(super) struct ProcessPool {
    shared: Mutex<HashMap<Option<Arc<str>>, Arc<SharedProcesses>>>,
}

/// The processes that are shared by whoever is the same principal.
#[derive(Default)]
pub(super) struct SharedProcesses {
    legacy: Mutex<Option<PooledProcess>>,
    modern: Mutex<Option<PooledProcess>>,
    /// Held while a process is started, so that a burst of first calls starts one.
    pub(super) starting: tokio::sync::Mutex<()>,
}

/// A shared process and what it said when it was opened.
#[derive(Clone)]
pub(super) struct PooledProcess {
    pub(super) process: Process,
    pub(super) answer: Message,
    used: Instant,
}

impl ProcessPool {
    /// What is shared by this principal. There are no more than processes and those who are about to start one.
    pub(super) fn of(&self, whose: Option<Arc<str>>) -> Arc<SharedProcesses> {
        let mut shared = lock(&self.shared);
        if !shared.contains_key(&whose) {
            shared.retain(|_, shared| !shared.is_empty());
        }
        Arc::clone(shared.entry(whose).or_default())
    }

    /// Ends the processes that nobody holds and nobody asked for in the last `idle`.
    pub(super) async fn reap(&self, idle: Duration) {
        for shared in self.all() {
            shared.reap(idle).await;
        }
        lock(&self.shared).retain(|_, shared| !shared.is_empty());
    }

    /// Ends them all.
    pub(super) async fn stop(&self) {
        // All at once: each may take its time to end.
        let stop = |shared: Arc<SharedProcesses>| async move { shared.stop().await };
        self.all().into_iter().map(stop).collect::<JoinSet<()>>().join_all().await;
    }

    fn all(&self) -> Vec<Arc<SharedProcesses>> {
        lock(&self.shared).values().cloned().collect()
    }
}

impl SharedProcesses {
    /// The process for `era`, if it still runs.
    pub(super) fn get(&self, era: Era) -> Option<PooledProcess> {
        let mut slot = lock(self.slot(era));
        let member = slot.as_mut().filter(|member| member.process.alive())?;
        member.used = Instant::now();
        Some(member.clone())
    }

    /// Keeps a process for the next client.
    pub(super) fn put(&self, era: Era, process: Process, answer: Message) {
        process.serve_together();
        *lock(self.slot(era)) = Some(PooledProcess { process, answer, used: Instant::now() });
    }

    /// Whether nothing runs, and nobody is about to start something.
    fn is_empty(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && lock(&self.legacy).is_none() && lock(&self.modern).is_none()
    }

    async fn reap(&self, idle: Duration) {
        for era in [Era::Legacy, Era::Modern] {
            let over = {
                let mut slot = lock(self.slot(era));
                let rests = slot
                    .as_ref()
                    .is_some_and(|m| m.used.elapsed() >= idle && !m.process.busy() && !m.process.is_held());
                if rests { slot.take() } else { None }
            };
            if let Some(member) = over {
                member.process.stop().await;
            }
        }
    }

    async fn stop(&self) {
        self.reap(Duration::ZERO).await;
        for era in [Era::Legacy, Era::Modern] {
            let busy = lock(self.slot(era)).take();
            if let Some(member) = busy {
                member.process.stop().await;
            }
        }
    }

    fn slot(&self, era: Era) -> &Mutex<Option<PooledProcess>> {
        match era {
            Era::Legacy => &self.legacy,
            Era::Modern => &self.modern,
        }
    }
}

//! Child processes that several clients share: one for each era of an upstream, and for each principal unless the
//! configuration has all principals share one.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use weir_mcp::{Era, Message};

use super::stdio::Process;

/// The shared processes of one upstream, by the principal that they are kept apart for.
#[derive(Default)]
pub(super) struct ProcessPool {
    shared: Mutex<HashMap<Option<Arc<str>>, Arc<SharedProcesses>>>,
}

/// The processes that are shared by whoever is the same principal.
#[derive(Default)]
pub(super) struct SharedProcesses {
    /// Of each era.
    slots: [Mutex<Option<PooledProcess>>; 2],
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
        let mut shared = self.shared.lock();
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
        self.shared.lock().retain(|_, shared| !shared.is_empty());
    }

    /// Ends them all.
    pub(super) async fn stop(&self) {
        // All at once: each may take its time to end.
        let stop = |shared: Arc<SharedProcesses>| async move { shared.stop().await };
        self.all().into_iter().map(stop).collect::<JoinSet<()>>().join_all().await;
    }

    fn all(&self) -> Vec<Arc<SharedProcesses>> {
        self.shared.lock().values().cloned().collect()
    }
}

impl SharedProcesses {
    /// The process for `era`, if it still runs.
    pub(super) fn get(&self, era: Era) -> Option<PooledProcess> {
        let mut slot = self.slots[era as usize].lock();
        let member = slot.as_mut().filter(|member| member.process.alive())?;
        member.used = Instant::now();
        Some(member.clone())
    }

    /// Keeps a process for the next client.
    pub(super) fn put(&self, era: Era, process: Process, answer: Message) {
        process.stream().multiplex().serve_together();
        *self.slots[era as usize].lock() = Some(PooledProcess { process, answer, used: Instant::now() });
    }

    /// Whether nothing runs, and nobody is about to start something.
    fn is_empty(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.slots.iter().all(|slot| slot.lock().is_none())
    }

    async fn reap(&self, idle: Duration) {
        for slot in &self.slots {
            let rests = |m: &mut PooledProcess| {
                m.used.elapsed() >= idle && !m.process.stream().multiplex().busy() && !m.process.is_held()
            };
            let over = slot.lock().take_if(rests);
            if let Some(member) = over {
                member.process.stop().await;
            }
        }
    }

    async fn stop(&self) {
        self.reap(Duration::ZERO).await;
        for slot in &self.slots {
            let busy = slot.lock().take();
            if let Some(member) = busy {
                member.process.stop().await;
            }
        }
    }
}

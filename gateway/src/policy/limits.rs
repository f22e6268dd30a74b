//! How much a guest may take. The numbers are far above what a decision needs and far below what would be felt.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::yield_now,
    time::timeout,
};
use wasmtime::ResourceLimiter;

use crate::config::PolicyLimits;

use super::ticker::TICK;

/// The largest component that is compiled, in bytes.
pub(super) const COMPONENT: usize = 64 << 20;
/// The memory of one guest, all its linear memories together, in bytes.
pub(super) const MEMORY: usize = 16 << 20;
/// How much of a memory is cleared by hand after a question, in bytes. To give its pages back and fault them in again costs
/// more than the rest of a small decision.
pub(super) const RESIDENT: usize = 256 << 10;
/// The same of a table.
pub(super) const RESIDENT_TABLE: usize = 16 << 10;
/// Linear memories in one component. Components of one language have one.
pub(super) const MEMORIES: u32 = 4;
/// Tables in one component. One from an interpreter has one or two.
pub(super) const TABLES: u32 = 8;
/// The elements of one table. Components from interpreters have a few thousand functions.
pub(super) const TABLE: usize = 20_000;
/// Core modules in one component. A Rust guest has one to three, a Python guest a few dozen.
pub(super) const MODULES: u32 = 64;
/// Questions that are answered at the same time, of all policies that wait for nobody.
pub(super) const SLOTS: u32 = 64;
/// The same of all that may ask services, or a store: they wait for those, and must not keep the rest waiting.
pub(super) const SLOTS_THAT_WAIT: u32 = 64;
/// Questions that one policy answers at the same time where it waits for nobody, so that one that hangs leaves slots for
/// the rest. For the others there is `limits.policy.running`.
const SLOTS_OF_ONE: usize = 16;
/// How long a question waits for a slot. It is enough for any number of honest questions.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);
/// The processor time of one question.
pub(super) const BUDGET: Duration = Duration::from_millis(100);
/// The time of one question by the clock on the wall. What a guest waits is no processor time.
pub(super) const WALL: Duration = Duration::from_secs(2);
/// The same for a policy that waits for services or a store, which are slower than guests.
pub(super) const WALL_WITH_WAITING: Duration = Duration::from_secs(15);
/// The requests that one question may send.
pub(super) const REQUESTS: u32 = 16;
/// The operations at its store that one question may do.
pub(super) const OPERATIONS: u32 = 64;
/// What a guest may hand over in one call or answer, in bytes.
pub(super) const HANDOVER: usize = 256 << 10;
/// The longest message that crosses to a guest, in bytes.
pub(super) const BODY: usize = 1 << 20;
/// The patterns of one kind that a guest may name.
pub(super) const PATTERNS: usize = 64;
/// The groups of clients that a guest may tell apart.
pub(super) const CLIENT_GROUPS: usize = 8;
/// The classes of clients that all policies of an upstream may tell apart together: its lists are kept for each.
pub(super) const CLIENT_CLASSES: usize = 32;
/// The labels, and the headers, of one decision.
pub(super) const LABELS: usize = 16;
/// The longest name or text of a label, in bytes.
pub(super) const LABEL: usize = 256;
/// The longest text of a fact that a guest has to know whole (settings, claims), in bytes.
pub(super) const DOCUMENT: usize = 64 << 10;
/// The longest of all other texts among the facts, in bytes. What a server wrote is cut to it.
pub(super) const TEXT: usize = 2 << 10;
/// The attempts that a policy is told of; the oldest are left out.
pub(super) const HISTORY: usize = 64;
/// The longest message that a policy stops with, in bytes.
pub(super) const MESSAGE: usize = 2 << 10;
/// The lines that one question may log.
pub(super) const LINES: u32 = 32;
/// The lines that one policy may log in a second.
pub(super) const LINES_PER_SECOND: u32 = 100;
/// The longest line, in bytes.
pub(super) const LINE: usize = 1 << 10;
/// How much of what a guest prints reaches the log, in bytes.
pub(super) const PRINTED: usize = 8 << 10;

/// Ends a guest that wanted more than [`MEMORY`].
#[derive(Debug, Error)]
#[error("more memory than allowed")]
pub(super) struct Overgrown;

/// Ends a guest that has used its [`BUDGET`].
#[derive(Debug, Error)]
#[error("out of time")]
pub(super) struct Spent;

/// The processor time of one question: that of the thread, for as long as the guest has it.
///
/// A guest is looked at once for each [`TICK`] of the clock on the wall. On a busy machine it has had only some of that.
#[derive(Default)]
pub(super) struct ProcessorTime {
    used: Duration,
    /// The thread's processor time when the guest got it. None before the first look: what that costs would be paid for
    /// each question, and most are answered sooner.
    since: Option<Arc<OnceLock<Duration>>>,
}

impl ProcessorTime {
    /// The guest gives its thread away.
    pub(super) fn pause(&mut self) {
        let since = self.since.take().and_then(|since| since.get().copied());
        self.used += since.map_or(Duration::ZERO, |since| thread_time().saturating_sub(since)).min(TICK);
    }

    /// The guest has a thread again.
    pub(super) fn resume(&mut self) {
        self.since = Some(Arc::new(thread_time().into()));
    }

    /// Counts what was used at the end of a tick. The answer lets others have the thread.
    ///
    /// # Errors
    ///
    /// If the guest has used its [`BUDGET`].
    pub(super) fn tick(&mut self) -> Result<impl Future<Output = ()> + Send + use<>, Spent> {
        match self.since {
            Some(_) => self.pause(),
            None => self.used += TICK,
        }
        if self.used >= BUDGET {
            return Err(Spent);
        }
        let since = Arc::new(OnceLock::new());
        self.since = Some(Arc::clone(&since));
        Ok(async move {
            yield_now().await;
            since.get_or_init(thread_time);
        })
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The memory that one guest holds.
#[derive(Default)]
pub(super) struct Meter {
    held: usize,
}

impl ResourceLimiter for Meter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let held = self.held.saturating_add(desired.saturating_sub(current));
        if held > MEMORY {
            return Err(Overgrown.into());
        }
        self.held = held;
        Ok(true)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE)
    }
}

/// Places at the table: those of one policy, and those of all.
pub(super) struct InstanceSlots {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    /// The places in which to wait for as long as it takes, and how many there are; none where nobody waits for long.
    queue: Option<(Semaphore, usize)>,
}

/// Why there is no place.
pub(super) enum Busy {
    /// None became free.
    Running,
    /// So many wait already.
    Queued(usize),
}

/// A place; it is free again when this is dropped.
pub(super) struct InstanceSlot {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl InstanceSlots {
    /// The places of a policy among `all`; with limits if its questions wait for services, and so for one another.
    pub(super) fn among(all: &Arc<Semaphore>, limits: Option<PolicyLimits>) -> Self {
        let semaphore = |count: usize| Semaphore::new(count.min(Semaphore::MAX_PERMITS));
        let own = limits.map_or(SLOTS_OF_ONE, |limits| limits.running);
        let queue = limits.map(|limits| (semaphore(limits.queued), limits.queued));
        Self { own: Arc::new(semaphore(own)), all: Arc::clone(all), queue }
    }

    /// The next free place.
    ///
    /// # Errors
    ///
    /// If there is none for [`PATIENCE`], or none in the queue.
    pub(super) async fn take(&self) -> Result<InstanceSlot, Busy> {
        let both = async {
            let own = Arc::clone(&self.own).acquire_owned().await.ok()?;
            let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(InstanceSlot { _own: own, _all: all })
        };
        match &self.queue {
            None => timeout(PATIENCE, both).await.ok().flatten().ok_or(Busy::Running),
            Some((queue, most)) => {
                let _queued = queue.try_acquire().map_err(|_| Busy::Queued(*most))?;
                both.await.ok_or(Busy::Running)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use std::{hint, thread};

    use super::*;

    #[tokio::test]
    async fn time_that_others_had_is_not_the_guests() {
        let mut time = ProcessorTime::default();
        for _ in 0..100 {
            time.tick().unwrap().await;
            thread::sleep(Duration::from_millis(2));
        }
        time.pause();
        thread::sleep(Duration::from_millis(2));
        time.resume();
        assert!(time.used < BUDGET, "{:?}", time.used);
    }

    #[tokio::test]
    async fn a_guest_that_never_rests_has_its_budget_and_no_more() {
        let mut time = ProcessorTime::default();
        let mut ticks = 0;
        while let Ok(others) = time.tick() {
            others.await;
            let start = thread_time();
            while thread_time() - start < TICK {
                hint::spin_loop();
            }
            ticks += 1;
        }
        assert_eq!(ticks, BUDGET.as_millis() / TICK.as_millis() - 1, "the first tick is one, too");
    }
}

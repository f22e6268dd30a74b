//! The clock that interrupts guests: a thread that advances wasmtime's epoch while a guest runs, and sleeps while none does.
//!
//! A gateway at rest makes no wakeups. A question lasts microseconds as a rule, so the thread also stays awake for one more
//! tick instead of going to sleep and being woken for each of them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, Thread},
    time::Duration,
};

use wasmtime::EngineWeak;

/// The time between two epochs, and the longest that a guest keeps its thread before others get a turn.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// The running thread; it ends with this value.
pub(super) struct Ticker {
    shared: Arc<TickerShared>,
    thread: Thread,
}

/// A guest at work. The epoch advances while one of these lives.
pub(super) struct RunningGuest<'a>(&'a TickerShared);

#[derive(Default)]
struct TickerShared {
    running: AtomicUsize,
    awake: AtomicBool,
    ended: AtomicBool,
}

impl Ticker {
    /// Starts the thread, asleep.
    pub(super) fn start(engine: EngineWeak) -> io::Result<Self> {
        let shared = Arc::new(TickerShared::default());
        let theirs = Arc::clone(&shared);
        let handle = thread::Builder::new().name("policy-epoch".into()).stack_size(64 << 10).spawn(move || {
            while !theirs.ended.load(SeqCst) {
                if !theirs.awake.load(SeqCst) {
                    thread::park();
                    continue;
                }
                thread::sleep(TICK);
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
                theirs.rest();
            }
        })?;
        Ok(Self { shared, thread: handle.thread().clone() })
    }

    /// Keeps the epoch advancing until the answer is dropped.
    pub(super) fn run(&self) -> RunningGuest<'_> {
        self.shared.running.fetch_add(1, SeqCst);
        if !self.shared.awake.load(SeqCst) && !self.shared.awake.swap(true, SeqCst) {
            self.thread.unpark();
        }
        RunningGuest(&self.shared)
    }

    /// Whether the thread ticks.
    #[cfg(test)]
    fn awake(&self) -> bool {
        self.shared.awake.load(SeqCst)
    }
}

impl TickerShared {
    /// Goes to sleep if nobody runs. A guest that starts in between finds `awake` unset and sets it, or is counted by the
    /// second look.
    fn rest(&self) {
        if self.running.load(SeqCst) == 0 {
            self.awake.store(false, SeqCst);
            if self.running.load(SeqCst) > 0 {
                self.awake.store(true, SeqCst);
            }
        }
    }
}

impl Drop for RunningGuest<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use std::time::Instant;

    use super::*;

    /// Waits until `holds`, or fails.
    fn until(holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < end, "the condition never held");
            thread::yield_now();
        }
    }

    #[test]
    fn ticks_only_while_a_guest_runs() {
        let engine = wasmtime::Engine::default();
        let ticker = Ticker::start(engine.weak()).unwrap();
        assert!(!ticker.awake());
        for _ in 0..3 {
            let running = ticker.run();
            assert!(ticker.awake());
            drop(running);
            until(|| !ticker.awake());
        }
    }

    #[test]
    fn the_thread_ends_with_its_owner() {
        let engine = wasmtime::Engine::default();
        let ticker = Ticker::start(engine.weak()).unwrap();
        let shared = Arc::downgrade(&ticker.shared);
        drop(ticker);
        until(|| shared.strong_count() == 0);
    }
}

//! What a call leaves when it is over: its line of the log, its record of the audit log, its span, and its place among the
//! last calls.
//!
//! A processor that is at work on calls has neither the code nor the buffers of all that in its caches. So each thread
//! keeps its calls until there are some, and writes their records one after the other: the first one costs most.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    activity::{self, CallSummary, EndedCall},
    answer::FinishedCall,
};
use crate::telemetry;

/// How long a call may wait for its records.
const PATIENCE: Duration = Duration::from_millis(20);

/// As soon as so many calls of a thread wait their records are written.
const BATCH: usize = 16;

/// How many lists of calls there are. Threads share them if there are more.
const LISTS: usize = 32;

/// The calls that wait.
static WAITING: [Mutex<Vec<FinishedCall>>; LISTS] = [const { Mutex::new(Vec::new()) }; LISTS];

/// Held by whoever empties all of them.
static EMPTYING: Mutex<()> = Mutex::new(());

/// Whether [`SWEEPER`] will look at them.
static IS_AWAKE: AtomicBool = AtomicBool::new(false);

/// The thread that writes what has waited for long; none if it cannot be had.
static SWEEPER: LazyLock<Option<Thread>> = LazyLock::new(|| {
    let sweeper = thread::Builder::new().name("records".into()).spawn(sweep).ok()?;
    telemetry::before_end(write_all);
    Some(sweeper.thread().clone())
});

/// Has the records of a call written that is over.
pub(super) fn record(call: FinishedCall) {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LIST: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) % LISTS);
    }
    let sweeper = match &*SWEEPER {
        Some(sweeper) if !call.is_large() => sweeper,
        _ => return call.write(),
    };
    let mut waiting = WAITING[LIST.get()].lock();
    waiting.push(call);
    match waiting.len() {
        // Whoever sees that the thread is awake has added its call before the thread looks.
        1 if !IS_AWAKE.swap(true, Ordering::AcqRel) => {
            drop(waiting);
            sweeper.unpark();
        }
        BATCH.. => {
            let batch = std::mem::replace(&mut *waiting, Vec::with_capacity(BATCH));
            drop(waiting);
            write(batch);
        }
        _ => {}
    }
}

/// The calls that run, the oldest first, and those that ended, the newest first.
#[must_use]
pub fn calls() -> (Vec<CallSummary>, Vec<EndedCall>) {
    write_all();
    activity::calls()
}

fn sweep() {
    loop {
        while !IS_AWAKE.load(Ordering::Acquire) {
            thread::park();
        }
        thread::sleep(PATIENCE);
        IS_AWAKE.swap(false, Ordering::AcqRel);
        write_all();
    }
}

/// Writes the records of all calls that are over, in the order of their ends.
fn write_all() {
    let _emptying = EMPTYING.lock();
    let mut calls: Vec<_> = WAITING.iter().flat_map(|waiting| std::mem::take(&mut *waiting.lock())).collect();
    calls.sort_by_key(FinishedCall::ended);
    write(calls);
}

/// A call whose records cannot be written costs no other call its own; a panic has its line in the log.
fn write(calls: Vec<FinishedCall>) {
    for call in calls {
        drop(panic::catch_unwind(AssertUnwindSafe(|| call.write())));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::time::Instant;

    use weir_mcp::{Era, Message};

    use super::*;
    use crate::proxy::CallLog;

    fn call(tool: &str) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}"}}}}"#);
        CallLog::of(&Message::parse(text.into()).unwrap(), Era::Modern, None).finish(200, 10);
    }

    fn count(calls: &[EndedCall], tool: &str) -> usize {
        calls.iter().filter(|call| call.facts.name() == tool).count()
    }

    #[test]
    fn whoever_looks_sees_each_call_that_is_over_once() {
        let _alone = activity::ALONE.lock();
        let threads: Vec<_> = (0..4).map(|_| thread::spawn(|| (0..BATCH + 3).for_each(|_| call("many")))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Others may be writing some of them.
        let start = Instant::now();
        while count(&calls().1, "many") < 4 * (BATCH + 3) {
            assert!(start.elapsed() < Duration::from_secs(10));
            thread::yield_now();
        }
        assert_eq!(count(&calls().1, "many"), 4 * (BATCH + 3));
    }

    #[test]
    fn calls_are_recorded_in_the_order_of_their_ends() {
        let _alone = activity::ALONE.lock();
        // One after the other, each in a thread of its own.
        let names: Vec<String> = (0..10).map(|number| format!("in order {number}")).collect();
        for name in names.clone() {
            thread::spawn(move || call(&name)).join().unwrap();
        }
        let newest = calls().1;
        let mut seen: Vec<_> =
            newest.iter().map(|call| call.facts.name()).filter(|name| name.contains("order")).collect();
        seen.reverse();
        assert_eq!(seen, names);
    }

    #[test]
    fn a_call_that_stays_alone_is_recorded_soon() {
        let _alone = activity::ALONE.lock();
        for tool in ["one", "another"] {
            call(tool);
            let start = Instant::now();
            while count(&activity::calls().1, tool) == 0 {
                assert!(start.elapsed() < Duration::from_secs(10));
                thread::yield_now();
            }
        }
    }
}

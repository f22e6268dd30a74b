//! Processes that end by themselves soon after they were started, again and again.
//!
//! The first starts come at once: most crashes are over with a new process. A process that keeps ending would burden the
//! machine and help nobody, so each further start waits longer ([`Backoff::CONNECT`]). The processes of one principal end
//! for what that principal asks of them; they hold up nobody else's.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use weir_flow::Backoff;

use crate::task;

/// What kind of failure it is, in one word.
pub(super) const CRASHED: &str = "crashed";

/// So many times in a row a process may end before the next one has to wait.
const AT_ONCE: u32 = 3;

/// A process that ran for this long did not end because of its start.
const STEADY: Duration = Duration::from_secs(30);

/// Nobody has wanted a process for so long after it ended: the next one is the first.
const FORGOTTEN: Duration = Duration::from_secs(5 * 60);

/// How many principals are kept track of. They are forgotten in the order in which their processes ended.
const MOST: usize = 1000;

/// Whose processes of one upstream end, and how often. The key is the principal, none for processes that all share.
#[derive(Default)]
pub(super) struct Crashes(Mutex<HashMap<Option<Arc<str>>, CrashLoop>>);

/// Processes that end, one after the other.
#[derive(Clone, Debug)]
pub(super) struct CrashLoop {
    backoff: Backoff,
    /// How many have ended.
    pub(super) count: u32,
    /// When the last one ended.
    at: Instant,
    /// When there were too many; none before.
    pub(super) since: Option<Instant>,
    /// When the next process may start.
    pub(super) until: Instant,
    /// How the last one ended, with the last lines of its standard error.
    pub(super) why: String,
}

/// Where the end of one process is noted.
pub(super) struct CrashRecord {
    pub(super) crashes: Arc<Crashes>,
    pub(super) whose: Option<Arc<str>>,
    pub(super) started: Instant,
}

impl CrashRecord {
    /// Notes that the process has ended by itself. Returns how long the next one waits, if this is the first that does.
    pub(super) fn ended(&self, why: String) -> Option<Duration> {
        let now = Instant::now();
        self.crashes.ended(&self.whose, now.saturating_duration_since(self.started), now, why)
    }
}

impl Crashes {
    fn ended(&self, whose: &Option<Arc<str>>, ran: Duration, now: Instant, why: String) -> Option<Duration> {
        let mut all = self.0.lock();
        if ran >= STEADY {
            all.remove(whose);
            return None;
        }
        all.retain(|_, known| now.saturating_duration_since(known.at.max(known.until)) < FORGOTTEN);
        if all.len() >= MOST && !all.contains_key(whose) {
            let oldest = all.iter().min_by_key(|(_, known)| known.at).map(|(whose, _)| whose.clone());
            oldest.map(|oldest| all.remove(&oldest));
        }
        let known = all.entry(whose.clone()).or_insert_with(|| CrashLoop::new(now));
        known.count += 1;
        (known.at, known.why) = (now, why);
        if known.count < AT_ONCE {
            return None;
        }
        let pause = task::pause(&mut known.backoff);
        known.until = now + pause;
        known.since.replace(known.since.unwrap_or(now)).is_none().then_some(pause)
    }

    /// Why no process may start for this principal now, and for how long; none if one may.
    pub(super) fn hold(&self, whose: &Option<Arc<str>>, now: Instant) -> Option<(String, Duration)> {
        let all = self.0.lock();
        let known = all.get(whose).filter(|known| known.until > now)?;
        Some((known.why.clone(), known.until - now))
    }

    /// The loop whose next process starts last, and whether its processes are one principal's. It is over when none has ended
    /// for long enough.
    pub(super) fn worst(&self, now: Instant) -> Option<(CrashLoop, bool)> {
        let all = self.0.lock();
        let looping = all.iter().filter(|(_, known)| known.since.is_some() && known.until + STEADY > now);
        looping.max_by_key(|(_, known)| known.until).map(|(whose, known)| (known.clone(), whose.is_some()))
    }
}

impl CrashLoop {
    const fn new(now: Instant) -> Self {
        Self { backoff: Backoff::CONNECT, count: 0, at: now, since: None, until: now, why: String::new() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const SOON: Duration = Duration::from_millis(10);

    #[test]
    fn each_further_start_waits_longer_until_a_process_stays() {
        let (crashes, now) = (Crashes::default(), Instant::now());
        let crash = |ran| crashes.ended(&None, ran, now, "exit status: 1".into());
        let left = || crashes.worst(now).map(|(known, _)| known.until - now);
        for _ in 1..AT_ONCE {
            assert_eq!((crash(SOON), crashes.hold(&None, now)), (None, None), "the first come at once");
        }
        assert!(crash(SOON).is_some(), "that is news");
        let first = left().unwrap();
        assert!(first < Duration::from_secs(2));
        assert_eq!(crashes.hold(&None, now), Some(("exit status: 1".to_owned(), first)));
        assert_eq!(crashes.hold(&None, now + first), None, "it may start again");
        for _ in 0..20 {
            assert_eq!(crash(SOON), None, "this is no news");
        }
        let (longest, cap) = (left().unwrap(), Backoff::CONNECT.cap());
        assert!(longest > first * 4 && longest <= cap + cap / 4, "{longest:?}");
        assert_eq!(crash(STEADY), None);
        assert_eq!((left(), crashes.hold(&None, now)), (None, None), "it ran for long enough");
    }

    #[test]
    fn the_processes_of_one_principal_hold_up_nobody_else_and_are_forgotten() {
        let (crashes, now) = (Crashes::default(), Instant::now());
        let whose = |number: usize| Some(Arc::from(format!("principal {number}")));
        for _ in 0..AT_ONCE {
            crashes.ended(&whose(0), SOON, now, "died".into());
        }
        assert!(crashes.hold(&whose(0), now).is_some() && crashes.worst(now).unwrap().1);
        assert_eq!((crashes.hold(&None, now), crashes.hold(&whose(1), now)), (None, None));
        for number in 1..2 * MOST {
            crashes.ended(&whose(number), SOON, now + SOON, "died".into());
        }
        assert_eq!(crashes.0.lock().len(), MOST);
        crashes.ended(&None, SOON, now + 2 * FORGOTTEN, "died".into());
        assert_eq!(crashes.0.lock().len(), 1);
    }
}

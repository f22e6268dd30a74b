//! Rates: how often something may be done in a while.
//!
//! A [`RateLimiter`] lets as many through at once as may come in its whole period, and the next ones evenly (GCRA, the
//! generic cell rate algorithm of ITU-T I.371, which is a leaky bucket that needs one number for each key). Who has been
//! silent for a period takes no room.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// How many keys are remembered at once. Those that come beyond have [`SHARED`] rates together, each key one of them: a
/// stranger that makes up keys escapes no rate, and those who came before notice nothing.
const MOST: usize = 1 << 20;
const SHARED: u64 = 1 << 16;

/// As few keys are kept without looking for those that may be forgotten.
const FEW: usize = 1024;
/// How long there is no look while all keys are taken: each takes a while.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// So many in so long, for each key.
pub struct RateLimiter {
    count: usize,
    period: Duration,
    began: Instant,
    /// Keys are hashes with a secret of this limiter: nobody can choose one that is another's.
    hasher: RandomState,
    known: Mutex<KnownKeys>,
}

struct KnownKeys {
    /// When all that a key has taken is given back, as time since the limiter began.
    full_at: HashMap<u64, Duration>,
    /// How many keys there may be before the next look.
    look_at: usize,
    /// Before that time nobody looks if there are [`MOST`].
    look_after: Duration,
}

impl RateLimiter {
    /// At most `count`, at least one, in each `period`.
    #[must_use]
    pub fn new(count: usize, period: Duration) -> Self {
        let known = Mutex::new(KnownKeys { full_at: HashMap::new(), look_at: FEW, look_after: Duration::ZERO });
        Self { count: count.max(1), period, began: Instant::now(), hasher: RandomState::new(), known }
    }

    /// How many there may be in a period.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// Takes one for a key.
    ///
    /// # Errors
    ///
    /// How long it takes until there may be another one.
    pub fn take(&self, key: &impl Hash, now: Instant) -> Result<(), Duration> {
        let now = now.saturating_duration_since(self.began);
        let mut key = self.hasher.hash_one(key);
        let each = self.period / u32::try_from(self.count).unwrap_or(u32::MAX);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !known.full_at.contains_key(&key);
        let is_due = known.full_at.len() >= known.look_at || known.full_at.len() >= MOST && now >= known.look_after;
        if is_new && is_due {
            known.full_at.retain(|_, full_at| *full_at > now);
            known.look_at = (2 * known.full_at.len()).max(FEW);
            known.look_after = now + LOOK_PAUSE;
        }
        if is_new && known.full_at.len() >= MOST {
            key %= SHARED;
        }
        let full_at = known.full_at.get(&key).copied().unwrap_or_default().max(now) + each;
        if let Some(early) = full_at.checked_sub(now + self.period).filter(|early| !early.is_zero()) {
            return Err(early);
        }
        known.full_at.insert(key, full_at);
        Ok(())
    }
}

impl RateLimiter {
    /// Takes as many for a key that somebody else has let through. It may owe what comes in one period more.
    pub fn owe(&self, key: &impl Hash, count: u64, now: Instant) {
        let now = now.saturating_duration_since(self.began);
        let key = self.hasher.hash_one(key);
        let each = self.period / u32::try_from(self.count).unwrap_or(u32::MAX);
        let owed = each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.full_at.len() < MOST || known.full_at.contains_key(&key) {
            let full_at = known.full_at.get(&key).copied().unwrap_or_default().max(now);
            known.full_at.insert(key, full_at.saturating_add(owed).min(now + 2 * self.period));
        }
    }
}

/// A second, as a [`Pace`] has it: in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// So many in a second for one key, without a lock: as many at once, and the next ones evenly.
#[derive(Debug, Default)]
pub struct Pace {
    /// When all that was taken is given back.
    full_at: AtomicU64,
}

impl Pace {
    /// One of which nothing is taken.
    #[must_use]
    pub const fn new() -> Self {
        Self { full_at: AtomicU64::new(0) }
    }

    /// Takes one, which takes so much of a second; false if there are too many. `now` counts from any moment, always the same.
    pub fn take(&self, now: Duration, each: u64) -> bool {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        let next = |full_at: u64| Some(full_at.max(now) + each).filter(|next| *next <= now + SECOND);
        self.full_at.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_whole_period_comes_at_once_and_the_next_ones_evenly() {
        let limiter = RateLimiter::new(6, MINUTE);
        let now = Instant::now();
        for _ in 0..6 {
            assert_eq!(limiter.take(&"ada", now), Ok(()));
        }
        assert_eq!(limiter.take(&"ada", now), Err(Duration::from_secs(10)));
        assert_eq!(limiter.take(&"eve", now), Ok(()), "another notices nothing");
        assert_eq!(limiter.take(&"ada", now + Duration::from_secs(4)), Err(Duration::from_secs(6)));
        assert_eq!(limiter.take(&"ada", now + Duration::from_secs(10)), Ok(()));
        assert!(limiter.take(&"ada", now + Duration::from_secs(10)).is_err());
        let later = now + 3 * MINUTE;
        assert_eq!((0..9).filter(|_| limiter.take(&"ada", later).is_ok()).count(), 6);
    }

    #[test]
    fn what_others_have_let_through_counts_and_is_owed_for_a_period_at_most() {
        let (limiter, now) = (RateLimiter::new(6, MINUTE), Instant::now());
        limiter.owe(&"ada", 4, now);
        assert_eq!((0..9).filter(|_| limiter.take(&"ada", now).is_ok()).count(), 2);
        limiter.owe(&"ada", 1_000_000, now);
        assert!(limiter.take(&"ada", now + MINUTE).is_err());
        assert_eq!((0..9).filter(|_| limiter.take(&"ada", now + 2 * MINUTE).is_ok()).count(), 6);
        assert_eq!(limiter.take(&"eve", now), Ok(()), "another notices nothing");
    }

    #[test]
    fn who_is_silent_takes_no_room() {
        let limiter = RateLimiter::new(60, MINUTE);
        let mut now = Instant::now();
        for number in 0..100_000_u32 {
            now += Duration::from_millis(10);
            assert_eq!(limiter.take(&number, now), Ok(()));
        }
        let known = limiter.known.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(known.full_at.len() <= FEW, "{}", known.full_at.len());
    }
    #[test]
    fn made_up_keys_escape_no_rate() {
        let limiter = RateLimiter::new(1, MINUTE);
        let now = Instant::now();
        assert_eq!(limiter.take(&"ada", now), Ok(()));
        for number in 0..MOST {
            let _ = limiter.take(&number, now);
        }
        let beyond = 4 * usize::try_from(SHARED).unwrap_or(usize::MAX);
        let passed = (MOST..MOST + beyond).filter(|number| limiter.take(number, now).is_ok()).count();
        assert!(passed <= beyond / 4, "{passed} of {beyond}");
        assert!(limiter.take(&"ada", now).is_err());
        // Once they are silent, all is as before.
        let later = now + MINUTE;
        assert_eq!((0..100).filter(|number| limiter.take(number, later).is_ok()).count(), 100);
        let known = limiter.known.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(known.full_at.len(), 100);
    }

    #[test]
    fn a_pace_lets_through_as_many_at_once_as_in_a_second_and_the_next_ones_evenly() {
        let (pace, at) = (Pace::new(), Duration::from_millis);
        let take = |tries: usize, now| (0..tries).filter(|_| pace.take(now, SECOND / 100)).count();
        assert_eq!(take(1000, at(5)), 100);
        assert_eq!(take(10, at(14)), 0);
        assert_eq!(take(10, at(15)), 1);
        assert_eq!((16..1016).map(|now| take(1, at(now))).sum::<usize>(), 100);
        assert_eq!(take(1000, at(60_000)), 100, "no more after a pause");
        assert_eq!((0..1000).filter(|_| pace.take(at(60_500), SECOND / 1000)).count(), 500, "a change counts at once");
        assert!((0..100_000).all(|_| Pace::new().take(Duration::ZERO, 0)), "a high number is no limit");
    }
}

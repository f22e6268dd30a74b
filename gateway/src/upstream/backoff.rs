//! Pauses between tries.

use std::time::Duration;

/// `pause` or up to a quarter more or less, so that those who lost one server do not come back to it all at once.
pub fn jittered(pause: Duration) -> Duration {
    let mut random = [0_u8];
    // Without randomness all of them come at once, which is no worse than it would be anyway.
    let _ = getrandom::fill(&mut random);
    pause * (192 + u32::from(random[0]) / 2) / 256
}

/// Pauses between tries that fail one after the other: each twice as long as the one before, with jitter.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Begins with a pause of `first`; none is longer than `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// The pause after one more failure.
    pub fn pause(&mut self) -> Duration {
        let pause = self.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        jittered(pause)
    }

    /// Notes a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether the last try was a success, or there was none.
    #[must_use]
    pub const fn is_reset(&self) -> bool {
        self.failures == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_longest_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(8), Duration::from_secs(30));
        for expected in [8, 16, 30, 30] {
            let pause = backoff.pause().as_secs_f64();
            assert!((0.7..1.3).contains(&(pause / f64::from(expected))), "{pause}");
        }
        backoff.reset();
        assert!(backoff.pause() < Duration::from_secs(11));
        let mut long = Backoff { failures: u32::MAX, ..backoff };
        assert!(long.pause() < Duration::from_secs(40), "it never overflows");
    }

    #[test]
    fn a_jittered_pause_is_near_to_what_was_asked() {
        let pause = Duration::from_secs(8);
        for _ in 0..1000 {
            let jittered = jittered(pause);
            assert!((6..=10).contains(&jittered.as_secs()), "{jittered:?}");
        }
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }
}

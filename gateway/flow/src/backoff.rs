//! Pauses between tries that fail one after the other.
//!
//! Weir has one kind of pause, and its numbers stand here:
//!
//! | | first | factor | cap | why |
//! | --- | --- | --- | --- | --- |
//! | [`CALL`](Backoff::CALL) | 100 ms | 4 | 1.6 s | a client waits: three pauses outlast a restart of 2 s and stay below 3 s |
//! | [`CONNECT`](Backoff::CONNECT) | 1 s | 2 | 30 s | nobody waits: five tries cover a restart, then two a minute burden nobody |
//! | [`STREAM`](Backoff::STREAM) | 250 ms | 2 | 30 s | what is said without a stream is lost, so the first pause is short |
//! | [`RESUME`](Backoff::RESUME) | 1 s | 2 | 10 s | a caller waits for the answer; the server's `retry` replaces the first pause |
//! | [`LIST`](Backoff::LIST) | 2 s | 2 | 5 min | a try may start a process, and the other lists work meanwhile |
//! | [`TOKEN`](Backoff::TOKEN) | 2 s | 2 | 2 min | every caller needs the token, and the authorization server serves others too |
//! | [`STORE`](Backoff::STORE) | 100 ms | 2 | 2 s | who asks meanwhile is answered at once; a failover takes some seconds |
//! | [`POLICY`](Backoff::POLICY) | 10 s | 2 | 5 min | a probe may keep a thread for a tenth of a second, and seldom more helps than a new component |
//! | [`AHEAD`](Backoff::AHEAD) | 30 s | – | 30 s | the credential in hand is good until then |
//!
//! Each pause is up to a quarter shorter or longer than its number. Those who lost one server then come back one after
//! the other. A quarter is enough: the pauses of one backoff never change their order while they grow.

use std::time::Duration;

/// A connection that stayed for this long was a good one.
///
/// Proxies and serverless hosts cut streams that rest after 10 s or more. Opening a stream every 5 s costs less than the
/// calls that it serves. A server that ends its streams sooner waits longer each time.
const LONG_STAY: Duration = Duration::from_secs(5);

/// The pauses of one chain of tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    factor: u32,
    cap: Duration,
    failures: u32,
}

impl Backoff {
    /// Before another try at what a client waits for.
    pub const CALL: Self = Self { factor: 4, ..Self::new(Duration::from_millis(100), Duration::from_millis(1600)) };

    /// Before another try to reach an upstream that no client waits for.
    pub const CONNECT: Self = Self::new(Duration::from_secs(1), Duration::from_secs(30));

    /// Before a stream of notifications is opened again.
    pub const STREAM: Self = Self::new(Duration::from_millis(250), Duration::from_secs(30));

    /// Before a stream that broke off is resumed behind its last event.
    pub const RESUME: Self = Self::new(Duration::from_secs(1), Duration::from_secs(10));

    /// Before a list that failed is fetched again.
    pub const LIST: Self = Self::new(Duration::from_secs(2), Duration::from_secs(5 * 60));

    /// Before an authorization server is asked again for a token.
    pub const TOKEN: Self = Self::new(Duration::from_secs(2), Duration::from_secs(120));

    /// Before the server of a shared store is tried again.
    pub const STORE: Self = Self::new(Duration::from_millis(100), Duration::from_secs(2));

    /// Before a policy that was disabled is run again.
    pub const POLICY: Self = Self::new(Duration::from_secs(10), Duration::from_secs(5 * 60));

    /// Before a policy is asked again for a credential while the last one is good.
    pub const AHEAD: Self = Self::new(Duration::from_secs(30), Duration::from_secs(30));

    /// Begins with a pause of `first` and doubles it up to `cap`.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, factor: 2, cap, failures: 0 }
    }

    /// The same with the first pause that the server asks for, as with `retry` of an event stream. A cap below it rises.
    pub fn starting_at(self, first: Duration) -> Self {
        Self { first, cap: self.cap.max(first), ..self }
    }

    /// The same after this many failures in a row.
    pub const fn after(self, failures: u32) -> Self {
        Self { failures, ..self }
    }

    /// The pause after one more failure: a quarter shorter or longer by `random`, which is uniform over its range.
    ///
    /// It is never shorter than `hint`, the server's own word on when to come back (`Retry-After`, RFC 9110 §10.2.3), and
    /// at most a quarter longer where that decides. The caller bounds a hint that it does not trust.
    pub fn pause(&mut self, hint: Option<Duration>, random: u32) -> Duration {
        let grown = self.first.saturating_mul(self.factor.saturating_pow(self.failures)).min(self.cap);
        self.failures = self.failures.saturating_add(1);
        let hint = hint.unwrap_or_default();
        let own = (grown - grown / 4).saturating_add(part(grown / 2, random));
        own.max(hint.saturating_add(part(hint / 4, random)))
    }

    /// Takes note of a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Takes note that a connection stayed for this long; a long stay is a success.
    pub fn handle_stay(&mut self, stay: Duration) {
        if stay >= LONG_STAY {
            self.reset();
        }
    }

    /// The longest pause but for chance.
    pub const fn cap(&self) -> Duration {
        self.cap
    }

    /// How many pauses there were since the last success.
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

/// `whole` × `random` ÷ 2³².
fn part(whole: Duration, random: u32) -> Duration {
    let nanos = whole.as_nanos().saturating_mul(u128::from(random)) >> u32::BITS;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIDDLE: u32 = 1 << 31;

    fn pauses(mut backoff: Backoff, count: usize) -> Vec<u128> {
        (0..count).map(|_| backoff.pause(None, MIDDLE).as_millis()).collect()
    }

    #[test]
    fn pauses_grow_to_the_cap() {
        assert_eq!(pauses(Backoff::CALL, 4), [100, 400, 1600, 1600]);
        assert_eq!(pauses(Backoff::CONNECT, 7), [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    }

    #[test]
    fn a_success_or_a_long_stay_begins_anew() {
        let mut backoff = Backoff::STREAM;
        for again in [Backoff::reset, |backoff: &mut Backoff| backoff.handle_stay(LONG_STAY)] {
            backoff.pause(None, 0);
            backoff.pause(None, 0);
            backoff.handle_stay(LONG_STAY / 2);
            assert_eq!(backoff.failures(), 2, "a short stay is no success");
            again(&mut backoff);
            assert_eq!(backoff, Backoff::STREAM);
        }
    }

    #[test]
    fn the_servers_first_pause_replaces_ours() {
        let short = Backoff::RESUME.starting_at(Duration::from_millis(20));
        assert_eq!(pauses(short, 3), [20, 40, 80]);
        let long = Backoff::RESUME.starting_at(Duration::from_secs(60));
        assert_eq!(pauses(long, 3), [60_000; 3]);
    }

    prop_compose! {
        fn backoff()(first in 0..100_000_u64, factor in 1..10_u32, cap in 0..100_000_u64) -> Backoff {
            Backoff { factor, ..Backoff::new(Duration::from_millis(first), Duration::from_millis(cap)) }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_pause_keeps_to_its_cap_and_its_hint(
            mut backoff in backoff(),
            steps in prop::collection::vec((any::<u32>(), prop::option::of(0..200_000_u64)), 1..40),
        ) {
            let cap = backoff.cap;
            for (random, hint) in steps {
                let hint = hint.map(Duration::from_millis);
                let pause = backoff.pause(hint, random);
                let hint = hint.unwrap_or_default();
                prop_assert!(pause >= hint);
                prop_assert!(pause <= cap.max(hint) + cap.max(hint) / 4, "{pause:?}");
            }
        }

        #[test]
        fn pauses_grow_with_failures_and_with_chance(mut backoff in backoff(), random in any::<u32>(), hint in 0..9_u64) {
            let (hint, mut before) = (Some(Duration::from_secs(hint)), Duration::ZERO);
            for _ in 0..40 {
                let least = backoff.clone().pause(hint, 0);
                let most = backoff.clone().pause(hint, u32::MAX);
                let pause = backoff.pause(hint, random);
                prop_assert!(least <= pause && pause <= most);
                prop_assert!(before <= pause);
                before = pause;
            }
        }

        #[test]
        fn chance_moves_a_pause_by_a_quarter(mut backoff in backoff(), random in any::<u32>()) {
            let nominal = backoff.first.min(backoff.cap);
            let pause = backoff.pause(None, random);
            prop_assert!(pause.abs_diff(nominal) <= nominal / 4 + Duration::from_nanos(4));
        }

        #[test]
        fn nothing_overflows(first in any::<u64>(), cap in any::<u64>(), hint in any::<u64>(), random in any::<u32>()) {
            let mut backoff = Backoff::new(Duration::from_secs(first), Duration::from_secs(cap));
            backoff.failures = u32::MAX - 1;
            for _ in 0..3 {
                let pause = backoff.pause(Some(Duration::from_secs(hint)), random);
                prop_assert!(pause >= Duration::from_secs(hint));
            }
        }
    }
}

//! The tokens that were found good, until they end.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use ahash::RandomState;
use parking_lot::RwLock;

use crate::caller::Caller;

/// How many tokens are remembered, and how many of them by each thread.
const MOST: usize = 4096;
const MOST_HERE: usize = 1024;

/// Tokens by their last bytes, which are of the signature and as good as random: only what was found good is kept, so
/// nobody can choose them. A hash over the whole of each token would cost a call more than all else that is done here.
type KnownTokens = HashMap<[u8; 32], Arc<Good>, RandomState>;

thread_local! {
    /// The tokens of one [`Checked`] that this thread was asked about. Their callers have counts of their own: what all
    /// threads write to, such as a lock or a count, goes from core to core with each call.
    static HERE: RefCell<(u64, KnownTokens)> = RefCell::default();
}

/// What is known of a token that was found good.
#[derive(Clone)]
pub(super) struct Good {
    /// Whose it is.
    pub(super) caller: Arc<Caller>,
    /// Whether it is for all that Weir serves.
    pub(super) everywhere: bool,
    /// For which upstreams it is, if not for all.
    pub(super) endpoints: Arc<[String]>,
    /// The certificate that whoever brings it must show.
    pub(super) certificate: Option<Arc<str>>,
    /// The key that whoever brings it must prove to hold.
    pub(super) key: Option<Arc<str>>,
    /// Whether it allows what all tokens must.
    pub(super) enough: bool,
    /// When it has to be checked again.
    pub(super) until: SystemTime,
    /// When it is good for nothing any more; none if that is never.
    pub(super) ends: Option<SystemTime>,
}

impl Good {
    /// One that opens everything until it ends.
    pub(super) fn everywhere(caller: Arc<Caller>, until: SystemTime) -> Self {
        let (endpoints, ends) = (Arc::default(), Some(until));
        Self { caller, everywhere: true, endpoints, certificate: None, key: None, enough: true, until, ends }
    }

    /// Whether it is known of this token, and good at `now`.
    fn is_of(&self, token: &[u8], now: SystemTime) -> bool {
        now < self.until && self.caller.token().is_some_and(|known| known.expose().as_bytes() == token)
    }
}

/// The tokens that were found good.
pub(super) struct Checked {
    /// Apart for each, so that what one has found is not taken for what another has.
    id: u64,
    known: RwLock<KnownTokens>,
}

impl Default for Checked {
    fn default() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self { id: IDS.fetch_add(1, Ordering::Relaxed), known: RwLock::default() }
    }
}

impl Checked {
    /// What is known of a token, if it is good at `now`.
    pub(super) fn get(&self, token: &[u8], now: SystemTime) -> Option<Arc<Good>> {
        let end = end(token)?;
        HERE.with_borrow_mut(|(of, here)| {
            if *of != self.id {
                (*of, *here) = (self.id, KnownTokens::default());
            }
            if let Some(good) = here.get(&end).filter(|good| good.is_of(token, now)) {
                return Some(Arc::clone(good));
            }
            let good = Arc::clone(self.known.read().get(&end).filter(|good| good.is_of(token, now))?);
            let good = Arc::new(Good { caller: good.caller.apart_of_thread(), ..Good::clone(&good) });
            if here.len() >= MOST_HERE {
                here.clear();
            }
            here.insert(end, Arc::clone(&good));
            Some(good)
        })
    }

    /// Remembers a token that was found good at `now`.
    pub(super) fn keep(&self, token: &str, good: &Arc<Good>, now: SystemTime) {
        let Some(end) = end(token.as_bytes()) else { return };
        let mut known = self.known.write();
        if known.len() >= MOST {
            known.retain(|_, good| now < good.until);
        }
        if known.len() >= MOST {
            // Whoever is there still is checked once more.
            known.clear();
        }
        known.insert(end, Arc::clone(good));
    }
}

/// The last bytes; none if there are too few for a token.
fn end(token: &[u8]) -> Option<[u8; 32]> {
    token.last_chunk().copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::{
        thread,
        time::{Duration, UNIX_EPOCH},
    };

    use weir_flow::facts::Principal;

    use super::*;
    use crate::config::Secret;

    /// A token of this name, which ends as long as real ones do.
    fn token(name: &str) -> String {
        format!("{name}.{name:->64}")
    }

    fn good(token: &str, until: SystemTime) -> Arc<Good> {
        let principal = Principal::named("ada", Some("https://login.example".into()));
        let caller = Caller::new(principal, Secret::new(token.to_owned()));
        Arc::new(Good::everywhere(caller, until))
    }

    #[test]
    fn a_token_is_known_until_it_has_to_be_checked_again() {
        let (checked, now) = (Checked::default(), UNIX_EPOCH + Duration::from_secs(1_000_000));
        let after = |seconds| now + Duration::from_secs(seconds);
        let keep = |name: &str, until| checked.keep(&token(name), &good(&token(name), until), now);
        let knows = |name: &str, at| checked.get(token(name).as_bytes(), at).is_some();
        keep("short", after(5));
        keep("over", now - Duration::from_secs(1));
        assert!(knows("short", after(4)) && !knows("short", after(5)));
        assert!(!knows("over", now) && !knows("other", now));
    }

    #[test]
    fn all_of_a_token_counts() {
        let (checked, now) = (Checked::default(), UNIX_EPOCH);
        let known = token("ada");
        checked.keep(&known, &good(&known, now + Duration::from_secs(60)), now);
        for other in [known.replace("ada.", "eve."), known[1..].to_owned(), known[known.len() - 32..].to_owned()] {
            assert!(checked.get(other.as_bytes(), now).is_none(), "{other}");
        }
        assert!(checked.get(b"", now).is_none() && checked.get(known.as_bytes(), now).is_some());
    }

    #[test]
    fn there_are_no_more_than_there_may_be() {
        let (checked, now) = (Checked::default(), UNIX_EPOCH);
        for number in 0..3 * MOST {
            let token = token(&number.to_string());
            checked.keep(&token, &good(&token, now + Duration::from_secs(60)), now);
        }
        assert!(checked.known.read().len() <= MOST);
        assert!(checked.get(token(&(3 * MOST - 1).to_string()).as_bytes(), now).is_some());
        for number in 2 * MOST..3 * MOST {
            drop(checked.get(token(&number.to_string()).as_bytes(), now));
        }
        assert!(HERE.with_borrow(|(_, here)| (1..=MOST_HERE).contains(&here.len())));
    }

    #[test]
    fn what_one_has_found_another_does_not_know() {
        let (one, other, now) = (Checked::default(), Checked::default(), UNIX_EPOCH);
        let token = token("ada");
        one.keep(&token, &good(&token, now + Duration::from_secs(60)), now);
        assert!(one.get(token.as_bytes(), now).is_some() && other.get(token.as_bytes(), now).is_none());
    }

    #[test]
    fn each_thread_has_a_caller_with_counts_of_its_own() {
        let (checked, now, token) = (Checked::default(), UNIX_EPOCH, token("ada"));
        checked.keep(&token, &good(&token, now + Duration::from_secs(60)), now);
        let get = || checked.get(token.as_bytes(), now).unwrap();
        let (here, again) = (get(), get());
        let there = thread::scope(|scope| scope.spawn(get).join().unwrap());
        assert!(Arc::ptr_eq(&here.caller, &again.caller) && !Arc::ptr_eq(&here.caller, &there.caller));
        assert!(here.caller.is_copy_of(&there.caller));
    }
}

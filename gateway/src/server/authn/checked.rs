//! The tokens that were found good, until they end.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::SystemTime,
};

use ahash::RandomState;

use crate::caller::Caller;

/// How many tokens are remembered.
const MOST: usize = 4096;

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
}

/// Tokens by their last bytes, which are of the signature and as good as random: only what was found good is kept, so
/// nobody can choose them. A hash over the whole of each token would cost a call more than all else that is done here.
#[derive(Default)]
pub(super) struct Checked(RwLock<HashMap<[u8; 32], (Good, SystemTime), RandomState>>);

impl Checked {
    /// What is known of a token, if it is good at `now`.
    pub(super) fn get(&self, token: &[u8], now: SystemTime) -> Option<Good> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (good, until) = known.get(&end(token)?)?;
        let same = good.caller.token().is_some_and(|known| known.expose().as_bytes() == token);
        (same && now < *until).then(|| good.clone())
    }

    /// Remembers a token that was found good at `now`.
    pub(super) fn keep(&self, token: &str, good: &Good, now: SystemTime) {
        let Some(end) = end(token.as_bytes()) else { return };
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.retain(|_, (_, until)| now < *until);
        }
        if known.len() >= MOST {
            // Whoever is there still is checked once more.
            known.clear();
        }
        known.insert(end, (good.clone(), good.until));
    }
}

/// The last bytes; none if there are too few for a token.
fn end(token: &[u8]) -> Option<[u8; 32]> {
    token.last_chunk().copied()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use weir_flow::facts::Principal;

    use super::*;
    use crate::config::Secret;

    /// A token of this name, which ends as long as real ones do.
    fn token(name: &str) -> String {
        format!("{name}.{name:->64}")
    }

    fn good(token: &str, until: SystemTime) -> Good {
        let principal = Principal::named("ada", Some("https://login.example".into()));
        let caller = Caller::new(principal, Secret::new(token.to_owned()));
        Good {
            caller,
            everywhere: true,
            endpoints: Arc::default(),
            certificate: None,
            key: None,
            enough: true,
            until,
            ends: None,
        }
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
        assert!(checked.0.read().unwrap_or_else(PoisonError::into_inner).len() <= MOST);
        assert!(checked.get(token(&(3 * MOST - 1).to_string()).as_bytes(), now).is_some());
    }
}

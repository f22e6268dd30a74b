//! What other gateways at the same store use of the limits.
//!
//! Each gateway tells from time to time what its callers hold and have taken ([`LimitUsage`]), and adds what others tell to
//! its own counts. So a limit is passed over by what others have let through since they told last. Rates make up for that:
//! who took too much waits the longer. What all callers may hold together is each gateway's own: it protects its memory.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::{Deserialize, Serialize};

/// How many keys of rates are told at once. What is taken of others counts at its gateway alone.
const MOST: usize = 4096;

/// How often a key is told after it was taken from for the last time: who does not hear it once hears it again.
const ROUNDS: u8 = 5;

/// What the callers of one gateway use of the limits that gateways share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitUsage {
    /// What is held, by quota and holder.
    #[serde(default)]
    pub(super) held: BTreeMap<String, BTreeMap<String, usize>>,
    /// What was taken of rates, by kind and key, since the key is told.
    #[serde(default)]
    pub(super) taken: BTreeMap<String, BTreeMap<String, u64>>,
}

impl LimitUsage {
    /// Whether nothing is used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.taken.is_empty()
    }
}

/// A kind of rate, as gateways call it.
pub(super) type RateKind = &'static str;

/// What was taken of rates: here, and as far as others have told it.
#[derive(Default)]
pub(super) struct TakenRates {
    /// Whether somebody is told.
    is_told: AtomicBool,
    own: Mutex<HashMap<(RateKind, String), TakenCount>>,
    /// What each of the others told last.
    heard: Mutex<HashMap<String, LimitUsage>>,
}

#[derive(Clone, Copy, Default)]
struct TakenCount {
    total: u64,
    /// How often it was told since it changed.
    told: u8,
}

impl TakenRates {
    /// Counts one for a key, if it has a name for others.
    pub(super) fn note(&self, kind: RateKind, key: impl FnOnce() -> Option<String>) {
        if !self.is_told.load(Ordering::Relaxed) {
            return;
        }
        let Some(key) = key() else { return };
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind, key);
        if own.len() < MOST || own.contains_key(&key) {
            let count = own.entry(key).or_default();
            *count = TakenCount { total: count.total + 1, told: 0 };
        }
    }

    /// What is to be told now. From the first time on it is counted.
    pub(super) fn tell(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        self.is_told.store(true, Ordering::Relaxed);
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|_, count| count.told < ROUNDS);
        let mut taken: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for ((kind, key), count) in own.iter_mut() {
            count.told += 1;
            taken.entry((*kind).to_owned()).or_default().insert(key.clone(), count.total);
        }
        taken
    }

    /// What others have taken since they told last: kind, key and how many.
    pub(super) fn hear(&self, others: &HashMap<String, LimitUsage>) -> Vec<(String, String, u64)> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = Vec::new();
        for (gateway, usage) in others {
            let before = heard.get(gateway);
            for (kind, keys) in &usage.taken {
                for (key, total) in keys {
                    let before = before.and_then(|usage| usage.taken.get(kind)?.get(key)).copied().unwrap_or_default();
                    // A key that was not told for a while begins again.
                    let added = total.checked_sub(before).unwrap_or(*total);
                    if added > 0 {
                        new.push((kind.clone(), key.clone(), added));
                    }
                }
            }
        }
        heard.clone_from(others);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(taken: &TakenRates, told: BTreeMap<String, BTreeMap<String, u64>>) -> Vec<(String, String, u64)> {
        taken.hear(&HashMap::from([("other".to_owned(), LimitUsage { taken: told, ..LimitUsage::default() })]))
    }

    #[test]
    fn what_is_taken_is_heard_once_also_if_it_is_told_again() {
        let (here, there) = (TakenRates::default(), TakenRates::default());
        here.note("principal", || Some("ada".to_owned()));
        assert!(heard(&there, here.tell()).is_empty(), "nobody was told yet");
        let take = || here.note("principal", || Some("ada".to_owned()));
        take();
        take();
        let ada = |count| vec![("principal".to_owned(), "ada".to_owned(), count)];
        assert_eq!(heard(&there, here.tell()), ada(2));
        assert!(heard(&there, here.tell()).is_empty());
        take();
        // A round that is not heard loses nothing.
        here.tell();
        assert_eq!(heard(&there, here.tell()), ada(1));
        for _ in 0..=ROUNDS {
            heard(&there, here.tell());
        }
        assert!(here.tell().is_empty(), "it is told no longer");
        take();
        assert_eq!(heard(&there, here.tell()), ada(1), "it begins again");
    }

    #[test]
    fn so_many_keys_are_told_and_no_more() {
        let taken = TakenRates::default();
        taken.tell();
        for number in 0..2 * MOST {
            taken.note("tool", || Some(number.to_string()));
        }
        assert_eq!(taken.tell()["tool"].len(), MOST);
    }
}

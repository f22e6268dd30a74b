//! Decisions of one policy that hold for a while, within a number and within bytes.

use std::{collections::HashMap, sync::Arc, time::Instant};

use super::{CallDecision, CallVerdict};

/// How many decisions are kept.
const KEPT: usize = 4096;
/// How much memory they take together, in bytes.
const KEPT_BYTES: usize = 8 << 20;
/// What each takes beside its texts, in bytes.
const EACH: usize = 256;

/// The decisions of one policy, by what they are about.
#[derive(Default)]
pub(super) struct KeptDecisions {
    all: HashMap<[u8; 32], KeptDecision>,
    bytes: usize,
}

/// One decision.
#[derive(Clone)]
pub(super) struct KeptDecision {
    pub(super) decision: Arc<CallDecision>,
    pub(super) until: Instant,
    /// The subject whose call it was about; empty where nobody is known.
    pub(super) subject: Box<str>,
}

impl KeptDecision {
    fn size(&self) -> usize {
        let CallDecision { verdict, headers, labels, memory, ttl_seconds: _ } = &*self.decision;
        let verdict = match verdict {
            CallVerdict::Allow | CallVerdict::Ask(_) => 0,
            CallVerdict::Deny(denial) => denial.text.len(),
            CallVerdict::Replace(text) | CallVerdict::Answer(text) => text.len(),
        };
        let pairs: usize = headers.iter().chain(labels).map(|(name, text)| name.len() + text.len()).sum();
        EACH + self.subject.len() + verdict + pairs + memory.len()
    }
}

impl KeptDecisions {
    pub(super) fn get(&self, key: &[u8; 32]) -> Option<&KeptDecision> {
        self.all.get(key)
    }

    pub(super) fn remove(&mut self, key: &[u8; 32]) {
        if let Some(one) = self.all.remove(key) {
            self.bytes -= one.size();
        }
    }

    /// Keeps one. Where there is no room for it, those that hold no more make room first.
    pub(super) fn insert(&mut self, key: [u8; 32], one: KeptDecision, now: Instant) {
        self.remove(&key);
        let size = one.size();
        if !self.has_room(size) {
            self.all.retain(|_, one| one.until > now);
            self.bytes = self.all.values().map(KeptDecision::size).sum();
        }
        while !self.has_room(size)
            && let Some(largest) = self.largest_of_most()
        {
            self.remove(&largest);
        }
        self.bytes += size;
        self.all.insert(key, one);
    }

    fn has_room(&self, size: usize) -> bool {
        self.all.len() < KEPT && self.bytes + size <= KEPT_BYTES
    }

    /// The largest decision of the subject that has the most: who calls under many names of clients or asks for many things
    /// loses their own.
    fn largest_of_most(&self) -> Option<[u8; 32]> {
        let mut sizes: HashMap<&str, usize> = HashMap::new();
        self.all.values().for_each(|one| *sizes.entry(&one.subject).or_default() += one.size());
        let (most, _) = sizes.into_iter().max_by_key(|(_, size)| *size)?;
        let own = self.all.iter().filter(|(_, one)| &*one.subject == most);
        own.max_by_key(|(_, one)| one.size()).map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn decision(subject: &str, memory: usize, until: Instant) -> KeptDecision {
        let decision = CallDecision {
            verdict: CallVerdict::Allow,
            headers: Vec::new(),
            labels: Vec::new(),
            memory: "m".repeat(memory),
            ttl_seconds: 60,
        };
        KeptDecision { decision: Arc::new(decision), until, subject: subject.into() }
    }

    fn key(number: usize) -> [u8; 32] {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    }

    #[test]
    fn who_has_the_most_decisions_loses_one() {
        let (mut kept, now) = (KeptDecisions::default(), Instant::now());
        let until = now + Duration::from_secs(60);
        for number in 0..KEPT + 10 {
            kept.insert(key(number), decision(if number < 10 { "ada" } else { "eve" }, 0, until), now);
        }
        assert_eq!(kept.all.len(), KEPT);
        assert!((0..10).all(|number| kept.get(&key(number)).is_some()));
    }

    #[test]
    fn long_decisions_make_room_for_each_other_and_those_that_have_expired_go_first() {
        let (mut kept, now) = (KeptDecisions::default(), Instant::now());
        let (soon, later) = (now + Duration::from_secs(1), now + Duration::from_secs(60));
        for number in 0..100 {
            kept.insert(key(number), decision("eve", 64 << 10, soon), now);
        }
        kept.insert(key(100), decision("ada", 64 << 10, later), now);
        for number in 200..400 {
            kept.insert(key(number), decision("eve", 64 << 10, later), soon);
        }
        assert!(kept.bytes <= KEPT_BYTES && kept.all.len() > 100, "{} in {}", kept.bytes, kept.all.len());
        assert_eq!(kept.bytes, kept.all.values().map(KeptDecision::size).sum::<usize>());
        assert!((0..100).all(|number| kept.get(&key(number)).is_none()) && kept.get(&key(100)).is_some());
        kept.insert(key(100), decision("ada", 0, later), soon);
        (0..400).for_each(|number| kept.remove(&key(number)));
        assert_eq!(kept.bytes, 0);
    }
}

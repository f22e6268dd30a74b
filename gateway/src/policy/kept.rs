//! Decisions of one policy that hold for a while, within a number and within bytes.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Instant};

use ahash::RandomState;
use weir_mcp::Era;

use super::{CallDecision, CallQuestion, CallVerdict};

/// How many decisions are kept.
const KEPT: usize = 4096;
/// How much memory they take together, in bytes.
const KEPT_BYTES: usize = 8 << 20;
/// What each takes beside its texts, in bytes.
const EACH: usize = 256;

/// The decisions of one policy, by what they are about.
#[derive(Default)]
pub(super) struct KeptDecisions {
    all: HashMap<CallFacts<'static>, KeptDecision, RandomState>,
    bytes: usize,
}

/// All that a decision about mere facts can rest on. Facts are looked up as they are borrowed, and owned once they are kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallFacts<'a> {
    endpoint: Cow<'a, str>,
    method: Cow<'a, str>,
    name: Option<Cow<'a, str>>,
    client: Option<Cow<'a, str>>,
    era: Era,
    principal: Option<[u8; 32]>,
    labels: Cow<'a, [(String, String)]>,
}

impl<'a> CallFacts<'a> {
    pub(super) fn of(about: &CallQuestion<'a>) -> Self {
        Self {
            endpoint: about.endpoint.into(),
            method: about.method.into(),
            name: about.name.map(Cow::from),
            client: about.client.map(Cow::from),
            era: about.era,
            principal: about.principal_digest.copied(),
            labels: about.labels.into(),
        }
    }

    pub(super) fn into_owned(self) -> CallFacts<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        CallFacts {
            endpoint: owned(self.endpoint),
            method: owned(self.method),
            name: self.name.map(owned),
            client: self.client.map(owned),
            era: self.era,
            principal: self.principal,
            labels: Cow::Owned(self.labels.into_owned()),
        }
    }

    fn size(&self) -> usize {
        let texts = [&self.endpoint, &self.method].into_iter().chain(&self.name).chain(&self.client);
        let labels: usize = self.labels.iter().map(|(name, text)| name.len() + text.len()).sum();
        texts.map(|text| text.len()).sum::<usize>() + labels
    }
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
    pub(super) fn holds(&self) -> bool {
        self.until > Instant::now()
    }

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
    pub(super) fn get<'a>(&'a self, facts: &'a CallFacts<'a>) -> Option<&'a KeptDecision> {
        self.all.get(facts)
    }

    pub(super) fn remove(&mut self, facts: &CallFacts<'static>) {
        if let Some(one) = self.all.remove(facts) {
            self.bytes -= facts.size() + one.size();
        }
    }

    /// Keeps one. Where there is no room for it, those that hold no more make room first.
    pub(super) fn insert(&mut self, facts: CallFacts<'static>, one: KeptDecision, now: Instant) {
        self.remove(&facts);
        let size = facts.size() + one.size();
        if !self.has_room(size) {
            self.all.retain(|_, one| one.until > now);
            self.bytes = self.total();
        }
        while !self.has_room(size)
            && let Some(largest) = self.largest_of_most()
        {
            self.remove(&largest);
        }
        self.bytes += size;
        self.all.insert(facts, one);
    }

    fn total(&self) -> usize {
        self.all.iter().map(|(facts, one)| facts.size() + one.size()).sum()
    }

    fn has_room(&self, size: usize) -> bool {
        self.all.len() < KEPT && self.bytes + size <= KEPT_BYTES
    }

    /// The largest decision of the subject that has the most: who calls under many names of clients or asks for many things
    /// loses their own.
    fn largest_of_most(&self) -> Option<CallFacts<'static>> {
        let mut sizes: HashMap<&str, usize> = HashMap::new();
        let size = |(facts, one): &(&CallFacts<'_>, &KeptDecision)| facts.size() + one.size();
        self.all.iter().for_each(|kept| *sizes.entry(&kept.1.subject).or_default() += size(&kept));
        let (most, _) = sizes.into_iter().max_by_key(|(_, size)| *size)?;
        let own = self.all.iter().filter(|(_, one)| &*one.subject == most);
        own.max_by_key(size).map(|(facts, _)| facts.clone())
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

    fn key(number: usize) -> CallFacts<'static> {
        CallFacts {
            endpoint: "u".into(),
            method: "tools/call".into(),
            name: Some(number.to_string().into()),
            client: None,
            era: Era::Modern,
            principal: None,
            labels: Cow::default(),
        }
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
        assert_eq!(kept.bytes, kept.total());
        assert!((0..100).all(|number| kept.get(&key(number)).is_none()) && kept.get(&key(100)).is_some());
        kept.insert(key(100), decision("ada", 0, later), soon);
        (0..400).for_each(|number| kept.remove(&key(number)));
        assert_eq!(kept.bytes, 0);
    }
}

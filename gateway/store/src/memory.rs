//! A store that forgets: for one process, and for tests.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use zeroize::Zeroizing;

use crate::{Clock, Entry, Key, Lease, Listed, Store, StoreError, Swap, Value, Version};

/// Keeps everything in the memory of this process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    clock: Clock,
    kept: Mutex<MemoryEntry>,
}

#[derive(Debug, Default)]
struct MemoryEntry {
    last: u64,
    entries: BTreeMap<Key, Row>,
}

#[derive(Debug)]
struct Row {
    value: Value,
    version: Version,
    /// In milliseconds since 1970.
    until: Option<u64>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(clock: Clock) -> Self {
        Self { clock, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, MemoryEntry> {
        let mut kept = self.kept.lock();
        let now = self.clock.millis();
        kept.entries.retain(|_, row| row.until.is_none_or(|until| now < until));
        kept
    }

    fn until(&self, ttl: Option<Duration>) -> Option<u64> {
        ttl.map(|ttl| self.clock.millis().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl MemoryEntry {
    fn write(&mut self, key: &Key, value: &Value, until: Option<u64>) -> Version {
        self.last += 1;
        let version = Version(self.last);
        self.entries.insert(key.clone(), Row { value: value.clone(), version, until });
        version
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let now = self.clock.millis();
        Ok(self.kept().entries.get(key).map(|row| {
            let left = row.until.map(|until| Duration::from_millis(until.saturating_sub(now)));
            Entry { value: row.value.clone(), version: row.version, left }
        }))
    }

    async fn put(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Version, StoreError> {
        value.check()?;
        let until = self.until(ttl);
        Ok(self.kept().write(key, value, until))
    }

    async fn swap(
        &self,
        key: &Key,
        expected: Option<Version>,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<Swap, StoreError> {
        value.check()?;
        let until = self.until(ttl);
        let mut kept = self.kept();
        let found = kept.entries.get(key).map(|row| row.version);
        if found != expected {
            return Ok(Swap::Lost(found));
        }
        Ok(Swap::Done(kept.write(key, value, until)))
    }

    async fn delete(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(self.kept().entries.remove(key).is_some())
    }

    async fn list(&self, below: &[Key]) -> Result<Vec<Listed>, StoreError> {
        let kept = self.kept();
        let ranges =
            below.iter().map(Key::below).map(|Range { start, end }| Key::from_text(&start)..Key::from_text(&end));
        let rows = ranges.flat_map(|range| kept.entries.range(range));
        let listed =
            rows.map(|(key, row)| Listed { key: key.clone(), about: row.value.about.clone(), version: row.version });
        Ok(listed.collect())
    }

    async fn lease(&self, key: &Key, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        let nothing = Value { about: String::new(), secret: Zeroizing::default() };
        Ok(match self.swap(key, None, &nothing, Some(ttl)).await? {
            Swap::Done(version) => Some(Lease { key: key.clone(), version }),
            Swap::Lost(_) => None,
        })
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        let mut kept = self.kept();
        if kept.entries.get(&lease.key).is_some_and(|row| row.version == lease.version) {
            kept.entries.remove(&lease.key);
        }
        Ok(())
    }
}

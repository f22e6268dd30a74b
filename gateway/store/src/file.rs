//! A store in one file that several processes share.
//!
//! The database locks its file as long as it is open, so it is opened for one transaction at a time, under a lock on a
//! second file that processes wait for in turn. That costs milliseconds for each access, which is why callers keep what
//! they use often. A process that is killed leaves no lock behind, and the database repairs itself when opened next.
//!
//! A file that is not what was written is never overwritten, repaired by guessing or deleted.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};
use zeroize::Zeroizing;

use crate::{Clock, Entry, Key, Lease, Listed, Protection, Store, StoreError, Swap, Value, Version, seal::ValueCipher};

use create::{create, create_folder, seal_of_existing};
use holder::Holder;
use lock::FileLock;
use record::FileRecord;

mod create;
mod database;
mod former;
mod holder;
mod lock;
mod record;

/// A store in a file of mode 0600.
#[derive(Clone, Debug)]
pub struct FileStore(Arc<FileShared>);

#[derive(Debug)]
struct FileShared {
    path: PathBuf,
    seal: ValueCipher,
    clock: Clock,
    /// Of the leases that were taken here and not given back.
    holders: Mutex<HashMap<Version, Holder>>,
}

/// The entries: a [`Key`] and a [`FileRecord`].
const ENTRIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("entries");
/// What is true of the file: its format, its protection, a text to try a key on, the last version.
const FILE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("file");
/// The format that this code writes, and the last that it reads. A file of an earlier one is read as it is, and becomes
/// one of this with the first write.
const FORMAT: u32 = 2;

impl FileStore {
    /// Opens the store at `path`, or creates it with all folders above it.
    ///
    /// # Errors
    /// If the file is damaged, of a newer version, readable by others, or protected in another way than asked; if no
    /// key is found, or none that opens it.
    pub async fn open(path: PathBuf, protection: Protection, clock: Clock) -> Result<Self, StoreError> {
        blocking(path.clone(), move || {
            let exists = || path.try_exists().map_err(|error| StoreError::io(&path, &error));
            if !exists()? {
                create_folder(&path)?;
                // Others that come now wait, and find it made.
                let _lock = FileLock::exclusive(&path)?;
                if !exists()? {
                    let seal = create(&path, &protection)?;
                    return Ok(Self::new(path, seal, clock));
                }
            }
            // A keyring may have to ask somebody, so this is without the lock.
            let seal = seal_of_existing(&path, &protection)?;
            Ok(Self::new(path, seal, clock))
        })
        .await
    }

    /// Whether a key opens the store at `path`; where there is none yet, whether what is there for it are keys. Makes
    /// nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn check_key(path: PathBuf, protection: Protection) -> Result<(), StoreError> {
        blocking(path.clone(), move || match (path.try_exists(), &protection) {
            (Ok(false), Protection::Encrypted(sources)) => Ok(sources.check()?),
            _ => seal_of_existing(&path, &protection).map(drop),
        })
        .await
    }

    /// What [`Store::list`] says of the file at `path`, for those who need not and perhaps cannot open its values.
    /// Nothing if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn peek(path: PathBuf, below: &[Key], clock: &Clock) -> Result<Vec<Listed>, StoreError> {
        let (below, now) = (below.to_vec(), clock.millis());
        blocking(path.clone(), move || {
            if !path.try_exists().map_err(|error| StoreError::io(&path, &error))? {
                return Ok(Vec::new());
            }
            database::read(&path, |tx| list(&path, tx, &below, now))
        })
        .await
    }

    /// The namespaces of the file at `path`; none if there is no such file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn namespaces(path: PathBuf) -> Result<Vec<String>, StoreError> {
        blocking(path.clone(), move || {
            if !path.try_exists().map_err(|error| StoreError::io(&path, &error))? {
                return Ok(Vec::new());
            }
            database::read(&path, |tx| {
                let entries = tx.open_table(ENTRIES).map_err(|e| database::error(&path, e))?;
                let mut names = BTreeSet::new();
                for row in entries.iter().map_err(|e| database::error(&path, e))? {
                    let (key, _) = row.map_err(|e| database::error(&path, e))?;
                    names.insert(Key::from_text(key.value()).namespace());
                }
                Ok(names.into_iter().collect())
            })
        })
        .await
    }

    fn new(path: PathBuf, seal: ValueCipher, clock: Clock) -> Self {
        Self(Arc::new(FileShared { path, seal, clock, holders: Mutex::default() }))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FileShared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.0);
        blocking(self.0.path.clone(), move || work(&shared)).await
    }
}

impl FileShared {
    fn write<T>(&self, work: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>) -> Result<T, StoreError> {
        database::write(&self.path, |tx| {
            former::replace(&self.path, &self.seal, tx)?;
            work(tx)
        })
    }

    /// Writes if what is there has the version `expected`; whatever is there where that is not given.
    fn set(
        &self,
        tx: &WriteTransaction,
        key: &Key,
        expected: Option<Option<Version>>,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<Swap, StoreError> {
        let now = self.clock.millis();
        let mut entries = tx.open_table(ENTRIES).map_err(|e| database::error(&self.path, e))?;
        entries.retain(|_, bytes| !self.is_over(bytes, now)).map_err(|e| database::error(&self.path, e))?;
        let found = {
            let bytes = entries.get(key.text()).map_err(|e| database::error(&self.path, e))?;
            bytes.and_then(|bytes| FileRecord::parse(bytes.value()).map(|record| record.version))
        };
        if expected.is_some_and(|expected| expected != found) {
            return Ok(Swap::Lost(found));
        }
        let version = next_version(&self.path, tx)?;
        let until = ttl.map(|ttl| now.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)));
        let bytes = record::render(&self.seal, key, value, version, until)
            .map_err(|()| StoreError::io(&self.path, &std::io::Error::other("no random numbers to encrypt with")))?;
        entries.insert(key.text(), bytes.as_slice()).map_err(|e| database::error(&self.path, e))?;
        Ok(Swap::Done(version))
    }

    /// Whether the time of an entry has passed. What the holder of a lease has left then goes with it.
    fn is_over(&self, bytes: &[u8], now: u64) -> bool {
        let is_over = record::is_over(bytes, now);
        if is_over && let Some(record) = FileRecord::parse(bytes) {
            self.forget_holder(record.version);
        }
        is_over
    }

    fn forget_holder(&self, version: Version) {
        self.holders.lock().remove(&version);
        holder::forget(&self.path, version);
    }

    fn remove(&self, tx: &WriteTransaction, key: &Key, only: Option<Version>) -> Result<bool, StoreError> {
        let mut entries = tx.open_table(ENTRIES).map_err(|e| database::error(&self.path, e))?;
        let found = {
            let bytes = entries.get(key.text()).map_err(|e| database::error(&self.path, e))?;
            bytes.and_then(|bytes| FileRecord::parse(bytes.value()).map(|record| record.version))
        };
        if only.is_some_and(|only| found != Some(only)) {
            return Ok(false);
        }
        Ok(entries.remove(key.text()).map_err(|e| database::error(&self.path, e))?.is_some())
    }
}

#[async_trait]
impl Store for FileStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let key = key.clone();
        self.run(move |shared| {
            let now = shared.clock.millis();
            database::read(&shared.path, |tx| {
                let key = match database::format(&shared.path, tx)? {
                    FORMAT => key,
                    _ => former::of_current(&key).unwrap_or(key),
                };
                let entries = tx.open_table(ENTRIES).map_err(|e| database::error(&shared.path, e))?;
                let Some(bytes) = entries.get(key.text()).map_err(|e| database::error(&shared.path, e))? else {
                    return Ok(None);
                };
                if record::is_over(bytes.value(), now) {
                    return Ok(None);
                }
                let entry = || {
                    let record = FileRecord::parse(bytes.value())?;
                    let secret = record.open(&shared.seal, &key)?;
                    let value = Value { about: record.about.to_owned(), secret };
                    let left = record.until.map(|until| Duration::from_millis(until.saturating_sub(now)));
                    Some(Entry { value, version: record.version, left })
                };
                entry().map(Some).ok_or_else(|| StoreError::entry(&shared.path))
            })
        })
        .await
    }

    async fn put(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Version, StoreError> {
        value.check()?;
        let (key, value) = (key.clone(), value.clone());
        self.run(move |shared| match shared.write(|tx| shared.set(tx, &key, None, &value, ttl))? {
            Swap::Done(version) => Ok(version),
            Swap::Lost(_) => Err(StoreError::damaged(&shared.path, "a write was neither done nor refused")),
        })
        .await
    }

    async fn swap(
        &self,
        key: &Key,
        expected: Option<Version>,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<Swap, StoreError> {
        value.check()?;
        let (key, value) = (key.clone(), value.clone());
        self.run(move |shared| shared.write(|tx| shared.set(tx, &key, Some(expected), &value, ttl))).await
    }

    async fn delete(&self, key: &Key) -> Result<bool, StoreError> {
        let key = key.clone();
        self.run(move |shared| shared.write(|tx| shared.remove(tx, &key, None))).await
    }

    async fn list(&self, below: &[Key]) -> Result<Vec<Listed>, StoreError> {
        Self::peek(self.0.path.clone(), below, &self.0.clock).await
    }

    async fn lease(&self, key: &Key, ttl: Duration) -> Result<Option<Lease>, StoreError> {
        let before = self.get(key).await?.map(|entry| entry.version);
        let key = key.clone();
        self.run(move |shared| {
            // Those who wait for it ask again and again, and to look is much cheaper than to try.
            if before.is_some_and(|version| !holder::has_died(&shared.path, version)) {
                return Ok(None);
            }
            let nothing = Value { about: String::new(), secret: Zeroizing::default() };
            let lease = shared.write(|tx| {
                let Swap::Done(version) = shared.set(tx, &key, Some(before), &nothing, Some(ttl))? else {
                    return Ok(None);
                };
                if let Ok(holder) = Holder::of(&shared.path, version) {
                    shared.holders.lock().insert(version, holder);
                }
                Ok(Some(Lease { key, version }))
            })?;
            if let Some(died) = before.filter(|_| lease.is_some()) {
                shared.forget_holder(died);
            }
            Ok(lease)
        })
        .await
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.run(move |shared| {
            // The entry first, for good: without its file it would be waited for.
            let removed = shared.write(|tx| shared.remove(tx, &lease.key, Some(lease.version)));
            shared.forget_holder(lease.version);
            removed
        })
        .await?;
        Ok(())
    }
}

/// Does blocking work where it disturbs nobody. It goes on to its end if the caller stops waiting.
async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // The database asserts what it believes of its own pages.
        Err(error) if error.is_panic() => Err(StoreError::damaged(&path, "its pages contradict each other")),
        Err(_) => Err(StoreError::io(&path, &std::io::Error::other("the program is ending"))),
    }
}

fn list(path: &Path, tx: &ReadTransaction, below: &[Key], now: u64) -> Result<Vec<Listed>, StoreError> {
    let is_former = database::format(path, tx)? != FORMAT;
    let everything = "[".to_owned().."]".to_owned();
    let ranges = if is_former { vec![everything] } else { below.iter().map(Key::below).collect() };
    let entries = tx.open_table(ENTRIES).map_err(|e| database::error(path, e))?;
    let mut listed = Vec::new();
    for range in ranges {
        let rows = entries.range(range.start.as_str()..range.end.as_str()).map_err(|e| database::error(path, e))?;
        for row in rows {
            let (key, bytes) = row.map_err(|e| database::error(path, e))?;
            let mut key = Key::from_text(key.value());
            if is_former {
                key = former::to_current(&key).unwrap_or(key);
            }
            let is_wanted = below.iter().any(|other| key.is_below(other));
            if !is_wanted || record::is_over(bytes.value(), now) {
                continue;
            }
            let record = FileRecord::parse(bytes.value()).ok_or_else(|| StoreError::entry(path))?;
            listed.push(Listed { key, about: record.about.to_owned(), version: record.version });
        }
    }
    Ok(listed)
}

fn next_version(path: &Path, tx: &WriteTransaction) -> Result<Version, StoreError> {
    let mut about = tx.open_table(FILE).map_err(|e| database::error(path, e))?;
    let last = {
        let value = about.get("last").map_err(|e| database::error(path, e))?;
        value.and_then(|value| value.value().try_into().ok()).map_or(0, u64::from_be_bytes)
    };
    let next = last + 1;
    about.insert("last", next.to_be_bytes().as_slice()).map_err(|e| database::error(path, e))?;
    Ok(Version(next))
}

#[cfg(test)]
mod tests;

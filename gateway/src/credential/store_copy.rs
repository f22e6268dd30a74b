//! Copying a store into another one while both are used, and looking whether a store can be used.
//!
//! Versions of two stores cannot be compared. So the other store keeps which version of an entry was copied, and as which
//! version of its own. An entry that has another version there by now was written there since, and stays as it is.

use std::collections::{BTreeMap, HashMap, HashSet};

use weir_store::{Key, Listed, Store, StoreError, Swap, Value};

use super::{
    CredentialManager, TokenStoreError,
    token_store::{StorePlace, TokenStore},
};

/// The namespace of what was copied: the versions here and there.
const COPIED: &str = "copied";

/// What is of those alone who use a store at this moment.
const LEFT_OUT: [&str; 4] = ["check", "refresh", "handed-over", COPIED];

/// What became of the entries of a store that was copied.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoreCopy {
    /// How many were copied of each namespace.
    pub copied: BTreeMap<String, usize>,
    /// Were copied before, and have not changed since.
    pub same: usize,
    /// Were written or removed in the other store since, or by others.
    pub newer: usize,
    /// Were copied before and are gone here, so that they were removed there.
    pub removed: usize,
    /// Do not open with the key.
    pub unreadable: usize,
}

/// What a store is like that can be used.
#[derive(Debug, PartialEq, Eq)]
pub struct StoreReport {
    /// Of its server; none for a file.
    pub version: Option<String>,
    /// By how many milliseconds the clock of its server is ahead of this one; none for a file.
    pub clock_ahead: Option<i64>,
    pub entries: usize,
}

impl CredentialManager {
    /// Where the store is.
    #[must_use]
    pub fn store_place(&self) -> String {
        match &self.token_store.place {
            StorePlace::Nowhere => "nowhere".to_owned(),
            StorePlace::File(path) => path.display().to_string(),
            StorePlace::Shared(server) => server.to_string(),
        }
    }

    /// Opens the store, writes to it, and counts what it holds; none if there is no file yet.
    ///
    /// # Errors
    /// If that cannot be done.
    pub async fn report_store(&self) -> Result<Option<StoreReport>, TokenStoreError> {
        if !self.token_store.place.may_hold() {
            return Ok(None);
        }
        let report = match &self.token_store.place {
            StorePlace::Shared(server) => Some(server.report().await?),
            StorePlace::File(_) | StorePlace::Nowhere => None,
        };
        let clock_ahead = report.as_ref().and_then(|report| {
            i64::try_from(i128::from(report.millis) - i128::from(self.token_store.clock.millis())).ok()
        });
        self.token_store.open().await?.logins.check().await?;
        let mut entries = 0;
        for namespace in self.token_store.namespaces().await? {
            entries += self.token_store.peek(&[Key::new(&namespace, &[])]).await?.len();
        }
        Ok(Some(StoreReport { version: report.map(|report| report.version), clock_ahead, entries }))
    }

    /// What the store is called in those that it is copied to: files of two machines may have one path.
    fn store_origin(&self) -> String {
        match &self.token_store.place {
            StorePlace::File(_) => {
                format!("{} of {}", self.store_place(), rustix::system::uname().nodename().to_string_lossy())
            }
            StorePlace::Nowhere | StorePlace::Shared(_) => self.store_place(),
        }
    }

    /// Copies all entries to the store of `other`, but for what is newer there. It can be done again. None if there is no
    /// store: nothing that was copied before is then taken for removed.
    ///
    /// # Errors
    /// If a store cannot be used. What was copied until then is there.
    pub async fn copy_store(&self, other: &Self) -> Result<Option<StoreCopy>, TokenStoreError> {
        if !self.token_store.place.may_hold() {
            return Ok(None);
        }
        let from = self.store_origin();
        let (source, target) = (&self.token_store.open().await?.store, &other.token_store.open().await?.store);
        let before = target.list(&[Key::new(COPIED, &[&from])]).await?;
        let before: HashMap<String, [u64; 2]> = before.iter().filter_map(versions).collect();
        let (mut copy, mut seen) = (StoreCopy::default(), HashSet::new());
        for namespace in self.token_store.namespaces().await? {
            if LEFT_OUT.contains(&&*namespace) {
                continue;
            }
            let below = [Key::new(&namespace, &[])];
            let there = target.list(&below).await?;
            let there: HashMap<Key, _> = there.into_iter().map(|listed| (listed.key, listed.version)).collect();
            for Listed { key, version, .. } in source.list(&below).await? {
                let name = format!("{key:?}");
                let (known, found) = (before.get(&name), there.get(&key).copied());
                seen.insert(name.clone());
                let is_own = known.map(|[_, own]| *own) == found.map(|found| found.number());
                if known.is_some_and(|[copied, _]| *copied == version.number()) {
                    copy.same += 1;
                    continue;
                }
                let entry = match source.get(&key).await {
                    Ok(Some(entry)) => entry,
                    Ok(None) => continue,
                    Err(StoreError::Entry(_)) => {
                        copy.unreadable += 1;
                        continue;
                    }
                    Err(why) => return Err(why.into()),
                };
                let written = match is_own {
                    true => target.swap(&key, found, &entry.value, entry.left).await?,
                    false => Swap::Lost(found),
                };
                let Swap::Done(own) = written else {
                    copy.newer += 1;
                    continue;
                };
                let about = format!("{} {}", entry.version.number(), own.number());
                let value = Value { about, secret: Default::default() };
                target.put(&Key::new(COPIED, &[&from, &name]), &value, entry.left).await?;
                *copy.copied.entry(namespace.clone()).or_default() += 1;
            }
        }
        copy.removed = forget_what_is_gone(&**target, &from, &before, &seen).await?;
        Ok(Some(copy))
    }
}

/// Removes what was copied, is gone where it came from, and was not written since.
async fn forget_what_is_gone(
    target: &dyn Store,
    from: &str,
    before: &HashMap<String, [u64; 2]>,
    seen: &HashSet<String>,
) -> Result<usize, StoreError> {
    let mut removed = 0;
    for (name, [_, own]) in before.iter().filter(|(name, _)| !seen.contains(*name)) {
        let Some(key) = Key::parse(name) else { continue };
        let is_own = target.get(&key).await?.is_some_and(|entry| entry.version.number() == *own);
        if is_own && target.delete(&key).await? {
            removed += 1;
        }
        target.delete(&Key::new(COPIED, &[from, name])).await?;
    }
    Ok(removed)
}

/// The name of an entry that was copied, its version where it came from, and the one that it got.
fn versions(listed: &Listed) -> Option<(String, [u64; 2])> {
    let (copied, own) = listed.about.split_once(' ')?;
    Some((listed.key.parts().pop()?, [copied.parse().ok()?, own.parse().ok()?]))
}

impl TokenStore {
    /// The namespaces that hold something, or have.
    async fn namespaces(&self) -> Result<Vec<String>, StoreError> {
        match &self.place {
            StorePlace::Nowhere => Ok(Vec::new()),
            StorePlace::File(path) => weir_store::FileStore::namespaces(path.clone()).await,
            StorePlace::Shared(server) => server.namespaces().await,
        }
    }
}

//! What policies keep for themselves: values of the store, apart for each policy and upstream.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::Mutex;
use weir_oauth::Clock;
use weir_store::{Key, Swap, Value, Version};

use crate::policy::{PolicyStore, PolicyStoreCondition, PolicyStoreError};

use super::{CredentialManager, TokenStoreError, token_store::TokenStore};

const NAMESPACE: &str = "policies";
/// The longest key, in bytes.
const KEY: usize = 256;
/// The largest value, in bytes.
const VALUE: usize = 128 << 10;
/// How many values one policy keeps for one upstream.
const VALUES: usize = 1024;
/// How many bytes those have together, with their keys.
const BYTES: usize = 2 << 20;

/// The stores of all policies.
#[derive(Clone)]
pub struct PolicyStores(Arc<TokenStore>);

/// What one policy keeps for one upstream.
pub struct KeptByPolicy {
    token_store: Arc<TokenStore>,
    upstream: String,
    policy: String,
    /// One writes at a time: what there is room for is looked up first.
    writing: Mutex<()>,
}

impl CredentialManager {
    /// The stores of all policies. Opens nothing.
    #[must_use]
    pub fn policy_stores(&self) -> PolicyStores {
        PolicyStores(Arc::clone(&self.token_store))
    }
}

impl PolicyStores {
    /// Stores that end with this process.
    #[must_use]
    pub fn in_memory() -> Self {
        Self(Arc::new(TokenStore::in_memory(Clock::system())))
    }

    /// What the policy of this name keeps for an upstream.
    #[must_use]
    pub fn of(&self, upstream: &str, policy: &str) -> Arc<KeptByPolicy> {
        let (upstream, policy) = (upstream.to_owned(), policy.to_owned());
        Arc::new(KeptByPolicy { token_store: Arc::clone(&self.0), upstream, policy, writing: Mutex::default() })
    }
}

impl PolicyStores {
    /// Moves what all policies keep for an upstream under its `former` name. Gives how many values there were.
    ///
    /// It replaces what is there under the new name: a gateway that was quicker has pinned what it saw first.
    ///
    /// # Errors
    /// If the store cannot be used. What was not moved until then stays under the former name.
    pub async fn take_over(&self, former: &str, name: &str) -> Result<usize, TokenStoreError> {
        let below = [Key::new(NAMESPACE, &[former])];
        // Where nothing is kept no file is made.
        if self.0.opened.get().is_none() && self.0.peek(&below).await?.is_empty() {
            return Ok(0);
        }
        let store = &self.0.open().await?.store;
        let mut moved = 0;
        for listed in store.list(&below).await? {
            let parts = listed.key.parts();
            let (Some(entry), [_, of @ ..]) = (store.get(&listed.key).await?, &*parts) else { continue };
            let rest = of.iter().map(String::as_str);
            let place = Key::new(NAMESPACE, &std::iter::once(name).chain(rest).collect::<Vec<_>>());
            store.put(&place, &entry.value, entry.left).await?;
            store.delete(&listed.key).await?;
            moved += 1;
        }
        Ok(moved)
    }
}

impl KeptByPolicy {
    fn place(&self, key: &str) -> Result<Key, PolicyStoreError> {
        if key.len() > KEY {
            return Err(PolicyStoreError::Limit(format!("a key has at most {KEY} bytes")));
        }
        Ok(Key::new(NAMESPACE, &[&self.upstream, &self.policy, key]))
    }

    /// The keys that there are, with the bytes that each takes.
    async fn held(&self) -> Result<Vec<(String, usize)>, PolicyStoreError> {
        let store = &self.token_store.open().await?.store;
        let listed = store.list(&[Key::new(NAMESPACE, &[&self.upstream, &self.policy])]).await.map_err(unavailable)?;
        let held =
            listed.into_iter().filter_map(|listed| Some((listed.key.parts().pop()?, listed.about.parse().ok()?)));
        Ok(held.collect())
    }

    async fn make_room(&self, key: &str, bytes: usize) -> Result<(), PolicyStoreError> {
        let mut others = self.held().await?;
        others.retain(|(other, _)| other != key);
        if others.len() >= VALUES {
            return Err(PolicyStoreError::Limit(format!("a policy keeps at most {VALUES} values for one upstream")));
        }
        if others.iter().map(|(_, bytes)| bytes).sum::<usize>() + bytes > BYTES {
            let most = BYTES >> 20;
            return Err(PolicyStoreError::Limit(format!("a policy keeps at most {most} MiB for one upstream")));
        }
        Ok(())
    }
}

#[async_trait]
impl PolicyStore for KeptByPolicy {
    async fn get(&self, key: &str) -> Result<Option<(Vec<u8>, u64)>, PolicyStoreError> {
        let place = self.place(key)?;
        let entry = self.token_store.open().await?.store.get(&place).await.map_err(unavailable)?;
        Ok(entry.map(|entry| (entry.value.secret.to_vec(), entry.version.number())))
    }

    async fn set(
        &self,
        key: &str,
        value: Vec<u8>,
        ttl_seconds: u32,
        when: PolicyStoreCondition,
    ) -> Result<u64, PolicyStoreError> {
        let place = self.place(key)?;
        if value.len() > VALUE {
            return Err(PolicyStoreError::Limit(format!("a value has at most {} KiB", VALUE >> 10)));
        }
        let bytes = key.len() + value.len();
        let ttl = (ttl_seconds > 0).then(|| Duration::from_secs(ttl_seconds.into()));
        let value = Value { about: bytes.to_string(), secret: value.into() };
        let _writing = self.writing.lock().await;
        self.make_room(key, bytes).await?;
        let store = &self.token_store.open().await?.store;
        let expected = match when {
            PolicyStoreCondition::Always => {
                return store.put(&place, &value, ttl).await.map(Version::number).map_err(unavailable);
            }
            PolicyStoreCondition::Absent => None,
            PolicyStoreCondition::Version(number) => Some(Version::from_number(number)),
        };
        match store.swap(&place, expected, &value, ttl).await.map_err(unavailable)? {
            Swap::Done(version) => Ok(version.number()),
            Swap::Lost(_) => Err(PolicyStoreError::Changed),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), PolicyStoreError> {
        let place = self.place(key)?;
        self.token_store.open().await?.store.delete(&place).await.map_err(unavailable)?;
        Ok(())
    }

    async fn keys(&self, prefix: &str) -> Result<Vec<String>, PolicyStoreError> {
        let mut keys: Vec<_> = self.held().await?.into_iter().map(|(key, _)| key).collect();
        keys.retain(|key| key.starts_with(prefix));
        keys.sort_unstable();
        Ok(keys)
    }
}

fn unavailable(error: weir_store::StoreError) -> PolicyStoreError {
    PolicyStoreError::Unavailable(error.to_string())
}

impl From<TokenStoreError> for PolicyStoreError {
    fn from(error: TokenStoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;
    use PolicyStoreCondition::{Absent, Always, Version};

    #[tokio::test]
    async fn policies_and_upstreams_do_not_see_each_other() {
        let stores = PolicyStores::in_memory();
        let mine = stores.of("github", "pin");
        mine.set("tools/a", b"1".to_vec(), 0, Always).await.unwrap();
        assert_eq!(mine.keys("tools/").await.unwrap(), ["tools/a"]);
        assert_eq!(mine.keys("other").await.unwrap(), [""; 0]);
        for other in [stores.of("github", "redact"), stores.of("jira", "pin"), stores.of("git", "hub")] {
            assert_eq!(other.get("tools/a").await.unwrap(), None);
            assert_eq!(other.keys("").await.unwrap(), [""; 0]);
        }
        // Another handle of the same, as after a reload.
        assert_eq!(stores.of("github", "pin").get("tools/a").await.unwrap().unwrap().0, b"1");
    }

    #[tokio::test]
    async fn what_is_kept_goes_along_when_an_upstream_is_renamed() {
        let stores = PolicyStores::in_memory();
        stores.of("github", "pin").set("tools/a", b"1".to_vec(), 60, Always).await.unwrap();
        stores.of("github", "redact").set("k", b"2".to_vec(), 0, Always).await.unwrap();
        stores.of("github-2", "pin").set("k", b"3".to_vec(), 0, Always).await.unwrap();
        stores.of("gh", "redact").set("k", b"4".to_vec(), 0, Always).await.unwrap();
        assert_eq!(stores.take_over("github", "gh").await.unwrap(), 2);
        assert_eq!(stores.of("gh", "pin").get("tools/a").await.unwrap().unwrap().0, b"1");
        assert_eq!(stores.of("gh", "redact").get("k").await.unwrap().unwrap().0, b"2", "it was there before");
        assert_eq!(stores.of("github", "pin").keys("").await.unwrap(), [""; 0]);
        assert_eq!(stores.of("github-2", "pin").keys("").await.unwrap(), ["k"]);
        assert_eq!(stores.take_over("nobody", "gh").await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_condition_that_does_not_hold_changes_nothing() {
        let kept = PolicyStores::in_memory().of("u", "p");
        assert_eq!(kept.set("k", b"0".to_vec(), 0, Version(7)).await, Err(PolicyStoreError::Changed));
        let first = kept.set("k", b"1".to_vec(), 0, Absent).await.unwrap();
        assert_eq!(kept.set("k", b"2".to_vec(), 0, Absent).await, Err(PolicyStoreError::Changed));
        let second = kept.set("k", b"3".to_vec(), 0, Version(first)).await.unwrap();
        assert_eq!(kept.set("k", b"4".to_vec(), 0, Version(first)).await, Err(PolicyStoreError::Changed));
        assert_eq!(kept.get("k").await.unwrap(), Some((b"3".to_vec(), second)));
        kept.delete("k").await.unwrap();
        assert_eq!(kept.get("k").await.unwrap(), None);
    }

    #[tokio::test]
    async fn nobody_keeps_more_than_allowed() {
        let kept = PolicyStores::in_memory().of("u", "p");
        let limit = |found: Result<u64, PolicyStoreError>| match found {
            Err(PolicyStoreError::Limit(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(limit(kept.set(&"k".repeat(257), Vec::new(), 0, Always).await).contains("256 bytes"));
        assert!(limit(kept.set("k", vec![0; VALUE + 1], 0, Always).await).contains("128 KiB"));
        for number in 0..15 {
            kept.set(&number.to_string(), vec![0; VALUE], 0, Always).await.unwrap();
        }
        kept.set("last", vec![0; VALUE - 64], 0, Always).await.unwrap();
        assert!(limit(kept.set("more", vec![0; 64], 0, Always).await).contains("2 MiB"));
        // What is there makes room for itself.
        kept.set("last", vec![0; 1000], 0, Always).await.unwrap();
        kept.set("more", vec![0; 64], 0, Always).await.unwrap();
        for number in 17..VALUES {
            kept.set(&number.to_string(), vec![0; 1], 0, Always).await.unwrap();
        }
        assert!(limit(kept.set("one more", vec![0; 1], 0, Always).await).contains("1024 values"));
    }
}

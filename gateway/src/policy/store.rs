//! What a policy may keep, seen from the policy. Who keeps it stands above this module.

use async_trait::async_trait;

/// Keeps what one policy wants kept for one upstream.
#[async_trait]
pub trait PolicyStore: Send + Sync {
    /// What is kept under a key, and which writing it is.
    async fn get(&self, key: &str) -> Result<Option<(Vec<u8>, u64)>, PolicyStoreError>;

    /// Keeps a value for so many seconds, 0 for good, and answers with the number of this writing.
    async fn set(
        &self,
        key: &str,
        value: Vec<u8>,
        ttl_seconds: u32,
        when: PolicyStoreCondition,
    ) -> Result<u64, PolicyStoreError>;

    /// Forgets what is under a key.
    async fn delete(&self, key: &str) -> Result<(), PolicyStoreError>;

    /// The keys that begin with a text, in order.
    async fn keys(&self, prefix: &str) -> Result<Vec<String>, PolicyStoreError>;
}

/// When a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyStoreCondition {
    /// Whatever is there.
    Always,
    /// If nothing is there.
    Absent,
    /// If what is there is this writing.
    Version(u64),
}

/// Why nothing was read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyStoreError {
    /// The condition does not hold.
    Changed,
    /// It is more than a policy may keep.
    Limit(String),
    /// The store cannot be had.
    Unavailable(String),
}

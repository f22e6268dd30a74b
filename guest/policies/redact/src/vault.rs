//! Where the mapping of a caller is kept between questions.
//!
//! A caller has two keys: one for the mapping, and one for its counters, which lives longer. So a placeholder of a mapping
//! that is gone never stands for another value.

use sha2::{Digest, Sha256};
use weir_policy::{
    Principal,
    capability::store::{self, Condition, Item, StoreError},
};

use crate::mapping::{Mapping, Wanted};

/// How often a write is tried when others write too. Each try has four operations, and a question may have 64.
const TRIES: usize = 8;
/// How much longer than the mapping its counters live: a conversation may go on the next day.
const COUNTERS_SECONDS: u32 = 24 * 3600;

/// The store, or what stands for it in a test.
pub(crate) trait Vault {
    fn get(&self, key: &str) -> Result<Option<Item>, StoreError>;
    fn set(&self, key: &str, value: &[u8], ttl_seconds: u32, when: Condition) -> Result<u64, StoreError>;
}

/// The capability.
pub(crate) struct Granted;

impl Vault for Granted {
    fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
        store::get(key)
    }

    fn set(&self, key: &str, value: &[u8], ttl_seconds: u32, when: Condition) -> Result<u64, StoreError> {
        store::set(key, value, ttl_seconds, when)
    }
}

/// The keys of one caller.
pub(crate) struct Keys {
    mapping: String,
    counters: String,
}

impl Keys {
    /// Callers without a principal share one mapping.
    pub(crate) fn of(principal: Option<&Principal>) -> Self {
        let caller = principal.map_or_else(|| "all".to_owned(), caller);
        Self { mapping: format!("map/{caller}"), counters: format!("next/{caller}") }
    }
}

/// A digest, for a subject may be longer than a key. No two callers have the same.
fn caller(principal: &Principal) -> String {
    let mut identity = Vec::new();
    match &principal.issuer {
        None => identity.push(0),
        Some(issuer) => {
            identity.push(1);
            identity.extend_from_slice(&(issuer.len() as u64).to_be_bytes());
            identity.extend_from_slice(issuer.as_bytes());
        }
    }
    identity.extend_from_slice(principal.subject.as_bytes());
    Sha256::digest(identity).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The number of each value in the mapping of the caller; none for what has no room. The error says why there are no numbers.
pub(crate) fn assign(
    vault: &impl Vault,
    keys: &Keys,
    ttl_seconds: u32,
    wanted: &[Wanted<'_>],
) -> Result<Vec<Option<u32>>, &'static str> {
    for _ in 0..TRIES {
        match try_assign(vault, keys, ttl_seconds, wanted) {
            Ok(numbers) => return Ok(numbers),
            Err(StoreError::Changed) => {}
            Err(StoreError::Limit(_)) => return Err("the store is full"),
            Err(StoreError::Unavailable(_)) => return Err("the store is unavailable"),
        }
    }
    Err("the store is busy")
}

fn try_assign(
    vault: &impl Vault,
    keys: &Keys,
    ttl_seconds: u32,
    wanted: &[Wanted<'_>],
) -> Result<Vec<Option<u32>>, StoreError> {
    let there = vault.get(&keys.mapping)?;
    let counters = vault.get(&keys.counters)?;
    let mut mapping = there.as_ref().map(|item| Mapping::decode(&item.value)).unwrap_or_default();
    if let Some(item) = &counters {
        mapping.continue_from(&Mapping::decode(&item.value));
    }
    let numbers = mapping.assign(wanted);
    // The counters come first: numbers that were never given out are a smaller loss than those given out twice.
    let longer = ttl_seconds.saturating_add(COUNTERS_SECONDS);
    vault.set(&keys.counters, &mapping.counters(), longer, unchanged(counters.as_ref()))?;
    vault.set(&keys.mapping, &mapping.encode(), ttl_seconds, unchanged(there.as_ref()))?;
    Ok(numbers)
}

/// The mapping of the caller, and the writing of it that was read; none if there is none. The error says that it cannot be
/// known.
pub(crate) fn load(vault: &impl Vault, keys: &Keys) -> Result<Option<(Mapping, u64)>, StoreError> {
    let item = vault.get(&keys.mapping)?;
    Ok(item.map(|item| (Mapping::decode(&item.value), item.version)))
}

/// Notes that values were used. If that fails, then somebody else has just used the mapping, or it ends a little earlier.
pub(crate) fn touch(vault: &impl Vault, keys: &Keys, ttl_seconds: u32, mapping: &Mapping, version: u64) {
    let _ = vault.set(&keys.mapping, &mapping.encode(), ttl_seconds, Condition::Version(version));
}

fn unchanged(item: Option<&Item>) -> Condition {
    item.map_or(Condition::Absent, |item| Condition::Version(item.version))
}

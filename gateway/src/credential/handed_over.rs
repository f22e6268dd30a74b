//! What a process leaves for the one that takes over from it: a few values of the store, sealed as logins are.
//!
//! The process that stops writes them before the other one serves, which takes them at its start. What nobody takes
//! expires.

use std::time::Duration;

use weir_store::{FileStore, Key, Value};
use zeroize::Zeroizing;

use super::{CredentialManager, TokenStoreError};

/// How long they wait for the process that takes them.
const KEPT: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "handed-over";

impl CredentialManager {
    /// Leaves values of one kind, in place of those that are there.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn leave(&self, kind: &str, values: Vec<Zeroizing<Vec<u8>>>) -> Result<(), TokenStoreError> {
        let store = &self.token_store.open().await?.store;
        for old in store.list(&[Key::new(NAMESPACE, &[kind])]).await? {
            store.delete(&old.key).await?;
        }
        for (at, secret) in values.into_iter().enumerate() {
            let value = Value { about: String::new(), secret };
            store.put(&Key::new(NAMESPACE, &[kind, &format!("{at:04}")]), &value, Some(KEPT)).await?;
        }
        Ok(())
    }

    /// Takes the values of a kind, which are gone then. Makes no file.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn take_left(&self, kind: &str) -> Result<Vec<Zeroizing<Vec<u8>>>, TokenStoreError> {
        let Some(path) = self.token_store.path.clone() else { return Ok(Vec::new()) };
        let listed = FileStore::peek(path, &[Key::new(NAMESPACE, &[kind])], &self.token_store.clock).await?;
        let mut values = Vec::with_capacity(listed.len());
        if !listed.is_empty() {
            let store = &self.token_store.open().await?.store;
            for left in listed {
                let entry = store.get(&left.key).await?;
                // Who has deleted it has it: two processes may start at once.
                if store.delete(&left.key).await? {
                    values.extend(entry.map(|entry| entry.value.secret));
                }
            }
        }
        Ok(values)
    }
}

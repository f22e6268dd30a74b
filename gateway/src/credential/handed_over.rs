//! What a process leaves for the one that takes over from it: a few values of the store, sealed as logins are.
//!
//! The process that stops writes them before the other one serves, which takes them at its start. What nobody takes
//! expires.

use std::time::Duration;

use weir_store::{Key, Value};
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
        for old in store.list(&[self.left(kind, None)]).await? {
            store.delete(&old.key).await?;
        }
        for (at, secret) in values.into_iter().enumerate() {
            let value = Value { about: String::new(), secret };
            store.put(&self.left(kind, Some(at)), &value, Some(KEPT)).await?;
        }
        Ok(())
    }

    /// Takes the values of a kind, which are gone then. Makes no file.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub async fn take_left(&self, kind: &str) -> Result<Vec<Zeroizing<Vec<u8>>>, TokenStoreError> {
        let listed = self.token_store.peek(&[self.left(kind, None)]).await?;
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

    /// Where the values of a kind are left, or one of them. Of a store that machines share, each gateway has its own.
    fn left(&self, kind: &str, at: Option<usize>) -> Key {
        let at = at.map(|at| format!("{at:04}"));
        let of = self.is_shared().then_some(self.gateway.as_str());
        let parts: Vec<&str> = [Some(kind), of, at.as_deref()].into_iter().flatten().collect();
        Key::new(NAMESPACE, &parts)
    }
}

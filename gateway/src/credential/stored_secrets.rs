//! Secrets that operators put into the store: `{ stored = "NAME" }` in the configuration names one.

use std::{sync::Arc, thread};

use weir_store::{Key, Secret, Value};

use crate::config::{LoginStore, StoredSecret};

use super::{TokenStoreError, token_store::TokenStore};

const NAMESPACE: &str = "secrets";

/// The secrets in a store.
#[derive(Clone)]
pub struct StoredSecrets(Arc<TokenStore>);

impl StoredSecrets {
    /// Those of this store; `plaintext` if it is unprotected. Opens nothing.
    #[must_use]
    pub fn of(store: &LoginStore, plaintext: bool) -> Self {
        Self(Arc::new(TokenStore::new(store, plaintext)))
    }

    /// Keeps a secret, in place of one with this name.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn set(&self, name: &str, secret: &Secret) -> Result<(), TokenStoreError> {
        let value = Value { about: String::new(), secret: secret.expose().as_bytes().to_vec().into() };
        self.0.open().await?.store.put(&place(name), &value, None).await?;
        Ok(())
    }

    /// The secret of this name, if there is one. Makes no store.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn get(&self, name: &str) -> Result<Option<Secret>, TokenStoreError> {
        if !self.0.place.may_hold() {
            return Ok(None);
        }
        let entry = self.0.open().await?.store.get(&place(name)).await?;
        let text = entry.and_then(|entry| String::from_utf8(entry.value.secret.to_vec()).ok());
        Ok(text.map(Secret::new))
    }

    /// The names that there are. Needs no key, and makes no store.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn names(&self) -> Result<Vec<String>, TokenStoreError> {
        let listed = self.0.peek(&[Key::new(NAMESPACE, &[])]).await?;
        let mut names: Vec<String> = listed.into_iter().filter_map(|listed| listed.key.parts().pop()).collect();
        names.sort();
        Ok(names)
    }

    /// Removes a secret. Whether it was there.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub async fn remove(&self, name: &str) -> Result<bool, TokenStoreError> {
        if !self.names().await?.iter().any(|known| known == name) {
            return Ok(false);
        }
        self.0.open().await?.store.delete(&place(name)).await?;
        Ok(true)
    }
}

fn place(name: &str) -> Key {
    Key::new(NAMESPACE, &[name])
}

/// What a configuration names. Waits for the store, from wherever it is asked.
///
/// # Errors
/// Why there is nothing.
pub fn read_stored(StoredSecret { name, store }: &StoredSecret, plaintext: bool) -> Result<Secret, String> {
    let read = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|why| why.to_string())?;
        let found = runtime.block_on(StoredSecrets::of(store, plaintext).get(name)).map_err(|why| why.to_string())?;
        found.ok_or_else(|| "the store has no secret of this name".to_owned())
    };
    // The caller may be at work in a runtime, which cannot wait within itself.
    let read = thread::scope(|scope| scope.spawn(read).join());
    read.unwrap_or_else(|_| Err("the store could not be read".to_owned()))
}

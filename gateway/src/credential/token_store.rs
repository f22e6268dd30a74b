//! What all accounts share: the store, the way to the servers, and the news.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use tokio::sync::OnceCell;
use weir_oauth::{AddressPolicy, Clock, Http, HttpError, LoginSummary, Logins, RenameError, RequestLimits};
use weir_store::{FileStore, Key, KeySources, Protection, Secret, Store, StoreError, Value};
use zeroize::Zeroizing;

use crate::config::{self, Config, SecretSource};

use super::watch::LoginChanges;

/// The store and what hangs on it. Nothing is opened before something is needed from it.
pub(super) struct TokenStore {
    pub(super) path: Option<PathBuf>,
    key: Option<SecretSource>,
    pub(super) plaintext: bool,
    pub(super) clock: Clock,
    /// The store, if it is open already.
    pub(super) opened: OnceCell<OpenedStore>,
    http: OnceLock<Http>,
    pub(super) changes: LoginChanges,
    /// Where people sign in, as far as this process serves it.
    pub(super) page: OnceLock<RegistrationPage>,
}

/// The page where people sign in.
pub(super) struct RegistrationPage {
    pub(super) url: String,
    /// Whether whoever comes there may sign in for all.
    pub(super) for_all: bool,
}

/// An open store.
pub(super) struct OpenedStore {
    pub(super) store: Arc<dyn Store>,
    pub(super) logins: Logins,
}

/// Why logins cannot be used. Holds no secret.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TokenStoreError {
    #[error("there is no place to keep logins; set `path` in the `[store]` table")]
    NoPlace,
    #[error("the key of the login store cannot be had: {0}")]
    Key(#[from] config::SecretError),
    #[error("the system has no randomness to give")]
    NoRandomness,
    #[error("the store has something else in the place of a key")]
    NoKey,
    #[error("a login is being renewed at this moment; try again")]
    Busy,
    #[error(transparent)]
    Store(Arc<StoreError>),
}

impl From<RenameError> for TokenStoreError {
    fn from(error: RenameError) -> Self {
        match error {
            RenameError::Store(error) => error.into(),
            RenameError::Busy => Self::Busy,
        }
    }
}

impl From<StoreError> for TokenStoreError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl TokenStore {
    pub(super) fn new(config: &Config, plaintext: bool) -> Self {
        Self {
            path: config.store.path.clone(),
            key: config.store.key.clone(),
            plaintext,
            clock: Clock::system(),
            opened: OnceCell::new(),
            http: OnceLock::new(),
            changes: LoginChanges::default(),
            page: OnceLock::new(),
        }
    }

    /// One that a test makes, with the time that it says.
    #[cfg(test)]
    pub(super) fn in_memory(clock: Clock) -> Self {
        let store: Arc<dyn Store> = Arc::new(weir_store::MemoryStore::new(clock.clone()));
        let opened = OpenedStore { logins: Logins::new(Arc::clone(&store), clock.clone()), store };
        Self {
            path: None,
            key: None,
            plaintext: true,
            clock,
            opened: OnceCell::new_with(Some(opened)),
            http: OnceLock::new(),
            changes: LoginChanges::default(),
            page: OnceLock::new(),
        }
    }

    /// The store, opened now if it is not yet, and made if it is not there.
    pub(super) async fn open(&self) -> Result<&OpenedStore, TokenStoreError> {
        self.opened
            .get_or_try_init(|| async {
                let path = self.path.clone().ok_or(TokenStoreError::NoPlace)?;
                let store = FileStore::open(path.clone(), self.protection(&path)?, self.clock.clone()).await?;
                let store: Arc<dyn Store> = Arc::new(store);
                Ok(OpenedStore { logins: Logins::new(Arc::clone(&store), self.clock.clone()), store })
            })
            .await
    }

    /// The key of this name: the same for all processes at this store, and for good.
    pub(super) async fn shared_key(&self, name: &str) -> Result<[u8; 32], TokenStoreError> {
        let store = self.open().await?.store.as_ref();
        let place = Key::new(name, &["1"]);
        let mut new = Zeroizing::new(vec![0; 32]);
        getrandom::fill(&mut new).map_err(|_| TokenStoreError::NoRandomness)?;
        // The first process makes it; the others lose here, and read what it has made.
        let _ = store.swap(&place, None, &Value { about: String::new(), secret: new }, None).await?;
        let entry = store.get(&place).await?;
        let key = entry.and_then(|entry| entry.value.secret.as_slice().try_into().ok());
        key.ok_or(TokenStoreError::NoKey)
    }

    /// Whether the key that the operator has named is one, and that of the store. Makes no store.
    pub(super) async fn check_key(&self) -> Result<(), TokenStoreError> {
        let Some(path) = &self.path else { return Ok(()) };
        let protection = self.protection(path)?;
        let Protection::Encrypted(KeySources { variable: Some(_), .. }) = &protection else { return Ok(()) };
        match FileStore::check_key(path.clone(), protection).await {
            Err(error @ StoreError::Key(_)) => Err(error.into()),
            // Whatever else is wrong with the store concerns nobody before a login is needed.
            Err(_) | Ok(()) => Ok(()),
        }
    }

    /// The logins in these ranges, without their secrets. Needs no key, and makes no file.
    pub(super) async fn list(&self, ranges: &[Key]) -> Result<Vec<LoginSummary>, TokenStoreError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.logins.list(ranges).await?);
        }
        let Some(path) = &self.path else { return Ok(Vec::new()) };
        let listed = FileStore::peek(path.clone(), ranges, &self.clock).await?;
        Ok(listed.iter().filter_map(LoginSummary::from_listed).collect())
    }

    /// A client that may go where `reach` says. Reading the certificates of the machine takes a while, so it is done
    /// once, and only when something is sent.
    pub(super) fn http(&self, reach: AddressPolicy) -> Result<Http, HttpError> {
        let base = match self.http.get() {
            Some(base) => base,
            None => {
                let made = Http::new(AddressPolicy::default(), RequestLimits::default(), &[])?;
                self.http.get_or_init(|| made)
            }
        };
        base.with_reach(reach)
    }

    fn protection(&self, path: &Path) -> Result<Protection, TokenStoreError> {
        if self.plaintext {
            return Ok(Protection::Plaintext);
        }
        let sources = match &self.key {
            Some(source) => {
                let key = source.read()?;
                KeySources { keyring: None, file: None, variable: Some((source.to_string(), key)) }
            }
            None => KeySources::beside(path, std::env::var("WEIR_STORE_KEY").ok().map(Secret::new)),
        };
        Ok(Protection::Encrypted(sources))
    }
}

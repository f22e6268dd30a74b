//! What all accounts share: the store, the way to the servers, and the news.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use weir_oauth::{AddressPolicy, Clock, Http, HttpError, LoginSummary, Logins, RenameError, RequestLimits};
use weir_store::{
    FileStore, Key, KeySources, Listed, Protection, RedisServer, RedisStore, Secret, Store, StoreError, Value,
};
use zeroize::Zeroizing;

use crate::config::{self, SecretSource, SharedStore};

use super::watch::LoginChanges;

/// The store and what hangs on it. Nothing is opened before something is needed from it.
pub(super) struct TokenStore {
    pub(super) place: StorePlace,
    key: Option<SecretSource>,
    pub(super) plaintext: bool,
    pub(super) clock: Clock,
    /// The store, if it is open already.
    pub(super) opened: OnceCell<OpenedStore>,
    http: OnceLock<Http>,
    pub(super) changes: LoginChanges,
    /// Whether a shared store answers, as far as it was asked.
    pub(super) standing: Mutex<StoreStanding>,
    /// Where people sign in, as far as this process serves it.
    pub(super) page: OnceLock<RegistrationPage>,
}

/// Where the store is.
pub(super) enum StorePlace {
    Nowhere,
    File(PathBuf),
    Shared(RedisServer),
}

/// What is another one whenever something was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreState {
    File(Option<(SystemTime, u64)>),
    Shared(u64),
}

/// How the store stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreStanding {
    /// It is a file, or there is none.
    #[default]
    Local,
    /// It is a file that takes nothing, for this reason.
    Unwritable(String),
    /// It was not asked yet.
    Unasked,
    /// It has not answered yet, for this reason.
    Awaited(String),
    /// It answers.
    Reached,
    /// It has answered, and does not now, for this reason.
    Away(String),
}

impl StoreStanding {
    /// Why the store does not answer, or takes nothing.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Unwritable(why) | Self::Awaited(why) | Self::Away(why) => Some(why),
            Self::Local | Self::Unasked | Self::Reached => None,
        }
    }

    /// Whether it has not answered since Weir was started.
    #[must_use]
    pub const fn is_awaited(&self) -> bool {
        matches!(self, Self::Unasked | Self::Awaited(_))
    }
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
    #[error(
        "gateways that share a store share its key: set `key` in the `[store]` table or WEIR_STORE_KEY, the same for all"
    )]
    KeyNotShared,
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

impl TokenStoreError {
    /// Whether the store is away, and what failed is worth another try soon.
    #[must_use]
    pub fn is_away(&self) -> bool {
        match self {
            Self::Store(why) => why.is_away(),
            Self::Busy => true,
            Self::NoPlace | Self::Key(_) | Self::NoRandomness | Self::NoKey | Self::KeyNotShared => false,
        }
    }

    /// Whether the store takes no value of this length.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Store(why) if matches!(**why, StoreError::TooLarge))
    }
}

impl StorePlace {
    fn of(store: &config::LoginStore) -> Self {
        // The configuration was checked when it was read.
        match (store.shared.as_ref().map(SharedStore::target), &store.path) {
            (Some(Ok(target)), _) => Self::Shared(RedisServer::new(target)),
            (None, Some(path)) => Self::File(path.clone()),
            (Some(Err(_)), _) | (None, None) => Self::Nowhere,
        }
    }

    /// Whether there may be something: a file that is not there holds nothing.
    pub(super) fn may_hold(&self) -> bool {
        match self {
            Self::Nowhere => false,
            Self::File(path) => path.exists(),
            Self::Shared(_) => true,
        }
    }
}

impl TokenStore {
    pub(super) fn new(store: &config::LoginStore, plaintext: bool) -> Self {
        let place = StorePlace::of(store);
        let standing = match place {
            StorePlace::Shared(_) => StoreStanding::Unasked,
            StorePlace::Nowhere | StorePlace::File(_) => StoreStanding::Local,
        };
        Self {
            place,
            key: store.key.clone(),
            plaintext,
            clock: Clock::system(),
            opened: OnceCell::new(),
            http: OnceLock::new(),
            changes: LoginChanges::default(),
            standing: Mutex::new(standing),
            page: OnceLock::new(),
        }
    }

    /// One that ends with this process.
    pub(super) fn in_memory(clock: Clock) -> Self {
        let store: Arc<dyn Store> = Arc::new(weir_store::MemoryStore::new(clock.clone()));
        let opened = OpenedStore { logins: Logins::new(Arc::clone(&store), clock.clone()), store };
        Self {
            place: StorePlace::Nowhere,
            key: None,
            plaintext: true,
            clock,
            opened: OnceCell::new_with(Some(opened)),
            http: OnceLock::new(),
            changes: LoginChanges::default(),
            standing: Mutex::default(),
            page: OnceLock::new(),
        }
    }

    /// The store, opened now if it is not yet, and made if it is not there.
    pub(super) async fn open(&self) -> Result<&OpenedStore, TokenStoreError> {
        self.opened
            .get_or_try_init(|| async {
                let store: Arc<dyn Store> = match &self.place {
                    StorePlace::Nowhere => return Err(TokenStoreError::NoPlace),
                    StorePlace::File(path) => {
                        let protection = self.protection(Some(path))?;
                        Arc::new(FileStore::open(path.clone(), protection, self.clock.clone()).await?)
                    }
                    StorePlace::Shared(server) => {
                        Arc::new(RedisStore::open(server.clone(), &self.protection(None)?).await?)
                    }
                };
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
        let checked = match &self.place {
            StorePlace::Nowhere => return Ok(()),
            StorePlace::Shared(server) => server.check_key(&self.protection(None)?).await,
            StorePlace::File(path) => {
                let protection = self.protection(Some(path))?;
                let Protection::Encrypted(KeySources { variable: Some(_), .. }) = &protection else { return Ok(()) };
                FileStore::check_key(path.clone(), protection).await
            }
        };
        match checked {
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
        Ok(self.peek(ranges).await?.iter().filter_map(LoginSummary::from_listed).collect())
    }

    /// What is below these keys, without what is secret. Needs no key, and makes no file.
    pub(super) async fn peek(&self, below: &[Key]) -> Result<Vec<Listed>, StoreError> {
        match &self.place {
            StorePlace::Nowhere => Ok(Vec::new()),
            StorePlace::File(path) => FileStore::peek(path.clone(), below, &self.clock).await,
            StorePlace::Shared(server) => server.list(below).await,
        }
    }

    /// Looks whether something was written since, in a namespace of a shared store or anywhere in a file.
    pub(super) async fn state(&self, namespace: &str) -> Result<StoreState, StoreError> {
        match &self.place {
            StorePlace::Nowhere => Ok(StoreState::File(None)),
            StorePlace::File(path) => {
                let data = tokio::fs::metadata(path).await.ok();
                Ok(StoreState::File(data.and_then(|data| Some((data.modified().ok()?, data.len())))))
            }
            StorePlace::Shared(server) => server.last_version(namespace).await.map(StoreState::Shared),
        }
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

    /// Nobody else has the keyring and the files of this machine, so a store without a path has its key elsewhere.
    fn protection(&self, path: Option<&Path>) -> Result<Protection, TokenStoreError> {
        if self.plaintext {
            return Ok(Protection::Plaintext);
        }
        let variable = || std::env::var("WEIR_STORE_KEY").ok().map(Secret::new);
        let sources = match (&self.key, path) {
            (Some(source), _) => {
                let key = source.read()?;
                KeySources { keyring: None, file: None, variable: Some((source.to_string(), key)) }
            }
            (None, Some(path)) => KeySources::beside(path, variable()),
            (None, None) => {
                let key = variable().ok_or(TokenStoreError::KeyNotShared)?;
                KeySources { keyring: None, file: None, variable: Some(("env WEIR_STORE_KEY".to_owned(), key)) }
            }
        };
        Ok(Protection::Encrypted(sources))
    }
}

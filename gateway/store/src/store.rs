//! The one trait of a store, and the words of its answers.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::KeyError;

/// Keeps small values under keys, for one process or for several that behave as one.
///
/// Every method may be cancelled: what it began is then either done or not done, never half.
#[async_trait]
pub trait Store: Send + Sync {
    /// What is kept under `key`, unless its time is over.
    ///
    /// # Errors
    /// If the store cannot be read, or its key does not open this value.
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError>;

    /// Keeps `value` under `key`, for good or for `ttl`, whatever was there. It is on disk when this returns.
    ///
    /// # Errors
    /// If the store cannot be written. What was there before is then still there.
    async fn put(&self, key: &Key, value: &Value, ttl: Option<Duration>) -> Result<Version, StoreError>;

    /// Does the same only if what is there has the version `expected`; `None` means that nothing may be there.
    ///
    /// # Errors
    /// If the store cannot be written.
    async fn swap(
        &self,
        key: &Key,
        expected: Option<Version>,
        value: &Value,
        ttl: Option<Duration>,
    ) -> Result<Swap, StoreError>;

    /// Forgets what is under `key`; says whether there was anything.
    ///
    /// # Errors
    /// If the store cannot be written.
    async fn delete(&self, key: &Key) -> Result<bool, StoreError>;

    /// Everything below these keys, in the order of the keys, without what is secret: this needs no encryption key.
    /// Costs as much as is found there, whatever else the store holds.
    ///
    /// # Errors
    /// If the store cannot be read.
    async fn list(&self, below: &[Key]) -> Result<Vec<Listed>, StoreError>;

    /// Tries to become the only holder of `key` for at most `ttl`; none if somebody else is.
    ///
    /// Give it back with [`release`](Self::release). A holder that dies is replaced at once where the store can tell, and
    /// else when its time is over.
    ///
    /// # Errors
    /// If the store cannot be written.
    async fn lease(&self, key: &Key, ttl: Duration) -> Result<Option<Lease>, StoreError>;

    /// Gives a lease back. Does nothing if it has passed to somebody else.
    ///
    /// # Errors
    /// If the store cannot be written; the lease then ends with its time.
    async fn release(&self, lease: Lease) -> Result<(), StoreError>;
}

/// Under what a value is kept: a namespace and the parts of a name. Never secret.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// A JSON array of strings: no part can run into the next.
    text: String,
}

impl Key {
    /// A key in `namespace`.
    pub fn new(namespace: &str, parts: &[&str]) -> Self {
        let all: Vec<&str> = std::iter::once(namespace).chain(parts.iter().copied()).collect();
        Self { text: serde_json::Value::from(all).to_string() }
    }

    /// The parts after the namespace.
    pub fn parts(&self) -> Vec<String> {
        self.all().into_iter().skip(1).collect()
    }

    /// The key that is printed so.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<String> = serde_json::from_str(text).ok()?;
        let (namespace, parts) = parts.split_first()?;
        Some(Self::new(namespace, &parts.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    pub(crate) fn all(&self) -> Vec<String> {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// What it begins with.
    pub(crate) fn namespace(&self) -> String {
        self.all().into_iter().next().unwrap_or_default()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn from_text(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    /// Whether it begins with all parts of another one and has more.
    pub fn is_below(&self, other: &Self) -> bool {
        let Range { start, end } = other.below();
        start <= self.text && self.text < end
    }

    /// The texts of all keys that begin with the parts of this one and have more.
    pub(crate) fn below(&self) -> Range<String> {
        let stem = self.text.strip_suffix(']').unwrap_or(&self.text);
        // `-` is what follows the comma in ASCII.
        format!("{stem},")..format!("{stem}-")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is kept.
#[derive(Clone)]
pub struct Value {
    /// What may be listed by anybody who can read the file: issuer, scopes, expiry. Bound to the secret, so that
    /// neither can be exchanged alone.
    pub about: String,
    /// What is encrypted.
    pub secret: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("about", &self.about).finish_non_exhaustive()
    }
}

/// Which writing of a value this is. Grows with every write in the store, so a value that was deleted and written
/// again has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub(crate) u64);

impl Version {
    /// The one of this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number, for whoever names it outside of this process.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A value as it was found.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is kept.
    pub value: Value,
    /// Of this writing.
    pub version: Version,
    /// How long it stays; none if it does not expire.
    pub left: Option<Duration>,
}

/// A value in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where it is.
    pub key: Key,
    /// See [`Value::about`].
    pub about: String,
    /// Of this writing.
    pub version: Version,
}

/// How a compare-and-swap ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swap {
    /// Written.
    Done(Version),
    /// Not written: this is there instead.
    Lost(Option<Version>),
}

/// The right to do something alone, for a while.
#[derive(Debug)]
#[must_use = "a lease that is not released keeps others waiting until its time is over"]
pub struct Lease {
    pub(crate) key: Key,
    pub(crate) version: Version,
}

/// Why a store did not do it. Never names what is kept.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The server does not answer, or cannot serve now.
    #[error("the store {place} is away ({reason}); try again in some seconds")]
    Away {
        /// Of the store.
        place: String,
        /// What was found.
        reason: String,
    },
    /// Other processes have held the file for too long.
    #[error("{0} is in use by another process and did not become free within 10 s")]
    Busy(PathBuf),
    /// The file is not what was written.
    #[error(
        "{path} is damaged ({reason}) and was left as it is; move it away to start with an empty store, and sign in again"
    )]
    Damaged {
        /// Of the store.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A value does not open with the key: it was changed, or moved here from under another name.
    #[error("an entry of {0} does not open with its key and was left as it is; sign in again to replace it")]
    Entry(String),
    /// The operating system said no.
    #[error("{path}: {reason}")]
    Io {
        /// Of the store.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
    /// The key cannot be had.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A later Weir wrote the store.
    #[error("{place} has the format {found}, and this version of weir reads up to {known}; use a newer weir")]
    Newer {
        /// Of the store.
        place: String,
        /// In the store.
        found: u32,
        /// To this program.
        known: u32,
    },
    /// Others can read the file.
    #[error("{path} can be read by others (mode {mode:o}); run `chmod 600` on it")]
    Permissions {
        /// Of the file.
        path: PathBuf,
        /// Of the file.
        mode: u32,
    },
    /// The store was made in the other way.
    #[error("{place} is {found}, but was opened as {asked}; open it as it is, or move it away")]
    Protection {
        /// Of the store.
        place: String,
        /// In the store.
        found: &'static str,
        /// By the caller.
        asked: &'static str,
    },
    /// The server does not do what a store needs.
    #[error("the store {place} refuses: {reason}")]
    Refused {
        /// Of the store.
        place: String,
        /// What it said.
        reason: String,
    },
    /// The file can be read, and not be written.
    #[error("{path} cannot be written ({reason}); what is in it is used, and nothing new is kept")]
    Sealed {
        /// Of the store.
        path: PathBuf,
        /// What the operating system said.
        reason: String,
    },
    /// A value is larger than any credential.
    #[error("a value of more than {MAX_VALUE} bytes is not kept")]
    TooLarge,
}

impl StoreError {
    /// Whether the store is away, and what failed is worth another try soon.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. } | Self::Busy(_))
    }

    pub(crate) fn entry(path: &Path) -> Self {
        Self::Entry(path.display().to_string())
    }

    pub(crate) fn io(path: &Path, error: &std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), reason: error.to_string() }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }
}

/// The largest value, both parts together. Tokens are kilobytes; a server that sends more is not helped by keeping it.
pub(crate) const MAX_VALUE: usize = 256 * 1024;

impl Value {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.about.len() + self.secret.len() > MAX_VALUE { Err(StoreError::TooLarge) } else { Ok(()) }
    }
}

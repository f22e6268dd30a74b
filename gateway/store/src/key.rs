//! The key of a store, and the places where it may be: the keyring, a file, an environment variable.

use std::{
    fmt, fs,
    io::{ErrorKind, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::Secret;

mod keyring;

/// 32 random bytes.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; 32]>);

/// Where to look for a key, in this order. One that is there wins over one that would have to be made; a new one is
/// made in the keyring, or in the file where there is none.
#[derive(Clone, Debug, Default)]
pub struct KeySources {
    /// The service and the account in the keyring of the operating system.
    pub keyring: Option<(String, String)>,
    /// A file of mode 0600.
    pub file: Option<PathBuf>,
    /// Where the caller has read a key, such as `env NAME`, and what was there.
    pub variable: Option<(String, Secret)>,
}

/// Why there is no key. Never holds one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// There is a key, but the store was made with another one.
    #[error(
        "no key opens the store: tried {0}; unlock the keyring or give back the key it was made with, or move the store away and sign in again"
    )]
    NoneFits(String),
    /// There is no key, and none may be made where Weir was told to look.
    #[error("there is no key for the store: {0}")]
    NoPlace(String),
    /// What is there is no key.
    #[error("{0} holds no key: it must be 32 bytes in base64, as `openssl rand -base64 32` makes them")]
    Malformed(String),
    /// Others can read it.
    #[error("{path} can be read by others (mode {mode:o}); run `chmod 600` on it")]
    Permissions {
        /// Of the key.
        path: PathBuf,
        /// Of the file.
        mode: u32,
    },
    /// The operating system said no.
    #[error("{0}")]
    Io(String),
}

impl MasterKey {
    /// A new one.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn random() -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new([0; 32]);
        SystemRandom::new()
            .fill(bytes.as_mut_slice())
            .map_err(|_| KeyError::Io("the system has no random numbers for a key".to_owned()))?;
        Ok(Self(bytes))
    }

    /// From base64 of either alphabet, with or without padding; `place` is named in the error.
    ///
    /// # Errors
    /// If it is not that.
    pub fn parse(text: &str, place: &str) -> Result<Self, KeyError> {
        let either = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let text = text.trim();
        let bytes = [&alphabet::STANDARD, &alphabet::URL_SAFE]
            .iter()
            .find_map(|letters| GeneralPurpose::new(letters, either).decode(text).ok())
            .map(Zeroizing::new)
            .ok_or_else(|| KeyError::Malformed(place.to_owned()))?;
        let key = bytes.as_slice().try_into().map_err(|_| KeyError::Malformed(place.to_owned()))?;
        Ok(Self(Zeroizing::new(key)))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    fn render(&self) -> Zeroizing<String> {
        Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(self.bytes()))
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey")
    }
}

impl KeySources {
    /// The usual places for the store at `path`: the keyring entry `weir`, the file `<path>.key`, and the value of
    /// `WEIR_STORE_KEY` if the caller found one.
    pub fn beside(path: &Path, variable: Option<Secret>) -> Self {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".key");
        Self {
            keyring: Some(("weir".to_owned(), path.display().to_string())),
            file: Some(path.with_file_name(name)),
            variable: variable.map(|value| ("env WEIR_STORE_KEY".to_owned(), value)),
        }
    }

    /// Whether all that is there are keys. Blocks the thread.
    pub(crate) fn check(&self) -> Result<(), KeyError> {
        self.there().map(drop)
    }

    /// The key of an existing store: the first that `fits`. Blocks the thread.
    pub(crate) fn find(&self, fits: impl Fn(&MasterKey) -> bool) -> Result<MasterKey, KeyError> {
        let mut tried = Vec::new();
        for (place, key) in self.there()? {
            if fits(&key) {
                return Ok(key);
            }
            tried.push(format!("{place} (another key)"));
        }
        if tried.is_empty() {
            tried.push(format!("{} (no key there)", self.places()));
        }
        Err(KeyError::NoneFits(tried.join(", ")))
    }

    /// The key for a new store. Blocks the thread; the caller sees to it that nobody else makes one.
    pub(crate) fn find_or_make(&self) -> Result<MasterKey, KeyError> {
        if let Some((_, key)) = self.there()?.into_iter().next() {
            return Ok(key);
        }
        let key = MasterKey::random()?;
        if let Some((service, account)) = &self.keyring
            && keyring::write(service, account, &key.render())
        {
            return Ok(key);
        }
        match &self.file {
            Some(path) => make_file(path, &key).map(|()| key),
            None => Err(KeyError::NoPlace(self.places())),
        }
    }

    /// All keys that are there, in order.
    fn there(&self) -> Result<Vec<(String, MasterKey)>, KeyError> {
        let mut keys = Vec::new();
        if let Some((service, account)) = &self.keyring
            && let Some(text) = keyring::read(service, account)
        {
            let place = format!("keyring entry {service}");
            keys.push((place.clone(), MasterKey::parse(&text, &place)?));
        }
        if let Some(path) = &self.file
            && let Some(text) = read_file(path)?
        {
            let place = format!("file {}", path.display());
            keys.push((place.clone(), MasterKey::parse(&text, &place)?));
        }
        if let Some((place, value)) = &self.variable {
            keys.push((place.clone(), MasterKey::parse(value.expose(), place)?));
        }
        Ok(keys)
    }

    fn places(&self) -> String {
        let keyring = self.keyring.as_ref().map(|(service, _)| format!("keyring entry {service}"));
        let file = self.file.as_ref().map(|path| format!("file {}", path.display()));
        let variable = self.variable.as_ref().map(|(place, _)| place.clone());
        let all: Vec<String> = [keyring, file, variable].into_iter().flatten().collect();
        if all.is_empty() { "nowhere to look for one".to_owned() } else { all.join(", ") }
    }
}

fn read_file(path: &Path) -> Result<Option<Zeroizing<String>>, KeyError> {
    let io = |error: &std::io::Error| KeyError::Io(format!("{}: {error}", path.display()));
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(&error)),
    };
    let about = file.metadata().map_err(|error| io(&error))?;
    if about.mode() & 0o077 != 0 {
        return Err(KeyError::Permissions { path: path.to_owned(), mode: about.mode() & 0o777 });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(1024).read_to_string(&mut text).map_err(|error| io(&error))?;
    Ok(Some(text))
}

fn make_file(path: &Path, key: &MasterKey) -> Result<(), KeyError> {
    let io = |error: std::io::Error| KeyError::Io(format!("{}: {error}", path.display()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
    let text = key.render();
    file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n")).and_then(|()| file.sync_all()).map_err(io)
}

#[cfg(test)]
mod tests;

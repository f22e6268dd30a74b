//! The places that values come from which must not be seen.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;
use zeroize::Zeroizing;

use super::{Environment, Secret, SystemEnvironment};

/// Where a secret is found when it is needed. Its `Display` names the place, never the secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file, read anew each time so that the secret can be rotated.
    File(PathBuf),
}

/// Why a secret cannot be had. Names its source, never its content.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SecretError {
    /// It has a character in it that no header may carry (RFC 9110 §5.5).
    #[error("{0} holds a line break or another character that is not printable ASCII")]
    Character(SecretSource),
    /// There is nothing in it.
    #[error("{0} is empty")]
    Empty(SecretSource),
    /// The variable is not set.
    #[error("{0} is not set")]
    Missing(SecretSource),
    /// It is not UTF-8.
    #[error("{0} is not UTF-8 text")]
    NotText(SecretSource),
    /// The file cannot be read, for this reason.
    #[error("{0} cannot be read: {1}")]
    Unreadable(SecretSource, String),
}

impl SecretSource {
    /// Reads the secret from this process's environment or file system, without the line break that ends most files.
    ///
    /// # Errors
    /// If it is missing, empty, or nothing that a header could carry.
    pub fn read(&self) -> Result<Secret, SecretError> {
        self.read_in(&SystemEnvironment)
    }

    /// Reads the secret from the environment given, in the same way.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_in(&self, environment: &dyn Environment) -> Result<Secret, SecretError> {
        let secret = self.text(environment)?;
        if !secret.is_printable() {
            return Err(SecretError::Character(self.clone()));
        }
        Ok(secret)
    }

    /// Reads a secret of several lines, such as a key in PEM, from this process's environment or file system.
    ///
    /// # Errors
    /// If it is missing, empty or no text.
    pub fn read_document(&self) -> Result<Secret, SecretError> {
        self.text(&SystemEnvironment)
    }

    /// The text found there, one final line break removed; it may have more of them inside, but is not empty.
    pub(super) fn text(&self, environment: &dyn Environment) -> Result<Secret, SecretError> {
        let text = match self {
            Self::Env(name) => environment
                .variable(name)
                .ok_or_else(|| SecretError::Missing(self.clone()))?
                .into_string()
                .map_err(|_| SecretError::NotText(self.clone()))?,
            Self::File(path) => {
                let bytes =
                    environment.file(path).map_err(|error| SecretError::Unreadable(self.clone(), reason(&error)))?;
                String::from_utf8(bytes).map_err(|_| SecretError::NotText(self.clone()))?
            }
        };
        let mut text = Zeroizing::new(text);
        let kept = text.strip_suffix('\n').map_or(text.len(), |line| line.strip_suffix('\r').unwrap_or(line).len());
        text.truncate(kept);
        if text.is_empty() {
            return Err(SecretError::Empty(self.clone()));
        }
        Ok(text.into())
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
        }
    }
}

/// An operating system's reason in words that do not change between systems.
pub(super) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::FileTooLarge => "it is larger than 1 MiB".to_owned(),
        other => other.to_string(),
    }
}

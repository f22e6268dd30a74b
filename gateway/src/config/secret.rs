//! The places that values come from which must not be seen.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use super::{Environment, FetchedSecret, Secret, SystemEnvironment};

/// Where a secret is found when it is needed. Its `Display` names the place, never the secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SecretSource {
    /// An environment variable.
    Env(String),
    /// A file, read anew each time so that the secret can be rotated.
    File(PathBuf),
    /// What was fetched when the configuration was loaded.
    Fetched(Arc<FetchedSecret>),
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
    /// The command or the store has given nothing, for this reason.
    #[error("{0} gives no secret: {1}")]
    Failed(SecretSource, String),
    /// It is not UTF-8.
    #[error("{0} is not UTF-8 text")]
    NotText(SecretSource),
    /// The file cannot be read, for this reason.
    #[error("{0} cannot be read: {1}")]
    Unreadable(SecretSource, String),
}

impl SecretSource {
    /// Reads the secret from this process's environment or file system, without the line break that ends most files.
    /// Fetches nothing: what was fetched last counts.
    ///
    /// # Errors
    /// If it is missing, empty, or nothing that a header could carry.
    pub fn read(&self) -> Result<Secret, SecretError> {
        self.printable(self.now()?)
    }

    /// Reads the secret from the environment given, in the same way.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_in(&self, environment: &dyn Environment) -> Result<Secret, SecretError> {
        self.printable(self.text(environment)?)
    }

    /// Reads a secret of several lines, such as a key in PEM, from this process's environment or file system.
    ///
    /// # Errors
    /// If it is missing, empty or no text.
    pub fn read_document(&self) -> Result<Secret, SecretError> {
        self.now()
    }

    /// An upstream has refused the secret. It is fetched again some seconds later, and a file is read anew anyway.
    pub fn refused(&self) {
        if let Self::Fetched(source) = self {
            source.refused();
        }
    }

    fn printable(&self, secret: Secret) -> Result<Secret, SecretError> {
        if !secret.is_printable() {
            return Err(SecretError::Character(self.clone()));
        }
        Ok(secret)
    }

    fn now(&self) -> Result<Secret, SecretError> {
        match self {
            Self::Fetched(source) => self.trimmed(source.last().ok_or_else(|| SecretError::Missing(self.clone()))?),
            Self::Env(_) | Self::File(_) => self.text(&SystemEnvironment),
        }
    }

    /// The text found there, one final line break removed; it may have more of them inside, but is not empty.
    pub(super) fn text(&self, environment: &dyn Environment) -> Result<Secret, SecretError> {
        let not_text = || SecretError::NotText(self.clone());
        let text = match self {
            Self::Env(name) => {
                let value = environment.variable(name).ok_or_else(|| SecretError::Missing(self.clone()))?;
                Secret::new(value.into_string().map_err(|_| not_text())?)
            }
            Self::File(path) => {
                let bytes =
                    environment.file(path).map_err(|error| SecretError::Unreadable(self.clone(), reason(&error)))?;
                Secret::new(String::from_utf8(bytes).map_err(|_| not_text())?)
            }
            Self::Fetched(source) => {
                environment.fetched(source).map_err(|why| SecretError::Failed(self.clone(), why))?
            }
        };
        self.trimmed(text)
    }

    fn trimmed(&self, text: Secret) -> Result<Secret, SecretError> {
        let text = text.expose();
        let line = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
        if line.is_empty() {
            return Err(SecretError::Empty(self.clone()));
        }
        Ok(Secret::new(line.to_owned()))
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Fetched(source) => write!(f, "{source}"),
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

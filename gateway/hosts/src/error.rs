//! What can go wrong, with the place and the remedy.

use thiserror::Error;

/// Why a host's file cannot be read. It never quotes values, which may be secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {problem}. {remedy}")]
pub struct ReadError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub problem: String,
    /// What the user can do.
    pub remedy: String,
}

/// Why an entry cannot be written or removed. The file stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EditError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file has an entry of this name for something else.
    #[error("`{name}` already names another server. Choose another name, or remove that entry first")]
    Taken {
        /// The name.
        name: String,
    },
    /// Weir cannot change a file of this form without touching the rest of it.
    #[error("{problem}. Edit the file by hand. The entry is:\n{snippet}")]
    Form {
        /// What Weir cannot change.
        problem: String,
        /// The text to paste; or the name of the entry to delete.
        snippet: String,
    },
    /// The host starts servers as commands only.
    #[error("{host} starts MCP servers as commands only. Give the command that runs `weir connect URL`")]
    NeedsCommand {
        /// The host's title.
        host: &'static str,
    },
    /// The host takes tokens from the environment only.
    #[error("{host} reads tokens from the environment only. Give the name of a variable that holds the token")]
    NeedsVariable {
        /// The host's title.
        host: &'static str,
    },
    /// The host cannot take a header from the environment.
    #[error("{host} cannot read a token from the environment. Give the token as text, or sign in with OAuth")]
    NoReference {
        /// The host's title.
        host: &'static str,
    },
}

//! The variables and files that a configuration refers to, behind a trait so that tests need no real ones.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid};

use super::{FetchedSecret, Secret};

/// The largest file that is read for a configuration, in bytes. Nobody writes more by hand or keeps a token longer.
pub(super) const FILE_LIMIT: u64 = 1 << 20;

/// Where the values come from that a configuration only names.
pub trait Environment {
    /// The environment variable of this name.
    fn variable(&self, name: &str) -> Option<OsString>;

    /// The content of a file.
    ///
    /// # Errors
    /// Whatever keeps it from being read, its size included.
    fn file(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// What a command prints or the store holds, as it was fetched last if that is not long ago.
    ///
    /// # Errors
    /// Why there is nothing, without anything that is secret.
    fn fetched(&self, source: &FetchedSecret) -> Result<Secret, String>;

    /// The names of all environment variables, those that are no text left out.
    fn names(&self) -> Vec<String>;

    /// Whether there is a file or directory at this path.
    fn exists(&self, path: &Path) -> bool;

    /// Whether there is a directory at this path.
    fn is_directory(&self, path: &Path) -> bool;

    /// Whether there is a program at this path.
    fn is_program(&self, path: &Path) -> bool;

    /// The user of this name.
    fn user(&self, name: &str) -> Option<SystemUser>;

    /// Whether Weir may start programs as another user.
    fn may_change_user(&self) -> bool;
}

/// A user of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemUser {
    /// What the system knows the user by.
    pub name: String,
    /// The home directory.
    pub home: PathBuf,
    /// The login shell.
    pub shell: PathBuf,
}

/// The environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn variable(&self, name: &str) -> Option<OsString> {
        // std::env::var_os may panic on a name that no variable can have.
        (!name.is_empty() && !name.contains(['=', '\0'])).then(|| std::env::var_os(name))?
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        let file = File::open(path)?;
        file.take(FILE_LIMIT + 1).read_to_end(&mut content)?;
        if content.len() as u64 > FILE_LIMIT {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "file is larger than 1 MiB"));
        }
        Ok(content)
    }

    fn fetched(&self, source: &FetchedSecret) -> Result<Secret, String> {
        source.fetch()
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn is_program(&self, path: &Path) -> bool {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    }
    fn user(&self, name: &str) -> Option<SystemUser> {
        let found = User::from_name(name).ok().flatten()?;
        Some(SystemUser { name: found.name, home: found.dir, shell: found.shell })
    }

    fn may_change_user(&self) -> bool {
        cfg!(target_os = "linux") && geteuid().is_root()
    }
}

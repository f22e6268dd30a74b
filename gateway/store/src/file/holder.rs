//! What shows that the holder of a lease lives: a file beside the store that it keeps locked.
//!
//! The lock ends with its process, in whatever way that ends, so whoever waits for the lease need not wait for its time.
//! Only a file that is there and not locked says that; where it cannot be made, or is gone, the time of the lease counts.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use crate::Version;

use super::lock::{NO_LINK, open_no_link};

/// The file of a lease that is held here, locked until this is dropped.
#[derive(Debug)]
pub(super) struct Holder(#[expect(dead_code, reason = "closing it gives the lock back")] File);

impl Holder {
    /// Shows that the lease that was written as `version` is held.
    pub(super) fn of(store: &Path, version: Version) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK);
        let file = file.open(path(store, version))?;
        file.try_lock()?;
        Ok(Self(file))
    }
}

/// Whether it is certain that the holder of the lease has died.
pub(super) fn has_died(store: &Path, version: Version) -> bool {
    open_no_link(&path(store, version)).is_ok_and(|file| file.try_lock().is_ok())
}

/// Removes the file of a lease that has ended.
pub(super) fn forget(store: &Path, version: Version) {
    let _ = fs::remove_file(path(store, version));
}

fn path(store: &Path, Version(version): Version) -> PathBuf {
    let mut name = store.file_name().unwrap_or_default().to_owned();
    name.push(format!(".lease-{version}"));
    store.with_file_name(name)
}

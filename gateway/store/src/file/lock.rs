//! The lock for which processes wait in turn.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::ErrorKind,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{fs::OFlags, io::Errno};

use crate::StoreError;

/// How long to wait for the others. They hold the lock for milliseconds; one that holds it for longer is stopped in a
/// debugger, or on a file system that hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to look whether the lock is free.
const LOOK: Duration = Duration::from_millis(3);

/// Whoever may write into the folder must not choose by a link which file is made or opened, or wait behind a pipe.
pub(super) const NO_LINK: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// A lock on the file beside the store, given back when dropped or when the process ends in whatever way. None where there
/// is no such file and none can be made: then nobody writes there.
pub(super) struct FileLock(#[expect(dead_code, reason = "closing it gives the lock back")] Option<File>);

impl FileLock {
    /// Waits until nobody else has it. Blocks the thread.
    pub(super) fn exclusive(store: &Path) -> Result<Self, StoreError> {
        take(store, File::try_lock)
    }

    /// Waits until nobody has it exclusively. Blocks the thread.
    pub(super) fn shared(store: &Path) -> Result<Self, StoreError> {
        take(store, File::try_lock_shared)
    }
}

fn take(store: &Path, lock: impl Fn(&File) -> Result<(), TryLockError>) -> Result<FileLock, StoreError> {
    let mut name = store.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let path = store.with_file_name(name);
    let Some(file) = open(&path).map_err(|error| StoreError::io(&path, &explained(error)))? else {
        return Ok(FileLock(None));
    };
    let since = Instant::now();
    loop {
        match lock(&file) {
            Ok(()) => return Ok(FileLock(Some(file))),
            Err(TryLockError::WouldBlock) if since.elapsed() < PATIENCE => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy(store.to_owned())),
            Err(TryLockError::Error(error)) => return Err(StoreError::io(&path, &error)),
        }
    }
}

/// A reader that may not write here can still lock what is there.
fn open(path: &Path) -> std::io::Result<Option<File>> {
    let mut writable = OpenOptions::new();
    writable.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_LINK);
    match writable.open(path) {
        Err(error) if is_sealed(error.kind()) => match open_no_link(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        },
        other => other.map(Some),
    }
}

fn explained(error: std::io::Error) -> std::io::Error {
    match error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        true => std::io::Error::other("it is a symbolic link, which is not followed; remove it"),
        false => error,
    }
}

/// Opens what is there, to be locked.
pub(super) fn open_no_link(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NO_LINK).open(path)
}

/// Whether that means that nothing can be written here.
pub(super) fn is_sealed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

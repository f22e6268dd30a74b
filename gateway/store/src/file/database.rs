//! One transaction on the file: lock, open, do it, close.

use std::path::Path;

use redb::{
    Database, DatabaseError, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable, StorageError,
    WriteTransaction,
};

use crate::StoreError;

use super::{
    FILE, FORMAT,
    lock::{FileLock, is_sealed},
};

/// What the database may keep of the file in memory while it is open: all of any sensible store.
const CACHE: usize = 1 << 20;

pub(super) fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

/// Changes the file, all or nothing; on disk when this returns.
pub(super) fn write<T>(
    path: &Path,
    work: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let _lock = FileLock::exclusive(path)?;
    transact(path, &open(path)?, work)
}

pub(super) fn transact<T>(
    path: &Path,
    db: &Database,
    work: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let tx = db.begin_write().map_err(|e| error(path, e))?;
    let done = work(&tx)?;
    tx.commit().map_err(|e| error(path, e))?;
    Ok(done)
}

/// Reads the file beside other readers.
pub(super) fn read<T>(
    path: &Path,
    work: impl FnOnce(&ReadTransaction) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    {
        let _lock = FileLock::shared(path)?;
        if let Some(db) = open_read_only(path)? {
            return work(&db.begin_read().map_err(|e| error(path, e))?);
        }
    }
    let _lock = FileLock::exclusive(path)?;
    match open_read_only(path)? {
        Some(db) => work(&db.begin_read().map_err(|e| error(path, e))?),
        None => work(&open(path)?.begin_read().map_err(|e| error(path, e))?),
    }
}

/// None if a process was killed while it wrote: whoever may write puts that right when opening.
fn open_read_only(path: &Path) -> Result<Option<ReadOnlyDatabase>, StoreError> {
    not_empty(path)?;
    match builder().open_read_only(path) {
        Ok(db) => Ok(Some(db)),
        Err(DatabaseError::RepairAborted) => Ok(None),
        Err(other) => Err(error(path, other)),
    }
}

pub(super) fn format(path: &Path, tx: &ReadTransaction) -> Result<u32, StoreError> {
    known_format(path, &tx.open_table(FILE).map_err(|e| error(path, e))?)
}

/// The format of the file. Another process may have replaced it by one of a newer version at any time.
pub(super) fn known_format(
    path: &Path,
    about: &impl ReadableTable<&'static str, &'static [u8]>,
) -> Result<u32, StoreError> {
    let value = about.get("format").map_err(|e| error(path, e))?;
    let found = value.and_then(|value| value.value().try_into().ok()).map(u32::from_be_bytes);
    match found {
        Some(found) if found <= FORMAT => Ok(found),
        Some(found) => Err(StoreError::Newer { place: path.display().to_string(), found, known: FORMAT }),
        None => Err(StoreError::damaged(path, "its head is not whole")),
    }
}

fn open(path: &Path) -> Result<Database, StoreError> {
    not_empty(path)?;
    builder().open(path).map_err(|why| match why {
        DatabaseError::Storage(StorageError::Io(why)) if is_sealed(why.kind()) => {
            StoreError::Sealed { path: path.to_owned(), reason: why.kind().to_string() }
        }
        why => error(path, why),
    })
}

/// The database would take an empty file for a new one.
fn not_empty(path: &Path) -> Result<(), StoreError> {
    let length = std::fs::metadata(path).map_err(|error| StoreError::io(path, &error))?.len();
    if length == 0 { Err(StoreError::damaged(path, "it is empty")) } else { Ok(()) }
}

/// What an error of the database means for the owner of the file.
pub(super) fn error(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => StoreError::Busy(path.to_owned()),
        redb::Error::Io(error)
            if matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof) =>
        {
            StoreError::damaged(path, error.to_string())
        }
        redb::Error::Io(error) => StoreError::io(path, &error),
        other => StoreError::damaged(path, other.to_string()),
    }
}

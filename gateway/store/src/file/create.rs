//! The beginning of a store: a new file, or a look at what is there.

use std::{
    fs::{self, File},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use crate::{Protection, StoreError, seal::ValueCipher};

use super::{ENTRIES, FILE, FORMAT, database};

pub(super) fn create_folder(path: &Path) -> Result<(), StoreError> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| StoreError::io(folder, &error)),
        _ => Ok(()),
    }
}

/// Makes the file under another name and moves it, so that there is either a whole store or none.
pub(super) fn create(path: &Path, protection: &Protection) -> Result<ValueCipher, StoreError> {
    let seal = match protection {
        Protection::Plaintext => ValueCipher::Plaintext,
        Protection::Encrypted(sources) => ValueCipher::Encrypted(sources.find_or_make()?),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let io = |error: std::io::Error| StoreError::io(&new, &error);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new).map_err(io)?;
    let db = database::builder().create_file(file).map_err(|e| database::error(&new, e))?;
    database::transact(&new, &db, |tx| {
        let mut about = tx.open_table(FILE).map_err(|e| database::error(&new, e))?;
        tx.open_table(ENTRIES).map_err(|e| database::error(&new, e))?;
        let check = seal.check().map_err(|()| io(std::io::Error::other("no random numbers to encrypt with")))?;
        for (name, value) in
            [("format", FORMAT.to_be_bytes().as_slice()), ("protection", seal.name().as_bytes()), ("check", &check)]
        {
            about.insert(name, value).map_err(|e| database::error(&new, e))?;
        }
        Ok(())
    })?;
    drop(db);
    fs::rename(&new, path).map_err(io)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| StoreError::io(folder, &error))?;
    Ok(seal)
}

pub(super) fn seal_of_existing(path: &Path, protection: &Protection) -> Result<ValueCipher, StoreError> {
    let found = fs::metadata(path).map_err(|error| StoreError::io(path, &error))?;
    if !found.is_file() {
        return Err(StoreError::damaged(path, "it is no regular file"));
    }
    if found.mode() & 0o077 != 0 {
        return Err(StoreError::Permissions { path: path.to_owned(), mode: found.mode() & 0o777 });
    }
    let (name, check) = database::read(path, |tx| {
        database::format(path, tx)?;
        let about = tx.open_table(FILE).map_err(|e| database::error(path, e))?;
        let value = |name: &str| {
            let value = about.get(name).map_err(|e| database::error(path, e))?;
            value.map(|value| value.value().to_vec()).ok_or_else(|| StoreError::damaged(path, "its head is not whole"))
        };
        Ok((value("protection")?, value("check")?))
    })?;
    let unknown = || StoreError::damaged(path, "its protection is unknown");
    ValueCipher::of_existing(&path.display().to_string(), &name, &check, protection).ok_or_else(unknown)?
}

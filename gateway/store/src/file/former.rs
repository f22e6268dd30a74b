//! Format 1, which kept a login under its upstream, then its issuer, then its owner. The logins of one owner were no range.
//!
//! ```text
//! format 1    [login, upstream, issuer]            [login, upstream, issuer, owner's issuer, subject]
//! format 2    [login, upstream, shared, issuer]    [login, upstream, principal, owner's issuer, subject, issuer]
//! ```

use std::path::Path;

use redb::{ReadableTable, WriteTransaction};

use crate::{Key, StoreError, Value, seal::ValueCipher};

use super::{
    ENTRIES, FILE, FORMAT, database,
    record::{self, FileRecord},
};

/// What is kept for an owner, an upstream and an issuer.
const NAMESPACES: [&str; 2] = ["login", "wanted"];

/// Where format 1 has what is under this key now; none for what has not moved.
pub(super) fn of_current(key: &Key) -> Option<Key> {
    rename(key, |parts| match parts {
        [upstream, "shared", issuer] => Some(vec![upstream, issuer]),
        [upstream, "principal", of, subject, issuer] => Some(vec![upstream, issuer, of, subject]),
        _ => None,
    })
}

/// Where what format 1 has under this key is now; none for what has not moved.
pub(super) fn to_current(key: &Key) -> Option<Key> {
    rename(key, |parts| match parts {
        [upstream, issuer] => Some(vec![upstream, "shared", issuer]),
        [upstream, issuer, of, subject] => Some(vec![upstream, "principal", of, subject, issuer]),
        _ => None,
    })
}

fn rename(key: &Key, parts: impl for<'a> Fn(&[&'a str]) -> Option<Vec<&'a str>>) -> Option<Key> {
    let all = key.all();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let (namespace, rest) = all.split_first().filter(|(namespace, _)| NAMESPACES.contains(namespace))?;
    Some(Key::new(namespace, &parts(rest)?))
}

/// Makes a file of format 1 one of format 2. What does not open with its key moves as it is, and does not open there.
pub(super) fn replace(path: &Path, seal: &ValueCipher, tx: &WriteTransaction) -> Result<(), StoreError> {
    let mut about = tx.open_table(FILE).map_err(|e| database::error(path, e))?;
    if database::known_format(path, &about)? == FORMAT {
        return Ok(());
    }
    let mut entries = tx.open_table(ENTRIES).map_err(|e| database::error(path, e))?;
    let mut moved = Vec::new();
    for row in entries.iter().map_err(|e| database::error(path, e))? {
        let (key, bytes) = row.map_err(|e| database::error(path, e))?;
        let key = Key::from_text(key.value());
        if let Some(to) = to_current(&key) {
            moved.push((key, to, bytes.value().to_vec()));
        }
    }
    for (key, to, bytes) in moved {
        entries.remove(key.text()).map_err(|e| database::error(path, e))?;
        let bytes = sealed_anew(seal, &key, &to, &bytes).unwrap_or(bytes);
        entries.insert(to.text(), bytes.as_slice()).map_err(|e| database::error(path, e))?;
    }
    about.insert("format", FORMAT.to_be_bytes().as_slice()).map_err(|e| database::error(path, e))?;
    Ok(())
}

fn sealed_anew(seal: &ValueCipher, key: &Key, to: &Key, bytes: &[u8]) -> Option<Vec<u8>> {
    let record = FileRecord::parse(bytes)?;
    let value = Value { about: record.about.to_owned(), secret: record.open(seal, key)? };
    record::render(seal, to, &value, record.version, record.until).ok()
}

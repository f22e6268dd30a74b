//! The bytes of an entry: what anybody may read, then what is sealed and bound to it.
//!
//! ```text
//! version u64 · until u64 in ms since 1970, 0 for ever · length of about u32 · about · sealed
//! ```

use zeroize::Zeroizing;

use crate::{
    Key, Value, Version,
    seal::{ValueCipher, bound},
};

/// An entry as it is in the file.
pub(super) struct FileRecord<'a> {
    pub(super) version: Version,
    pub(super) until: Option<u64>,
    pub(super) about: &'a str,
    /// Everything before what is sealed.
    head: &'a [u8],
    sealed: &'a [u8],
}

impl<'a> FileRecord<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first_chunk()?;
        let (until, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (about, sealed) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        Some(Self {
            version: Version(u64::from_be_bytes(*version)),
            until: Some(u64::from_be_bytes(*until)).filter(|until| *until != 0),
            about: std::str::from_utf8(about).ok()?,
            head: bytes.get(..bytes.len() - sealed.len())?,
            sealed,
        })
    }

    pub(super) fn open(&self, seal: &ValueCipher, key: &Key) -> Option<Zeroizing<Vec<u8>>> {
        seal.open(&bound(key, self.head), self.sealed)
    }
}

/// Whether the time of an entry has passed. Of one that is not whole this is not known, so it stays.
pub(super) fn is_over(bytes: &[u8], now: u64) -> bool {
    FileRecord::parse(bytes).and_then(|record| record.until).is_some_and(|until| until <= now)
}

/// An entry for the file.
pub(super) fn render(
    seal: &ValueCipher,
    key: &Key,
    value: &Value,
    version: Version,
    until: Option<u64>,
) -> Result<Vec<u8>, ()> {
    let length = u32::try_from(value.about.len()).map_err(|_| ())?;
    let mut bytes = Vec::with_capacity(64 + value.about.len() + value.secret.len());
    bytes.extend_from_slice(&version.0.to_be_bytes());
    bytes.extend_from_slice(&until.unwrap_or(0).to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(value.about.as_bytes());
    let sealed = seal.close(&bound(key, &bytes), &value.secret)?;
    bytes.extend_from_slice(&sealed);
    Ok(bytes)
}

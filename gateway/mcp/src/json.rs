//! JSON as bytes: checked once, then only looked at.
//!
//! Weir hands messages on; it does not own them. A parser that builds values loses what the sender wrote (the digits
//! of `1e400`, the order of keys, a key given twice), so here a document is checked against RFC 8259 and afterwards
//! read through slices of the bytes that came in. Where a key occurs twice in one object the last one counts, as it
//! does for `JSON.parse` and `serde_json`: an upstream must never read another value than the one that was checked.

mod plain;
mod scan;
mod text;

use std::borrow::Cow;

use thiserror::Error;

pub(crate) use scan::{Scanner, Span, Stop};
pub use text::quote;

/// How deep objects and arrays may nest, the outermost counted. Deeper documents are refused.
pub const MAX_DEPTH: usize = 512;

/// Why a document is not acceptable JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JsonError {
    /// The bytes break the grammar of RFC 8259, or are not UTF-8.
    #[error("not valid JSON at byte {offset}: {what}")]
    Syntax {
        /// Where, in bytes from the start.
        offset: usize,
        /// What is wrong there; never a part of the document.
        what: &'static str,
    },
    /// Objects and arrays nest deeper than [`MAX_DEPTH`].
    #[error("JSON nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// Checks that `bytes` are exactly one JSON document: UTF-8, RFC 8259, at most [`MAX_DEPTH`] deep.
///
/// Unpaired surrogate escapes are let through, since the grammar allows them.
pub fn scan(bytes: &[u8]) -> Result<(), JsonError> {
    check_utf8(bytes)?;
    let mut scanner = Scanner::new(bytes);
    scanner.value(0).and_then(|_| scanner.end()).map_err(|stop| scanner.why(stop))
}

/// Checks that `bytes` are UTF-8, for scans that leave it to their caller.
pub(crate) fn check_utf8(bytes: &[u8]) -> Result<(), JsonError> {
    if simdutf8::basic::from_utf8(bytes).is_ok() {
        return Ok(());
    }
    let offset = std::str::from_utf8(bytes).err().map_or(0, |e| e.valid_up_to());
    Err(JsonError::Syntax { offset, what: "not UTF-8" })
}

/// The elements of an array, as raw JSON. For a value that is no array there are none.
///
/// `raw_array` must be part of a document that has been checked; on anything else the walk ends at the first fault.
pub fn elements(raw_array: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut scanner = Scanner::new(raw_array);
    let mut more = scanner.open(b'[', b']').unwrap_or(false);
    std::iter::from_fn(move || {
        if !more {
            return None;
        }
        let value = scanner.value(1).ok()?;
        more = scanner.more(b']').unwrap_or(false);
        value.of(raw_array)
    })
}

/// The members of an object in order, as decoded key and raw value. For a value that is no object there are none.
///
/// Keys given twice come twice. An unpaired surrogate in a key becomes U+FFFD. The same conditions hold as for
/// [`elements`].
pub fn members(raw_object: &[u8]) -> impl Iterator<Item = (Cow<'_, str>, &[u8])> {
    spans(raw_object).filter_map(|member| {
        let key = text::decode_lossy(member.key.of(raw_object)?);
        Some((key, member.value.of(raw_object)?))
    })
}

/// The raw value at `path` below an object; the last one where a key occurs twice. The object itself if `path` is empty.
///
/// The same conditions hold as for [`elements`].
pub fn get<'a>(raw_object: &'a [u8], path: &[&str]) -> Option<&'a [u8]> {
    path.iter().try_fold(raw_object, |object, name| {
        let found = spans(object).filter(|member| text::is(object, member.key, name)).last()?;
        found.value.of(object)
    })
}

/// Decodes a JSON string, quotes included; borrowed if it holds no escapes.
///
/// Nothing comes back for any other value, and for a string with an unpaired surrogate, which is no text.
pub fn string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let mut scanner = Scanner::new(raw);
    let text = scanner.text().ok()?;
    scanner.end().ok()?;
    text::decode(raw, text)
}

/// Where one member of an object lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) key: Span,
    pub(crate) value: Span,
}

/// The members of an object, as spans within `raw_object`.
pub(crate) fn spans(raw_object: &[u8]) -> impl Iterator<Item = Member> {
    spans_knowing(raw_object, Span::NONE)
}

/// The same where one value is known to lie at `known`.
pub(crate) fn spans_knowing(raw_object: &[u8], known: Span) -> impl Iterator<Item = Member> {
    let mut scanner = Scanner::new(raw_object);
    let mut more = scanner.open(b'{', b'}').unwrap_or(false);
    std::iter::from_fn(move || {
        if !more {
            return None;
        }
        let key = scanner.key().ok()?.span;
        let value = scanner.value_knowing(known, 1).ok()?;
        more = scanner.more(b'}').unwrap_or(false);
        Some(Member { key, value })
    })
}

/// Whether the raw JSON string at `key` is `name` once decoded.
pub(crate) fn key_is(raw_object: &[u8], key: Span, name: &str) -> bool {
    text::is(raw_object, key, name)
}

/// Whether a decoded key is `name` (ASCII) to readers who ignore case. Go does so, by Unicode's simple folding, in which
/// two letters beyond ASCII are an `s` and a `k`.
pub fn is_like(key: impl AsRef<[u8]>, name: &str) -> bool {
    let folded = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    let same = |key: &str| key.chars().map(folded).eq(name.chars().map(folded));
    std::str::from_utf8(key.as_ref()).is_ok_and(same)
}

#[cfg(test)]
mod tests;

//! JSON strings: from bytes to text and back.

use std::borrow::Cow;

use super::Scanner;
use super::scan::{RawString, Span};

/// Encodes `text` as a JSON string, quotes included. Only what RFC 8259 §7 demands is escaped.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                out.push_str("\\u00");
                out.push(if c < '\u{10}' { '0' } else { '1' });
                out.push(char::from_digit(c as u32 % 16, 16).unwrap_or('0'));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The text of a string that has been scanned; none if it holds an unpaired surrogate or is not UTF-8.
pub(super) fn decode(bytes: &[u8], text: RawString) -> Option<Cow<'_, str>> {
    let inner = inner(bytes, text.span)?;
    if !text.escaped {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    unescape(inner, None).map(Cow::Owned)
}

/// The text of a raw JSON string, with U+FFFD for what is no text.
pub(super) fn decode_lossy(raw: &[u8]) -> Cow<'_, str> {
    let inner = raw.get(1..raw.len().saturating_sub(1)).unwrap_or_default();
    if memchr::memchr(b'\\', inner).is_none() {
        return String::from_utf8_lossy(inner);
    }
    unescape(inner, Some('\u{fffd}')).map_or(Cow::Borrowed(""), Cow::Owned)
}

/// Whether the raw string at `span` is `name` once decoded.
pub(super) fn is(bytes: &[u8], span: Span, name: &str) -> bool {
    let Some(inner) = inner(bytes, span) else {
        return false;
    };
    if inner == name.as_bytes() {
        return !name.contains('\\');
    }
    // An escape only ever makes a string longer than what it means.
    if inner.len() <= name.len() || memchr::memchr(b'\\', inner).is_none() {
        return false;
    }
    let Some(raw) = span.of(bytes) else {
        return false;
    };
    let mut scanner = Scanner::new(raw);
    scanner.text().ok().and_then(|text| decode(raw, text)).is_some_and(|key| key == name)
}

fn inner(bytes: &[u8], span: Span) -> Option<&[u8]> {
    bytes.get(span.start as usize + 1..(span.end as usize).checked_sub(1)?)
}

/// Decodes escapes that have been checked. An unpaired surrogate becomes `instead`, or ends it all.
fn unescape(inner: &[u8], instead: Option<char>) -> Option<String> {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.push_str(std::str::from_utf8(&rest[..at]).ok()?);
        let (c, used) = one(&rest[at..]);
        out.push(c.or(instead)?);
        rest = rest.get(at + used..)?;
    }
    out.push_str(std::str::from_utf8(rest).ok()?);
    Some(out)
}

/// The character that an escape stands for, if it is one, and how many bytes it took.
fn one(escape: &[u8]) -> (Option<char>, usize) {
    let plain = match escape.get(1) {
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return unicode(escape),
        Some(&c) => char::from(c),
        None => return (None, 1),
    };
    (Some(plain), 2)
}

fn unicode(escape: &[u8]) -> (Option<char>, usize) {
    let Some(first) = hex(escape) else {
        return (None, 2);
    };
    if let Some(c) = char::from_u32(first) {
        return (Some(c), 6);
    }
    let second = escape.get(6..).filter(|next| next.starts_with(b"\\u")).and_then(hex);
    match (first, second) {
        (0xd800..0xdc00, Some(low @ 0xdc00..0xe000)) => {
            (char::from_u32(0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00)), 12)
        }
        _ => (None, 6),
    }
}

fn hex(escape: &[u8]) -> Option<u32> {
    let digits = escape.get(2..6).and_then(|digits| std::str::from_utf8(digits).ok())?;
    u32::from_str_radix(digits, 16).ok()
}

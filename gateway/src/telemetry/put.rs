//! Texts, numbers and times, put straight into a buffer that becomes JSON.

use std::{
    cell::Cell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const SECONDS_A_DAY: u64 = 86_400;

/// Whether a text stands in JSON and on a terminal as it is: ASCII that is printed, without quotes and backslashes.
pub(super) fn is_plain(text: &str) -> bool {
    const ONES: u64 = u64::MAX / 255;
    /// Eight bytes at a time. Each that is not plain sets its highest bit; what it does to the next one changes nothing.
    const fn is_plain_word(word: u64) -> bool {
        const fn has(byte: u8, word: u64) -> u64 {
            let others = word ^ (ONES * byte as u64);
            others.wrapping_sub(ONES) & !others
        }
        let below_space = word.wrapping_sub(ONES * b' ' as u64);
        (word | below_space | has(b'"', word) | has(b'\\', word) | has(0x7f, word)) & (ONES << 7) == 0
    }
    let (words, rest) = text.as_bytes().as_chunks();
    // The last eight, some of them for the second time: a copy of the rest would take longer.
    let last = match text.as_bytes().last_chunk() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest.iter().fold(ONES * u64::from(b' '), |word, byte| word << 8 | u64::from(*byte)),
    };
    words.iter().all(|word| is_plain_word(u64::from_le_bytes(*word))) && is_plain_word(last)
}

/// Adds a text as a string of JSON (RFC 8259 §7). Tells whether it [is plain](is_plain).
pub(super) fn put_quoted(value: &str, to: &mut Vec<u8>) -> bool {
    to.push(b'"');
    let (mut rest, is_plain) = (value.as_bytes(), is_plain(value));
    // Nearly every text needs no escapes.
    if !is_plain {
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
            to.extend_from_slice(&rest[..at]);
            match rest[at] {
                byte @ (b'"' | b'\\') => to.extend_from_slice(&[b'\\', byte]),
                byte => {
                    to.extend_from_slice(b"\\u00");
                    put_hex(&[byte], to);
                }
            }
            rest = &rest[at + 1..];
        }
    }
    to.extend_from_slice(rest);
    to.push(b'"');
    is_plain
}

/// Adds the decimal digits of a number.
pub(super) fn put_number(value: u64, to: &mut Vec<u8>) {
    to.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Adds bytes in hexadecimal.
pub(super) fn put_hex(bytes: &[u8], to: &mut Vec<u8>) {
    /// The digits of each byte. The `hex` crate looks each digit up, which is seen in the cost of an audit record.
    const DIGITS: [[u8; 2]; 256] = {
        let (mut all, mut byte) = ([[0; 2]; 256], 0);
        while byte < all.len() {
            all[byte] = [b"0123456789abcdef"[byte >> 4], b"0123456789abcdef"[byte & 15]];
            byte += 1;
        }
        all
    };
    let start = to.len();
    to.resize(start + 2 * bytes.len(), 0);
    for (pair, byte) in to[start..].as_chunks_mut().0.iter_mut().zip(bytes) {
        *pair = DIGITS[usize::from(*byte)];
    }
}

/// The time as records have it.
pub fn now() -> String {
    let mut text = Vec::new();
    put_time(SystemTime::now(), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// A time up to its second as RFC 3339 has it, in UTC, with the point that follows.
type SecondText = [u8; 20];

/// Adds a time as RFC 3339 has it, in UTC and milliseconds: all are of one length, so that they compare as texts.
pub(super) fn put_time(at: SystemTime, to: &mut Vec<u8>) {
    thread_local! {
        /// What was put last: many times are of one second.
        static LAST: Cell<(u64, SecondText)> = const { Cell::new((0, *b"1970-01-01T00:00:00.")) };
    }
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (mut second, mut text) = LAST.get();
    if second != since.as_secs() {
        second = since.as_secs();
        text = second_text(second);
        LAST.set((second, text));
    }
    to.extend_from_slice(&text);
    let mut millis = *b"000Z";
    put_digits(u64::from(since.subsec_millis()), &mut millis[..3]);
    to.extend_from_slice(&millis);
}

fn second_text(since: u64) -> SecondText {
    let mut text = *b"0000-00-00T00:00:00.";
    let ((year, month, day), second) = (date(since / SECONDS_A_DAY), since % SECONDS_A_DAY);
    for (value, place) in [
        (year, 0..4),
        (month, 5..7),
        (day, 8..10),
        (second / 3600, 11..13),
        (second / 60 % 60, 14..16),
        (second % 60, 17..19),
    ] {
        put_digits(value, &mut text[place]);
    }
    text
}

/// Puts the last digits of a number.
fn put_digits(mut value: u64, to: &mut [u8]) {
    for digit in to.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// The time that [`put_time`] has put; none if it is none.
pub(super) fn time(text: &str) -> Option<SystemTime> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    // The days of a year are few enough to look for the one.
    let first = day_of_new_year(year);
    let day = (first..first + 366).find(|at| date(*at) == (year, month, day))?;
    let seconds = day * SECONDS_A_DAY + number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
    Some(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(number(20..23)?))
}

/// Year, month and day of a day since 1970 (the Gregorian calendar, counted in eras of 400 years from a 1 March).
fn date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + u64::from(month <= 2), month, day)
}

fn day_of_new_year(year: u64) -> u64 {
    let before = year.saturating_sub(1);
    (365 * before + before / 4 - before / 100 + before / 400).saturating_sub(719_162)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn put(seconds: u64, millis: u64) -> String {
        let mut text = Vec::new();
        put_time(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(millis), &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn times_are_of_one_length_and_read_again() {
        for (seconds, millis, text) in [
            (0, 0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, 7, "2000-02-29T00:00:00.007Z"),
            (951_868_800, 0, "2000-03-01T00:00:00.000Z"),
            (1_767_225_599, 999, "2025-12-31T23:59:59.999Z"),
            (1_795_375_564, 123, "2026-11-22T19:26:04.123Z"),
            (4_107_542_399, 0, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(put(seconds, millis), text);
            assert_eq!(time(text), Some(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis)), "{text}");
        }
        for bad in ["", "2026-11-22", "2026-13-01T00:00:00.000Z", "2026-02-30T00:00:00.000Z"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }
    #[test]
    fn a_text_is_plain_if_it_stands_as_it_is() {
        let stands = |c: char| matches!(c, ' '..='~') && c != '"' && c != '\\';
        for c in (0..=0x2ff).filter_map(char::from_u32) {
            for (before, after) in [(0, 0), (3, 0), (7, 0), (0, 7), (8, 8), (5, 20)] {
                let text = format!("{}{c}{}", "a".repeat(before), "~".repeat(after));
                assert_eq!(is_plain(&text), stands(c), "{text:?}");
                let mut quoted = Vec::new();
                put_quoted(&text, &mut quoted);
                assert_eq!(serde_json::from_slice::<String>(&quoted).unwrap(), text);
            }
        }
        assert!(is_plain("") && !is_plain("\u{1}\u{1} plain after it"));
    }
}

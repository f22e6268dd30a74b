//! Texts, numbers and times, put straight into a buffer that becomes JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_A_DAY: u64 = 86_400;

/// Adds a text as a string of JSON (RFC 8259 §7).
pub(super) fn put_quoted(value: &str, to: &mut Vec<u8>) {
    to.push(b'"');
    let (mut rest, acts) = (value.as_bytes(), |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f));
    // Nearly every text needs no escapes. All of it is looked at, so that many bytes are at a time.
    if !rest.iter().fold(false, |any, byte| any | acts(byte)) {
        to.extend_from_slice(rest);
        to.push(b'"');
        return;
    }
    while let Some(at) = rest.iter().position(acts) {
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
    to.extend_from_slice(rest);
    to.push(b'"');
}

/// Adds the decimal digits of a number.
pub(super) fn put_number(value: u64, to: &mut Vec<u8>) {
    let (mut digits, mut at, mut value) = ([0; 20], 20, value);
    loop {
        at -= 1;
        // One digit.
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    to.extend_from_slice(&digits[at..]);
}

/// Adds bytes in hexadecimal.
pub(super) fn put_hex(bytes: &[u8], to: &mut Vec<u8>) {
    // Without a table, so that many digits are made at a time.
    let digit = |value: u8| value + if value < 10 { b'0' } else { b'a' - 10 };
    let start = to.len();
    to.resize(start + 2 * bytes.len(), 0);
    for (pair, byte) in to[start..].chunks_exact_mut(2).zip(bytes) {
        (pair[0], pair[1]) = (digit(byte >> 4), digit(byte & 15));
    }
}

/// The time as records have it.
pub fn now() -> String {
    let mut text = Vec::new();
    put_time(SystemTime::now(), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Adds a time as RFC 3339 has it, in UTC and milliseconds: all are of one length, so that they compare as texts.
pub(super) fn put_time(at: SystemTime, to: &mut Vec<u8>) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (day, second) = (since.as_secs() / SECONDS_A_DAY, since.as_secs() % SECONDS_A_DAY);
    let (year, month, day) = date(day);
    for (value, width, end) in [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (second / 3600, 2, b':'),
        (second / 60 % 60, 2, b':'),
        (second % 60, 2, b'.'),
        (u64::from(since.subsec_millis()), 3, b'Z'),
    ] {
        let (start, mut value) = (to.len(), value);
        to.resize(start + width, 0);
        for digit in to[start..].iter_mut().rev() {
            *digit = b'0' + (value % 10) as u8;
            value /= 10;
        }
        to.push(end);
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
}

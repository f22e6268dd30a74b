//! How a record is put: JSON, straight into a buffer that is used again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How much of a text goes into a record, in bytes.
const LONGEST: usize = 2048;
/// How many texts of a list.
const MOST: usize = 64;

const SECONDS_A_DAY: u64 = 86_400;

/// The body of a record: all but `seq` and `previous_hash`, which only the writer knows.
pub struct Record<'a>(&'a mut Vec<u8>);

impl<'a> Record<'a> {
    pub(super) fn begin(body: &'a mut Vec<u8>, at: SystemTime, event_type: &str) -> Self {
        body.extend_from_slice(b"\"occurred_at\":\"");
        put_time(at, body);
        body.push(b'"');
        let mut record = Self(body);
        record.text("event_type", event_type);
        record
    }

    /// Ends the body and its line.
    pub(super) fn end(self) {
        self.0.extend_from_slice(b"}\n");
    }

    /// Adds a text; what is too long is cut.
    pub fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.quoted(value);
    }

    /// Adds a text that is not always there.
    pub fn maybe(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    /// Adds texts, if there are any.
    pub fn texts(&mut self, name: &str, values: &[String]) {
        if values.is_empty() {
            return;
        }
        self.name(name);
        for (at, value) in values.iter().take(MOST).enumerate() {
            self.0.push(if at == 0 { b'[' } else { b',' });
            self.quoted(value);
        }
        self.0.push(b']');
        self.left_out(name, values.len());
    }

    /// Adds names with texts as an object, if there are any. Of a name that comes again the first text is taken.
    pub fn pairs(&mut self, name: &str, values: &[(String, String)]) {
        if values.is_empty() {
            return;
        }
        self.name(name);
        for (at, (key, value)) in values.iter().take(MOST).enumerate() {
            if values[..at].iter().any(|(earlier, _)| earlier == key) {
                continue;
            }
            self.0.push(if at == 0 { b'{' } else { b',' });
            self.quoted(key);
            self.0.push(b':');
            self.quoted(value);
        }
        self.0.push(b'}');
        self.left_out(name, values.len());
    }

    /// Says how many of so many are not in the record.
    fn left_out(&mut self, name: &str, of: usize) {
        if let Some(more) = of.checked_sub(MOST).filter(|more| *more > 0) {
            self.number(&format!("{name}_left_out"), more as u64);
        }
    }

    /// Adds a number.
    pub fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        put_number(value, self.0);
    }

    /// Adds a digest or another number of many digits, in hexadecimal behind what it is.
    pub fn digest(&mut self, name: &str, algorithm: &str, value: &[u8]) {
        self.name(name);
        self.0.push(b'"');
        self.0.extend_from_slice(algorithm.as_bytes());
        self.0.push(b':');
        put_hex(value, self.0);
        self.0.push(b'"');
    }

    /// Adds JSON as it is. Line breaks can only stand between its tokens, where blanks are as good.
    pub fn json(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.0.extend(json.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    }

    fn name(&mut self, name: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn quoted(&mut self, value: &str) {
        put_quoted(&value[..value.floor_char_boundary(LONGEST)], self.0);
    }
}

/// Adds a text as a string of JSON (RFC 8259 §7).
pub(in crate::telemetry) fn put_quoted(value: &str, to: &mut Vec<u8>) {
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
pub(in crate::telemetry) fn put_number(value: u64, to: &mut Vec<u8>) {
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
pub(in crate::telemetry) fn put_hex(bytes: &[u8], to: &mut Vec<u8>) {
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
pub(in crate::telemetry) fn put_time(at: SystemTime, to: &mut Vec<u8>) {
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
    fn what_a_long_list_leaves_out_is_counted() {
        for (count, left_out) in [(1, None), (MOST, None), (MOST + 2, Some(2))] {
            let mut body = Vec::new();
            let mut record = Record::begin(&mut body, UNIX_EPOCH, "call");
            record.texts("groups", &vec!["ops".to_owned(); count]);
            record.end();
            let body = format!("{{{}}}", String::from_utf8(body).unwrap().trim_end().trim_end_matches('}'));
            let record: serde_json::Value = serde_json::from_str(&body).unwrap_or_else(|why| panic!("{body}: {why}"));
            assert_eq!(record["groups"].as_array().unwrap().len(), count.min(MOST));
            assert_eq!(record["groups_left_out"].as_u64(), left_out, "{body}");
        }
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
    fn a_record_is_one_line_of_json_whatever_is_in_it() {
        let mut body = b"{\"seq\":1".to_vec();
        body.push(b',');
        let mut record = Record::begin(&mut body, UNIX_EPOCH, "call");
        record.text("name", "a\"b\\c\n\u{1}\u{e9}");
        record.texts("groups", &["x".to_owned(), "y\t".to_owned()]);
        record.texts("none", &[]);
        record.number("big", u64::MAX);
        record.digest("hash", "sha256", &[0, 0xff]);
        record.json("arguments", b"{\n \"a\":\r\n1}");
        record.text("long", &"\u{e9}".repeat(5000));
        record.end();
        assert_eq!(body.iter().filter(|byte| **byte == b'\n').count(), 1);
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value["name"], "a\"b\\c\n\u{1}\u{e9}");
        assert_eq!(value["groups"], serde_json::json!(["x", "y\t"]));
        assert_eq!((&value["big"], &value["hash"]), (&u64::MAX.into(), &"sha256:00ff".into()));
        assert_eq!(value["arguments"]["a"], 1);
        assert_eq!(value["long"].as_str().unwrap().len(), LONGEST);
    }
}

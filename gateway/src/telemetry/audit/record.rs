//! How a record is put: JSON, straight into a buffer that is used again.

use std::{borrow::Cow, time::SystemTime};

use crate::telemetry::{
    format,
    put::{put_hex, put_number, put_quoted, put_time},
};

/// How much of a text goes into a record, in bytes.
const LONGEST: usize = 2048;
/// How many texts of a list.
const MOST: usize = 64;
/// How long the names of fields are at most, in bytes.
const LONGEST_NAME: usize = 28;

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
    #[inline(always)]
    pub fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.quoted(value);
    }

    /// Adds a text that is not always there.
    #[inline(always)]
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
    #[inline(always)]
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

    /// Adds JSON as it is. Line breaks and tabs can only stand between its tokens, where blanks are as good.
    pub fn json(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        let start = self.0.len();
        self.0.extend(json.iter().map(|byte| if matches!(byte, b'\n' | b'\r' | b'\t') { b' ' } else { *byte }));
        self.escape(start);
    }

    /// In place where it is used, so that a name whose text is known is one copy of a known length: the compiler makes
    /// the head.
    #[inline(always)]
    fn name(&mut self, name: &str) {
        let (mut head, end) = ([0; LONGEST_NAME + 4], name.len() + 4);
        head[..2].copy_from_slice(b",\"");
        head[2..end - 2].copy_from_slice(name.as_bytes());
        head[end - 2..end].copy_from_slice(b"\":");
        self.0.extend_from_slice(&head[..end]);
    }

    fn quoted(&mut self, value: &str) {
        let start = self.0.len();
        if !put_quoted(&value[..value.floor_char_boundary(LONGEST)], self.0) {
            self.escape(start);
        }
    }

    /// Has nothing stand for itself from there on that acts on a terminal.
    #[cold]
    fn escape(&mut self, start: usize) {
        if let Cow::Owned(escaped) = format::json(&self.0[start..]) {
            self.0.truncate(start);
            self.0.extend_from_slice(&escaped);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::time::UNIX_EPOCH;

    use super::*;

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
        record.text("acts", "\u{9b}2J\u{7f}\u{202e}");
        record.json("acts in JSON", "{\t\"\u{7f}\":\"\u{9b}\"}".as_bytes());
        record.end();
        let text = std::str::from_utf8(&body).unwrap().trim_end();
        assert!(!text.contains(crate::telemetry::printable::acts), "{text:?}");
        assert_eq!(body.iter().filter(|byte| **byte == b'\n').count(), 1);
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value["name"], "a\"b\\c\n\u{1}\u{e9}");
        assert_eq!(value["groups"], serde_json::json!(["x", "y\t"]));
        assert_eq!((&value["big"], &value["hash"]), (&u64::MAX.into(), &"sha256:00ff".into()));
        assert_eq!((&value["acts"], &value["arguments"]["a"]), (&"\u{9b}2J\u{7f}\u{202e}".into(), &1.into()));
        assert_eq!(value["acts in JSON"], serde_json::json!({ "\u{7f}": "\u{9b}" }));
        assert_eq!(value["long"].as_str().unwrap().len(), LONGEST);
    }
}

//! Texts in JSON strings: what they say, and how they are written.

use std::borrow::Cow;

use crate::detect::TooMuch;

/// The longest message that Weir takes back, in bytes.
pub(crate) const MESSAGE: usize = 1 << 20;

/// The characters of a JSON string with the length of each as it is written. A lone surrogate is a replacement character.
struct Characters<'a>(&'a str);

impl Iterator for Characters<'_> {
    type Item = (char, usize);

    fn next(&mut self) -> Option<(char, usize)> {
        let first = self.0.chars().next()?;
        let (one, length) = if first == '\\' { escape(&self.0[1..]) } else { (first, first.len_utf8()) };
        self.0 = self.0.get(length..).unwrap_or_default();
        Some((one, length))
    }
}

/// The character behind a backslash, and how long both are.
fn escape(rest: &str) -> (char, usize) {
    let Some(letter) = rest.chars().next() else { return ('\\', 1) };
    let one = match letter {
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => return code_point(&rest[1..]),
        other => return (other, 1 + other.len_utf8()),
    };
    (one, 2)
}

fn code_point(digits: &str) -> (char, usize) {
    let unit = |text: &str| {
        let digits = text.get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        u16::from_str_radix(digits, 16).ok()
    };
    let Some(first) = unit(digits) else { return (char::REPLACEMENT_CHARACTER, 2) };
    let second = digits.get(4..).and_then(|rest| unit(rest.strip_prefix("\\u")?));
    match char::decode_utf16([first].into_iter().chain(second)).next() {
        Some(Ok(one)) => (one, 6 * one.len_utf16()),
        _ => (char::REPLACEMENT_CHARACTER, 6),
    }
}

/// What a JSON string says, from what stands between its quotes.
pub(crate) fn unescape(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    let mut text = String::with_capacity(raw.len());
    text.extend(Characters(raw).map(|(one, _)| one));
    Cow::Owned(text)
}

/// Writes a text as part of a JSON string.
pub(crate) fn escape_into(out: &mut String, text: &str) {
    for one in text.chars() {
        match one {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' => {
                out.push_str("\\u00");
                for shift in [4, 0] {
                    out.push(char::from_digit(u32::from(one) >> shift & 15, 16).unwrap_or('0'));
                }
            }
            other => out.push(other),
        }
    }
}

/// A part of a text, in bytes, and what takes its place.
pub(crate) struct Change {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) with: String,
}

/// Writes a JSON string with changes in what it says; the rest stays as it was written. The changes are in order.
pub(crate) fn rewrite_raw(out: &mut String, raw: &str, changes: impl Iterator<Item = Change>) -> Result<(), TooMuch> {
    let (mut characters, mut said, mut written, mut kept) = (Characters(raw), 0, 0, 0);
    for change in changes {
        while said < change.end {
            if said == change.start {
                out.push_str(&raw[kept..written]);
            }
            let Some((one, length)) = characters.next() else { break };
            said += one.len_utf8();
            written += length;
        }
        kept = written;
        escape_into(out, &change.with);
        within_message(out)?;
    }
    out.push_str(&raw[kept..]);
    Ok(())
}

/// The same for a text as it is.
pub(crate) fn rewrite_plain(text: &str, changes: impl Iterator<Item = Change>) -> Result<String, TooMuch> {
    let (mut out, mut kept) = (String::with_capacity(text.len()), 0);
    for change in changes {
        out.push_str(&text[kept..change.start]);
        kept = change.end;
        out.push_str(&change.with);
        within_message(&out)?;
    }
    out.push_str(&text[kept..]);
    Ok(out)
}

/// A longer message would be a failure of the policy, so its author has to say something else.
pub(crate) const fn within_message(out: &str) -> Result<(), TooMuch> {
    if out.len() > MESSAGE { Err(TooMuch) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_escapes() {
        assert_eq!(unescape(r#"\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00é"#), "\"\\/\u{8}\u{c}\n\r\tAé😀é");
        assert!(matches!(unescape("plain é"), Cow::Borrowed("plain é")));
    }

    #[test]
    fn reads_what_is_broken_without_a_panic() {
        for (raw, text) in [
            (r"\ud83d", "\u{fffd}"),
            (r"\ude00x", "\u{fffd}x"),
            (r"\ud83d\ud83d\ude00", "\u{fffd}😀"),
            (r"\ud83d\n", "\u{fffd}\n"),
            (r"\ud83d\u0041", "\u{fffd}A"),
            ("\\", "\\"),
            (r"\u", "\u{fffd}"),
            (r"\u12", "\u{fffd}12"),
            (r"\u+123", "\u{fffd}+123"),
            (r"\u123é", "\u{fffd}123é"),
            (r"\é", "é"),
        ] {
            assert_eq!(unescape(raw), text, "{raw}");
        }
    }

    #[test]
    fn writes_what_json_cannot_hold_as_escapes() {
        let mut out = String::new();
        escape_into(&mut out, "\"\\\n\r\t\u{1}\u{1f}é/");
        assert_eq!(out, r#"\"\\\n\r\t\u0001\u001fé/"#);
    }

    #[test]
    fn only_the_changed_part_is_written_anew() {
        let raw = r"\u0041b\u0063\ud83d \/d";
        assert_eq!(unescape(raw), "Abc\u{fffd} /d");
        let changes = [Change { start: 1, end: 3, with: "\"".into() }, Change { start: 8, end: 9, with: "X".into() }];
        let mut out = String::new();
        rewrite_raw(&mut out, raw, changes.into_iter()).expect("it is short");
        assert_eq!(out, r#"\u0041\"\ud83d \/X"#);
    }

    #[test]
    fn a_text_that_grows_too_long_is_an_error() {
        let change = |at: usize| Change { start: at, end: at + 1, with: "x".repeat(1024) };
        let text = "a".repeat(2000);
        assert!(rewrite_raw(&mut String::new(), &text, (0..2000).map(change)).is_err());
        assert!(rewrite_plain(&text, (0..2000).map(change)).is_err());
    }
}

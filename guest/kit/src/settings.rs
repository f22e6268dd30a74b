//! A policy's own settings, which travel as a JSON object.
//!
//! Weir has checked the JSON before it asks, so this only finds values. A full parser would be most of a small policy; one
//! that needs more than texts, numbers and flags brings its own and reads [`Upstream::settings`].

use crate::Upstream;

/// The settings of the policy that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a>(&'a str);

impl<'a> Settings<'a> {
    /// Those in [`Upstream::settings`].
    pub fn of(upstream: &'a Upstream) -> Self {
        Self(&upstream.settings)
    }

    /// A text; none if it is missing or something else.
    pub fn text(&self, key: &str) -> Option<String> {
        unescape(self.value(key)?)
    }

    /// A whole number that is not negative; none if it is missing or something else.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.value(key)?.parse().ok()
    }

    /// A flag; none if it is missing or something else.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.value(key)?.parse().ok()
    }

    /// The value as it is written; of a key that is there twice, the last.
    fn value(&self, key: &str) -> Option<&'a str> {
        let mut rest = self.0.trim_start().strip_prefix('{')?;
        let mut found = None;
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t', '\n', '\r']);
            if rest.starts_with('}') {
                return found;
            }
            let (name, after) = split(rest)?;
            let (value, after) = split(after.trim_start().strip_prefix(':')?.trim_start())?;
            if unescape(name)? == key {
                found = Some(value);
            }
            rest = after;
        }
    }
}

/// A value at the beginning of `text`, and what follows it.
fn split(text: &str) -> Option<(&str, &str)> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => {
                quoted = !quoted;
                if !quoted && depth == 0 {
                    return Some(text.split_at(at + 1));
                }
            }
            _ if quoted => {}
            b'{' | b'[' => depth += 1,
            b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => {
                return (at > 0).then(|| text.split_at(at));
            }
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(text.split_at(at + 1));
                }
            }
            _ => {}
        }
    }
    None
}

/// The text that a JSON string stands for; none if it is no string.
fn unescape(raw: &str) -> Option<String> {
    let mut rest = raw.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(rest.len());
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let escape = rest[at + 1..].chars().next()?;
        rest = &rest[at + 1 + escape.len_utf8()..];
        match escape {
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            'u' => {
                let (found, after) = code_point(rest)?;
                text.push(found);
                rest = after;
            }
            other => text.push(other),
        }
    }
    text.push_str(rest);
    Some(text)
}

/// The four digits behind `\u`, with the second half of a pair where there is one.
fn code_point(text: &str) -> Option<(char, &str)> {
    let unit = |text: &str| u16::from_str_radix(text.get(..4)?, 16).ok();
    let first = unit(text)?;
    let second = text.get(4..).and_then(|rest| unit(rest.strip_prefix("\\u")?));
    let mut decoded = char::decode_utf16([first].into_iter().chain(second));
    match decoded.next()? {
        Ok(found) => text.get(4 * found.len_utf16() + 2 * (found.len_utf16() - 1)..).map(|rest| (found, rest)),
        Err(_) => Some((char::REPLACEMENT_CHARACTER, text.get(4..)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_values_of_each_kind() {
        let settings = Settings(r#" { "a" : "x", "n":12 ,"t":true,"o":{"a":"}\"","n":[1,{"n":2}]},"f":false } "#);
        assert_eq!(settings.text("a").as_deref(), Some("x"));
        assert_eq!(settings.number("n"), Some(12));
        assert_eq!(settings.flag("t"), Some(true));
        assert_eq!(settings.flag("f"), Some(false));
        assert_eq!(settings.text("o"), None);
        assert_eq!(settings.text("n"), None);
        assert_eq!(settings.number("a"), None);
        assert_eq!(settings.text("missing"), None);
    }

    #[test]
    fn reads_escapes() {
        let settings = Settings(r#"{"\u0061\n":"\"\\\/\b\f\n\r\t \u00e9 \ud83d\ude00 \ud83d é"}"#);
        assert_eq!(settings.text("a\n").as_deref(), Some("\"\\/\u{8}\u{c}\n\r\t é 😀 \u{fffd} é"));
    }

    #[test]
    fn the_last_of_two_wins() {
        assert_eq!(Settings(r#"{"a":1,"a":2}"#).number("a"), Some(2));
    }

    #[test]
    fn finds_nothing_in_what_is_no_object() {
        for text in
            ["", "[]", "{", r#"{"a"#, r#"{"a""#, r#"{"a":"#, r#"{"a":"x"#, r#"{"a":]"#, r#"{"a":[}"#, "{}", "null"]
        {
            assert_eq!(Settings(text).text("a"), None, "{text}");
            assert_eq!(Settings(text).number("a"), None, "{text}");
        }
    }
}

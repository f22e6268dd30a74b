//! Reads JSON where it stands. A tree of a result of 1 MiB can take more memory than a guest has.

use std::borrow::Cow;

/// What is still to be read of a JSON text.
pub(crate) struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    pub(crate) const fn of(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    /// Where the next byte is that is no white space.
    pub(crate) fn place(&mut self) -> usize {
        self.peek();
        self.at
    }

    /// Where the last token has ended.
    pub(crate) const fn end(&self) -> usize {
        self.at
    }

    /// The next byte that is no white space.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.as_bytes().get(self.at)? {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return Some(*byte),
            }
        }
    }

    pub(crate) fn takes(&mut self, byte: u8) -> bool {
        let takes = self.peek() == Some(byte);
        self.at += usize::from(takes);
        takes
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Whether another element or member follows; none if neither that nor the end does.
    pub(crate) fn more(&mut self, close: u8, first: bool) -> Option<bool> {
        match self.peek()? {
            byte if byte == close => self.at += 1,
            b',' if !first => {
                self.at += 1;
                return Some(true);
            }
            _ => return first.then_some(true),
        }
        Some(false)
    }

    /// A key and its colon. The key has its quotes.
    pub(crate) fn key(&mut self) -> Option<&'t str> {
        let key = self.string()?;
        self.takes(b':').then_some(key)
    }

    /// A value of any kind and depth. Of what is in it only strings and brackets count.
    pub(crate) fn value(&mut self) -> Option<&'t str> {
        let start = match self.peek()? {
            b'{' | b'[' => self.at,
            _ => return self.scalar(),
        };
        self.at += 1;
        self.close()?;
        self.at += 1;
        self.text.get(start..self.at)
    }

    /// Goes to the end of an object or array. How many commas of it were on the way.
    pub(crate) fn close(&mut self) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let (mut at, mut depth, mut commas) = (self.at, 0_usize, 0);
        loop {
            match *bytes.get(at)? {
                b'"' => {
                    self.at = at;
                    self.string()?;
                    at = self.at;
                    continue;
                }
                b',' => commas += usize::from(depth == 0),
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth == 0 => {
                    self.at = at;
                    return Some(commas);
                }
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            at += 1;
        }
    }

    /// A string with its quotes, a number, or a word.
    pub(crate) fn scalar(&mut self) -> Option<&'t str> {
        let first = self.peek()?;
        if first == b'"' {
            return self.string();
        }
        let rest = self.text.get(self.at..)?;
        let part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let (word, _) = rest.split_at(rest.bytes().take_while(part).count());
        let numeric = |byte: u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let is_number = matches!(first, b'-' | b'0'..=b'9') && word.bytes().all(numeric);
        if !is_number && !matches!(word, "true" | "false" | "null") {
            return None;
        }
        self.at += word.len();
        Some(word)
    }

    fn string(&mut self) -> Option<&'t str> {
        if self.peek()? != b'"' {
            return None;
        }
        let (start, bytes) = (self.at, self.text.as_bytes());
        let mut at = special(bytes, start + 1)?;
        while *bytes.get(at)? == b'\\' {
            at = special(bytes, at + 2)?;
        }
        self.at = at + 1;
        self.text.get(start..self.at)
    }

    fn token(&mut self) -> Option<&'t str> {
        match self.peek()? {
            b'{' | b'}' | b'[' | b']' | b',' | b':' => {
                self.at += 1;
                self.text.get(self.at - 1..self.at)
            }
            _ => self.scalar(),
        }
    }
}

/// Where the next quote or backslash is. It looks at eight bytes at once, for most of a result is strings.
fn special(bytes: &[u8], mut at: usize) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    // The high bit of the first zero byte is set, and none below it.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    while let Some(chunk) = bytes.get(at..)?.first_chunk() {
        let word = u64::from_le_bytes(*chunk);
        let hits = zeros(word ^ (ONES * 0x22)) | zeros(word ^ (ONES * 0x5c));
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = bytes.get(at..)?;
    Some(at + rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?)
}

/// The members of an object as they are written, keys with their quotes.
pub(crate) fn members(object: &str) -> Option<Vec<(&str, &str)>> {
    let (mut reader, mut all) = (Reader::of(object), Vec::new());
    if !reader.takes(b'{') {
        return None;
    }
    while reader.more(b'}', all.is_empty())? {
        all.push((reader.key()?, reader.value()?));
    }
    reader.is_at_end().then_some(all)
}

/// The elements of an array as they are written.
pub(crate) fn elements(array: &str) -> Option<Vec<&str>> {
    let (mut reader, mut all) = (Reader::of(array), Vec::new());
    if !reader.takes(b'[') {
        return None;
    }
    while reader.more(b']', all.is_empty())? {
        all.push(reader.value()?);
    }
    reader.is_at_end().then_some(all)
}

/// A member's value; of two with the same key the last, as most readers do.
pub(crate) fn member<'t>(members: &[(&'t str, &'t str)], key: &str) -> Option<&'t str> {
    members.iter().rev().find(|(name, _)| is_key(name, key)).map(|(_, value)| *value)
}

/// Whether a key with its quotes is this one.
pub(crate) fn is_key(raw: &str, key: &str) -> bool {
    text(raw).is_some_and(|name| name == key)
}

/// What a string says that stands there with its quotes; none if it is no string. Half a surrogate pair becomes U+FFFD.
pub(crate) fn text(raw: &str) -> Option<Cow<'_, str>> {
    let inside = match raw.as_bytes() {
        [b'"', .., b'"'] => raw.get(1..raw.len() - 1)?,
        _ => return None,
    };
    if !inside.contains('\\') {
        return Some(Cow::Borrowed(inside));
    }
    let (mut text, mut rest) = (String::with_capacity(inside.len()), inside);
    while let Some(plain) = special(rest.as_bytes(), 0) {
        text.push_str(&rest[..plain]);
        let (one, length) = escape(&rest[plain + 1..])?;
        text.push(one);
        rest = rest.get(plain + 1 + length..)?;
    }
    text.push_str(rest);
    Some(Cow::Owned(text))
}

/// The character that stands behind a backslash, and how long it is as it is written.
fn escape(rest: &str) -> Option<(char, usize)> {
    let one = match rest.bytes().next()? {
        byte @ (b'"' | b'\\' | b'/') => byte.into(),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return code_point(&rest[1..]),
        _ => return None,
    };
    Some((one, 1))
}

fn code_point(digits: &str) -> Option<(char, usize)> {
    let unit = |text: &str| u16::from_str_radix(text.get(..4)?, 16).ok();
    let first = unit(digits)?;
    let second = digits.get(4..).and_then(|rest| unit(rest.strip_prefix("\\u")?));
    match char::decode_utf16([first].into_iter().chain(second)).next()? {
        Ok(one) => Some((one, 6 * one.len_utf16() - 1)),
        Err(_) => Some((char::REPLACEMENT_CHARACTER, 5)),
    }
}

/// Whether a text is a JSON object or array, as far as its brackets tell.
pub(crate) fn is_document(text: &str) -> bool {
    let mut reader = Reader::of(text);
    matches!(reader.peek(), Some(b'{' | b'[')) && reader.value().is_some() && reader.is_at_end()
}

/// Whether two documents say the same in the same order. White space and escapes do not count.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let (mut one, mut other) = (Reader::of(one), Reader::of(other));
    loop {
        match (one.token(), other.token()) {
            (None, None) => return one.is_at_end() && other.is_at_end(),
            (Some(left), Some(right)) if left == right => {}
            (Some(left), Some(right)) if text(left).is_some_and(|left| text(right) == Some(left)) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_elements_stay_as_they_are_written() {
        let object = r#" { "a" : [1, {"b":2}] , "c\"" : 1.0e5,"d":"}" } "#;
        let members = members(object).expect("it is an object");
        assert_eq!(members, [("\"a\"", r#"[1, {"b":2}]"#), (r#""c\"""#, "1.0e5"), ("\"d\"", "\"}\"")]);
        assert_eq!(member(&members, "c\""), Some("1.0e5"));
        assert_eq!(elements(r#"[ {} ,"x", -1,null ]"#), Some(vec!["{}", "\"x\"", "-1", "null"]));
        assert_eq!((elements("[]"), super::members("{}")), (Some(Vec::new()), Some(Vec::new())));
    }

    #[test]
    fn what_is_no_json_is_none() {
        for text in ["", "{", "{a:1}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{}x", "[]", "{\"a\":1 \"b\":2}", "{\"\\"] {
            assert_eq!(members(text), None, "{text}");
        }
        for text in ["", "[", "[1,]", "[,]", "[1 2]", "[]]", "[x]", "[1x]", "[\"é\\é"] {
            assert_eq!(elements(text), None, "{text}");
        }
        assert!(!is_document("7") && !is_document("{} {}") && is_document(" [1] "));
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = "[".repeat(1 << 19) + &"]".repeat(1 << 19);
        assert_eq!(elements(&deep).map(|all| all.len()), Some(1));
        assert!(is_same(&deep, &deep));
    }

    #[test]
    fn documents_are_compared_by_what_they_say() {
        assert!(is_same(r#"{"a":["é",1]}"#, "{ \"a\" : [\n\"\\u00e9\", 1 ] }"));
        for other in [r#"{"a":["é",1.0]}"#, r#"{"a":["e",1]}"#, r#"{"a":["é",1]"#, r#"{"a":["é",1]}x"#, "", "["] {
            assert!(!is_same(r#"{"a":["é",1]}"#, other), "{other}");
        }
        assert!(!is_same("\"1\"", "1"));
    }

    #[test]
    fn strings_are_read() {
        assert_eq!(text(r#""a\n\u00e9\ud83d\ude00\/\"é""#).as_deref(), Some("a\né😀/\"é"));
        assert_eq!(text(r#""\ud83d\u0041\ude00x""#).as_deref(), Some("\u{fffd}A\u{fffd}x"));
        for wrong in ["1", "\"", r#""\x""#, r#""\u12""#, r#""\u12é4""#, "\"\\\""] {
            assert_eq!(text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn quotes_and_backslashes_are_found_anywhere() {
        for one in ['"', '\\'] {
            for (before, after) in (0..20).flat_map(|before| (0..20).map(move |after| (before, after))) {
                let text = format!("{}{one}{}", "#".repeat(before), "\"]\\#!".repeat(after));
                assert_eq!(special(text.as_bytes(), 0), Some(before), "{text}");
            }
        }
        assert_eq!(special("é!#[]\u{a2}\u{dc}ÿ!!!".as_bytes(), 0), None);
        assert_eq!((special(b"", 0), special(b"a", 2)), (None, None));
    }

    #[test]
    fn the_rest_of_an_array_is_counted() {
        let rest = |text| {
            let mut reader = Reader::of(text);
            (reader.close(), reader.takes(b']'))
        };
        assert_eq!(rest(r#", [1,2] , {"a":"],"}, "]" ] , 7"#), (Some(3), true));
        assert_eq!(rest("]"), (Some(0), true));
        assert_eq!(rest(", [1"), (None, false));
    }
}

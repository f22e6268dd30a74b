//! Reads JSON where it stands. A tree of a result of 1 MiB can take more memory than a guest has.

use std::borrow::Cow;

use weir_policy::json::Json;

/// What is still to be read of a JSON text.
pub(crate) struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    pub(crate) const fn of(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    /// The next byte that is no white space.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let blanks = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))?;
        self.at += blanks;
        rest.get(blanks).copied()
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
        if self.takes(close) {
            return Some(false);
        }
        (first || self.takes(b',')).then_some(true)
    }

    /// A key and its colon. The key has its quotes.
    pub(crate) fn key(&mut self) -> Option<&'t str> {
        let key = self.string()?;
        self.takes(b':').then_some(key)
    }

    /// A string with its quotes, a number, or a word.
    pub(crate) fn scalar(&mut self) -> Option<&'t str> {
        if self.peek()? == b'"' {
            return self.string();
        }
        let rest = self.text.get(self.at..)?;
        let part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let (word, _) = rest.split_at(rest.bytes().take_while(part).count());
        let numeric = |byte: u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let is_number = word.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        let is_word = matches!(word, "true" | "false" | "null");
        if !is_word && !(is_number && word.bytes().all(numeric)) {
            return None;
        }
        self.at += word.len();
        Some(word)
    }

    /// A value of any kind and depth. Of what is in it only brackets count.
    pub(crate) fn value(&mut self) -> Option<&'t str> {
        self.peek()?;
        let (start, mut depth) = (self.at, 0_usize);
        loop {
            match self.peek()? {
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => self.at += 1,
                _ => {
                    self.scalar()?;
                }
            }
            if depth == 0 {
                return self.text.get(start..self.at);
            }
        }
    }

    fn string(&mut self) -> Option<&'t str> {
        if self.peek()? != b'"' {
            return None;
        }
        let (start, bytes) = (self.at, self.text.as_bytes());
        let mut at = start + 1;
        loop {
            match bytes.get(at)? {
                b'"' => break,
                b'\\' => at += 2,
                0..0x20 => return None,
                _ => at += 1,
            }
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

/// What a string says that stands there with its quotes; none if it is no string.
pub(crate) fn text(raw: &str) -> Option<Cow<'_, str>> {
    let inside = raw.strip_prefix('"')?.strip_suffix('"')?;
    if !inside.contains('\\') {
        return Some(Cow::Borrowed(inside));
    }
    match Json::parse(raw)? {
        Json::Text(text) => Some(Cow::Owned(text)),
        _ => None,
    }
}

/// Whether a text is a JSON object or array, as far as its brackets tell.
pub(crate) fn is_document(text: &str) -> bool {
    let mut reader = Reader::of(text);
    matches!(reader.peek(), Some(b'{' | b'[')) && reader.value().is_some() && reader.is_at_end()
}

/// Whether two documents say the same in the same order. White space and escapes do not count.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
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
        for text in ["", "[", "[1,]", "[,]", "[1 2]", "[]]", "[x]", "[1x]", "[\"\n\"]", "[\"é\\é"] {
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
        assert_eq!(text(r#""a\n\u00e9""#).as_deref(), Some("a\né"));
        assert_eq!((text("1"), text("\"")), (None, None));
    }
}

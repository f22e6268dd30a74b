//! JSON documents: settings, claims, params, results and entries.
//!
//! Numbers keep their digits, and objects the order of their keys, so that what a policy passes on is what it was given. The
//! usual parsers are larger than most policies.

use std::fmt::{self, Write};

/// As deep as arrays and objects may lie in each other.
const DEPTH: usize = 128;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Json {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it is written.
    Number(String),
    /// A string, without its escapes. Half a surrogate pair became U+FFFD.
    Text(String),
    /// An array.
    Array(Vec<Self>),
    /// An object, in the order in which it is written.
    Object(Vec<(String, Self)>),
}

impl Json {
    /// The value that a text is; none if it is no JSON, or deeper than 128.
    pub fn parse(text: &str) -> Option<Self> {
        let mut reader = JsonReader { rest: text };
        let value = reader.value(0)?;
        reader.blank();
        reader.rest.is_empty().then_some(value)
    }

    /// A member of an object, of two with the same key the last.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.members().iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match self {
            Self::Object(members) => members.iter_mut().rev().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Puts a member into an object, in the place of those with the same key. Nothing else takes one.
    pub fn set(&mut self, key: &str, value: impl Into<Self>) {
        match (self.get_mut(key), value.into()) {
            (Some(there), value) => *there = value,
            (None, value) => {
                if let Self::Object(members) = self {
                    members.push((key.to_owned(), value));
                }
            }
        }
    }

    /// Takes a member out of an object.
    pub fn remove(&mut self, key: &str) -> Option<Self> {
        let Self::Object(members) = self else { return None };
        let found = members.iter().rposition(|(name, _)| name == key).map(|at| members.remove(at).1);
        members.retain(|(name, _)| name != key);
        found
    }

    /// The members of an object; none of anything else.
    pub fn members(&self) -> &[(String, Self)] {
        match self {
            Self::Object(members) => members,
            _ => &[],
        }
    }

    /// The elements of an array; none of anything else.
    pub fn elements(&self) -> &[Self] {
        match self {
            Self::Array(elements) => elements,
            _ => &[],
        }
    }

    /// The text of a string.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub fn as_number(&self) -> Option<u64> {
        match self {
            Self::Number(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// A flag.
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Whether it is an object.
    pub const fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }
}

impl From<bool> for Json {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(number.to_string())
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<Self>> for Json {
    fn from(elements: Vec<Self>) -> Self {
        Self::Array(elements)
    }
}

impl<const N: usize> From<[(&str, Self); N]> for Json {
    fn from(members: [(&str, Self); N]) -> Self {
        Self::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(flag) => f.write_str(if *flag { "true" } else { "false" }),
            Self::Number(digits) => f.write_str(digits),
            Self::Text(text) => quoted(text, f),
            Self::Array(elements) => {
                f.write_char('[')?;
                for (at, element) in elements.iter().enumerate() {
                    f.write_str(if at > 0 { "," } else { "" })?;
                    element.fmt(f)?;
                }
                f.write_char(']')
            }
            Self::Object(members) => {
                f.write_char('{')?;
                for (at, (name, value)) in members.iter().enumerate() {
                    f.write_str(if at > 0 { "," } else { "" })?;
                    quoted(name, f)?;
                    f.write_char(':')?;
                    value.fmt(f)?;
                }
                f.write_char('}')
            }
        }
    }
}

/// A JSON string.
fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..0x20 => "",
            _ => continue,
        };
        f.write_str(&text[plain..at])?;
        plain = at + 1;
        match escape {
            "" => write!(f, "\\u{byte:04x}")?,
            escape => f.write_str(escape)?,
        }
    }
    f.write_str(&text[plain..])?;
    f.write_char('"')
}

/// What is still to be read.
struct JsonReader<'t> {
    rest: &'t str,
}

impl JsonReader<'_> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn takes(&mut self, prefix: &str) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        self.blank();
        match self.rest.bytes().next()? {
            b'"' => self.text().map(Json::Text),
            b'{' | b'[' if depth == DEPTH => None,
            b'{' => self.object(depth + 1),
            b'[' => self.array(depth + 1),
            b'-' | b'0'..=b'9' => self.number(),
            _ if self.takes("true") => Some(Json::Bool(true)),
            _ if self.takes("false") => Some(Json::Bool(false)),
            _ if self.takes("null") => Some(Json::Null),
            _ => None,
        }
    }

    fn object(&mut self, depth: usize) -> Option<Json> {
        let mut members = Vec::new();
        self.takes("{");
        self.blank();
        while !self.takes("}") {
            if !members.is_empty() && !self.takes(",") {
                return None;
            }
            self.blank();
            let name = self.text()?;
            self.blank();
            if !self.takes(":") {
                return None;
            }
            members.push((name, self.value(depth)?));
            self.blank();
        }
        Some(Json::Object(members))
    }

    fn array(&mut self, depth: usize) -> Option<Json> {
        let mut elements = Vec::new();
        self.takes("[");
        self.blank();
        while !self.takes("]") {
            if !elements.is_empty() && !self.takes(",") {
                return None;
            }
            elements.push(self.value(depth)?);
            self.blank();
        }
        Some(Json::Array(elements))
    }

    /// RFC 8259 section 6.
    fn number(&mut self) -> Option<Json> {
        let length =
            self.rest.bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        let (number, rest) = self.rest.split_at(length.count());
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (mantissa, exponent) = number.split_once(['e', 'E']).map_or((number, None), |(one, two)| (one, Some(two)));
        let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(one, two)| (one, Some(two)));
        let whole = whole.strip_prefix('-').unwrap_or(whole);
        let is_number = digits(whole)
            && (whole == "0" || !whole.starts_with('0'))
            && fraction.is_none_or(digits)
            && exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)));
        self.rest = rest;
        is_number.then(|| Json::Number(number.to_owned()))
    }

    fn text(&mut self) -> Option<String> {
        if !self.takes("\"") {
            return None;
        }
        let mut text = String::new();
        loop {
            let plain = self.rest.find(['"', '\\'])?;
            let (before, after) = self.rest.split_at(plain);
            if before.bytes().any(|byte| byte < 0x20) {
                return None;
            }
            text.push_str(before);
            self.rest = &after[1..];
            if after.starts_with('"') {
                return Some(text);
            }
            text.push(self.escaped()?);
        }
    }

    fn escaped(&mut self) -> Option<char> {
        let escape = self.rest.chars().next()?;
        self.rest = &self.rest[escape.len_utf8()..];
        Some(match escape {
            '"' | '\\' | '/' => escape,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.unit()?;
                let before = self.rest;
                let second = if (0xd800..0xdc00).contains(&first) && self.takes("\\u") { self.unit() } else { None };
                let pair = char::decode_utf16([first].into_iter().chain(second)).next()?;
                // What follows half a pair stands for itself.
                if second.is_some() && pair.is_err() {
                    self.rest = before;
                }
                pair.unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u16> {
        let digits = self.rest.get(..4)?;
        self.rest = &self.rest[4..];
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_as_it_was() {
        for text in [
            r#"{"b":1,"a":[-0.50,1e400,12345678901234567890123,0],"":{}}"#,
            r#"[null,true,false,"",[],{}]"#,
            r#""é\"\\\n\r\t\u0001 😀""#,
            "7",
        ] {
            assert_eq!(Json::parse(text).map(|json| json.to_string()).as_deref(), Some(text));
        }
        assert_eq!(
            Json::parse(" { \"a\" : [ 1 , 2 ] } ").map(|json| json.to_string()).as_deref(),
            Some(r#"{"a":[1,2]}"#)
        );
    }

    #[test]
    fn escapes_are_what_they_stand_for() {
        let read = |text: &str| Json::parse(text).and_then(|json| json.as_text().map(str::to_owned));
        assert_eq!(read(r#""\u0041\/\b\f\ud83d\ude00""#).as_deref(), Some("A/\u{8}\u{c}😀"));
        assert_eq!(read(r#""\ud83d é \ud83d\u0041 \udc00""#).as_deref(), Some("\u{fffd} é \u{fffd}A \u{fffd}"));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in [
            "",
            "{",
            "[",
            "\"",
            "[1,]",
            "{\"a\":1,}",
            "{\"a\"}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
            "nul",
            "1 2",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u+123\"",
            "\"\n\"",
            "[1 2]",
            "{,}",
            "[,]",
        ] {
            assert_eq!(Json::parse(text), None, "{text}");
        }
    }

    #[test]
    fn depth_has_an_end() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(Json::parse(&nested(DEPTH)).is_some());
        assert_eq!(Json::parse(&nested(DEPTH + 1)), None);
        assert_eq!(Json::parse(&"[".repeat(1 << 20)), None);
    }

    #[test]
    fn members_are_found_changed_and_removed() {
        let mut json = Json::parse(r#"{"a":1,"b":"x","a":2}"#).unwrap_or_default();
        assert_eq!(json.get("a").and_then(Json::as_number), Some(2), "the last of two counts");
        json.set("b", "y");
        json.set("c", true);
        assert_eq!(json.remove("a"), Some(Json::Number("2".into())));
        assert_eq!(json.to_string(), r#"{"b":"y","c":true}"#);
        assert_eq!(json.get("a"), None);
    }
}

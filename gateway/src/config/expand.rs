//! `${env:NAME}`, `${file:PATH}` and `${stored:NAME}` inside a value; `$${` stands for the two characters `${`.
//!
//! Other programs write a variable as `$NAME` or `%NAME%`. Weir refuses such a word instead of sending it as it stands;
//! `$$NAME` and `%%NAME%%` are how to mean the text itself.

use std::borrow::Cow;

use super::secret::SecretSource;

/// A part of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValuePart<'t> {
    /// Text that stands for itself.
    Plain(&'t str),
    /// What is found there; the path of a file is as written.
    Reference(SecretSource),
    /// What the store has under this name.
    Stored(&'t str),
}

/// A `${` that is not followed by `env:NAME}`, `file:PATH}` or `stored:NAME}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadReference;

/// The value without the signs that make a word literal, or the name of a variable that is written as elsewhere. Either
/// concerns the whole value, or each of its words if `by_word`.
pub(super) fn literal(text: &str, by_word: bool) -> Result<Cow<'_, str>, &str> {
    let words: Vec<&str> = if by_word { text.split(' ').collect() } else { vec![text] };
    if let Some(name) = words.iter().find_map(|word| foreign(word)) {
        return Err(name);
    }
    if words.iter().all(|word| unmarked(word).is_none()) {
        return Ok(text.into());
    }
    let words: Vec<&str> = words.into_iter().map(|word| unmarked(word).unwrap_or(word)).collect();
    Ok(words.join(" ").into())
}

/// The name in `$NAME` or `%NAME%`. Only capitals: a password that begins with `$` must stay possible.
fn foreign(word: &str) -> Option<&str> {
    let name = match word.strip_prefix('%') {
        Some(rest) => rest.strip_suffix('%')?,
        None => word.strip_prefix('$')?,
    };
    let letter = |byte: u8| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_');
    (name.bytes().all(letter) && name.starts_with(|first: char| !first.is_ascii_digit())).then_some(name)
}

/// `$NAME` of `$$NAME`, `%NAME%` of `%%NAME%%`.
fn unmarked(word: &str) -> Option<&str> {
    let inner = word.strip_prefix('$').or_else(|| word.strip_prefix('%')?.strip_suffix('%'))?;
    foreign(inner).map(|_| inner)
}

/// Takes a value apart.
pub(super) fn pieces(text: &str) -> Result<Vec<ValuePart<'_>>, BadReference> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            pieces.extend([ValuePart::Plain(before), ValuePart::Plain("${")]);
            rest = &rest[at + 2..];
            continue;
        }
        let (inside, after) = rest[at + 2..].split_once('}').ok_or(BadReference)?;
        let part = match inside.split_once(':') {
            Some(("env", name)) if !name.is_empty() && !name.contains('=') => {
                ValuePart::Reference(SecretSource::Env(name.to_owned()))
            }
            Some(("file", path)) if !path.is_empty() => ValuePart::Reference(SecretSource::File(path.into())),
            Some(("stored", name)) if !name.is_empty() => ValuePart::Stored(name),
            _ => return Err(BadReference),
        };
        pieces.extend([ValuePart::Plain(&rest[..at]), part]);
        rest = after;
    }
    pieces.push(ValuePart::Plain(rest));
    pieces.retain(|piece| *piece != ValuePart::Plain(""));
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::{BadReference, ValuePart, literal, pieces};
    use crate::config::SecretSource;

    #[test]
    fn words_of_other_programs_are_told_from_text() {
        for (text, name) in [("$TOKEN", "TOKEN"), ("%TOKEN_2%", "TOKEN_2"), ("$_", "_")] {
            assert_eq!(literal(text, false), Err(name), "{text}");
            assert_eq!(literal(&format!("Bearer {text}"), true), Err(name), "{text}");
        }
        for text in
            ["", "$", "$$", "%", "%%", "$5", "$ecret", "100%", "$A-b", "x$TOKEN", "Bearer $TOKEN", "$TOKEN x", "$${X}"]
        {
            assert_eq!(literal(text, false).as_deref(), Ok(text));
        }
        for (text, meant) in [("$$TOKEN", "$TOKEN"), ("%%TOKEN%%", "%TOKEN%"), ("$$$TOKEN", "$$$TOKEN")] {
            assert_eq!(literal(text, false).as_deref(), Ok(meant), "{text}");
        }
        assert_eq!(literal("Basic  $$TOKEN", true).as_deref(), Ok("Basic  $TOKEN"));
    }

    #[test]
    fn takes_values_apart() {
        let env = |name: &str| ValuePart::Reference(SecretSource::Env(name.to_owned()));
        let file = |path: &str| ValuePart::Reference(SecretSource::File(path.into()));
        let plain = ValuePart::Plain;
        for (text, expected) in [
            ("", vec![]),
            ("a $b {c} $", vec![plain("a $b {c} $")]),
            ("${env:A}", vec![env("A")]),
            ("x${env:A}${file:/run/b}y", vec![plain("x"), env("A"), file("/run/b"), plain("y")]),
            ("$${env:A}", vec![plain("${"), plain("env:A}")]),
            ("$$${env:A}", vec![plain("$"), plain("${"), plain("env:A}")]),
        ] {
            assert_eq!(pieces(text), Ok(expected), "{text}");
        }
        for bad in ["${", "${A}", "${env:}", "${file:}", "${env:A", "${vault:x}", "x ${env:A} ${B}"] {
            assert_eq!(pieces(bad), Err(BadReference), "{bad}");
        }
    }
}

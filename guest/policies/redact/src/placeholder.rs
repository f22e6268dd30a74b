//! What stands in a text in place of a value.

use std::ops::Range;

use crate::settings::is_name;

/// What can be put back: `<iban:1>`.
pub(crate) fn numbered(name: &str, number: u32) -> String {
    format!("<{name}:{number}>")
}

/// What cannot: `[card]`, or `[card …1234]` with up to `keep_last` characters, and never more than half of the value.
pub(crate) fn blank(name: &str, value: &str, keep_last: usize) -> String {
    // In numbers the characters between groups tell nothing.
    let grouped = matches!(name, "card" | "iban" | "phone" | "ssn");
    let counts = |one: &char| !grouped || one.is_alphanumeric();
    let keep = keep_last.min(value.chars().filter(counts).count() / 2);
    if keep == 0 {
        return format!("[{name}]");
    }
    let mut last: Vec<char> = value.chars().rev().filter(counts).take(keep).collect();
    last.reverse();
    format!("[{name} …{}]", last.into_iter().collect::<String>())
}

/// A placeholder in a text. The name may be that of no kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placeholder<'a> {
    pub(crate) place: Range<usize>,
    pub(crate) name: &'a str,
    pub(crate) number: u32,
}

/// The placeholders in a text, in order.
pub(crate) fn all(text: &str) -> impl Iterator<Item = Placeholder<'_>> {
    text.match_indices('<').filter_map(|(start, _)| one(text, start))
}

fn one(text: &str, start: usize) -> Option<Placeholder<'_>> {
    // A name has at most 32 characters and a number ten, so this need not look further.
    let rest = text.as_bytes().get(start + 1..)?;
    let length = rest.iter().take(44).position(|byte| *byte == b'>')?;
    let (name, digits) = text.get(start + 1..start + 1 + length)?.split_once(':')?;
    let written = is_name(name) && digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    let number = digits.parse().ok().filter(|_| written)?;
    Some(Placeholder { place: start..start + length + 2, name, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_characters_without_separators() {
        assert_eq!(blank("card", "4111 1111 1111 1234", 0), "[card]");
        assert_eq!(blank("card", "4111 1111 1111 1 234", 4), "[card …1234]");
        assert_eq!(blank("email", "jane@example.com", 4), "[email ….com]");
        assert_eq!(blank("ssn", "123-45-6789", 16), "[ssn …6789]");
        assert_eq!(blank("x", "é", 4), "[x]");
    }

    #[test]
    fn reads_what_it_writes() {
        let text = format!("a{}b{}<", numbered("iban", 1), numbered("my-id_2", u32::MAX));
        let found: Vec<_> = all(&text).collect();
        assert_eq!(
            found,
            [
                Placeholder { place: 1..9, name: "iban", number: 1 },
                Placeholder { place: 10..30, name: "my-id_2", number: u32::MAX }
            ]
        );
        assert_eq!(&text[10..30], "<my-id_2:4294967295>");
    }

    #[test]
    fn other_texts_are_no_placeholders() {
        for text in ["<", "<>", "<iban>", "<iban:>", "<iban:0>", "<iban:01>", "<iban:+1>", "<iban:4294967296>", "<a:1"]
        {
            assert_eq!(all(text).count(), 0, "{text}");
        }
        assert_eq!(all("<<iban:1>").map(|one| one.place.start).collect::<Vec<_>>(), [1]);
        assert_eq!(all(&"<".repeat(1 << 20)).count(), 0);
        assert_eq!(all(&format!("<{}:1>", "é".repeat(30))).count(), 0);
    }
}

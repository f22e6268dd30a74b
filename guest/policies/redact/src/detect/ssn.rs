//! Social security numbers of the United States, with their separators. Without them they look like any number.

use super::{before, byte};

/// The end of the number at this place.
pub(super) fn find(text: &str, at: usize) -> Option<usize> {
    let number = text.as_bytes().get(at..at + 11)?;
    let sign = number[3];
    let shape = matches!(sign, b'-' | b' ')
        && number.iter().enumerate().all(|(index, byte)| match index {
            3 | 6 => *byte == sign,
            _ => byte.is_ascii_digit(),
        });
    // One more group on either side makes it another number.
    let joined = (before(text, at) == b'-' && at > 1 && before(text, at - 1).is_ascii_digit())
        || (byte(text, at + 11) == b'-' && byte(text, at + 12).is_ascii_digit());
    let never = number.starts_with(b"000")
        || number.starts_with(b"666")
        || number.starts_with(b"9")
        || &number[4..6] == b"00"
        || &number[7..] == b"0000"
        // Both were printed in advertisements and have been withdrawn.
        || number == b"078-05-1120"
        || number == b"219-09-9999";
    (shape && !joined && !never && !byte(text, at + 11).is_ascii_alphanumeric()).then_some(at + 11)
}

#[cfg(test)]
mod tests {
    use crate::detect::tests::found;

    #[test]
    fn finds_numbers_with_separators() {
        for ssn in ["123-45-6789", "123 45 6789", "665-01-0001", "899-99-9999"] {
            assert_eq!(found(ssn), [("ssn", ssn)]);
            assert_eq!(found(&format!("SSN:{ssn}.")), [("ssn", ssn)]);
        }
    }

    #[test]
    fn numbers_that_are_never_given_out_are_none() {
        for text in [
            "000-12-3456",
            "666-12-3456",
            "900-12-3456",
            "999-99-9999",
            "123-00-6789",
            "123-45-0000",
            "078-05-1120",
            "219-09-9999",
            "123456789",
            "123-45 6789",
            "123-45-67890",
            "1123-45-6789",
            "1-123-45-6789",
            "123-45-6789-0",
            "123-45-678",
            "123-45-678é",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }
}

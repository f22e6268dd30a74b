//! Telephone numbers in international form (ITU-T E.164, E.123): a plus sign and up to 15 digits.

use super::{before, byte, run, separator};

/// The end of the telephone number whose plus sign is at this place.
pub(super) fn find(text: &str, at: usize) -> Option<usize> {
    let front = before(text, at);
    let first = byte(text, at + 1);
    if front.is_ascii_alphanumeric() || matches!(front, b'+' | b'/' | b'=') || !(b'1'..=b'9').contains(&first) {
        return None;
    }
    // These two plans have numbers of one length only.
    let fixed = matches!(first, b'1' | b'7');
    let (mut start, mut count, mut best) = (at + 1, 0, None);
    loop {
        let end = run(text, start, |byte| byte.is_ascii_digit());
        count += end - start;
        if count > 15 || (fixed && count > 11) {
            break;
        }
        let closed = !byte(text, end).is_ascii_alphanumeric();
        if closed && if fixed { count == 11 } else { count >= 8 } {
            best = Some(end);
        }
        match gap(text, end) {
            Some(next) => start = next,
            None => break,
        }
    }
    best
}

/// Where the next group of digits begins, if one does behind one blank, sign or bracket.
fn gap(text: &str, at: usize) -> Option<usize> {
    let mut next = at;
    let mut open = false;
    for _ in 0..2 {
        match byte(text, next) {
            b'(' => open = true,
            b')' if !open => {}
            b'.' | b'/' if next == at || byte(text, next - 1) == b')' => {}
            _ => match separator(text, next) {
                Some(length) if next == at || byte(text, next - 1) == b')' => {
                    next += length;
                    if byte(text, next).is_ascii_digit() {
                        return Some(next);
                    }
                    continue;
                }
                _ => return None,
            },
        }
        next += 1;
        if byte(text, next).is_ascii_digit() {
            return Some(next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::detect::tests::found;

    #[test]
    fn finds_numbers_in_their_usual_forms() {
        for phone in [
            "+4930901820",
            "+49 30 901820",
            "+49 (30) 901820",
            "+49 (0)30 901820",
            "+49-30-901820",
            "+49.30.901820",
            "+49 30/901820",
            "+1 (415) 555-2671",
            "+1-555-123-4567",
            "+14155552671",
            "+44 20 7946 0958",
            "+7 912 345-67-89",
            "+353 1 234 5678",
            "+49\u{a0}30\u{a0}901820",
        ] {
            assert_eq!(found(phone), [("phone", phone)]);
            assert_eq!(found(&format!("Tel.: {phone}. 5 more")), [("phone", phone)]);
            assert_eq!(found(&format!("tel:{phone};ext=1")), [("phone", phone)]);
        }
    }

    #[test]
    fn other_numbers_are_none() {
        for text in [
            "4930901820",
            "+0301234567",
            "+1234567",
            "+100000000",
            "+1 415 555",
            "+12345678901234567",
            "a+4930901820",
            "++4930901820",
            "+49 30 90\n1820",
            "+49  30  901820",
            "+4930901820x",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }

    #[test]
    fn ends_before_a_group_too_many() {
        assert_eq!(found("+49 30 901820 123456789"), [("phone", "+49 30 901820")]);
        assert_eq!(found("+1 415 555 2671 12"), [("phone", "+1 415 555 2671")]);
    }
}

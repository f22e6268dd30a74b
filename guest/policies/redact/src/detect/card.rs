//! Numbers of payment cards (ISO/IEC 7812-1): 13 to 19 digits whose check digit is right.

use super::{before, byte, run, separators};

/// How the digits of cards are usually grouped, the longest first.
const LAYOUTS: [&[usize]; 7] =
    [&[4, 4, 4, 4, 3], &[4, 4, 4, 4, 2], &[6, 13], &[4, 4, 4, 4], &[8, 8], &[4, 6, 5], &[4, 6, 4]];
const GROUPS: usize = 7;
const DIGITS: usize = 19;

/// The end of the card number at this place, and whether its grouping is a usual one.
pub(super) fn find(text: &str, at: usize) -> Option<(usize, bool)> {
    // Every grouping begins with four digits or more. A row of shorter numbers is passed at once.
    if !(1..4).all(|next| byte(text, at + next).is_ascii_digit()) {
        return None;
    }
    // The digits behind a decimal point are no number of their own.
    if matches!(before(text, at), b'.' | b',') && before(text, at - 1).is_ascii_digit() {
        return None;
    }
    let mut digits = Digits { digits: [0; DIGITS], count: 0 };
    let (mut groups, mut ends): ([usize; GROUPS], [(usize, usize); GROUPS]) = ([0; GROUPS], [(0, 0); GROUPS]);
    let (mut count, mut start) = (0, at);
    while count < GROUPS {
        let end = run(text, start, |byte| byte.is_ascii_digit());
        if end == start || !digits.take(text.as_bytes().get(start..end)?) {
            break;
        }
        (groups[count], ends[count]) = (end - start, (end, digits.count));
        count += 1;
        start = separators(text, end, 3);
        if start == end {
            break;
        }
    }
    let ends_card = |groups: usize| {
        let (end, length) = ends[groups - 1];
        (!byte(text, end).is_ascii_alphanumeric() && digits.are_card(length, groups > 1)).then_some(end)
    };
    let groups = &groups[..count];
    if let Some(end) =
        LAYOUTS.iter().filter(|layout| groups.starts_with(layout)).find_map(|layout| ends_card(layout.len()))
    {
        return Some((end, true));
    }
    if count > 0
        && let Some(end) = ends_card(1)
    {
        return Some((end, true));
    }
    // Rows of short numbers are tables, and long groups belong to other identifiers.
    let unusual = |length: usize| {
        let others = groups.get(1..length).unwrap_or_default();
        (4..=8).contains(&groups[0]) && others.iter().all(|digits| (2..=8).contains(digits))
    };
    (2..=count).rev().filter(|length| unusual(*length)).find_map(ends_card).map(|end| (end, false))
}

struct Digits {
    digits: [u8; DIGITS],
    count: usize,
}

impl Digits {
    /// Whether there was room for more digits.
    fn take(&mut self, more: &[u8]) -> bool {
        let Some(room) = self.digits.get_mut(self.count..self.count + more.len()) else { return false };
        room.copy_from_slice(more);
        self.count += more.len();
        true
    }

    /// Whether the first digits are a card number.
    fn are_card(&self, length: usize, grouped: bool) -> bool {
        let digits = &self.digits[..length];
        // Numbers of these lengths are mostly times and counters, so the first digit has to fit too.
        let first_fits = match (length, digits.first()) {
            (13, Some(first)) => *first == b'4',
            (14..=16, Some(first)) => *first != b'0',
            (17..=19, Some(first)) => (b'3'..=b'6').contains(first),
            _ => false,
        };
        let years = grouped && (digits.starts_with(b"19") || digits.starts_with(b"20"));
        first_fits && !years && luhn(digits)
    }
}

fn luhn(digits: &[u8]) -> bool {
    let value = |(at, digit): (usize, &u8)| match (at % 2, u32::from(digit - b'0')) {
        (0, digit) => digit,
        (_, digit) => digit * 2 / 10 + digit * 2 % 10,
    };
    digits.iter().rev().enumerate().map(value).sum::<u32>().is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use crate::detect::tests::found;

    #[test]
    fn finds_cards_of_all_networks() {
        for card in [
            "4111111111111111",
            "4111 1111 1111 1111",
            "5500-0000-0000-0004",
            "378282246310005",
            "3782 822463 10005",
            "30569309025904",
            "3056 930902 5904",
            "6011 1111 1111 1117",
            "3530111333300000",
            "2223003122003222",
            "4222222222222",
            "6304000000000000",
            "4000 0000 0000 0000 006",
            "1234567812345670",
            "4111\u{a0}1111\u{a0}1111\u{a0}1111",
            "4111\u{2011}1111\u{2011}1111\u{2011}1111",
            "4111 - 1111 - 1111 - 1111",
            "41111111 11111111",
            "4111 11 11 1111 1111",
        ] {
            assert_eq!(found(card), [("card", card)]);
            assert_eq!(found(&format!("Karte: {card}.")), [("card", card)]);
            assert_eq!(found(&format!("({card})")), [("card", card)]);
        }
    }

    #[test]
    fn what_stands_around_a_card_stays() {
        for (text, card) in [
            ("4111 1111 1111 1111 12/26", "4111 1111 1111 1111"),
            ("2024-11-23 4111 1111 1111 1111", "4111 1111 1111 1111"),
            ("卡号4111111111111111。", "4111111111111111"),
            ("pan=4111111111111111&x=1", "4111111111111111"),
            ("card_4111111111111111", "4111111111111111"),
            ("{\"n\":4111111111111111}", "4111111111111111"),
        ] {
            assert_eq!(found(text), [("card", card)], "{text}");
        }
        assert_eq!(found("4111111111111111, 5500000000000004").len(), 2);
    }

    #[test]
    fn other_numbers_are_no_cards() {
        for text in [
            "4111111111111112",
            "4111 1111 1111 1112",
            "411111111111",
            "41111111111111111111111",
            "0000 0000 0000 0000",
            "x4111111111111111",
            "4111111111111111f",
            "3.4111111111111111",
            "4111\n1111\n1111\n1111",
            "4111\t1111\t1111\t1111",
            "1700000000006",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }
}

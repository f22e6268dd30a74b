//! Finds personal data in a text.

mod card;
mod email;
mod iban;
mod key;
mod phone;
mod ssn;

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::pattern::Pattern;

/// The characters that patterns may look at in one message. It keeps hostile texts within the time of a question.
const STEPS: usize = 3_000_000;
/// The findings in one message. It keeps them within the memory of a guest.
pub(crate) const FINDINGS: usize = 1 << 16;

/// A detector that is built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detector {
    Card,
    Iban,
    Email,
    Phone,
    Ssn,
    Key,
}

impl Detector {
    pub(crate) const ALL: [Self; 6] = [Self::Card, Self::Iban, Self::Email, Self::Phone, Self::Ssn, Self::Key];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Iban => "iban",
            Self::Email => "email",
            Self::Phone => "phone",
            Self::Ssn => "ssn",
            Self::Key => "key",
        }
    }
}

/// Where something was found, in bytes of the text. The kind is an index of [`Detectors::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) kind: u8,
}

/// A message that took more than one question may take.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

/// What a message may still take.
pub(crate) struct Budget {
    steps: usize,
    findings: usize,
}

impl Budget {
    pub(crate) const fn of_message() -> Self {
        Self { steps: STEPS, findings: FINDINGS }
    }
}

/// The detectors and patterns that are in use.
pub(crate) struct Detectors {
    found: [Option<u8>; Detector::ALL.len()],
    names: Vec<String>,
    patterns: Vec<(u8, Pattern)>,
    /// Which patterns may begin with each ASCII character; the last stands for all others.
    begins: [u32; 129],
}

impl Detectors {
    /// A name that is there twice counts once.
    pub(crate) fn new(find: Vec<Detector>, patterns: Vec<(String, Pattern)>) -> Self {
        let (mut names, mut found) = (Vec::new(), [None; Detector::ALL.len()]);
        let mut kind = |name: String| {
            names.push(name);
            u8::try_from(names.len() - 1).unwrap_or(u8::MAX)
        };
        for (detector, found) in Detector::ALL.into_iter().zip(&mut found) {
            *found = find.contains(&detector).then(|| kind(detector.name().to_owned()));
        }
        let patterns: Vec<_> = patterns.into_iter().map(|(name, pattern)| (kind(name), pattern)).collect();
        let mut begins = [0; 129];
        for (one, mask) in (0_u8..128).zip(&mut begins) {
            for (at, (_, pattern)) in patterns.iter().enumerate() {
                *mask |= u32::from(pattern.begins(one.into())) << at;
            }
        }
        begins[128] = u32::MAX;
        Self { found, names, patterns, begins }
    }

    pub(crate) fn name(&self, kind: u8) -> &str {
        self.names.get(usize::from(kind)).map_or("", String::as_str)
    }

    /// The index of a name, if something is in use that has it.
    pub(crate) fn kind(&self, name: &str) -> Option<u8> {
        let index = self.names.iter().position(|known| known == name)?;
        u8::try_from(index).ok()
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// What is in a text, in order. Where findings overlap, all of them are one finding of the first one's kind.
    pub(crate) fn find(&self, text: &str, budget: &mut Budget) -> Result<Vec<Finding>, TooMuch> {
        let mut all = Vec::new();
        self.built_in(text, &mut all, budget.findings)?;
        self.patterns(text, &mut all, budget)?;
        // A sort of the standard library would be a tenth of the component; this one is small.
        let sortable = |one: Finding| (one.start, Reverse(one.end), one.kind);
        let sorted = all.into_iter().map(sortable).collect::<BinaryHeap<_>>().into_sorted_vec();
        let finding = |(start, Reverse(end), kind)| Finding { start, end, kind };
        let mut all: Vec<_> = sorted.into_iter().map(finding).collect();
        all.dedup_by(|next, first| {
            let overlap = next.start < first.end;
            if overlap {
                first.end = first.end.max(next.end);
            }
            overlap
        });
        budget.findings = budget.findings.checked_sub(all.len()).ok_or(TooMuch)?;
        Ok(all)
    }

    fn built_in(&self, text: &str, all: &mut Vec<Finding>, most: usize) -> Result<(), TooMuch> {
        let [card, iban, email, phone, ssn, key] = self.found;
        let (mut last, mut card_end) = (0_u8, 0);
        for (at, byte) in text.bytes().enumerate() {
            let mut found = |kind: Option<u8>, find: &dyn Fn() -> Option<(usize, usize)>| {
                let kind = kind?;
                let (start, end) = find()?;
                all.push(Finding { start, end, kind });
                Some(end)
            };
            let to = |end: Option<usize>| end.map(|end| (at, end));
            match byte {
                b'0'..=b'9' if !last.is_ascii_alphanumeric() => {
                    found(ssn, &|| to(ssn::find(text, at)));
                    if at >= card_end && card.is_some() {
                        let (end, usual) =
                            card::find(text, at).map_or((None, false), |(end, usual)| (Some(end), usual));
                        found(card, &|| to(end));
                        // An unusual grouping may be chance, so it must not hide a card that begins within.
                        card_end = end.filter(|_| usual).unwrap_or(card_end);
                    }
                }
                b'a'..=b'z' | b'A'..=b'Z' if !last.is_ascii_alphanumeric() => {
                    found(iban, &|| to(iban::find(text, at)));
                    found(key, &|| to(key::find(text, at)));
                }
                b'+' => {
                    found(phone, &|| to(phone::find(text, at)));
                }
                b'@' => {
                    found(email, &|| email::find(text, at));
                }
                _ => {}
            }
            last = byte;
            if all.len() > most {
                return Err(TooMuch);
            }
        }
        Ok(())
    }

    fn patterns(&self, text: &str, all: &mut Vec<Finding>, budget: &mut Budget) -> Result<(), TooMuch> {
        if self.patterns.is_empty() {
            return Ok(());
        }
        let mut before = None;
        for (at, one) in text.char_indices() {
            let mut mask = self.begins[(one as usize).min(128)];
            while let Some((kind, pattern)) = self.patterns.get(mask.trailing_zeros() as usize) {
                mask &= mask - 1;
                let (length, steps) = pattern.find(&text[at..], before);
                budget.steps = budget.steps.checked_sub(steps).ok_or(TooMuch)?;
                if let Some(length) = length {
                    all.push(Finding { start: at, end: at + length, kind: *kind });
                }
                if all.len() > budget.findings {
                    return Err(TooMuch);
                }
            }
            before = Some(one);
        }
        Ok(())
    }
}

/// Whether a character next to a word belongs to it. In scripts without blanks between words it does not.
pub(crate) fn joins(one: char) -> bool {
    one == '_' || (one.is_alphanumeric() && one < '\u{590}')
}

/// How long a blank or a hyphen at this place is, in bytes; none if something else is there. A line break is neither.
fn separator(text: &str, at: usize) -> Option<usize> {
    match text.as_bytes().get(at)? {
        b' ' | b'-' => Some(1),
        0..=127 => None,
        _ => {
            let one = text.get(at..)?.chars().next()?;
            let known = matches!(one, '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{3000}')
                || matches!(one, '\u{ad}' | '\u{2010}'..='\u{2015}' | '\u{2212}');
            known.then(|| one.len_utf8())
        }
    }
}

/// The end of up to `most` blanks and hyphens from `at` on.
fn separators(text: &str, at: usize, most: usize) -> usize {
    let mut end = at;
    for _ in 0..most {
        let Some(length) = separator(text, end) else { break };
        end += length;
    }
    end
}

/// The byte before this place, 0 at the beginning.
fn before(text: &str, at: usize) -> u8 {
    at.checked_sub(1).and_then(|at| text.as_bytes().get(at)).copied().unwrap_or(0)
}

/// The byte at this place, 0 at the end.
fn byte(text: &str, at: usize) -> u8 {
    text.as_bytes().get(at).copied().unwrap_or(0)
}

/// The end of the run of such bytes from `at` on.
fn run(text: &str, at: usize, of: impl Fn(u8) -> bool) -> usize {
    at + text.as_bytes().get(at..).unwrap_or_default().iter().take_while(|byte| of(**byte)).count()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What all detectors find: kinds and values.
    pub(crate) fn found(text: &str) -> Vec<(&'static str, &str)> {
        let detectors = Detectors::new(Detector::ALL.to_vec(), Vec::new());
        let findings = detectors.find(text, &mut Budget::of_message()).expect("the text is short");
        let name = |kind: u8| Detector::ALL[usize::from(kind)].name();
        findings.iter().map(|one| (name(one.kind), &text[one.start..one.end])).collect()
    }

    fn with_pattern(name: &str, pattern: &str) -> Detectors {
        let pattern = Pattern::read(pattern).expect("the pattern is right");
        Detectors::new(Detector::ALL.to_vec(), vec![(name.to_owned(), pattern)])
    }

    #[test]
    fn finds_all_kinds_in_one_text() {
        let text = "Jane <jane@example.com>, +49 30 901820, 4111 1111 1111 1111, DE89 3704 0044 0532 0130 00, \
                    078-05-1121, AKIAIOSFODNN7EXAMPLE";
        let kinds: Vec<_> = found(text).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, ["email", "phone", "card", "iban", "ssn", "key"]);
    }

    #[test]
    fn what_overlaps_is_one_finding() {
        let detectors = with_pattern("ticket", "T-* *");
        let text = "see T-1 jane@example.com now";
        let findings = detectors.find(text, &mut Budget::of_message()).expect("the text is short");
        let values: Vec<_> = findings.iter().map(|one| (one.kind, &text[one.start..one.end])).collect();
        assert_eq!(values, [(6, "T-1 jane@example.com")]);
    }

    #[test]
    fn ordinary_text_has_no_findings() {
        for text in [
            "",
            "Order 2024-11-23T10:30:00Z, 17 items, 1,299.00 EUR, v1.2.3, 192.168.100.200",
            "550e8400-e29b-41d4-a716-446655440000 4bf92f3577b34da6a3ce929d0e0e4736",
            "1700000000000 1700000000000000 1234567890",
            "2019 2020 2021 2022 2023 2024",
            "git@github.com:org/repo.git and @scope/pkg@1.2.3 and icon@2x.png and a @ b",
            "task-list sk-learn-models-and-other-things eyJ AKIA ghp_",
            "+0200 +1 +12 1+1=2 C++11 diff +123",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }

    #[test]
    fn hostile_texts_end_in_time() {
        let detectors = with_pattern("p", "-*-*-*-*-*-*-*-*-*-*-*-*-*-*-*#!");
        for unit in [
            "4111 ", "1-1-", "@", "a@", "a@b.", "+1", "+49 ", "DE89 ", "eyJ.", "eyJ-", "sk-", "sk-a ", "-sk-", "ghp_-",
            "-a", "é", "A1",
        ] {
            let text = unit.repeat((1 << 20) / unit.len());
            let begun = std::time::Instant::now();
            let _ = detectors.find(&text, &mut Budget::of_message());
            assert!(begun.elapsed().as_secs() < 5, "{unit} takes {:?} in a build for tests", begun.elapsed());
        }
    }

    #[test]
    fn more_than_can_be_handled_is_an_error() {
        let detectors = with_pattern("p", "-*-*-*-*-*-*-*-*-*-*#!");
        assert_eq!(detectors.find(&"-aaaaa".repeat(1 << 17), &mut Budget::of_message()), Err(TooMuch));
        assert_eq!(with_pattern("p", "#").find(&"1 ".repeat(1 << 17), &mut Budget::of_message()), Err(TooMuch));
    }
}

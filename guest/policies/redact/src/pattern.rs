//! Patterns of the operator's own: `*` is any run of word characters, `?` one character, `#` one digit, `@` one letter.
//!
//! A pattern runs as a set of states in one number, so no text makes it slow to match at one place.

use crate::detect::joins;

const ELEMENTS: usize = 63;
/// No finding is longer, so that overlapping attempts stay cheap.
const LONGEST: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Element {
    Run,
    Any,
    Digit,
    Letter,
    Literal(char),
}

impl Element {
    fn takes(self, one: char) -> bool {
        match self {
            Self::Run => one.is_alphanumeric() || one == '_',
            // A lone surrogate is read as this character, and could not be put back.
            Self::Any => one != char::REPLACEMENT_CHARACTER,
            Self::Digit => one.is_ascii_digit(),
            Self::Letter => one.is_alphabetic(),
            Self::Literal(literal) => one == literal,
        }
    }
}

/// One pattern. State `n` says that the elements before the `n`th have matched.
pub(crate) struct Pattern {
    elements: Vec<Element>,
    runs: u64,
    /// Which elements take each ASCII character.
    ascii: Box<[u64; 128]>,
}

impl Pattern {
    /// The error continues a sentence that begins with the name of the pattern.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut elements = Vec::new();
        for one in text.chars() {
            let element = match one {
                '*' => Element::Run,
                '?' => Element::Any,
                '#' => Element::Digit,
                '@' => Element::Letter,
                literal => Element::Literal(literal),
            };
            if element != Element::Run || elements.last() != Some(&Element::Run) {
                elements.push(element);
            }
        }
        if elements.len() > ELEMENTS {
            return Err(format!("is longer than {ELEMENTS} characters"));
        }
        if elements.iter().all(|element| *element == Element::Run) {
            return Err("matches anything; it needs at least one character that is not `*`".to_owned());
        }
        let mask = |test: &dyn Fn(Element) -> bool| {
            elements.iter().enumerate().fold(0, |mask, (at, element)| mask | u64::from(test(*element)) << at)
        };
        let mut ascii = Box::new([0; 128]);
        for (one, taken) in (0_u8..).zip(ascii.iter_mut()) {
            *taken = mask(&|element| element.takes(one.into()));
        }
        Ok(Self { runs: mask(&|element| element == Element::Run), ascii, elements })
    }

    /// Whether a finding may begin with this character.
    pub(crate) fn begins(&self, one: char) -> bool {
        self.closed(1) & self.takes(one) != 0
    }

    /// How long the finding is with which `text` begins, in bytes, and how many characters were looked at. `before` is the
    /// character in front of it.
    pub(crate) fn find(&self, text: &str, before: Option<char>) -> (Option<usize>, usize) {
        // A word that has begun before this place is another word.
        if before.is_some_and(joins) && text.chars().next().is_some_and(joins) {
            return (None, 1);
        }
        let end = 1_u64 << self.elements.len();
        let (mut states, mut last, mut found, mut steps) = (self.closed(1), before, None, 0);
        for (at, one) in text.char_indices().take(LONGEST + 1) {
            if states & end != 0 && at > 0 && !(joins(one) && last.is_some_and(joins)) {
                found = Some(at);
            }
            let taken = states & self.takes(one);
            states = self.closed((taken & !self.runs) << 1 | taken & self.runs);
            if states == 0 {
                return (found, steps + 1);
            }
            last = Some(one);
            steps += 1;
        }
        if states & end != 0 && steps <= LONGEST && steps > 0 {
            found = Some(text.len());
        }
        (found, steps)
    }

    fn takes(&self, one: char) -> u64 {
        match self.ascii.get(one as usize) {
            Some(taken) => *taken,
            None => {
                let takes = |(at, element): (usize, &Element)| u64::from(element.takes(one)) << at;
                self.elements.iter().enumerate().map(takes).sum()
            }
        }
    }

    /// A run may be empty, so whoever stands before it stands behind it too.
    const fn closed(&self, states: u64) -> u64 {
        states | (states & self.runs) << 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first finding in a text.
    fn first<'a>(pattern: &str, text: &'a str) -> Option<&'a str> {
        let pattern = Pattern::read(pattern).expect("the pattern is right");
        let mut before = None;
        for (at, one) in text.char_indices() {
            if pattern.begins(one)
                && let (Some(length), _) = pattern.find(&text[at..], before)
            {
                return Some(&text[at..at + length]);
            }
            before = Some(one);
        }
        None
    }

    #[test]
    fn each_element_takes_what_it_stands_for() {
        assert_eq!(first("EMP-####", "of EMP-1234, and"), Some("EMP-1234"));
        assert_eq!(first("EMP-####", "of EMP-123x"), None);
        assert_eq!(first("@@-##", "é1 öß-42."), Some("öß-42"));
        assert_eq!(first("A?C", "A C"), Some("A C"));
        assert_eq!(first("A?C", "A\u{fffd}C"), None);
        assert_eq!(first("case *", "in case Miller_7 we"), Some("case Miller_7"));
        assert_eq!(first("*-secret", "the x9-secret is"), Some("x9-secret"));
        assert_eq!(first("a.c", "abc a.c"), Some("a.c"));
        assert_eq!(first("a*b*c", "aXbYbZc"), Some("aXbYbZc"));
        assert_eq!(first("p*", "p"), Some("p"));
    }

    #[test]
    fn a_finding_is_no_part_of_a_word() {
        assert_eq!(first("####", "12345"), None);
        assert_eq!(first("####", "12345 6789"), Some("6789"));
        assert_eq!(first("EMP-####", "TEMP-1234"), None);
        assert_eq!(first("EMP-####", "EMP-12345"), None);
        assert_eq!(first("EMP-####", "员工EMP-1234号"), Some("EMP-1234"));
        assert_eq!(first("-####-", "x-1234-y"), Some("-1234-"));
    }

    #[test]
    fn the_longest_finding_counts() {
        assert_eq!(first("a *", "a bcd e"), Some("a bcd"));
        assert_eq!(first("*-*", "ab-cd-ef"), Some("ab-cd"));
    }

    #[test]
    fn refuses_what_cannot_be_meant() {
        assert!(Pattern::read("").is_err());
        assert!(Pattern::read("***").is_err());
        assert!(Pattern::read(&"a".repeat(64)).is_err());
        assert!(Pattern::read(&"a".repeat(63)).is_ok());
    }

    #[test]
    fn nothing_longer_than_the_limit_is_looked_at() {
        let pattern = Pattern::read("a*#").expect("the pattern is right");
        let text = "a".repeat(5000);
        let (found, steps) = pattern.find(&text, None);
        assert_eq!(found, None);
        assert!(steps <= LONGEST + 1);
        let (found, _) = pattern.find(&format!("{}1", "a".repeat(255)), None);
        assert_eq!(found, Some(256));
    }
}

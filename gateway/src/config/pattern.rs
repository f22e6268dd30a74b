//! Patterns of names: `*` stands for any number of characters, `?` for one.

use std::str::FromStr;

use wildmatch::WildMatch;

use super::UpstreamName;
use super::access::ItemPattern;
use super::read::Unreadable;
use super::string::strings;

/// The longest pattern, in bytes.
const LONGEST: usize = 1024;

/// A pattern of names.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    matcher: Matcher,
    /// What it matches besides: the accounts of the service that it names.
    also: Vec<UpstreamName>,
}

#[derive(Clone, Debug)]
enum Matcher {
    Everything,
    /// There is no `*` or `?` in it.
    Exact,
    /// All before the first `*` or `?`, and the whole.
    Wild(usize, WildMatch),
}

impl Pattern {
    /// Whether a name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let matches = match &self.matcher {
            Matcher::Everything => true,
            Matcher::Exact => self.text == name,
            Matcher::Wild(_, wild) => wild.matches(name),
        };
        matches || self.also.iter().any(|also| also.as_str() == name)
    }

    /// What matches the name of an upstream alone.
    pub(super) fn exactly(name: &UpstreamName) -> Self {
        Self { text: name.to_string(), matcher: Matcher::Exact, also: Vec::new() }
    }

    /// The same, which matches these names too.
    pub(super) fn or(self, also: Vec<UpstreamName>) -> Self {
        Self { also, ..self }
    }

    /// Whether some name that begins with `start` may match.
    pub(super) fn may_begin(&self, start: &str) -> bool {
        match &self.matcher {
            Matcher::Everything => true,
            Matcher::Exact => self.text.starts_with(start),
            Matcher::Wild(literal, _) => {
                let own = self.text.get(..*literal).unwrap_or_default();
                own.starts_with(start) || start.starts_with(own)
            }
        }
    }

    /// Whether it matches every name.
    #[must_use]
    pub const fn is_everything(&self) -> bool {
        matches!(self.matcher, Matcher::Everything)
    }

    /// The name that it alone matches, if there is just one.
    #[must_use]
    pub fn exact(&self) -> Option<&str> {
        (matches!(self.matcher, Matcher::Exact) && self.also.is_empty()).then_some(self.text.as_str())
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// By text.
impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl FromStr for Pattern {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        if text.is_empty() {
            return Err(Unreadable::new("an empty pattern matches nothing", "`*` matches everything"));
        }
        if text.len() > LONGEST {
            return Err(Unreadable::new(format!("a pattern has at most {LONGEST} bytes"), ""));
        }
        let matcher = match text.find(['*', '?']) {
            None => Matcher::Exact,
            Some(_) if text.bytes().all(|byte| byte == b'*') => Matcher::Everything,
            Some(literal) => Matcher::Wild(literal, WildMatch::new(text)),
        };
        Ok(Self { text: text.to_owned(), matcher, also: Vec::new() })
    }
}

impl FromStr for ItemPattern {
    type Err = Unreadable;

    /// An address may have `__` in it, and no upstream's name has a `:`.
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        match text.split_once("__").filter(|(upstream, _)| !upstream.contains([':', '/'])) {
            Some((upstream, native)) => Ok(Self { upstream: Some(upstream.parse()?), native: native.parse()? }),
            None => Ok(Self { upstream: None, native: text.parse()? }),
        }
    }
}

strings! {
    Pattern: "a pattern such as \"read_*\"", { "type": "string", "minLength": 1 };
    ItemPattern: "a pattern such as \"read_*\" or \"github__*\"", { "type": "string", "minLength": 1 };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("read", "read", true),
            ("read", "read_all", false),
            ("read_*", "read_all", true),
            ("read_*", "Read_all", false),
            ("*_all", "read_all", true),
            ("r?ad", "road", true),
            ("r?ad", "rd", false),
            ("a.c", "abc", false),
            ("file:///public/*", "file:///public/../etc", true),
        ] {
            assert_eq!(pattern.parse::<Pattern>().unwrap().matches(name), matches, "{pattern} {name}");
        }
        assert!("".parse::<Pattern>().is_err());
    }

    #[test]
    fn what_is_before_two_underscores_is_of_the_upstream() {
        let pattern = |text: &str| text.parse::<ItemPattern>().unwrap();
        assert!(pattern("git*__delete").matches("github", "delete"));
        assert!(!pattern("github__delete").matches("gitlab", "delete"));
        assert!(!pattern("github__delete").matches("gitlab", "github__delete"));
        assert!(pattern("delete").matches("gitlab", "delete"));
        // An upstream's own name may have them too.
        assert!(pattern("*__a__b").matches("x", "a__b"));
        assert!(pattern("file:///a__b").matches("x", "file:///a__b"));
    }

    #[test]
    fn a_template_may_be_matched_by_what_its_addresses_begin_with() {
        let may = |pattern: &str, template: &str| pattern.parse::<ItemPattern>().unwrap().may_match("x", template);
        assert!(may("file:///public/*", "file:///{path}"));
        assert!(may("file:///public/*", "file:///public/{path}"));
        assert!(may("file:///public/a", "file:///public/{path}"));
        assert!(may("*", "{all}"));
        assert!(!may("file:///public/*", "file:///private/{path}"));
        assert!(!may("db://*", "file:///{path}"));
    }
}

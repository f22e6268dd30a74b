//! The name of an upstream: the prefix of its tools, so its letters are limited to what every host accepts there.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// The longest name of an upstream: half of the 64 characters that hosts allow for a tool's public name.
const LONGEST: usize = 32;

/// Where clients of HTTP+SSE send messages, below the address of each upstream.
const MESSAGES: &str = "messages";

/// The name of an upstream, such as `github`. Cheap to clone.
///
/// Letters, digits, `-` and `_`; begins with a letter or digit, does not end with `_` and has no `__` in it, so that
/// `<upstream>__<tool>` can be taken apart again.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpstreamName(Arc<str>);

/// Why a text is not the name of an upstream.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// It has no characters.
    #[error("the name of an upstream cannot be empty")]
    Empty,
    /// It is longer than 32 characters.
    #[error("the name of an upstream has at most {LONGEST} characters")]
    TooLong,
    /// It has this character in it, or begins with it.
    #[error("the name of an upstream cannot {} {character:?}", if *.first { "begin with" } else { "contain" })]
    Character {
        /// The first character that does not belong.
        character: char,
        /// Whether it is the first of the name.
        first: bool,
    },
    /// It is a part of Weir's own addresses.
    #[error("`{MESSAGES}` is an address of Weir's own; call the upstream otherwise")]
    Taken,
    /// It contains `__` or ends with `_`.
    #[error("the name of an upstream cannot contain `__` or end with `_`, which parts it from the name of its tools")]
    Separator,
}

impl UpstreamName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name that comes nearest to a text, if the text is none.
#[must_use]
pub fn nearest(text: &str) -> Option<UpstreamName> {
    let mut name = String::new();
    for letter in text.chars() {
        let letter = if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '-' };
        let separates = |letter| matches!(letter, '-' | '_');
        if name.len() < LONGEST && !(separates(letter) && (name.is_empty() || name.ends_with(separates))) {
            name.push(letter);
        }
    }
    name.trim_end_matches(['-', '_']).parse().ok()
}

impl FromStr for UpstreamName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let allowed = |(at, character): &(usize, char)| {
            character.is_ascii_alphanumeric() || (*at > 0 && matches!(character, '-' | '_'))
        };
        if let Some((at, character)) = text.char_indices().find(|each| !allowed(each)) {
            return Err(NameError::Character { character, first: at == 0 });
        }
        if text.len() > LONGEST {
            return Err(NameError::TooLong);
        }
        if text.contains("__") || text.ends_with('_') {
            return Err(NameError::Separator);
        }
        if text == MESSAGES {
            return Err(NameError::Taken);
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for UpstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for UpstreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for UpstreamName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for UpstreamName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::{NameError, UpstreamName, nearest};

    #[test]
    fn finds_a_name_for_any_text() {
        for (text, name) in [
            ("my docs", "my-docs"),
            ("@scope/server (old)", "scope-server-old"),
            ("git__hub_", "git_hub"),
            ("größe", "gr-e"),
            (&"a ".repeat(40), &"a-".repeat(16)[..31]),
        ] {
            assert_eq!(nearest(text).as_ref().map(UpstreamName::as_str), Some(name));
        }
        for text in ["", "  ", "__", "messages"] {
            assert_eq!(nearest(text), None, "{text}");
        }
    }

    #[test]
    fn takes_what_can_prefix_a_tool() {
        for good in ["a", "github", "GitHub-2", "a_b", "9", "x-", &"a".repeat(32)] {
            assert_eq!(good.parse::<UpstreamName>().map(|name| name.to_string()), Ok(good.to_owned()));
        }
    }

    #[test]
    fn refuses_the_rest() {
        let character = |character, first| NameError::Character { character, first };
        for (bad, error) in [
            ("", NameError::Empty),
            ("-a", character('-', true)),
            ("_a", character('_', true)),
            ("a.b", character('.', false)),
            ("a b", character(' ', false)),
            ("größe", character('ö', false)),
            ("a__b", NameError::Separator),
            ("a_", NameError::Separator),
            ("messages", NameError::Taken),
            (&"a".repeat(33), NameError::TooLong),
        ] {
            assert_eq!(bad.parse::<UpstreamName>(), Err(error), "{bad}");
        }
    }
}

//! Values that must not be seen.

use std::fmt;

use zeroize::Zeroizing;

/// A text that cannot be printed or serialised; wiped from memory when dropped.
///
/// Whoever needs it says so with [`expose`](Self::expose), which is easy to search for.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a value.
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// The value itself. Never print it, nor what is built from it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether it is made of printable ASCII characters alone, as the value of a header is (RFC 9110 §5.5).
    pub fn is_printable(&self) -> bool {
        self.0.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    }
}

impl From<Zeroizing<String>> for Secret {
    fn from(value: Zeroizing<String>) -> Self {
        Self(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

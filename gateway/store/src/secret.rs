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
    #[must_use]
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// The value itself. Never print it, nor what is built from it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

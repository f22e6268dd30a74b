//! Public names: `<upstream>__<name>`, within what hosts and models accept.

use sha2::{Digest, Sha256};

/// The longest public name, in characters. The Anthropic API and VS Code accept 64 and fail as a whole on one more.
pub(super) const BUDGET: usize = 64;

/// How many hexadecimal digits of a hash stand in for what was cut off.
const HASH: usize = 8;

/// The public name of an upstream's tool or prompt.
///
/// A name over [`BUDGET`] keeps its beginning and ends in a hash of the whole, so that it is the same on every start
/// and on every machine.
pub(super) fn public(upstream: &str, name: &str) -> String {
    let whole = format!("{upstream}__{name}");
    if whole.chars().count() <= BUDGET {
        return whole;
    }
    let mut short: String = whole.chars().take(BUDGET - HASH - 1).collect();
    short.push('_');
    short.push_str(&hex::encode(&Sha256::digest(whole.as_bytes())[..HASH / 2]));
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_whole() {
        assert_eq!(public("files", "read"), "files__read");
        assert_eq!(public("a", &"x".repeat(61)).len(), 64);
    }

    #[test]
    fn long_names_are_cut_the_same_way_every_time_and_stay_apart() {
        let long = public("files", &"x".repeat(80));
        assert_eq!(long.len(), BUDGET);
        assert_eq!(long, public("files", &"x".repeat(80)));
        assert_ne!(long, public("files", &"x".repeat(81)));
        assert!(long.starts_with("files__xxx"));
    }

    #[test]
    fn characters_are_counted_and_not_bytes() {
        assert_eq!(public("f", &"é".repeat(80)).chars().count(), BUDGET);
    }
}

//! The capabilities that a policy may be granted by name.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// A capability that the configuration grants to a policy (`grants = ["log"]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyGrant {
    /// Lines in the gateway's log.
    Log,
    /// The time of day.
    Clock,
    /// Randomness fit for secrets.
    Random,
    /// The text of the upstream's secrets. Placing a secret in a header needs no grant; reading it does.
    Secrets,
    /// Requests to services whose origins the configuration names.
    Http,
    /// A small store of its own.
    Store,
}

/// A name that grants nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no capability is called {name:?}; there are {}", list(&PolicyGrant::ALL))]
pub struct UnknownGrant {
    /// The name as it was written.
    pub name: String,
}

impl PolicyGrant {
    /// Every capability, in the order in which messages list them.
    pub const ALL: [Self; 6] = [Self::Log, Self::Clock, Self::Random, Self::Secrets, Self::Http, Self::Store];

    /// The name in the configuration, which is that of the WIT interface too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Clock => "clock",
            Self::Random => "random",
            Self::Secrets => "secrets",
            Self::Http => "http",
            Self::Store => "store",
        }
    }
}

impl fmt::Display for PolicyGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyGrant {
    type Err = UnknownGrant;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|grant| grant.name() == name).ok_or_else(|| UnknownGrant { name: name.to_owned() })
    }
}

/// The names with commas, for a sentence.
pub(super) fn list(grants: &[PolicyGrant]) -> String {
    grants.iter().map(|grant| grant.name()).collect::<Vec<_>>().join(", ")
}

/// The line that grants them, for pasting into the configuration.
pub(super) fn line(grants: &[PolicyGrant]) -> String {
    let names: Vec<_> = grants.iter().map(|grant| format!("\"{grant}\"")).collect();
    format!("grants = [{}]", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for grant in PolicyGrant::ALL {
            assert_eq!(grant.name().parse(), Ok(grant));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "disk".parse::<PolicyGrant>().map_err(|error| error.to_string());
        assert_eq!(
            error.as_ref().map_err(String::as_str),
            Err("no capability is called \"disk\"; there are log, clock, random, secrets, http, store")
        );
    }

    #[test]
    fn the_line_can_be_pasted() {
        assert_eq!(line(&[PolicyGrant::Log, PolicyGrant::Clock]), r#"grants = ["log", "clock"]"#);
    }
}

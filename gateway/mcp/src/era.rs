//! The two ways the protocol works, and the versions that belong to each.

use std::fmt;

/// The versions that open with `initialize`, newest first.
pub const LEGACY_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The version to offer when a peer names none that is known.
pub const LATEST_LEGACY: &str = LEGACY_VERSIONS[0];

/// The version that a legacy request without an `MCP-Protocol-Version` header is taken to speak.
pub const ASSUMED_LEGACY: &str = "2025-03-26";

/// The stateless versions, newest first.
pub const MODERN_VERSIONS: [&str; 1] = ["2026-07-28"];

/// What Weir itself speaks in the modern era.
pub const LATEST_MODERN: &str = MODERN_VERSIONS[0];

/// Which of the protocol's two designs a peer speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// 2024-11-05 to 2025-11-25: `initialize`, then a session.
    Legacy,
    /// 2026-07-28 and later: every request stands alone.
    Modern,
}

impl Era {
    /// The one that this is not.
    pub const fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }

    /// How it is called.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The era of a version; none for what is neither a known legacy version nor a date from the first modern version on.
///
/// A later date is modern although nobody here speaks it: it must be refused as an unknown version, not served by a
/// session.
pub fn era_of(version: &str) -> Option<Era> {
    if LEGACY_VERSIONS.contains(&version) {
        return Some(Era::Legacy);
    }
    let first = MODERN_VERSIONS[MODERN_VERSIONS.len() - 1];
    (is_date(version) && version >= first).then_some(Era::Modern)
}

/// The version to answer `initialize` with: the one asked for if it is known, else the newest legacy one.
pub fn negotiate(requested: &str) -> &'static str {
    LEGACY_VERSIONS.into_iter().find(|version| *version == requested).unwrap_or(LATEST_LEGACY)
}

fn is_date(version: &str) -> bool {
    let shape = |(at, byte): (usize, u8)| {
        if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() }
    };
    version.len() == 10 && version.bytes().enumerate().all(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_belong_to_eras() {
        for version in LEGACY_VERSIONS {
            assert_eq!(era_of(version), Some(Era::Legacy));
            assert_eq!(negotiate(version), version);
        }
        for version in ["2026-07-28", "2026-07-29", "2031-01-01"] {
            assert_eq!(era_of(version), Some(Era::Modern), "{version}");
            assert_eq!(negotiate(version), LATEST_LEGACY);
        }
        for version in ["", "1900-01-01", "2025-11-26", "2024-10-07", "2026-07-28 ", "2026-7-28", "9999", "drafts-x-y"]
        {
            assert_eq!(era_of(version), None, "{version}");
        }
    }
}

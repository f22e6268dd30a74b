//! Durations and sizes as people write them: a whole number and a unit, such as `"30s"` or `"4MiB"`.

use std::str::FromStr;
use std::time::Duration;

use super::read::Unreadable;

/// The longest duration that a setting may have. Longer ones are mistakes, and sums of such stay far from overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The largest size that a setting may have, in bytes.
const LARGEST: u64 = 1 << 30;

/// The largest memory that a process may be given, in bytes.
const MOST_MEMORY: u64 = 1 << 40;

/// A duration above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period(pub(super) Duration);

/// A size in bytes, above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub(super) usize);

/// The memory of a process in bytes, above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory(pub(super) u64);

impl FromStr for Period {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let (number, unit) = split(text);
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => 0,
        };
        let duration = number.and_then(|number| number.checked_mul(millis)).map(Duration::from_millis);
        match duration {
            Some(duration) if !duration.is_zero() && duration <= LONGEST => Ok(Self(duration)),
            _ => Err(Unreadable::new(
                "this is not a duration",
                "write a number above zero and ms, s, m, h or d: \"250ms\", \"30s\", \"2m\"; at most 365d",
            )),
        }
    }
}

impl FromStr for Size {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        match bytes(text, LARGEST).map(usize::try_from) {
            Some(Ok(size)) => Ok(Self(size)),
            _ => Err(Unreadable::new(
                "this is not a size",
                "write a number above zero and B, KB, KiB, MB, MiB, GB or GiB: \"64KiB\", \"4MiB\"; at most 1GiB",
            )),
        }
    }
}

impl FromStr for Memory {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        bytes(text, MOST_MEMORY).map(Self).ok_or_else(|| {
            Unreadable::new(
                "this is not a size",
                "write a number above zero and B, KB, KiB, MB, MiB, GB or GiB: \"512MiB\", \"4GiB\"; at most 1024GiB",
            )
        })
    }
}

/// The bytes of a size above zero, up to `largest`.
fn bytes(text: &str, largest: u64) -> Option<u64> {
    let (number, unit) = split(text);
    let bytes = match unit {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        _ => 0,
    };
    number?.checked_mul(bytes).filter(|size| (1..=largest).contains(size))
}

/// The leading digits as a number, and the rest without the blanks between.
fn split(text: &str) -> (Option<u64>, &str) {
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    (number.parse().ok(), unit.trim_start())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Period, Size};

    #[test]
    fn reads_durations() {
        for (text, millis) in
            [("5s", 5_000), ("250ms", 250), ("2m", 120_000), ("1 h", 3_600_000), ("365d", 31_536_000_000)]
        {
            assert_eq!(text.parse::<Period>().map(|period| period.0), Ok(Duration::from_millis(millis)));
        }
        for bad in ["", "5", "s", "0s", "-1s", "1.5s", "5S", "366d", "99999999999999999999s", "18446744073709551615d"] {
            assert!(bad.parse::<Period>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_sizes() {
        for (text, bytes) in [("1B", 1), ("64KiB", 65_536), ("1MB", 1_000_000), ("4 MiB", 4_194_304), ("1GiB", 1 << 30)]
        {
            assert_eq!(text.parse::<Size>().map(|size| size.0), Ok(bytes));
        }
        for bad in ["", "4", "MiB", "0B", "4mib", "2GiB", "1.5MiB", "18446744073709551615KiB"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}

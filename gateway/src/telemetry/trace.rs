//! Which trace a call belongs to (W3C Trace Context, section 3.2.2). Weir passes the context of a call that it does not trace
//! on as it came, and notes its ids.

use std::cell::RefCell;

/// Where a request says to which trace it belongs: a header, and a key of `_meta` (SEP-414).
pub const TRACEPARENT: &str = "traceparent";

/// Whether the spans of a trace are recorded: a bit of the flags.
const SAMPLED: u8 = 1;

/// How long a `traceparent` of this version is.
const LENGTH: usize = 55;

/// The ids of a trace and of one span in it: the one that has called, or Weir's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace: [u8; 32],
    span: [u8; 16],
    flags: u8,
}

impl TraceParent {
    /// What a `traceparent` says: `00-<trace>-<span>-<flags>`; none if it is malformed. Of versions to come the same part
    /// counts.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let parts = text
            .get(..LENGTH)
            .filter(|_| text.len() == LENGTH || text.get(LENGTH) == Some(&b'-') && !text.starts_with(b"00"))?;
        let [version, trace, span, flags] = [&parts[..2], &parts[3..35], &parts[36..52], &parts[53..]];
        let hexadecimal = |id: &[u8]| id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_some = |id: &[u8]| hexadecimal(id) && id.iter().any(|byte| *byte != b'0');
        let parted = [2, 35, 52].iter().all(|at| parts[*at] == b'-');
        let good =
            parted && hexadecimal(version) && version != b"ff" && is_some(trace) && is_some(span) && hexadecimal(flags);
        let flags = std::str::from_utf8(flags).ok().filter(|_| good)?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        Some(Self { trace: trace.try_into().ok()?, span: span.try_into().ok()?, flags })
    }

    /// The first span of a trace that begins here, which is recorded; none if the system gives no chance.
    #[must_use]
    pub fn root() -> Option<Self> {
        Some(Self { trace: random_digits()?, span: random_digits()?, flags: SAMPLED })
    }

    /// Another span of the same trace, which is recorded; none if the system gives no chance.
    #[must_use]
    pub fn child(&self) -> Option<Self> {
        Some(Self { trace: self.trace, span: random_digits()?, flags: SAMPLED })
    }

    /// Whether whoever has called records its spans.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// As `traceparent` says it.
    #[must_use]
    pub fn text(&self) -> [u8; LENGTH] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        text[3..35].copy_from_slice(&self.trace);
        text[36..52].copy_from_slice(&self.span);
        [text[53], text[54]] = [self.flags >> 4, self.flags & 15].map(digit);
        text
    }

    /// The id of the trace, in small hexadecimal digits.
    #[must_use]
    pub fn trace(&self) -> &str {
        std::str::from_utf8(&self.trace).unwrap_or_default()
    }

    /// The id of the span that has called, in small hexadecimal digits.
    #[must_use]
    pub fn span(&self) -> &str {
        std::str::from_utf8(&self.span).unwrap_or_default()
    }
}

/// The hexadecimal digit of a number below 16.
const fn digit(value: u8) -> u8 {
    value + if value < 10 { b'0' } else { b'a' - 10 }
}

/// How many random bytes a thread asks the system for at once.
const RANDOM: usize = 512;

/// Random bytes that no id has, at the end.
struct RandomBytes {
    bytes: [u8; RANDOM],
    left: usize,
}

/// `N` small hexadecimal digits by chance, at most 64. All are zero once in 2⁶⁴ times.
fn random_digits<const N: usize>() -> Option<[u8; N]> {
    thread_local! {
        static RANDOM_BYTES: RefCell<RandomBytes> = const { RefCell::new(RandomBytes { bytes: [0; RANDOM], left: 0 }) };
    }
    RANDOM_BYTES.with_borrow_mut(|random| {
        // A system call for each id would cost as much as the rest of its span.
        if random.left < N {
            getrandom::fill(&mut random.bytes).ok()?;
            random.left = RANDOM;
        }
        let start = random.left - N;
        let mut digits: [u8; N] = random.bytes[start..random.left].try_into().ok()?;
        random.left = start;
        for digit in &mut digits {
            *digit = self::digit(*digit & 15);
        }
        Some(digits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_are_taken_where_the_context_is_well_formed() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let read = TraceParent::parse(good.as_bytes());
        let ids = read.map(|read| (read.trace().to_owned(), read.span().to_owned()));
        assert_eq!(ids, Some(("0af7651916cd43dd8448eb211c80319c".to_owned(), "b7ad6b7169203331".to_owned())));
        assert!(TraceParent::parse(b"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes").is_some());
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{1b}",
        ] {
            assert_eq!(TraceParent::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_child_is_of_the_same_trace_and_says_so() {
        let parent = TraceParent::parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        assert_eq!(parent.map(|parent| parent.is_sampled()), Some(false));
        let child = parent.and_then(|parent| parent.child()).map(|child| child.text().to_vec()).unwrap_or_default();
        let child = String::from_utf8(child).unwrap_or_default();
        assert!(child.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && child.ends_with("-01"), "{child}");
        assert!(!child.contains("b7ad6b7169203331"), "{child}");
        assert!(TraceParent::parse(child.as_bytes()).is_some_and(|child| child.is_sampled()));
        assert_ne!(TraceParent::root(), TraceParent::root());
    }
}

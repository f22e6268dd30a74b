//! Which trace a call belongs to (W3C Trace Context, section 3.2.2). Weir passes the context on as it came, and notes its ids.

use std::fmt;

/// The ids of a trace and of the span that has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace: [u8; 32],
    span: [u8; 16],
}

/// An id in small hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub struct HexId<'a>(&'a [u8]);

impl TraceParent {
    /// What a `traceparent` says: `00-<trace>-<span>-<flags>`; none if it is malformed. Of versions to come the same part
    /// counts.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let parts =
            text.get(..55).filter(|_| text.len() == 55 || text.get(55) == Some(&b'-') && !text.starts_with(b"00"))?;
        let [version, trace, span, flags] = [&parts[..2], &parts[3..35], &parts[36..52], &parts[53..]];
        let hexadecimal = |id: &[u8]| id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_some = |id: &[u8]| hexadecimal(id) && id.iter().any(|byte| *byte != b'0');
        let parted = [2, 35, 52].iter().all(|at| parts[*at] == b'-');
        let good =
            parted && hexadecimal(version) && version != b"ff" && is_some(trace) && is_some(span) && hexadecimal(flags);
        good.then(|| Some(Self { trace: trace.try_into().ok()?, span: span.try_into().ok()? }))?
    }

    /// The id of the trace.
    #[must_use]
    pub const fn trace(&self) -> HexId<'_> {
        HexId(&self.trace)
    }

    /// The id of the span that has called.
    #[must_use]
    pub const fn span(&self) -> HexId<'_> {
        HexId(&self.span)
    }
}

impl fmt::Display for HexId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| fmt::Write::write_char(f, char::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_are_taken_where_the_context_is_well_formed() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let read = TraceParent::parse(good.as_bytes());
        let ids = read.map(|read| (read.trace().to_string(), read.span().to_string()));
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
}

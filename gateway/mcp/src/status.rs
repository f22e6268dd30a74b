//! The HTTP status of a JSON-RPC error.

use crate::Era;
use crate::answer::{
    HEADER_MISMATCH, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY, PARSE_ERROR, UNSUPPORTED_VERSION,
};

/// The status to put an error on that answers a request, when it came without one, as from a stdio upstream.
///
/// In the legacy era errors travel in-band, so it is always 200; what cannot be read at all is refused before this
/// applies, with 400. In the modern era the status is part of what the client learns the era from, so the codes that the
/// specification gives a status get it. -32602 is 200 here: only missing `_meta` keys make it a 400, and that is found
/// by [`classify`](crate::classify::classify).
pub fn http_status(era: Era, code: i64) -> u16 {
    match (era, code) {
        (Era::Legacy, _) => 200,
        (Era::Modern, METHOD_NOT_FOUND) => 404,
        (Era::Modern, PARSE_ERROR | INVALID_REQUEST) => 400,
        (Era::Modern, HEADER_MISMATCH | MISSING_CAPABILITY | UNSUPPORTED_VERSION) => 400,
        (Era::Modern, _) => 200,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modern_errors_have_their_status() {
        let cases = [(-32601, 404), (-32700, 400), (-32600, 400), (-32020, 400), (-32021, 400), (-32022, 400)];
        for (code, status) in cases {
            assert_eq!(http_status(Era::Modern, code), status, "{code}");
            assert_eq!(http_status(Era::Legacy, code), 200, "{code}");
        }
        for code in [-32602, -32603, -32000, 0, 17] {
            assert_eq!(http_status(Era::Modern, code), 200, "{code}");
        }
    }
}

//! The HTTP headers of MCP: their names, the encoding of their values, and what `Accept` and `Content-Type` must say.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::json;

/// The protocol version of a request.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// The session of the legacy era.
pub const SESSION_ID: &str = "mcp-session-id";
/// Mirrors `method` (2026-07-28).
pub const METHOD: &str = "mcp-method";
/// Mirrors `params.name`, `params.uri` or `params.taskId` (2026-07-28).
pub const NAME: &str = "mcp-name";
/// What the name of a header begins with that mirrors an argument of a tool (2026-07-28).
pub const PARAM_PREFIX: &str = "mcp-param-";
/// Where to resume an event stream (legacy).
pub const LAST_EVENT_ID: &str = "last-event-id";

/// The media type of messages.
pub const JSON: &str = "application/json";
/// The media type of event streams.
pub const EVENT_STREAM: &str = "text/event-stream";

/// What the official clients accept: all that Weir sends.
const AS_MOST_SAY: &str = "application/json, text/event-stream";

const SENTINEL: (&str, &str) = ("=?base64?", "?=");

/// Encodes a value for `Mcp-Name` or `Mcp-Param-*`.
///
/// What a header can carry goes as it is. Other characters, white space at an edge and what looks like the sentinel go
/// as `=?base64?…?=`.
pub fn encode_value(value: &str) -> Cow<'_, str> {
    let edges = value.starts_with(OWS) || value.ends_with(OWS);
    if carries(value) && !edges && wrapped(value).is_none() {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("{}{}{}", SENTINEL.0, STANDARD.encode(value), SENTINEL.1))
}

/// Decodes the value of `Mcp-Name` or `Mcp-Param-*`; none if it holds characters that a header must not carry, or a
/// sentinel around what is not base64 of UTF-8.
pub fn decode_value(value: &str) -> Option<Cow<'_, str>> {
    let value = trim(value);
    if !carries(value) {
        return None;
    }
    let Some(inner) = wrapped(value) else {
        return Some(Cow::Borrowed(value));
    };
    String::from_utf8(STANDARD.decode(inner).ok()?).ok().map(Cow::Owned)
}

/// The value of an `Mcp-Param-*` header for an argument given as raw JSON; none for what has no header: `null`, objects,
/// arrays and absent arguments.
pub fn param_value(raw: &[u8]) -> Option<String> {
    match raw.first()? {
        b'"' => json::string(raw).map(|text| encode_value(&text).into_owned()),
        b't' | b'f' | b'-' | b'0'..=b'9' => std::str::from_utf8(raw).ok().map(str::to_owned),
        _ => None,
    }
}

/// Whether an `Accept` header allows both a message and an event stream, as POST demands.
pub fn accepts_json_and_events(accept: &str) -> bool {
    accepts(accept, JSON) && accepts(accept, EVENT_STREAM)
}

/// Whether an `Accept` header allows a message.
pub fn accepts_json(accept: &str) -> bool {
    accepts(accept, JSON)
}

/// Whether an `Accept` header allows an event stream, as GET demands.
pub fn accepts_events(accept: &str) -> bool {
    accepts(accept, EVENT_STREAM)
}

/// Whether a `Content-Type` is `application/json`, with whatever parameters.
pub fn is_json(content_type: &str) -> bool {
    essence(content_type).eq_ignore_ascii_case(JSON)
}

/// Whether a `Content-Type` is `text/event-stream`, with whatever parameters.
pub fn is_event_stream(content_type: &str) -> bool {
    essence(content_type).eq_ignore_ascii_case(EVENT_STREAM)
}

const OWS: [char; 2] = [' ', '\t'];

/// Takes optional white space off both ends (RFC 9110 §5.6.3).
pub(crate) fn trim(value: &str) -> &str {
    value.trim_matches(OWS)
}

/// Whether a header can carry the value as it is: visible ASCII, space and tab.
pub(crate) fn carries(value: &str) -> bool {
    value.bytes().all(|b| matches!(b, b' '..=b'~' | b'\t'))
}

fn wrapped(value: &str) -> Option<&str> {
    value.strip_prefix(SENTINEL.0)?.strip_suffix(SENTINEL.1)
}

fn essence(media_type: &str) -> &str {
    trim(media_type.split(';').next().unwrap_or_default())
}

/// RFC 9110 §12.5.1, as far as it concerns us: the most exact range decides, and `q=0` refuses.
fn accepts(accept: &str, wanted: &str) -> bool {
    if accept == AS_MOST_SAY {
        return true;
    }
    let family = wanted.split('/').next().unwrap_or_default();
    let rank = |range: &str| match range.split_once('/')? {
        _ if range.eq_ignore_ascii_case(wanted) => Some(2),
        (kind, "*") if kind.eq_ignore_ascii_case(family) => Some(1),
        ("*", "*") => Some(0),
        _ => None,
    };
    accept
        .split(',')
        .filter_map(|range| Some((rank(essence(range))?, !refuses(range))))
        .max()
        .is_some_and(|(_, allowed)| allowed)
}

fn refuses(range: &str) -> bool {
    let zero = |q: &str| q.starts_with('0') && q.bytes().all(|b| matches!(b, b'0' | b'.'));
    range
        .split(';')
        .skip(1)
        .filter_map(|parameter| parameter.split_once('='))
        .any(|(name, value)| trim(name).eq_ignore_ascii_case("q") && zero(trim(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_header() {
        for plain in ["", "get_weather", "a b", "file:///x?y=1", "=?base64?", "=?base64?=", "=?utf8?eA==?="] {
            assert!(matches!(encode_value(plain), Cow::Borrowed(_)), "{plain}");
            assert_eq!(decode_value(plain).unwrap(), plain);
        }
        for odd in [" x", "x\t", "größe", "a\nb", "\0", "=?base64?eA==?=", "=?base64??=", "日本"] {
            let encoded = encode_value(odd);
            assert!(encoded.starts_with("=?base64?") && carries(&encoded), "{odd}");
            assert_eq!(decode_value(&encoded).unwrap(), odd);
        }
        assert_eq!(encode_value("日本"), "=?base64?5pel5pys?=");
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in
            ["größe", "a\u{7f}", "a\r\nb", "=?base64?*?=", "=?base64?eA?=", "=?base64?/w==?=", "=?base64?eA==x?="]
        {
            assert_eq!(decode_value(bad), None, "{bad}");
        }
        assert_eq!(decode_value(" \tx ").unwrap(), "x");
    }

    #[test]
    fn arguments_become_headers() {
        let of = |raw: &str| param_value(raw.as_bytes());
        assert_eq!(of("\"a\\u00e9\"").unwrap(), "=?base64?YcOp?=");
        assert_eq!(of("9007199254740993").unwrap(), "9007199254740993");
        assert_eq!(
            (of("true").unwrap(), of("null"), of("{}"), of("[1]"), of("")),
            ("true".into(), None, None, None, None)
        );
    }

    #[test]
    fn accept_is_read_as_ranges() {
        for both in [
            "application/json, text/event-stream",
            "TEXT/EVENT-STREAM;q=0.5 , Application/JSON; charset=utf-8",
            "*/*",
            "application/*, text/*",
            "application/json;q=1.0,text/*;q=0.1",
            "*/*;q=0, application/json, text/event-stream;q=0.001",
        ] {
            assert!(accepts_json_and_events(both), "{both}");
        }
        for json in
            ["application/json", "application/*", "application/json, text/event-stream;q=0", "*/*, text/*; Q=0.00"]
        {
            assert!(accepts_json(json) && !accepts_events(json) && !accepts_json_and_events(json), "{json}");
        }
        for none in ["", ",", "text/html", "*/*;q=0", "application", "json"] {
            assert!(!accepts_json(none) && !accepts_events(none), "{none}");
        }
    }

    #[test]
    fn content_types_have_parameters() {
        for json in ["application/json", "Application/JSON; charset=UTF-8", " application/json ;x"] {
            assert!(is_json(json), "{json}");
        }
        for other in ["", "text/json", "application/jsonx", "application/json-rpc", "application/json, text/plain"] {
            assert!(!is_json(other), "{other}");
        }
        assert!(is_event_stream("text/event-stream;charset=utf-8"));
    }
}

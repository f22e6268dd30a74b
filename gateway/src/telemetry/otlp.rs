//! The parts of OTLP that Weir writes, in its JSON encoding (opentelemetry-proto 1.5).

use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{
    TraceParent,
    put::{put_number, put_quoted},
};

/// An attribute of a span, a data point or a resource.
#[derive(Serialize)]
pub struct Attribute<'a> {
    key: Cow<'a, str>,
    value: AttributeValue<'a>,
}

/// Integers of 64 bits are texts in the JSON of Protocol Buffers.
#[derive(Serialize)]
pub(super) enum AttributeValue<'a> {
    #[serde(rename = "stringValue")]
    Text(Cow<'a, str>),
    #[serde(rename = "intValue", serialize_with = "as_text")]
    Integer(i64),
    #[serde(rename = "doubleValue")]
    Double(f64),
    #[serde(rename = "boolValue")]
    Bool(bool),
}

/// A span that has ended, put straight into a buffer that is used again.
pub(super) struct SpanWriter<'a> {
    to: &'a mut Vec<u8>,
    has_attributes: bool,
}

/// What stands in JSON before the value of an attribute, the comma before it included. It is made when Weir is built.
#[derive(Clone, Copy)]
pub(super) struct AttributeHead(pub(super) &'static str);

/// The head of an attribute of this name whose value is a text.
macro_rules! text_head {
    ($name:literal) => {
        $crate::telemetry::otlp::AttributeHead(concat!(",{\"key\":\"", $name, "\",\"value\":{\"stringValue\":"))
    };
}

/// The head of an attribute of this name whose value is a number.
macro_rules! number_head {
    ($name:literal) => {
        $crate::telemetry::otlp::AttributeHead(concat!(",{\"key\":\"", $name, "\",\"value\":{\"intValue\":"))
    };
}

pub(super) use {number_head, text_head};

/// Kinds of spans: a request that is answered, and one that is made.
pub(super) const SERVER: u64 = 2;
pub(super) const CLIENT: u64 = 3;

impl<'a> SpanWriter<'a> {
    /// Begins a span; `kind` is [`SERVER`] or [`CLIENT`].
    pub(super) fn begin(
        to: &'a mut Vec<u8>,
        context: &TraceParent,
        parent: Option<&str>,
        (kind, name): (u64, &str),
        [start, end]: [SystemTime; 2],
    ) -> Self {
        to.clear();
        to.extend_from_slice(b"{\"kind\":");
        put_number(kind, to);
        let texts = [
            ("traceId", Some(context.trace())),
            ("spanId", Some(context.span())),
            ("parentSpanId", parent),
            ("name", Some(name)),
        ];
        for (field, text) in texts.into_iter().filter_map(|(field, text)| Some((field, text?))) {
            put_field(field, to);
            put_quoted(text, to);
        }
        for (field, time) in [("startTimeUnixNano", start), ("endTimeUnixNano", end)] {
            put_field(field, to);
            put_long(since_epoch(time), to);
        }
        to.extend_from_slice(b",\"attributes\":[");
        Self { to, has_attributes: false }
    }

    /// Adds an attribute that is a text.
    pub(super) fn text(&mut self, head: AttributeHead, value: &str) {
        self.begin_attribute(head);
        put_quoted(value, self.to);
        self.to.extend_from_slice(b"}}");
    }

    /// Adds an attribute that is a number.
    pub(super) fn number(&mut self, head: AttributeHead, value: u64) {
        self.begin_attribute(head);
        put_long(value, self.to);
        self.to.extend_from_slice(b"}}");
    }

    /// Ends the span. One that has failed says why, if that is known.
    pub(super) fn end(self, has_failed: bool, message: Option<&str>) {
        self.to.extend_from_slice(if has_failed { b"],\"status\":{\"code\":2" } else { b"],\"status\":{" });
        if let Some(message) = message.filter(|_| has_failed) {
            put_field("message", self.to);
            put_quoted(message, self.to);
        }
        self.to.extend_from_slice(b"}}");
    }

    fn begin_attribute(&mut self, AttributeHead(head): AttributeHead) {
        let has_others = std::mem::replace(&mut self.has_attributes, true);
        self.to.extend_from_slice(&head.as_bytes()[usize::from(!has_others)..]);
    }
}

fn put_field(name: &str, to: &mut Vec<u8>) {
    for part in [b",\"", name.as_bytes(), b"\":"] {
        to.extend_from_slice(part);
    }
}

/// Adds a number of 64 bits, which is a text in the JSON of Protocol Buffers.
fn put_long(value: u64, to: &mut Vec<u8>) {
    to.push(b'"');
    put_number(value, to);
    to.push(b'"');
}

fn since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl<'a> Attribute<'a> {
    pub(super) fn new(key: impl Into<Cow<'a, str>>, value: AttributeValue<'a>) -> Self {
        Self { key: key.into(), value }
    }

    pub fn text(key: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        Self { key: key.into(), value: AttributeValue::Text(value.into()) }
    }
}

/// Who sends: a service, and which of its processes where that matters.
#[must_use]
pub fn resource(service: &str, instance: Option<&str>) -> Value {
    let host = rustix::system::uname();
    let mut attributes = vec![
        Attribute::text("service.name", service),
        Attribute::text("service.version", env!("CARGO_PKG_VERSION")),
        Attribute::text("host.name", host.nodename().to_string_lossy()),
    ];
    attributes.extend(instance.map(|id| Attribute::text("service.instance.id", id)));
    json!({ "attributes": attributes })
}

/// What a request calls the items that it has.
#[derive(Clone, Copy)]
pub struct RequestNames {
    resources: &'static str,
    scopes: &'static str,
    items: &'static str,
}

/// Spans in a request.
pub const TRACE_REQUEST: RequestNames =
    RequestNames { resources: "resourceSpans", scopes: "scopeSpans", items: "spans" };
/// Records of the log in a request.
pub const LOG_REQUEST: RequestNames =
    RequestNames { resources: "resourceLogs", scopes: "scopeLogs", items: "logRecords" };

/// A request that has these items, each in JSON.
#[must_use]
pub fn request(names: RequestNames, resource: &Value, items: &[Bytes]) -> Vec<u8> {
    const TAIL: &[u8] = b"]}]}]}";
    let RequestNames { resources, scopes, items: name } = names;
    let head =
        format!(r#"{{"{resources}":[{{"resource":{resource},"{scopes}":[{{"scope":{{"name":"weir"}},"{name}":["#);
    let length: usize = items.iter().map(|item| item.len() + 1).sum();
    let mut body = Vec::with_capacity(head.len() + length + TAIL.len());
    body.extend_from_slice(head.as_bytes());
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(item);
    }
    body.extend_from_slice(TAIL);
    body
}

/// A request that has these metrics.
#[must_use]
pub fn metric_request(resource: &Value, metrics: &[Value]) -> Vec<u8> {
    let scope = json!({ "scope": { "name": "weir" }, "metrics": metrics });
    json!({ "resourceMetrics": [{ "resource": resource, "scopeMetrics": [scope] }] }).to_string().into_bytes()
}

/// A moment as OTLP in JSON has it.
#[must_use]
pub fn nanoseconds(time: SystemTime) -> String {
    since_epoch(time).to_string()
}

pub(super) fn as_nanoseconds<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&nanoseconds(*time))
}

fn as_text<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_span_is_json_whatever_is_in_it() {
        let context = TraceParent::parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        let at = |nanoseconds| UNIX_EPOCH + Duration::from_nanos(nanoseconds);
        let mut json = b"what was there".to_vec();
        let mut span = SpanWriter::begin(&mut json, &context, None, (CLIENT, "a\"b\n"), [at(7), at(u64::MAX)]);
        span.text(text_head!("text"), "\\\u{1}\u{e9}");
        span.number(number_head!("number"), 3);
        span.end(true, Some("a \"reason\""));
        let written: Value = serde_json::from_slice(&json).unwrap();
        let expected = json!({
            "kind": 3, "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "a\"b\n",
            "startTimeUnixNano": "7", "endTimeUnixNano": u64::MAX.to_string(),
            "attributes": [
                { "key": "text", "value": { "stringValue": "\\\u{1}\u{e9}" } },
                { "key": "number", "value": { "intValue": "3" } },
            ],
            "status": { "code": 2, "message": "a \"reason\"" },
        });
        assert_eq!(written, expected);
        SpanWriter::begin(&mut json, &context, Some("b7ad6b7169203331"), (SERVER, "a"), [at(1), at(2)])
            .end(false, None);
        let written: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!((&written["parentSpanId"], &written["status"]), (&json!("b7ad6b7169203331"), &json!({})));
        assert_eq!(written["attributes"], json!([]));
    }
}

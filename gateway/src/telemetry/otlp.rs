//! The parts of OTLP that Weir writes, in its JSON encoding (opentelemetry-proto 1.5).

use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

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

/// A span that has ended.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Span<'a> {
    pub(super) trace_id: &'a str,
    pub(super) span_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent_span_id: Option<&'a str>,
    pub(super) name: String,
    /// [`SERVER`] or [`CLIENT`].
    pub(super) kind: u8,
    #[serde(serialize_with = "as_nanoseconds")]
    pub(super) start_time_unix_nano: SystemTime,
    #[serde(serialize_with = "as_nanoseconds")]
    pub(super) end_time_unix_nano: SystemTime,
    pub(super) attributes: Vec<Attribute<'a>>,
    pub(super) status: SpanStatus<'a>,
}

/// How a span ended; empty if nothing failed.
#[derive(Default, Serialize)]
pub(super) struct SpanStatus<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Cow<'a, str>>,
}

/// Kinds of spans: a request that is answered, and one that is made.
pub(super) const SERVER: u8 = 2;
pub(super) const CLIENT: u8 = 3;

impl<'a> SpanStatus<'a> {
    pub(super) const fn failed(message: Option<Cow<'a, str>>) -> Self {
        Self { code: Some(2), message }
    }
}

impl<'a> Attribute<'a> {
    pub(super) fn new(key: impl Into<Cow<'a, str>>, value: AttributeValue<'a>) -> Self {
        Self { key: key.into(), value }
    }

    pub fn text(key: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        Self { key: key.into(), value: AttributeValue::Text(value.into()) }
    }

    pub fn number(key: impl Into<Cow<'a, str>>, value: i64) -> Self {
        Self { key: key.into(), value: AttributeValue::Integer(value) }
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
pub fn request<'a>(names: RequestNames, resource: &Value, items: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let RequestNames { resources, scopes, items: name } = names;
    let mut body = Vec::with_capacity(1024);
    let head =
        format!(r#"{{"{resources}":[{{"resource":{resource},"{scopes}":[{{"scope":{{"name":"weir"}},"{name}":["#);
    body.extend_from_slice(head.as_bytes());
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(item);
    }
    body.extend_from_slice(b"]}]}]}");
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
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos().to_string()
}

pub(super) fn as_nanoseconds<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&nanoseconds(*time))
}

fn as_text<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

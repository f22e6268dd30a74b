//! Records as logs of OpenTelemetry: OTLP in JSON (opentelemetry-proto 1.5), with the names of the semantic conventions for
//! MCP where they have one.
//!
//! The body is the line as it is in the file, so that whoever has the logs can verify the chain.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use super::export;
use crate::telemetry::otlp::resource;

/// What needs no attribute: it has a place of its own, or is for the body alone.
const ELSEWHERE: [&str; 7] =
    ["occurred_at", "event_type", "previous_hash", "arguments", "trace_id", "span_id", "parent_span_id"];

/// One request that has these lines of a log; what is no record is left out.
#[must_use]
pub fn request<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let records: Vec<Value> = lines.into_iter().filter_map(log_record).collect();
    json!({ "resourceLogs": [{
        "resource": resource("weir", None),
        "scopeLogs": [{ "scope": { "name": "weir.audit" }, "logRecords": records }],
    }] })
    .to_string()
    .into_bytes()
}

fn log_record(line: &[u8]) -> Option<Value> {
    let Value::Object(record) = serde_json::from_slice(line).ok()? else { return None };
    let failed = export::has_failed(&record);
    let mut log = json!({
        // Numbers of 64 bits are texts in the JSON of Protocol Buffers.
        "timeUnixNano": export::time(&record).as_nanos().to_string(),
        "severityNumber": if failed { 13 } else { 9 },
        "severityText": if failed { "WARN" } else { "INFO" },
        "eventName": export::text(&record, "event_type"),
        "body": { "stringValue": String::from_utf8_lossy(line) },
        "attributes": attributes(&record),
    });
    // Only what has a trace may name one. A call that Weir does not trace belongs to the span that has called.
    let span = record.get("span_id").or_else(|| record.get("parent_span_id"));
    for (id, name) in [(record.get("trace_id"), "traceId"), (span, "spanId")] {
        if let Some(id) = id {
            log[name] = id.clone();
        }
    }
    Some(log)
}

fn attributes(record: &Map<String, Value>) -> Vec<Value> {
    let method = export::text(record, "method");
    let mut attributes = Vec::with_capacity(record.len() + 1);
    for (field, value) in record {
        if ELSEWHERE.contains(&field.as_str()) || value.is_null() || value == "" {
            continue;
        }
        if field == "client_address" {
            let address = value.as_str().unwrap_or_default();
            let (address, port) = address.parse::<SocketAddr>().map_or_else(
                |_| (address.to_owned(), None),
                |address| (address.ip().to_string(), Some(address.port())),
            );
            attributes.push(attribute("client.address", json!({ "stringValue": address })));
            attributes.extend(port.map(|port| attribute("client.port", json!({ "intValue": port.to_string() }))));
            continue;
        }
        attributes.push(match convention(field, method) {
            Some(name) => attribute(name, any(value)),
            None => attribute(&format!("weir.{field}"), any(value)),
        });
    }
    attributes
}

/// What a field is called in the semantic conventions.
fn convention(field: &str, method: &str) -> Option<&'static str> {
    Some(match (field, method) {
        ("method", _) => "mcp.method.name",
        ("name", "tools/call") => "gen_ai.tool.name",
        ("name", "prompts/get") => "gen_ai.prompt.name",
        ("name", "resources/read" | "resources/subscribe" | "resources/unsubscribe") => "mcp.resource.uri",
        ("request_id", _) => "jsonrpc.request.id",
        ("status", _) => "http.response.status_code",
        ("principal_id", _) => "user.id",
        _ => return None,
    })
}

fn attribute(name: &str, value: Value) -> Value {
    json!({ "key": name, "value": value })
}

/// A value as `AnyValue` of OTLP.
fn any(value: &Value) -> Value {
    match value {
        Value::String(text) => json!({ "stringValue": text }),
        Value::Bool(yes) => json!({ "boolValue": yes }),
        Value::Number(number) if number.is_i64() || number.is_u64() => json!({ "intValue": number.to_string() }),
        Value::Number(number) => json!({ "doubleValue": number }),
        Value::Array(values) => json!({ "arrayValue": { "values": values.iter().map(any).collect::<Vec<_>>() } }),
        other => json!({ "stringValue": other.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_call_is_a_log_with_the_names_of_the_conventions() {
        let line = json!({
            "seq": 7, "previous_hash": "00", "occurred_at": "2026-11-22T19:26:04.123Z", "event_type": "call",
            "principal_id": "ada", "groups": ["dev", "ops"], "upstream": "git", "method": "tools/call", "name": "git__push",
            "decision": "denied", "client_address": "[2001:db8::1]:4000", "status": 200,
            "trace_id": "0af7651916cd43dd8448eb211c80319c", "parent_span_id": "b7ad6b7169203331", "arguments": { "a": "b" },
        })
        .to_string();
        let sent: Value = serde_json::from_slice(&request([line.as_bytes(), b"torn {"])).unwrap();
        let records = sent["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap();
        assert_eq!(records.len(), 1);
        let record = &records[0];
        assert_eq!(record["timeUnixNano"], "1795375564123000000");
        assert_eq!((&record["severityNumber"], &record["eventName"]), (&json!(13), &json!("call")));
        assert_eq!(record["body"]["stringValue"], line);
        assert_eq!(record["traceId"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(record["spanId"], "b7ad6b7169203331");
        let attributes = record["attributes"].as_array().unwrap();
        let value = |name: &str| {
            attributes.iter().find(|each| each["key"] == name).map(|each| each["value"].clone()).unwrap_or_default()
        };
        for (name, expected) in [
            ("mcp.method.name", json!({ "stringValue": "tools/call" })),
            ("gen_ai.tool.name", json!({ "stringValue": "git__push" })),
            ("user.id", json!({ "stringValue": "ada" })),
            ("client.address", json!({ "stringValue": "2001:db8::1" })),
            ("client.port", json!({ "intValue": "4000" })),
            ("http.response.status_code", json!({ "intValue": "200" })),
            ("weir.seq", json!({ "intValue": "7" })),
            (
                "weir.groups",
                json!({ "arrayValue": { "values": [{ "stringValue": "dev" }, { "stringValue": "ops" }] } }),
            ),
            ("weir.arguments", Value::Null),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
    }
}

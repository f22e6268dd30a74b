//! The log as records of OpenTelemetry, for a collector: the events that are written into the log, with their fields.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::SystemTime,
};

use serde::Serialize;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

use super::{
    export_queue::LOGS,
    otlp::{Attribute, AttributeValue, as_nanoseconds},
};

/// Whether a collector gets the log.
static IS_EXPORTED: AtomicBool = AtomicBool::new(false);

/// From now on sends the log to a collector, or does not.
pub fn export_log(is_exported: bool) {
    IS_EXPORTED.store(is_exported, Relaxed);
}

/// Puts each event into the queue.
pub(super) struct OtlpLayer;

impl<S: Subscriber> Layer<S> for OtlpLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if !IS_EXPORTED.load(Relaxed) {
            return;
        }
        match record(event, SystemTime::now()) {
            Some(record) => LOGS.push(record.into()),
            None => LOGS.note_dropped(1),
        }
    }
}

/// A log record (opentelemetry-proto 1.5, logs.proto).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LogRecord {
    #[serde(serialize_with = "as_nanoseconds")]
    time_unix_nano: SystemTime,
    severity_number: u8,
    severity_text: &'static str,
    body: AttributeValue<'static>,
    attributes: Vec<Attribute<'static>>,
    /// That of a call that is traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

#[derive(Default)]
struct Fields {
    message: String,
    target: Option<String>,
    attributes: Vec<Attribute<'static>>,
    trace_id: Option<String>,
}

fn record(event: &Event<'_>, at: SystemTime) -> Option<Vec<u8>> {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let level = *event.metadata().level();
    let target = fields.target.unwrap_or_else(|| event.metadata().target().to_owned());
    fields.attributes.push(Attribute::text("weir.log.target", target));
    let record = LogRecord {
        time_unix_nano: at,
        severity_number: severity(level),
        severity_text: level.as_str(),
        body: AttributeValue::Text(fields.message.into()),
        attributes: fields.attributes,
        trace_id: fields.trace_id,
    };
    serde_json::to_vec(&record).ok()
}

/// The first number of each range.
fn severity(level: Level) -> u8 {
    match level {
        Level::TRACE => 1,
        Level::DEBUG => 5,
        Level::INFO => 9,
        Level::WARN => 13,
        Level::ERROR => 17,
    }
}

impl Fields {
    fn add(&mut self, field: &Field, value: AttributeValue<'static>) {
        if !field.name().starts_with("log.") {
            self.attributes.push(Attribute::new(field.name(), value));
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            "log.target" => self.target = Some(value.to_owned()),
            "trace_id" => self.trace_id = Some(value.to_owned()),
            _ => self.add(field, AttributeValue::Text(value.to_owned().into())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_i64(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, AttributeValue::Integer(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, AttributeValue::Bool(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no other numbers.
        if value.is_finite() {
            self.add(field, AttributeValue::Double(value));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use serde_json::{Value, json};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn an_event_has_its_severity_its_fields_and_its_trace() {
        let say = || tracing::warn!(target: "weir::x", trace_id = %"0af7", count = 3_u64, share = 0.5, is = true, text = "a", "said {}", 1);
        let subscriber = || tracing_subscriber::registry().with(OtlpLayer);
        tracing::subscriber::with_default(subscriber(), say);
        assert!(LOGS.is_empty(), "nobody wants it");
        export_log(true);
        tracing::subscriber::with_default(subscriber(), say);
        export_log(false);
        let record: Value = serde_json::from_slice(&LOGS.take(1)[0]).unwrap();
        assert_eq!((&record["severityNumber"], &record["severityText"]), (&json!(13), &json!("WARN")));
        assert_eq!((&record["body"]["stringValue"], &record["traceId"]), (&json!("said 1"), &json!("0af7")));
        let attributes = json!([
            { "key": "count", "value": { "intValue": "3" } },
            { "key": "share", "value": { "doubleValue": 0.5 } },
            { "key": "is", "value": { "boolValue": true } },
            { "key": "text", "value": { "stringValue": "a" } },
            { "key": "weir.log.target", "value": { "stringValue": "weir::x" } },
        ]);
        assert_eq!(record["attributes"], attributes, "{record}");
        assert!(record["timeUnixNano"].as_str().unwrap().len() >= 19);
    }
}

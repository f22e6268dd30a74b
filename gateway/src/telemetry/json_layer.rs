//! The log as JSON, one object for each line.
//!
//! The layer of `tracing_subscriber` takes every field through serde, which costs a fifth of a call. This one writes fields
//! as they come. Whatever they carry, nothing in a line acts on a terminal.

use std::{
    fmt::{self, Debug, Display, Write},
    sync::Arc,
    time::SystemTime,
};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

use super::{
    printable::acts,
    put::{is_plain, put_hex, put_number, put_time},
    writer::WriterShared,
};

/// Room for the line of a call, in bytes.
const USUAL: usize = 640;

/// Writes each event as a line.
pub(super) struct JsonLayer(pub(super) Arc<WriterShared>);

impl<S: Subscriber> Layer<S> for JsonLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.0.gather(&line(event, SystemTime::now()));
    }
}

fn line(event: &Event<'_>, at: SystemTime) -> Vec<u8> {
    let mut line = Vec::with_capacity(USUAL);
    line.extend_from_slice(b"{\"timestamp\":\"");
    put_time(at, &mut line);
    line.extend_from_slice(b"\",\"level\":\"");
    line.extend_from_slice(event.metadata().level().as_str().as_bytes());
    line.extend_from_slice(b"\",\"fields\":{");
    let mut fields = Fields { line, target: None, is_first: true };
    event.record(&mut fields);
    let Fields { mut line, target, .. } = fields;
    line.extend_from_slice(b"},\"target\":\"");
    Escaper(&mut line).put(target.as_deref().unwrap_or(event.metadata().target()));
    line.extend_from_slice(b"\"}\n");
    line
}

/// Puts fields into a line.
struct Fields {
    line: Vec<u8>,
    /// Where an event comes from that was logged with the `log` crate. Its other fields about that say less.
    target: Option<String>,
    is_first: bool,
}

impl Fields {
    fn name(&mut self, field: &Field) {
        self.line.extend_from_slice(if std::mem::take(&mut self.is_first) { b"\"" } else { b",\"" });
        self.line.extend_from_slice(field.name().as_bytes());
        self.line.extend_from_slice(b"\":");
    }

    fn text(&mut self, field: &Field, put: impl FnOnce(&mut Escaper<'_>)) {
        self.name(field);
        self.line.push(b'"');
        put(&mut Escaper(&mut self.line));
        self.line.push(b'"');
    }

    /// A value that needs neither quotes nor escapes.
    fn bare(&mut self, field: &Field, value: impl Display) {
        self.name(field);
        // A vector takes whatever is written.
        let _ = write!(Escaper(&mut self.line), "{value}");
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.target" => self.target = Some(value.to_owned()),
            name if name.starts_with("log.") => {}
            _ => self.text(field, |to| to.put(value)),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text(field, |to| {
            let _ = write!(to, "{value:?}");
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if !field.name().starts_with("log.") {
            self.name(field);
            put_number(value, &mut self.line);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.bare(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.bare(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no other numbers.
        if value.is_finite() { self.bare(field, value) } else { self.bare(field, "null") }
    }
}

/// Puts text into a string of JSON (RFC 8259 §7). Characters that act, and those that nobody sees, are escapes.
struct Escaper<'a>(&'a mut Vec<u8>);

impl Escaper<'_> {
    fn put(&mut self, text: &str) {
        if is_plain(text) {
            return self.0.extend_from_slice(text.as_bytes());
        }
        for c in text.chars() {
            let (mut utf8, mut units) = ([0; 4], [0; 2]);
            match c {
                '"' => self.0.extend_from_slice(b"\\\""),
                '\\' => self.0.extend_from_slice(b"\\\\"),
                '\n' => self.0.extend_from_slice(b"\\n"),
                c if acts(c) => {
                    for unit in c.encode_utf16(&mut units) {
                        self.0.extend_from_slice(b"\\u");
                        put_hex(&unit.to_be_bytes(), self.0);
                    }
                }
                c => self.0.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes()),
            }
        }
    }
}

impl Write for Escaper<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use serde_json::{Value, json};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::telemetry::writer::Buffered;

    /// The lines that `log` comes to.
    fn lines(log: impl FnOnce()) -> String {
        let (writer, _flush) = Buffered::new();
        let shared = writer.shared();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(JsonLayer(Arc::clone(&shared))), log);
        String::from_utf8(shared.take()).unwrap()
    }

    #[test]
    fn fields_keep_their_types_and_their_order() {
        let error: Box<dyn std::error::Error> = "broken".into();
        let text = lines(|| {
            let (none, some) = (None::<&str>, Some("text"));
            tracing::warn!(target: "weir::x", none, some, count = 3_u64, less = -3, share = 0.25, nan = f64::NAN, is = true,
                shown = %"a", debugged = ?Some(1), error = &*error, "said {}", 1);
        });
        let line: Value = serde_json::from_str(&text).unwrap();
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
        assert_eq!((&line["level"], &line["target"]), (&json!("WARN"), &json!("weir::x")));
        let fields = json!({
            "message": "said 1", "some": "text", "count": 3, "less": -3, "share": 0.25, "nan": null, "is": true,
            "shown": "a", "debugged": "Some(1)", "error": "broken",
        });
        assert_eq!(line["fields"], fields);
        assert!(text.contains("\"fields\":{\"message\":\"said 1\",\"some\":") && text.ends_with("}\n"), "{text}");
    }

    /// Those come through `tracing-log`, as pingora's do.
    #[test]
    fn events_of_the_log_crate_have_their_own_target() {
        let text = lines(|| tracing::warn!(log.target = "pingora", log.file = "x.rs", log.line = 3_u64, "slow"));
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["target"], &line["fields"]), (&json!("pingora"), &json!({ "message": "slow" })));
    }

    #[test]
    fn nothing_acts_and_all_is_said() {
        let hostile = "\"a\\b\u{9b}2J\u{7f}\u{202e}\u{e0041}\u{e9}\n\t\u{1b}";
        let text = lines(|| tracing::error!(text = hostile, shown = %hostile, "{hostile}"));
        assert!(!text.trim_end().contains(acts), "{text:?}");
        let line: Value = serde_json::from_str(&text).unwrap();
        for field in ["text", "shown", "message"] {
            assert_eq!(line["fields"][field], hostile, "{field}");
        }
    }
}

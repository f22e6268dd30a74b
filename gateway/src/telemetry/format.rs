//! How a line of the log looks, so that nothing in it acts on a terminal: whatever a field carries, it is cleaned here.

use std::{
    borrow::Cow,
    fmt::{Debug, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::field::Field;
use tracing_subscriber::{
    field::MakeExt,
    fmt::{
        FormatFields,
        format::{Writer, debug_fn},
        time::FormatTime,
    },
};

use super::printable::Cleaner;

/// Fields as text, for people: the message, then `name=value`.
pub(super) fn text() -> impl for<'a> FormatFields<'a> + 'static {
    debug_fn(|to: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        let name = field.name();
        if name != "message" {
            write!(to, "{name}=")?;
        }
        write!(Cleaner::new(to), "{value:?}")
    })
    .delimited(" ")
}

/// The time of day in UTC, for people who look on: `12:34:56Z`. The day is known.
pub(super) struct ShortClock;

impl FormatTime for ShortClock {
    fn format_time(&self, to: &mut Writer<'_>) -> std::fmt::Result {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
        write!(to, "{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

/// A line of JSON in which nothing but ASCII stands for itself where it could act: C1 controls and directions as well,
/// which JSON allows as they are.
pub(super) fn json(line: &[u8]) -> Cow<'_, [u8]> {
    // Nearly every line, and looked at many bytes at a time.
    let plain = line.is_ascii() && memchr::memchr(0x7f, line).is_none();
    let text = match std::str::from_utf8(line) {
        _ if plain => return Cow::Borrowed(line),
        Ok(text) => text,
        Err(_) => return Cow::Borrowed(line),
    };
    let mut escaped = String::with_capacity(line.len() + 64);
    for c in text.chars() {
        if c != '\n' && super::printable::acts(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // A string takes whatever is written.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped.into_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;
    use tracing_subscriber::{fmt, layer::SubscriberExt};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_field_of_a_text_line_reaches_the_terminal_as_it_is() {
        let written = Written::default();
        let to = written.clone();
        let layer = fmt::layer().fmt_fields(text()).with_writer(move || to.clone()).with_ansi(false);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let hostile = "\x1b]0;owned\x07\x1b[2Jname\u{202e}\nINFO forged";
            let error: Box<dyn std::error::Error> = hostile.into();
            tracing::warn!(upstream = hostile, tool = %hostile, error = &*error, count = 3, "failed: {hostile}");
        });
        let line = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(!line.trim_end().contains(super::super::printable::acts), "{line:?}");
        assert!(line.contains("failed: name INFO forged "), "{line:?}");
        assert!(line.contains(" tool=name INFO forged error=name INFO forged count=3"), "{line:?}");
    }

    #[test]
    fn json_says_the_same_without_what_acts() {
        let value = serde_json::json!({ "why": "\u{9b}2J\u{7f}\u{202e}\u{e0041}é\n\u{1b}" });
        let line = format!("{value}\n");
        let escaped = json(line.as_bytes()).into_owned();
        let text = std::str::from_utf8(&escaped).unwrap();
        assert!(!text.trim_end().contains(super::super::printable::acts), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(text).unwrap(), value);
        assert!(matches!(json(b"{\"a\":\"plain\"}\n"), Cow::Borrowed(_)));
    }
}

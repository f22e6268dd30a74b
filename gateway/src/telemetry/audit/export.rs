//! The log for other systems.

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
    path::Path,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};

use super::{otlp, read};
use crate::telemetry::put;

/// How records are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// As they are.
    Jsonl,
    /// Events of the Open Cybersecurity Schema Framework 1.6: API Activity (6003), Authentication (3002), else Base Event.
    Ocsf,
    /// Common Event Format, version 0.
    Cef,
    /// Logs of OpenTelemetry, as in files of its collector: a request of OTLP in JSON on each line.
    Otlp,
}

/// Since when records are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since(String);

/// Which text is no point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write a time in UTC, whole or from its beginning (2026-11-22 or 2026-11-22T08:30:00Z), or a duration (30m, 24h, 7d)"
)]
pub struct ParseSinceError;

impl FromStr for Since {
    type Err = ParseSinceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ago = |unit: char, seconds: u64| {
            let number = text.strip_suffix(unit)?.parse::<u64>().ok()?;
            SystemTime::now().checked_sub(Duration::from_secs(number.checked_mul(seconds)?))
        };
        if let Some(at) = ago('m', 60).or_else(|| ago('h', 3600)).or_else(|| ago('d', 86_400)) {
            let mut text = Vec::new();
            put::put_time(at, &mut text);
            return String::from_utf8(text).map(Self).map_err(|_| ParseSinceError);
        }
        // The beginning of a time is less than the whole, as texts are compared.
        let like = "0000-00-00T00:00:00.000";
        let text = text.strip_suffix('Z').unwrap_or(text);
        let fits = |(byte, like): (u8, u8)| if like == b'0' { byte.is_ascii_digit() } else { byte == like };
        let known = (4..=like.len()).contains(&text.len()) && text.bytes().zip(like.bytes()).all(fits);
        if known { Ok(Self(text.to_owned())) } else { Err(ParseSinceError) }
    }
}

/// Which records are wanted.
#[derive(Clone, Debug, Default)]
pub struct ExportFilter {
    /// Not those before.
    pub since: Option<Since>,
    /// Only those of this subject.
    pub principal: Option<String>,
}

/// Writes a log in another format, oldest record first. Returns how many lines were no records, and left out.
///
/// # Errors
///
/// If a file cannot be read, or nobody takes what is written.
pub fn export(path: &Path, format: ExportFormat, filter: &ExportFilter, to: &mut impl Write) -> io::Result<u64> {
    let mut strange = 0;
    for mut file in read::open(path)? {
        while let Some(line) = file.lines.next_line()? {
            let Ok(Value::Object(record)) = serde_json::from_slice(&line) else {
                strange += 1;
                continue;
            };
            if filter.takes(&record) {
                match format {
                    ExportFormat::Jsonl => to.write_all(&line)?,
                    ExportFormat::Ocsf => serde_json::to_writer(&mut *to, &ocsf(record))?,
                    ExportFormat::Cef => write!(to, "{}", Cef(&record))?,
                    ExportFormat::Otlp => to.write_all(&otlp::request([&*line]))?,
                }
                to.write_all(b"\n")?;
            }
        }
    }
    Ok(strange)
}

/// The record of a call; none if it is not in the log any more, or not yet.
///
/// # Errors
///
/// If a file cannot be read.
pub fn find_call(path: &Path, call_id: &str) -> io::Result<Option<Map<String, Value>>> {
    for mut file in read::open(path)?.into_iter().rev() {
        while let Some(line) = file.lines.next_line()? {
            let record = serde_json::from_slice::<Value>(&line);
            if let Ok(Value::Object(record)) = record
                && text(&record, "call_id") == call_id
            {
                return Ok(Some(record));
            }
        }
    }
    Ok(None)
}

impl ExportFilter {
    fn takes(&self, record: &Map<String, Value>) -> bool {
        let at = text(record, "occurred_at");
        self.since.as_ref().is_none_or(|since| at >= &*since.0)
            && self.principal.as_ref().is_none_or(|principal| text(record, "principal_id") == principal)
    }
}

pub(super) fn text<'a>(record: &'a Map<String, Value>, name: &str) -> &'a str {
    record.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The time since 1970.
pub(super) fn time(record: &Map<String, Value>) -> Duration {
    let at = put::time(text(record, "occurred_at"));
    at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default()
}

pub(super) fn is_denied(record: &Map<String, Value>) -> bool {
    text(record, "decision") == "denied"
}

/// Whether it came to nothing.
pub(super) fn has_failed(record: &Map<String, Value>) -> bool {
    is_denied(record) || !matches!(text(record, "outcome"), "" | "ok")
}

/// One event; what has no place in the schema is in `unmapped`.
fn ocsf(mut record: Map<String, Value>) -> Value {
    let event_type = text(&record, "event_type").to_owned();
    let (category, class, activity) = match &*event_type {
        "call" => (6, 6003, 99),
        "signed_in" | "sign_in_failed" | "token_refused" => (3, 3002, 1),
        "signed_out" => (3, 3002, 2),
        _ => (0, 0, 99),
    };
    let (time, failed) = (u64::try_from(time(&record).as_millis()).unwrap_or_default(), has_failed(&record));
    let mut take = |name: &str| record.remove(name).filter(|value| !value.is_null());
    let groups = take("groups")
        .and_then(|groups| Some(groups.as_array()?.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>()));
    let address = take("client_address");
    let address = address.as_ref().and_then(Value::as_str).unwrap_or_default();
    let (ip, port) = match address.parse::<std::net::SocketAddr>() {
        Ok(address) => (Some(address.ip().to_string()), Some(address.port())),
        Err(_) => (Some(address.to_owned()).filter(|address| !address.is_empty()), None),
    };
    let method = take("method");
    let user = json!({
        "uid": take("principal_id"), "domain": take("issuer"), "groups": groups, "credential_uid": take("key"),
    });
    let mut event = json!({
        "category_uid": category, "class_uid": class, "type_uid": class * 100 + activity, "activity_id": activity,
        "activity_name": if activity == 99 { method.clone().or_else(|| Some(event_type.clone().into())) } else { None },
        "severity_id": if failed { 2 } else { 1 },
        "status_id": if failed { 2 } else { 1 },
        "status_detail": take("error"),
        "time": time,
        "duration": take("duration_us").and_then(|micros| Some(micros.as_u64()? / 1000)),
        "metadata": {
            "version": "1.6.0", "event_code": event_type, "sequence": take("seq"), "original_time": take("occurred_at"),
            "product": { "name": "Weir", "vendor_name": "Weir", "version": env!("CARGO_PKG_VERSION") },
        },
        "src_endpoint": { "ip": ip, "port": port },
        "actor": { "user": user, "session": { "uid": take("session") }, "app_name": take("client") },
        "user": if class == 3002 { Some(user.clone()) } else { None },
        "api": if class == 6003 {
            json!({
                "operation": method, "service": { "name": take("upstream") }, "request": { "uid": take("request_id") },
                "response": { "code": take("status") },
            })
        } else { Value::Null },
        "resources": take("name").filter(|name| name != "").map(|name| json!([{ "name": name }])),
    });
    record.remove("event_type");
    prune(&mut event);
    if let Some(event) = event.as_object_mut() {
        event.insert("unmapped".to_owned(), record.into());
    }
    event
}

/// Leaves out what is not known.
fn prune(value: &mut Value) {
    if let Value::Object(members) = value {
        members.values_mut().for_each(prune);
        members.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|members| !members.is_empty()));
    }
}

/// One line of CEF.
struct Cef<'a>(&'a Map<String, Value>);

impl fmt::Display for Cef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.0;
        let event_type = text(record, "event_type");
        let severity = if is_denied(record) {
            6
        } else if has_failed(record) {
            4
        } else {
            2
        };
        write!(f, "CEF:0|Weir|Weir|{}|", env!("CARGO_PKG_VERSION"))?;
        for name in [event_type, event_type] {
            escaped(f, name, &['|', '\\'])?;
            f.write_char('|')?;
        }
        write!(f, "{severity}|rt={}", time(record).as_millis())?;
        for (key, name) in [
            ("suser", "principal_id"),
            ("src", "client_address"),
            ("act", "decision"),
            ("outcome", "outcome"),
            ("reason", "error"),
            ("destinationServiceName", "upstream"),
            ("requestMethod", "method"),
            ("requestClientApplication", "client"),
            ("in", "bytes_received"),
            ("out", "bytes_sent"),
            ("externalId", "seq"),
            ("cs1", "name"),
            ("cs2", "issuer"),
            ("cs3", "session"),
            ("cs4", "previous_hash"),
            ("cs5", "key"),
            ("cs6", "arguments_digest"),
        ] {
            let value = match record.get(name) {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) if text.is_empty() => continue,
                // An address stands alone there.
                Some(Value::String(text)) if key == "src" => text
                    .parse::<std::net::SocketAddr>()
                    .map_or_else(|_| text.clone(), |address| address.ip().to_string()),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            if key.starts_with("cs") {
                write!(f, " {key}Label={name}")?;
            }
            write!(f, " {key}=")?;
            escaped(f, &value, &['=', '\\'])?;
        }
        Ok(())
    }
}

fn escaped(f: &mut fmt::Formatter<'_>, text: &str, special: &[char]) -> fmt::Result {
    for c in text.chars() {
        match c {
            '\n' | '\r' => f.write_str("\\n")?,
            c if special.contains(&c) => write!(f, "\\{c}")?,
            c => f.write_char(c)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn call() -> Map<String, Value> {
        let record = json!({
            "seq": 7, "previous_hash": "00", "occurred_at": "2026-11-22T19:26:04.123Z", "event_type": "call",
            "principal_id": "ada|=\\", "issuer": "https://id.example", "groups": ["dev"], "upstream": "git",
            "method": "tools/call", "name": "git__push", "decision": "denied", "outcome": "refused",
            "error": "line\nbreak", "client_address": "192.0.2.1:4000", "status": 200, "duration_us": 1500, "era": "modern",
        });
        record.as_object().unwrap().clone()
    }

    #[test]
    fn a_call_is_an_api_activity_and_nothing_is_left_out() {
        let event = ocsf(call());
        assert_eq!(
            (&event["class_uid"], &event["type_uid"], &event["status_id"]),
            (&json!(6003), &json!(600_399), &json!(2))
        );
        assert_eq!(event["time"], 1_795_375_564_123_u64);
        assert_eq!(
            (&event["actor"]["user"]["uid"], &event["api"]["operation"]),
            (&json!("ada|=\\"), &json!("tools/call"))
        );
        assert_eq!(event["src_endpoint"], json!({ "ip": "192.0.2.1", "port": 4000 }));
        assert_eq!(
            event["unmapped"],
            json!({ "previous_hash": "00", "decision": "denied", "outcome": "refused", "era": "modern" })
        );
    }

    #[test]
    fn nothing_in_a_record_ends_a_field_of_cef() {
        let line = Cef(&call()).to_string();
        let version = env!("CARGO_PKG_VERSION");
        assert!(
            line.starts_with(&format!(
                "CEF:0|Weir|Weir|{version}|call|call|6|rt=1795375564123 suser=ada|\\=\\\\ src=192.0.2.1 "
            )),
            "{line}"
        );
        assert!(line.contains(" reason=line\\nbreak ") && line.contains(" cs1Label=name cs1=git__push "), "{line}");
    }

    #[test]
    fn a_time_may_be_the_beginning_of_one_or_a_while_ago() {
        for text in
            ["2026", "2026-11-22", "2026-11-22T19:26", "2026-11-22T19:26:04Z", "2026-11-22T19:26:04.123Z", "90m", "7d"]
        {
            assert!(text.parse::<Since>().is_ok(), "{text}");
        }
        for text in ["", "20", "yesterday", "2026-11-22T19:26:04+02:00", "2026/11/22", "7", "7w"] {
            assert!(text.parse::<Since>().is_err(), "{text}");
        }
        let filter = |since: &str| ExportFilter { since: Some(since.parse().unwrap()), principal: None };
        assert!(filter("2026-11-22").takes(&call()) && !filter("2026-11-23").takes(&call()));
        let old = json!({ "occurred_at": "2020-01-01T00:00:00.000Z" });
        assert!(!filter("7d").takes(old.as_object().unwrap()));
    }
}

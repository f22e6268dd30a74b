//! The input schemas as the server listed them, kept from a list to the calls that follow it.

use weir_policy::{
    calls::Entry,
    capability::store::{self, Condition, StoreError},
    json::Json,
};

/// What says which schema of each tool is kept: it is read with each list, the schemas only with calls.
const KNOWN: &str = "known";
/// As many schemas are written for one list; the others follow with the next.
const WRITES: usize = 48;

/// Keeps the schemas of a list that are not kept yet.
///
/// # Errors
///
/// What the store says if it takes nothing more.
pub(crate) fn keep(entries: &[Entry]) -> Result<(), String> {
    let kept = store::get(KNOWN).map_err(told)?;
    let when = kept.as_ref().map_or(Condition::Absent, |item| Condition::Version(item.version));
    let known = kept.and_then(|item| read(item.value)).filter(Json::is_object);
    let mut known = known.unwrap_or(Json::Object(Vec::new()));
    let mut writes = 0;
    for entry in entries {
        let schema = Json::parse(&entry.body).and_then(|mut tool| tool.remove("inputSchema")).unwrap_or_default();
        let text = schema.to_string();
        let mark = mark(&text);
        if known.get(&entry.name) == Some(&mark) || writes == WRITES {
            continue;
        }
        match store::set(&key(&entry.name), text.as_bytes(), 0, Condition::Always) {
            // A name or a schema that is too long is one that is not checked.
            Err(StoreError::Limit(_)) => continue,
            written => written.map_err(told)?,
        };
        known.set(&entry.name, mark);
        writes += 1;
    }
    if writes == 0 {
        return Ok(());
    }
    match store::set(KNOWN, known.to_string().as_bytes(), 0, when) {
        // Who writes at the same time has kept the same, or keeps it with the next list.
        Err(StoreError::Changed) => Ok(()),
        written => written.map(drop).map_err(told),
    }
}

/// The schema of a tool; none if none is kept.
pub(crate) fn of(tool: &str) -> Option<Json> {
    read(store::get(&key(tool)).ok()??.value)
}

fn key(tool: &str) -> String {
    format!("tool/{tool}")
}

fn read(value: Vec<u8>) -> Option<Json> {
    String::from_utf8(value).ok().and_then(|text| Json::parse(&text))
}

/// Tells schemas apart (FNV-1a). A server that makes two alike fools its own callers only.
fn mark(text: &str) -> Json {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Json::Number(text.bytes().fold(0xcbf2_9ce4_8422_2325, step).to_string())
}

fn told(error: StoreError) -> String {
    match error {
        StoreError::Changed => "somebody else has changed it".into(),
        StoreError::Limit(text) | StoreError::Unavailable(text) => text,
    }
}

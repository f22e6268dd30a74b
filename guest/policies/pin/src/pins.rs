//! What is pinned, and what has changed since, in a few values of the store. `weir tools` reads them, too.
//!
//! Each value is a JSON object of labels such as `tool/echo` and what is said there, as text. Entries lie in one of eight
//! values by their label, so that no value becomes too large.

use sha2::{Digest, Sha256};
use weir_policy::{
    Upstream,
    calls::{Entry, EntryKind},
    capability::store::{self, Condition, StoreError},
    json::Json,
};

/// In how many values they lie.
const SHARES: usize = 8;
/// A text that is longer is kept as its hash, in bytes.
const LONGEST: usize = 8 << 10;
/// A value that is longer keeps hashes only, in bytes.
const FULL: usize = 120 << 10;
/// What such a hash begins with. No JSON does.
const HASHED: &str = "sha256 ";
/// How often somebody else may write at the same time.
const TRIES: u32 = 8;
/// How long the batches of one list may take together, in seconds.
const LISTING: u32 = 600;
/// What nobody shows a model, and what may change with each list.
const UNREAD: [&str; 2] = ["_meta", "icons"];

/// How an entry compares with what is pinned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PinChange {
    /// It is what is pinned.
    Same,
    /// It is pinned now.
    First,
    /// Nothing of it is pinned.
    New,
    /// It is not what is pinned.
    Other,
}

/// All of it, as it was read, and what is to be written.
pub(crate) struct Pins {
    approved: [Json; SHARES],
    changed: [Json; SHARES],
    batch: Batch,
    /// The lists of which entries are here.
    lists: Vec<FirstListing>,
    writes: Vec<Write>,
}

/// Which part of a list crosses at once, and whether another follows.
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    is_first: bool,
    is_last: bool,
}

/// Whether a list is seen for the first time.
struct FirstListing {
    list: String,
    is_first: bool,
    /// Whether an earlier batch has said so.
    is_marked: bool,
}

/// Puts a text at a label, or takes it away.
struct Write {
    kind: &'static str,
    label: String,
    text: Option<String>,
}

/// What messages and `weir tools` call an entry.
pub(crate) fn label(entry: &Entry) -> String {
    let list = match entry.kind {
        EntryKind::Tool => "tool",
        EntryKind::Prompt => "prompt",
        EntryKind::Resource => "resource",
        EntryKind::Template => "template",
    };
    format!("{list}/{}", entry.name)
}

/// What an entry says, in one form; none if it is no object.
pub(crate) fn described(body: &str) -> Option<String> {
    let mut entry = Json::parse(body).filter(Json::is_object)?;
    UNREAD.iter().for_each(|key| drop(entry.remove(key)));
    sort(&mut entry);
    let text = entry.to_string();
    Some(if text.len() > LONGEST { hashed(&text) } else { text })
}

/// Puts keys in order: their order says nothing.
fn sort(value: &mut Json) {
    match value {
        Json::Object(members) => {
            members.sort_by(|(one, _), (two, _)| one.cmp(two));
            members.iter_mut().for_each(|(_, value)| sort(value));
        }
        Json::Array(elements) => elements.iter_mut().for_each(sort),
        _ => {}
    }
}

impl Batch {
    /// Out of the facts about the upstream, where a list crosses in several.
    pub(crate) fn of(upstream: &Upstream) -> Self {
        let batch = upstream.extensions.iter().find(|(key, _)| key == "batch");
        let (number, count) = batch.and_then(|(_, batch)| batch.split_once('/')).unwrap_or(("1", "1"));
        Self { is_first: number == "1", is_last: number == count }
    }
}

impl Pins {
    pub(crate) fn load(batch: Batch) -> Result<Self, String> {
        let (approved, changed) = Default::default();
        let mut pins = Self { approved, changed, batch, lists: Vec::new(), writes: Vec::new() };
        for key in store::keys("").map_err(told)? {
            let Some((kind, share)) = key.split_once('/').and_then(|(kind, share)| Some((kind, share.parse().ok()?)))
            else {
                continue;
            };
            let all = if kind == "approved" { &mut pins.approved } else { &mut pins.changed };
            let Some(place) = all.get_mut::<usize>(share) else { continue };
            *place = read(&key)?.0;
        }
        Ok(pins)
    }

    /// Whether the list of an entry is seen for the first time. The batches of a list are asked about one after the other.
    fn is_first(&mut self, label: &str) -> Result<bool, String> {
        let list = label.split_once('/').map_or(label, |(list, _)| list);
        if let Some(known) = self.lists.iter().find(|known| known.list == list) {
            return Ok(known.is_first);
        }
        let is_marked = store::get(&marker(list)).map_err(told)?.is_some();
        let is_known = |share: &Json| match share {
            Json::Object(members) => {
                members.iter().any(|(label, _)| label.split_once('/').is_some_and(|(of, _)| of == list))
            }
            _ => false,
        };
        let is_new = self.batch.is_first && !self.approved.iter().chain(&self.changed).any(is_known);
        let is_first = is_marked || is_new;
        self.lists.push(FirstListing { list: list.to_owned(), is_first, is_marked });
        Ok(is_first)
    }

    /// Compares an entry, and remembers what it says where that is news.
    pub(crate) fn compare(&mut self, label: &str, text: &str, trusts_new: bool) -> Result<PinChange, String> {
        let is_first = self.is_first(label)?;
        let share = share(label);
        let pinned = self.approved[share].get(label);
        let is_new = pinned.is_none();
        if is(pinned, text) {
            if self.changed[share].get(label).is_some() {
                self.put("changed", label, None);
            }
            return Ok(PinChange::Same);
        }
        if is_new && (is_first || trusts_new) {
            self.put("approved", label, Some(text));
            return Ok(PinChange::First);
        }
        if !is(self.changed[share].get(label), text) {
            self.put("changed", label, Some(text));
        }
        Ok(if is_new { PinChange::New } else { PinChange::Other })
    }

    fn put(&mut self, kind: &'static str, label: &str, text: Option<&str>) {
        self.writes.push(Write { kind, label: label.to_owned(), text: text.map(str::to_owned) });
    }

    /// Writes what is news. What somebody else has written meanwhile stays.
    pub(crate) fn save(self) -> Result<(), String> {
        for kind in ["approved", "changed"] {
            for place in 0..SHARES {
                let writes: Vec<&Write> =
                    self.writes.iter().filter(|write| write.kind == kind && share(&write.label) == place).collect();
                if !writes.is_empty() {
                    update(&format!("{kind}/{place}"), &writes)?;
                }
            }
        }
        for FirstListing { list, is_first, is_marked } in &self.lists {
            match (is_first, self.batch.is_last) {
                (true, false) => drop(store::set(&marker(list), b"", LISTING, Condition::Always).map_err(told)?),
                (true, true) if *is_marked => store::delete(&marker(list)).map_err(told)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The key that is there between the batches of a list that is seen for the first time.
fn marker(list: &str) -> String {
    format!("first/{list}")
}

fn update(key: &str, writes: &[&Write]) -> Result<(), String> {
    for _ in 0..TRIES {
        let (mut object, when) = read(key)?;
        for write in writes {
            match &write.text {
                // Who came first has pinned it.
                Some(_) if write.kind == "approved" && object.get(&write.label).is_some() => {}
                Some(text) => object.set(&write.label, text.as_str()),
                None => drop(object.remove(&write.label)),
            }
        }
        let mut text = object.to_string();
        if text.len() > FULL {
            shorten(&mut object);
            text = object.to_string();
        }
        match store::set(key, text.as_bytes(), 0, when) {
            Err(StoreError::Changed) => {}
            written => return written.map(drop).map_err(told),
        }
    }
    Err("others write there all the time".into())
}

/// Keeps hashes only.
fn shorten(object: &mut Json) {
    let Json::Object(members) = object else { return };
    for (_, value) in members {
        if let Some(text) = value.as_text().filter(|text| !text.starts_with(HASHED)) {
            *value = hashed(text).into();
        }
    }
}

/// What lies under a key, and the condition to replace just that.
fn read(key: &str) -> Result<(Json, Condition), String> {
    let Some(item) = store::get(key).map_err(told)? else { return Ok((Json::Object(Vec::new()), Condition::Absent)) };
    let object = String::from_utf8(item.value).ok().and_then(|text| Json::parse(&text)).filter(Json::is_object);
    Ok((object.ok_or_else(|| format!("{key} is not what was written there"))?, Condition::Version(item.version)))
}

fn told(error: StoreError) -> String {
    match error {
        StoreError::Changed => "somebody else has changed it".into(),
        StoreError::Limit(text) | StoreError::Unavailable(text) => text,
    }
}

fn share(label: &str) -> usize {
    usize::from(Sha256::digest(label)[0]) % SHARES
}

/// What stands for a text that is too long to be kept.
fn hashed(text: &str) -> String {
    let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{HASHED}{digest}")
}

/// Whether a text is the one that is kept, as it is or by its hash.
fn is(kept: Option<&Json>, text: &str) -> bool {
    let kept = kept.and_then(Json::as_text);
    kept == Some(text) || kept.is_some_and(|kept| kept.starts_with(HASHED) && kept == hashed(text))
}

//! Keeps what was cut off.
//!
//! A caller has one index, and each part has its chunks. All keys of a caller begin with the same digest, so what another
//! caller asks for is not found. The index comes first: a part that nobody knows of would count for no one.

mod index;

use std::{borrow::Cow, cell::Cell};

use index::{Index, IndexEntry};
use weir_policy::{
    capability::{
        random,
        store::{self, Condition, Item, StoreError},
    },
    json::Json,
};

use crate::{caller::hex, page};

/// The operations that one question may do.
const OPERATIONS: usize = 64;
/// How often the index is written when others write too. Each try has two operations.
const TRIES: usize = 4;

/// The store, or what stands for it in a test.
pub(crate) trait PartStorage {
    fn get(&self, key: &str) -> Result<Option<Item>, StoreError>;
    fn set(&self, key: &str, value: &[u8], ttl_seconds: u32, when: Condition) -> Result<u64, StoreError>;
    fn delete(&self, key: &str) -> Result<(), StoreError>;
}

/// The capability.
pub(crate) struct Granted;

impl PartStorage for Granted {
    fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
        store::get(key)
    }

    fn set(&self, key: &str, value: &[u8], ttl_seconds: u32, when: Condition) -> Result<u64, StoreError> {
        store::set(key, value, ttl_seconds, when)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        store::delete(key)
    }
}

/// A store with the operations that are left for a question.
struct Counted<'s, S> {
    store: &'s S,
    left: Cell<usize>,
}

impl<S: PartStorage> Counted<'_, S> {
    fn count(&self) -> Result<(), StoreError> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| StoreError::Limit("operations".to_owned()))?;
        self.left.set(left);
        Ok(())
    }
}

impl<S: PartStorage> PartStorage for Counted<'_, S> {
    fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
        self.count()?;
        self.store.get(key)
    }

    fn set(&self, key: &str, value: &[u8], ttl_seconds: u32, when: Condition) -> Result<u64, StoreError> {
        self.count()?;
        self.store.set(key, value, ttl_seconds, when)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.count()?;
        self.store.delete(key)
    }
}

/// A part to be stored.
pub(crate) struct NewPart<'p> {
    pub(crate) mime: Cow<'p, str>,
    /// Whether the text is base64.
    pub(crate) is_blob: bool,
    pub(crate) text: Cow<'p, str>,
}

/// For whom parts are stored, and how.
pub(crate) struct Terms<'a> {
    pub(crate) caller: &'a str,
    pub(crate) page_bytes: usize,
    pub(crate) ttl_seconds: u32,
}

/// One page of a stored part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) mime: String,
    pub(crate) is_blob: bool,
    pub(crate) text: String,
    /// How many pages there are.
    pub(crate) pages: usize,
}

/// Stores parts. Each gets an id, or none where it could not be kept.
pub(crate) fn keep<'p>(
    store: &impl PartStorage,
    terms: &Terms<'_>,
    parts: impl Iterator<Item = &'p NewPart<'p>>,
) -> Vec<Option<String>> {
    let store = Counted { store, left: Cell::new(OPERATIONS) };
    let values: Vec<_> = parts.map(|part| encode(part, terms.page_bytes)).collect();
    let entries: Vec<_> = values.iter().map(|values| entry(terms.caller, values)).collect();
    let Ok(admitted) = admit(&store, terms, &entries) else { return vec![None; entries.len()] };
    let mut ids = Vec::new();
    for ((entry, values), admitted) in entries.iter().zip(&values).zip(admitted) {
        let written = admitted && write(&store, terms, entry, values).is_ok();
        ids.push(written.then(|| entry.id.clone()));
    }
    ids
}

/// A page of a part, the first being 1; none if there is none.
pub(crate) fn read(
    store: &impl PartStorage,
    caller: &str,
    id: &str,
    number: usize,
) -> Result<Option<Page>, StoreError> {
    let Some(first) = value(store, &chunk_key(caller, id, 0))? else { return Ok(None) };
    let Some(header) = Header::read(&first) else { return Ok(None) };
    let Some((chunk, place)) = header.place(number) else { return Ok(None) };
    let text = if chunk == 0 { Some(first) } else { value(store, &chunk_key(caller, id, chunk))? };
    let chunk = text.as_deref().map(|text| if chunk == 0 { header.after(text) } else { text });
    let page = chunk.and_then(|chunk| page::pages(chunk, header.page_bytes).get(place).copied().map(str::to_owned));
    let pages = header.pages.iter().sum();
    Ok(page.map(|text| Page { mime: header.mime, is_blob: header.is_blob, text, pages }))
}

fn value(store: &impl PartStorage, key: &str) -> Result<Option<String>, StoreError> {
    Ok(store.get(key)?.and_then(|item| String::from_utf8(item.value).ok()))
}

fn chunk_key(caller: &str, id: &str, chunk: usize) -> String {
    format!("{caller}/{id}/{chunk}")
}

/// The entry of a part that is still to be written, under a new id.
fn entry(caller: &str, values: &[String]) -> IndexEntry {
    let id = hex(&random::bytes(16));
    let key = chunk_key(caller, &id, 0).len() + 1;
    IndexEntry { id, chunks: values.len(), bytes: values.iter().map(|value| key + value.len()).sum() }
}

/// Puts parts into the index of the caller, and removes older ones to make room. Which of them there is room for.
fn admit(store: &impl PartStorage, terms: &Terms<'_>, entries: &[IndexEntry]) -> Result<Vec<bool>, StoreError> {
    let key = format!("{}/index", terms.caller);
    for _ in 0..TRIES {
        let there = store.get(&key)?;
        let mut index = there.as_ref().map(|item| Index::decode(&item.value)).unwrap_or_default();
        let admission = index.admit(entries);
        if !admission.admitted.contains(&true) && admission.removed.is_empty() {
            return Ok(admission.admitted);
        }
        let when = there.map_or(Condition::Absent, |item| Condition::Version(item.version));
        match store.set(&key, index.encode().as_bytes(), terms.ttl_seconds, when) {
            Ok(_) => {
                for old in &admission.removed {
                    remove(store, terms.caller, old);
                }
                return Ok(admission.admitted);
            }
            Err(StoreError::Changed) => {}
            Err(why) => return Err(why),
        }
    }
    Err(StoreError::Changed)
}

/// What cannot be deleted now expires.
fn remove(store: &impl PartStorage, caller: &str, entry: &IndexEntry) {
    for chunk in 0..entry.chunks {
        let _ = store.delete(&chunk_key(caller, &entry.id, chunk));
    }
}

/// Writes all chunks of a part, or none.
fn write(store: &impl PartStorage, terms: &Terms<'_>, entry: &IndexEntry, values: &[String]) -> Result<(), StoreError> {
    for (chunk, value) in values.iter().enumerate() {
        let key = chunk_key(terms.caller, &entry.id, chunk);
        if let Err(why) = store.set(&key, value.as_bytes(), terms.ttl_seconds, Condition::Always) {
            remove(store, terms.caller, &IndexEntry { chunks: chunk, ..entry.clone() });
            return Err(why);
        }
    }
    Ok(())
}

/// What the first chunk says of the part, in its first line.
struct Header {
    mime: String,
    is_blob: bool,
    page_bytes: usize,
    /// The pages of each chunk.
    pages: Vec<usize>,
}

/// The values of a part, one for each chunk. A part that is too large has none.
fn encode(part: &NewPart<'_>, page_bytes: usize) -> Vec<String> {
    if part.text.len() > index::BYTES {
        return Vec::new();
    }
    let chunks = page::chunks(&part.text);
    let count = |count: usize| Json::from(count as u64);
    let pages: Vec<_> = chunks.iter().map(|chunk| count(page::pages(chunk, page_bytes).len())).collect();
    let header: Json = [
        ("mime", (&*part.mime).into()),
        ("blob", part.is_blob.into()),
        ("page", count(page_bytes)),
        ("pages", pages.into()),
    ]
    .into();
    let mut values: Vec<_> = chunks.into_iter().map(str::to_owned).collect();
    if let Some(first) = values.first_mut() {
        *first = format!("{header}\n{first}");
    }
    values
}

impl Header {
    fn read(chunk: &str) -> Option<Self> {
        let header = Json::parse(chunk.split_once('\n')?.0)?;
        let number = |json: &Json| json.as_number().and_then(|number| usize::try_from(number).ok());
        Some(Self {
            mime: header.get("mime")?.as_text()?.to_owned(),
            is_blob: header.get("blob")?.as_bool()?,
            page_bytes: number(header.get("page")?)?,
            pages: header.get("pages")?.elements().iter().map(number).collect::<Option<_>>()?,
        })
    }

    /// Which page of which chunk this page is.
    fn place(&self, number: usize) -> Option<(usize, usize)> {
        let mut place = number.checked_sub(1)?;
        for (chunk, pages) in self.pages.iter().enumerate() {
            match place.checked_sub(*pages) {
                None => return Some((chunk, place)),
                Some(less) => place = less,
            }
        }
        None
    }

    /// The first chunk without its header.
    fn after<'c>(&self, chunk: &'c str) -> &'c str {
        chunk.split_once('\n').map_or("", |(_, text)| text)
    }
}

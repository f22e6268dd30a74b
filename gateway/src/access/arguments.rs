//! The arguments of a call, as conditions see them.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use cel::common::value::Val;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::config::{Condition, MOST_STEPS};

use super::condition::value;

/// How many values the arguments may consist of, keys included.
const MOST_VALUES: u64 = 50_000;

/// How many bytes of a text are looked at in the time that a value takes.
const BYTES: usize = 64;

/// The arguments of one call. They are read once, and all conditions together may take a bounded time over them.
pub(super) struct Arguments<'a> {
    raw: &'a [u8],
    /// With their size; none if they cannot be judged.
    read: OnceLock<Option<(Box<dyn Val>, u64)>>,
    steps: AtomicU64,
}

impl<'a> Arguments<'a> {
    pub(super) const fn new(raw: &'a [u8]) -> Self {
        Self { raw, read: OnceLock::new(), steps: AtomicU64::new(0) }
    }

    /// Whether a condition may look at them. Not if they cannot be judged, or if that would take too long.
    pub(super) fn may_be_judged_by(&self, condition: &Condition) -> bool {
        let Some((_, size)) = self.read() else { return false };
        let steps = condition.steps(*size);
        self.steps.fetch_add(steps.min(MOST_STEPS), Ordering::Relaxed).saturating_add(steps) <= MOST_STEPS
    }

    /// What conditions see; nothing if it cannot be judged.
    pub(super) fn value(&self) -> Option<&dyn Val> {
        self.read().map(|(value, _)| &**value)
    }

    fn read(&self) -> Option<&(Box<dyn Val>, u64)> {
        self.read.get_or_init(|| read(self.raw)).as_ref()
    }
}

/// Reads arguments, and says how large they are.
fn read(raw: &[u8]) -> Option<(Box<dyn Val>, u64)> {
    let mut values = 0;
    let mut from = serde_json::Deserializer::from_slice(raw);
    let parsed = Strict(&mut values).deserialize(&mut from).ok()?;
    from.end().ok()?;
    let size = values + u64::try_from(raw.len() / BYTES).unwrap_or(u64::MAX);
    Some((value(parsed), size))
}

/// Reads JSON of which every reader understands the same: no key is there twice, or again in other case (Go's
/// `encoding/json` takes the last of those). Counts the values.
struct Strict<'c>(&'c mut u64);

impl Strict<'_> {
    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.0 += 1;
        if *self.0 > MOST_VALUES { Err(E::custom("too many values")) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = serde_json::Value;

    fn deserialize<D: Deserializer<'de>>(mut self, from: D) -> Result<Self::Value, D::Error> {
        self.count()?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = serde_json::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Self::Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = seq.next_element_seed(Strict(self.0))? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut all, mut known) = (serde_json::Map::new(), HashSet::new());
        while let Some(key) = map.next_key::<String>()? {
            self.count()?;
            // In this way those letters beyond ASCII are folded too that have a counterpart in it.
            if !known.insert(key.to_uppercase().to_lowercase()) {
                return Err(A::Error::custom("a key is there twice"));
            }
            all.insert(key, map.next_value_seed(Strict(self.0))?);
        }
        Ok(all.into())
    }
}

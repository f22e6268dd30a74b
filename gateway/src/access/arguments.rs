//! The arguments of a call, as conditions see them.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use cel::common::{
    types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt},
    value::Val,
};
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor},
};
use weir_mcp::json;

use crate::config::{Condition, MOST_STEPS};

/// How many values the arguments may consist of, keys included.
const MOST_VALUES: u64 = 50_000;

/// How many bytes of a text are looked at in the time that a value takes.
const BYTES: usize = 64;

/// How many members of the arguments are found one after the other: so few need no table.
const FEW: usize = 16;

/// The arguments of one call. They are read once, and all conditions together may take a bounded time over them.
pub(super) struct Arguments<'a> {
    raw: &'a [u8],
    /// With their size; none if they cannot be judged.
    read: OnceLock<Option<(ReadArguments<'a>, u64)>>,
    steps: AtomicU64,
}

impl<'a> Arguments<'a> {
    /// `raw` is JSON that has been checked, as a part of each message is.
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
    pub(super) fn value(&self) -> Option<&(dyn Val + 'a)> {
        match &self.read()?.0 {
            ReadArguments::Few(members, value) => Some(&**value.get_or_init(|| map(members.clone()))),
            ReadArguments::Value(value) => Some(value.seen()),
        }
    }

    /// What a member is, or that there is no such; nothing if that takes the [`value`](Self::value).
    pub(super) fn member(&self, name: &str) -> Option<Option<&(dyn Val + 'a)>> {
        match &self.read()?.0 {
            ReadArguments::Few(members, _) => {
                Some(members.iter().find(|(key, _)| key == name).map(|(_, value)| value.seen()))
            }
            ReadArguments::Value(_) => None,
        }
    }

    fn read(&self) -> Option<&(ReadArguments<'a>, u64)> {
        self.read.get_or_init(|| read(self.raw)).as_ref()
    }
}

type Member<'a> = (Cow<'a, str>, ReadValue<'a>);

/// A value. Most are texts, which need no allocation of their own.
#[derive(Clone)]
enum ReadValue<'a> {
    Text(CelString<'a>),
    Other(Box<dyn Val + 'a>),
}

impl<'a> ReadValue<'a> {
    fn other(value: impl Val + 'a) -> Self {
        Self::Other(Box::new(value))
    }

    /// As conditions see it.
    fn seen(&self) -> &(dyn Val + 'a) {
        match self {
            Self::Text(text) => text,
            Self::Other(value) => &**value,
        }
    }

    fn boxed(self) -> Box<dyn Val + 'a> {
        match self {
            Self::Text(text) => Box::new(text),
            Self::Other(value) => value,
        }
    }
}

enum ReadArguments<'a> {
    /// The few members of an object, and that as a value: plain conditions name members, and only others need it.
    Few(Vec<Member<'a>>, OnceLock<Box<dyn Val + 'a>>),
    Value(ReadValue<'a>),
}

/// Reads arguments, and says how large they are. Texts, of which most consist, take no way through serde.
fn read(raw: &[u8]) -> Option<(ReadArguments<'_>, u64)> {
    let mut values = 0;
    let mut strict = Strict(&mut values);
    let read = match raw.trim_ascii_start().starts_with(b"{") {
        true => object(raw, &mut strict)?,
        false => ReadArguments::Value(strict.read(raw)?),
    };
    let size = values + u64::try_from(raw.len() / BYTES).unwrap_or(u64::MAX);
    Some((read, size))
}

/// An object, whose members are kept as they come where they are few.
fn object<'a>(raw: &'a [u8], strict: &mut Strict<'_>) -> Option<ReadArguments<'a>> {
    strict.count::<serde_json::Error>().ok()?;
    let mut members = Members::default();
    for (key, value) in json::members(raw) {
        strict.count::<serde_json::Error>().ok()?;
        // What stands there for a surrogate without its pair, which is no text.
        if matches!(&key, Cow::Owned(key) if key.contains('\u{fffd}')) {
            return None;
        }
        let value = match value.starts_with(b"\"") {
            true => {
                strict.count::<serde_json::Error>().ok()?;
                ReadValue::Text(json::string(value)?.into())
            }
            false => strict.read(value)?,
        };
        members.push(key, value);
    }
    let members = members.each_once()?;
    Some(match members.len() <= FEW {
        true => ReadArguments::Few(members, OnceLock::new()),
        false => ReadArguments::Value(ReadValue::Other(map(members))),
    })
}

/// Members as CEL has them.
fn map(members: Vec<Member<'_>>) -> Box<dyn Val + '_> {
    let members = members.into_iter().map(|(key, value)| (CelMapKey::String(CelString::from(key)), value.boxed()));
    Box::new(CelMap::from(members.collect::<HashMap<_, _>>()))
}

/// The members of an object while it is read.
#[derive(Default)]
struct Members<'a> {
    all: Vec<Member<'a>>,
    /// What keys are for readers that do not tell cases apart, where that is not the key itself.
    folds: BTreeSet<String>,
    twice: bool,
}

impl<'a> Members<'a> {
    fn push(&mut self, key: Cow<'a, str>, value: ReadValue<'a>) {
        self.twice |= folded(&key).is_some_and(|folded| !self.folds.insert(folded));
        self.all.push((key, value));
    }

    /// All of them; none if a key is there twice, or again in other case.
    fn each_once(self) -> Option<Vec<Member<'a>>> {
        let Self { all, folds, twice } = self;
        let has_twice = if all.len() <= FEW {
            let has = |before: usize, key: &str| all[..before].iter().any(|(other, _)| other == key);
            all.iter().enumerate().any(|(at, (key, _))| has(at, key))
                || folds.iter().any(|folded| has(all.len(), folded))
        } else {
            let keys: HashSet<&str> = all.iter().map(|(key, _)| &**key).collect();
            keys.len() < all.len() || folds.iter().any(|folded| keys.contains(&**folded))
        };
        (!twice && !has_twice).then_some(all)
    }
}

/// Reads JSON of which every reader understands the same, as CEL has it: no key is there twice, or again in other case
/// (Go's `encoding/json` takes the last of those). A whole number is an `int` where it fits. Counts the values.
struct Strict<'c>(&'c mut u64);

impl Strict<'_> {
    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.0 += 1;
        if *self.0 > MOST_VALUES { Err(E::custom("too many values")) } else { Ok(()) }
    }

    fn read<'a>(&mut self, raw: &'a [u8]) -> Option<ReadValue<'a>> {
        let mut from = serde_json::Deserializer::from_slice(raw);
        let value = Strict(self.0).deserialize(&mut from).ok()?;
        from.end().ok()?;
        Some(value)
    }
}

/// A key, borrowed where nothing in it is escaped.
#[derive(Deserialize)]
struct MemberKey<'a>(#[serde(borrow)] Cow<'a, str>);

/// What is the same for readers that do not tell cases apart; none if that is the key itself. In this way those letters
/// beyond ASCII are folded too that have a counterpart in it.
fn folded(key: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
    (!key.bytes().all(plain)).then(|| key.to_uppercase().to_lowercase()).filter(|folded| folded != key)
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = ReadValue<'de>;

    fn deserialize<D: Deserializer<'de>>(mut self, from: D) -> Result<Self::Value, D::Error> {
        self.count()?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = ReadValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(ReadValue::other(CelNull))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(ReadValue::other(CelBool::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(ReadValue::other(CelInt::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(match i64::try_from(value) {
            Ok(value) => ReadValue::other(CelInt::from(value)),
            Err(_) => ReadValue::other(CelUInt::from(value)),
        })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(ReadValue::other(CelDouble::from(value)))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(ReadValue::Text(CelString::from(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(ReadValue::Text(CelString::from(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = seq.next_element_seed(Strict(self.0))? {
            all.push(value.boxed());
        }
        Ok(ReadValue::other(CelList::from(all)))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut members = Members::default();
        while let Some(MemberKey(key)) = object.next_key()? {
            self.count()?;
            members.push(key, object.next_value_seed(Strict(self.0))?);
        }
        let members = members.each_once().ok_or_else(|| A::Error::custom("a key is there twice"))?;
        Ok(ReadValue::Other(map(members)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_member_is_what_it_says() {
        let raw = br#" { "plain" : "a b", "esc\u0061ped":"\u00e9\n\"","empty":"","n":7,"list":["x"],"yes":true,"none":null } "#;
        let arguments = Arguments::new(raw);
        let text = |name: &str| {
            let member = arguments.member(name).unwrap().unwrap();
            member.downcast_ref::<CelString<'_>>().map(|text| text.inner().to_owned())
        };
        assert_eq!(text("plain").unwrap(), "a b");
        assert_eq!(text("escaped").unwrap(), "\u{e9}\n\"");
        assert_eq!(text("empty").unwrap(), "");
        for other in ["n", "list", "yes", "none"] {
            assert_eq!(text(other), None, "{other}");
        }
        assert!(arguments.member("missing").unwrap().is_none());
        // The object and seven members of two values, one of them with an element.
        assert_eq!(arguments.read().unwrap().1, 16 + raw.len() as u64 / BYTES as u64);
    }

    #[test]
    fn what_readers_understand_differently_cannot_be_judged() {
        let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
        let large = format!(r#"{{"a":[0{}]}}"#, ",0".repeat(MOST_VALUES as usize));
        let many = (0..FEW).map(|at| format!(r#""k{at}":0,"#)).collect::<String>();
        for bad in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":"x","\u0061":"y"}"#,
            r#"{"path":"x","Path":"y"}"#,
            r#"{"PATH":"x","Path":"y"}"#,
            r#"{"a":{"b":1,"b":2}}"#,
            r#"{"a":"\ud800"}"#,
            r#"{"\ud800":"a"}"#,
            r#"[{"a":1,"a":2}]"#,
            &format!(r#"{{{many}"k0":1}}"#),
            &format!(r#"{{{many}"K0":1}}"#),
            &deep,
            &large,
        ] {
            let arguments = Arguments::new(bad.as_bytes());
            assert!(arguments.read().is_none(), "{}", &bad[..bad.len().min(80)]);
            assert!(arguments.value().is_none() && arguments.member("a").is_none());
        }
        for good in
            [r#"{"a":1,"b":1}"#, r#"{"a":{"b":1},"b":[{"b":1}]}"#, "{}", "[]", r#""a""#, &format!(r#"{{{many}"a":1}}"#)]
        {
            assert!(Arguments::new(good.as_bytes()).value().is_some(), "{good}");
        }
    }
}

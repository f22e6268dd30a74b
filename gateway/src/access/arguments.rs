//! The arguments of a call, as conditions see them.

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell},
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
};

use cel::common::{
    types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt},
    value::Val,
};
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor},
};
use smallvec::SmallVec;

use crate::config::{Condition, MOST_STEPS};

/// How many values the arguments may consist of, keys included.
const MOST_VALUES: u64 = 50_000;

/// How many bytes of a text are looked at in the time that a value takes.
const BYTES: usize = 64;

/// Up to so many bytes the usual check of a text is the faster one.
const SHORT: usize = 512;

/// How many members of the arguments are found one after the other: so few need no table.
const FEW: usize = 16;

/// The arguments of one call. They are read once, and all conditions together may take a bounded time over them.
pub(super) struct Arguments<'a> {
    raw: &'a [u8],
    /// With their size; none if they cannot be judged.
    read: OnceCell<Option<(ReadArguments<'a>, u64)>>,
    steps: Cell<u64>,
}

impl<'a> Arguments<'a> {
    /// `raw` is JSON that has been checked, as a part of each message is.
    pub(super) const fn new(raw: &'a [u8]) -> Self {
        Self { raw, read: OnceCell::new(), steps: Cell::new(0) }
    }

    /// Whether a condition may look at them. Not if they cannot be judged, or if that would take too long.
    pub(super) fn may_be_judged_by(&self, condition: &Condition) -> bool {
        let Some((_, size)) = self.read() else { return false };
        let steps = self.steps.get().saturating_add(condition.steps(*size));
        self.steps.set(steps);
        steps <= MOST_STEPS
    }

    /// What conditions see; nothing if it cannot be judged.
    pub(super) fn value(&self) -> Option<&(dyn Val + 'a)> {
        match &self.read()?.0 {
            ReadArguments::Few(members, value) => Some(&**value.get_or_init(|| map(members.clone()))),
            ReadArguments::Value(value) => Some(&**value),
        }
    }

    /// What a member is, or that there is no such; nothing if that takes the [`value`](Self::value).
    pub(super) fn member(&self, name: &str) -> Option<Option<&ReadValue<'a>>> {
        match &self.read()?.0 {
            ReadArguments::Few(members, _) => Some(members.iter().find(|(key, _)| key == name).map(|(_, value)| value)),
            ReadArguments::Value(_) => None,
        }
    }

    fn read(&self) -> Option<&(ReadArguments<'a>, u64)> {
        self.read.get_or_init(|| read(self.raw)).as_ref()
    }
}

type Member<'a> = (Cow<'a, str>, ReadValue<'a>);

/// Most objects of arguments have one or two, which need no allocation.
type Members<'a> = SmallVec<[Member<'a>; 2]>;

/// A value. Most are texts, which need no allocation of their own.
#[derive(Clone, Debug)]
pub(super) enum ReadValue<'a> {
    Text(Cow<'a, str>),
    Other(Box<dyn Val + 'a>),
}

impl<'a> ReadValue<'a> {
    fn other(value: impl Val + 'a) -> Self {
        Self::Other(Box::new(value))
    }

    /// As the interpreter sees it.
    fn boxed(self) -> Box<dyn Val + 'a> {
        match self {
            Self::Text(text) => Box::new(CelString::from(text)),
            Self::Other(value) => value,
        }
    }
}

enum ReadArguments<'a> {
    /// The few members of an object, and that as a value: plain conditions name members, and only others need it.
    Few(Members<'a>, OnceCell<Box<dyn Val + 'a>>),
    Value(Box<dyn Val + 'a>),
}

/// Reads arguments, and says how large they are.
fn read(raw: &[u8]) -> Option<(ReadArguments<'_>, u64)> {
    // Most are short: the code of the usual check is in the caches, as the head of each request is checked by it.
    let text = match raw.len() <= SHORT {
        true => std::str::from_utf8(raw).ok()?,
        false => simdutf8::basic::from_utf8(raw).ok()?,
    };
    let mut values = 0;
    let read = match texts(text) {
        Some(members) => {
            values = 1 + 2 * members.len() as u64;
            ReadArguments::Few(members, OnceCell::new())
        }
        None => strictly(text, &mut values)?,
    };
    let size = values + u64::try_from(raw.len() / BYTES).unwrap_or(u64::MAX);
    Some((read, size))
}

fn strictly<'a>(text: &'a str, values: &mut u64) -> Option<ReadArguments<'a>> {
    let mut from = serde_json::Deserializer::from_str(text);
    let read = match text.trim_ascii_start().starts_with('{') {
        true => from.deserialize_map(Object(Strict(values))),
        false => Strict(values).deserialize(&mut from).map(|value| ReadArguments::Value(value.boxed())),
    };
    let read = read.ok()?;
    from.end().ok()?;
    Some(read)
}

/// The members of an object of few texts without escapes, as most arguments are: found in a third of the time that serde
/// takes, for the message has been checked. None if anything else is there.
fn texts(text: &str) -> Option<Members<'_>> {
    let (mut from, mut members) = (TextScan { text, at: 0 }, Members::new());
    from.sign(b'{')?;
    loop {
        let key = from.quoted()?;
        from.sign(b':')?;
        let value = from.quoted()?;
        if members.len() == FEW || folded(key).is_some() || members.iter().any(|(other, _)| other == key) {
            return None;
        }
        members.push((Cow::Borrowed(key), ReadValue::Text(Cow::Borrowed(value))));
        if from.sign(b',').is_none() {
            break;
        }
    }
    from.sign(b'}')?;
    from.next().is_none().then_some(members)
}

/// Where in the text one is.
struct TextScan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> TextScan<'a> {
    /// What comes after spaces.
    fn next(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    fn sign(&mut self, sign: u8) -> Option<()> {
        (self.next()? == sign).then(|| self.at += 1)
    }

    /// A text that stands between quotes as it is.
    fn quoted(&mut self) -> Option<&'a str> {
        self.sign(b'"')?;
        let bytes = self.text.as_bytes();
        let end = self.at + memchr::memchr2(b'"', b'\\', bytes.get(self.at..)?)?;
        let inner = self.text.get(self.at..end)?;
        self.at = end;
        self.sign(b'"').map(|()| inner)
    }
}

/// Members as CEL has them.
fn map(members: Members<'_>) -> Box<dyn Val + '_> {
    let members = members.into_iter().map(|(key, value)| (CelMapKey::String(CelString::from(key)), value.boxed()));
    Box::new(CelMap::from(members.collect::<HashMap<_, _>>()))
}

/// Whether a key is there twice, or again in lower case as one of those that `folds` has so.
fn has_key_twice(members: &[Member<'_>], folds: &BTreeSet<String>) -> bool {
    if members.len() <= FEW {
        let has = |before: usize, key: &str| members[..before].iter().any(|(other, _)| other == key);
        return members.iter().enumerate().any(|(at, (key, _))| has(at, key))
            || folds.iter().any(|folded| has(members.len(), folded));
    }
    let keys: HashSet<&str> = members.iter().map(|(key, _)| &**key).collect();
    keys.len() < members.len() || folds.iter().any(|folded| keys.contains(&**folded))
}

/// An object, whose members are kept as they come where they are few.
struct Object<'c>(Strict<'c>);

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ReadArguments<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, object: A) -> Result<Self::Value, A::Error> {
        self.0.count()?;
        let members = self.0.members(object)?;
        Ok(match members.len() <= FEW {
            true => ReadArguments::Few(members, OnceCell::new()),
            false => ReadArguments::Value(map(members)),
        })
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

    /// The members of an object, none of them twice.
    fn members<'de, A: MapAccess<'de>>(&mut self, mut object: A) -> Result<Members<'de>, A::Error> {
        let (mut members, mut folds) = (Members::new(), BTreeSet::new());
        let mut twice = false;
        while let Some(MemberKey(key)) = object.next_key()? {
            self.count()?;
            twice |= folded(&key).is_some_and(|folded| !folds.insert(folded));
            members.push((key, object.next_value_seed(Strict(self.0))?));
        }
        if twice || has_key_twice(&members, &folds) {
            return Err(A::Error::custom("a key is there twice"));
        }
        Ok(members)
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
        Ok(ReadValue::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(ReadValue::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = seq.next_element_seed(Strict(self.0))? {
            all.push(value.boxed());
        }
        Ok(ReadValue::other(CelList::from(all)))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, object: A) -> Result<Self::Value, A::Error> {
        self.members(object).map(|members| ReadValue::Other(map(members)))
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
        let text = |name: &str| match arguments.member(name).unwrap().unwrap() {
            ReadValue::Text(text) => Some(text.to_string()),
            ReadValue::Other(_) => None,
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

    #[test]
    fn texts_are_found_as_serde_finds_them() {
        for text in [r#"{"a":"b"}"#, "{\"a\"\t:\n\"\u{e9} {,:}\" ,\r \"b\":\"\" } ", r#" {"":"","x y":"'"}"#] {
            let mut values = 0;
            let Some(ReadArguments::Few(members, _)) = strictly(text, &mut values) else { panic!("{text}") };
            let shown = |members: &[Member<'_>]| {
                members.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>()
            };
            let found = texts(text).unwrap();
            assert_eq!((shown(&found), 1 + 2 * found.len() as u64), (shown(&members), values), "{text}");
        }
        let many = (0..=FEW).map(|at| format!(r#""k{at}":"""#)).collect::<Vec<_>>().join(",");
        for other in [
            "",
            "[]",
            "{}",
            r#"{"a":1}"#,
            r#"{"a":"b","c":[]}"#,
            r#"{"a":"\n"}"#,
            r#"{"\n":"a"}"#,
            r#"{"A":"b"}"#,
            r#"{"a":"b","a":"c"}"#,
            r#"{"a":"b",}"#,
            r#"{"a":"b""#,
            r#"{"a":"b"} {}"#,
            r#"{"a":"b"#,
            &format!("{{{many}}}"),
        ] {
            assert!(texts(other).is_none(), "{other}");
        }
    }
}

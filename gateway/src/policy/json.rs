//! Questions and answers of the contract as JSON, whatever their types: for those who try a policy without a gateway.
//!
//! What a question leaves out is empty: no value, an empty text, an empty list, zero, the first case of a variant. A text may
//! be written as the JSON document that it is.

use std::{error::Error, fmt};

use serde_json::{Map, Value};
use wasmtime::component::{Type, Val};

/// Texts that hold a JSON object, and would be no JSON if they were empty.
const DOCUMENTS: [&str; 3] = ["settings", "claims", "body"];

/// What is wrong with a question, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfit {
    at: String,
    what: String,
}

impl Unfit {
    fn new(at: &str, what: impl Into<String>) -> Self {
        Self { at: at.to_owned(), what: what.into() }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at, self.what)
    }
}

impl Error for Unfit {}

/// The value of a type that the contract uses; the empty one if there is none.
pub(super) fn value(ty: &Type, json: Option<&Value>, at: &str) -> Result<Val, Unfit> {
    let number = || json.map_or(Ok(0), |json| json.as_i64().ok_or_else(|| Unfit::new(at, "takes a whole number")));
    let ranged = |found: Option<Val>| found.ok_or_else(|| Unfit::new(at, "takes a number in its range"));
    Ok(match ty {
        Type::Bool => Val::Bool(json.is_some_and(|json| json == true)),
        Type::U8 => ranged(u8::try_from(number()?).ok().map(Val::U8))?,
        Type::U16 => ranged(u16::try_from(number()?).ok().map(Val::U16))?,
        Type::U32 => ranged(u32::try_from(number()?).ok().map(Val::U32))?,
        Type::U64 => ranged(u64::try_from(number()?).ok().map(Val::U64))?,
        Type::S32 => ranged(i32::try_from(number()?).ok().map(Val::S32))?,
        Type::S64 => Val::S64(number()?),
        Type::String => Val::String(text(json, at)?),
        Type::Option(option) => match json.filter(|json| !json.is_null()) {
            Some(some) => Val::Option(Some(Box::new(value(&option.ty(), Some(some), at)?))),
            None => Val::Option(None),
        },
        Type::List(list) => Val::List(elements(&list.ty(), json, at)?),
        Type::Tuple(tuple) => {
            let given = json.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let all = tuple.types().enumerate();
            Val::Tuple(all.map(|(index, ty)| value(&ty, given.get(index), at)).collect::<Result<_, _>>()?)
        }
        Type::Record(record) => {
            let fields: Vec<_> = record.fields().map(|field| (field.name.to_owned(), field.ty)).collect();
            Val::Record(members(&fields, json, at)?)
        }
        Type::Enum(names) => {
            let names: Vec<&str> = names.names().collect();
            let chosen = json.map_or(names.first().copied(), Value::as_str);
            let known = chosen.filter(|chosen| names.contains(chosen));
            Val::Enum(known.ok_or_else(|| Unfit::new(at, format!("is one of {}", names.join(", "))))?.to_owned())
        }
        Type::Variant(variant) => {
            let cases: Vec<_> = variant.cases().map(|case| (case.name.to_owned(), case.ty)).collect();
            let (name, payload) = case(&cases, json, at)?;
            let (_, ty) = cases.iter().find(|(case, _)| *case == name).ok_or_else(|| Unfit::new(at, "has no case"))?;
            let payload = ty.as_ref().map(|ty| value(ty, payload, &format!("{at}.{name}"))).transpose()?;
            Val::Variant(name, payload.map(Box::new))
        }
        _ => return Err(Unfit::new(at, "is of a type that no question has")),
    })
}

/// The parameters of a function, or the fields of a record.
pub(super) fn members(fields: &[(String, Type)], json: Option<&Value>, at: &str) -> Result<Vec<(String, Val)>, Unfit> {
    let empty = Map::new();
    let given = match json {
        None => &empty,
        Some(Value::Object(given)) => given,
        Some(_) => return Err(Unfit::new(at, "takes an object")),
    };
    if let Some(unknown) = given.keys().find(|key| fields.iter().all(|(name, _)| name != *key)) {
        let known: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        return Err(Unfit::new(at, format!("has no {unknown}; it has {}", known.join(", "))));
    }
    let object = Value::Object(Map::new());
    let field = |(name, ty): &(String, Type)| {
        let document = matches!(ty, Type::String) && DOCUMENTS.contains(&name.as_str());
        let given = given.get(name).or(document.then_some(&object));
        Ok((name.clone(), value(ty, given, &format!("{at}.{name}"))?))
    };
    fields.iter().map(field).collect()
}

/// A text, or the document that it holds.
fn text(json: Option<&Value>, at: &str) -> Result<String, Unfit> {
    match json {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(document @ (Value::Object(_) | Value::Array(_))) => Ok(document.to_string()),
        Some(_) => Err(Unfit::new(at, "takes a text")),
    }
}

/// The elements of a list. Bytes may be written as a text.
fn elements(ty: &Type, json: Option<&Value>, at: &str) -> Result<Vec<Val>, Unfit> {
    match json {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if matches!(ty, Type::U8) => Ok(text.bytes().map(Val::U8).collect()),
        Some(Value::Array(all)) => {
            all.iter().enumerate().map(|(index, json)| value(ty, Some(json), &format!("{at}[{index}]"))).collect()
        }
        Some(_) => Err(Unfit::new(at, "takes a list")),
    }
}

/// Which case is meant: `"name"`, or `{"name": payload}`.
fn case<'j>(
    cases: &[(String, Option<Type>)],
    json: Option<&'j Value>,
    at: &str,
) -> Result<(String, Option<&'j Value>), Unfit> {
    let known = |name: &str| cases.iter().any(|(case, _)| case == name);
    let found = match json {
        None => cases.first().map(|(name, _)| (name.clone(), None)),
        Some(Value::String(name)) if known(name) => Some((name.clone(), None)),
        Some(Value::Object(one)) if one.len() == 1 => {
            one.iter().next().filter(|(name, _)| known(name)).map(|(name, payload)| (name.clone(), Some(payload)))
        }
        Some(_) => None,
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = cases.iter().map(|(name, _)| name.as_str()).collect();
        Unfit::new(at, format!("is one of {}", names.join(", ")))
    })
}

/// What an answer says, without what is empty by contract (`extensions`).
pub(super) fn shown(answer: &Val) -> Value {
    match answer {
        Val::Bool(it) => (*it).into(),
        Val::U8(it) => (*it).into(),
        Val::U16(it) => (*it).into(),
        Val::U32(it) => (*it).into(),
        Val::U64(it) => (*it).into(),
        Val::S32(it) => (*it).into(),
        Val::S64(it) => (*it).into(),
        Val::String(text) | Val::Enum(text) => text.as_str().into(),
        Val::List(all) | Val::Tuple(all) => all.iter().map(shown).collect(),
        Val::Record(fields) => {
            let told = fields.iter().filter(|(name, value)| name != "extensions" || *value != Val::List(Vec::new()));
            Value::Object(told.map(|(name, value)| (name.clone(), shown(value))).collect())
        }
        Val::Variant(name, None) => name.as_str().into(),
        Val::Variant(name, Some(payload)) => named(name, shown(payload)),
        Val::Option(Some(it)) => shown(it),
        Val::Result(Ok(it)) => named("ok", it.as_deref().map_or(Value::Null, shown)),
        Val::Result(Err(it)) => named("err", it.as_deref().map_or(Value::Null, shown)),
        _ => Value::Null,
    }
}

fn named(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}

//! Records of the contract as JSON: members and cases are called as in the contract, not as in Rust.

use std::fmt;

use serde::ser::{self, Impossible, Serialize, SerializeSeq, SerializeStruct, SerializeTuple, Serializer};
use serde_json::{Map, Value};

/// A value of the contract. Null if it is of a type that the contract does not use.
pub(in crate::policy) fn contract_json(value: &impl Serialize) -> Value {
    value.serialize(Contract).unwrap_or_default()
}

struct Contract;

/// A type that the contract does not use.
#[derive(Debug)]
struct Unused;

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the contract has no such type")
    }
}

impl std::error::Error for Unused {}

impl ser::Error for Unused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

fn name(rust: &str) -> String {
    let mut name = String::with_capacity(rust.len() + 4);
    for (at, letter) in rust.trim_start_matches("r#").char_indices() {
        match letter {
            '_' => name.push('-'),
            _ if letter.is_ascii_uppercase() => {
                name.push_str(if at == 0 { "" } else { "-" });
                name.push(letter.to_ascii_lowercase());
            }
            _ => name.push(letter),
        }
    }
    name
}

struct List(Vec<Value>);

struct Record(Map<String, Value>);

macro_rules! plain {
    ($($method:ident: $type:ty),+ $(,)?) => {
        $(fn $method(self, value: $type) -> Result<Value, Unused> { Ok(value.into()) })+
    };
}

macro_rules! unused {
    ($($method:ident($($type:ty),*) -> $answer:ty;)+) => {
        $(fn $method(self, $(_: $type),*) -> Result<$answer, Unused> { Err(Unused) })+
    };
}

impl Serializer for Contract {
    type Ok = Value;
    type Error = Unused;
    type SerializeSeq = List;
    type SerializeTuple = List;
    type SerializeTupleStruct = Impossible<Value, Unused>;
    type SerializeTupleVariant = Impossible<Value, Unused>;
    type SerializeMap = Impossible<Value, Unused>;
    type SerializeStruct = Record;
    type SerializeStructVariant = Impossible<Value, Unused>;

    plain! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_str: &str,
    }

    unused! {
        serialize_f32(f32) -> Value;
        serialize_f64(f64) -> Value;
        serialize_char(char) -> Value;
        serialize_bytes(&[u8]) -> Value;
        serialize_unit_struct(&'static str) -> Value;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant;
        serialize_map(Option<usize>) -> Self::SerializeMap;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant;
    }

    fn serialize_none(self) -> Result<Value, Unused> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Unused> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, Unused> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, case: &'static str) -> Result<Value, Unused> {
        Ok(name(case).into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<Value, Unused> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        case: &'static str,
        value: &T,
    ) -> Result<Value, Unused> {
        Ok(Value::Object(Map::from_iter([(name(case), value.serialize(Self)?)])))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List, Unused> {
        Ok(List(Vec::new()))
    }

    fn serialize_tuple(self, _: usize) -> Result<List, Unused> {
        Ok(List(Vec::new()))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Record, Unused> {
        Ok(Record(Map::new()))
    }
}

impl SerializeSeq for List {
    type Ok = Value;
    type Error = Unused;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unused> {
        self.0.push(value.serialize(Contract)?);
        Ok(())
    }

    fn end(self) -> Result<Value, Unused> {
        Ok(Value::Array(self.0))
    }
}

impl SerializeTuple for List {
    type Ok = Value;
    type Error = Unused;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unused> {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<Value, Unused> {
        SerializeSeq::end(self)
    }
}

impl SerializeStruct for Record {
    type Ok = Value;
    type Error = Unused;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, field: &'static str, value: &T) -> Result<(), Unused> {
        let empty = |value: &Value| field == "extensions" && value.as_array().is_some_and(Vec::is_empty);
        let value = value.serialize(Contract)?;
        if !empty(&value) {
            self.0.insert(name(field), value);
        }
        Ok(())
    }

    fn end(self) -> Result<Value, Unused> {
        Ok(Value::Object(self.0))
    }
}

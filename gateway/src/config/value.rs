//! The kinds of value that are not a string: how each is read and described in the schema.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use super::problem::ProblemReport;
use super::read::{At, Node, SettingKind, entries, mistyped};

/// A number above zero.
#[derive(Clone, Copy)]
pub(super) struct Count(pub(super) usize);

/// A part of a whole, in 1/2³² of it.
#[derive(Clone, Copy)]
pub(super) struct Share(pub(super) u64);

/// Any number of values.
pub(super) struct Values<T>(pub(super) Vec<At<T>>);

/// A value, or a list of them.
pub(super) struct OneOrMore<T>(pub(super) Vec<At<T>>);

/// Values under names of the operator's choice, in the order of the file.
pub(super) struct NamedValues<T>(pub(super) Vec<(String, At<T>)>);

/// A table that Weir passes on without looking into it, as a JSON object.
pub(super) struct Json(pub(super) String);

impl SettingKind for bool {
    const EXPECTED: &'static str = "`true` or `false`";

    fn read(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<Self> {
        node.get_ref().as_bool().or_else(|| mistyped(node, report))
    }
}

impl SettingKind for Count {
    const EXPECTED: &'static str = "a whole number above zero";

    fn read(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<Self> {
        let Some(number) = node.get_ref().as_integer() else {
            return mistyped(node, report);
        };
        let count = u32::from_str_radix(number.as_str(), number.radix()).ok().and_then(|count| count.try_into().ok());
        match count {
            Some(count) if count > 0 => Some(Self(count)),
            _ => {
                report.add(node.span(), format!("expected a number from 1 to {}", u32::MAX), None);
                None
            }
        }
    }
}

impl Share {
    /// The whole.
    pub(super) const ALL: Self = Self(1 << 32);
}

impl SettingKind for Share {
    const EXPECTED: &'static str = "a number from 0 to 1";
    const EXAMPLE: Option<&'static str> = Some("0.1");

    fn read(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<Self> {
        let number = match node.get_ref() {
            DeValue::Integer(number) => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            _ => return mistyped(node, report),
        };
        let share = number.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
        if share.is_none() {
            report.add(node.span(), format!("expected {}", Self::EXPECTED), Self::EXAMPLE.map(str::to_owned));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 2³²")]
        share.map(|share| Self((share * 4_294_967_296.0) as u64))
    }
}

impl<T: SettingKind> SettingKind for Values<T> {
    const EXPECTED: &'static str = "a list";
    const EXAMPLE: Option<&'static str> = Some("each value in quotes, all in brackets: [\"-y\", \"server\"]");

    fn read(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<Self> {
        let Some(array) = node.get_ref().as_array() else {
            return mistyped(node, report);
        };
        let element = |node: &Node<'_>| {
            let value = T::read(node, report)?;
            Some(At { key: node.span(), span: node.span(), value })
        };
        Some(Self(array.iter().filter_map(element).collect()))
    }
}

impl<T: SettingKind> SettingKind for OneOrMore<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn read(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<Self> {
        if node.get_ref().is_array() {
            return Values::read(node, report).map(|list| Self(list.0));
        }
        let value = T::read(node, report)?;
        Some(Self(vec![At { key: node.span(), span: node.span(), value }]))
    }
}

impl<T: SettingKind> SettingKind for NamedValues<T> {
    const EXPECTED: &'static str = "a table";
    const EXAMPLE: Option<&'static str> = Some("names and values in braces: { NAME = \"value\" }");

    fn read(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<Self> {
        let Some(table) = node.get_ref().as_table() else {
            return mistyped(node, report);
        };
        let entry = |(name, key, node): (&str, _, &Node<'_>)| {
            let value = T::read(node, report)?;
            Some((name.to_owned(), At { key, span: node.span(), value }))
        };
        Some(Self(entries(table).into_iter().filter_map(entry).collect()))
    }
}

impl SettingKind for Json {
    const EXPECTED: &'static str = "a table";

    fn read(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<Self> {
        if !node.get_ref().is_table() {
            return mistyped(node, report);
        }
        json(node, report).map(|value| Self(value.to_string()))
    }
}

/// The value as JSON; dates become strings. Reports every number that JSON does not have.
fn json(node: &Node<'_>, report: &mut ProblemReport<'_>) -> Option<serde_json::Value> {
    let number = match node.get_ref() {
        DeValue::String(text) => return Some(text.as_ref().into()),
        DeValue::Boolean(yes) => return Some((*yes).into()),
        DeValue::Datetime(date) => return Some(date.to_string().into()),
        DeValue::Array(array) => {
            let values: Vec<_> = array.iter().map(|each| json(each, report)).collect();
            return values.into_iter().collect();
        }
        DeValue::Table(table) => {
            let entry = |(key, _, node): (&str, _, &Node<'_>)| (key.to_owned(), json(node, report));
            let values: Vec<_> = entries(table).into_iter().map(entry).collect();
            return values.into_iter().map(|(key, value)| Some((key, value?))).collect();
        }
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(Into::into),
        DeValue::Float(number) => number.as_str().parse().ok().and_then(serde_json::Number::from_f64).map(Into::into),
    };
    if number.is_none() {
        report.add(node.span(), "JSON has no such number", None);
    }
    number
}

macro_rules! containers {
    ($($type:ident: |$inner:ident| $schema:tt;)*) => {$(
        impl<T: JsonSchema> JsonSchema for $type<T> {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                format!(concat!(stringify!($type), "_{}"), T::schema_name()).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let $inner = generator.subschema_for::<T>();
                json_schema!($schema)
            }
        }
    )*};
}

containers! {
    Values: |inner| { "type": "array", "items": inner };
    NamedValues: |inner| { "type": "object", "additionalProperties": inner };
    OneOrMore: |inner| { "anyOf": [inner, { "type": "array", "items": inner, "minItems": 1 }] };
}

impl JsonSchema for Count {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Count".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": u32::MAX })
    }
}

impl JsonSchema for Share {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Share".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0, "maximum": 1 })
    }
}

impl JsonSchema for Json {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Json".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

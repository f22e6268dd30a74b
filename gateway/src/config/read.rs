//! From a TOML tree with positions to typed values with positions, without stopping at the first mistake.
//!
//! serde gives up at the first unknown key or wrong type, and an operator who fixes mistakes one run at a time is badly
//! served. So the tables of [`super::written`] are read by hand, by code that the macro `table` writes from the very
//! fields that the schema is derived from: the keys that are read, suggested and documented cannot differ.

use std::borrow::Cow;
use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::ProblemReport;
use super::suggest;

/// A value of the tree, and the bytes of the file that it takes up.
pub(super) type Node<'n> = Spanned<DeValue<'n>>;

/// What a setting can be read as.
pub(super) trait SettingKind: Sized {
    /// What to write, in a message: "a string".
    const EXPECTED: &'static str;
    /// An example, where that alone does not show how to write it.
    const EXAMPLE: Option<&'static str> = None;

    /// Reads the value, or reports why not. Reports whatever is wrong inside as well.
    fn read(node: &Node<'_>, report: &mut ProblemReport) -> Option<Self>;
}

/// Why a text cannot be read as what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub(super) message: Cow<'static, str>,
    pub(super) hint: Cow<'static, str>,
}

/// A value and where it stands.
pub(super) struct At<T> {
    /// Its key; for an element of a list, the element.
    pub(super) key: Range<usize>,
    /// The value itself.
    pub(super) span: Range<usize>,
    pub(super) value: T,
}

/// One setting of a table.
pub(super) enum Setting<T> {
    /// It is not there.
    Absent,
    /// It is there, but cannot be read, which has been reported; the key is here.
    Unreadable(Range<usize>),
    /// It is there.
    Set(At<T>),
}

impl Unreadable {
    pub(super) fn new(message: impl Into<Cow<'static, str>>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

impl<T> Setting<T> {
    /// The value, if it is there and readable.
    pub(super) fn set(&self) -> Option<&At<T>> {
        match self {
            Self::Set(at) => Some(at),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }

    /// Where the key stands, readable or not.
    pub(super) fn key(&self) -> Option<Range<usize>> {
        match self {
            Self::Absent => None,
            Self::Unreadable(key) => Some(key.clone()),
            Self::Set(at) => Some(at.key.clone()),
        }
    }

    /// A copy of the value, or this one if it is not there.
    pub(super) fn or(&self, default: T) -> T
    where
        T: Copy,
    {
        self.set().map_or(default, |at| at.value)
    }
}

/// In the schema a setting is what its value is.
impl<T: JsonSchema> JsonSchema for Setting<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

/// Needed by the schema alone, to know that every key may be left out.
impl<T> Default for Setting<T> {
    fn default() -> Self {
        Self::Absent
    }
}

/// Reports that the value is of the wrong type.
pub(super) fn mistyped<T: SettingKind>(node: &Node<'_>, report: &mut ProblemReport) -> Option<T> {
    let found = match node.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    report.add(node.span(), format!("expected {}, found {found}", T::EXPECTED), T::EXAMPLE.map(str::to_owned));
    None
}

/// The entries of a table in the order of the file, which the tree does not keep.
pub(super) fn entries<'t, 'n>(table: &'t DeTable<'n>) -> Vec<(&'t str, Range<usize>, &'t Node<'n>)> {
    let mut entries: Vec<_> = table.iter().map(|(key, node)| (key.get_ref().as_ref(), key.span(), node)).collect();
    entries.sort_by_key(|(_, key, _)| key.start);
    entries
}

/// Reports every key of the table that is not among the known ones.
pub(super) fn refuse_unknown(table: &DeTable<'_>, known: &[&str], report: &mut ProblemReport) {
    for (key, span, _) in entries(table) {
        if !known.contains(&key) {
            report.add(span, format!("unknown key `{}`", key.escape_debug()), Some(suggest::hint(key, known)));
        }
    }
}

/// Reads one setting of a table.
pub(super) fn field<T: SettingKind>(table: &DeTable<'_>, name: &str, report: &mut ProblemReport) -> Setting<T> {
    let Some((key, node)) = table.get_key_value(name) else {
        return Setting::Absent;
    };
    match T::read(node, report) {
        Some(value) => Setting::Set(At { key: key.span(), span: node.span(), value }),
        None => Setting::Unreadable(key.span()),
    }
}

/// Defines tables: the struct, its schema and the code that reads it, from one list of keys.
///
/// A field is named as its key is, but for what [`key`] knows.
macro_rules! table {
    ($($(#[$meta:meta])* struct $name:ident ($expected:literal) {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        #[derive(Default, schemars::JsonSchema)]
        $(#[$meta])*
        #[schemars(deny_unknown_fields)]
        pub(in crate::config) struct $name {
            $($(#[$field_meta])* #[schemars(default)] pub(in crate::config) $field: $crate::config::read::Setting<$type>,)*
        }

        impl $crate::config::read::SettingKind for $name {
            const EXPECTED: &'static str = $expected;

            fn read(
                node: &$crate::config::read::Node<'_>,
                report: &mut $crate::config::problem::ProblemReport,
            ) -> Option<Self> {
                const KEYS: &[&str] = &[$($crate::config::read::key(stringify!($field))),*];
                let Some(table) = node.get_ref().as_table() else {
                    return $crate::config::read::mistyped(node, report);
                };
                $crate::config::read::refuse_unknown(table, KEYS, report);
                let mut keys = KEYS.iter();
                Some(Self {
                    $($field: $crate::config::read::field(table, keys.next().copied().unwrap_or_default(), report),)*
                })
            }
        }
    )*};
}
pub(super) use table;

/// The key of a field: `r#` is no part of it, and one key is written as in the configurations it is known from.
pub(super) const fn key(field: &'static str) -> &'static str {
    match field.as_bytes() {
        b"http_url" => "httpUrl",
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

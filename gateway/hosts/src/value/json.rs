//! JSON with comments, and JSON5 as far as `jsonc-parser` reads it.

use jsonc_parser::{CollectOptions, ParseOptions, ast, common::Ranged, parse_to_ast};

use super::{MAX_DEPTH, Map, Node, ReadError, Value, error, too_deep};

/// What is accepted. Missing commas are a mistake everywhere.
pub(crate) fn options(json5: bool) -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_missing_commas: false,
        allow_loose_object_property_names: json5,
        allow_single_quoted_strings: json5,
        allow_hexadecimal_numbers: json5,
        allow_unary_plus_numbers: json5,
        allow_bare_decimal_point_numbers: json5,
        allow_non_finite_numbers: json5,
        allow_extended_string_escapes: json5,
    }
}

pub(super) fn parse(text: &str, json5: bool) -> Result<Value, ReadError> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &options(json5)).map_err(|e| {
        error(
            text,
            e.range().start,
            e.kind().to_string(),
            "Correct the JSON there; comments and trailing commas are fine",
        )
    })?;
    match parsed.value {
        Some(value) => convert(text, value, 1),
        None => Ok(Value { node: Node::Map(Map::new()), at: 0 }),
    }
}

fn convert(text: &str, value: ast::Value<'_>, depth: usize) -> Result<Value, ReadError> {
    let at = value.range().start;
    if depth > MAX_DEPTH {
        return Err(too_deep(text, at));
    }
    let node = match value {
        ast::Value::NullKeyword(_) => Node::Null,
        ast::Value::BooleanLit(bool) => Node::Bool(bool.value),
        ast::Value::NumberLit(number) => Node::Number(number.value.to_owned()),
        ast::Value::StringLit(string) => Node::Text(string.value.into_owned()),
        ast::Value::Array(array) => {
            let elements = array.elements.into_iter().map(|element| convert(text, element, depth + 1));
            Node::List(elements.collect::<Result<_, _>>()?)
        }
        ast::Value::Object(object) => {
            let mut map = Map::new();
            for property in object.properties {
                map.insert(property.name.into_string(), convert(text, property.value, depth + 1)?);
            }
            Node::Map(map)
        }
    };
    Ok(Value { node, at })
}

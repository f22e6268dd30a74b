//! Whether arguments fit the schema that the server listed, so that a model is told at once what is wrong with them.
//!
//! What is not decided here, such as a pattern, a format or a fraction's bounds, the upstream decides as before.

use weir_policy::json::Json;

use crate::rewrite::{cut, resolved, same};

/// As many schemas are looked at: references to references double.
const WORK: u32 = 10_000;
/// As deep as they lie in each other.
const DEPTH: u32 = 48;
/// As much of a keyword is said, in characters.
const SAID: usize = 200;

/// What is wrong with the arguments of a call, in the words of JSON Schema.
pub(crate) fn arguments(schema: &Json, arguments: &Json) -> Result<(), String> {
    Checker { root: schema, left: WORK, depth: 0 }.fits(schema, arguments, "arguments")
}

struct Checker<'s> {
    root: &'s Json,
    left: u32,
    depth: u32,
}

impl Checker<'_> {
    /// Whether a value fits, as far as that is looked into.
    fn fits(&mut self, schema: &Json, value: &Json, at: &str) -> Result<(), String> {
        if self.left == 0 || self.depth == DEPTH {
            return Ok(());
        }
        (self.left, self.depth) = (self.left - 1, self.depth + 1);
        let found = self.all(schema, value, at);
        self.depth -= 1;
        found
    }

    fn all(&mut self, schema: &Json, value: &Json, at: &str) -> Result<(), String> {
        if *schema == Json::Bool(false) {
            return Err(format!("`{at}` is not allowed"));
        }
        // Before draft 2019-09 nothing beside a reference counts.
        if let Some(reference) = schema.get("$ref").and_then(Json::as_text) {
            return resolved(self.root, reference).map_or(Ok(()), |target| self.fits(target, value, at));
        }
        if *value == Json::Null && schema.get("nullable").and_then(Json::as_bool) == Some(true) {
            return Ok(());
        }
        for (keyword, says) in schema.members() {
            match (keyword.as_str(), says) {
                ("allOf", Json::Array(parts)) => parts.iter().try_for_each(|part| self.fits(part, value, at))?,
                // Whether a second one fits as well is left to the upstream.
                ("anyOf" | "oneOf", Json::Array(forms)) if !forms.is_empty() => {
                    if !forms.iter().any(|form| self.fits(form, value, at).is_ok()) {
                        return Err(format!("`{at}` has none of the forms that it may have"));
                    }
                }
                ("required", Json::Array(names)) if value.is_object() => {
                    let mut names = names.iter().filter_map(Json::as_text);
                    let missing = names.find(|name| value.get(name).is_none());
                    missing.map_or(Ok(()), |name| Err(format!("`{at}` lacks `{name}`")))?;
                }
                _ if alone(keyword, says, value) => {}
                _ => {
                    let mut says = says.to_string();
                    cut(&mut says, SAID);
                    return Err(format!("`{at}` does not fit: its `{keyword}` is {says}"));
                }
            }
        }
        match value {
            Json::Object(members) => self.members(schema, members, at),
            Json::Array(elements) => self.elements(schema, elements, at),
            _ => Ok(()),
        }
    }

    fn members(&mut self, schema: &Json, members: &[(String, Json)], at: &str) -> Result<(), String> {
        for (name, value) in members {
            let named = schema.get("properties").and_then(|properties| properties.get(name));
            // Whether a pattern names it is not known here.
            let other = schema.get("additionalProperties").filter(|_| schema.get("patternProperties").is_none());
            match (named, other) {
                (Some(property), _) => self.fits(property, value, &format!("{at}.{name}"))?,
                (None, Some(other)) => self.fits(other, value, &format!("{at}.{name}"))?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn elements(&mut self, schema: &Json, elements: &[Json], at: &str) -> Result<(), String> {
        // Draft 2020-12 has `prefixItems`; before it `items` was the tuple.
        let tuple = match schema.get("items") {
            Some(Json::Array(tuple)) => tuple,
            _ => schema.get("prefixItems").map_or(&[][..], Json::elements),
        };
        let others = schema.get("items").filter(|items| !matches!(items, Json::Array(_)));
        for (place, element) in elements.iter().enumerate() {
            if let Some(item) = tuple.get(place).or(others) {
                self.fits(item, element, &format!("{at}[{place}]"))?;
            }
        }
        Ok(())
    }
}

/// Whether a value fits what a keyword says of it alone.
fn alone(keyword: &str, says: &Json, value: &Json) -> bool {
    let size = || size(keyword, value).zip(says.as_number());
    let whole = || whole(value).zip(whole(says));
    match (keyword, says) {
        ("type", Json::Array(kinds)) => kinds.iter().any(|kind| is_of(kind, value)),
        ("type", kind) => is_of(kind, value),
        ("enum", Json::Array(values)) => values.iter().any(|one| equal(one, value)),
        ("const", one) => equal(one, value),
        ("minLength" | "minItems" | "minProperties", _) => size().is_none_or(|(size, least)| size >= least),
        ("maxLength" | "maxItems" | "maxProperties", _) => size().is_none_or(|(size, most)| size <= most),
        ("minimum", _) => whole().is_none_or(|(number, bound)| number >= bound),
        ("maximum", _) => whole().is_none_or(|(number, bound)| number <= bound),
        ("exclusiveMinimum", _) => whole().is_none_or(|(number, bound)| number > bound),
        ("exclusiveMaximum", _) => whole().is_none_or(|(number, bound)| number < bound),
        _ => true,
    }
}

/// Whether a value is of a type; of one that nobody knows, everything is.
fn is_of(kind: &Json, value: &Json) -> bool {
    match kind.as_text().unwrap_or_default() {
        "object" => value.is_object(),
        "array" => matches!(value, Json::Array(_)),
        "string" => value.as_text().is_some(),
        "boolean" => value.as_bool().is_some(),
        "null" => *value == Json::Null,
        "number" => matches!(value, Json::Number(_)),
        // `1.0` is whole, and `1e3` may be.
        "integer" => match value {
            Json::Number(digits) => {
                let fraction = digits.split_once('.').map_or("", |(_, fraction)| fraction);
                digits.contains(['e', 'E']) || fraction.bytes().all(|digit| digit == b'0')
            }
            _ => false,
        },
        _ => true,
    }
}

/// What a keyword of a length measures of a value.
fn size(keyword: &str, value: &Json) -> Option<u64> {
    let size = match value {
        Json::Text(text) if keyword.ends_with("Length") => text.chars().count(),
        Json::Array(elements) if keyword.ends_with("Items") => elements.len(),
        Json::Object(members) if keyword.ends_with("Properties") => members.len(),
        _ => return None,
    };
    u64::try_from(size).ok()
}

fn whole(value: &Json) -> Option<i64> {
    let Json::Number(digits) = value else { return None };
    digits.parse().ok()
}

/// Numbers that are written in different ways may be the same.
fn equal(one: &Json, other: &Json) -> bool {
    let are_whole = whole(one).is_some() && whole(other).is_some();
    let are_numbers = matches!((one, other), (Json::Number(_), Json::Number(_)));
    same(one, other) || (are_numbers && !are_whole)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn found(schema: &str, value: &str) -> Result<(), String> {
        arguments(&Json::parse(schema).expect(schema), &Json::parse(value).expect(value))
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_place() {
        const PAGE: &str = r##"{"$defs":{"k":{"enum":["a","b"]}},"type":"object","additionalProperties":false,"required":["q"],
            "properties":{"q":{"type":"string","minLength":1,"maxLength":3},"n":{"type":"integer","minimum":1,"exclusiveMaximum":10},
            "k":{"$ref":"#/$defs/k"},"l":{"type":"array","items":{"type":["string","null"]},"maxItems":2},"c":{"const":1},
            "t":{"prefixItems":[{"type":"number"}],"items":false},"o":{"type":"object","minProperties":1,
            "additionalProperties":{"type":"boolean"}},"u":{"anyOf":[{"type":"string"},{"type":"object","required":["x"]}]}}}"##;
        for (value, why) in [
            (r#"{}"#, "`arguments` lacks `q`"),
            (r#"[]"#, r#"`arguments` does not fit: its `type` is "object""#),
            (r#"{"q":1}"#, r#"`arguments.q` does not fit: its `type` is "string""#),
            (r#"{"q":""}"#, "`arguments.q` does not fit: its `minLength` is 1"),
            (r#"{"q":"äöüß"}"#, "`arguments.q` does not fit: its `maxLength` is 3"),
            (r#"{"q":"a","x":1}"#, "`arguments.x` is not allowed"),
            (r#"{"q":"a","n":1.5}"#, r#"`arguments.n` does not fit: its `type` is "integer""#),
            (r#"{"q":"a","n":0}"#, "`arguments.n` does not fit: its `minimum` is 1"),
            (r#"{"q":"a","n":10}"#, "`arguments.n` does not fit: its `exclusiveMaximum` is 10"),
            (r#"{"q":"a","k":"c"}"#, r#"`arguments.k` does not fit: its `enum` is ["a","b"]"#),
            (r#"{"q":"a","l":["x",2]}"#, r#"`arguments.l[1]` does not fit: its `type` is ["string","null"]"#),
            (r#"{"q":"a","l":["","",""]}"#, "`arguments.l` does not fit: its `maxItems` is 2"),
            (r#"{"q":"a","c":2}"#, "`arguments.c` does not fit: its `const` is 1"),
            (r#"{"q":"a","t":[1,2]}"#, "`arguments.t[1]` is not allowed"),
            (r#"{"q":"a","o":{}}"#, "`arguments.o` does not fit: its `minProperties` is 1"),
            (r#"{"q":"a","o":{"x":1}}"#, r#"`arguments.o.x` does not fit: its `type` is "boolean""#),
            (r#"{"q":"a","u":{}}"#, "`arguments.u` has none of the forms that it may have"),
        ] {
            assert_eq!(found(PAGE, value), Err(why.to_owned()), "{value}");
        }
        let good = r#"{"q":"äöü","n":9.0,"k":"b","l":["x",null],"c":1.0,"t":[2],"o":{"x":true},"u":{"x":{}}}"#;
        assert_eq!(found(PAGE, good), Ok(()));
    }

    /// A schema that nobody can follow, or that says what is not looked at, refuses nothing.
    #[test]
    fn what_is_not_decided_here_passes() {
        for (schema, value) in [
            (r##"{"$ref":"#"}"##, "{}"),
            (r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}"##, "{}"),
            (r##"{"allOf":[{"$ref":"#"},{"$ref":"#"}]}"##, "{}"),
            (r##"{"$ref":"https://example.com/s.json","type":"array"}"##, "{}"),
            (r#"{"properties":{"p":{"pattern":"^b","format":"uri"}}}"#, r#"{"p":"a"}"#),
            (r#"{"properties":{"n":{"maximum":0.5,"multipleOf":2}}}"#, r#"{"n":7.5}"#),
            (r#"{"properties":{"n":{"minimum":0,"exclusiveMinimum":true}}}"#, r#"{"n":0}"#),
            (r#"{"patternProperties":{"^x":{}},"additionalProperties":false}"#, r#"{"y":1}"#),
            (r#"{"properties":{"n":{"type":"string","nullable":true}}}"#, r#"{"n":null}"#),
            (r#"{"properties":{"n":{"type":"integer"}}}"#, r#"{"n":1e3}"#),
            (r#"{"type":"any"}"#, "{}"),
            ("true", "{}"),
        ] {
            assert_eq!(found(schema, value), Ok(()), "{schema}");
        }
    }
}

//! Whether arguments are valid against the schema that the server listed (JSON Schema, drafts 4 to 2020-12).
//!
//! Nothing valid is refused. What is not looked at, such as a pattern or a format, the upstream validates.

use weir_policy::json::Json;

use crate::{
    names,
    rewrite::{cut, resolved},
};

/// As many values and keywords are compared.
const WORK: usize = 100_000;
/// As deep as schemas lie in each other.
const DEPTH: u32 = 48;
/// As much of a keyword is quoted, in characters.
const QUOTED: usize = 200;

/// Why the arguments of a call are not valid. With `is_renamed` names are those that the model knows.
pub(crate) fn arguments(schema: &Json, arguments: &Json, is_renamed: bool) -> Result<(), String> {
    let mut validator = Validator { root: schema, is_renamed, left: WORK, depth: 0 };
    validator.validate(schema, arguments).map_err(|Invalid { path, why }| format!("`arguments{path}` {why}"))
}

struct Validator<'s> {
    root: &'s Json,
    is_renamed: bool,
    left: usize,
    depth: u32,
}

/// What is not valid, and where.
struct Invalid {
    path: String,
    why: String,
}

impl Invalid {
    fn here(why: String) -> Self {
        Self { path: String::new(), why }
    }

    fn below(self, part: &str) -> Self {
        Self { path: format!("{part}{}", self.path), ..self }
    }
}

impl Validator<'_> {
    /// Whether so much may still be compared.
    fn spend(&mut self, work: usize) -> bool {
        self.left = self.left.saturating_sub(work);
        self.left > 0
    }

    /// Whether a value is valid. Beyond the limits everything is.
    fn validate(&mut self, schema: &Json, value: &Json) -> Result<(), Invalid> {
        if self.depth == DEPTH || !self.spend(1 + schema.members().len()) {
            return Ok(());
        }
        self.depth += 1;
        let result = self.keywords(schema, value);
        self.depth -= 1;
        result
    }

    fn keywords(&mut self, schema: &Json, value: &Json) -> Result<(), Invalid> {
        if *schema == Json::Bool(false) {
            return Err(Invalid::here("is not allowed".into()));
        }
        let text = |keyword: &str| schema.get(keyword).and_then(Json::as_text);
        // In a document of its own, references lead elsewhere.
        if self.depth > 1 && (text("$id").is_some() || text("id").is_some()) {
            return Ok(());
        }
        // Before draft 2019-09 nothing beside a reference counts.
        if let Some(reference) = text("$ref") {
            return resolved(self.root, reference).map_or(Ok(()), |target| self.validate(target, value));
        }
        if *value == Json::Null && schema.get("nullable").and_then(Json::as_bool) == Some(true) {
            return Ok(());
        }
        for (keyword, expected) in schema.members() {
            match (keyword.as_str(), expected) {
                ("allOf", Json::Array(parts)) => parts.iter().try_for_each(|part| self.validate(part, value))?,
                ("anyOf" | "oneOf", Json::Array(forms)) => self.any_of(forms, value)?,
                ("required", Json::Array(required)) if value.is_object() => self.required(required, value)?,
                _ if !self.spend(expected.elements().len()) || satisfies(keyword, expected, value) => {}
                _ => {
                    let mut expected = expected.to_string();
                    cut(&mut expected, QUOTED);
                    return Err(Invalid::here(format!("does not satisfy `{keyword}`: {expected}")));
                }
            }
        }
        match value {
            Json::Object(members) => self.members(schema, members, value),
            Json::Array(elements) => self.elements(schema, elements),
            _ => Ok(()),
        }
    }

    /// Whether a value has one of several forms. Whether it has two is not looked at.
    fn any_of(&mut self, forms: &[Json], value: &Json) -> Result<(), Invalid> {
        let null = Json::from("null");
        let mut first = None;
        for form in forms {
            match self.validate(form, value) {
                Ok(()) => return Ok(()),
                Err(why) if first.is_none() && form.get("type") != Some(&null) => first = Some(why),
                Err(_) => {}
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn required(&mut self, required: &[Json], value: &Json) -> Result<(), Invalid> {
        if !self.spend(required.len().saturating_mul(value.members().len())) {
            return Ok(());
        }
        let missing = required.iter().filter_map(Json::as_text).find(|name| value.get(name).is_none());
        let why = |name| Invalid::here(format!("has no `{}`, which is required", self.model_name(name)));
        missing.map_or(Ok(()), |name| Err(why(name)))
    }

    fn members(&mut self, schema: &Json, members: &[(String, Json)], object: &Json) -> Result<(), Invalid> {
        let properties = schema.get("properties");
        let known = properties.map_or(0, |properties| properties.members().len());
        // Whether a pattern names it is not known here.
        let other = schema.get("additionalProperties").filter(|_| schema.get("patternProperties").is_none());
        for (name, value) in members {
            if !self.spend(known + members.len()) {
                return Ok(());
            }
            // Of two with the same name most servers take the last.
            let is_last = object.get(name).is_some_and(|last| std::ptr::eq(last, value));
            let property = properties.and_then(|properties| properties.get(name)).or(other);
            if let Some(property) = property.filter(|_| is_last) {
                self.validate(property, value).map_err(|why| why.below(&format!(".{}", self.model_name(name))))?;
            }
        }
        Ok(())
    }

    fn elements(&mut self, schema: &Json, elements: &[Json]) -> Result<(), Invalid> {
        // Draft 2020-12 has `prefixItems`; before it `items` was the tuple.
        let tuple = match schema.get("items") {
            Some(Json::Array(tuple)) => tuple,
            _ => schema.get("prefixItems").map_or(&[][..], Json::elements),
        };
        let others = schema.get("items").filter(|items| !matches!(items, Json::Array(_)));
        for (place, element) in elements.iter().enumerate() {
            if let Some(item) = tuple.get(place).or(others).filter(|_| self.left > 0) {
                self.validate(item, element).map_err(|why| why.below(&format!("[{place}]")))?;
            }
        }
        Ok(())
    }

    /// A name as the model knows it.
    fn model_name(&self, name: &str) -> String {
        let written = (self.is_renamed && !names::is_plain(name)).then(|| names::written(name)).flatten();
        written.unwrap_or_else(|| name.to_owned())
    }
}

/// Whether a value satisfies a keyword that needs no other schema.
fn satisfies(keyword: &str, expected: &Json, value: &Json) -> bool {
    let size = || size(keyword, value).zip(expected.as_number());
    let integers = || integer(value).zip(integer(expected));
    match (keyword, expected) {
        ("type", Json::Array(types)) => types.is_empty() || types.iter().any(|one| has_type(value, one)),
        ("type", one) => has_type(value, one),
        ("enum", Json::Array(values)) => values.iter().any(|one| equal(one, value)),
        ("const", one) => equal(one, value),
        ("minLength" | "minItems" | "minProperties", _) => size().is_none_or(|(size, least)| size >= least),
        ("maxLength" | "maxItems" | "maxProperties", _) => size().is_none_or(|(size, most)| size <= most),
        ("minimum", _) => integers().is_none_or(|(number, bound)| number >= bound),
        ("maximum", _) => integers().is_none_or(|(number, bound)| number <= bound),
        ("exclusiveMinimum", _) => integers().is_none_or(|(number, bound)| number > bound),
        ("exclusiveMaximum", _) => integers().is_none_or(|(number, bound)| number < bound),
        _ => true,
    }
}

/// Whether a value is of a type. Every value is of an unknown type.
fn has_type(value: &Json, name: &Json) -> bool {
    match name.as_text().unwrap_or_default() {
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

fn integer(value: &Json) -> Option<i64> {
    let Json::Number(digits) = value else { return None };
    digits.parse().ok()
}

/// Whether two values may be equal. A number that is no integer can be written in many ways.
fn equal(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Number(_), Json::Number(_)) => integer(one).zip(integer(other)).is_none_or(|(one, other)| one == other),
        (Json::Array(ones), Json::Array(others)) => {
            ones.len() == others.len() && ones.iter().zip(others).all(|(one, other)| equal(one, other))
        }
        (Json::Object(ones), Json::Object(others)) => {
            let has = |(name, value): &(String, Json)| other.get(name).is_some_and(|other| equal(value, other));
            ones.len() == others.len() && ones.iter().all(has)
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn validated(schema: &str, value: &str) -> Result<(), String> {
        arguments(&Json::parse(schema).expect(schema), &Json::parse(value).expect(value), true)
    }

    #[test]
    fn what_is_not_valid_is_told_with_its_place() {
        const PAGE: &str = r##"{"$defs":{"k":{"enum":["a","b"]}},"type":"object","additionalProperties":false,"required":["q"],
            "properties":{"q":{"type":"string","minLength":1,"maxLength":3},"n":{"type":"integer","minimum":1,"exclusiveMaximum":10},
            "k":{"$ref":"#/$defs/k"},"l":{"type":"array","items":{"type":["string","null"]},"maxItems":2},"c":{"const":1},
            "t":{"prefixItems":[{"type":"number"}],"items":false},"o":{"type":"object","minProperties":1,
            "additionalProperties":{"type":"boolean"}},"u":{"anyOf":[{"type":"null"},{"type":"integer"},{"type":"object",
            "required":["x"]}]},"$s":{"maximum":3}}}"##;
        for (value, why) in [
            (r#"{}"#, "`arguments` has no `q`, which is required"),
            (r#"[]"#, r#"`arguments` does not satisfy `type`: "object""#),
            (r#"{"q":1}"#, r#"`arguments.q` does not satisfy `type`: "string""#),
            (r#"{"q":""}"#, "`arguments.q` does not satisfy `minLength`: 1"),
            (r#"{"q":"äöüß"}"#, "`arguments.q` does not satisfy `maxLength`: 3"),
            (r#"{"q":"a","x":1}"#, "`arguments.x` is not allowed"),
            (r#"{"q":"a","n":1.5}"#, r#"`arguments.n` does not satisfy `type`: "integer""#),
            (r#"{"q":"a","n":0}"#, "`arguments.n` does not satisfy `minimum`: 1"),
            (r#"{"q":"a","n":10}"#, "`arguments.n` does not satisfy `exclusiveMaximum`: 10"),
            (r#"{"q":"a","k":"c"}"#, r#"`arguments.k` does not satisfy `enum`: ["a","b"]"#),
            (r#"{"q":"a","l":["x",2]}"#, r#"`arguments.l[1]` does not satisfy `type`: ["string","null"]"#),
            (r#"{"q":"a","l":["","",""]}"#, "`arguments.l` does not satisfy `maxItems`: 2"),
            (r#"{"q":"a","c":2}"#, "`arguments.c` does not satisfy `const`: 1"),
            (r#"{"q":"a","t":[1,2]}"#, "`arguments.t[1]` is not allowed"),
            (r#"{"q":"a","o":{}}"#, "`arguments.o` does not satisfy `minProperties`: 1"),
            (r#"{"q":"a","o":{"x":1}}"#, r#"`arguments.o.x` does not satisfy `type`: "boolean""#),
            (r#"{"q":"a","u":"x"}"#, r#"`arguments.u` does not satisfy `type`: "integer""#),
            // The name that the model was given.
            (r#"{"q":"a","$s":4}"#, "`arguments.weir_.24.s` does not satisfy `maximum`: 3"),
        ] {
            assert_eq!(validated(PAGE, value), Err(why.to_owned()), "{value}");
        }
        let good = r#"{"q":"äöü","n":9.0,"k":"b","l":["x",null],"c":1.0,"t":[2],"o":{"x":true},"u":{"x":{}},"$s":3}"#;
        assert_eq!(validated(PAGE, good), Ok(()));
    }

    #[test]
    fn nothing_valid_is_refused() {
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
            (r#"{"const":{"a":[1.0,{"b":0}]}}"#, r#"{"a":[1,{"b":-0}]}"#),
            (r#"{"properties":{"n":{"enum":[0]}}}"#, r#"{"n":-0}"#),
            (
                r##"{"$defs":{"k":false},"properties":{"n":{"$id":"x","$defs":{"k":{}},"$ref":"#/$defs/k"}}}"##,
                r#"{"n":1}"#,
            ),
            (r#"{"properties":{"v":{"type":"string"}}}"#, r#"{"v":1,"v":"x"}"#),
            (r#"{"type":[]}"#, "{}"),
            (r#"{"type":"any"}"#, "{}"),
            (r#"{"anyOf":[]}"#, "{}"),
            ("true", "{}"),
        ] {
            assert_eq!(validated(schema, value), Ok(()), "{schema}");
        }
    }

    /// What would take too long is left to the upstream.
    #[test]
    fn work_has_a_limit() {
        let many = |what: &str, count: usize| vec![what; count].join(",");
        let values: Vec<String> = (0..1000).map(|value| value.to_string()).collect();
        let schema = format!(r#"{{"properties":{{"l":{{"items":{{"enum":[{}]}}}}}}}}"#, values.join(","));
        assert_eq!(validated(&schema, &format!(r#"{{"l":[{},"x"]}}"#, many("999", 5000))), Ok(()));
        assert!(validated(&schema, r#"{"l":[999,"x"]}"#).is_err());
        let members: Vec<String> = (0..2000).map(|name| format!(r#""n{name}":1"#)).collect();
        assert_eq!(validated(r#"{"additionalProperties":{}}"#, &format!("{{{}}}", members.join(","))), Ok(()));
    }
}

//! Arguments of a call from the command line, checked against a schema before anything is sent.
//!
//! Only the top level of a schema is checked: names, what is required, types and choices. What objects and arrays have in
//! them is for the server to check.

use std::io::Read;

use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value};

use crate::cli::{BadConfig, suggestion::unknown};

/// How far references inside of a schema are followed.
const MAX_DEPTH: usize = 8;

/// The longest document on standard input, in bytes.
const MAX_INPUT: u64 = 32 << 20;

#[derive(Debug, Args)]
pub(super) struct ArgumentOptions {
    /// The arguments. Text stays text; numbers, booleans, arrays and objects are JSON, by the schema of the tool.
    #[arg(value_name = "NAME=VALUE", value_parser = pair)]
    arguments: Vec<(String, String)>,
    /// All arguments as a JSON object; `-` reads it from standard input.
    #[arg(long, value_name = "JSON|-", conflicts_with = "arguments")]
    json: Option<String>,
}

/// What the command line has.
pub(super) enum GivenArguments<'o> {
    Pairs(&'o [(String, String)]),
    /// An object: the text, and what it says.
    Json(String, Map<String, Value>),
}

/// The arguments that a schema allows.
pub(super) struct ArgumentSchema<'s> {
    root: &'s Value,
    properties: Option<&'s Map<String, Value>>,
    required: Vec<&'s str>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("an argument is NAME=VALUE; a whole JSON object goes to --json".to_owned()),
    }
}

impl ArgumentOptions {
    /// Reads them; nothing is known of the schema yet.
    pub(super) fn read(&self) -> anyhow::Result<GivenArguments<'_>> {
        let Some(json) = &self.json else { return Ok(GivenArguments::Pairs(&self.arguments)) };
        let mut text = json.clone();
        if json == "-" {
            text.clear();
            let read = std::io::stdin().lock().take(MAX_INPUT).read_to_string(&mut text);
            read.context("standard input cannot be read")?;
        }
        let object = serde_json::from_str(&text)
            .map_err(|why| BadConfig(format!("--json: this is no JSON object, such as {{\"a\": 1}}: {why}")))?;
        Ok(GivenArguments::Json(text, object))
    }
}

impl GivenArguments<'_> {
    /// The JSON object to send, on one line; or what does not fit, one sentence for each argument.
    pub(super) fn fit(&self, schema: &ArgumentSchema<'_>) -> Result<String, Vec<String>> {
        match self {
            Self::Pairs(pairs) => schema.read(pairs),
            Self::Json(text, object) => {
                let problems = schema.problems(object);
                // Outside of strings a line break is white space, and inside it is written otherwise.
                if problems.is_empty() { Ok(text.replace(['\n', '\r'], " ")) } else { Err(problems) }
            }
        }
    }
}

impl<'s> ArgumentSchema<'s> {
    /// What an `inputSchema` or `requestedSchema` allows.
    pub(super) fn of(root: &'s Value) -> Self {
        let required = root["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let required = required.iter().filter_map(Value::as_str).collect();
        Self { root, properties: root["properties"].as_object(), required }
    }

    pub(super) fn is_required(&self, name: &str) -> bool {
        self.required.contains(&name)
    }

    /// An object of what is given as text. The JSON is put together from the text, so that numbers keep their digits.
    fn read(&self, pairs: &[(String, String)]) -> Result<String, Vec<String>> {
        let (mut members, mut problems) = (Vec::new(), Vec::new());
        let extra = &self.root["additionalProperties"];
        let is_open = self.properties.is_none() && extra != false || extra == true || extra.is_object();
        for (at, (name, text)) in pairs.iter().enumerate() {
            if pairs[..at].iter().any(|(before, _)| before == name) {
                problems.push(format!("`{name}` is given twice"));
                continue;
            }
            let schema = match self.properties.and_then(|known| known.get(name)) {
                Some(schema) => schema,
                None if is_open => extra,
                None => {
                    problems.push(self.unknown(name));
                    continue;
                }
            };
            match self.value(schema, text) {
                Ok(json) => members.push(format!("{}:{json}", Value::from(name.as_str()))),
                Err(expected) => problems.push(misfit(name, schema, &expected, &format!("`{text}`"))),
            }
        }
        problems.extend(self.missing(|name| pairs.iter().any(|(given, _)| given == name)));
        if problems.is_empty() { Ok(format!("{{{}}}", members.join(","))) } else { Err(problems) }
    }

    /// What is wrong with an object. What its schema does not forbid may be there.
    fn problems(&self, given: &Map<String, Value>) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in given {
            match self.properties.and_then(|known| known.get(name)) {
                Some(schema) => {
                    let fits = match (choices(self.root, schema), types(self.root, schema, MAX_DEPTH)) {
                        (Some(choices), _) => choices.contains(&value),
                        (None, Some(types)) => types.iter().any(|kind| is(value, kind)),
                        (None, None) => true,
                    };
                    if !fits {
                        problems.push(misfit(name, schema, &self.expected(schema), &value.to_string()));
                    }
                }
                None if self.root["additionalProperties"] == false => problems.push(self.unknown(name)),
                None => {}
            }
        }
        problems.extend(self.missing(|name| given.contains_key(name)));
        problems
    }

    fn missing(&self, is_given: impl Fn(&str) -> bool) -> Vec<String> {
        let missing = self.required.iter().filter(|name| !is_given(name));
        let schema = |name| self.properties.and_then(|known| known.get(name)).unwrap_or(&Value::Null);
        missing
            .map(|name| format!("`{name}` is missing: {}{}", self.expected(schema(*name)), about(schema(*name))))
            .collect()
    }

    fn unknown(&self, name: &str) -> String {
        let known = self.properties.into_iter().flatten().map(|(name, _)| name.as_str());
        unknown("argument", name, known)
    }

    /// What is given as text, as JSON; or what it has to be.
    pub(super) fn value(&self, schema: &Value, text: &str) -> Result<String, String> {
        let text_value = || Ok(Value::from(text).to_string());
        if let Some(choices) = choices(self.root, schema) {
            let meant = choices.iter().find(|choice| choice.as_str() == Some(text) || choice.to_string() == text);
            return meant.map(|choice| choice.to_string()).ok_or_else(|| self.expected(schema));
        }
        let json = serde_json::from_str::<Value>(text).ok();
        let raw = || Ok(text.replace(['\n', '\r'], " "));
        match types(self.root, schema, MAX_DEPTH) {
            None if json.is_some() => raw(),
            None => text_value(),
            Some(types) if json.is_some_and(|json| types.iter().any(|kind| *kind != "string" && is(&json, kind))) => {
                raw()
            }
            Some(types) if types.contains(&"string") => text_value(),
            Some(_) => Err(self.expected(schema)),
        }
    }

    /// What an argument has to be, in the words of the schema.
    pub(super) fn expected(&self, schema: &Value) -> String {
        match (choices(self.root, schema), types(self.root, schema, MAX_DEPTH)) {
            (Some(choices), _) => {
                let shown =
                    choices.iter().map(|choice| choice.as_str().map_or_else(|| choice.to_string(), str::to_owned));
                format!("one of {}", shown.collect::<Vec<_>>().join(", "))
            }
            (None, Some(types)) => types.join(" or "),
            (None, None) => "any value".to_owned(),
        }
    }
}

fn misfit(name: &str, schema: &Value, expected: &str, given: &str) -> String {
    format!("`{name}` has to be {expected}, not {given}{}", about(schema))
}

/// The words of the schema on an argument.
fn about(schema: &Value) -> String {
    schema["description"].as_str().map_or_else(String::new, |about| format!(" ({about})"))
}

/// The schema itself, or the one in the same document that it refers to.
fn referred<'s>(root: &'s Value, schema: &'s Value) -> Option<&'s Value> {
    match schema["$ref"].as_str() {
        Some(place) => root.pointer(place.strip_prefix('#')?),
        None => Some(schema),
    }
}

/// The values that an argument may have; none if it is not one of a few.
fn choices<'s>(root: &'s Value, schema: &'s Value) -> Option<Vec<&'s Value>> {
    let schema = referred(root, schema)?;
    if let Some(all) = schema["enum"].as_array() {
        return Some(all.iter().collect());
    }
    if let Some(only) = schema.get("const") {
        return Some(vec![only]);
    }
    let titled = ["oneOf", "anyOf"].into_iter().find_map(|key| schema[key].as_array())?;
    titled.iter().map(|each| each.get("const")).collect()
}

/// The types that an argument may have; none if any will do, or that cannot be told.
fn types<'s>(root: &'s Value, schema: &'s Value, depth: usize) -> Option<Vec<&'s str>> {
    let schema = referred(root, schema)?;
    let depth = depth.checked_sub(1)?;
    match &schema["type"] {
        Value::String(only) => return Some(vec![only]),
        Value::Array(all) => return Some(all.iter().filter_map(Value::as_str).collect()),
        _ => {}
    }
    if schema["$ref"].is_string() {
        return types(root, schema, depth);
    }
    let any = ["anyOf", "oneOf"].into_iter().find_map(|key| schema[key].as_array())?;
    let mut all = Vec::new();
    for each in any {
        all.extend(match each.get("const").or_else(|| each["enum"].get(0)) {
            Some(value) => vec![type_of(value)],
            None => types(root, each, depth)?,
        });
    }
    Some(all)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is(value: &Value, kind: &str) -> bool {
    match (value, kind) {
        // 1.0 is an integer (JSON Schema, validation §6.1.1).
        (Value::Number(number), "integer") => number.as_f64().is_none_or(|number| number.fract() == 0.0),
        _ => type_of(value) == kind,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object", "required": ["text", "count"],
            "$defs": { "mode": { "enum": ["fast", "slow"] }, "loop": { "$ref": "#/$defs/loop" } },
            "properties": {
                "text": { "type": "string", "description": "What to say" }, "count": { "type": "integer" },
                "ratio": { "type": "number" }, "loud": { "type": "boolean" }, "tags": { "type": "array" },
                "more": { "type": "object" }, "mode": { "$ref": "#/$defs/mode" }, "loop": { "$ref": "#/$defs/loop" },
                "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] }, "any": {},
            }
        })
    }

    fn read(schema: &Value, pairs: &[&str]) -> Result<String, String> {
        let pairs: Vec<(String, String)> = pairs.iter().map(|text| pair(text).unwrap()).collect();
        ArgumentSchema::of(schema).read(&pairs).map_err(|problems| problems.join("; "))
    }

    #[test]
    fn each_value_has_the_type_of_its_schema() {
        let given = [
            "text=5",
            "count=12345678901234567890123",
            "ratio=1.50",
            "loud=true",
            "tags=[1,\n2]",
            "more={\"a\":null}",
            "mode=fast",
            "note=null",
            "any=[1]",
            "loop=x",
        ];
        let expected = r#"{"text":"5","count":12345678901234567890123,"ratio":1.50,"loud":true,"tags":[1, 2],"more":{"a":null},"mode":"fast","note":null,"any":[1],"loop":"x"}"#;
        assert_eq!(read(&schema(), &given).unwrap(), expected);
        assert_eq!(read(&schema(), &["text=a=\"b\"", "count=1.0"]).unwrap(), r#"{"text":"a=\"b\"","count":1.0}"#);
    }

    #[test]
    fn what_does_not_fit_is_told_in_the_words_of_the_schema() {
        let enough = |given| read(&schema(), &["text=x", "count=1", given]).unwrap_err();
        for (given, why) in [
            ("ratio=much", "`ratio` has to be number, not `much`"),
            ("loud=yes", "`loud` has to be boolean, not `yes`"),
            ("tags=a", "`tags` has to be array, not `a`"),
            ("mode=quick", "`mode` has to be one of fast, slow, not `quick`"),
            ("cuont=2", "there is no argument `cuont`; did you mean `count`?"),
            ("text=y", "`text` is given twice"),
        ] {
            assert_eq!(enough(given), why);
        }
        assert_eq!(
            read(&schema(), &["count=0.5"]).unwrap_err(),
            "`count` has to be integer, not `0.5`; `text` is missing: string (What to say)"
        );
    }

    #[test]
    fn an_open_schema_takes_any_name() {
        assert_eq!(read(&json!({}), &["a=1", "b=x"]).unwrap(), r#"{"a":1,"b":"x"}"#);
        let texts = json!({ "properties": {}, "additionalProperties": { "type": "string" } });
        assert_eq!(read(&texts, &["a=1"]).unwrap(), r#"{"a":"1"}"#);
        let none = json!({ "additionalProperties": false });
        assert_eq!(read(&none, &["a=1"]).unwrap_err(), "there is no argument `a`; there are none");
    }

    #[test]
    fn an_object_is_sent_as_it_was_written() {
        let given = |text: &str| GivenArguments::Json(text.to_owned(), serde_json::from_str(text).unwrap());
        let schema = schema();
        let schema = ArgumentSchema::of(&schema);
        assert_eq!(
            given("{\"text\":\"x\",\n\"count\":1.0e0, \"b\": 2}").fit(&schema).unwrap(),
            "{\"text\":\"x\", \"count\":1.0e0, \"b\": 2}"
        );
        let problems = given(r#"{"text":5,"mode":"no"}"#).fit(&schema).unwrap_err();
        assert_eq!(
            problems,
            [
                "`mode` has to be one of fast, slow, not \"no\"",
                "`text` has to be string, not 5 (What to say)",
                "`count` is missing: integer"
            ]
        );
    }
}

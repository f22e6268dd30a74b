//! A form for the arguments of a tool or prompt, made from its input schema, and the arguments that come back with it.
//!
//! Plain properties become fields of their own. What a plain field cannot hold is written as JSON.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::page::HtmlText;

/// What stands before the name of an argument, so that no argument takes the name of another field.
const PREFIX: &str = "arg.";

/// More fields than these become one field with all arguments as JSON.
const MAX_FIELDS: usize = 64;

/// The field that has all arguments as JSON.
const WHOLE: &str = "arguments";

/// How many pairs of a form are read.
pub(super) const MAX_PAIRS: usize = MAX_FIELDS + 8;

/// One argument.
#[derive(Debug, PartialEq, Eq)]
struct FormField<'s> {
    name: &'s str,
    kind: FieldKind,
    is_required: bool,
    about: &'s str,
}

#[derive(Debug, PartialEq, Eq)]
enum FieldKind {
    Text,
    Number,
    Boolean,
    /// One of these, each as JSON.
    Choice(Vec<String>),
    Json,
}

/// The fields of a schema; none if one field has to do for all.
fn fields(schema: &Value) -> Option<Vec<FormField<'_>>> {
    let Some(properties) = schema.get("properties") else {
        // Without properties nothing is known of what may be given, unless nothing may.
        return (schema.get("additionalProperties") == Some(&Value::Bool(false))).then(Vec::new);
    };
    let properties = properties.as_object().filter(|all| all.len() <= MAX_FIELDS)?;
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
    let fields = properties.iter().map(|(name, schema)| FormField {
        name,
        kind: kind(schema),
        is_required: is_required(name),
        about: schema.get("description").and_then(Value::as_str).unwrap_or_default(),
    });
    Some(fields.collect())
}

fn kind(schema: &Value) -> FieldKind {
    if let Some(choices) = schema.get("enum").and_then(Value::as_array) {
        return FieldKind::Choice(choices.iter().map(Value::to_string).collect());
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => FieldKind::Text,
        Some("number" | "integer") => FieldKind::Number,
        Some("boolean") => FieldKind::Boolean,
        _ => FieldKind::Json,
    }
}

/// The fields as HTML.
pub(super) fn html(schema: &Value) -> String {
    let Some(fields) = fields(schema) else {
        return format!(
            "<p class=\"field\"><label for=\"{WHOLE}\">Arguments, as JSON</label>\
             <textarea id=\"{WHOLE}\" name=\"{WHOLE}\" rows=\"6\" spellcheck=\"false\">{{}}</textarea></p>"
        );
    };
    let mut html = String::new();
    for (at, field) in fields.iter().enumerate() {
        // Writing to a text cannot fail.
        let _ = field.write(&mut html, at);
    }
    html
}

impl FormField<'_> {
    fn write(&self, html: &mut String, at: usize) -> std::fmt::Result {
        let (name, about) = (HtmlText(self.name), HtmlText(self.about));
        let hint = match (&self.kind, self.is_required) {
            (FieldKind::Json, true) => " (JSON)",
            (FieldKind::Json, false) => " (JSON, optional)",
            (_, true) => "",
            (_, false) => " (optional)",
        };
        write!(html, "<p class=\"field\"><label for=\"f{at}\">{name}{hint}</label>")?;
        let described = if self.about.is_empty() { String::new() } else { format!(" aria-describedby=\"d{at}\"") };
        // A text that is required may be empty, which a browser would refuse to send.
        let required = if self.is_required && self.kind != FieldKind::Text { " required" } else { "" };
        let attributes = format!("id=\"f{at}\" name=\"{PREFIX}{name}\"{described}{required}");
        match &self.kind {
            FieldKind::Text => write!(html, "<textarea {attributes} rows=\"1\"></textarea>")?,
            FieldKind::Json => write!(html, "<textarea {attributes} rows=\"3\" spellcheck=\"false\"></textarea>")?,
            FieldKind::Number => write!(html, "<input {attributes} type=\"number\" step=\"any\">")?,
            FieldKind::Boolean => select(html, &attributes, ["true", "false"].iter())?,
            FieldKind::Choice(choices) => select(html, &attributes, choices.iter())?,
        }
        match self.about {
            "" => html.write_str("</p>"),
            _ => write!(html, "<span class=\"about\" id=\"d{at}\">{about}</span></p>"),
        }
    }
}

fn select(html: &mut String, attributes: &str, choices: impl Iterator<Item = impl AsRef<str>>) -> std::fmt::Result {
    write!(html, "<select {attributes}><option value=\"\"></option>")?;
    for choice in choices {
        let value = HtmlText(choice.as_ref());
        let shown = HtmlText(choice.as_ref().trim_matches('"'));
        write!(html, "<option value=\"{value}\">{shown}</option>")?;
    }
    html.write_str("</select>")
}

/// The arguments that a form brings, or what is wrong with them.
pub(super) fn arguments(schema: &Value, form: &[(String, String)]) -> Result<Map<String, Value>, String> {
    let value = |name: &str| form.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let Some(fields) = fields(schema) else {
        let text = value(WHOLE).filter(|text| !text.trim().is_empty()).unwrap_or("{}");
        return serde_json::from_str(text).map_err(|why| format!("The arguments are no JSON object: {why}."));
    };
    let mut arguments = Map::new();
    for field in fields {
        let text = value(&format!("{PREFIX}{}", field.name)).unwrap_or_default();
        if !text.is_empty() {
            arguments.insert(field.name.to_owned(), field.read(text)?);
        } else if field.is_required {
            match field.kind {
                FieldKind::Text => drop(arguments.insert(field.name.to_owned(), "".into())),
                _ => return Err(format!("`{}` is missing.", field.name)),
            }
        }
    }
    Ok(arguments)
}

impl FormField<'_> {
    fn read(&self, text: &str) -> Result<Value, String> {
        let wrong = |what: &str| format!("`{}` is no {what}.", self.name);
        let json = || serde_json::from_str::<Value>(text);
        match self.kind {
            // Forms end lines with CR LF (HTML, constructing an entry list).
            FieldKind::Text => Ok(text.replace("\r\n", "\n").into()),
            FieldKind::Number => json().ok().filter(Value::is_number).ok_or_else(|| wrong("number")),
            FieldKind::Boolean => json().ok().filter(Value::is_boolean).ok_or_else(|| wrong("boolean")),
            FieldKind::Choice(_) | FieldKind::Json => json().map_err(|_| wrong("JSON")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn schema() -> Value {
        json!({ "type": "object", "required": ["text", "count"], "properties": {
            "text": { "type": "string", "description": "What to <say>" }, "count": { "type": "integer" },
            "loud": { "type": "boolean" }, "how": { "enum": ["a", 1, null] }, "more": { "type": "object" },
        } })
    }

    #[test]
    fn each_argument_has_the_type_of_its_schema() {
        let all = form(&[
            ("arg.text", "a\r\nb"),
            ("arg.count", "3"),
            ("arg.loud", "true"),
            ("arg.how", "1"),
            ("arg.more", "{\"a\": [1]}"),
            ("key", "k"),
            ("arg.unknown", "x"),
        ]);
        let expected = json!({ "text": "a\nb", "count": 3, "loud": true, "how": 1, "more": { "a": [1] } });
        assert_eq!(arguments(&schema(), &all).map(Value::from), Ok(expected));
    }

    #[test]
    fn what_is_left_empty_is_left_out_unless_it_is_a_required_text() {
        let given = form(&[("arg.count", "0.5"), ("arg.loud", ""), ("arg.more", "")]);
        assert_eq!(arguments(&schema(), &given).map(Value::from), Ok(json!({ "text": "", "count": 0.5 })));
        assert_eq!(arguments(&schema(), &[]), Err("`count` is missing.".to_owned()));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (name, value) in [("count", "three"), ("count", "\"3\""), ("loud", "yes"), ("more", "{"), ("how", "a")] {
            let given = form(&[(&format!("arg.{name}"), value), ("arg.count", "1")]);
            assert!(arguments(&schema(), &given).is_err_and(|why| why.contains(name)), "{name}={value}");
        }
    }

    #[test]
    fn a_schema_without_plain_properties_is_one_field_of_json() {
        for schema in [json!({}), json!({ "type": "object" }), json!({ "anyOf": [] })] {
            assert!(html(&schema).contains("as JSON"), "{schema}");
            let given = form(&[("arguments", " {\"a\": 1} ")]);
            assert_eq!(arguments(&schema, &given).map(Value::from), Ok(json!({ "a": 1 })));
            assert!(arguments(&schema, &form(&[("arguments", "[]")])).is_err());
            assert_eq!(arguments(&schema, &[]).map(Value::from), Ok(json!({})));
        }
        let none = json!({ "type": "object", "additionalProperties": false });
        assert_eq!((html(&none), arguments(&none, &[])), (String::new(), Ok(Map::new())));
    }

    #[test]
    fn nothing_of_a_schema_becomes_markup() {
        let evil = "\"><script>alert(1)</script>";
        let schema = json!({ "properties": { evil: { "enum": [evil], "description": evil }, "x": { "type": evil } } });
        let html = html(&schema);
        assert!(!html.contains("<script") && html.contains("&lt;script&gt;"), "{html}");
    }
}

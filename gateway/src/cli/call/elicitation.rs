//! What a server wants to know of the person at the terminal (MCP 2025-11-25, client/elicitation).
//!
//! Without a terminal there is nobody to ask, and Weir declines.

use std::io;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use weir_mcp::json;

use super::arguments::ArgumentSchema;
use crate::cli::terminal;

/// How often a field is asked for that is not filled in well.
const TRIES: usize = 5;

/// The result of an `elicitation/create` with these raw `params`.
pub(super) async fn answer(params: Bytes) -> Value {
    // Reading blocks; the task goes on with its timers and with Ctrl-C.
    let asked = tokio::task::spawn_blocking(move || ask(&params));
    match asked.await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => json!({ "action": "cancel" }),
    }
}

fn ask(raw: &[u8]) -> io::Result<Value> {
    let params: Value = serde_json::from_slice(raw)?;
    let message = params["message"].as_str().unwrap_or("It does not say what for.");
    terminal::complain(format_args!("The server asks: {message}"));
    if params["mode"] == "url" {
        return open(params["url"].as_str().unwrap_or_default());
    }
    if !terminal::is_there() {
        terminal::complain("There is no terminal to answer it at, so it is declined.");
        return Ok(json!({ "action": "decline" }));
    }
    if !terminal::asks("Answer it? [Y/n] ", true)? {
        return Ok(json!({ "action": "decline" }));
    }
    let schema = ArgumentSchema::of(&params["requestedSchema"]);
    let mut content = Map::new();
    // A form is filled in from top to bottom, and only the raw text has the order.
    let properties = json::get(raw, &["requestedSchema", "properties"]).unwrap_or(b"{}");
    for (name, _) in json::members(properties) {
        match field(&schema, &name, &params["requestedSchema"]["properties"][&*name])? {
            FieldInput::Value(value) => drop(content.insert(name.into_owned(), value)),
            FieldInput::Empty => {}
            FieldInput::End => return Ok(json!({ "action": "cancel" })),
        }
    }
    Ok(json!({ "action": "accept", "content": content }))
}

/// What comes of one field.
enum FieldInput {
    Value(Value),
    Empty,
    /// The input has ended, or nothing that was typed will do.
    End,
}

fn field(schema: &ArgumentSchema<'_>, name: &str, property: &Value) -> io::Result<FieldInput> {
    let title = property["title"].as_str().unwrap_or(name);
    let about = property["description"].as_str().map_or_else(String::new, |about| format!(" - {about}"));
    let default = property.get("default");
    let need = match (default, schema.is_required(name)) {
        (Some(Value::String(default)), _) => format!("empty for {default}"),
        (Some(default), _) => format!("empty for {default}"),
        (None, true) => "required".to_owned(),
        (None, false) => "may be empty".to_owned(),
    };
    let expected = match property["type"] == "array" {
        true => format!("any of {}, with commas between them", choices(&property["items"]).join(", ")),
        false => schema.expected(property),
    };
    for _ in 0..TRIES {
        let Some(text) = terminal::ask(&format!("{title} ({expected}, {need}){about}:"))? else {
            return Ok(FieldInput::End);
        };
        if text.is_empty() {
            match default {
                Some(default) => return Ok(FieldInput::Value(default.clone())),
                None if !schema.is_required(name) => return Ok(FieldInput::Empty),
                None => continue,
            }
        }
        let text = if property["type"] == "array" { array(&text) } else { text };
        match schema.value(property, &text) {
            Ok(json) => return Ok(serde_json::from_str(&json).map_or(FieldInput::End, FieldInput::Value)),
            Err(expected) => terminal::complain(format_args!("It has to be {expected}.")),
        }
    }
    Ok(FieldInput::End)
}

/// What may be chosen of several.
fn choices(items: &Value) -> Vec<&str> {
    let plain = items["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let titled = items["anyOf"].as_array().into_iter().flatten().filter_map(|item| item["const"].as_str());
    plain.chain(titled).collect()
}

/// Words with commas between them as a JSON array; what is one already stays.
fn array(text: &str) -> String {
    if text.starts_with('[') {
        return text.to_owned();
    }
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect::<Value>().to_string()
}

/// Has the person open an address. What they do there the server learns there.
fn open(url: &str) -> io::Result<Value> {
    terminal::complain(format_args!("Open this address in a browser:\n  {url}"));
    if !terminal::is_there() {
        terminal::complain("There is no terminal to agree at, so it is declined.");
        return Ok(json!({ "action": "decline" }));
    }
    let agreed = terminal::asks("Go on, once it is open? [Y/n] ", true)?;
    Ok(json!({ "action": if agreed { "accept" } else { "decline" } }))
}

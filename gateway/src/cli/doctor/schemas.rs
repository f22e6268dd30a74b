//! Input schemas that the vendor of a host's models rejects. One such tool can make it refuse a request with all tools.

use serde_json::Value;
use weir_hosts::Host;

/// How deep schemas are looked into.
const DEPTH: usize = 32;
/// What combines schemas.
const UNIONS: [&str; 3] = ["oneOf", "anyOf", "allOf"];

/// Who looks at the schemas of a host's tools before a model sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vendor {
    /// `input_schema` of the Messages API: no union at the top level, and property names of 64 plain characters.
    Anthropic,
    /// `parameters` of a function: no union at the top level, and arrays with `items`.
    OpenAi,
    /// `Schema` of the Gemini API: arrays with `items`, and enums of texts that are not empty.
    Gemini,
    /// Its own check of tools: arrays with `items`.
    VsCode,
}

impl Vendor {
    pub(super) const ALL: [Self; 4] = [Self::Anthropic, Self::OpenAi, Self::Gemini, Self::VsCode];

    /// Whose models a host may use. Those with a choice of vendors may use each.
    pub(super) const fn of(host: Host) -> &'static [Self] {
        match host {
            Host::ClaudeCode | Host::ClaudeDesktop => &[Self::Anthropic],
            Host::Codex => &[Self::OpenAi],
            Host::GeminiCli => &[Self::Gemini],
            // Its own check finds what OpenAI and Gemini reject, but for what is rare.
            Host::VsCode => &[Self::VsCode, Self::Anthropic],
            Host::Cursor | Host::Windsurf | Host::Zed | Host::OpenCode | Host::Goose => {
                &[Self::OpenAi, Self::Anthropic, Self::Gemini]
            }
            // They show tools to no model.
            Host::Inspector | Host::FastMcp | Host::McpHub | Host::McpToml => &[],
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Anthropic => "Anthropic",
            Self::OpenAi => "OpenAI",
            Self::Gemini => "Gemini",
            Self::VsCode => "VS Code itself",
        }
    }

    /// The family of `weir:schema` whose schemas it takes.
    pub(super) const fn family(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi | Self::VsCode => "openai",
            Self::Gemini => "gemini",
        }
    }

    /// What it rejects in the input schema of a tool.
    pub(super) fn rejects(self, schema: &Value) -> Option<String> {
        if schema["type"] != "object" && self != Self::VsCode {
            return Some("its arguments are no object".to_owned());
        }
        let root = match self {
            Self::Anthropic => &UNIONS[..],
            Self::OpenAi => &["oneOf", "anyOf", "allOf", "enum", "not"],
            Self::Gemini | Self::VsCode => &[],
        };
        if let Some(word) = root.iter().find(|word| schema.get(**word).is_some()) {
            return Some(format!("`{word}` at the top level"));
        }
        self.within(schema, "", DEPTH)
    }

    /// The same for a schema within another one, where it is in the arguments.
    fn within(self, schema: &Value, path: &str, depth: usize) -> Option<String> {
        let left = depth.checked_sub(1)?;
        let at = || if path.is_empty() { "the arguments".to_owned() } else { format!("`{path}`") };
        if self != Self::Anthropic && schema["type"] == "array" && schema.get("items").is_none() {
            return Some(format!("{} is an array without `items`", at()));
        }
        if self == Self::Gemini
            && let Some(values) = schema["enum"].as_array()
        {
            if values.iter().any(|value| !value.is_string() && !value.is_null()) {
                return Some(format!("the `enum` of {} has values that are no text", at()));
            }
            if values.iter().any(|value| value == "") {
                return Some(format!("the `enum` of {} has an empty text", at()));
            }
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            if self == Self::Anthropic && !is_plain(name) {
                return Some(format!(
                    "the name of the argument `{name}` is not up to 64 letters, digits, `_`, `.` and `-`"
                ));
            }
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            if let Some(why) = self.within(property, &below, left) {
                return Some(why);
            }
        }
        let unions = UNIONS.into_iter().filter_map(|union| schema[union].as_array()).flatten();
        let parts = ["items", "additionalProperties"].into_iter().filter_map(|part| schema.get(part));
        unions.chain(parts).find_map(|part| self.within(part, path, left))
    }
}

fn is_plain(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    (1..=64).contains(&name.len()) && name.chars().all(is_letter)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_each_vendor_rejects_is_named_with_its_place() {
        use Vendor::{Anthropic, Gemini, OpenAi, VsCode};
        let of = |properties: Value| json!({ "type": "object", "properties": properties });
        let union = json!({ "type": "object", "properties": {}, "anyOf": [{ "required": ["a"] }] });
        for (schema, vendors, why) in [
            (of(json!({ "a": { "anyOf": [{ "type": "string" }, { "type": "null" }] } })), &[][..], ""),
            (union, &[Anthropic, OpenAi], "`anyOf` at the top level"),
            (json!({ "type": "string" }), &[Anthropic, OpenAi, Gemini], "no object"),
            (of(json!({ "a": { "type": "array" } })), &[OpenAi, Gemini, VsCode], "`a` is an array without `items`"),
            (
                of(json!({ "a": { "type": "object", "properties": { "b": { "anyOf": [{ "type": "array" }] } } } })),
                &[OpenAi, Gemini, VsCode],
                "`a.b` is an array",
            ),
            (of(json!({ "a": { "type": "integer", "enum": [1, 2] } })), &[Gemini], "the `enum` of `a` has values"),
            (of(json!({ "a": { "enum": ["x", ""] } })), &[Gemini], "an empty text"),
            (of(json!({ "a b": { "type": "string" } })), &[Anthropic], "the argument `a b`"),
        ] {
            for vendor in Vendor::ALL {
                let rejects = vendor.rejects(&schema);
                assert_eq!(rejects.is_some(), vendors.contains(&vendor), "{vendor:?}: {schema}: {rejects:?}");
                assert!(rejects.is_none_or(|said| said.contains(why)), "{vendor:?}: {schema}");
            }
        }
        let deep = (0..1000).fold(json!({ "type": "array" }), |inner, _| json!({ "type": "array", "items": inner }));
        assert_eq!(OpenAi.rejects(&of(json!({ "a": deep }))), None, "it ends somewhere");
    }
}

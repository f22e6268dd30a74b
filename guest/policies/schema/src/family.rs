//! What the vendors of models take.

/// Whose rules a schema has to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Gemini,
    OpenAi,
    Anthropic,
    /// What all of them take.
    Any,
}

/// What clients call themselves, in small letters, and whose models they speak to. Others may speak to any.
pub(crate) const CLIENTS: [(&str, &str); 12] = [
    ("gemini*", "gemini"),
    ("antigravity*", "gemini"),
    ("claude*", "anthropic"),
    ("anthropic*", "anthropic"),
    ("codex*", "openai"),
    ("openai*", "openai"),
    ("chatgpt*", "openai"),
    ("cursor*", "openai"),
    ("visual?studio?code*", "openai"),
    ("vscode*", "openai"),
    ("github?copilot*", "openai"),
    ("windsurf*", "openai"),
];

/// Keywords that say something to all of them.
///
/// `x-mcp-header` is no word of schemas: it tells MCP clients which header repeats the argument (SEP-2243), and calls
/// without that header are refused.
const ALL: [&str; 12] = [
    "x-mcp-header",
    "type",
    "title",
    "description",
    "enum",
    "items",
    "properties",
    "required",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
];
/// What Gemini takes beside those (the `Schema` of its API).
const GEMINI: [&str; 7] = ["format", "nullable", "minLength", "maxLength", "pattern", "default", "anyOf"];
/// What the others take beside those.
const OTHERS: [&str; 11] = [
    "format",
    "minLength",
    "maxLength",
    "pattern",
    "default",
    "anyOf",
    "additionalProperties",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "uniqueItems",
];
/// The formats that OpenAI and Anthropic name.
const FORMATS: [&str; 9] = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

impl Family {
    #[cfg(test)]
    pub(crate) const EACH: [Self; 4] = [Self::Gemini, Self::OpenAi, Self::Anthropic, Self::Any];

    /// The family of this name: of `none`, nothing is rewritten.
    pub(crate) fn of(name: &str) -> Option<Option<Self>> {
        match name {
            "gemini" => Some(Some(Self::Gemini)),
            "openai" => Some(Some(Self::OpenAi)),
            "anthropic" => Some(Some(Self::Anthropic)),
            "any" => Some(Some(Self::Any)),
            "none" => Some(None),
            _ => None,
        }
    }

    /// Whether it takes a keyword.
    pub(crate) fn takes(self, keyword: &str) -> bool {
        let more: &[&str] = match self {
            Self::Gemini => &GEMINI,
            Self::OpenAi | Self::Anthropic => &OTHERS,
            Self::Any => &[],
        };
        ALL.contains(&keyword) || more.contains(&keyword)
    }

    pub(crate) fn takes_format(self, format: &str) -> bool {
        match self {
            Self::Gemini => matches!(format, "enum" | "date-time"),
            Self::OpenAi | Self::Anthropic => FORMATS.contains(&format),
            Self::Any => false,
        }
    }

    /// Whether `anyOf` may stay.
    pub(crate) fn has_unions(self) -> bool {
        self != Self::Any
    }

    /// Whether `type` may be a list, such as `["string", "null"]`.
    pub(crate) const fn has_type_lists(self) -> bool {
        matches!(self, Self::OpenAi | Self::Anthropic)
    }

    /// Whether a schema without `type` says "anything".
    pub(crate) const fn has_untyped(self) -> bool {
        matches!(self, Self::OpenAi | Self::Anthropic)
    }

    /// Whether names of properties are held to a pattern.
    pub(crate) fn has_plain_names(self) -> bool {
        self != Self::Gemini
    }

    /// Whether a union may have a type beside it.
    pub(crate) fn has_typed_unions(self) -> bool {
        self != Self::Gemini
    }

    /// Whether `enum` may hold anything but strings.
    pub(crate) const fn has_mixed_enums(self) -> bool {
        matches!(self, Self::OpenAi | Self::Anthropic)
    }
}

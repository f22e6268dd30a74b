//! The entry in the shape that each host wants.

use super::{Bearer, Entry};
use crate::{
    EditError, Host,
    value::{Map, Node, Value},
};

/// The value of one key.
pub(super) enum Field {
    Text(String),
    Number(u32),
    Bool(bool),
    List(Vec<String>),
    Map(Vec<(String, String)>),
}

pub(super) type Fields = Vec<(&'static str, Field)>;

pub(super) fn fields(host: Host, entry: &Entry) -> Result<Fields, EditError> {
    if host == Host::ClaudeDesktop {
        return command(entry);
    }
    let text = |text: &str| Field::Text(text.to_owned());
    let url = text(&entry.url);
    let mut fields = match host {
        Host::ClaudeCode | Host::VsCode => vec![("type", text("http")), ("url", url)],
        Host::GeminiCli => vec![("url", url), ("type", text("http"))],
        Host::Windsurf => vec![("serverUrl", url)],
        Host::OpenCode => vec![("type", text("remote")), ("url", url)],
        Host::Inspector => vec![("type", text("streamable-http")), ("url", url)],
        Host::FastMcp => vec![("url", url), ("transport", text("http"))],
        Host::McpToml => vec![("transport", text("streamable_http")), ("url", url)],
        Host::Goose => goose(entry),
        Host::ClaudeDesktop | Host::Cursor | Host::Codex | Host::Zed | Host::McpHub => vec![("url", url)],
    };
    if host == Host::McpToml {
        fields.push(("auth", text(if entry.bearer.is_some() { "env_bearer" } else { "none" })));
    }
    if let Some(bearer) = &entry.bearer {
        fields.extend(credential(host, bearer)?);
    }
    Ok(fields)
}

fn command(entry: &Entry) -> Result<Fields, EditError> {
    let command = entry.command.as_ref();
    let command = command.ok_or(EditError::NeedsCommand { host: Host::ClaudeDesktop.title() })?;
    let mut fields =
        vec![("command", Field::Text(command.program.clone())), ("args", Field::List(command.args.clone()))];
    if !command.env.is_empty() {
        fields.push(("env", Field::Map(command.env.clone())));
    }
    Ok(fields)
}

fn goose(entry: &Entry) -> Fields {
    let text = |text: &str| Field::Text(text.to_owned());
    let mut fields = vec![
        ("enabled", Field::Bool(true)),
        ("type", text("streamable_http")),
        ("name", text(&entry.name)),
        ("description", text("Weir")),
        ("uri", text(&entry.url)),
        ("timeout", Field::Number(300)),
    ];
    if let Some(Bearer::Env(name)) = &entry.bearer {
        fields.push(("env_keys", Field::List(vec![name.clone()])));
    }
    fields
}

/// The token, or the host's reference to the variable that holds it.
fn credential(host: Host, bearer: &Bearer) -> Result<Fields, EditError> {
    let header = |value: String| vec![("Authorization".to_owned(), format!("Bearer {value}"))];
    let field = match (host, bearer) {
        (Host::Codex, Bearer::Env(name)) => ("bearer_token_env_var", Field::Text(name.clone())),
        (Host::Codex, Bearer::Token(token)) => ("http_headers", Field::Map(header(token.clone()))),
        (Host::McpToml, Bearer::Env(name)) => ("bearer_env", Field::Text(name.clone())),
        (Host::McpToml, Bearer::Token(_)) => {
            return Err(EditError::NeedsVariable { host: host.title() });
        }
        (_, Bearer::Token(token)) => ("headers", Field::Map(header(token.clone()))),
        (_, Bearer::Env(name)) => {
            let reference = reference(host, name).ok_or(EditError::NoReference { host: host.title() })?;
            ("headers", Field::Map(header(reference)))
        }
    };
    Ok(vec![field])
}

fn reference(host: Host, name: &str) -> Option<String> {
    match host {
        Host::ClaudeCode | Host::GeminiCli | Host::Goose => Some(format!("${{{name}}}")),
        Host::Cursor | Host::VsCode | Host::Windsurf | Host::McpHub => Some(format!("${{env:{name}}}")),
        Host::OpenCode => Some(format!("{{env:{name}}}")),
        _ => None,
    }
}

/// What a reader finds in the file afterwards.
pub(super) fn value(fields: &Fields) -> Value {
    let at = |node| Value { node, at: 0 };
    let text = |text: &String| at(Node::Text(text.clone()));
    let node = |field: &Field| match field {
        Field::Text(text) => Node::Text(text.clone()),
        Field::Number(number) => Node::Number(number.to_string()),
        Field::Bool(bool) => Node::Bool(*bool),
        Field::List(list) => Node::List(list.iter().map(text).collect()),
        Field::Map(map) => Node::Map(map.iter().map(|(key, value)| (key.clone(), text(value))).collect()),
    };
    let map: Map = fields.iter().map(|(key, field)| ((*key).to_owned(), at(node(field)))).collect();
    at(Node::Map(map))
}

/// A text in double quotes, as JSON, TOML and YAML all read it.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A field on one line, with keys as the format has them.
pub(super) fn inline(field: &Field, key: fn(&str) -> String, equals: &str) -> String {
    match field {
        Field::Text(text) => quote(text),
        Field::Number(number) => number.to_string(),
        Field::Bool(bool) => bool.to_string(),
        Field::List(list) => format!("[{}]", list.iter().map(|text| quote(text)).collect::<Vec<_>>().join(", ")),
        Field::Map(map) => braces(map.iter().map(|(name, text)| format!("{}{equals}{}", key(name), quote(text)))),
    }
}

/// Pairs on one line.
pub(super) fn braces(pairs: impl Iterator<Item = String>) -> String {
    format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
}

/// The usual file, as people write it.
pub(super) fn file(host: Host) -> &'static str {
    match host {
        Host::ClaudeCode => ".mcp.json",
        Host::ClaudeDesktop => "claude_desktop_config.json",
        Host::VsCode => ".vscode/mcp.json",
        Host::Cursor => "~/.cursor/mcp.json",
        Host::Windsurf => "~/.codeium/windsurf/mcp_config.json",
        Host::GeminiCli => "~/.gemini/settings.json",
        Host::Codex => "~/.codex/config.toml",
        Host::Goose => "~/.config/goose/config.yaml",
        Host::Zed => "~/.config/zed/settings.json",
        Host::OpenCode => "~/.config/opencode/opencode.json",
        Host::Inspector | Host::FastMcp => "mcp.json",
        Host::McpHub => "~/.config/mcphub/servers.json",
        Host::McpToml => "config.toml",
    }
}

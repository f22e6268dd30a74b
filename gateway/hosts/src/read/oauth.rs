//! What an entry says about signing in.

use super::entry::Entry;
use crate::{
    Host, OAuth, Server, Template,
    value::{Map, Node, Value},
};

pub(super) fn read(entry: &mut Entry<'_>, server: &mut Server) {
    match entry.take("oauth") {
        Some(Value { node: Node::Map(map), .. }) => server.oauth = fields(entry, "oauth", map),
        Some(Value { node: Node::Bool(true), .. }) => server.oauth = Some(OAuth::default()),
        Some(Value { node: Node::Bool(false), .. }) | None => {}
        Some(_) => entry.wrong("oauth", "a map"),
    }
    server.bearer_env = entry.text("bearer_token_env_var");
    match entry.take("auth") {
        Some(Value { node: Node::Map(map), .. }) => server.oauth = fields(entry, "auth", map),
        Some(value) => mode(entry, server, &value.scalar().unwrap_or_default()),
        None => {}
    }
    if entry.host == Host::Codex {
        let scopes = entry.list(&["scopes"]).unwrap_or_default();
        let resource = entry.text("oauth_resource");
        if !scopes.is_empty() || resource.is_some() {
            let oauth = server.oauth.get_or_insert_default();
            oauth.scopes.extend(scopes);
            oauth.resource = resource;
        }
    }
}

/// `auth` as a text: FastMCP has a token there, the TOML form one of three words.
fn mode(entry: &mut Entry<'_>, server: &mut Server, text: &str) {
    match (entry.host, text) {
        (_, "oauth") => server.oauth = Some(OAuth::default()),
        (_, "none") => {}
        (Host::McpToml, "env_bearer") => {
            let keys = ["bearer_env", "token_env", "auth_env"];
            let name = keys.into_iter().filter_map(|key| entry.text(key)).next();
            server.bearer_env = name.or(server.bearer_env.take());
            if server.bearer_env.is_none() {
                entry.notes.push("`auth` asks for a bearer token but names no variable that Weir knows.".into());
            }
        }
        (Host::FastMcp, token) => {
            let value = entry.template("auth", &format!("Bearer {token}"));
            server.headers.push(("Authorization".into(), value));
        }
        _ => entry.wrong("auth", "a way to sign in that Weir knows"),
    }
}

/// The same fields in the spellings of all hosts.
fn fields(entry: &mut Entry<'_>, key: &str, map: &Map) -> Option<OAuth> {
    let mut oauth = OAuth::default();
    for (name, value) in map {
        let text = value.scalar().unwrap_or_default();
        match name.to_ascii_lowercase().replace('_', "").as_str() {
            "enabled" if value.bool() == Some(false) => return None,
            "enabled" => {}
            "clientid" => oauth.client_id = some(entry.template(name, &text)),
            "clientsecret" => oauth.client_secret = some(entry.template(name, &text)),
            "scope" | "scopes" => oauth.scopes = words(value),
            "resource" => oauth.resource = Some(text),
            "callbackport" => oauth.callback_port = text.parse().ok(),
            "authservermetadataurl" => oauth.metadata_url = Some(text),
            _ => entry.notes.push(format!("`{key}.{name}` has no counterpart in Weir.")),
        }
    }
    Some(oauth)
}

fn some(template: Template) -> Option<Template> {
    Some(template).filter(|template| template.as_literal() != Some(""))
}

fn words(value: &Value) -> Vec<String> {
    match value.list() {
        Some(list) => list.iter().filter_map(Value::scalar).collect(),
        None => value.scalar().unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
    }
}

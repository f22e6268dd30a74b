//! The JSON that other MCP hosts keep their servers in (`mcpServers`, or `servers` in VS Code), taken as it is. [`host`]
//! has those whose files are TOML or YAML.
//!
//! It becomes the tree that the same servers would be in TOML, each value where it stands in the JSON, so everything is
//! checked and reported as in a file of Weir's own. What Weir has no place for is said once for each server.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};
use weir_hosts::Host;

use super::Environment;
use super::name::{UpstreamName, nearest};
use super::problem::ProblemReport;
use super::read::Node;

pub(super) mod host;
mod render;
mod variable;

/// A table whose text is its own.
type Table = DeTable<'static>;

/// Keys of other hosts that have an address, the one that counts first.
const ADDRESSES: [&str; 3] = ["httpUrl", "url", "serverUrl"];

/// Keys that mean here what they mean there.
const SAME: [&str; 6] = ["command", "args", "env", "cwd", "headers", "enabled"];

/// How many keys that are not used are named.
const NAMED: usize = 8;

/// Whether the text is JSON: no TOML begins so.
pub(super) fn is_json(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '/'])
}

/// What the file is written in, if it is another host's.
pub(super) fn format(path: &Path, text: &str) -> Option<&'static str> {
    match host::host(path, text) {
        _ if is_json(text) => Some("JSON"),
        Some(Host::Goose) => Some("YAML"),
        other => other.map(|_| "TOML"),
    }
}

/// The tree of the same servers in TOML; none if that has been reported to be impossible.
pub(super) fn tree(text: &str, environment: &dyn Environment, report: &mut ProblemReport<'_>) -> Option<Node<'static>> {
    let parsed = match parse_to_ast(text, &CollectOptions::default(), &ParseOptions::default()) {
        Ok(parsed) => parsed.value,
        Err(error) => {
            let why = error.kind().to_string().to_lowercase();
            report.add(range(error.range()), format!("this is JSON that cannot be read: {why}"), None);
            return None;
        }
    };
    let root = parsed.as_ref().and_then(Value::as_object);
    let found = root.and_then(servers);
    let Some((at, servers)) = found else {
        let hint = "[upstreams.example]\nurl = \"https://mcp.example.com/mcp\"";
        report.add(
            0..0,
            "this is JSON without `mcpServers` or `servers`; Weir's own files are TOML",
            Some(hint.into()),
        );
        return None;
    };
    let unused = root.into_iter().flat_map(|root| &root.properties).filter(|property| property.range.start != at);
    let unused: Vec<String> =
        unused.map(|property| property.name.as_str().to_owned()).filter(|key| !is_silent(key)).collect();
    let mut import = Import { environment, report, names: BTreeMap::new() };
    let mut upstreams = Table::new();
    for property in &servers.properties {
        import.server(property, &mut upstreams);
    }
    if !unused.is_empty() {
        import.report.warn(0..0, format!("only the servers of this file are used, not {}", listed(&unused)), None);
    }
    announce("the JSON of another MCP host", &upstreams, report);
    Some(file_tree(range(servers.range), upstreams, 0..text.len()))
}

/// Says that the file is not Weir's own, and how the same would be.
fn announce(file: &str, upstreams: &Table, report: &mut ProblemReport<'_>) {
    let toml = render::toml(upstreams);
    let hint = format!("the same in TOML, where \"…\" stands for what may be secret:\n{toml}");
    report.warn(0..0, format!("this is {file}; Weir takes its servers as they are"), Some(hint));
}

/// The tree of a file that has these upstreams alone.
fn file_tree(key: Range<usize>, upstreams: Table, whole: Range<usize>) -> Node<'static> {
    let upstreams = Spanned::new(whole.clone(), DeValue::Table(upstreams));
    Spanned::new(whole, DeValue::Table(Table::from_iter([(Spanned::new(key, "upstreams".into()), upstreams)])))
}

/// Upstreams as TOML to look at, without what may be secret.
pub(super) fn shown(upstreams: &DeTable<'_>) -> String {
    render::toml(upstreams)
}

/// The servers, and where the property of the root begins that has them.
fn servers<'v, 't>(root: &'v Object<'t>) -> Option<(usize, &'v Object<'t>)> {
    let inside = |key: &str, object: &'v Object<'t>| Some((object.get(key)?.range.start, object.get_object(key)?));
    let direct = ["mcpServers", "mcp_servers", "servers"].into_iter().find_map(|key| inside(key, root));
    direct.or_else(|| {
        let (at, mcp) = inside("mcp", root)?;
        Some((at, inside("servers", mcp)?.1))
    })
}

/// What a file may have beside its servers without anybody missing it: `inputs` are spoken of where they are used.
fn is_silent(key: &str) -> bool {
    matches!(key, "$schema" | "inputs")
}

/// One file on its way.
struct Import<'i, 't> {
    environment: &'i dyn Environment,
    report: &'i mut ProblemReport<'t>,
    /// The names given so far in lower case, and the lines of their servers.
    names: BTreeMap<String, usize>,
}

impl Import<'_, '_> {
    fn server(&mut self, property: &ObjectProp<'_>, upstreams: &mut Table) {
        let at = range(property.name.range());
        let Some(server) = property.value.as_object() else {
            self.report.add(range(property.value.range()), "expected an object with `url` or `command`", None);
            return;
        };
        let name = self.name(property.name.as_str(), &at);
        let mut table = Table::new();
        let mut unused = Vec::new();
        let address = ADDRESSES.into_iter().find(|key| server.get(key).is_some());
        for property in &server.properties {
            let (key, at) = (property.name.as_str(), range(property.name.range()));
            match (key, &property.value) {
                (_, Value::NullKeyword(_)) => {}
                (key, value) if Some(key) == address => self.put(&mut table, "url", at, value),
                (key, _) if ADDRESSES.contains(&key) => {}
                (key, value) if SAME.contains(&key) => self.put(&mut table, key, at, value),
                ("disabled", Value::BooleanLit(disabled)) => {
                    let span = range(disabled.range);
                    table.insert(
                        Spanned::new(at, "enabled".into()),
                        Spanned::new(span, DeValue::Boolean(!disabled.value)),
                    );
                }
                ("type" | "transport", Value::StringLit(kind)) => {
                    if !is_found_out(&kind.value) {
                        self.put(&mut table, "type", at, &property.value);
                    }
                }
                ("auth", Value::StringLit(auth)) if auth.value == "oauth" => {
                    self.put(&mut table, key, at, &property.value)
                }
                ("oauth", Value::Object(oauth)) => self.oauth(&mut table, at, oauth, &mut unused),
                _ => unused.push(key.to_owned()),
            }
        }
        if !unused.is_empty() {
            let message = format!("upstream `{name}`: Weir has no place for {}", listed(&unused));
            self.report.warn(at.clone(), message, None);
        }
        let span = range(property.value.range());
        upstreams.insert(Spanned::new(at, name.into()), Spanned::new(span, DeValue::Table(table)));
    }

    /// What the server is called here: as there if that can be, else something near.
    fn name(&mut self, theirs: &str, at: &Range<usize>) -> String {
        let line = self.report.position(at.start).line;
        let shown = theirs.escape_debug();
        let ours = match theirs.parse::<UpstreamName>() {
            Ok(_) => theirs.to_owned(),
            // What comes near nothing is refused when the tree is read.
            Err(_) => nearest(theirs).map_or_else(|| theirs.to_owned(), |name| name.to_string()),
        };
        if let Some(first) = self.names.insert(ours.to_lowercase(), line) {
            let message = format!("the upstream `{ours}` is written twice, the first time in line {first}");
            self.report.add(at.clone(), message, Some("another name for one of them".to_owned()));
        } else if ours != theirs {
            self.report.warn(at.clone(), format!("the server `{shown}` is called `{ours}` here"), None);
        }
        ours
    }

    fn oauth(&mut self, table: &mut Table, at: Range<usize>, oauth: &Object<'_>, unused: &mut Vec<String>) {
        let mut ours = Table::new();
        for property in &oauth.properties {
            let key = match property.name.as_str() {
                "clientId" | "client_id" => "client_id",
                "scopes" if property.value.as_array().is_some() => "scopes",
                _ => {
                    unused.push(format!("oauth.{}", property.name.as_str()));
                    continue;
                }
            };
            self.put(&mut ours, key, range(property.name.range()), &property.value);
        }
        if !ours.is_empty() {
            let span = range(oauth.range);
            table.insert(
                Spanned::new(at.clone(), "auth".into()),
                Spanned::new(span.clone(), DeValue::String("oauth".into())),
            );
            table.insert(Spanned::new(at, "oauth".into()), Spanned::new(span, DeValue::Table(ours)));
        }
    }

    fn put(&mut self, table: &mut Table, key: &str, at: Range<usize>, value: &Value<'_>) {
        if let Some(value) = self.value(value) {
            table.insert(Spanned::new(at, key.to_owned().into()), value);
        }
    }

    /// A value with its variables as Weir writes them. Numbers become text: those of `env` and `args` are that there too.
    fn value(&mut self, value: &Value<'_>) -> Option<Node<'static>> {
        let span = range(value.range());
        let value = match value {
            Value::StringLit(text) => {
                let text = variable::translated(&text.value, &span, self.environment, self.report);
                DeValue::String(Cow::Owned(text))
            }
            Value::NumberLit(number) => DeValue::String(Cow::Owned(number.value.to_owned())),
            Value::BooleanLit(yes) => DeValue::Boolean(yes.value),
            Value::Array(array) => {
                let mut values = DeArray::new();
                array
                    .elements
                    .iter()
                    .filter_map(|element| self.value(element))
                    .for_each(|element| values.push(element));
                DeValue::Array(values)
            }
            Value::Object(object) => {
                let mut table = Table::new();
                for property in &object.properties {
                    let at = range(property.name.range());
                    let value = match &property.value {
                        Value::BooleanLit(yes) => {
                            Some(Spanned::new(range(yes.range), DeValue::String(yes.value.to_string().into())))
                        }
                        value => self.value(value),
                    };
                    if let Some(value) = value {
                        table.insert(Spanned::new(at, property.name.as_str().to_owned().into()), value);
                    }
                }
                DeValue::Table(table)
            }
            Value::NullKeyword(_) => return None,
        };
        Some(Spanned::new(span, value))
    }
}

/// Whether Weir finds the transport out by itself where a host names it so. They differ in what `http` means.
fn is_found_out(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase().replace(['-', '_'], "");
    matches!(kind.as_str(), "http" | "streamablehttp" | "remote" | "stdio" | "local")
}

fn listed(keys: &[String]) -> String {
    let shown: Vec<String> = keys.iter().take(NAMED).map(|key| format!("`{}`", key.escape_debug())).collect();
    let more = keys.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}

fn range(range: jsonc_parser::common::Range) -> Range<usize> {
    range.start..range.end
}

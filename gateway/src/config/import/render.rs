//! Imported servers as TOML to paste, without what may be secret: JSON files of hosts often have tokens in them.

use toml::Value;
use toml::de::{DeTable, DeValue};

use crate::config::name::UpstreamName;
use crate::config::read::entries;
use crate::config::safe_url::masked;

/// What stands where something is left out.
const LEFT_OUT: &str = "…";
/// A text without blanks that is longer may be a token.
const LONGEST_WORD: usize = 64;

pub(super) fn toml(upstreams: &DeTable<'_>) -> String {
    let mut text = String::new();
    for (name, _, node) in entries(upstreams) {
        // What is no name is told as a mistake.
        let Some(table) = node.get_ref().as_table().filter(|_| name.parse::<UpstreamName>().is_ok()) else { continue };
        text.push_str(&format!("[upstreams.{name}]\n"));
        for (key, _, node) in entries(table) {
            text.push_str(&format!("{key} = {}\n", value(key, node.get_ref())));
        }
    }
    text
}

fn value(key: &str, value: &DeValue<'_>) -> Value {
    let inner = |key: &str, value: &DeValue<'_>| self::value(key, value);
    match value {
        DeValue::String(text) => Value::String(shown(key, text)),
        DeValue::Boolean(yes) => Value::Boolean(*yes),
        DeValue::Array(array) if key == "args" => arguments(array.iter().map(|node| node.get_ref())),
        DeValue::Array(array) => Value::Array(array.iter().map(|node| inner(key, node.get_ref())).collect()),
        // `oauth` has keys of Weir's own, the others have names of somebody else's and values that nobody may see.
        DeValue::Table(table) => {
            let name = |inside: &str| if key == "oauth" { inside.to_owned() } else { key.to_owned() };
            let all = entries(table).into_iter();
            Value::Table(
                all.map(|(inside, _, node)| (inside.to_owned(), inner(&name(inside), node.get_ref()))).collect(),
            )
        }
        _ => Value::String(LEFT_OUT.to_owned()),
    }
}

fn shown(key: &str, text: &str) -> String {
    match key {
        "env" | "headers" if !is_reference(text) => LEFT_OUT.to_owned(),
        "url" if text.contains('@') => LEFT_OUT.to_owned(),
        "url" => masked(text),
        _ => text.to_owned(),
    }
}

/// Whether all that may be secret in it is elsewhere: nothing but references, after a word such as `Bearer`.
fn is_reference(text: &str) -> bool {
    let (scheme, rest) = text.split_once(' ').filter(|(word, _)| !word.contains('$')).unwrap_or(("", text));
    let whole = rest.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    scheme.bytes().all(|byte| byte.is_ascii_alphabetic())
        && scheme.len() < 8
        && whole.is_some_and(|name| !name.contains('}'))
}

/// Arguments, without those that follow an option for a secret or look like one.
fn arguments<'v>(all: impl Iterator<Item = &'v DeValue<'v>>) -> Value {
    const SECRET: [&str; 6] = ["auth", "header", "key", "pass", "secret", "token"];
    let names_secret = |text: &str| SECRET.iter().any(|word| text.to_ascii_lowercase().contains(word));
    let mut after_secret = false;
    let shown = all.map(|value| {
        let text = value.as_str().unwrap_or(LEFT_OUT);
        let is_option = text.starts_with('-');
        let assigned = is_option && text.contains('=') && names_secret(text);
        let credentials = text.contains("://") && text.contains(['@', '?']);
        let opaque = !is_option && !text.contains(['/', '.', '@']) && text.len() > 20 || text.len() > LONGEST_WORD;
        let hidden = assigned || credentials || opaque || (after_secret && !is_option && !is_reference(text));
        after_secret = is_option && !text.contains('=') && names_secret(text);
        Value::String(if hidden { LEFT_OUT.to_owned() } else { text.to_owned() })
    });
    Value::Array(shown.collect())
}

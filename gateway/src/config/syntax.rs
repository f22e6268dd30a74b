//! Mistakes in the TOML itself, told in words of the file: a parser knows what it expected next, an operator wants to
//! know what to write.

use std::collections::BTreeSet;

use toml::de::Error;

use super::name::{UpstreamName, nearest};
use super::problem::ProblemReport;
use super::string::Address;

/// Keys whose values may be shown: nobody writes a secret there.
const PLAIN: &[&str] = &[
    "auth",
    "command",
    "component",
    "connect",
    "cwd",
    "listen",
    "list",
    "overall",
    "owner",
    "path",
    "public_url",
    "read",
    "type",
    "url",
];

/// A value up to this long is shown under any key: `5s`, `4MiB`.
const SHORT: usize = 6;

/// Reports what the parser stumbled over, once for each line: what follows on the same one follows from it.
pub(super) fn report(errors: &[Error], text: &str, report: &mut ProblemReport<'_>) {
    let mut lines = BTreeSet::new();
    for error in errors.iter().take(MOST) {
        let span = error.span().unwrap_or_default();
        let line = report.position(span.start).line;
        if !lines.insert(line) {
            continue;
        }
        let written = text.lines().nth(line - 1).unwrap_or_default();
        match explain(error.message(), text, span.clone(), written) {
            Some((message, hint)) => report.add(span, message, hint),
            None => report.add(span, error.message(), None),
        }
    }
}

/// How many mistakes are told: what is no TOML at all has one in each line.
const MOST: usize = 100;

type Explained = (String, Option<String>);

fn explain(said: &str, text: &str, span: std::ops::Range<usize>, line: &str) -> Option<Explained> {
    if said.starts_with("duplicate key") {
        return Some(twice(text, span, line));
    }
    if line.trim_start().starts_with('[') {
        return header(line);
    }
    let Some((key, value)) = line.split_once('=') else {
        let (key, value) = line.split_once(": ")?;
        let (key, value) = (word(key)?, value.trim());
        return Some(("TOML has `=` between a key and its value".into(), Some(quoted(key, value))));
    };
    let (key, value) = (word(key)?, value.split(" #").next().unwrap_or_default().trim());
    if is_open(value) {
        let hint = format!("a text begins and ends with a quote, on one line: {}", example(key));
        return Some(("a quote is opened and not closed".into(), Some(hint)));
    }
    let bare = said.contains("quoted") || said.starts_with("invalid float") || said.starts_with("invalid integer");
    let example = |example: &str| Some(("text needs quotes".into(), Some(format!("{key} = {example}"))));
    match value.chars().next()? {
        '[' if bare => example("[\"…\", \"…\"]"),
        '{' if bare => example("{ NAME = \"…\" }"),
        '"' | '\'' | '{' | '[' => None,
        _ => Some(match value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => ("expected `true` or `false`".into(), Some(format!("{key} = true"))),
            "false" | "no" | "off" => ("expected `true` or `false`".into(), Some(format!("{key} = false"))),
            _ => ("text needs quotes".into(), Some(quoted(key, value))),
        }),
    }
}

/// A key or a table that is there already.
fn twice(text: &str, span: std::ops::Range<usize>, line: &str) -> Explained {
    let before = &text[..text[..span.start].rfind('\n').map_or(0, |end| end + 1)];
    let at =
        |first: Option<usize>| first.map_or(String::new(), |line| format!(", the first time in line {}", line + 1));
    let table = |line: &str| {
        line.trim_start().starts_with('[').then(|| line.split('#').next().unwrap_or_default().trim().to_owned())
    };
    if let Some(header) = table(line) {
        let first = before.lines().position(|each| table(each).as_ref() == Some(&header));
        let name = header.trim_matches(['[', ']']);
        return match name.strip_prefix("upstreams.").filter(|name| !name.contains('.')) {
            Some(name) => (
                format!("the upstream `{}` is written twice{}", name.escape_debug(), at(first)),
                Some(format!("another name for one of them, such as [upstreams.{}-2]", name.escape_debug())),
            ),
            None => (format!("the table `{}` is written twice{}", name.escape_debug(), at(first)), None),
        };
    }
    let key = text.get(span).unwrap_or_default();
    let begins = |each: &str| each.split('=').next().is_some_and(|start| start.trim() == key);
    let lines: Vec<&str> = before.lines().collect();
    let start = lines.iter().rposition(|each| table(each).is_some()).map_or(0, |at| at + 1);
    let first = lines[start..].iter().position(|each| begins(each)).map(|at| at + start);
    (format!("`{}` is written twice in this table{}", key.escape_debug(), at(first)), None)
}

/// The head of a table that is none.
fn header(line: &str) -> Option<Explained> {
    let name = line.trim().trim_start_matches('[').split(']').next()?.trim();
    let example = "a table begins with a line such as [upstreams.example]".to_owned();
    let Some(name) = name.strip_prefix("upstreams.") else {
        return Some(("this is not the beginning of a table".into(), Some(example)));
    };
    let name = if name.starts_with(['"', '\'']) { name } else { name.split('.').next()? };
    let name = name.trim_matches(['"', '\'']);
    match (name.parse::<UpstreamName>(), nearest(name)) {
        (Err(error), Some(nearest)) => Some((error.to_string(), Some(format!("[upstreams.{nearest}]")))),
        _ => Some(("this is not the beginning of a table".into(), Some(example))),
    }
}

/// Whether a quote in it has no partner.
fn is_open(value: &str) -> bool {
    let quote = if value.contains('"') { '"' } else { '\'' };
    value.replace("\\\"", "").matches(quote).count() % 2 == 1
}

/// A bare key; none for anything that should not be repeated.
fn word(key: &str) -> Option<&str> {
    let key = key.trim();
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (!key.is_empty() && key.bytes().all(letter)).then_some(key)
}

/// The line as it should be; without the value where that may be secret.
fn quoted(key: &str, value: &str) -> String {
    let name = key.rsplit('.').next().unwrap_or(key);
    if name == "listen"
        && let Err(refused) = value.parse::<Address>()
    {
        return refused.hint.into_owned();
    }
    let plain = value.len() <= SHORT || PLAIN.contains(&name) && !value.contains(['?', '@', '$']);
    match plain && !value.contains(['"', '\\', '\'']) {
        true => format!("{key} = \"{value}\""),
        false => format!("{key} = \"…\""),
    }
}

fn example(key: &str) -> String {
    let value = match key.rsplit('.').next().unwrap_or(key) {
        "listen" => "\"127.0.0.1:8080\"",
        "url" => "\"https://mcp.example.com/mcp\"",
        "command" => "\"npx\"",
        "args" => "[\"-y\", \"…\"]",
        _ => "\"…\"",
    };
    format!("{key} = {value}")
}

//! One tree for JSON, TOML and YAML, with the place of every value.

mod json;
mod toml;
mod yaml;

use indexmap::IndexMap;

use crate::ReadError;

/// The size of the largest file that is read, in bytes.
pub const MAX_BYTES: usize = 4 << 20;
/// How deep maps and lists may nest.
pub const MAX_DEPTH: usize = 64;

/// The format of a host's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON with comments and trailing commas.
    Jsonc,
    /// As far as `jsonc-parser` reads it: bare keys and single quotes too.
    Json5,
    Toml,
    Yaml,
}

/// A value and where it starts. Two values are equal wherever they stand.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) node: Node,
    /// In bytes from the start of the text.
    pub(crate) at: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    /// As it is written.
    Number(String),
    Text(String),
    List(Vec<Value>),
    /// A key that is given twice has its last value.
    Map(Map),
}

pub(crate) type Map = IndexMap<String, Value>;

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

impl Value {
    pub(crate) fn map(&self) -> Option<&Map> {
        match &self.node {
            Node::Map(map) => Some(map),
            _ => None,
        }
    }

    pub(crate) fn map_mut(&mut self) -> Option<&mut Map> {
        match &mut self.node {
            Node::Map(map) => Some(map),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Text, or a number or boolean as it is written.
    pub(crate) fn scalar(&self) -> Option<String> {
        match &self.node {
            Node::Text(text) | Node::Number(text) => Some(text.clone()),
            Node::Bool(bool) => Some(bool.to_string()),
            Node::Null | Node::List(_) | Node::Map(_) => None,
        }
    }

    pub(crate) fn bool(&self) -> Option<bool> {
        match self.node {
            Node::Bool(bool) => Some(bool),
            _ => None,
        }
    }

    pub(crate) fn number(&self) -> Option<f64> {
        match &self.node {
            Node::Number(text) => text.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Self]> {
        match &self.node {
            Node::List(list) => Some(list),
            _ => None,
        }
    }

    /// The value at `path` below this one.
    pub(crate) fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |value, key| value.map()?.get(*key))
    }
}

/// Reads a whole text; an empty one is an empty map.
pub(crate) fn parse(format: Format, text: &str) -> Result<Value, ReadError> {
    let text = without_bom(text);
    if text.len() > MAX_BYTES {
        return Err(error(text, 0, "The file is larger than 4 MiB", "Remove what is not configuration"));
    }
    match format {
        Format::Jsonc | Format::Json5 => json::parse(text, format == Format::Json5),
        Format::Toml => toml::parse(text),
        Format::Yaml => yaml::parse(text),
    }
}

pub(crate) use json::options as json_options;
pub(crate) use toml::blocks as toml_blocks;

/// The text after a byte order mark.
pub(crate) fn without_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// An error at a place given in bytes.
pub(crate) fn error(text: &str, at: usize, problem: impl Into<String>, remedy: impl Into<String>) -> ReadError {
    let text = without_bom(text);
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    ReadError {
        line: before.bytes().filter(|&b| b == b'\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        problem: problem.into(),
        remedy: remedy.into(),
    }
}

fn too_deep(text: &str, at: usize) -> ReadError {
    error(text, at, format!("Values nest deeper than {MAX_DEPTH} levels"), "Remove what is nested that deep")
}

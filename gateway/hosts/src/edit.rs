//! Writes one entry into a host's file, and takes it out again. All other bytes stay as they are.
//!
//! [`disconnect`] gives back the bytes from before [`connect`]. What was there before shows in the layout:
//!
//! - Weir writes on one line into empty braces that it finds.
//! - Braces of Weir's own have a line for each property. Weir removes them and their key with their last entry.
//! - A file with nothing but such braces becomes empty.
//! - In YAML, Weir removes a key `extensions` without a value too. This is the one exception.
//!
//! A host that writes its file anew may change the layout. Then Weir may also remove empty braces from before.
//!
//! Each edit is read back. Weir refuses it if anything but the entry differs.

mod json;
mod shape;
mod toml;
mod yaml;

use base64::{Engine as _, engine::general_purpose::URL_SAFE};

use crate::{
    EditError, Host, Server,
    read::{self, containers},
    value::{self, Format, Map, Node, Value, without_bom},
};

/// What Weir writes into a host's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub url: String,
    /// Only for hosts that take a URL.
    pub bearer: Option<Bearer>,
    /// Only for hosts that take nothing but commands.
    pub command: Option<Command>,
}

/// The token of the header `Authorization`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bearer {
    Token(String),
    /// The variable that the host reads it from.
    Env(String),
}

/// A command that connects to the entry's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub program: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
}

/// What users paste by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snippet {
    /// The usual file, for people.
    pub file: &'static str,
    /// A whole file with this entry alone.
    pub text: String,
}

/// Where an entry goes.
struct Place<'a> {
    text: &'a str,
    format: Format,
    /// The keys of the map of servers.
    path: &'a [&'a str],
    name: &'a str,
}

/// Adds the entry to the text of a file, or starts a file.
///
/// It replaces an entry of this name for the same URL, and refuses any other entry of this name.
pub fn connect(host: Host, text: Option<&str>, entry: &Entry) -> Result<String, EditError> {
    let fields = shape::fields(host, entry)?;
    let whole = text.unwrap_or_default();
    let root = value::parse(host.format(), whole)?;
    let new = shape::value(&fields);
    let mut old = containers(host, &root).into_iter().filter_map(|(_, servers)| servers.map()?.get(&entry.name));
    if let Some(old) = old.next() {
        if *old == new {
            return Ok(whole.to_owned());
        }
        if !is_ours(host, whole, entry)? {
            return Err(EditError::Taken { name: entry.name.clone() });
        }
        let without = disconnect(host, whole, &entry.name)?;
        return connect(host, without.as_deref(), entry);
    }
    let form = |problem: &str| form(problem, || connect(host, None, entry).unwrap_or_default());
    let path = path(host, &root);
    let place = Place { text: without_bom(whole), format: host.format(), path, name: &entry.name };
    let edited = match host.format() {
        _ if !is_open(&root, path) => Err("A key on the way to the servers is no map"),
        Format::Jsonc | Format::Json5 => json::insert(&place, &fields),
        Format::Toml => Ok(toml::insert(&place, &fields)),
        Format::Yaml => yaml::insert(&place, &fields),
    };
    let edited = edited.map_err(form)?;
    let mut expected = root;
    insert(&mut expected, path, &entry.name, new);
    if value::parse(host.format(), &edited).ok() != Some(expected) {
        return Err(form("The file's form leaves no place for another entry"));
    }
    Ok(with_bom(whole, edited))
}

/// Removes the entry of this name, whoever wrote it. Returns none if the file has no such entry.
///
/// An empty text means that the file held nothing else: it may be deleted.
pub fn disconnect(host: Host, text: &str, name: &str) -> Result<Option<String>, EditError> {
    let root = value::parse(host.format(), text)?;
    let servers = containers(host, &root);
    let Some((path, _)) = servers.into_iter().find(|(_, servers)| servers.at(&[name]).is_some()) else {
        return Ok(None);
    };
    let place = Place { text: without_bom(text), format: host.format(), path, name };
    let edited = match host.format() {
        Format::Jsonc | Format::Json5 => json::remove(&place),
        Format::Toml => toml::remove(&place),
        Format::Yaml => yaml::remove(&place),
    };
    let by_hand = || format!("{}.{name}", path.join("."));
    let edited = edited.map_err(|problem| form(problem, by_hand))?;
    let mut expected = root.clone();
    remove(&mut expected, path, name);
    let mut found = value::parse(host.format(), &edited)?;
    prune(&mut expected, path);
    prune(&mut found, path);
    if found != expected {
        return Err(form("The file's form keeps Weir from removing the entry", by_hand));
    }
    Ok(Some(with_bom(text, edited)))
}

/// What to paste by hand, and where.
pub fn snippet(host: Host, entry: &Entry) -> Result<Snippet, EditError> {
    Ok(Snippet { file: shape::file(host), text: connect(host, None, entry)? })
}

/// A link that opens the host and asks the user to add the entry.
///
/// Only Cursor and VS Code have such links. A token as text never goes into one.
pub fn link(host: Host, entry: &Entry) -> Option<String> {
    let open = !matches!(entry.bearer, Some(Bearer::Token(_)));
    let mut fields = shape::fields(host, entry).ok().filter(|_| open)?;
    match host {
        Host::Cursor => {
            let config = URL_SAFE.encode(json::line(&fields));
            let name = percent(&entry.name);
            Some(format!("cursor://anysphere.cursor-deeplink/mcp/install?name={name}&config={}", percent(&config)))
        }
        Host::VsCode => {
            fields.insert(0, ("name", shape::Field::Text(entry.name.clone())));
            Some(format!("vscode:mcp/install?{}", percent(&json::line(&fields))))
        }
        _ => None,
    }
}

/// Percent-encoding as `encodeURIComponent` has it.
fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

fn form(problem: &str, snippet: impl FnOnce() -> String) -> EditError {
    EditError::Form { problem: problem.to_owned(), snippet: snippet() }
}

/// The map of servers that gets the entry: the one that is there, else the usual one.
fn path(host: Host, root: &Value) -> &'static [&'static str] {
    match (host, containers(host, root).first()) {
        (_, Some((path, _))) => path,
        // The settings of VS Code.
        (Host::VsCode, None) if root.at(&["mcp"]).is_some() => &["mcp", "servers"],
        // Both versions of opencode read the older form.
        (Host::OpenCode, None) => &["mcp"],
        _ => host.roots()[0],
    }
}

/// Whether whatever exists along the path is a map, or nothing yet in YAML.
fn is_open(root: &Value, path: &[&str]) -> bool {
    let open = |value: &Value| value.map().is_some() || value.node == Node::Null && path == ["extensions"];
    (0..=path.len()).filter_map(|end| root.at(&path[..end])).all(open)
}

/// Whether the entry of this name leads where the new one does.
fn is_ours(host: Host, text: &str, entry: &Entry) -> Result<bool, EditError> {
    let leads_there = |server: &Server| {
        let url = server.url.as_ref().and_then(|url| url.as_literal());
        let program = server.command.as_ref().and_then(|program| program.as_literal());
        let same = program.is_some() && program == entry.command.as_ref().map(|command| command.program.as_str());
        url == Some(&entry.url) || same && server.args.iter().any(|arg| arg.as_literal() == Some(&entry.url))
    };
    let servers = read::read(host, text)?.servers;
    let named = servers.iter().filter(|server| server.name == entry.name && server.project.is_none());
    Ok(named.map(leads_there).next().unwrap_or(false))
}

fn insert(root: &mut Value, path: &[&str], name: &str, new: Value) {
    let empty = || Value { node: Node::Map(Map::new()), at: 0 };
    let mut value = root;
    for key in path {
        let Some(map) = value.map_mut() else { return };
        value = map.entry((*key).to_owned()).or_insert_with(empty);
        if value.node == Node::Null {
            *value = empty();
        }
    }
    if let Some(map) = value.map_mut() {
        map.insert(name.to_owned(), new);
    }
}

fn remove(root: &mut Value, path: &[&str], name: &str) {
    let inner = path.iter().try_fold(root, |value, key| value.map_mut()?.get_mut(*key));
    if let Some(map) = inner.and_then(Value::map_mut) {
        map.shift_remove(name);
    }
}

/// Forgets empty maps along the path.
fn prune(root: &mut Value, path: &[&str]) {
    for end in (1..=path.len()).rev() {
        let (key, above) = (path[end - 1], &path[..end - 1]);
        if root.at(&path[..end]).and_then(Value::map).is_some_and(Map::is_empty) {
            remove(root, above, key);
        }
    }
}

fn with_bom(original: &str, edited: String) -> String {
    if original.len() == without_bom(original).len() { edited } else { format!("\u{feff}{edited}") }
}

/// The line ending of a text.
fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// Adds whole lines at the end of a text. They end as the text does, so that removing them finds the same end.
fn append(text: &str, newline: &str, lines: &str) -> String {
    match text.is_empty() || text.ends_with('\n') {
        true => format!("{text}{lines}{newline}"),
        false => format!("{text}{newline}{lines}"),
    }
}

/// Takes out whole lines; with the line ending before them where they had none.
fn cut_lines(text: &str, start: usize, end: usize) -> String {
    let mut before = &text[..start];
    if end == text.len() && !text.ends_with('\n') {
        before = before.strip_suffix('\n').unwrap_or(before);
        before = before.strip_suffix('\r').unwrap_or(before);
    }
    format!("{before}{}", &text[end..])
}

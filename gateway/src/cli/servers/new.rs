//! A server on its way into the configuration: what is secret goes elsewhere.

use std::{
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use toml_edit::{Array, InlineTable, Value};
use weir_hosts::{Template, looks_secret};

use crate::config::{ConfigFile, UpstreamName};

/// Where secrets are kept that were written somewhere else: beside the configuration, for its owner alone.
const SECRETS: &str = "secrets";
/// Parts of names whose values are secret.
const SECRET: [&str; 7] = ["auth", "cookie", "credential", "key", "pass", "secret", "token"];

/// The keys of a new upstream, and the files of its secrets.
pub(super) struct NewUpstream {
    pub(super) name: UpstreamName,
    pub(super) keys: Vec<(&'static str, Value)>,
    pub(super) secrets: Vec<(PathBuf, String)>,
}

impl NewUpstream {
    pub(super) const fn new(name: UpstreamName) -> Self {
        Self { name, keys: Vec::new(), secrets: Vec::new() }
    }

    pub(super) fn put(&mut self, key: &'static str, value: impl Into<Value>) {
        self.keys.push((key, value.into()));
    }

    /// A program and its arguments; whether one of those is secret.
    pub(super) fn command(&mut self, program: &str, arguments: &[String]) -> bool {
        self.put("command", program);
        let (before, mut option) = (self.secrets.len(), "");
        let mut written = Array::new();
        for argument in arguments {
            // `--key=VALUE`, `KEY=VALUE` after `docker run -e`, and `Key: VALUE` after `--header`.
            let named =
                argument.split_once('=').or_else(|| argument.split_once(": ")).filter(|(name, _)| is_name(name));
            let (name, value) = named.unwrap_or((option, argument));
            let start = &argument[..argument.len() - value.len()];
            written.push(format!("{start}{}", self.checked(name, value)));
            option = if argument.starts_with('-') && named.is_none() { argument } else { "" };
        }
        if !written.is_empty() {
            self.put("args", written);
        }
        self.secrets.len() > before
    }

    /// An address. What is secret in its query is elsewhere.
    pub(super) fn url(&mut self, url: &str) {
        let Some((start, query)) = url.split_once('?') else { return self.put("url", url) };
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, value)) => format!("{name}={}", self.checked(name, value)),
            None => pair.to_owned(),
        });
        let query = pairs.collect::<Vec<_>>().join("&");
        self.put("url", format!("{start}?{query}"));
    }

    pub(super) fn headers(&mut self, headers: &[(String, String)]) {
        let mut table = InlineTable::new();
        for (name, value) in headers {
            let token = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            match token.filter(|_| name.eq_ignore_ascii_case("authorization")) {
                Some((_, token)) => self.bearer(token.trim()),
                None => drop(table.insert(name, self.value(name, value).into())),
            }
        }
        self.table("headers", table);
    }

    pub(super) fn variables(&mut self, variables: &[(String, String)]) {
        let mut table = InlineTable::new();
        for (name, value) in variables {
            table.insert(name, self.value(name, value).into());
        }
        self.table("env", table);
    }

    pub(super) fn table(&mut self, key: &'static str, table: InlineTable) {
        if !table.is_empty() {
            self.put(key, table);
        }
    }

    /// The file of one of its secrets, if another server of the configuration has it: `a-b` and its `token`, `a` and its `b-token`.
    pub(super) fn taken_secret(&self, file: &ConfigFile) -> Option<String> {
        let mut paths = self.secrets.iter().map(|(path, _)| path.display().to_string());
        paths.find(|path| file.names_file(None, path))
    }

    /// A bearer token, which Weir sends to this origin alone.
    pub(super) fn bearer(&mut self, token: &str) {
        let source = self.source("token", token);
        self.put("bearer", source);
    }

    /// Where a secret is: where a reference says, else in a file of its own.
    pub(super) fn source(&mut self, name: &str, value: &str) -> InlineTable {
        let reference = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let reference = reference.filter(|inner| !inner.contains('$'));
        let (kind, place) = match reference.map(|inner| inner.split_once(':').unwrap_or(("env", inner))) {
            Some((kind @ ("env" | "file"), place)) => (kind, place.to_owned()),
            _ => ("file", self.secret(name, value)),
        };
        InlineTable::from_iter([(kind, place)])
    }

    /// A value as it is written: what is secret is elsewhere.
    fn value(&mut self, name: &str, value: &str) -> String {
        let named = name.to_ascii_lowercase();
        match !value.contains("${") && SECRET.iter().any(|word| named.contains(word)) {
            true => format!("${{file:{}}}", self.secret(&named, value)),
            false => self.checked(&named, value),
        }
    }

    /// The same, where a name says less: what is secret by its name as a whole, or looks like a token.
    fn checked(&mut self, name: &str, value: &str) -> String {
        let is_path = value.starts_with(['/', '.', '~']);
        match !value.contains("${") && !is_path && looks_secret(name, &Template::literal(value)) {
            true => format!("${{file:{}}}", self.secret(&name.to_ascii_lowercase(), value)),
            false => value.to_owned(),
        }
    }

    /// Where a secret is going to be.
    fn secret(&mut self, name: &str, value: &str) -> String {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        let name: String = name.chars().map(plain).collect();
        let name = name.trim_matches('-');
        let name = if name.is_empty() { "secret" } else { name };
        let path_of = |name: &str| PathBuf::from(SECRETS).join(format!("{}-{name}", self.name));
        let is_taken = |path: &PathBuf| self.secrets.iter().any(|(taken, other)| taken == path && other != value);
        let mut paths =
            std::iter::once(path_of(name)).chain((2..).map(|number: usize| path_of(&format!("{name}-{number}"))));
        let path = paths.find(|path| !is_taken(path)).unwrap_or_else(|| path_of(name));
        let shown = path.display().to_string();
        self.secrets.push((path, value.to_owned()));
        shown
    }
}

/// Whether a text is what a value may be called by.
fn is_name(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    !text.is_empty() && text.chars().all(is_letter)
}

/// Writes secrets, each where only its owner can read it.
pub(super) fn keep(folder: &Path, secrets: &[(PathBuf, String)]) -> anyhow::Result<()> {
    for (at, (path, value)) in secrets.iter().enumerate() {
        let path = folder.join(path);
        let write = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder.join(SECRETS))?;
            // One that is there is of a server that was removed.
            drop(fs::remove_file(&path));
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(value.as_bytes())
        };
        if let Err(why) = write() {
            forget(folder, &secrets[..at]);
            return Err(why).with_context(|| format!("the secret cannot be kept in {}", path.display()));
        }
    }
    Ok(())
}

/// The files of secrets that were written for a server of this name, as the configuration names them.
pub(super) fn secrets_of(folder: &Path, name: &str) -> Vec<String> {
    let files = fs::read_dir(folder.join(SECRETS)).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let own = names.filter(|file| file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')));
    own.map(|file| format!("{SECRETS}/{file}")).collect()
}

/// Removes them again, since nothing names them.
pub(super) fn forget(folder: &Path, secrets: &[(PathBuf, String)]) {
    secrets.iter().for_each(|(secret, _)| drop(fs::remove_file(folder.join(secret))));
}

//! A server on its way into the configuration: what is secret goes elsewhere.

use std::{
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use toml_edit::{Array, InlineTable, Value};

use crate::config::UpstreamName;

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

    pub(super) fn command(&mut self, program: &str, arguments: &[String]) {
        self.put("command", program);
        if !arguments.is_empty() {
            self.put("args", arguments.iter().map(String::as_str).collect::<Array>());
        }
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
            false => value.to_owned(),
        }
    }

    /// Where a secret is going to be.
    fn secret(&mut self, name: &str, value: &str) -> String {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        let name: String = name.chars().map(plain).collect();
        let path = PathBuf::from(SECRETS).join(format!("{}-{name}", self.name));
        let shown = path.display().to_string();
        self.secrets.push((path, value.to_owned()));
        shown
    }
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

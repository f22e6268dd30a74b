//! A server on its way into the configuration: what is secret goes elsewhere.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use tokio::runtime::Runtime;
use toml_edit::{Array, InlineTable, Value};
use weir_hosts::{Template, looks_secret};

use crate::{
    cli::{self, BadConfig},
    config::{Config, ConfigFile, FetchedSecret, LoginStore, StoredSecret, UpstreamName},
    credential::{Secret, StoredSecrets},
};

/// How much of what a secret is for stands in its name, in characters.
const LONGEST_NAME: usize = 64;
/// Parts of names whose values are secret.
const SECRET: [&str; 7] = ["auth", "cookie", "credential", "key", "pass", "secret", "token"];

/// The keys of a new upstream, and its secrets by the names that they get in the store.
pub(super) struct NewUpstream {
    pub(super) name: UpstreamName,
    pub(super) keys: Vec<(&'static str, Value)>,
    pub(super) secrets: Vec<(String, String)>,
    /// The names that the store has already: other configurations of this user may have the same store.
    taken: Arc<[String]>,
}

impl NewUpstream {
    pub(super) const fn new(name: UpstreamName, taken: Arc<[String]>) -> Self {
        Self { name, keys: Vec::new(), secrets: Vec::new(), taken }
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

    /// One of its secrets whose name another server of the configuration has: `a-b` and its `token`, `a` and its `b-token`.
    pub(super) fn taken_secret(&self, file: &ConfigFile) -> Option<String> {
        let mut names = self.secrets.iter().map(|(name, _)| name.clone());
        names.find(|name| file.names_secret(None, name))
    }

    /// A bearer token, which Weir sends to this origin alone.
    pub(super) fn bearer(&mut self, token: &str) {
        let source = self.source("token", token);
        self.put("bearer", source);
    }

    /// Where a secret is: where a reference says, else in the store.
    pub(super) fn source(&mut self, name: &str, value: &str) -> InlineTable {
        let reference = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let reference = reference.filter(|inner| !inner.contains('$'));
        let (kind, place) = match reference.map(|inner| inner.split_once(':').unwrap_or(("env", inner))) {
            Some((kind @ ("env" | "file" | "stored"), place)) => (kind, place.to_owned()),
            _ => ("stored", self.secret(name, value)),
        };
        InlineTable::from_iter([(kind, place)])
    }

    /// A value as it is written: what is secret is elsewhere.
    fn value(&mut self, name: &str, value: &str) -> String {
        let named = name.to_ascii_lowercase();
        match !value.contains("${") && SECRET.iter().any(|word| named.contains(word)) {
            true => format!("${{stored:{}}}", self.secret(&named, value)),
            false => self.checked(&named, value),
        }
    }

    /// The same, where a name says less: what is secret by its name as a whole, or looks like a token.
    fn checked(&mut self, name: &str, value: &str) -> String {
        let is_path = value.starts_with(['/', '.', '~']);
        match !value.contains("${") && !is_path && looks_secret(name, &Template::literal(value)) {
            true => format!("${{stored:{}}}", self.secret(&name.to_ascii_lowercase(), value)),
            false => value.to_owned(),
        }
    }

    /// What a secret is going to be called.
    fn secret(&mut self, name: &str, value: &str) -> String {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        let name: String = name.chars().map(plain).take(LONGEST_NAME).collect();
        let name = name.trim_matches('-');
        let name = if name.is_empty() { "secret" } else { name };
        let full = |name: &str| format!("{}-{name}", self.name);
        let is_own = |full: &String| self.secrets.iter().any(|(own, other)| own == full && other != value);
        let is_taken = |full: &String| self.taken.contains(full) || is_own(full);
        let mut names = std::iter::once(full(name)).chain((2..).map(|number: usize| full(&format!("{name}-{number}"))));
        let found = names.find(|full| !is_taken(full)).unwrap_or_else(|| full(name));
        self.secrets.push((found.clone(), value.to_owned()));
        found
    }
}

/// Whether a text is what a value may be called by.
fn is_name(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    !text.is_empty() && text.chars().all(is_letter)
}

/// The secrets in the store of a configuration.
pub(super) struct KeptSecrets {
    store: Arc<LoginStore>,
    secrets: StoredSecrets,
    runtime: Runtime,
}

impl KeptSecrets {
    /// Those of this configuration, which need not exist yet. Opens nothing.
    pub(super) fn of(config: &Path) -> anyhow::Result<Self> {
        let store = Config::load_store(config).map_err(|problems| BadConfig(problems.to_string()))?;
        let secrets = StoredSecrets::of(&store, cli::allows_plaintext());
        Ok(Self { store: Arc::new(store), secrets, runtime: cli::runtime()? })
    }

    /// Has this process take these for what is in the store, so that a configuration with them can be tried.
    pub(super) fn assume(&self, secrets: &[(String, String)]) {
        for (name, value) in secrets {
            let stored = StoredSecret { name: name.clone(), store: Arc::clone(&self.store) };
            FetchedSecret::Stored(stored).assume(Secret::new(value.clone()));
        }
    }

    pub(super) fn names(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.runtime.block_on(self.secrets.names())?)
    }

    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.runtime.block_on(self.secrets.remove(name))?;
        Ok(())
    }

    /// Keeps all of these, or none.
    pub(super) fn keep(&self, secrets: &[(String, String)]) -> anyhow::Result<()> {
        for (at, (name, value)) in secrets.iter().enumerate() {
            if let Err(why) = self.runtime.block_on(self.secrets.set(name, &Secret::new(value.clone()))) {
                self.forget(&secrets[..at]);
                return Err(why).with_context(|| format!("the secret {name} cannot be kept in the login store"));
            }
        }
        Ok(())
    }

    /// Removes them again, since nothing names them.
    pub(super) fn forget(&self, secrets: &[(String, String)]) {
        secrets.iter().for_each(|(name, _)| drop(self.remove(name)));
    }
}

//! Changes of a configuration file: what is not meant stays as it is, comments and order included.

mod migrate;

use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

use thiserror::Error;
use toml::de::DeTable;
use toml_edit::{DocumentMut, Item, Table, TableLike, Value};

use super::{Config, Problem, Problems, SystemEnvironment, UpstreamName, import, suggest};

/// A file, as far as it has been changed.
pub struct ConfigFile {
    path: PathBuf,
    /// What is on disk; none if there is no file yet.
    text: Option<String>,
    document: DocumentMut,
}

/// Why a file was not changed.
#[derive(Debug, Error)]
pub enum EditError {
    /// It cannot be read or written.
    #[error("{path}: {why}")]
    Io {
        /// The file.
        path: String,
        /// Why not.
        why: io::Error,
    },
    /// It is no TOML.
    #[error("{path}: {why}")]
    Syntax {
        /// The file.
        path: String,
        /// Where, and what.
        why: toml_edit::TomlError,
    },
    /// It belongs to another host.
    #[error(
        "{path} is the {format} of another host, which Weir only reads; `weir import {path} --config weir.toml` takes \
         its servers over"
    )]
    OfHost {
        /// The file.
        path: String,
        /// What it is written in.
        format: &'static str,
    },
    /// Weir would not take it.
    #[error("{0}")]
    Refused(Problems),
    /// Somebody else has changed it.
    #[error("{0} has changed meanwhile, so nothing was written; try again")]
    Changed(String),
    /// There is an upstream of that name.
    #[error("there is an upstream `{0}` already; `weir remove {0}` removes it")]
    Taken(String),
    /// There is no upstream of that name.
    #[error("there is no upstream `{name}`; {hint}")]
    Unknown {
        /// The name.
        name: String,
        /// Which there are.
        hint: String,
    },
}

/// What Weir would say of a file that it takes.
struct Findings {
    missing: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl ConfigFile {
    /// Reads a file; one that is not there is empty.
    ///
    /// # Errors
    /// When it cannot be read, or is no TOML.
    pub fn open(path: &Path) -> Result<Self, EditError> {
        let shown = || path.display().to_string();
        // Whoever keeps the file elsewhere and links to it wants it changed there.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let text = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(why) if why.kind() == io::ErrorKind::NotFound => None,
            Err(why) => return Err(EditError::Io { path: shown(), why }),
        };
        if let Some(format) = text.as_deref().and_then(|text| import::format(&path, text)) {
            return Err(EditError::OfHost { path: shown(), format });
        }
        let document = text.as_deref().unwrap_or_default().parse();
        let document = document.map_err(|why| EditError::Syntax { path: shown(), why })?;
        Ok(Self { path, text, document })
    }

    /// Whether there is a file yet.
    #[must_use]
    pub const fn exists(&self) -> bool {
        self.text.is_some()
    }

    /// Takes this text, with its comments, for a file that has none.
    ///
    /// # Errors
    /// When it is no TOML.
    pub fn begin(&mut self, text: &str) -> Result<(), EditError> {
        let document = text.parse();
        self.document = document.map_err(|why| EditError::Syntax { path: self.path.display().to_string(), why })?;
        Ok(())
    }

    /// Adds an upstream at the end of the others.
    ///
    /// # Errors
    /// When there is one of that name.
    pub fn add(&mut self, name: &UpstreamName, keys: Vec<(&str, Value)>) -> Result<(), EditError> {
        if self.upstreams().is_some_and(|all| all.contains_key(name.as_str())) {
            return Err(EditError::Taken(name.to_string()));
        }
        let mut table = Table::new();
        for (key, value) in keys {
            table.insert(key, Item::Value(value));
        }
        let is_first = self.document.is_empty();
        if let Some(all) = self.document.get_mut("upstreams").and_then(Item::as_inline_table_mut) {
            all.insert(name.as_str(), Value::InlineTable(table.into_inline_table()));
            return Ok(());
        }
        table.decor_mut().set_prefix(if is_first { "" } else { "\n" });
        let all = self.document.entry("upstreams").or_insert_with(|| {
            let mut all = Table::new();
            all.set_implicit(true);
            Item::Table(all)
        });
        if let Some(all) = all.as_table_like_mut() {
            all.insert(name.as_str(), Item::Table(table));
        }
        Ok(())
    }

    /// Takes an upstream away.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn remove(&mut self, name: &str) -> Result<(), EditError> {
        self.known(name)?.remove(name);
        Ok(())
    }

    /// Says whether an upstream is used.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn enable(&mut self, name: &str, enabled: bool) -> Result<(), EditError> {
        let upstream = self.known(name)?.get_mut(name).and_then(Item::as_table_like_mut);
        let Some(upstream) = upstream else { return Ok(()) };
        match (enabled, upstream.get_mut("enabled")) {
            // What is said of it goes on being said there.
            (_, Some(there)) => {
                let decor = there.as_value().map(|value| value.decor().clone()).unwrap_or_default();
                let mut value = Value::from(enabled);
                *value.decor_mut() = decor;
                *there = Item::Value(value);
            }
            (true, None) => {}
            (false, None) => drop(upstream.insert("enabled", Item::Value(false.into()))),
        }
        Ok(())
    }

    /// Gives an upstream another name. Rules and toolsets that name it stay as they are; whoever saves is told of them.
    ///
    /// # Errors
    /// When there is none of the one name, or one of the other.
    pub fn rename(&mut self, name: &str, new: &UpstreamName) -> Result<(), EditError> {
        let all = self.known(name)?;
        if all.contains_key(new.as_str()) {
            return Err(EditError::Taken(new.to_string()));
        }
        // The order stays, where the file has it.
        let keys: Vec<String> = all.iter().map(|(key, _)| key.to_owned()).collect();
        for key in keys {
            if let Some(item) = all.remove(&key) {
                all.insert(if key == name { new.as_str() } else { &key }, item);
            }
        }
        Ok(())
    }

    /// An upstream in TOML, without what may be secret.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn shown(&self, name: &str) -> Result<String, EditError> {
        let found = self.upstreams().and_then(|all| all.get(name)).ok_or_else(|| self.unknown(name))?;
        let mut one = Table::new();
        one.insert(name, found.clone());
        let text = DocumentMut::from(one).to_string();
        Ok(DeTable::parse(&text).map(|table| import::shown(table.get_ref())).unwrap_or_default())
    }

    /// Whether a text of the file names this stored secret; or one of an upstream, if one is given.
    #[must_use]
    pub fn names_secret(&self, upstream: Option<&str>, name: &str) -> bool {
        let text = match upstream {
            None => self.document.to_string(),
            Some(name) => {
                let mut one = Table::new();
                one.insert(name, self.upstreams().and_then(|all| all.get(name)).cloned().unwrap_or_default());
                DocumentMut::from(one).to_string()
            }
        };
        [format!("${{stored:{name}}}"), format!("\"{name}\""), format!("'{name}'")]
            .iter()
            .any(|written| text.contains(written))
    }

    /// What would be missing on this machine, of what has been added, if Weir took the file as it is now.
    ///
    /// # Errors
    /// When Weir would not.
    pub fn missing(&self) -> Result<Vec<Problem>, EditError> {
        self.findings().map(|findings| findings.missing)
    }

    /// Writes the file, all of it or nothing, if Weir would take it. What it warns of now, and has not before, is told.
    ///
    /// # Errors
    /// When Weir would not, or the file cannot be written, or has changed since it was read.
    pub fn save(self) -> Result<Vec<Problem>, EditError> {
        let findings = self.findings()?;
        if !findings.missing.is_empty() {
            return Err(EditError::Refused(Problems(findings.missing)));
        }
        let shown = || self.path.display().to_string();
        let (before, text) = (self.text.as_deref(), self.document.to_string());
        if before != Some(&*text) {
            let replaced = replace(&self.path, before, &text);
            replaced.map_err(|why| EditError::Io { path: shown(), why })?.ok_or_else(|| EditError::Changed(shown()))?;
        }
        Ok(findings.warnings)
    }

    /// What the edit brings that was not there before. A file that was broken may stay so, if the edit breaks nothing more.
    fn findings(&self) -> Result<Findings, EditError> {
        let parsed = |text: &str| Config::parse_overridden(text, &self.path, &SystemEnvironment);
        let known = |before: &[Problem], new: &Problem| before.iter().any(|before| before.message == new.message);
        match (parsed(&self.document.to_string()), self.text.as_deref().map(parsed)) {
            (Ok(now), None) => Ok(Findings { missing: now.missing, warnings: now.warnings }),
            (Ok(mut now), Some(Ok(before))) => {
                now.missing.retain(|problem| !known(&before.missing, problem));
                now.warnings.retain(|problem| !known(&before.warnings, problem));
                Ok(Findings { missing: now.missing, warnings: now.warnings })
            }
            // Whoever mends a file need not bring all that others in it miss.
            (Ok(now), Some(Err(_))) => Ok(Findings { missing: Vec::new(), warnings: now.warnings }),
            (Err(now), Some(Err(before))) if now.0.iter().all(|problem| known(&before.0, problem)) => {
                Ok(Findings { missing: Vec::new(), warnings: now.0 })
            }
            (Err(now), _) => Err(EditError::Refused(now)),
        }
    }

    fn upstreams(&self) -> Option<&dyn TableLike> {
        self.document.get("upstreams").and_then(Item::as_table_like)
    }

    /// The upstreams, of which one has this name.
    fn known(&mut self, name: &str) -> Result<&mut dyn TableLike, EditError> {
        let unknown = self.unknown(name);
        let all = self.document.get_mut("upstreams").and_then(Item::as_table_like_mut);
        all.filter(|all| all.contains_key(name)).ok_or(unknown)
    }

    fn unknown(&self, name: &str) -> EditError {
        let names: Vec<&str> = self.upstreams().into_iter().flat_map(|all| all.iter().map(|(name, _)| name)).collect();
        EditError::Unknown { name: name.to_owned(), hint: hint(name, &names) }
    }
}

/// Replaces a file whole, with the owner and the rights that it has; none if it is not as it was `before`.
///
/// # Errors
/// When it cannot be written. Then it is as it was.
pub fn replace(path: &Path, before: Option<&str>, text: &str) -> io::Result<Option<()>> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let found = fs::metadata(&path).ok();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let other = folder.join(format!(".{name}.{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&other)?;
    let dressed = found.map_or(Ok(()), |found| {
        // Only root can, and only root needs to.
        drop(fchown(&file, Some(found.uid()), Some(found.gid())));
        file.set_permissions(found.permissions())
    });
    let written = dressed.and_then(|()| file.write_all(text.as_bytes())).and_then(|()| file.sync_all());
    let replaced = written.and_then(|()| {
        if fs::read_to_string(&path).ok().as_deref() != before {
            return Ok(None);
        }
        fs::rename(&other, &path).map(Some)
    });
    if !matches!(replaced, Ok(Some(()))) {
        // It may be gone already; nothing else can be done about it.
        let _ = fs::remove_file(&other);
    }
    replaced
}

impl fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigFile").field("path", &self.path).finish_non_exhaustive()
    }
}

fn hint(name: &str, known: &[&str]) -> String {
    match suggest::closest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "there are none yet".to_owned(),
        None => format!("there are {}", known.join(", ")),
    }
}

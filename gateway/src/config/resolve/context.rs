//! What resolving a value needs at hand: the folder it is relative to, the environment, and the list of mistakes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::expand::{ValuePart, literal, pieces};
use crate::config::problem::ProblemReport;
use crate::config::read::{At, Setting};
use crate::config::secret::SecretError;
use crate::config::string::{CredentialFile, FilePath, TemplateString};
use crate::config::value::Values;
use crate::config::written::WrittenSecret;
use crate::config::{
    ComponentLock, Environment, FetchedSecret, LoginStore, Secret, SecretCommand, SecretSource, StoredSecret, inherit,
};

use super::list;

/// How long Weir uses what a command printed, unless the configuration says otherwise.
const REFRESH: Duration = Duration::from_secs(5 * 60);

/// The surroundings of a value.
pub(super) struct Context<'c, 't> {
    /// The file.
    pub(super) file: &'c Path,
    /// Its folder, absolute.
    pub(super) base: &'c Path,
    pub(super) environment: &'c dyn Environment,
    pub(super) report: &'c mut ProblemReport<'t>,
    /// Whether what is resolved will be used. What a disabled upstream refers to need not exist.
    pub(super) live: bool,
    /// Whether callers prove who they are.
    pub(super) callers: bool,
    /// The login store, once it is known.
    pub(super) store: Option<Arc<LoginStore>>,
    /// The variables that the file refers to: what they hold may be secret.
    pub(super) variables: BTreeSet<String>,
}

/// A value after expansion.
pub(super) struct Expanded {
    pub(super) value: Secret,
    /// Whether any of it came from elsewhere.
    pub(super) referred: bool,
    /// What came from there.
    pub(super) secrets: Vec<Secret>,
}

impl<'c, 't> Context<'c, 't> {
    /// At the begin of a file.
    pub(super) const fn new(
        file: &'c Path,
        base: &'c Path,
        environment: &'c dyn Environment,
        report: &'c mut ProblemReport<'t>,
    ) -> Self {
        Self { file, base, environment, report, live: true, callers: false, store: None, variables: BTreeSet::new() }
    }
}

impl Context<'_, '_> {
    /// The lock file of this configuration.
    pub(super) fn lock(&self) -> Result<ComponentLock, String> {
        ComponentLock::read(&ComponentLock::path(self.file), self.environment)
    }

    /// The absolute path, which must exist.
    pub(super) fn existing(&mut self, path: &At<FilePath>) -> Option<PathBuf> {
        let absolute = self.base.join(&path.value.0);
        if self.live && !self.environment.exists(&absolute) {
            self.report.add(path.span.clone(), format!("there is no {}", absolute.display()), None);
            return None;
        }
        Some(absolute)
    }

    /// The value with its references followed; as written if nobody is going to use it.
    pub(super) fn expand(&mut self, text: &At<TemplateString>) -> Option<Expanded> {
        self.follow_all(text, false)
    }

    /// The same for a value of several words, such as a scheme and a token.
    pub(super) fn expand_words(&mut self, text: &At<TemplateString>) -> Option<Expanded> {
        self.follow_all(text, true)
    }

    fn follow_all(&mut self, text: &At<TemplateString>, by_word: bool) -> Option<Expanded> {
        let written = match literal(&text.value.0, by_word) {
            Ok(written) => written,
            Err(name) => {
                let message = "`$NAME` and `%NAME%` are not expanded; this would be sent as it stands";
                let hint = format!("${{env:{name}}}; for the text itself write $${name} or %%{name}%%");
                self.report.add(text.span.clone(), message, Some(hint));
                return None;
            }
        };
        let Ok(pieces) = pieces(&written) else {
            let name = bare_name(&written).unwrap_or("NAME");
            let hint = format!("${{env:{name}}} or ${{file:PATH}}; write $${{ for the two characters themselves");
            self.report.add(text.span.clone(), "this `${` refers to nothing", Some(hint));
            return None;
        };
        for piece in &pieces {
            if let ValuePart::Reference(SecretSource::Env(name)) = piece {
                self.variables.insert(name.clone());
            }
        }
        let from_elsewhere: Vec<_> =
            pieces.iter().map(|piece| matches!(piece, ValuePart::Reference(_) | ValuePart::Stored(_))).collect();
        let referred = from_elsewhere.contains(&true);
        if !self.live {
            return Some(Expanded { value: Secret::new(written.into_owned()), referred, secrets: Vec::new() });
        }
        // Reserved at once, so that no half of a secret stays behind in a buffer that was outgrown.
        let parts: Vec<_> = pieces.into_iter().map(|piece| self.follow(piece, &text.span)).collect();
        let parts: Vec<_> = parts.into_iter().collect::<Option<_>>()?;
        let mut value = String::with_capacity(parts.iter().map(|part: &Secret| part.expose().len()).sum());
        parts.iter().for_each(|part| value.push_str(part.expose()));
        if value.contains('\0') {
            self.report.add(text.span.clone(), "what this refers to holds a NUL character", None);
            return None;
        }
        let secrets = parts.into_iter().zip(from_elsewhere).filter_map(|(part, is)| is.then_some(part)).collect();
        Some(Expanded { value: Secret::new(value), referred, secrets })
    }

    /// Where the secret is; reports if it is not there now.
    pub(super) fn source(&mut self, source: &At<WrittenSecret>) -> Option<SecretSource> {
        let resolved = self.place(source)?;
        if self.live
            && let Err(error) = resolved.read_in(self.environment)
        {
            self.unavailable(&source.span, &error);
            return None;
        }
        Some(resolved)
    }

    fn place(&mut self, source: &At<WrittenSecret>) -> Option<SecretSource> {
        let written = &source.value;
        let places = [
            written.env.key(),
            written.file.key(),
            written.credential.key(),
            written.stored.key(),
            written.command.key(),
        ];
        if places.iter().flatten().count() != 1 {
            let hint = "{ env = \"NAME\" }, { file = \"PATH\" }, { credential = \"NAME\" }, { stored = \"NAME\" } or { command = [\"…\"] }";
            self.report.add(source.span.clone(), "a secret is in one place", Some(hint.to_owned()));
            return None;
        }
        let of_command = [("refresh", written.refresh.key()), ("inherit_env", written.inherit_env.key())];
        for (name, key) in of_command {
            if let (Some(key), None) = (key, written.command.key()) {
                self.report.add(key, format!("`{name}` goes with a `command`"), None);
            }
        }
        if let Some(name) = written.env.set() {
            self.variables.insert(name.value.0.clone());
            return Some(SecretSource::Env(name.value.0.clone()));
        }
        if let Some(path) = written.file.set() {
            return Some(SecretSource::File(self.base.join(&path.value.0)));
        }
        if let Some(name) = written.stored.set() {
            return self.stored(&name.value.0, &name.span);
        }
        match (written.credential.set(), written.command.set()) {
            (Some(name), _) => self.credential(name),
            (None, Some(command)) => self.command(written, command),
            (None, None) => None,
        }
    }

    /// A secret in the store; reports that the store itself can have none there.
    fn stored(&mut self, name: &str, span: &Range<usize>) -> Option<SecretSource> {
        let Some(store) = self.store.clone() else {
            self.report.add(span.clone(), "what opens the store cannot be in it", None);
            return None;
        };
        let stored = StoredSecret { name: name.to_owned(), store };
        Some(SecretSource::Fetched(Arc::new(FetchedSecret::Stored(stored))))
    }

    /// The file of a credential of systemd (systemd.exec(5), CREDENTIALS).
    fn credential(&mut self, name: &At<CredentialFile>) -> Option<SecretSource> {
        let folder = self.environment.variable("CREDENTIALS_DIRECTORY");
        if self.live && folder.is_none() {
            let hint = format!("LoadCredential={} in the unit of Weir sets it", name.value.0);
            self.report.add(name.span.clone(), "CREDENTIALS_DIRECTORY is not set", Some(hint));
            return None;
        }
        Some(SecretSource::File(Path::new(&folder.unwrap_or_default()).join(&name.value.0)))
    }

    fn command(&mut self, written: &WrittenSecret, command: &At<Values<TemplateString>>) -> Option<SecretSource> {
        let mut words = command.value.0.iter().map(|word| word.value.0.clone());
        let Some(program) = words.next().filter(|program| !program.is_empty()) else {
            let hint =
                "the program first: [\"vault\", \"kv\", \"get\", \"-field=token\", \"secret/github\"]".to_owned();
            self.report.add(command.span.clone(), "there is no program to run", Some(hint));
            return None;
        };
        // A name is looked up in PATH, a path begins at the folder of the file.
        let program = match program.contains('/') {
            true => self.base.join(program).to_string_lossy().into_owned(),
            false => program,
        };
        let inherit = match &written.inherit_env {
            Setting::Absent => inherit::DEFAULT.map(str::to_owned).to_vec(),
            given => list(given, |pattern| pattern.0.clone()),
        };
        let refresh = written.refresh.set().map_or(REFRESH, |at| at.value.0);
        let inherit = inherit::names(&inherit, &BTreeSet::new(), self.environment);
        let folder = self.base.to_owned();
        let command = SecretCommand { program, args: words.collect(), inherit, folder, refresh };
        Some(SecretSource::Fetched(Arc::new(FetchedSecret::Command(command))))
    }

    /// Where a secret of several lines is, such as a key in PEM; reports if it is not there now.
    pub(super) fn document(&mut self, source: &At<WrittenSecret>) -> Option<SecretSource> {
        let resolved = self.place(source)?;
        if self.live
            && let Err(error) = resolved.text(self.environment)
        {
            self.unavailable(&source.span, &error);
            return None;
        }
        Some(resolved)
    }

    fn follow(&mut self, piece: ValuePart<'_>, span: &Range<usize>) -> Option<Secret> {
        let source = match piece {
            ValuePart::Plain(text) => return Some(Secret::new(text.to_owned())),
            ValuePart::Reference(SecretSource::File(path)) => SecretSource::File(self.base.join(path)),
            ValuePart::Reference(source) => source,
            ValuePart::Stored(name) => self.stored(name, span)?,
        };
        source.text(self.environment).inspect_err(|error| self.unavailable(span, error)).ok()
    }

    fn unavailable(&mut self, span: &Range<usize>, error: &SecretError) {
        let hint = match error {
            SecretError::Missing(SecretSource::Env(name)) => Some(format!("export {name}=… before Weir starts")),
            SecretError::Failed(SecretSource::Fetched(source), _) => match &**source {
                FetchedSecret::Stored(stored) => Some(format!("weir secret set {}", stored.name)),
                FetchedSecret::Command(_) => None,
            },
            _ => None,
        };
        self.report.add(span.clone(), error.to_string(), hint);
    }
}

/// The name in `${NAME}`, as other programs have it.
fn bare_name(text: &str) -> Option<&str> {
    let (name, _) = text.split_once("${")?.1.split_once('}')?;
    let letter = |byte: u8| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_');
    (!name.is_empty() && name.bytes().all(letter)).then_some(name)
}

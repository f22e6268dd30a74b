//! `weir init`, `add`, `list`, `show`, `edit`, `migrate`, `remove`, `enable`, `disable` and `rename`: the servers in the configuration.

mod add;
mod import;
mod list;
mod migrate;
mod new;
mod rename;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, bail};
use clap::Args;

use crate::config::{ConfigFile, EditError, UpstreamName, default_file};

use super::{BadConfig, terminal};
use new::KeptSecrets;

pub(super) use add::AddOptions;
pub(super) use import::{ImportOptions, Intake, import};
pub(super) use list::{ListOptions, ShowOptions, list, show};
pub(super) use migrate::{MigrateOptions, migrate};

/// What a new file begins with.
const BEGIN: &str = "# The configuration of Weir: `weir add NAME URL` adds a server, `weir check` reads it all.\n\
                     listen = \"127.0.0.1:8080\"\n";

#[derive(Args, Debug)]
pub(super) struct ConfigOption {
    /// The configuration, as for `serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    pub(super) config: PathBuf,
    /// The login store is plain text.
    #[arg(long)]
    pub(super) allow_plaintext_token_store: bool,
}

#[derive(Args, Debug)]
pub(super) struct NamesOptions {
    /// The upstreams.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    file: ConfigOption,
}

#[derive(Args, Debug)]
pub(super) struct RenameOptions {
    /// The upstream.
    #[arg(value_name = "NAME")]
    name: String,
    /// Its new name. Tools on `/mcp` begin with it.
    #[arg(value_name = "NEW-NAME")]
    new: UpstreamName,
    #[command(flatten)]
    file: ConfigOption,
}

/// `weir init`.
pub(super) fn init(options: &ConfigOption) -> anyhow::Result<ExitCode> {
    let mut file = ConfigFile::open(&options.config)?;
    let shown = options.config.display();
    if file.exists() {
        bail!(
            "{shown} is there already; `weir add NAME URL` adds a server to it, and `weir init --config FILE` begins another"
        );
    }
    file.begin(BEGIN)?;
    save(file)?;
    terminal::say(format_args!("wrote {shown}\nadd a server: weir add NAME URL, or weir add NAME -- COMMAND"))?;
    Ok(ExitCode::SUCCESS)
}

/// `weir add`.
pub(super) fn add(options: &AddOptions) -> anyhow::Result<ExitCode> {
    add::run(options)
}

/// `weir remove`.
pub(super) fn remove(options: &NamesOptions) -> anyhow::Result<ExitCode> {
    let path = &options.file.config;
    let (file, kept) = (ConfigFile::open(path)?, KeptSecrets::of(path)?);
    let mut secrets = kept.names().unwrap_or_else(|why| {
        terminal::complain(format_args!("its secrets stay in the store: {why:#}"));
        Vec::new()
    });
    // What has another name was put there by hand, and other configurations may name it.
    let is_own = |secret: &str, name: &str| secret.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    let goes = |secret: &str, name: &str| is_own(secret, name) && file.names_secret(Some(name), secret);
    secrets.retain(|secret| options.names.iter().any(|name| goes(secret, name)));
    let removed = change_each(options, "removed", ConfigFile::remove)?;
    let file = ConfigFile::open(path)?;
    for secret in secrets.iter().filter(|secret| !file.names_secret(None, secret)) {
        match kept.remove(secret) {
            Ok(()) => terminal::say(format_args!("removed its secret {secret}"))?,
            Err(why) => terminal::complain(format_args!("its secret {secret} stays in the store: {why}")),
        }
    }
    Ok(removed)
}

/// `weir enable` and `weir disable`.
pub(super) fn enable(options: &NamesOptions, enabled: bool) -> anyhow::Result<ExitCode> {
    let done = if enabled { "enabled" } else { "disabled" };
    change_each(options, done, |file, name| file.enable(name, enabled))
}

/// `weir rename`.
pub(super) fn rename(options: &RenameOptions) -> anyhow::Result<ExitCode> {
    rename::run(options)
}

/// `weir edit`.
pub(super) fn edit(options: &ConfigOption) -> anyhow::Result<ExitCode> {
    let path = &options.config;
    let mut file = ConfigFile::open(path)?;
    let copy = copy_of(path);
    // What an edit before has left there is not lost.
    if !copy.exists() {
        match file.exists() {
            true => drop(fs::copy(path, &copy).with_context(|| copy.display().to_string())?),
            false => fs::write(&copy, BEGIN).with_context(|| copy.display().to_string())?,
        }
    }
    let editor = ["VISUAL", "EDITOR"].into_iter().find_map(|name| std::env::var(name).ok().filter(|it| !it.is_empty()));
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    let mut words = editor.split_ascii_whitespace();
    let program = words.next().unwrap_or("vi");
    let ended = Command::new(program).args(words).arg(&copy).status();
    let ended = ended.with_context(|| format!("`{program}` cannot be started; set EDITOR to another one"))?;
    if !ended.success() {
        bail!("`{program}` failed, and nothing was changed; your text is in {}", copy.display());
    }
    let text = fs::read_to_string(&copy).with_context(|| copy.display().to_string())?;
    let kept = format!("nothing was changed; your text is in {}, and `weir edit` goes on with it", copy.display());
    let saved = file.begin(&text).map_err(anyhow::Error::from).and_then(|()| save(file));
    match saved {
        Ok(()) => {
            fs::remove_file(&copy)?;
            terminal::say(format_args!("wrote {}", path.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => {
            terminal::complain(kept);
            Err(why)
        }
    }
}

/// Where a file is edited: beside itself, so that paths in it lead where they should.
fn copy_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".edited");
    path.with_file_name(name)
}

fn change_each(
    options: &NamesOptions,
    done: &str,
    change: impl Fn(&mut ConfigFile, &str) -> Result<(), EditError>,
) -> anyhow::Result<ExitCode> {
    let mut file = ConfigFile::open(&options.file.config)?;
    for name in &options.names {
        change(&mut file, name).map_err(unusable)?;
    }
    save(file)?;
    for name in &options.names {
        terminal::say(format_args!("{done} `{name}`"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the file, and says what Weir warns of.
fn save(file: ConfigFile) -> anyhow::Result<()> {
    for warning in file.save().map_err(unusable)? {
        terminal::complain(format_args!("warning: {warning}"));
    }
    Ok(())
}

/// What Weir would not take ends as it does elsewhere.
fn unusable(why: EditError) -> anyhow::Error {
    match why {
        EditError::Io { .. } | EditError::Changed(_) => why.into(),
        why => BadConfig(why.to_string()).into(),
    }
}

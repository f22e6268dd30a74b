//! `weir secret`: secrets of upstreams in the login store, where they are encrypted.

use std::{
    io::{self, Read},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};

use crate::{
    config::{Config, default_file, is_stored_name},
    credential::{Secret, StoredSecrets},
};

use super::{BadConfig, terminal};

/// The longest secret, in bytes.
const LONGEST: u64 = 64 << 10;

#[derive(Debug, Subcommand)]
pub(super) enum SecretCommand {
    /// Put a secret into the login store, in place of one with this name. It is read from standard input.
    ///
    /// A final line break is not part of it. A gateway that runs uses it within about a minute.
    Set {
        /// What to call it: letters, digits, `-`, `_` and `.`.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        options: SecretOptions,
    },
    /// List the names of the secrets. Needs no key of the store.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: SecretOptions,
    },
    /// Remove secrets. Ends with 1 if one is not there.
    Remove {
        /// The secrets, as `weir secret list` calls them.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        #[command(flatten)]
        options: SecretOptions,
    },
}

#[derive(Args, Debug)]
pub(super) struct SecretOptions {
    /// The configuration, as for `weir serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    /// The store is plain text.
    #[arg(long)]
    allow_plaintext_token_store: bool,
}

impl SecretOptions {
    fn secrets(&self) -> Result<StoredSecrets, BadConfig> {
        let store = Config::load_store(&self.config).map_err(|problems| BadConfig(problems.to_string()))?;
        Ok(StoredSecrets::of(&store, self.allow_plaintext_token_store))
    }
}

pub(super) fn run(command: &SecretCommand) -> anyhow::Result<ExitCode> {
    let runtime = super::runtime()?;
    match command {
        SecretCommand::Set { name, options } => {
            ensure!(is_stored_name(name), "a name has letters, digits, `-`, `_` and `.`, and at most 128 characters");
            let (secrets, secret) = (options.secrets()?, typed()?);
            runtime.block_on(secrets.set(name, &secret))?;
            terminal::say(format_args!("kept; the configuration names it as {{ stored = \"{name}\" }}"))?;
        }
        SecretCommand::List { json, options } => {
            let names = runtime.block_on(options.secrets()?.names())?;
            match json {
                true => terminal::put_json(&serde_json::to_string(&names)?)?,
                false => names.iter().try_for_each(terminal::say)?,
            }
        }
        SecretCommand::Remove { names, options } => {
            let secrets = options.secrets()?;
            for name in names {
                let was_there = runtime.block_on(secrets.remove(name))?;
                ensure!(was_there, "there is no secret `{name}`; `weir secret list` shows those there are");
                terminal::say(format_args!("removed `{name}`"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The secret on standard input.
fn typed() -> anyhow::Result<Secret> {
    if terminal::is_there() {
        terminal::complain("Type or paste the secret, then Enter and Ctrl-D:");
    }
    let mut text = String::new();
    io::stdin().take(LONGEST + 1).read_to_string(&mut text).context("the secret cannot be read")?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    ensure!(!text.is_empty(), "standard input has no secret");
    ensure!(text.len() as u64 <= LONGEST, "a secret has at most {} KiB", LONGEST >> 10);
    Ok(Secret::new(text.to_owned()))
}

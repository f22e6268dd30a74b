//! `weir list` and `weir show`.

use std::{path::PathBuf, process::ExitCode};

use serde::Serialize;

use crate::{
    cli::{self, terminal},
    config::{
        Auth, ConfigFile, Layer, Override, Reach, SystemEnvironment, UpstreamConfig, default_file, layers, overrides,
    },
};

use super::{ConfigOption, unusable};

/// How much of a command or an address is shown on a line of 80 columns.
const SHOWN: usize = 44;

#[derive(clap::Args, Debug)]
pub(in crate::cli) struct ListOptions {
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// List the places where a configuration is looked for instead, which file is in force, and which variables override it.
    #[arg(long, conflicts_with = "config")]
    sources: bool,
    #[command(flatten)]
    file: ConfigOption,
}

#[derive(clap::Args, Debug)]
pub(in crate::cli) struct ShowOptions {
    /// The upstream.
    #[arg(value_name = "NAME")]
    name: String,
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: ConfigOption,
}

/// One upstream as it is listed.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    auth: &'static str,
}

impl<'a> From<&'a UpstreamConfig> for Listed<'a> {
    fn from(upstream: &'a UpstreamConfig) -> Self {
        let (url, command) = match &upstream.reach {
            Reach::Http(reach) => (Some(reach.url.to_string()), None),
            // Arguments may hold secrets.
            Reach::Stdio(reach) => (None, Some(reach.command.clone())),
        };
        let auth = match &upstream.auth {
            Auth::Unsaid | Auth::None => "",
            Auth::Bearer(_) => "bearer",
            _ => "login",
        };
        Self { name: upstream.name.as_str(), enabled: upstream.enabled, url, command, auth }
    }
}

/// Where settings come from: a file, or a variable of the environment.
#[derive(Serialize)]
#[serde(untagged)]
enum Source {
    File { file: PathBuf, origin: &'static str, state: &'static str },
    Variable { variable: String, setting: String },
}

pub(in crate::cli) fn list(options: &ListOptions) -> anyhow::Result<ExitCode> {
    if options.sources {
        return list_sources(options.json);
    }
    let config = cli::load(&options.file.config)?;
    let all: Vec<Listed<'_>> = config.upstreams.iter().map(Listed::from).collect();
    if options.json {
        terminal::put_json(&serde_json::to_string(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if all.is_empty() {
        terminal::complain("there are no servers yet: weir add NAME URL, or weir add NAME -- COMMAND");
    }
    let width = all.iter().map(|one| one.name.len()).max().unwrap_or_default();
    for Listed { name, enabled, url, command, auth } in &all {
        let target = url.as_ref().or(command.as_ref()).map_or("", |target| target);
        let target: String = target.chars().take(SHOWN).collect();
        let state = if *enabled { auth } else { "disabled" };
        terminal::say(format!("{name:width$}  {target:SHOWN$}  {state}").trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list_sources(as_json: bool) -> anyhow::Result<ExitCode> {
    let in_force = default_file();
    let source = |Layer { path: file, origin }: Layer| {
        let state = match file.exists() {
            false => "does not exist",
            true if file == in_force => "in force",
            true => "not read: the one in force comes before it",
        };
        Source::File { file, origin, state }
    };
    let variable = |Override { variable, setting, .. }: Override| Source::Variable { variable, setting };
    let variables = overrides(&SystemEnvironment).into_iter().map(variable);
    let sources: Vec<Source> = layers().into_iter().map(source).chain(variables).collect();
    if as_json {
        terminal::put_json(&serde_json::to_string(&sources)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for source in &sources {
        match source {
            Source::File { file, origin, state } => {
                terminal::say(format_args!("{}\n  of {origin}: {state}", file.display()))?;
            }
            Source::Variable { variable, setting } => {
                terminal::say(format_args!("{variable}\n  of the environment: overrides `{setting}`"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(in crate::cli) fn show(ShowOptions { name, json, file }: &ShowOptions) -> anyhow::Result<ExitCode> {
    let file = ConfigFile::open(&file.config)?;
    let shown = file.shown(name).map_err(unusable)?;
    match json {
        true => terminal::put_json(&serde_json::to_string(&toml::from_str::<toml::Table>(&shown)?)?)?,
        false => terminal::say(shown.trim_end())?,
    }
    Ok(ExitCode::SUCCESS)
}

//! `weir list` and `weir show`.

use std::process::ExitCode;

use serde::Serialize;

use crate::{
    cli::{self, terminal},
    config::{Auth, ConfigFile, Reach, UpstreamConfig},
};

use super::{ConfigOption, unusable};

/// How much of a command or an address is shown on a line of 80 columns.
const SHOWN: usize = 44;

#[derive(clap::Args, Debug)]
pub(in crate::cli) struct ListOptions {
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: ConfigOption,
}

#[derive(clap::Args, Debug)]
pub(in crate::cli) struct ShowOptions {
    /// The upstream.
    #[arg(value_name = "NAME")]
    name: String,
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

pub(in crate::cli) fn list(options: &ListOptions) -> anyhow::Result<ExitCode> {
    let config = cli::load(&options.file.config)?;
    let all: Vec<Listed<'_>> = config.upstreams.iter().map(Listed::from).collect();
    if options.json {
        terminal::say(serde_json::to_string(&all)?)?;
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

pub(in crate::cli) fn show(ShowOptions { name, file }: &ShowOptions) -> anyhow::Result<ExitCode> {
    let file = ConfigFile::open(&file.config)?;
    let shown = file.shown(name).map_err(unusable)?;
    terminal::say(shown.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

//! `weir test`: one upstream, reached step by step.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::{config::default_file, credential::CredentialManager, telemetry};

use super::{BadConfig, assembly, live, suggestion, terminal};

/// The options of `weir test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  weir test github
  weir test demo --tool echo --args '{\"message\": \"hello\"}'")]
pub(super) struct Options {
    /// The upstream.
    name: String,
    /// The configuration, as for `serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    /// Also call this tool, by its name at the upstream.
    #[arg(long)]
    tool: Option<String>,
    /// The arguments of the call, a JSON object.
    #[arg(long, value_name = "JSON", default_value = "{}", requires = "tool")]
    args: String,
    /// As JSON, with the names of all that is offered.
    #[arg(long)]
    json: bool,
    /// Use logins that are kept as plain text.
    #[arg(long)]
    allow_plaintext_token_store: bool,
}

/// How an upstream of a configuration is found.
pub(super) fn probe_one(name: &str, config: &Path) -> anyhow::Result<live::Report> {
    let _log = telemetry::start("error");
    let options = Options {
        name: name.to_owned(),
        config: config.to_owned(),
        tool: None,
        args: String::new(),
        json: false,
        allow_plaintext_token_store: false,
    };
    reached(&options, &Value::Null)
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let _log = telemetry::start("warn");
    let arguments: Value = serde_json::from_str(&options.args).context("--args is no JSON")?;
    if !arguments.is_object() {
        bail!("--args is no JSON object, such as '{{\"a\": 1}}'");
    }
    let report = reached(options, &arguments)?;
    match options.json {
        true => terminal::put_json(&serde_json::to_string(&report)?)?,
        false => terminal::say(report.text())?,
    }
    Ok(live::exit_code([&report]))
}

fn reached(options: &Options, arguments: &Value) -> anyhow::Result<live::Report> {
    let mut config = super::load(&options.config)?;
    let Some(named) = config.upstreams.iter_mut().find(|upstream| upstream.name.as_str() == options.name) else {
        let known = config.upstreams.iter().map(|upstream| upstream.name.as_str());
        return Err(BadConfig(suggestion::unknown("upstream", &options.name, known)).into());
    };
    named.enabled = true;
    let only = named.clone();
    let manager = CredentialManager::new(&config, options.allow_plaintext_token_store);
    config.upstreams = vec![only];
    let assembly = assembly::assemble(&config, &manager)?;
    let upstream = &assembly.upstreams.first().context("the upstream was not assembled")?.upstream;
    let call = options.tool.as_deref().map(|name| live::ToolCall { name, arguments });
    let _waiting = terminal::waiting(format_args!("reaching {}", options.name));
    Ok(super::runtime()?.block_on(async {
        let report = live::probe(upstream, call.as_ref()).await;
        manager.close().await;
        report
    }))
}

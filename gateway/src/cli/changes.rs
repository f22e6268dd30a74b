//! `weir reload` and `weir config diff`: what has changed in the configuration, in force or not.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::http::Method;

use super::{running::RunningGateway, terminal};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Say what a reload of the gateway that runs would change.
    ///
    /// Compares the file with what is in force. Nothing is changed, no policy is loaded and no upstream is asked. Ends with
    /// 0 if a reload would change nothing, with 1 if it would or cannot be done, and with 64 if the file cannot be used.
    Diff(ChangesOptions),
}

#[derive(Args, Debug)]
pub(super) struct ChangesOptions {
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gateway: RunningGateway,
}

/// `weir reload`.
pub(super) fn reload(options: &ChangesOptions) -> anyhow::Result<ExitCode> {
    show(options, Method::POST, "nothing has changed")?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    let ConfigCommand::Diff(options) = command;
    let changes = show(options, Method::GET, "a reload would change nothing")?;
    Ok(if changes { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Asks the gateway that runs, and prints what changes. Whether anything does.
fn show(options: &ChangesOptions, method: Method, nothing: &str) -> anyhow::Result<bool> {
    let ChangesOptions { json, gateway } = options;
    let socket = gateway.socket()?;
    let report: Value = super::runtime()?.block_on(gateway.ask(&socket, method, "/reload"))?;
    let lines = lines(&report);
    if *json {
        terminal::put_json(&format!("{report:#}"))?;
    } else {
        terminal::say(if lines.is_empty() { nothing.to_owned() } else { lines.join("\n") })?;
    }
    Ok(!lines.is_empty())
}

/// One line for each change.
fn lines(report: &Value) -> Vec<String> {
    let names = |key: &str| report[key].as_array().cloned().unwrap_or_default().into_iter();
    let mut lines = Vec::new();
    for (mark, key) in [("+", "added"), ("~", "changed"), ("-", "removed")] {
        let upstreams = names(key).filter_map(|name| Some(format!("{mark} upstream {}", name.as_str()?)));
        lines.extend(upstreams);
    }
    for key in ["access", "toolsets", "record", "telemetry", "limits"] {
        lines.extend((report[key] == true).then(|| format!("~ {key}")));
    }
    lines.extend(
        names("restart").filter_map(|key| Some(format!("! {}: changes when Weir is started again", key.as_str()?))),
    );
    lines
}

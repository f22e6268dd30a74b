//! `weir reload` and `weir config diff`: what has changed in the configuration, in force or not.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use crate::http::Method;

use super::{running::RunningGateway, terminal};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Say what a reload of the gateway that runs would change.
    ///
    /// Compares the file with what is in force. Nothing is changed, no policy is loaded and no upstream is asked. Ends with
    /// 0 if a reload would change nothing, with 1 if it would or cannot be done, and with 64 if the file cannot be used.
    Diff(RunningGateway),
}

/// `weir reload`.
pub(super) fn reload(gateway: &RunningGateway) -> anyhow::Result<ExitCode> {
    let report = ask(gateway, Method::POST)?;
    let lines = lines(&report);
    terminal::say(if lines.is_empty() { "nothing has changed".to_owned() } else { lines.join("\n") })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    let ConfigCommand::Diff(gateway) = command;
    let lines = lines(&ask(gateway, Method::GET)?);
    if lines.is_empty() {
        terminal::say("a reload would change nothing")?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::say(lines.join("\n"))?;
    Ok(ExitCode::FAILURE)
}

fn ask(gateway: &RunningGateway, method: Method) -> anyhow::Result<Value> {
    let socket = gateway.socket()?;
    super::runtime()?.block_on(gateway.ask(&socket, method, "/reload"))
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

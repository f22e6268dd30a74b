//! The real clients: each visits a URL, looks at everything there, uses one of each and tells what it saw.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::paths::{node, peers, python};

/// Long enough for a client to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A real client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// `@modelcontextprotocol/sdk`, version 1: legacy only.
    Sdk1,
    /// `@modelcontextprotocol/client`, version 2.
    Sdk2,
    /// The Python SDK, version 2.
    Python,
}

/// How a client chooses its era.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Opens with `initialize`.
    Legacy,
    /// Opens with `server/discover` and falls back.
    Auto,
    /// Speaks nothing but 2026-07-28.
    Modern,
}

impl Choice {
    fn text(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Auto => "auto",
            Self::Modern => "modern",
        }
    }
}

/// Sends `visitor` to `url`, where it calls `tool`; gives what it saw, with the fields `era`, `server`, `capabilities`,
/// `tools`, `resources`, `prompts` and, where there was one, `call`, `resource` and `prompt`.
///
/// # Errors
/// What it printed, when it failed.
pub async fn visit(
    visitor: Visitor,
    choice: Choice,
    url: &str,
    tool: &str,
    arguments: &Value,
) -> Result<Value, String> {
    let mut command = match visitor {
        Visitor::Sdk1 => script("clients/sdk1.mjs"),
        Visitor::Sdk2 => script("clients/sdk2.mjs"),
        Visitor::Python => {
            let mut command = Command::new(python());
            command.arg(peers("clients/python_client.py"));
            command
        }
    };
    command.arg(url).args(["--tool", tool, "--arguments", &arguments.to_string()]);
    if visitor != Visitor::Sdk1 {
        command.args(["--era", choice.text()]);
    }
    let output = run(command).await?;
    let line = output.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("{error}: {output}"))
}

/// Asks the Inspector's command line for one method at `url`; gives the result.
///
/// # Errors
/// What it printed, when it failed.
pub async fn inspect(choice: Choice, url: &str, method: &str, more: &[&str]) -> Result<Value, String> {
    let mut command = script("node_modules/.bin/mcp-inspector");
    command.args(["--cli", "--server-url", url, "--transport", "http", "--protocol-era", choice.text()]);
    command.args(["--method", method, "--format", "json"]).args(more);
    let output = run(command).await?;
    let start = output.find('{').ok_or_else(|| format!("no JSON: {output}"))?;
    let answer: Value = serde_json::from_str(&output[start..]).map_err(|error| format!("{error}: {output}"))?;
    Ok(answer.get("result").cloned().unwrap_or(answer))
}

/// A visit in a form that two ways to the same server have in common: the greeting belongs to who gives it.
pub fn common(mut seen: Value) -> Value {
    if let Some(seen) = seen.as_object_mut() {
        seen.remove("server");
        seen.remove("capabilities");
    }
    if seen["prompt"].is_null() {
        seen["prompt"] = json!(null);
    }
    seen
}

fn script(path: &str) -> Command {
    let mut command = Command::new(node());
    command.arg(peers(path));
    command
}

async fn run(command: Command) -> Result<String, String> {
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = match timeout(LIMIT, command.output()).await {
        Ok(output) => output.map_err(|error| format!("the client cannot be started: {error}"))?,
        Err(_) => return Err(format!("the client did not end within {LIMIT:?}")),
    };
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    Err(format!("{}\n{stdout}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

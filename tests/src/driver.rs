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

/// Where a client goes.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// Streamable HTTP.
    Http(&'a str),
    /// HTTP+SSE.
    Sse(&'a str),
    /// A program, with its arguments.
    Stdio(&'a [&'a str]),
}

impl<'a> Target<'a> {
    fn words(self) -> (String, &'static str) {
        match self {
            Self::Http(url) => (url.to_owned(), "http"),
            Self::Sse(url) => (url.to_owned(), "sse"),
            Self::Stdio(command) => (json!(command).to_string(), "stdio"),
        }
    }
}

impl<'a> From<&'a String> for Target<'a> {
    fn from(url: &'a String) -> Self {
        Self::Http(url)
    }
}

/// Sends `visitor` to `target`, where it calls `tool`; gives what it saw, with the fields `era`, `server`,
/// `capabilities`, `tools`, `resources`, `prompts` and, where there was one, `call`, `resource` and `prompt`.
///
/// # Errors
/// What it printed, when it failed.
pub async fn visit<'a>(
    visitor: Visitor,
    choice: Choice,
    target: impl Into<Target<'a>>,
    tool: &str,
    arguments: &Value,
) -> Result<Value, String> {
    let mut command = program(visitor, "visit.mjs", "python_client.py");
    let (target, transport) = target.into().words();
    command.args([&target, "--transport", transport, "--era", choice.text()]);
    command.args(["--tool", tool, "--arguments", &arguments.to_string()]);
    last_line(&run(command).await?)
}

/// Has `visitor` make all `calls` at once on one connection, each with `name` and `arguments`; gives for each `text` or
/// `error`.
///
/// # Errors
/// What it printed, when it failed.
pub async fn call_at_once(visitor: Visitor, choice: Choice, url: &str, calls: &Value) -> Result<Value, String> {
    let mut command = program(visitor, "at_once.mjs", "at_once.py");
    command.args([url, &calls.to_string(), "--era", choice.text()]);
    last_line(&run(command).await?)
}

/// Asks the Inspector's command line for one method at `target`; gives the result.
///
/// # Errors
/// What it printed, when it failed.
pub async fn inspect<'a>(
    choice: Choice,
    target: impl Into<Target<'a>>,
    method: &str,
    more: &[&str],
) -> Result<Value, String> {
    let mut command = script("node_modules/.bin/mcp-inspector");
    command.args(["--cli", "--protocol-era", choice.text(), "--method", method, "--format", "json"]).args(more);
    match target.into() {
        Target::Http(url) => command.args(["--server-url", url, "--transport", "http"]),
        Target::Sse(url) => command.args(["--server-url", url, "--transport", "sse"]),
        // What follows `--` belongs to the program.
        Target::Stdio(program) => command.args(["--transport", "stdio", "--"]).args(program),
    };
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

/// The script that a visitor runs, with the version of its SDK.
fn program(visitor: Visitor, typescript: &str, python_script: &str) -> Command {
    let with_sdk = |version| {
        let mut command = script(&format!("clients/{typescript}"));
        command.args(["--sdk", version]);
        command
    };
    match visitor {
        Visitor::Sdk1 => with_sdk("1"),
        Visitor::Sdk2 => with_sdk("2"),
        Visitor::Python => {
            let mut command = Command::new(python());
            command.arg(peers(&format!("clients/{python_script}")));
            command
        }
    }
}

fn last_line(output: &str) -> Result<Value, String> {
    let line = output.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|error| format!("{error}: {output}"))
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

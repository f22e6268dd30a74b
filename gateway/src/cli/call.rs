//! `weir call`, `weir read` and `weir prompt`: one request to one server, as a client would send it.
//!
//! The command is a client of Weir's own proxy ([`Front`](super::front::Front)), in one process. So what holds for clients
//! holds here: credentials, transports, eras, and policies on calls. Rules of access are left out, since whoever can read the
//! configuration can use its credentials.

mod arguments;
mod content;
mod elicitation;
mod image;
mod progress;
mod session;
mod target;

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::{BadConfig, suggestion::hint, terminal};
use arguments::{ArgumentOptions, ArgumentSchema};
use content::ResultOptions;
pub(super) use session::{ClientSession, RequestError};
pub(super) use target::{TargetOptions, Visit, visit};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir call github search_issues query=panic limit=5
  weir call https://mcp.example.com/mcp echo message=hello
  echo '{\"message\": \"hello\"}' | weir call demo echo --json -
  weir call charts draw --save pictures")]
pub(super) struct CallOptions {
    /// The upstream of the configuration, or the URL of any MCP server.
    #[arg(value_name = "NAME|URL")]
    server: String,
    /// The tool, by its name at the server; `weir tools NAME` lists them.
    tool: String,
    #[command(flatten)]
    arguments: ArgumentOptions,
    #[command(flatten)]
    result: ResultOptions,
    #[command(flatten)]
    target: TargetOptions,
}

#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:
  weir read docs file:///guide.md
  weir read file:///guide.md
  weir read https://mcp.example.com/mcp ui://chart --save pictures"
)]
pub(super) struct ReadOptions {
    /// The upstream of the configuration, or the URL of any MCP server. Left out, the first that has the resource.
    #[arg(value_name = "NAME|URL")]
    server: Option<String>,
    /// The resource.
    #[arg(value_name = "URI")]
    resource: String,
    #[command(flatten)]
    result: ResultOptions,
    #[command(flatten)]
    target: TargetOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  weir prompt docs review language=rust
  weir prompt https://mcp.example.com/mcp greeting")]
pub(super) struct PromptOptions {
    /// The upstream of the configuration, or the URL of any MCP server.
    #[arg(value_name = "NAME|URL")]
    server: String,
    /// The prompt.
    prompt: String,
    #[command(flatten)]
    arguments: ArgumentOptions,
    #[command(flatten)]
    result: ResultOptions,
    #[command(flatten)]
    target: TargetOptions,
}

/// `weir call`.
pub(super) fn call(options: &CallOptions) -> anyhow::Result<ExitCode> {
    let CallOptions { server, tool, arguments, result, target } = options;
    let arguments = arguments.read()?;
    let visited = Visit { command: "weir call", server: Some(server), target, is_list: false };
    visit(&visited, async |session| {
        let known = session.list("tools/list", "tools", |entry| entry["name"] == tool.as_str()).await?;
        let found = find(&known, "tool", tool, server)?;
        let arguments = arguments.fit(&ArgumentSchema::of(&found["inputSchema"]));
        let arguments = arguments.map_err(|why| refused(&format!("tool `{tool}`"), &why))?;
        let params = format!(r#"{{"name":{},"arguments":{arguments}"#, json!(tool));
        result.show_call(&session.request_raw("tools/call", &params).await?)
    })
}

/// `weir read`.
pub(super) fn read(options: &ReadOptions) -> anyhow::Result<ExitCode> {
    let ReadOptions { server, resource, result, target } = options;
    let visited = Visit { command: "weir read", server: server.as_deref(), target, is_list: false };
    visit(&visited, async |session| {
        let answer = session.request("resources/read", &json!({ "uri": resource })).await?;
        result.show_resource(&answer)
    })
}

/// `weir prompt`.
pub(super) fn prompt(options: &PromptOptions) -> anyhow::Result<ExitCode> {
    let PromptOptions { server, prompt, arguments, result, target } = options;
    let arguments = arguments.read()?;
    let visited = Visit { command: "weir prompt", server: Some(server), target, is_list: false };
    visit(&visited, async |session| {
        let known = session.list("prompts/list", "prompts", |entry| entry["name"] == prompt.as_str()).await?;
        let schema = schema_of_prompt(find(&known, "prompt", prompt, server)?);
        let arguments = arguments.fit(&ArgumentSchema::of(&schema));
        let arguments = arguments.map_err(|why| refused(&format!("prompt `{prompt}`"), &why))?;
        let params = format!(r#"{{"name":{},"arguments":{arguments}"#, json!(prompt));
        result.show_prompt(&session.request_raw("prompts/get", &params).await?)
    })
}

/// The entry of this name, or what is said of a name that no entry has.
fn find<'e>(entries: &'e [Value], what: &str, name: &str, server: &str) -> anyhow::Result<&'e Value> {
    let named = entries.iter().find(|entry| entry["name"] == name);
    named.ok_or_else(|| {
        let names = entries.iter().filter_map(|entry| entry["name"].as_str());
        BadConfig(format!("there is no {what} `{name}` at `{server}`; {}", hint(name, names))).into()
    })
}

/// Arguments of prompts are text, and no schema says so.
fn schema_of_prompt(prompt: &Value) -> Value {
    let arguments = prompt["arguments"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = arguments.iter().filter_map(|argument| Some((argument["name"].as_str()?, argument)));
    let properties = named
        .clone()
        .map(|(name, argument)| (name.to_owned(), json!({ "type": "string", "description": argument["description"] })));
    let required = named.filter(|(_, argument)| argument["required"] == true).map(|(name, _)| name);
    json!({ "properties": properties.collect::<serde_json::Map<_, _>>(), "required": required.collect::<Vec<_>>() })
}

/// Nothing was sent, for the arguments do not fit.
fn refused(of: &str, problems: &[String]) -> BadConfig {
    BadConfig(format!("the arguments do not fit the {of}, so nothing was sent:\n  {}", problems.join("\n  ")))
}

/// Puts a list on standard output, as the server has it.
pub(super) fn put_list(entries: &[&Value]) -> anyhow::Result<()> {
    Ok(terminal::put_json(&serde_json::to_string_pretty(entries)?)?)
}

//! `weir tools NAME`: what tools there are, with their arguments.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::cli::{
    call::{TargetOptions, Visit, put_list, visit},
    terminal,
};

/// How many characters of a description are shown.
const DESCRIPTION: usize = 100;

/// How wide the column of names and arguments is at most.
const WIDEST: usize = 48;

#[derive(Args, Debug)]
pub(in crate::cli) struct ToolListOptions {
    /// The upstream of the configuration, or the URL of any MCP server. Left out, all upstreams together.
    #[arg(value_name = "NAME|URL")]
    server: Option<String>,
    /// Only tools with all these words in their name, title, description or arguments.
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// As JSON, as the server lists them.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: TargetOptions,
}

pub(super) fn list(options: &ToolListOptions) -> anyhow::Result<ExitCode> {
    let ToolListOptions { server, search, json, target } = options;
    let visited = Visit { command: "weir tools", server: server.as_deref(), target, is_list: true };
    visit(&visited, async |session| {
        let all = session.list("tools/list", "tools", |_| false).await?;
        let tools: Vec<&Value> = all.iter().filter(|tool| has(tool, search.as_deref().unwrap_or_default())).collect();
        if *json {
            put_list(&tools)?;
        } else if tools.is_empty() {
            let shown = if all.is_empty() { "There are no tools." } else { "No tool has all these words." };
            terminal::complain(shown);
        } else {
            terminal::put(&table(&tools))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Whether all these words occur in what a tool says of itself.
fn has(tool: &Value, words: &str) -> bool {
    let texts = ["name", "title", "description"].into_iter().filter_map(|key| tool[key].as_str());
    let arguments = tool["inputSchema"]["properties"].as_object();
    let arguments = arguments.into_iter().flatten().map(|(name, _)| name.as_str());
    let text = texts.chain(arguments).collect::<Vec<_>>().join("\n").to_lowercase();
    words.split_whitespace().all(|word| text.contains(&word.to_lowercase()))
}

/// One line for each tool.
fn table(tools: &[&Value]) -> String {
    let rows: Vec<(String, String)> = tools.iter().map(|tool| (signature(tool), about(tool))).collect();
    let width = rows.iter().map(|(signature, _)| signature.chars().count()).filter(|width| *width <= WIDEST);
    let width = width.max().unwrap_or_default();
    rows.iter().map(|(signature, about)| format!("{signature:width$}  {about}").trim_end().to_owned() + "\n").collect()
}

/// `name(required, [optional])`.
fn signature(tool: &Value) -> String {
    let schema = &tool["inputSchema"];
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut arguments: Vec<(bool, &str)> =
        properties.map(|(name, _)| (!required.iter().any(|one| one == name), name.as_str())).collect();
    arguments.sort_by_key(|(is_optional, _)| *is_optional);
    let shown = arguments.iter().map(|(is_optional, name)| match is_optional {
        true => format!("[{name}]"),
        false => (*name).to_owned(),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    one_line(&format!("{}({shown})", tool["name"].as_str().unwrap_or_default()))
}

/// The first line of its description.
fn about(tool: &Value) -> String {
    let text = tool["description"].as_str().or_else(|| tool["title"].as_str()).unwrap_or_default();
    let line = text.trim().lines().next().unwrap_or_default();
    let end = line.char_indices().nth(DESCRIPTION).map_or(line.len(), |(at, _)| at);
    one_line(&line[..end]) + if end < line.len() { "…" } else { "" }
}

/// A name may have anything in it, and a row is one line.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_has_name_arguments_and_the_first_line() {
        let search = json!({ "name": "search", "description": "Finds issues.\nAnd more.", "inputSchema": {
            "properties": { "limit": {}, "query": {} }, "required": ["query"] } });
        let bare = json!({ "name": "a\nb" });
        assert_eq!(table(&[&search, &bare]), "search(query, [limit])  Finds issues.\na b()\n");
    }

    #[test]
    fn a_search_wants_each_word_somewhere() {
        let tool = json!({ "name": "create_issue", "description": "Opens a ticket", "inputSchema": { "properties": { "Labels": {} } } });
        for (words, is_found) in [("", true), ("ISSUE labels", true), ("ticket  open", true), ("issue close", false)] {
            assert_eq!(has(&tool, words), is_found, "{words}");
        }
    }
}

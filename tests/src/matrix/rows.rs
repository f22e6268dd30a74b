//! The real clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::columns::{Column, npm, pypi};
use super::command;
use crate::driver::{Choice, Target, inspect};
use crate::paths::{node, peers, python, python1, weir};

/// A whole tour: what one station may take, twice over.
const LIMIT: Duration = Duration::from_secs(240);

/// A client that is sent to all servers.
pub struct Row {
    /// What it is, for people, with its version.
    pub title: String,
    client: Client,
    way: Way,
}

enum Client {
    /// `clients/tour.mjs` with these options.
    Script(Vec<&'static str>),
    /// `clients/tour.py` with these options.
    Python2(Vec<&'static str>),
    Python1(Vec<&'static str>),
    /// One process for each question, so it can only call and list.
    Inspector(Choice),
}

/// How a client gets to an upstream of the gateway.
enum Way {
    Http,
    /// HTTP+SSE.
    Sse,
    /// By way of mcp-remote, with this `--transport`.
    Remote(&'static str),
    /// By way of `weir connect` at the gateway.
    Connect,
    /// By way of `weir connect` at the server itself, without a gateway.
    ConnectAlone,
}

impl Row {
    /// Where this client finds a server; none if it cannot get there.
    pub(super) fn target(&self, gateway: SocketAddr, column: &Column) -> Option<Value> {
        let url = format!("http://{gateway}/mcp/{}", column.key);
        let weir = weir();
        let weir = weir.to_str()?;
        Some(match self.way {
            Way::Http | Way::Sse => json!(url),
            Way::Remote(transport) => {
                let (node, remote) = (node(), peers("node_modules/.bin/mcp-remote"));
                command(&[node.to_str()?, remote.to_str()?, &url, "--allow-http", "--transport", transport])
            }
            Way::Connect => command(&[weir, "connect", &url]),
            Way::ConnectAlone => command(&[weir, "connect", &column.url()?]),
        })
    }

    /// Goes there; what was seen at each station.
    pub(super) async fn tour(&self, stations: Vec<Value>) -> Map<String, Value> {
        match &self.client {
            Client::Script(options) => script_tour(options, stations).await,
            Client::Python1(options) => python_tour(Command::new(python1("python")), options, stations).await,
            Client::Python2(options) => python_tour(Command::new(python()), options, stations).await,
            Client::Inspector(choice) => inspections(*choice, stations).await,
        }
    }
}

/// All clients.
#[must_use]
pub fn rows() -> Vec<Row> {
    let (sdk1, sdk2) = (npm("@modelcontextprotocol/sdk"), npm("@modelcontextprotocol/client"));
    let (python1, python2) = (pypi("requirements-sdk1.txt", "mcp"), pypi("requirements.txt", "mcp"));
    let row = |title: String, client, way| Row { title, client, way };
    let script = |sdk: &'static str, more: &[&'static str]| Client::Script([&["--sdk", sdk], more].concat());
    let mut rows = vec![
        row(format!("`{sdk1}`, Streamable HTTP"), script("1", &[]), Way::Http),
        row(format!("`{sdk1}`, HTTP+SSE"), script("1", &["--transport", "sse"]), Way::Sse),
    ];
    for era in ["legacy", "auto", "modern"] {
        rows.push(row(format!("`{sdk2}`, {era}"), script("2", &["--era", era]), Way::Http));
    }
    rows.push(row(format!("{python1} (Python), Streamable HTTP"), Client::Python1(vec![]), Way::Http));
    rows.push(row(format!("{python1} (Python), HTTP+SSE"), Client::Python1(vec!["--transport", "sse"]), Way::Sse));
    for era in ["legacy", "auto", "modern"] {
        rows.push(row(format!("{python2} (Python), {era}"), Client::Python2(vec!["--era", era]), Way::Http));
    }
    let inspector = npm("@modelcontextprotocol/inspector");
    for (choice, era) in [(Choice::Legacy, "legacy"), (Choice::Auto, "auto"), (Choice::Modern, "modern")] {
        rows.push(row(format!("`{inspector}`, {era}"), Client::Inspector(choice), Way::Http));
    }
    let remote = npm("mcp-remote");
    for transport in ["http-only", "sse-only", "http-first", "sse-first"] {
        let client = script("1", &["--transport", "stdio", "--at-once", "3"]);
        rows.push(row(format!("`{remote}`, {transport}"), client, Way::Remote(transport)));
    }
    for era in ["legacy", "modern"] {
        let client = script("2", &["--era", era, "--transport", "stdio"]);
        rows.push(row(format!("`weir connect` for `{sdk2}`, {era}"), client, Way::Connect));
    }
    let client = script("2", &["--era", "auto", "--transport", "stdio"]);
    rows.push(row(format!("`weir connect` alone, for `{sdk2}`, auto"), client, Way::ConnectAlone));
    rows
}

pub(super) async fn script_tour(options: &[&str], stations: Vec<Value>) -> Map<String, Value> {
    let mut command = Command::new(node());
    command.arg(peers("clients/tour.mjs")).arg(Value::Array(stations).to_string()).args(options);
    tour(command).await
}

async fn python_tour(mut command: Command, options: &[&str], stations: Vec<Value>) -> Map<String, Value> {
    command.arg(peers("clients/tour.py")).arg(Value::Array(stations).to_string()).args(options);
    tour(command).await
}

async fn tour(mut command: Command) -> Map<String, Value> {
    command.stdin(Stdio::null());
    let mut command = tokio::process::Command::from(command);
    let output = timeout(LIMIT, command.kill_on_drop(true).output()).await.expect("the tour ends in time");
    let output = output.expect("the tour starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let seen = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    seen.unwrap_or_else(|| panic!("the tour told nothing: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

async fn inspections(choice: Choice, stations: Vec<Value>) -> Map<String, Value> {
    let mut seen = BTreeMap::new();
    for station in stations {
        let text = |key: &str| station[key].as_str().unwrap_or_default().to_owned();
        let (url, echo) = (text("target"), text("prefix") + "echo");
        let more = ["--tool-name", &echo, "--tool-arg", "message=hello"];
        let (called, listed) = tokio::join!(
            inspect(choice, Target::Http(&url), "tools/call", &more),
            inspect(choice, Target::Http(&url), "tools/list", &[]),
        );
        let mut cell = json!({ "failures": [] });
        let said = |result: &Value| result["content"][0]["text"].as_str().is_some_and(|text| text.ends_with("hello"));
        let last = |result: &Value| {
            let names = result["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str());
            names.clone().count() > 0 && (station["pages"] == 1 || names.clone().any(|name| name == "given_up"))
        };
        for (step, answer, good) in [("call", called, &said as &dyn Fn(&Value) -> bool), ("pages", listed, &last)] {
            cell[step] = json!(answer.as_ref().is_ok_and(good));
            if let Err(why) = answer
                && let Some(failures) = cell["failures"].as_array_mut()
            {
                failures.push(json!(format!("{step}: {why}")));
            }
        }
        seen.insert(text("name"), cell);
    }
    seen.into_iter().collect()
}

//! `weir status`: how the gateway that runs stands, as it says itself.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::bail;
use serde_json::Value;

use crate::http::Method;

use super::{auth::show::span, running::RunningGateway, suggestion, terminal};

/// How often `--watch` asks.
const EVERY: Duration = Duration::from_secs(2);

/// The options of `weir status`.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Only this upstream.
    name: Option<String>,
    #[command(flatten)]
    gateway: RunningGateway,
    /// As JSON, with all that is known.
    #[arg(long)]
    json: bool,
    /// Again every two seconds, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
    /// End with 0 if the gateway answers, also where upstreams are not healthy: for the health check of a container.
    #[arg(long, conflicts_with = "watch")]
    alive: bool,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let socket = options.gateway.socket()?;
    super::runtime()?.block_on(async {
        loop {
            let all_well = show(options, &socket).await?;
            if !options.watch {
                return Ok(if all_well || options.alive { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            tokio::time::sleep(EVERY).await;
        }
    })
}

/// Asks and prints; whether each upstream that is shown is healthy.
async fn show(options: &Options, socket: &str) -> anyhow::Result<bool> {
    let mut report = options.gateway.ask(socket, Method::GET, "/status").await?;
    let all = report["upstreams"].as_array().cloned().unwrap_or_default();
    let shown: Vec<Value> = match &options.name {
        Some(name) => all.iter().filter(|upstream| upstream["name"] == name.as_str()).cloned().collect(),
        None => all.clone(),
    };
    if let (Some(name), []) = (&options.name, &*shown) {
        let known = all.iter().filter_map(|upstream| upstream["name"].as_str());
        bail!("{}", suggestion::unknown("upstream", name, known));
    }
    let all_well = shown.iter().all(is_well);
    if options.json {
        report["upstreams"] = shown.into();
        terminal::put_json(&report.to_string())?;
        return Ok(all_well);
    }
    let text = table(&report, &shown, options.name.is_some());
    if options.watch && io::stdout().is_terminal() {
        // To the top left corner of an empty screen (ECMA-48 §8.3.21, §8.3.39).
        io::stdout().write_all(b"\x1b[H\x1b[2J")?;
    }
    terminal::say(text)?;
    Ok(all_well)
}

/// Whether an upstream is healthy. Of one that each caller signs in to, Weir knows only that its calls pass.
fn is_well(upstream: &Value) -> bool {
    let is_personal = upstream["state"] == "auth_required" && upstream["login"]["state"] == "of_each_caller";
    upstream["state"] == "healthy" || is_personal && upstream["breaker"] == "closed"
}

/// `is_one` if one upstream was asked for, and all is to be told of it.
fn table(report: &Value, shown: &[Value], is_one: bool) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut table = format!(
        "weir {} at {}: {}, process {}, for {}\n",
        text(&report["version"]),
        text(&report["url"]),
        text(&report["state"]),
        report["process"],
        span(seconds(&report["uptime_seconds"])),
    );
    if let Some(why) = report["audit"].as_str() {
        table.push_str(&format!("the audit log cannot be written: {why}\n"));
    }
    if let Some(why) = report["store"].as_str() {
        table.push_str(&format!("credentials in memory are used until they expire: {why}\n"));
    }
    if let Some(why) = report["reload"].as_str() {
        let why = why.replace('\n', "; ");
        table.push_str(&format!("the last reload failed, and what was in force stays so: {why}\n"));
    }
    let width = shown.iter().map(|upstream| text(&upstream["name"]).len()).max().unwrap_or_default();
    for upstream in shown {
        let since = span(seconds(&upstream["since_seconds"]));
        let (name, state) = (text(&upstream["name"]), text(&upstream["state"]));
        let line = format!("\n  {name:width$}  {state:13}  {since:>7}  {}", offer(upstream));
        table.push_str(line.trim_end());
        for reason in reasons(upstream) {
            table.push_str(&format!("\n  {:width$}  {reason}", ""));
        }
        if is_one {
            for line in details(upstream) {
                table.push_str(&format!("\n  {:width$}  {line}", ""));
            }
        }
    }
    table
}

/// What an upstream offers, and how it is reached.
fn offer(upstream: &Value) -> String {
    let ways = ["transport", "era"].into_iter().filter_map(|key| upstream[key].as_str());
    let ways = ways.collect::<Vec<_>>().join(", ");
    match upstream["tools"].as_u64() {
        Some(tools) => format!("{tools} tools  ({ways})"),
        None => String::new(),
    }
}

/// Why an upstream is not healthy, and what comes next.
pub(super) fn reasons(upstream: &Value) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(error) = upstream["error"].as_str() {
        // Each text of an upstream is one line here.
        reasons.push(error.replace('\n', " "));
    }
    if upstream["transport_reason"] == "fallback" {
        reasons.push(
            "Streamable HTTP failed, so it is reached over HTTP+SSE; `type = \"sse\"` goes there at once".to_owned(),
        );
    }
    if upstream["breaker"].as_str().is_some_and(|breaker| breaker != "closed") {
        reasons.push("breaker open: calls to it fail at once".to_owned());
    }
    for policy in upstream["disabled_policies"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        reasons.push(format!("policy {policy} is disabled: it traps time and again; see the log"));
    }
    if let (Some(failures @ 1..), Some(left)) = (upstream["failures"].as_u64(), upstream["retry_in_seconds"].as_u64()) {
        let left = span(Duration::from_secs(left));
        reasons.push(format!("failed {failures} times in a row; next try in {left}"));
    }
    reasons
}

/// What an operator who asks for one upstream wants to know beside its state.
pub(super) fn details(upstream: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(calls) = upstream["calls"].as_object().filter(|calls| !calls.is_empty()) {
        let counts: Vec<String> = calls.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
        lines.push(format!("calls: {}; {} attempts", counts.join(", "), upstream["attempts"]));
    }
    let bound = |key: &str| Some(format!("{key} ≤ {} ms", upstream["latency_ms"][key].as_f64()?));
    let bounds: Vec<String> = ["p50", "p95", "p99"].into_iter().filter_map(bound).collect();
    if !bounds.is_empty() {
        lines.push(format!("latency: {}", bounds.join(", ")));
    }
    if let Some(processes @ 1..) = upstream["processes"].as_u64() {
        lines.push(format!("processes: {processes}"));
    }
    if let Some(state) = upstream["login"]["state"].as_str() {
        let left = upstream["login"]["expires_in_seconds"].as_u64();
        let left = left.map_or_else(String::new, |left| format!(", expires in {}", span(Duration::from_secs(left))));
        lines.push(format!("login: {}{left}", state.replace('_', " ")));
    }
    lines
}

pub(super) fn seconds(value: &Value) -> Duration {
    Duration::from_secs(value.as_u64().unwrap_or_default())
}

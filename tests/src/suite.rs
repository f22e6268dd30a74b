//! The MCP conformance suite.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::paths::{cache, node, peers, weir};

/// The whole suite takes some seconds; a server that never answers costs 30 for each scenario.
const LIMIT: Duration = Duration::from_secs(300);

/// For one scenario of a client.
const SCENARIO: Duration = Duration::from_secs(60);

/// What came of a run.
#[derive(Debug)]
pub struct SuiteVerdict {
    /// The required scenarios that passed.
    pub passed: Vec<String>,
    /// The required scenarios that did not, each with its failed checks.
    pub failed: Vec<String>,
    /// The scenarios that were run, but are not required; those that failed.
    pub unscored_failures: Vec<String>,
    /// Whether the suite itself was content, given the baseline.
    pub accepted: bool,
    /// What came of each check of all scenarios that were run, required or not.
    pub checks: Checks,
    /// Everything it printed.
    pub output: String,
}

/// The statuses of checks, by scenario, check and how often that check was made before in this scenario.
pub type Checks = BTreeMap<(String, String, usize), String>;

/// Runs all server scenarios that `revision` requires against `url`.
///
/// `baseline` is a file of expected failures in the suite's own format: with it the suite accepts those, and refuses
/// an entry that passes.
///
/// # Panics
/// When the suite does not run to its end.
pub async fn run(url: &str, revision: &str, baseline: Option<&Path>) -> SuiteVerdict {
    let results = TempDir::new().expect("a temporary directory can be made");
    let mut command = conformance();
    command.arg("server").args(["--url", url, "--requirements", revision, "--output-dir"]).arg(results.path());
    if let Some(baseline) = baseline {
        command.arg("--expected-failures").arg(baseline);
    }
    let output = timeout(LIMIT, command.output()).await.expect("the suite ends in time").expect("the suite starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);

    let (summary, unscored) = split(&text);
    let unscored: Vec<&str> = unscored.lines().filter_map(scenario).map(|(_, name)| name).collect();
    let mut verdict = SuiteVerdict {
        passed: Vec::new(),
        failed: Vec::new(),
        unscored_failures: Vec::new(),
        accepted: output.status.success(),
        checks: Checks::new(),
        output: text.clone(),
    };
    for (passed, name) in summary.lines().filter_map(scenario) {
        let counts = !unscored.contains(&name);
        for check in checks(results.path(), name) {
            let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
            let mut key = (name.to_owned(), text("id"), 0);
            while verdict.checks.contains_key(&key) {
                key.2 += 1;
            }
            verdict.checks.insert(key, text("status"));
        }
        match (passed, counts) {
            (true, true) => verdict.passed.push(name.to_owned()),
            (false, true) => verdict.failed.push(explain(results.path(), name)),
            (false, false) => verdict.unscored_failures.push(explain(results.path(), name)),
            (true, false) => {}
        }
    }
    assert!(!verdict.passed.is_empty() || !verdict.failed.is_empty(), "the suite ran nothing:\n{text}");
    verdict
}

/// Where Weir stands in a client scenario: between the client and the suite's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// At `/mcp/<upstream>`.
    One,
    /// At `/mcp`.
    All,
    /// As `weir connect`.
    Connect,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::All => "all",
            Self::Connect => "connect",
        }
    }
}

/// The client scenarios that `revision` requires: those about authorization, or all others.
///
/// # Panics
/// When the suite does not list them.
pub async fn client_scenarios(revision: &str, authorization: bool) -> Vec<String> {
    let mut command = conformance();
    command.args(["list", "--requirements", revision]);
    let output = timeout(LIMIT, command.output()).await.expect("the suite ends in time").expect("the suite starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, scenarios) = text.split_once("Client scenarios").expect("the suite lists client scenarios");
    let scenarios = scenarios.split_once("Run and reported").map_or(scenarios, |(required, _)| required);
    let names = scenarios.lines().filter_map(|line| line.trim().strip_prefix("- "));
    names.filter(|name| name.starts_with("auth/") == authorization).map(str::to_owned).collect()
}

/// Runs one client scenario with Weir in between.
///
/// # Errors
/// What the suite said, when it was not content.
///
/// # Panics
/// When the suite does not run to its end.
pub async fn run_client(way: Way, scenario: &str, revision: &str) -> Result<(), String> {
    let results = TempDir::new().expect("a temporary directory can be made");
    let client = format!("{} {}", node().display(), peers("clients/conform.mjs").display());
    let mut command = conformance();
    command.args(["client", "--command", &client, "--scenario", scenario]);
    // Extensions belong to no revision.
    if !revision.is_empty() {
        command.args(["--spec-version", revision]);
    }
    command.arg("--output-dir").arg(results.path()).env("WEIR_WAY", way.word());
    command.env("WEIR_BINARY", weir()).env("WEIR_CACHE", cache());
    let Ok(output) = timeout(SCENARIO, command.output()).await else { return Err(format!("no end in {SCENARIO:?}")) };
    let output = output.expect("the suite starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() && text.contains("OVERALL: PASSED") { Ok(()) } else { Err(text) }
}

/// The suite as a program, to be given its arguments.
pub fn program() -> Command {
    let mut command = Command::new(node());
    command.arg(peers("node_modules/.bin/conformance"));
    command
}

fn conformance() -> tokio::process::Command {
    let mut command = tokio::process::Command::from(program());
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// The list of all scenarios, and the list of those that are not required.
fn split(output: &str) -> (&str, &str) {
    let summary = output.split_once("=== SUMMARY ===").map_or("", |(_, summary)| summary);
    summary.split_once("Not scored for").unwrap_or((summary, ""))
}

/// `✓ name: 2 passed, 0 failed` or `  ✗ name (extension)`.
fn scenario(line: &str) -> Option<(bool, &str)> {
    let line = line.trim();
    let (passed, rest) = match line.strip_prefix("✓ ") {
        Some(rest) => (true, rest),
        None => (false, line.strip_prefix("✗ ")?),
    };
    Some((passed, rest.split([':', ' ']).next()?))
}

/// The scenario with its failed checks.
fn explain(results: &Path, scenario: &str) -> String {
    let mut text = scenario.to_owned();
    for check in checks(results, scenario) {
        if check["status"] == "FAILURE" {
            let message = check["errorMessage"].as_str().unwrap_or_default();
            text += &format!("\n    {}: {message}", check["id"].as_str().unwrap_or_default());
        }
    }
    text
}

fn checks(results: &Path, scenario: &str) -> Vec<Value> {
    let prefix = format!("server-{scenario}-2");
    let is_of_scenario =
        |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix));
    let directories = fs::read_dir(results).into_iter().flatten().flatten().map(|entry| entry.path());
    directories
        .filter(is_of_scenario)
        .filter_map(|path| fs::read(path.join("checks.json")).ok())
        .filter_map(|file| serde_json::from_slice::<Vec<Value>>(&file).ok())
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_required_scenarios_from_the_others() {
        let output = "\u{2713} noise\n=== SUMMARY ===\n✓ ping: 2 passed, 0 failed\n✗ tasks-lifecycle: 1 passed, 8 failed\n\n\
                      Not scored for 2026-07-28: 1 scenario(s) run\n  ✗ tasks-lifecycle (extension)\n";
        let (summary, unscored) = split(output);
        assert_eq!(
            summary.lines().filter_map(scenario).collect::<Vec<_>>(),
            [(true, "ping"), (false, "tasks-lifecycle")]
        );
        assert_eq!(unscored.lines().filter_map(scenario).collect::<Vec<_>>(), [(false, "tasks-lifecycle")]);
    }
}

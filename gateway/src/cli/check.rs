//! `weir check`: everything that `serve` does before it opens a socket.

use std::{path::Path, process::ExitCode, sync::Arc};

use crate::{
    config::{Auth, Reach, UpstreamConfig},
    credential::CredentialManager,
    telemetry,
};

use super::{
    BadConfig, assembly,
    assembly::{Assembly, Decisions},
    exit_code::BAD_CONFIG,
    live, suggestion, terminal,
};

/// `required` are the upstreams to reach that must be fine; all of none are named, nothing is reached without.
pub(super) fn run(path: &Path, required: Option<&[String]>) -> anyhow::Result<ExitCode> {
    let _log = required.map(|_| telemetry::start("warn"));
    let config = super::load(path)?;
    for name in required.unwrap_or_default() {
        let mut enabled =
            config.upstreams.iter().filter(|upstream| upstream.enabled).map(|upstream| upstream.name.as_str());
        if !enabled.clone().any(|enabled| enabled == name) {
            let unknown = suggestion::unknown("upstream", name, &mut enabled);
            return Err(BadConfig(format!("--require: {unknown}; those that are disabled do not count")).into());
        }
    }
    let manager = CredentialManager::new(&config, false);
    let assembly = assembly::assemble(&config, &manager)?;
    for warning in &config.warnings {
        terminal::complain(format_args!("warning: {warning}"));
    }
    let key = super::check_key(&manager)?;
    for problem in config.missing.iter().map(ToString::to_string).chain(key.clone()) {
        terminal::complain(problem);
    }
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    for address in &config.listen {
        terminal::say(format_args!("would listen on {scheme}://{address}/mcp"))?;
    }
    if let Some(url) = &config.public_url {
        terminal::say(format_args!("clients reach it at {url}/mcp"))?;
    }
    let mut decisions = assembly.upstreams.iter().map(|assembled| &assembled.decisions);
    for upstream in &config.upstreams {
        let decided = if upstream.enabled { decisions.next() } else { None };
        terminal::say(line(upstream, decided))?;
    }
    for toolset in &config.toolsets {
        terminal::say(format_args!("{}: a toolset at /mcp/{}", toolset.name, toolset.name))?;
    }
    if let Some(access) = &config.access {
        let (count, enforced) = (access.rules.len(), access.rules.iter().filter(|rule| access.enforce && rule.enforce));
        terminal::say(format_args!("{count} access rules, {} of them enforced", enforced.count()))?;
    }
    if key.is_some() || !config.missing.is_empty() {
        return Ok(ExitCode::from(BAD_CONFIG));
    }
    terminal::say(format_args!("{} is fine", path.display()))?;
    match required {
        Some(required) => live(&assembly, &manager, required),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Reaches every upstream.
fn live(assembly: &Assembly, manager: &CredentialManager, required: &[String]) -> anyhow::Result<ExitCode> {
    let upstreams = assembly.upstreams.iter().map(|assembled| Arc::clone(&assembled.upstream));
    let reports = super::runtime()?.block_on(async {
        let reports = live::probe_all(upstreams).await;
        manager.close().await;
        reports
    });
    for report in &reports {
        terminal::say(if report.ok { report.line() } else { report.text() })?;
    }
    let counts = |report: &&live::Report| required.is_empty() || required.contains(&report.name);
    Ok(live::exit_code(reports.iter().filter(counts)))
}

fn line(upstream: &UpstreamConfig, decided: Option<&Decisions>) -> String {
    let name = &upstream.name;
    let Some(decided) = decided else { return format!("{name}: disabled") };
    let reach = match &upstream.reach {
        Reach::Http(reach) => format!("{}", reach.url),
        Reach::Stdio(reach) if reach.shared => format!("`{}` as one process for all", reach.command),
        Reach::Stdio(reach) => format!("`{}` as a process for each client", reach.command),
    };
    let credential = match (&decided.credentials, &upstream.auth) {
        (None, _) => "no credential".to_owned(),
        (Some(policy), Auth::Unsaid) if policy == "oauth" => "no credential unless it asks for a login".to_owned(),
        (Some(policy), Auth::Bearer(source)) => format!("credential by `{policy}` from {source}"),
        (Some(policy), _) => format!("credential by `{policy}`"),
    };
    let proxy = decided.proxy.as_ref().map_or(String::new(), |proxy| format!(" through the proxy {proxy}"));
    let calls: Vec<String> = decided.calls.iter().map(|policy| format!("`{policy}`")).collect();
    let calls = if calls.is_empty() { String::new() } else { format!(", calls by {}", calls.join(", ")) };
    format!("{name}: {reach}{proxy}, connection by `{}`, {credential}{calls}", decided.connection)
}

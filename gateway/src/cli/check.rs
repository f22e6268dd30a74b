//! `weir check`: everything that `serve` does before it opens a socket.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::Args;
use serde::Serialize;

use crate::{
    config::{Auth, Config, Problem, Problems, Reach, UpstreamConfig, default_file},
    credential::CredentialManager,
    telemetry,
};

use super::{
    BadConfig, access, assembly,
    assembly::{Assembly, Decisions},
    exit_code::BAD_CONFIG,
    live, suggestion, terminal,
};

#[derive(Debug, Args)]
pub(super) struct CheckOptions {
    /// The configuration, as for `serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    /// Also reach every upstream, as `weir test` does. Nothing listens. The exit codes are those of `weir test`.
    #[arg(long)]
    live: bool,
    /// With `--live`: only these upstreams decide about the exit code.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', requires = "live")]
    require: Vec<String>,
    /// As JSON, what is wrong included.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    caller: access::CallerOptions,
}

/// What was found out about a configuration.
#[derive(Default, Serialize)]
struct CheckReport {
    file: PathBuf,
    ok: bool,
    /// What keeps it from being used.
    problems: Vec<Problem>,
    /// What is not on this machine.
    missing: Vec<Problem>,
    /// What is wrong with the key of the login store.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    warnings: Vec<Problem>,
    listen: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public_url: Option<String>,
    upstreams: Vec<CheckedUpstream>,
    toolsets: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<RuleCounts>,
    /// What was reached, if anything should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    reached: Option<Vec<live::Report>>,
}

#[derive(Serialize)]
struct CheckedUpstream {
    name: String,
    enabled: bool,
    #[serde(flatten)]
    decisions: Option<Decisions>,
    #[serde(skip)]
    line: String,
}

#[derive(Serialize)]
struct RuleCounts {
    count: usize,
    enforced: usize,
}

pub(super) fn run(options: CheckOptions) -> anyhow::Result<ExitCode> {
    let CheckOptions { config: path, live, require, json, caller } = options;
    if caller.names_somebody() {
        return access::run(&path, caller, json);
    }
    let _log = live.then(|| telemetry::start("warn"));
    let report = match check(&path, live.then_some(&*require)) {
        Ok(report) => report,
        Err(why) if json => unusable(&path, &why),
        Err(why) => {
            return Err(why.downcast::<Problems>().map_or_else(|why| why, |all| BadConfig(all.to_string()).into()));
        }
    };
    match json {
        true => terminal::put_json(&serde_json::to_string(&report)?)?,
        false => report.tell()?,
    }
    let counts = |reached: &&live::Report| require.is_empty() || require.contains(&reached.name);
    Ok(match report.reached {
        _ if !report.ok => ExitCode::from(BAD_CONFIG),
        Some(reached) => live::exit_code(reached.iter().filter(counts)),
        None => ExitCode::SUCCESS,
    })
}

/// A configuration that cannot be used.
fn unusable(path: &Path, why: &anyhow::Error) -> CheckReport {
    let problems = match why.downcast_ref::<Problems>() {
        Some(Problems(problems)) => problems.clone(),
        None => vec![Problem { file: path.to_owned(), at: None, message: format!("{why:#}"), hint: None }],
    };
    CheckReport { file: path.to_owned(), problems, ..CheckReport::default() }
}

/// `required` are the upstreams to reach that must be fine; all if none are named, nothing is reached without.
fn check(path: &Path, required: Option<&[String]>) -> anyhow::Result<CheckReport> {
    let config = Config::load(path)?;
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
    let store = super::check_key(&manager)?;
    let mut decisions = assembly.upstreams.iter().map(|assembled| &assembled.decisions);
    let checked = |upstream: &UpstreamConfig| {
        let decided = if upstream.enabled { decisions.next() } else { None };
        let (name, line) = (upstream.name.to_string(), line(upstream, decided));
        CheckedUpstream { name, enabled: upstream.enabled, decisions: decided.cloned(), line }
    };
    let upstreams = config.upstreams.iter().map(checked).collect();
    let ok = store.is_none() && config.missing.is_empty();
    let reached = required.filter(|_| ok).map(|_| live(&assembly, &manager)).transpose()?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let rules = config.access.as_ref().map(|access| RuleCounts {
        count: access.rules.len(),
        enforced: access.rules.iter().filter(|rule| access.enforce && rule.enforce).count(),
    });
    Ok(CheckReport {
        file: path.to_owned(),
        ok,
        problems: Vec::new(),
        missing: config.missing,
        store,
        warnings: config.warnings,
        listen: config.listen.iter().map(|address| format!("{scheme}://{address}/mcp")).collect(),
        public_url: config.public_url.map(|url| format!("{url}/mcp")),
        upstreams,
        toolsets: config.toolsets.iter().map(|toolset| toolset.name.to_string()).collect(),
        rules,
        reached,
    })
}

impl CheckReport {
    /// Says it to people.
    fn tell(&self) -> io::Result<()> {
        self.warnings.iter().for_each(|warning| terminal::complain(format_args!("warning: {warning}")));
        self.missing.iter().for_each(terminal::complain);
        self.store.iter().for_each(terminal::complain);
        self.listen.iter().try_for_each(|url| terminal::say(format_args!("would listen on {url}")))?;
        self.public_url.iter().try_for_each(|url| terminal::say(format_args!("clients reach it at {url}")))?;
        self.upstreams.iter().try_for_each(|upstream| terminal::say(&upstream.line))?;
        for name in &self.toolsets {
            terminal::say(format_args!("{name}: a toolset at /mcp/{name}"))?;
        }
        if let Some(RuleCounts { count, enforced }) = &self.rules {
            terminal::say(format_args!("{count} access rules, {enforced} of them enforced"))?;
        }
        if self.ok {
            terminal::say(format_args!("{} is fine", self.file.display()))?;
        }
        let reached = self.reached.iter().flatten();
        reached.map(|report| if report.ok { report.line() } else { report.text() }).try_for_each(terminal::say)
    }
}

/// Reaches every upstream.
fn live(assembly: &Assembly, manager: &CredentialManager) -> anyhow::Result<Vec<live::Report>> {
    let upstreams = assembly.upstreams.iter().map(|assembled| Arc::clone(&assembled.upstream));
    Ok(super::runtime()?.block_on(async {
        let reports = live::probe_all(upstreams).await;
        manager.close().await;
        reports
    }))
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

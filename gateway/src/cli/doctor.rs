//! `weir doctor`: what is wrong on this machine, with this configuration, and at its upstreams; each with its repair.

mod files;
mod machine;
mod schemas;
mod upstreams;

use std::{
    fmt::{self, Display},
    path::PathBuf,
    process::ExitCode,
};

use serde::Serialize;

use crate::{
    config::{Config, Problem, default_file, writable_by_others},
    credential::CredentialManager,
    telemetry,
};

use super::{assembly, exit_code::BAD_CONFIG, terminal};
use files::Fix;

/// The options of `weir doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  weir doctor
  weir doctor --fix
  weir doctor --offline --json")]
pub(super) struct DoctorOptions {
    /// The configuration, as for `serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    /// Repair what is safe to repair: permissions of files that others can read or write.
    #[arg(long)]
    fix: bool,
    /// Reach no upstream.
    #[arg(long)]
    offline: bool,
    /// Print what is fine too.
    #[arg(short, long)]
    verbose: bool,
    /// As JSON, with what is fine.
    #[arg(long)]
    json: bool,
    /// Use logins that are kept as plain text.
    #[arg(long)]
    allow_plaintext_token_store: bool,
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// Nothing is wrong.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// It works, and may fail or be unsafe.
    Warning,
    /// It does not work.
    Error,
}

/// One sentence on one thing, and what repairs it.
#[derive(Debug, Serialize)]
struct Finding {
    severity: Severity,
    /// What was looked at, in one word.
    check: &'static str,
    text: String,
    /// A command, or a key of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<String>,
    /// What `--fix` does.
    #[serde(skip)]
    fix: Option<Fix>,
}

/// What was found.
#[derive(Default)]
struct Findings {
    all: Vec<Finding>,
    /// Whether to repair what is safe to repair.
    fixes: bool,
}

impl Findings {
    fn add(&mut self, severity: Severity, check: &'static str, text: impl Display, repair: Option<String>) {
        self.push(Finding { severity, check, text: text.to_string(), repair, fix: None });
    }

    fn ok(&mut self, check: &'static str, text: impl Display) {
        self.add(Severity::Ok, check, text, None);
    }

    /// Adds one, and repairs it if that is wanted.
    fn push(&mut self, mut finding: Finding) {
        if let Some(fix) = finding.fix.take().filter(|_| self.fixes) {
            match fix.apply() {
                Ok(mode) => {
                    finding.severity = Severity::Note;
                    finding.text.push_str(&format!("; repaired: its mode is {mode:o} now"));
                    finding.repair = None;
                }
                Err(why) => finding.text.push_str(&format!("; it cannot be repaired: {why}")),
            }
        }
        self.all.push(finding);
    }

    fn worst(&self) -> Severity {
        self.all.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }
}

pub(super) fn run(options: &DoctorOptions) -> anyhow::Result<ExitCode> {
    let _log = telemetry::start("off");
    let mut findings = Findings { fixes: options.fix, ..Findings::default() };
    let is_usable = look(options, &mut findings)?;
    show(options, &findings)?;
    Ok(match findings.worst() {
        _ if !is_usable => ExitCode::from(BAD_CONFIG),
        Severity::Ok | Severity::Note => ExitCode::SUCCESS,
        Severity::Warning | Severity::Error => ExitCode::FAILURE,
    })
}

/// Looks at everything; whether the configuration can be used.
fn look(options: &DoctorOptions, findings: &mut Findings) -> anyhow::Result<bool> {
    machine::proxies(findings);
    let config = match Config::load(&options.config) {
        Ok(config) => config,
        Err(problems) => {
            problems.0.iter().for_each(|problem| findings.problem(Severity::Error, "configuration", problem));
            return Ok(false);
        }
    };
    findings.configuration(&config);
    files::permissions(&config, findings);
    files::certificates(&config, findings);
    let manager = CredentialManager::new(&config, options.allow_plaintext_token_store);
    let runtime = super::runtime()?;
    let opened = match super::check_key(&manager)? {
        Some(why) => Err(why),
        None => {
            runtime.block_on(manager.check_store()).map_err(|why| format!("the login store cannot be opened: {why}"))
        }
    };
    match opened {
        Err(why) => findings.add(Severity::Error, "store", why, None),
        Ok(true) => findings.ok("store", "the login store can be opened"),
        Ok(false) => findings.ok("store", "there is no login store yet"),
    }
    let assembly = match assembly::assemble(&config, &manager) {
        Ok(assembly) => assembly,
        Err(why) => {
            let repair = format!("weir check --config {}", options.config.display());
            findings.add(Severity::Error, "configuration", why, Some(repair));
            return Ok(false);
        }
    };
    machine::ports(&config, findings);
    runtime.block_on(async {
        machine::runtimes(&config, findings).await;
        let reports = match options.offline {
            true => Vec::new(),
            false => {
                machine::clock(&config, findings).await;
                upstreams::reach(&assembly, findings).await
            }
        };
        upstreams::names(&config, &assembly, &reports, findings);
        upstreams::schemas(&assembly, &reports, findings);
        upstreams::logins(&manager, &reports, findings).await;
        manager.close().await;
    });
    runtime.shutdown_background();
    Ok(true)
}

impl Findings {
    /// What `weir check` says of a configuration that can be used.
    fn configuration(&mut self, config: &Config) {
        self.ok("configuration", format_args!("{} can be used", config.file.display()));
        let open = writable_by_others(&config.file);
        for warning in &config.warnings {
            let is_open = open.as_ref().is_some_and(|open| warning.hint == Some(open.repair()));
            let fix = open.as_ref().filter(|open| is_open && open.path == config.file);
            let fix = fix.map(|open| Fix { path: open.path.clone(), clear: 0o022 });
            let repair = warning.hint.clone();
            let (check, text) = (if is_open { "files" } else { "configuration" }, located(warning));
            self.push(Finding { severity: Severity::Warning, check, text, repair, fix });
        }
        for problem in &config.missing {
            self.problem(Severity::Error, "commands", problem);
        }
        if config.missing.is_empty() {
            self.ok("commands", "the programs and folders of all upstreams are there");
        }
    }

    fn problem(&mut self, severity: Severity, check: &'static str, problem: &Problem) {
        self.add(severity, check, located(problem), problem.hint.clone());
    }
}

/// A problem without its hint.
fn located(problem: &Problem) -> String {
    Problem { hint: None, ..problem.clone() }.to_string()
}

fn show(options: &DoctorOptions, findings: &Findings) -> anyhow::Result<()> {
    if options.json {
        return Ok(terminal::put_json(&serde_json::to_string_pretty(&findings.all)?)?);
    }
    let mut all: Vec<&Finding> = findings.all.iter().collect();
    // The worst comes first, and what was looked at first of what is as bad.
    all.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in all.iter().filter(|finding| options.verbose || finding.severity != Severity::Ok) {
        terminal::say(finding)?;
    }
    let counts = [Severity::Error, Severity::Warning, Severity::Note, Severity::Ok].map(|severity| {
        let count = all.iter().filter(|finding| finding.severity == severity).count();
        (count, format!("{count} {severity}"))
    });
    let counts: Vec<String> = counts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
    terminal::say(counts.join(", "))?;
    Ok(())
}

impl Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const INDENT: &str = "\n         ";
        write!(f, "{:7}  {}: {}", self.severity, self.check, self.text.trim_end().replace('\n', INDENT))?;
        match &self.repair {
            Some(repair) => write!(f, "{INDENT}repair: {}", repair.replace('\n', INDENT)),
            None => Ok(()),
        }
    }
}

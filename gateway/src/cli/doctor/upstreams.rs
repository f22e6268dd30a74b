//! Upstreams: whether each can be reached, whether hosts take the names of its tools, and its login.

use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use weir_hosts::Host;
use weir_mcp::ListKind;

use super::{Findings, Severity};
use crate::{
    cli::{assembly::Assembly, auth::show::span, hosts, live},
    credential::{CredentialManager, Standing},
};

/// What hosts call Weir, unless `weir client connect --name` says otherwise.
const ENTRY: &str = "weir";

/// A login that nobody renews is worth a warning when it expires so soon.
const SOON: Duration = Duration::from_secs(24 * 60 * 60);

/// How many names are told of those that are too long.
const SHOWN: usize = 3;

/// Reaches every enabled upstream, as `weir check --live` does.
pub(super) async fn reach(assembly: &Assembly, findings: &mut Findings) -> Vec<live::Report> {
    let (personal, others): (Vec<_>, Vec<_>) = assembly
        .upstreams
        .iter()
        .map(|assembled| Arc::clone(&assembled.upstream))
        .partition(|upstream| upstream.is_personal);
    for upstream in personal {
        let text = format!("{}: each caller signs in there, so it was not reached", upstream.name());
        findings.add(Severity::Note, "upstreams", text, None);
    }
    let reports = live::probe_all(others.into_iter()).await;
    for report in &reports {
        let name = &report.name;
        match report.ok {
            true => findings.ok("upstreams", report.summary()),
            false => {
                let repair = report.repair.clone().unwrap_or_else(|| format!("`weir test {name}` shows each step"));
                findings.add(Severity::Error, "upstreams", report.summary(), Some(repair));
            }
        }
        for warning in &report.warnings {
            findings.add(Severity::Note, "upstreams", format_args!("{name}: {warning}"), None);
        }
    }
    reports
}

/// Looks whether the hosts that are connected take the names of all tools.
pub(super) fn names(assembly: &Assembly, reports: &[live::Report], findings: &mut Findings) {
    let Ok(directories) = hosts::directories() else { return };
    let mut names = Vec::new();
    for report in reports {
        let of = |name: &str| assembly.upstreams.iter().find(|assembled| assembled.upstream.name() == name);
        let Some(assembled) = of(&report.name) else { continue };
        let tools = report.tools().filter(|tool| assembled.upstream.serves(ListKind::Tool, tool));
        names.extend(tools.map(|tool| format!("{}__{tool}", report.name)));
    }
    for host in Host::ALL {
        let files = host.files(&directories).into_iter().map(|file| file.path);
        let mut texts = files.filter_map(|path| fs::read_to_string(path).ok());
        if !texts.any(|text| matches!(weir_hosts::disconnect(host, &text, ENTRY), Ok(Some(_)))) {
            continue;
        }
        let long = host.over_budget(ENTRY, names.iter().map(String::as_str));
        let (title, budget) = (host.title(), host.name_budget().unwrap_or_default());
        if long.is_empty() {
            findings.ok("names", format_args!("{title} takes the names of all {} tools", names.len()));
            continue;
        }
        let shown = long.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        let prefix = host.tool_prefix(ENTRY);
        let text = format!(
            "{title} takes names of {budget} characters with its `{prefix}`, and {} tools have longer ones: {shown}",
            long.len()
        );
        let repair = "shorter names in `[toolsets.<name>.overrides.<tool>]`".to_owned();
        findings.add(Severity::Warning, "names", text, Some(repair));
    }
}

/// Looks at logins that somebody has to renew.
pub(super) async fn logins(manager: &CredentialManager, reports: &[live::Report], findings: &mut Findings) {
    for account in manager.accounts() {
        let Some(asker) = account.asker(None) else { continue };
        let Ok(state) = account.state(&asker.owner).await else { continue };
        let name = account.name();
        let repair = || Some(format!("weir auth login {}", account.argument()));
        let left = state.login.as_ref().filter(|login| !login.refreshable).and_then(|login| login.expires);
        let left = left.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
        let was_reached = reports.iter().any(|report| report.name == name);
        match state.standing {
            // Whether it is wanted has been seen already.
            Standing::Missing | Standing::Ended if was_reached => {}
            Standing::Missing | Standing::Ended if account.is_for_people() => {
                findings.add(Severity::Error, "logins", format_args!("{name}: nobody is signed in"), repair());
            }
            Standing::TooLittle => {
                findings.add(
                    Severity::Warning,
                    "logins",
                    format_args!("{name}: the login may do too little"),
                    repair(),
                );
            }
            Standing::Good if account.is_for_people() && left.is_some_and(|left| left < SOON) => {
                let left = span(left.unwrap_or_default());
                let text = format!("{name}: the login expires in {left}, and its server lets nobody renew it");
                findings.add(Severity::Warning, "logins", text, repair());
            }
            Standing::Good => findings.ok("logins", format_args!("{name}: signed in")),
            Standing::Missing | Standing::Ended | Standing::Unasked => {}
        }
    }
}

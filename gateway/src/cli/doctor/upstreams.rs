//! Upstreams: whether each can be reached, whether hosts take the names of its tools, and its login.

use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

use weir_hosts::Host;
use weir_mcp::ListKind;

use super::{Findings, Severity, schemas::Vendor};
use crate::{
    cli::{assembly::Assembly, auth::show::span, hosts, live},
    config::Config,
    credential::{CredentialManager, SignInState, Standing},
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

/// The hosts that `weir client` has connected.
fn connected() -> Vec<Host> {
    let Ok(directories) = hosts::directories() else { return Vec::new() };
    let is_connected = |host: &Host| {
        let files = host.files(&directories).into_iter().map(|file| file.path);
        let mut texts = files.filter_map(|path| fs::read_to_string(path).ok());
        texts.any(|text| matches!(weir_hosts::disconnect(*host, &text, ENTRY), Ok(Some(_))))
    };
    Host::ALL.into_iter().filter(is_connected).collect()
}

/// Looks whether vendors of the hosts that are connected take the schemas of all tools.
pub(super) fn schemas(assembly: &Assembly, reports: &[live::Report], findings: &mut Findings) {
    let hosts = connected();
    for report in reports {
        let name = &report.name;
        let Some(assembled) = assembly.upstreams.iter().find(|it| it.upstream.name() == name) else { continue };
        for vendor in Vendor::ALL {
            let of_vendor = hosts.iter().filter(|host| Vendor::of(**host).contains(&vendor));
            let titles: Vec<&str> = of_vendor.map(|host| host.title()).collect();
            if titles.is_empty() {
                continue;
            }
            let tools = report.schemas.iter().filter(|(tool, _)| assembled.upstream.serves(ListKind::Tool, tool));
            let rejected = tools.filter_map(|(tool, schema)| Some((tool, vendor.rejects(schema)?)));
            let rejected: Vec<String> = rejected.map(|(tool, why)| format!("{name}__{tool}: {why}")).collect();
            if rejected.is_empty() {
                continue;
            }
            let (count, shown) = (rejected.len(), rejected[..rejected.len().min(SHOWN)].join("\n"));
            let text = format!(
                "{} rejects the schemas of {count} tools, which {} may send it:\n{shown}",
                vendor.title(),
                titles.join(", ")
            );
            let family = vendor.family();
            let repair = format!(
                "[[upstreams.{name}.policies]]\ncomponent = \"weir:schema\"\nsettings = {{ for = \"{family}\" }}"
            );
            findings.add(Severity::Warning, "schemas", text, Some(repair));
        }
    }
}

/// Looks whether the hosts that are connected take the names of all tools.
pub(super) fn names(config: &Config, assembly: &Assembly, reports: &[live::Report], findings: &mut Findings) {
    let mut names = Vec::new();
    for report in reports {
        let of = |name: &str| assembly.upstreams.iter().find(|assembled| assembled.upstream.name() == name);
        let Some(assembled) = of(&report.name) else { continue };
        let tools = report.tools().filter(|tool| assembled.upstream.serves(ListKind::Tool, tool));
        names.extend(tools.map(|tool| format!("{}__{tool}", report.name)));
    }
    for host in connected() {
        let title = host.title();
        let Some(budget) = config.name_budget(host) else { continue };
        let long = host.over_budget(budget, ENTRY, names.iter().map(String::as_str));
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
        let was_reached = reports.iter().any(|report| report.name == account.name());
        if let Some((severity, text)) = judge(&state, was_reached, SystemTime::now()) {
            let repair = (severity != Severity::Ok).then(|| format!("weir auth login {}", account.argument()));
            findings.add(severity, "logins", format_args!("{}: {text}", account.name()), repair);
        }
    }
}

/// What there is to say of a login. Whether one that is missing is wanted has been seen where the upstream was reached.
fn judge(state: &SignInState, was_reached: bool, now: SystemTime) -> Option<(Severity, String)> {
    let left = state.login.as_ref().filter(|login| !login.refreshable).and_then(|login| login.expires);
    let left = left.map(|end| end.duration_since(now).unwrap_or_default()).filter(|left| *left < SOON);
    match (state.standing, left) {
        (Standing::Missing | Standing::Ended, _) if was_reached || !state.for_people => None,
        (Standing::Missing | Standing::Ended, _) => Some((Severity::Error, "nobody is signed in".to_owned())),
        (Standing::TooLittle, _) => Some((Severity::Warning, "the login may do too little".to_owned())),
        (Standing::Good, Some(left)) if state.for_people => {
            Some((Severity::Warning, format!("the login expires in {}, and nobody can renew it", span(left))))
        }
        (Standing::Good, _) => Some((Severity::Ok, "signed in".to_owned())),
        (Standing::Unasked, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use weir_oauth::{LoginKey, LoginSummary, Scopes};
    use weir_store::Version;

    use super::*;
    use crate::credential::CredentialOwner;

    fn state(standing: Standing, hours: u64, refreshable: bool) -> SignInState {
        let (upstream, owner) = ("u".to_owned(), CredentialOwner::Shared);
        let key = LoginKey { upstream: upstream.clone(), owner: owner.clone(), issuer: "i".to_owned() };
        let login = LoginSummary {
            key,
            origin: "https://u.example".to_owned(),
            issued: UNIX_EPOCH,
            scopes: Scopes::parse(""),
            expires: Some(UNIX_EPOCH + Duration::from_secs(hours * 3600)),
            refreshable,
            bound: false,
            ended: false,
            version: Version::from_number(1),
        };
        SignInState { upstream, owner, standing, login: Some(login), for_people: true }
    }

    #[test]
    fn a_login_is_judged_by_what_somebody_has_to_do() {
        let judged =
            |state: &SignInState, was_reached| judge(state, was_reached, UNIX_EPOCH).map(|(severity, _)| severity);
        for (state, was_reached, severity) in [
            (state(Standing::Good, 23, false), true, Some(Severity::Warning)),
            (state(Standing::Good, 25, false), true, Some(Severity::Ok)),
            (state(Standing::Good, 1, true), true, Some(Severity::Ok)),
            (state(Standing::TooLittle, 25, true), true, Some(Severity::Warning)),
            (state(Standing::Ended, 0, false), false, Some(Severity::Error)),
            (state(Standing::Ended, 0, false), true, None),
            (state(Standing::Unasked, 0, false), false, None),
        ] {
            assert_eq!(judged(&state, was_reached), severity, "{state:?}");
        }
        let program = SignInState { for_people: false, ..state(Standing::Missing, 0, false) };
        assert_eq!(judged(&program, false), None, "Weir gets a token by itself");
    }
}

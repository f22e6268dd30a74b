//! `weir check --as`: what a caller sees, and which rule decides. `weir access explain`: what was decided about a call.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use weir_flow::facts::Principal;
use weir_mcp::{Era, ListKind};

use crate::{
    access::{Decision, Grants, Item, Toolset},
    catalog::{Catalog, Viewer},
    config::{API_KEY_ISSUER, Config, default_file},
    credential::CredentialManager,
    snapshot::Snapshot,
    telemetry::audit,
};

use super::{assembly, terminal};

#[derive(Debug, Subcommand)]
pub(super) enum AccessCommand {
    /// Say what was decided about a call, and by which rule.
    ///
    /// The call is the `call_id` of its line in the log. What was decided is in the audit log, so `[audit]` is needed.
    Explain {
        /// The `call_id` of the call.
        #[arg(value_name = "CALL-ID")]
        call: String,
        /// As JSON: the record of the audit log.
        #[arg(long)]
        json: bool,
        /// The configuration, as for `weir serve`.
        #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
        config: PathBuf,
    },
}

pub(super) fn explain(AccessCommand::Explain { call, json, config }: &AccessCommand) -> anyhow::Result<ExitCode> {
    let loaded = super::load(config)?;
    let audit =
        loaded.audit.with_context(|| format!("{} has no `[audit]`, so nothing is recorded", config.display()))?;
    let found =
        audit::find_call(&audit.path, call).with_context(|| format!("the audit log {}", audit.path.display()))?;
    let record = found.with_context(|| format!("no call `{call}` is in {}", audit.path.display()))?;
    if *json {
        terminal::put_json(&serde_json::to_string(&record)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (label, member) in EXPLAINED {
        let value = match record.get(member) {
            None => continue,
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            Some(value) => value.to_string(),
        };
        if !value.is_empty() {
            terminal::say(format_args!("{label:<9}  {value}"))?;
        }
    }
    if !record.contains_key("rule") {
        terminal::say("rule       none decided")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is printed of a record, and how it is called there.
const EXPLAINED: [(&str, &str); 14] = [
    ("when", "occurred_at"),
    ("who", "principal_id"),
    ("issuer", "issuer"),
    ("groups", "groups"),
    ("key", "key"),
    ("method", "method"),
    ("upstream", "upstream"),
    ("account", "account"),
    ("name", "name"),
    ("decision", "decision"),
    ("rule", "rule"),
    ("approved", "approved_by"),
    ("why", "error"),
    ("tried out", "shadow"),
];

/// Who the rules are asked about.
#[derive(Debug, Args)]
pub(super) struct CallerOptions {
    /// The subject of a caller: start the upstreams and print what it sees, and which rule decides.
    #[arg(long = "as", value_name = "SUBJECT")]
    subject: Option<String>,
    /// A group of the caller; may be repeated.
    #[arg(long = "group", value_name = "GROUP", requires = "subject")]
    groups: Vec<String>,
    /// A scope of its token; may be repeated.
    #[arg(long = "scope", value_name = "SCOPE", requires = "subject")]
    scopes: Vec<String>,
    /// The issuer of its token. Default: that of the only `[auth]` table; with `--key` that of API keys.
    #[arg(long, value_name = "URL", requires = "subject")]
    issuer: Option<String>,
    /// The API key that it uses.
    #[arg(long, value_name = "NAME", requires = "subject")]
    key: Option<String>,
    /// The claims of its token as JSON, for conditions on `caller.claims`.
    #[arg(long, value_name = "JSON", requires = "subject", value_parser = object)]
    claims: Option<String>,
}

/// The text of a JSON object.
fn object(text: &str) -> Result<String, String> {
    let read = serde_json::from_str::<serde_json::Map<String, Value>>(text);
    read.map(|_| text.to_owned()).map_err(|why| format!("this is no JSON object: {why}"))
}

impl CallerOptions {
    /// Whether somebody is named.
    pub(super) const fn names_somebody(&self) -> bool {
        self.subject.is_some()
    }

    /// The caller, as this configuration would know it; none if nobody is named.
    pub(super) fn principal(self, config: &Config) -> Option<Principal> {
        let issuer = match (self.issuer, &self.key, &config.inbound[..]) {
            (None, Some(_), _) => Some(API_KEY_ISSUER.to_owned()),
            (None, None, [only]) => Some(only.issuer.as_str().to_owned()),
            (said, ..) => said,
        };
        let mut principal = Principal::named(self.subject?, issuer);
        (principal.groups, principal.scopes, principal.key) = (self.groups, self.scopes, self.key);
        principal.claims = self.claims.unwrap_or(principal.claims);
        Some(principal)
    }
}

/// An endpoint, and what of it a caller sees.
#[derive(Serialize)]
struct SeenEndpoint {
    path: String,
    upstreams: Vec<SeenUpstream>,
}

#[derive(Serialize)]
struct SeenUpstream {
    name: String,
    /// Why nothing is known of what it offers.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    items: Vec<SeenItem>,
}

#[derive(Serialize)]
struct SeenItem {
    kind: &'static str,
    name: String,
    sees: bool,
    /// What has decided.
    why: Vec<String>,
}

pub(super) fn run(path: &Path, caller: CallerOptions, as_json: bool) -> anyhow::Result<ExitCode> {
    let config = super::load(path)?;
    let Some(principal) = caller.principal(&config) else { return Ok(ExitCode::SUCCESS) };
    let manager = CredentialManager::new(&config, false);
    let assembly = assembly::assemble(&config, &manager)?;
    let waiting = terminal::waiting("reaching upstreams");
    let endpoints = super::runtime()?.block_on(async {
        let catalog = Catalog::new(Arc::clone(&assembly.snapshot));
        catalog.start().await;
        for era in [Era::Modern, Era::Legacy] {
            catalog.merged(Viewer { caller: None, toolset: Toolset::all(), client: None }, era).await;
        }
        let seen = seen(&assembly.snapshot, &catalog, &principal);
        catalog.stop().await;
        seen
    });
    drop(waiting);
    match as_json {
        true => terminal::put_json(&serde_json::to_string(&endpoints)?)?,
        false => endpoints.iter().try_for_each(|endpoint| terminal::say(endpoint.to_string().trim_end()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Each endpoint, and what of it the caller sees.
fn seen(snapshot: &Snapshot, catalog: &Catalog, principal: &Principal) -> Vec<SeenEndpoint> {
    let grants = snapshot.access().grants(Some(principal));
    let items = catalog.items();
    // Where rules name endpoints, an upstream's own may show something else than `/mcp`.
    let apart = snapshot.access().rules().iter().any(|rule| !rule.endpoints.is_empty());
    let own = snapshot.upstreams().filter(|_| apart).filter_map(|upstream| snapshot.part(upstream.name()));
    let endpoint = |toolset: &Arc<Toolset>| {
        let path = if toolset.is_all() { "/mcp".to_owned() } else { format!("/mcp/{}", toolset.name()) };
        let served = items.iter().filter(|(upstream, _)| toolset.order(upstream.as_str()).is_some());
        let upstreams = served.map(|(upstream, items)| {
            let name = upstream.as_str();
            let item = |(kind, native): &(ListKind, String)| item(toolset, &grants, name, *kind, native);
            let state = items.is_empty().then(|| nothing_known(snapshot, name));
            SeenUpstream { name: name.to_owned(), state, items: items.iter().filter_map(item).collect() }
        });
        SeenEndpoint { path, upstreams: upstreams.collect() }
    };
    std::iter::once(Toolset::all()).chain(snapshot.toolsets()).chain(own).map(endpoint).collect()
}

impl fmt::Display for SeenEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.path)?;
        for SeenUpstream { name, state, items } in &self.upstreams {
            writeln!(f, "  {name}")?;
            state.iter().try_for_each(|state| writeln!(f, "    {state}"))?;
            for SeenItem { kind, name, sees, why } in items {
                let sees = if *sees { "sees " } else { "hidden" };
                let why = if why.is_empty() { String::new() } else { format!("  ({})", why.join("; ")) };
                writeln!(f, "    {sees:<6}  {kind:<17}  {name}{why}")?;
            }
        }
        Ok(())
    }
}

/// Why nothing is known of what an upstream offers.
fn nothing_known(snapshot: &Snapshot, upstream: &str) -> String {
    let status = snapshot.upstream(upstream).map(|upstream| upstream.status());
    match status {
        Some(status) => {
            status.error.clone().map_or_else(|| status.state.to_string(), |why| format!("{}: {why}", status.state))
        }
        None => "not there".to_owned(),
    }
}

/// What a caller sees of an item; none if the endpoint does not serve it.
fn item(toolset: &Toolset, grants: &Grants, upstream: &str, kind: ListKind, native: &str) -> Option<SeenItem> {
    if !toolset.serves(kind, upstream, native) {
        return None;
    }
    let decision = grants.shows(toolset.name(), upstream, Item::One(kind, native));
    Some(SeenItem { kind: kind.noun(), name: native.to_owned(), sees: decision.allowed, why: reasons(&decision) })
}

fn reasons(decision: &Decision) -> Vec<String> {
    let approvals = decision.approvals.iter().filter_map(|rule| rule.approve.as_ref());
    let asks: String = approvals.map(|by| format!(", asks {by}")).collect();
    let tried = decision.shadow.as_ref().map(|shadow| format!("tried out: {shadow}"));
    let decided = match (&decision.rule, decision.allowed) {
        (Some(rule), _) => Some(format!("rule `{rule}`{asks}")),
        (None, true) => None,
        (None, false) => Some("no rule allows it".to_owned()),
    };
    decided.into_iter().chain(tried).collect()
}

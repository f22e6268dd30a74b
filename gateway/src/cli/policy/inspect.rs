//! `weir policy inspect`: what a component is, before anything is granted to it.

use std::process::ExitCode;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::policy::{CallInterest, Detail, Policy, PolicyGrant};

use super::{Component, terminal};

/// What is found out about a component.
#[derive(Serialize)]
struct Inspection {
    file: String,
    /// In bytes.
    size: usize,
    sha256: String,
    decides: Vec<&'static str>,
    imports: Vec<String>,
    /// The capabilities that it asks for.
    grants: Vec<&'static str>,
    /// What it wants to see of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    sees: Option<Sees>,
}

/// What a policy about calls wants to see.
#[derive(Serialize)]
#[serde(untagged)]
enum Sees {
    Wants(Interest),
    /// It has not said so.
    Unknown {
        error: String,
    },
}

#[derive(Serialize)]
struct Interest {
    methods: Vec<String>,
    /// All if there are none.
    names: Vec<String>,
    requests: &'static str,
    answers: &'static str,
    events: &'static str,
    entries: Vec<&'static str>,
}

pub(super) fn run(component: &Component, settings: String, json: bool) -> anyhow::Result<ExitCode> {
    let (policy, wasm) = component.load(settings, None, None)?;
    let inspection = Inspection::of(&policy, &wasm)?;
    match json {
        true => terminal::put_json(&serde_json::to_string_pretty(&inspection)?)?,
        false => terminal::say(inspection.text())?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Inspection {
    fn of(policy: &Policy, wasm: &[u8]) -> anyhow::Result<Self> {
        let decides = [
            (policy.decides_connections(), "connection"),
            (policy.decides_credentials(), "credentials"),
            (policy.decides_calls(), "calls"),
        ];
        let sees = match policy.decides_calls() {
            true => Some(match super::super::runtime()?.block_on(policy.wants()) {
                Ok(interest) => Sees::Wants((&interest).into()),
                Err(why) => Sees::Unknown { error: why.to_string() },
            }),
            false => None,
        };
        let sha256 = hex::encode(Sha256::digest(wasm));
        Ok(Self {
            file: policy.name().to_owned(),
            size: wasm.len(),
            sha256,
            decides: decides.into_iter().filter_map(|(does, what)| does.then_some(what)).collect(),
            imports: policy.imports(),
            grants: policy.imported_grants().into_iter().map(PolicyGrant::name).collect(),
            sees,
        })
    }

    fn text(&self) -> String {
        let Self { file, size, sha256, decides, imports, grants, sees } = self;
        let mut lines =
            vec![file.clone(), format!("  size     {} KiB", size.div_ceil(1024)), format!("  sha256   {sha256}")];
        lines.extend(decides.iter().map(|what| format!("  decides  {}", decided(what))));
        lines.extend(sees.iter().flat_map(Sees::lines));
        lines.extend(imports.iter().map(|import| format!("  imports  {import}")));
        let could: Vec<&str> =
            PolicyGrant::ALL.iter().filter(|grant| grants.contains(&grant.name())).map(|it| could(*it)).collect();
        if could.is_empty() {
            lines.push("  could    answer what it is asked, and nothing else".to_owned());
        }
        lines.extend(could.iter().map(|what| format!("  could    {what}")));
        let quoted: Vec<String> = grants.iter().map(|grant| format!("\"{grant}\"")).collect();
        if !quoted.is_empty() {
            lines.push(format!("  needs    grants = [{}]", quoted.join(", ")));
        }
        lines.join("\n")
    }
}

impl Sees {
    fn lines(&self) -> Vec<String> {
        let Interest { methods, names, requests, answers, events, entries } = match self {
            Self::Unknown { error } => return vec![format!("  sees     unknown: {error}")],
            Self::Wants(interest) => interest,
        };
        let mut lines = Vec::new();
        let names = if names.is_empty() { String::new() } else { format!(" of {}", names.join(", ")) };
        if !methods.is_empty() {
            lines.push(format!(
                "  sees     {}{names}: requests {requests}, answers {answers}, events {events}",
                methods.join(", ")
            ));
        }
        if !entries.is_empty() {
            lines.push(format!("  sees     lists of: {}", entries.join(", ")));
        }
        lines
    }
}

impl From<&CallInterest> for Interest {
    fn from(interest: &CallInterest) -> Self {
        let detail = |detail: Detail| match detail {
            Detail::Nothing => "not",
            Detail::Facts => "without text",
            Detail::Body => "with text",
        };
        Self {
            methods: interest.methods().map(str::to_owned).collect(),
            names: interest.names().map(str::to_owned).collect(),
            requests: detail(interest.request),
            answers: detail(interest.answer),
            events: detail(interest.event),
            entries: interest.entries.iter().map(|kind| kind.noun()).collect(),
        }
    }
}

fn decided(interface: &str) -> &'static str {
    match interface {
        "connection" => "connection: how an upstream is reached",
        "credentials" => "credentials: which of the configured secrets goes into which header",
        _ => "calls: what becomes of requests, answers and entries of lists",
    }
}

fn could(grant: PolicyGrant) -> &'static str {
    match grant {
        PolicyGrant::Log => "write lines to the log of the gateway",
        PolicyGrant::Clock => "read the time",
        PolicyGrant::Random => "draw random numbers",
        PolicyGrant::Secrets => "read the text of the secrets that its upstream has",
        PolicyGrant::Http => "send requests to the services that its configuration names",
        PolicyGrant::Store => "keep up to 2 MiB for each upstream, for itself alone",
    }
}

//! `weir policy`: what a component is, before anything is granted to it.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::Subcommand;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    config::PolicyLimits,
    policy::{CallInterest, Detail, Engine, Policy, PolicyGrant, PolicySource},
};

use super::terminal;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Say what a component decides, what it imports, and what it could do.
    ///
    /// Loads it as the gateway would, with every capability that it asks for. Of a policy about calls it asks which calls it
    /// wants to see. Ends with 1 if it is no policy, and says why.
    Inspect {
        /// The component.
        file: PathBuf,
        /// The settings that it would have, as JSON: what it wants to see may depend on them.
        #[arg(long, value_name = "JSON", default_value = "{}")]
        settings: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

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

pub(super) fn run(command: PolicyCommand) -> anyhow::Result<ExitCode> {
    let PolicyCommand::Inspect { file, settings, json } = command;
    let wasm = fs::read(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    let engine = Engine::new(None, PolicyLimits::default())?;
    let name = file.display().to_string();
    let source = PolicySource {
        name: &name,
        wasm: wasm.as_slice().into(),
        grants: &PolicyGrant::ALL,
        settings,
        service: None,
        store: None,
    };
    let policy = match engine.load(source) {
        Ok(policy) => policy,
        Err(why) => bail!("{why}"),
    };
    let inspection = Inspection::of(&policy, &wasm)?;
    match json {
        true => terminal::say(serde_json::to_string_pretty(&inspection)?)?,
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
            true => Some(match super::runtime()?.block_on(policy.wants()) {
                Ok(interest) => Sees::Wants((&interest).into()),
                Err(why) => Sees::Unknown { error: why.to_string() },
            }),
            false => None,
        };
        let sha256: String = Sha256::digest(wasm).iter().map(|byte| format!("{byte:02x}")).collect();
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

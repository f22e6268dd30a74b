//! `weir tools`: what tools there are; and what they said when they were pinned, and what they say now. The policy `weir:pin`
//! keeps both in its store; `guest/policies/pin` says in which form.

mod list;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    sync::Arc,
};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::{
    caller::Caller,
    config::{Config, PolicyComponent},
    credential::CredentialManager,
    http::Method,
    policy::{PolicyStore, PolicyStoreCondition, PolicyStoreError, shipped},
    telemetry::{self, AuthRecord},
};

use super::{BadConfig, running::RunningGateway, suggestion, terminal};

/// The policy whose store this is about.
const PIN: &str = "pin";
/// How often somebody else may write at the same time.
const TRIES: u32 = 8;

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  weir tools
  weir tools github --search 'issue create'
  weir tools https://mcp.example.com/mcp --json"
)]
pub(super) struct ToolsOptions {
    #[command(subcommand)]
    command: Option<ToolsCommand>,
    #[command(flatten)]
    list: list::ToolListOptions,
}

#[derive(Debug, Subcommand)]
enum ToolsCommand {
    /// Show what tools and prompts said when `weir:pin` pinned them, and what they say now.
    ///
    /// Ends with 1 if something waits for approval.
    Diff {
        /// The upstream; all that are pinned, if none is named.
        upstream: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: PinOptions,
    },
    /// Approve what tools and prompts say now. A running gateway shows them at once.
    Approve {
        /// The upstream.
        upstream: String,
        /// The tools and prompts, as `weir tools diff` calls them: `pay`, or `prompt/pay`.
        #[arg(required_unless_present = "all")]
        names: Vec<String>,
        /// All that differ.
        #[arg(long, conflicts_with = "names")]
        all: bool,
        #[command(flatten)]
        options: PinOptions,
    },
}

#[derive(Args, Debug)]
struct PinOptions {
    #[command(flatten)]
    gateway: RunningGateway,
    /// The store is plain text.
    #[arg(long)]
    allow_plaintext_token_store: bool,
}

/// What an entry said when it was pinned, if it was, and what it says now.
struct Difference {
    /// In which of the values it lies.
    share: String,
    pinned: Option<String>,
    now: String,
}

pub(super) fn run(options: ToolsOptions) -> anyhow::Result<ExitCode> {
    match options.command {
        Some(command) => pins(command),
        None => list::list(&options.list),
    }
}

fn pins(command: ToolsCommand) -> anyhow::Result<ExitCode> {
    let _log = telemetry::start("warn");
    let (ToolsCommand::Diff { options, .. } | ToolsCommand::Approve { options, .. }) = &command;
    let config = super::load(options.gateway.options().0)?;
    let _audit = match command {
        ToolsCommand::Approve { .. } => super::audit::start(&config)?,
        ToolsCommand::Diff { .. } => None,
    };
    let stores = CredentialManager::new(&config, options.allow_plaintext_token_store).policy_stores();
    let pins = |upstream: &str| stores.of(upstream, &format!("{}{PIN}", shipped::PREFIX)) as Arc<dyn PolicyStore>;
    super::runtime()?.block_on(async {
        match command {
            ToolsCommand::Diff { upstream, json, .. } => {
                let mut all = Vec::new();
                for name in pinned(&config, upstream.as_deref())? {
                    all.extend(
                        differences(&*pins(&name)).await?.into_iter().map(|(label, it)| (name.clone(), label, it)),
                    );
                }
                show(&all, json)
            }
            ToolsCommand::Approve { upstream, names, options, .. } => {
                pinned(&config, Some(&upstream))?;
                approve(&*pins(&upstream), &upstream, &names).await?;
                refresh(&options.gateway, &upstream).await
            }
        }
    })
}

/// The upstreams whose entries are pinned: this one, or all.
fn pinned(config: &Config, only: Option<&str>) -> anyhow::Result<Vec<String>> {
    let is_pinned = |upstream: &&crate::config::UpstreamConfig| {
        upstream.policies.iter().any(|policy| policy.component == PolicyComponent::Shipped(PIN.to_owned()))
    };
    let names = config.upstreams.iter().filter(is_pinned).map(|upstream| upstream.name.to_string());
    let names: Vec<String> = names.filter(|name| only.is_none_or(|only| only == name)).collect();
    match only {
        Some(only) if !config.upstreams.iter().any(|upstream| upstream.name.as_str() == only) => {
            let known = config.upstreams.iter().map(|upstream| upstream.name.as_str());
            Err(BadConfig(suggestion::unknown("upstream", only, known)).into())
        }
        Some(only) if names.is_empty() => {
            bail!("nothing of an upstream `{only}` is pinned: it has no policy `weir:pin`")
        }
        _ => Ok(names),
    }
}

/// What differs, by label.
async fn differences(pins: &dyn PolicyStore) -> anyhow::Result<BTreeMap<String, Difference>> {
    let mut all = BTreeMap::new();
    for key in pins.keys("changed/").await.map_err(told)? {
        let Some((_, share)) = key.split_once('/') else { continue };
        let approved = read(pins, &format!("approved/{share}")).await?.0;
        for (label, now) in read(pins, &key).await?.0 {
            let pinned = approved.get(&label).and_then(Value::as_str).map(str::to_owned);
            let now = now.as_str().unwrap_or_default().to_owned();
            all.insert(label, Difference { share: share.to_owned(), pinned, now });
        }
    }
    Ok(all)
}

fn show(all: &[(String, String, Difference)], as_json: bool) -> anyhow::Result<ExitCode> {
    let document = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    if as_json {
        let entry = |(upstream, label, it): &(String, String, Difference)| {
            json!({ "upstream": upstream, "entry": label, "pinned": it.pinned.as_deref().map(document),
                    "now": document(&it.now) })
        };
        terminal::put_json(&serde_json::to_string_pretty(&all.iter().map(entry).collect::<Vec<_>>())?)?;
    } else if all.is_empty() {
        terminal::say("Everything says what it said when it was pinned.")?;
    }
    for (upstream, label, it) in all.iter().filter(|_| !as_json) {
        let Some(pinned) = &it.pinned else {
            terminal::say(format_args!("{upstream}  {label}  is new\n  + {}", it.now))?;
            continue;
        };
        terminal::say(format_args!("{upstream}  {label}  has changed"))?;
        let (old, new) = (document(pinned), document(&it.now));
        let (Value::Object(old), Value::Object(new)) = (&old, &new) else {
            terminal::say("  It is too long to be kept; only its hash is.")?;
            continue;
        };
        for line in lines(old, new) {
            terminal::say(line)?;
        }
    }
    Ok(if all.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The members that differ.
fn lines(old: &Map<String, Value>, new: &Map<String, Value>) -> Vec<String> {
    let mut lines = Vec::new();
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys.into_iter().filter(|key| old.get(*key) != new.get(*key)) {
        lines.extend(old.get(key).map(|value| format!("  - {key}: {value}")));
        lines.extend(new.get(key).map(|value| format!("  + {key}: {value}")));
    }
    lines
}

async fn approve(pins: &dyn PolicyStore, upstream: &str, names: &[String]) -> anyhow::Result<()> {
    let waiting = differences(pins).await?;
    let is_named =
        |label: &str, name: &str| label == name || label.split_once('/').is_some_and(|(_, bare)| bare == name);
    for name in names {
        if !waiting.keys().any(|label| is_named(label, name)) {
            let hint = suggestion::hint(name, waiting.keys().map(String::as_str));
            bail!("`{name}` waits for no approval; {hint}; `weir tools diff {upstream}` shows what does");
        }
    }
    for (label, it) in waiting {
        if names.is_empty() || names.iter().any(|name| is_named(&label, name)) {
            change(pins, &format!("approved/{}", it.share), |all| {
                drop(all.insert(label.clone(), it.now.clone().into()))
            })
            .await?;
            // What it says by now may be something else again: that still waits.
            change(pins, &format!("changed/{}", it.share), |all| {
                if all.get(&label).and_then(Value::as_str) == Some(&it.now) {
                    all.remove(&label);
                }
            })
            .await?;
            let local = Caller::local();
            let record = AuthRecord::of(Some(local.principal()), None).at(upstream);
            AuthRecord { entry: Some(&label), ..record }.done("entry approved");
            terminal::say(format_args!("{upstream}  {label}  is approved"))?;
        }
    }
    Ok(())
}

/// Changes a value, whoever else writes there.
async fn change(pins: &dyn PolicyStore, key: &str, mut how: impl FnMut(&mut Map<String, Value>)) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let (mut all, when) = read(pins, key).await?;
        how(&mut all);
        match pins.set(key, Value::Object(all).to_string().into_bytes(), 0, when).await {
            Err(PolicyStoreError::Changed) => {}
            written => return written.map(drop).map_err(told),
        }
    }
    bail!("others write there all the time; try again")
}

/// A value, and the condition to replace just that.
async fn read(pins: &dyn PolicyStore, key: &str) -> anyhow::Result<(Map<String, Value>, PolicyStoreCondition)> {
    let Some((value, version)) = pins.get(key).await.map_err(told)? else {
        return Ok((Map::new(), PolicyStoreCondition::Absent));
    };
    Ok((serde_json::from_slice(&value)?, PolicyStoreCondition::Version(version)))
}

fn told(error: PolicyStoreError) -> anyhow::Error {
    match error {
        PolicyStoreError::Changed => anyhow::anyhow!("somebody else has changed it; try again"),
        PolicyStoreError::Limit(text) | PolicyStoreError::Unavailable(text) => anyhow::anyhow!("{text}"),
    }
}

/// Has the gateway that runs, if one does, fetch the lists anew.
async fn refresh(gateway: &RunningGateway, upstream: &str) -> anyhow::Result<ExitCode> {
    let told = gateway.ask(&gateway.socket()?, Method::POST, &format!("/refresh/{upstream}")).await;
    if let Err(why) = told {
        terminal::complain(format_args!("No gateway was told ({why:#}); the next that starts will see it."));
    }
    Ok(ExitCode::SUCCESS)
}

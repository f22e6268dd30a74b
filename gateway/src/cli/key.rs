//! `weir key`: the API keys that programs call with. A gateway that runs with the same store notices at once what is done
//! here.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::ensure;
use clap::{Args, Subcommand};

use crate::{
    caller::Caller,
    config::{Config, UpstreamName, default_file, period},
    credential::{ApiKey, ApiKeys, CredentialManager},
    telemetry::{self, AuthRecord},
};

use super::{suggestion, terminal};

/// The longest name of a key or a group, in bytes.
const MAX_NAME: usize = 256;
/// The most groups of a key.
const MAX_GROUPS: usize = 200;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Make a key and print it, this once.
    ///
    /// The key alone goes to standard output. Ends with 1 if there is a key of this name.
    Add {
        /// What to call it: letters, digits, `-`, `_` and `.`. It is who calls with it.
        name: String,
        /// An upstream that it opens, at `/mcp/<upstream>`; several of them; all upstreams, on every address, if none is named.
        #[arg(long, value_name = "UPSTREAM")]
        endpoint: Vec<String>,
        /// A group that whoever calls with it belongs to; several of them.
        #[arg(long)]
        group: Vec<String>,
        /// A scope that it has; several of them.
        #[arg(long)]
        scope: Vec<String>,
        /// When it expires, such as `90d`; never, if that is left out.
        #[arg(long, value_name = "DURATION", value_parser = period)]
        expires: Option<Duration>,
        #[command(flatten)]
        options: KeyOptions,
    },
    /// List all keys: what they are for, and when they were used last. Needs no key of the store.
    List {
        /// As JSON, with times in seconds since 1970.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: KeyOptions,
    },
    /// Take a key back. A running gateway refuses it within a second.
    ///
    /// Ends with 1 if there is none of this name.
    Revoke {
        /// The key, as `weir key list` calls it
        name: String,
        #[command(flatten)]
        options: KeyOptions,
    },
}

#[derive(Args, Debug)]
pub(super) struct KeyOptions {
    /// The configuration, as for `weir serve`.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    /// The store is plain text.
    #[arg(long)]
    allow_plaintext_token_store: bool,
}

pub(super) fn run(command: KeyCommand) -> anyhow::Result<ExitCode> {
    let _log = telemetry::start("warn");
    let (KeyCommand::Add { options, .. } | KeyCommand::List { options, .. } | KeyCommand::Revoke { options, .. }) =
        &command;
    let config = super::load(&options.config)?;
    let _audit = match command {
        KeyCommand::Add { .. } | KeyCommand::Revoke { .. } => super::audit::start(&config)?,
        KeyCommand::List { .. } => None,
    };
    let keys = CredentialManager::new(&config, options.allow_plaintext_token_store).api_keys();
    super::runtime()?.block_on(async {
        match command {
            KeyCommand::Add { name, endpoint, group, scope, expires, .. } => {
                let mut key = ApiKey::named(&name, now());
                (key.endpoints, key.groups, key.scopes) = (endpoint, group, scope);
                key.expires = expires.map(|period| key.created.saturating_add(period.as_secs()));
                add(&config, &keys, key).await
            }
            KeyCommand::List { json, .. } => list(&keys, json).await,
            KeyCommand::Revoke { name, .. } => {
                ensure!(keys.revoke(&name).await?, "there is no key `{name}`; `weir key list` shows those there are");
                note(&name, "key revoked");
                terminal::say(format_args!("The key {name} opens nothing any more."))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

async fn add(config: &Config, keys: &ApiKeys, key: ApiKey) -> anyhow::Result<ExitCode> {
    let is_name = |name: &str| {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(letter)
    };
    ensure!(is_name(&key.name), "a name is made of letters, digits, `-`, `_` and `.`, at most {MAX_NAME} of them");
    let is_group = |group: &String| !group.is_empty() && group.len() <= MAX_NAME;
    ensure!(
        key.groups.len() <= MAX_GROUPS && key.groups.iter().all(is_group),
        "a key has at most {MAX_GROUPS} groups of at most {MAX_NAME} bytes"
    );
    // RFC 6749 §3.3.
    let is_scope = |scope: &String| {
        !scope.is_empty() && scope.bytes().all(|byte| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e))
    };
    ensure!(key.scopes.iter().all(is_scope), "a scope has no blanks, quotes or backslashes in it");
    for endpoint in &key.endpoints {
        ensure!(is_name(endpoint), "`{endpoint}` cannot be an upstream: name one, without `/mcp/`");
        if !config.endpoints().any(|name| name.as_str() == endpoint) {
            let known = config.endpoints().map(UpstreamName::as_str);
            let unknown = suggestion::unknown("upstream", endpoint, known);
            terminal::complain(format_args!("{unknown}; the key opens it once it is there"));
        }
    }
    let name = key.name.clone();
    let text = keys.add(key).await?;
    note(&name, "key added");
    terminal::say(text.expose())?;
    eprintln!("This is shown once. Clients send it as `Authorization: Bearer …` or as `X-API-Key`.");
    if !config.api_keys {
        eprintln!("It opens nothing yet: write `api_keys = true` into {}.", config.file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// For the log and the audit log: whoever has the store is of this machine.
fn note(name: &str, what: &str) {
    let local = Caller::local();
    AuthRecord { key: Some(name), ..AuthRecord::of(Some(local.principal()), None) }.done(what);
}

async fn list(keys: &ApiKeys, json: bool) -> anyhow::Result<ExitCode> {
    let all = keys.list().await?;
    if json {
        terminal::put_json(&format!("{:#}", serde_json::Value::from(all.iter().map(as_json).collect::<Vec<_>>())))?;
        return Ok(ExitCode::SUCCESS);
    }
    if all.is_empty() {
        terminal::say("There is no key. `weir key add NAME` makes one.")?;
    }
    let width = all.iter().map(|key| key.name.len()).max().unwrap_or(0);
    for key in &all {
        let opens = if key.endpoints.is_empty() { "all upstreams".to_owned() } else { key.endpoints.join(", ") };
        let expires = match key.expires {
            Some(_) if key.is_expired(now()) => "expired".to_owned(),
            Some(at) => format!("until {}", date(at)),
            None => "no end".to_owned(),
        };
        let used = key.used.map_or_else(|| "never used".to_owned(), |at| format!("used {}", date(at)));
        let list = |name: &str, all: &[String]| match all {
            [] => String::new(),
            all => format!("  {name}: {}", telemetry::printable(&all.join(", "))),
        };
        let (groups, scopes) = (list("groups", &key.groups), list("scopes", &key.scopes));
        terminal::say(format_args!("{:width$}  {expires:17}  {used:16}  {opens}{groups}{scopes}", key.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(key: &ApiKey) -> serde_json::Value {
    let ApiKey { name, endpoints, groups, scopes, created, expires, used, .. } = key;
    serde_json::json!({
        "name": name, "endpoints": endpoints, "groups": groups, "scopes": scopes,
        "created": created, "expires": expires, "used": used,
    })
}

fn now() -> SystemTime {
    SystemTime::now()
}

/// A day as HTTP writes it: `06 Nov 1994` (RFC 9110 §5.6.7).
fn date(seconds: u64) -> String {
    let whole = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
    whole.get(5..16).unwrap_or(&whole).to_owned()
}

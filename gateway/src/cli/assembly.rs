//! From a configuration to upstreams that are ready to be reached: loads every policy, checks what it may do, and gives
//! each upstream the ones that decide about it.

use std::sync::Arc;

use anyhow::{Context, bail};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::{
    config::{self, Auth, Config},
    credential::{CredentialManager, UpstreamAuth},
    http::HttpClient,
    policy::{Engine, Policy, PolicyGrant, PolicySource, shipped},
    quota::Quota,
    snapshot::Snapshot,
    upstream::{CredentialSource, Services, Upstream, UpstreamParts},
};

use super::BadConfig;

/// What a configuration comes to.
pub(super) struct Assembly {
    /// What the gateway runs on.
    pub(super) snapshot: Arc<Snapshot>,
    /// What decides about each, for `weir check`.
    pub(super) decisions: Vec<Decisions>,
    /// Kept alive as long as its policies.
    pub(super) _engine: Engine,
}

/// Who decides about one upstream.
pub(super) struct Decisions {
    pub(super) connection: String,
    pub(super) credentials: Option<String>,
    /// The forward proxy that requests go through.
    pub(super) proxy: Option<String>,
}

/// Loads everything. Without a credential manager nobody can sign in anywhere.
///
/// # Errors
///
/// Everything that is wrong, one line each.
pub(super) fn assemble(config: &Config, manager: Option<&CredentialManager>) -> Result<Assembly, BadConfig> {
    let engine = Engine::new(config.cache_dir.as_deref(), config.limits.policy);
    let engine = engine.map_err(|why| BadConfig(format!("the policy engine cannot be started: {why:#}")))?;
    let client = HttpClient::new().limited(config.limits.connections.upstream);
    let processes = Quota::new("processes", config.limits.processes);
    let shared = (&client, &processes, &Arc::new(Semaphore::new(config.limits.concurrent_starts)));
    let (mut upstreams, mut decisions, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for entry in config.upstreams.iter().filter(|upstream| upstream.enabled) {
        match prepare(config, entry, &engine, shared, manager) {
            Ok((upstream, decided)) => {
                upstreams.push(Arc::new(upstream));
                decisions.push(decided);
            }
            Err(why) => problems.push(format!("{why:#}")),
        }
    }
    if !problems.is_empty() {
        return Err(BadConfig(problems.join("\n")));
    }
    let snapshot = Snapshot::new(upstreams, config.limits.clone());
    let snapshot = Arc::new(snapshot.governed(config.access.as_ref(), &config.toolsets));
    Ok(Assembly { snapshot, decisions, _engine: engine })
}

fn prepare(
    config: &Config,
    entry: &config::UpstreamConfig,
    engine: &Engine,
    (client, processes, starts): (&HttpClient, &Arc<Quota>, &Arc<Semaphore>),
    manager: Option<&CredentialManager>,
) -> anyhow::Result<(Upstream, Decisions)> {
    let account = manager.and_then(|manager| manager.account(entry.name.as_str())).cloned();
    let (mut connection, mut credentials) = (None, None);
    for written in &entry.policies {
        let place = format!("{}:{}: upstream `{}`", config.file.display(), written.line, entry.name);
        let policy = load(engine, client, written).with_context(|| place.clone())?;
        if policy.decides_connections() && connection.replace(policy.clone()).is_some() {
            bail!("{place}: a second policy decides about connections; one is enough");
        }
        if policy.decides_credentials() {
            let secrets = written.secrets.clone();
            // Where nothing is said of a login, a component of one's own has all the say.
            let account = account.clone().filter(|account| account.is_configured());
            let (owner, proved) = (entry.owner, config.proves_callers());
            let source = CredentialSource { policy, secrets, account, owner, proved };
            if credentials.replace(source).is_some() {
                bail!("{place}: a second policy decides about credentials; one is enough");
            }
        }
    }
    let credentials = match credentials {
        Some(own) => Some(own),
        None => {
            let is_login = matches!(entry.auth, Auth::OAuth(_));
            if entry.owner == config::LoginOwner::Principal && !is_login {
                let file = config.file.display();
                bail!(
                    "{file}: upstream `{}`: `owner = \"principal\"` goes with a login, or with a policy that decides \
                     about credentials, which none of its policies does",
                    entry.name
                );
            }
            usual(entry, engine, account)?
        }
    };
    let connection = match connection {
        Some(own) => own,
        None => ship(engine, "fallback", shipped::FALLBACK, String::new())?,
    };
    let decided = (connection.name().to_owned(), credentials.as_ref().map(|source| source.policy.name().to_owned()));
    let (processes, starts) = (Arc::clone(processes), Arc::clone(starts));
    let limits = config.limits.clone();
    let parts = UpstreamParts { config: entry.clone(), connection, credentials, processes, starts, limits };
    let upstream = Upstream::new(parts, client).with_context(|| format!("upstream `{}`", entry.name))?;
    let proxy = upstream.forward_proxy().map(ToString::to_string);
    Ok((upstream, Decisions { connection: decided.0, credentials: decided.1, proxy }))
}

/// What decides about the credentials of an upstream that has no component for it.
fn usual(
    entry: &config::UpstreamConfig,
    engine: &Engine,
    account: Option<Arc<UpstreamAuth>>,
) -> anyhow::Result<Option<CredentialSource>> {
    let owner = config::LoginOwner::Shared;
    Ok(match (&entry.auth, account) {
        (Auth::Bearer(source), _) => {
            let settings = json!({ "source": source.to_string() }).to_string();
            let secrets = vec![("token".to_owned(), source.clone())];
            let policy = ship(engine, "bearer", shipped::BEARER, settings)?;
            Some(CredentialSource { policy, secrets, account: None, owner, proved: false })
        }
        (_, Some(account)) => {
            let mut settings = serde_json::Map::new();
            if let Some(renew_before) = account.renew_before() {
                settings.insert("renew_before".to_owned(), renew_before.as_secs().into());
            }
            if !account.is_configured() {
                settings.insert("only_if_refused".to_owned(), true.into());
            }
            let policy = ship(engine, "oauth", shipped::OAUTH, serde_json::Value::from(settings).to_string())?;
            Some(CredentialSource { policy, secrets: Vec::new(), account: Some(account), owner, proved: false })
        }
        (_, None) => None,
    })
}

/// One of the policies that the binary carries.
fn ship(engine: &Engine, name: &str, wasm: &'static [u8], settings: String) -> anyhow::Result<Policy> {
    Ok(engine.load(PolicySource { name, wasm: wasm.into(), grants: &[], settings, service: None })?)
}

fn load(engine: &Engine, client: &HttpClient, written: &config::PolicyConfig) -> anyhow::Result<Policy> {
    let name = written.component.display().to_string();
    let wasm = std::fs::read(&written.component).with_context(|| format!("policy `{name}` cannot be read"))?;
    let grants = written.grants.iter().map(|grant| grant.parse::<PolicyGrant>()).collect::<Result<Vec<_>, _>>()?;
    let services = Services::new(client.clone(), written.http.clone());
    Ok(engine.load(PolicySource {
        name: &name,
        wasm: wasm.into(),
        grants: &grants,
        settings: written.settings.clone(),
        service: Some(Arc::new(services)),
    })?)
}

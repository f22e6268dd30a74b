//! From a configuration to upstreams that are ready to be reached: loads every policy, checks what it may do, and gives
//! each upstream the ones that decide about it.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_flow::UpstreamState;

use crate::{
    components::ComponentCache,
    config::{self, Auth, Config, Limits, PolicyComponent},
    credential::{CredentialManager, PolicyStores, UpstreamAuth},
    http::HttpClient,
    policy::{CallInterest, CallPolicy, Engine, Policy, PolicyGrant, PolicySource, QuestionRecorder, shipped},
    quota::Quota,
    snapshot::Snapshot,
    upstream::{CredentialSource, Services, Upstream, UpstreamParts},
};

use super::{BadConfig, terminal};

/// How long a start waits for policies that have to be compiled or fetched. It is enough for those that were before.
const FIRST_LOAD: Duration = Duration::from_secs(2);

/// What makes upstreams of configurations, one after the other.
pub(super) struct Assembler {
    engine: Engine,
    client: HttpClient,
    processes: Arc<Quota>,
    starts: Arc<Semaphore>,
    concurrent_starts: AtomicUsize,
    stores: PolicyStores,
    components: ComponentCache,
}

/// What a configuration comes to.
pub(super) struct Assembly {
    /// What the gateway runs on.
    pub(super) snapshot: Arc<Snapshot>,
    /// The enabled upstreams, in the order of the configuration.
    pub(super) upstreams: Vec<AssembledUpstream>,
}

/// One upstream, what it was made of, and what decides about it.
#[derive(Clone)]
pub(super) struct AssembledUpstream {
    pub(super) upstream: Arc<Upstream>,
    pub(super) source: UpstreamSource,
    /// For `weir check`.
    pub(super) decisions: Decisions,
}

/// What an upstream is made of. Equal sources make equal upstreams.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct UpstreamSource {
    config: config::UpstreamConfig,
    /// The SHA-256 of each of its policies; none if it cannot be read.
    policies: Vec<Option<[u8; 32]>>,
}

/// Who decides about one upstream.
#[derive(Clone, serde::Serialize)]
pub(super) struct Decisions {
    pub(super) connection: String,
    pub(super) credentials: Option<String>,
    pub(super) calls: Vec<String>,
    /// The forward proxy that requests go through.
    pub(super) proxy: Option<String>,
}

/// An upstream whose policies were not loaded when Weir began to listen.
pub(super) struct PendingUpstream {
    name: config::UpstreamName,
    loading: JoinHandle<anyhow::Result<AssembledUpstream>>,
}

impl PendingUpstream {
    /// Its name, and what it is once its policies are loaded. Waits for that.
    pub(super) fn wait(self) -> (config::UpstreamName, anyhow::Result<AssembledUpstream>) {
        let panicked = |_| Err(anyhow::anyhow!("upstream `{}`: its policies could not be loaded", self.name));
        let loaded = self.loading.join().unwrap_or_else(panicked);
        (self.name, loaded)
    }

    fn is_done(&self, until: Instant) -> bool {
        while !self.loading.is_finished() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// Loads everything.
///
/// # Errors
///
/// Everything that is wrong, one line each.
pub(super) fn assemble(config: &Config, manager: &CredentialManager) -> Result<Assembly, BadConfig> {
    let _waiting = terminal::waiting("loading policies");
    Assembler::new(config, manager)?.assemble(config, &manager.accounts(), &[])
}

impl Assembler {
    /// Takes the limits on what upstreams share from a configuration.
    ///
    /// # Errors
    ///
    /// When policies cannot run here.
    pub(super) fn new(config: &Config, manager: &CredentialManager) -> Result<Self, BadConfig> {
        let engine = Engine::new(config.cache_dir.as_deref(), config.limits.policy);
        let processes = Quota::new("processes", config.limits.processes);
        processes.resize_own(config.limits.own.shares("processes", |own| own.processes));
        Ok(Self {
            engine: engine.map_err(|why| BadConfig(format!("the policy engine cannot be started: {why:#}")))?,
            client: HttpClient::new().limited(config.limits.connections.upstream),
            processes,
            starts: Arc::new(Semaphore::new(config.limits.concurrent_starts)),
            concurrent_starts: config.limits.concurrent_starts.into(),
            stores: manager.policy_stores(),
            components: ComponentCache::new(config.cache_dir.as_deref()),
        })
    }

    /// Takes those limits from a configuration that can change while Weir serves.
    pub(super) fn resize(&self, limits: &Limits) {
        self.processes.resize(limits.processes);
        self.processes.resize_own(limits.own.shares("processes", |own| own.processes));
        let before = self.concurrent_starts.swap(limits.concurrent_starts, Ordering::Relaxed);
        self.starts.add_permits(limits.concurrent_starts.saturating_sub(before));
        if let Ok(fewer @ 1..) = u32::try_from(before.saturating_sub(limits.concurrent_starts)) {
            let taken = Arc::clone(&self.starts).acquire_many_owned(fewer);
            // Those that are starting give theirs back first. A start has an end, and so does this.
            tokio::spawn(async move { taken.await.map(OwnedSemaphorePermit::forget) });
        }
    }

    /// From now on has the questions recorded that a configuration names.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub(super) fn record(&self, config: &Config) -> Result<(), BadConfig> {
        let Some(record) = &config.record else {
            self.engine.record(None);
            return Ok(());
        };
        let recorder = QuestionRecorder::start(record).map_err(|why| {
            BadConfig(format!("questions for policies cannot be recorded in {}: {why}", record.path.display()))
        })?;
        self.engine.record(Some(recorder));
        Ok(())
    }

    /// Loads everything but those `known` upstreams that would be the same.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, one line each.
    pub(super) fn assemble(
        &self,
        config: &Config,
        accounts: &[Arc<UpstreamAuth>],
        known: &[AssembledUpstream],
    ) -> Result<Assembly, BadConfig> {
        Self::assembled(config, |entry| {
            let source = UpstreamSource::of(entry);
            match known.iter().find(|known| known.is_of(&source)) {
                Some(same) => Ok(same.clone()),
                None => self.prepared(config, entry, accounts),
            }
        })
    }

    /// Loads everything that takes no longer than [`FIRST_LOAD`], and goes on with the rest: those upstreams open nothing
    /// until they are replaced.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, as far as that is known by then.
    pub(super) fn begin(
        self: &Arc<Self>,
        config: &Config,
        accounts: &[Arc<UpstreamAuth>],
    ) -> Result<(Assembly, Vec<PendingUpstream>), BadConfig> {
        let until = Instant::now() + FIRST_LOAD;
        let with_policies = config.upstreams.iter().filter(|entry| entry.enabled && !entry.policies.is_empty());
        let mut loading: Vec<_> = with_policies.map(|entry| self.load_aside(config, entry, accounts)).collect();
        let mut pending = Vec::new();
        let assembly = Self::assembled(config, |entry| {
            let Some(at) = loading.iter().position(|one| one.name == entry.name) else {
                return self.prepared(config, entry, accounts);
            };
            let one = loading.swap_remove(at);
            if one.is_done(until) {
                return one.wait().1;
            }
            pending.push(one);
            self.held(config, entry)
        })?;
        Ok((assembly, pending))
    }

    /// Loads the policies of an upstream on a thread of its own.
    fn load_aside(
        self: &Arc<Self>,
        config: &Config,
        entry: &config::UpstreamConfig,
        accounts: &[Arc<UpstreamAuth>],
    ) -> PendingUpstream {
        let (assembler, name) = (Arc::clone(self), entry.name.clone());
        let (config, entry, accounts) = (config.clone(), entry.clone(), accounts.to_vec());
        PendingUpstream { name, loading: thread::spawn(move || assembler.prepared(&config, &entry, &accounts)) }
    }

    /// An upstream that opens nothing, in the place of one whose policies are being loaded.
    fn held(&self, config: &Config, entry: &config::UpstreamConfig) -> anyhow::Result<AssembledUpstream> {
        tracing::info!(upstream = %entry.name, "policies are being compiled; until then nothing is sent to this upstream");
        let without = config::UpstreamConfig {
            policies: Vec::new(),
            auth: Auth::None,
            owner: Default::default(),
            ..entry.clone()
        };
        let held = self.prepared(config, &without, &[])?;
        held.upstream
            .hold(UpstreamState::Connecting, "its policies are being compiled; try again in some seconds".to_owned());
        Ok(AssembledUpstream { source: UpstreamSource::of(entry), ..held })
    }

    fn prepared(
        &self,
        config: &Config,
        entry: &config::UpstreamConfig,
        accounts: &[Arc<UpstreamAuth>],
    ) -> anyhow::Result<AssembledUpstream> {
        let source = UpstreamSource::of(entry);
        let (upstream, decisions) = self.prepare(config, entry, accounts)?;
        Ok(AssembledUpstream { upstream: Arc::new(upstream), source, decisions })
    }

    /// All enabled upstreams as they are `made`.
    fn assembled(
        config: &Config,
        mut made: impl FnMut(&config::UpstreamConfig) -> anyhow::Result<AssembledUpstream>,
    ) -> Result<Assembly, BadConfig> {
        let (mut upstreams, mut problems) = (Vec::new(), Vec::new());
        for entry in config.upstreams.iter().filter(|upstream| upstream.enabled) {
            match made(entry) {
                Ok(upstream) => upstreams.push(upstream),
                Err(why) => problems.push(format!("{why:#}")),
            }
        }
        if !problems.is_empty() {
            return Err(BadConfig(problems.join("\n")));
        }
        let all = upstreams.iter().map(|assembled| Arc::clone(&assembled.upstream));
        Ok(Assembly { snapshot: snapshot(config, all), upstreams })
    }

    fn prepare(
        &self,
        config: &Config,
        entry: &config::UpstreamConfig,
        accounts: &[Arc<UpstreamAuth>],
    ) -> anyhow::Result<(Upstream, Decisions)> {
        let Self { engine, processes, starts, .. } = self;
        let account = accounts.iter().find(|account| account.name() == entry.name.as_str()).cloned();
        let (mut connection, mut credentials, mut calls) = (None, None, Vec::new());
        for written in &entry.policies {
            let place = format!("{}:{}: upstream `{}`", config.file.display(), written.line, entry.name);
            let policy = self.load(entry.name.as_str(), written).with_context(|| place.clone())?;
            if policy.decides_connections() && connection.replace(policy.clone()).is_some() {
                bail!("{place}: a second policy decides about connections; one is enough");
            }
            if policy.decides_calls() {
                let interest = wants(&policy).with_context(|| place.clone())?;
                calls.push(CallPolicy::new(policy.clone(), interest, written.mode, written.on_failure));
            } else if (written.mode, written.on_failure) != Default::default() {
                bail!("{place}: `mode` and `on_failure` are for policies that decide about calls; this one does not");
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
            None => ship(engine, "fallback", shipped::FALLBACK.wasm(), String::new())?,
        };
        let decided =
            (connection.name().to_owned(), credentials.as_ref().map(|source| source.policy.name().to_owned()));
        let decided_calls = calls.iter().map(|policy| policy.name().to_owned()).collect();
        let (processes, starts) = (Arc::clone(processes), Arc::clone(starts));
        let limits = config.limits.clone();
        let parts = UpstreamParts { config: entry.clone(), connection, credentials, calls, processes, starts, limits };
        let upstream = Upstream::new(parts, &self.client).with_context(|| format!("upstream `{}`", entry.name))?;
        let proxy = upstream.forward_proxy().map(ToString::to_string);
        Ok((upstream, Decisions { connection: decided.0, credentials: decided.1, calls: decided_calls, proxy }))
    }

    /// The policy that an upstream's configuration names, with what it is granted.
    fn load(&self, upstream: &str, written: &config::PolicyConfig) -> anyhow::Result<Policy> {
        let name = written.component.name();
        let (wasm, grants) = match &written.component {
            PolicyComponent::File(path) => {
                let wasm = std::fs::read(path).with_context(|| format!("policy `{name}` cannot be read"))?;
                let grants = written.grants.iter().map(|grant| grant.parse()).collect::<Result<Vec<_>, _>>()?;
                (Cow::from(wasm), grants)
            }
            PolicyComponent::Remote(component) => {
                let grants = written.grants.iter().map(|grant| grant.parse()).collect::<Result<Vec<_>, _>>()?;
                (Cow::from(self.components.read(component)?), grants)
            }
            // Whoever trusts the binary trusts what it carries.
            PolicyComponent::Shipped(name) => (Cow::from(shipped::by_name(name)?), PolicyGrant::ALL.to_vec()),
        };
        if let Some(signer) = &written.signed_by {
            self.components.verify(&written.component, &wasm, signer)?;
        }
        let store = self.stores.of(upstream, &written.store_name());
        let service = Arc::new(Services::new(self.client.clone(), written));
        let settings = written.settings.clone();
        let (service, store) = (Some(service as _), Some(store as _));
        Ok(self.engine.load(PolicySource { name: &name, wasm, grants: &grants, settings, service, store })?)
    }
}

impl Assembly {
    /// Tests the policies of upstreams that are not among the `known`, which a reload is about to put in force.
    ///
    /// # Errors
    ///
    /// Each upstream whose policies give no answer, one line each.
    pub(super) async fn test_policies(&self, known: &[AssembledUpstream]) -> Result<(), String> {
        let mut problems = Vec::new();
        for AssembledUpstream { upstream, .. } in &self.upstreams {
            let is_new = known.iter().all(|known| !Arc::ptr_eq(&known.upstream, upstream));
            if is_new && let Err(why) = upstream.test_policies().await {
                problems.push(format!("upstream `{}`: {why}", upstream.name()));
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
    }
}

impl AssembledUpstream {
    /// Whether it is what this source would make. One whose policies could not be used may be another by now.
    pub(super) fn is_of(&self, source: &UpstreamSource) -> bool {
        self.source == *source && !self.upstream.has_unusable_policies()
    }
}

impl UpstreamSource {
    /// What an entry of the configuration makes of it.
    pub(super) fn of(entry: &config::UpstreamConfig) -> Self {
        let mut config = entry.clone();
        for policy in &mut config.policies {
            // Where it is written changes nothing.
            policy.line = 0;
        }
        let digest = |policy: &config::PolicyConfig| {
            std::fs::read(policy.component.file()?).ok().map(|wasm| Sha256::digest(wasm).into())
        };
        let policies = entry.policies.iter().map(digest).collect();
        Self { config, policies }
    }
}

/// What a gateway with these upstreams runs on.
pub(super) fn snapshot(config: &Config, upstreams: impl Iterator<Item = Arc<Upstream>>) -> Arc<Snapshot> {
    let snapshot = Snapshot::new(upstreams, config.limits.clone());
    Arc::new(snapshot.governed(config))
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
            let policy = ship(engine, "bearer", shipped::BEARER.wasm(), settings)?;
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
            let policy = ship(engine, "oauth", shipped::OAUTH.wasm(), serde_json::Value::from(settings).to_string())?;
            Some(CredentialSource { policy, secrets: Vec::new(), account: Some(account), owner, proved: false })
        }
        (_, None) => None,
    })
}

/// What a policy wants to see of calls. It is asked on a thread of its own: upstreams are made wherever there may be a
/// runtime at work.
fn wants(policy: &Policy) -> anyhow::Result<CallInterest> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let asked = thread::scope(|scope| scope.spawn(|| runtime.block_on(policy.wants())).join());
    Ok(asked.map_err(|_| anyhow::anyhow!("the policy `{}` could not be asked", policy.name()))??)
}

/// A policy that decides unless the operator brings another.
fn ship(engine: &Engine, name: &str, wasm: &'static [u8], settings: String) -> anyhow::Result<Policy> {
    Ok(engine.load(PolicySource { name, wasm: wasm.into(), grants: &[], settings, service: None, store: None })?)
}

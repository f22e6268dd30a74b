//! A changed configuration comes into force while Weir serves.
//!
//! The file is read again on SIGHUP, and when it has changed. A file that cannot be used changes nothing. Upstreams whose
//! entries are what they were are carried over, with everything that they have open.

use std::{
    fs, mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use weir_flow::UpstreamState;

use crate::{
    components::signature_file,
    config::{Config, PolicyConfig, Problem, UpstreamName},
    credential::CredentialManager,
    open_files,
    proxy::Proxy,
    quota::Quota,
    server::{
        admin::{ReloadReport, ReloadRequest},
        listen::ListenSettings,
    },
    telemetry_export::TelemetrySettings,
};

use super::{
    assembly::{self, AssembledUpstream, Assembler, PendingUpstream, UpstreamSource},
    serve::listen_limits,
};

/// How often the file is looked at. What is read twice alike is taken for what its writer wanted.
const LOOK: Duration = Duration::from_secs(2);

/// Why a file is not looked at.
const UNREAD: &str = "the file could not be looked at; try again";

/// What reloads the configuration.
pub(super) struct Reloader {
    path: PathBuf,
    /// What is in force, as it was read.
    config: Config,
    assembler: Arc<Assembler>,
    upstreams: Vec<AssembledUpstream>,
    /// Those of them that open nothing yet.
    pending: Vec<PendingUpstream>,
    manager: Arc<CredentialManager>,
    /// When the policies in force were written.
    policies: Vec<PolicyState>,
    settings: ServerSettings,
    /// Why the last reload has changed nothing, for `weir status`.
    failure: watch::Sender<Option<String>>,
}

/// What of the server a configuration changes while it serves.
#[derive(Clone)]
pub(super) struct ServerSettings {
    pub(super) listen: Arc<ListenSettings>,
    /// None where no token is checked.
    pub(super) introspections: Option<Arc<Quota>>,
    pub(super) telemetry: TelemetrySettings,
}

impl ServerSettings {
    fn apply(&self, config: &Config) {
        let mut limits = config.limits.clone();
        limits.connections = open_files::connections(limits.connections, open_files::raise());
        self.listen.resize(listen_limits(&limits));
        if let Some(introspections) = &self.introspections {
            introspections.resize(limits.introspections);
        }
        self.telemetry.apply(config.telemetry.clone());
    }
}

/// When a policy was written, and its length; none if it cannot be read.
type PolicyState = Option<(SystemTime, u64)>;

/// What the configuration was when it was looked at.
#[derive(PartialEq)]
struct FileContent {
    /// Or why it cannot be used.
    config: Result<Config, String>,
    policies: Vec<PolicyState>,
}

impl FileContent {
    async fn read(path: &Path) -> Option<Self> {
        let path = path.to_owned();
        tokio::task::spawn_blocking(move || Self::read_now(&path)).await.ok()
    }

    fn read_now(path: &Path) -> Self {
        let config = Config::load(path).map_err(|problems| problems.to_string());
        Self { policies: config.as_ref().map(policy_states).unwrap_or_default(), config }
    }
}

/// What the policies of a configuration are now.
pub(super) fn policy_states(config: &Config) -> Vec<PolicyState> {
    let state = |path: PathBuf| {
        let data = fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len()))
    };
    let files = |policy: &PolicyConfig| {
        let signature = policy.signed_by.as_ref().and_then(|_| signature_file(policy.component.file()?).into());
        [policy.component.file().map(Path::to_owned), signature].map(|file| file.and_then(state))
    };
    config.upstreams.iter().flat_map(|upstream| &upstream.policies).flat_map(files).collect()
}

impl Reloader {
    /// For what is in force now, with policies as they were before they were loaded; none where no file says it.
    pub(super) fn new(
        (config, policies): (Config, Vec<PolicyState>),
        assembler: Arc<Assembler>,
        (upstreams, pending): (Vec<AssembledUpstream>, Vec<PendingUpstream>),
        manager: &Arc<CredentialManager>,
        settings: ServerSettings,
    ) -> Option<Self> {
        let path = Some(config.file.clone()).filter(|path| !path.as_os_str().is_empty())?;
        let (manager, failure) = (Arc::clone(manager), watch::Sender::default());
        Some(Self { path, config, assembler, upstreams, pending, manager, policies, settings, failure })
    }

    /// Why the last reload has changed nothing; none if it has not failed.
    pub(super) fn failure(&self) -> watch::Receiver<Option<String>> {
        self.failure.subscribe()
    }

    /// Reloads whenever the file has changed, and when it is `asked` to, until `stop` turns true. Ends when what reloads have
    /// left is closed.
    pub(super) async fn run(
        mut self,
        proxy: Arc<Proxy>,
        asked: mpsc::Receiver<ReloadRequest>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut closing = JoinSet::new();
        tokio::select! {
            () = self.watch(&proxy, asked, &mut closing) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        closing.join_all().await;
    }

    async fn watch(&mut self, proxy: &Arc<Proxy>, mut asked: mpsc::Receiver<ReloadRequest>, closing: &mut JoinSet<()>) {
        let mut loading = JoinSet::new();
        for pending in mem::take(&mut self.pending) {
            loading.spawn_blocking(|| pending.wait());
        }
        // What has changed since Weir read it is a change too.
        let policies = mem::take(&mut self.policies);
        let mut known = Some(FileContent { config: Ok(self.config.clone()), policies });
        let mut before = None;
        loop {
            let request = tokio::select! {
                asked = asked.recv() => match asked {
                    Some(request) => Some(request),
                    None => return,
                },
                Some(Ok((name, loaded))) = loading.join_next() => {
                    self.finish(&name, loaded, proxy, closing).await;
                    continue;
                }
                () = tokio::time::sleep(LOOK) => None,
            };
            while closing.try_join_next().is_some() {}
            let now = FileContent::read(&self.path).await;
            let answer = match request {
                Some(ReloadRequest { is_preview: true, answer }) => {
                    let changes = now.as_ref().map_or_else(|| Err(UNREAD.to_owned()), |now| self.preview(now));
                    drop(answer.map(|answer| answer.send(changes)));
                    continue;
                }
                Some(ReloadRequest { answer, .. }) => answer,
                None if now != known && now == before => None,
                None => {
                    before = now;
                    continue;
                }
            };
            let changes = match &now {
                Some(now) => self.take(now, proxy, closing).await,
                None => Err(UNREAD.to_owned()),
            };
            if let Err(why) = &changes {
                tracing::error!("the configuration is not reloaded, and what was in force stays so:\n{why}");
                super::audit::note_refused_configuration(&self.path, why);
            }
            self.failure.send_replace(changes.as_ref().err().cloned());
            drop(answer.map(|answer| answer.send(changes)));
            known = now;
        }
    }

    /// Puts an upstream in force whose policies were not loaded when Weir began to listen, if it is still wanted so.
    async fn finish(
        &mut self,
        name: &UpstreamName,
        loaded: anyhow::Result<AssembledUpstream>,
        proxy: &Arc<Proxy>,
        closing: &mut JoinSet<()>,
    ) {
        let held = self.upstreams.iter_mut().find(|held| held.upstream.key() == name && held.upstream.is_held());
        let Some(held) = held else { return };
        match loaded {
            Ok(loaded) if loaded.source == held.source => {
                // A reload may have changed it meanwhile.
                loaded.upstream.limit_lists(self.config.limits.list);
                *held = loaded;
            }
            Ok(_) => return,
            Err(why) => {
                let why = format!("its policies cannot be used: {why:#}");
                tracing::error!(upstream = %name, "{why}");
                return held.upstream.hold(UpstreamState::Error, why);
            }
        }
        let all = self.upstreams.iter().map(|assembled| Arc::clone(&assembled.upstream));
        let retired = proxy.swap(assembly::snapshot(&self.config, all)).await;
        let proxy = Arc::clone(proxy);
        closing.spawn(async move { proxy.close(retired).await });
        tracing::info!(upstream = %name, "policies are compiled and in force");
    }

    /// What would change if a configuration came into force.
    fn preview(&self, content: &FileContent) -> Result<ReloadReport, String> {
        let config = content.config.clone()?;
        self.check_guards(&config)?;
        let (config, restart) = self.reloadable(config);
        Ok(self.changes(&config, restart))
    }

    /// Puts a configuration in force, or says why it cannot be.
    async fn take(
        &mut self,
        content: &FileContent,
        proxy: &Arc<Proxy>,
        closing: &mut JoinSet<()>,
    ) -> Result<ReloadReport, String> {
        let config = content.config.clone()?;
        self.check_guards(&config)?;
        let (config, restart) = self.reloadable(config);
        for key in &restart {
            tracing::warn!("`{key}` has changed, which takes effect when Weir is started again");
        }
        let changes = self.changes(&config, restart);
        let (assembler, known) = (Arc::clone(&self.assembler), self.upstreams.clone());
        let is_known = |name: &str| {
            let entry = config.upstreams.iter().find(|upstream| upstream.name.as_str() == name);
            entry.is_some_and(|entry| known.iter().any(|known| known.is_of(&UpstreamSource::of(entry))))
        };
        let accounts = self.manager.accounts_of(&config, is_known);
        let assembled = tokio::task::spawn_blocking(move || {
            let assembly = assembler.assemble(&config, &accounts, &known).map_err(|why| why.to_string())?;
            Ok::<_, String>((config, accounts, assembly))
        });
        let (config, accounts, assembly) = assembled.await.map_err(|why| why.to_string())??;
        assembly.test_policies(&self.upstreams).await?;
        if config.record != self.config.record {
            self.assembler.record(&config).map_err(|why| why.to_string())?;
        }
        self.assembler.resize(&config.limits);
        assembly.upstreams.iter().for_each(|assembled| assembled.upstream.limit_lists(config.limits.list));
        self.settings.apply(&config);
        self.manager.put(accounts);
        let retired = proxy.swap(assembly.snapshot).await;
        let proxy = Arc::clone(proxy);
        closing.spawn(async move { proxy.close(retired).await });
        super::audit::note_configuration(&config);
        let is_known = |new: &Problem| self.config.warnings.iter().any(|known| known.message == new.message);
        for warning in config.warnings.iter().filter(|warning| !is_known(warning)) {
            tracing::warn!("{warning}");
        }
        (self.config, self.upstreams) = (config, assembly.upstreams);
        let [added, changed, removed] =
            [&changes.added, &changes.changed, &changes.removed].map(|names| names.join(", "));
        tracing::info!(added, changed, removed, "the configuration was reloaded");
        Ok(changes)
    }

    /// What a configuration changes of what is in force.
    fn changes(&self, new: &Config, restart: Vec<&'static str>) -> ReloadReport {
        let (mut added, mut changed) = (Vec::new(), Vec::new());
        let enabled = || new.upstreams.iter().filter(|upstream| upstream.enabled);
        for entry in enabled() {
            match self.upstreams.iter().find(|before| *before.upstream.key() == entry.name) {
                None => added.push(entry.name.to_string()),
                Some(before) if !before.is_of(&UpstreamSource::of(entry)) => changed.push(entry.name.to_string()),
                Some(_) => {}
            }
        }
        let names = self.upstreams.iter().map(|before| before.upstream.key());
        let gone = names.filter(|name| enabled().all(|entry| entry.name != **name));
        let removed = gone.map(ToString::to_string).collect();
        let (access, toolsets) = (new.access != self.config.access, new.toolsets != self.config.toolsets);
        let (record, limits) = (new.record != self.config.record, new.limits != self.config.limits);
        let telemetry = new.telemetry != self.config.telemetry;
        ReloadReport { added, changed, removed, access, toolsets, record, telemetry, limits, restart }
    }

    /// Refuses a configuration that changes who is let in, or what is recorded of them. What is new in it may be meant for
    /// those callers alone.
    fn check_guards(&self, new: &Config) -> Result<(), String> {
        let now = &self.config;
        let guards = [
            ("listen", new.listen == now.listen),
            ("tls", new.tls == now.tls),
            ("allowed_hosts", new.allowed_hosts == now.allowed_hosts),
            ("allowed_origins", new.allowed_origins == now.allowed_origins),
            ("auth", new.inbound == now.inbound),
            ("api_keys", new.api_keys == now.api_keys),
            ("authorization_server", new.authorization_server == now.authorization_server),
            ("audit", new.audit == now.audit),
        ];
        let changed: Vec<_> =
            guards.iter().filter(|(_, is_same)| !is_same).map(|(key, _)| format!("`{key}`")).collect();
        if changed.is_empty() {
            return Ok(());
        }
        Err(format!(
            "a change of {} takes effect when Weir is started again, and all that was written with it",
            changed.join(", ")
        ))
    }

    /// A configuration as far as it can come into force now, and the keys that cannot.
    fn reloadable(&self, mut new: Config) -> (Config, Vec<&'static str>) {
        let now = &self.config;
        let mut fixed = Vec::new();
        let mut keep = |key: &'static str, is_same: bool| {
            if !is_same {
                fixed.push(key);
            }
        };
        keep("console", new.console == now.console);
        keep("public_url", new.public_url == now.public_url);
        keep("client_metadata_url", new.client_metadata_url == now.client_metadata_url);
        keep("store", new.store == now.store);
        keep("admin", new.admin == now.admin);
        keep("replica", new.replica == now.replica);
        let (limits, fixed_limits) = now.limits.reloaded(&new.limits);
        fixed.extend(fixed_limits);
        let Config { public_url, client_metadata_url, store, admin, replica, cache_dir, console, .. } = now.clone();
        (new.public_url, new.client_metadata_url, new.store) = (public_url, client_metadata_url, store);
        (new.limits, new.admin, new.replica, new.cache_dir) = (limits, admin, replica, cache_dir);
        new.console = console;
        (new, fixed)
    }
}

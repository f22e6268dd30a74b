//! `weir serve`: from a configuration to a gateway that listens, and to its end.

use std::{
    io::{self, IsTerminal},
    net::SocketAddr,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use parking_lot::Mutex;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, JoinSet},
};
use url::Url;

use crate::{
    catalog::Catalog,
    config::{AdminConfig, Config, Limits},
    credential::{ApiKeys, CredentialManager, CredentialOwner},
    open_files,
    proxy::Proxy,
    server::{
        App,
        admin::{self, Admin, AdminSocket, ReloadRequest},
        admin_port::AdminPort,
        authn::{self, Authenticator},
        authorization::AuthorizationServer,
        connect::Connect,
        listen::{ListenLimits, ListenSettings, Listener, TlsFiles},
        notify,
        origin_check::OriginCheck,
        process::{self, ListenFds},
        upgrade::{self, Fds},
    },
    session::{SessionRegistry, Sessions},
    sign_in_links::{self, SignInLinks},
    snapshot::Snapshot,
    task::{self, always},
    telemetry::LiveView,
    telemetry_export::{TelemetryExport, TelemetrySettings},
    upstream::Upstream,
};

use super::{
    BadConfig,
    assembly::Assembler,
    handover::{leave_sessions, take_sessions},
    log_options::LogOptions,
    reload::{self, Reloader, ServerSettings},
    replica::{self, ReplicaListener},
    running, summary,
};

/// How long a child process or session that clients share is kept when nobody uses it.
const IDLE_PROCESS: Duration = Duration::from_secs(5 * 60);

pub(super) fn run(
    path: &Path,
    listen: Option<SocketAddr>,
    upgrade: bool,
    plaintext: bool,
    log: &LogOptions,
) -> anyhow::Result<ExitCode> {
    let config = super::load(path)?;
    let here = listen.is_none_or(|address| address.ip().is_loopback());
    anyhow::ensure!(here, "--listen takes an address of this machine; `listen` in {} takes any", path.display());
    gateway(config, listen, upgrade, plaintext, log)
}

/// Serves a configuration until a signal ends it; at `listen` if that is given. `upgrade` to take the sockets of the
/// process that does so now, `plaintext` to keep logins unprotected.
pub(super) fn gateway(
    written: Config,
    listen: Option<SocketAddr>,
    upgrade: bool,
    plaintext: bool,
    log: &LogOptions,
) -> anyhow::Result<ExitCode> {
    let mut config = written.clone();
    config.listen = listen.map_or(config.listen, |address| vec![address]);
    let shows_table = log.shows_table();
    let log = log.start();
    let view = shows_table.then(|| log.live());
    let _audit = super::audit::serve(&config)?;
    super::audit::note_configuration(&config);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let wanted = config.limits.connections;
    config.limits.connections = open_files::connections(wanted, open_files::raise());
    if config.limits.connections.total < wanted.total {
        let (most, wanted) = (config.limits.connections.total, wanted.total);
        tracing::info!(
            "{most} connections of clients at once instead of {wanted}: the system allows too few open files (ulimit -n)"
        );
    }
    let manager = CredentialManager::new(&config, plaintext);
    let policies = reload::policy_states(&config);
    let assembler = Arc::new(Assembler::new(&config, &manager)?);
    let accounts = manager.accounts();
    // The process that serves now has all policies. The new one takes over when it has them too.
    let (assembly, pending) = match upgrade {
        true => (assembler.assemble(&config, &accounts, &[])?, Vec::new()),
        false => assembler.begin(&config, &accounts)?,
    };
    assembler.record(&config)?;
    if let Some(why) = super::check_key(&manager)? {
        return Err(BadConfig(why).into());
    }
    // All that may fail comes before the sockets: the process that hands them over ends with that.
    let callers = Authenticator::new(&config, &manager).context("the tokens of callers cannot be checked")?;
    let authorization = AuthorizationServer::new(&config, &callers).context("Weir cannot issue tokens")?;
    let listener = Listener::new(config.tls.as_ref())?;
    let gateways = ReplicaListener::bind(&config, &manager)?;
    let inherited = if upgrade {
        let path = upgrade::path(&config).context("the login store has no place, which sockets are handed over at")?;
        match running::process_id(&config) {
            Some(id) => {
                upgrade::request(id).with_context(|| format!("process {id} cannot be asked for its sockets"))?
            }
            None => tracing::warn!("the gateway that runs cannot be found; send it SIGQUIT within some seconds"),
        }
        upgrade::receive(&path)?
    } else {
        Fds::new()
    };
    let listener = listener.bind(&config.listen, inherited)?;
    let snapshot = assembly.snapshot;
    let settings = ServerSettings {
        listen: ListenSettings::new(listen_limits(&config.limits)),
        introspections: callers.introspections().cloned(),
        telemetry: TelemetrySettings::default(),
    };
    settings.telemetry.apply(config.telemetry.clone());
    let upstreams = (assembly.upstreams, pending);
    let reloader = Reloader::new((written, policies), assembler, upstreams, &manager, settings.clone());
    process::run(|sockets| async move {
        let parts = (snapshot, reloader, settings);
        serve(&config, (listener, sockets), parts, (callers, authorization), (&manager, gateways, view)).await
    })
    .context("the gateway met a fault in weir")??;
    Ok(ExitCode::SUCCESS)
}

async fn serve(
    config: &Config,
    (listener, sockets): (Listener, ListenFds),
    (snapshot, reloader, settings): (Arc<Snapshot>, Option<Reloader>, ServerSettings),
    (callers, authorization): (Authenticator, Option<AuthorizationServer>),
    (manager, gateways, view): (&Arc<CredentialManager>, Option<ReplicaListener>, Option<LiveView>),
) -> anyhow::Result<()> {
    let (reload, asked) = mpsc::channel(1);
    let hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be waited for")?;
    let hangups = tokio::spawn(hear_hangups(hangup, io::stdin().is_terminal(), reload.clone()));
    let addresses = listener.addresses().to_vec();
    let root = authn::root(config, addresses.first().copied().context("there is no address to listen on")?);
    let certificate = tokio::spawn(task::or_never(listener.tls().cloned().map(TlsFiles::follow)));
    let keys = callers.api_keys().cloned();
    let registry = gateways.as_ref().and_then(ReplicaListener::registry).cloned();
    let (app, proxy) = app(config, snapshot, (callers, authorization), (manager, registry), &root);
    read_store(&proxy, keys.as_deref(), manager).await;
    let catalog = Arc::clone(proxy.catalog());
    let (shutdown, ended) = watch::channel(false);

    // Whoever reads that Weir listens may stop it at once.
    let mut stop = StopSignals::new()?;
    announce(config.tls.is_some(), &addresses, &proxy);
    catalog.start().await;
    let background = tokio::spawn(look_after(Arc::clone(manager), Arc::clone(&proxy), keys));
    let reload_failure = reloader.as_ref().map(Reloader::failure);
    let (reloads, stopped) = watch::channel(false);
    let reloading = reloader.map(|reloader| tokio::spawn(reloader.run(Arc::clone(&proxy), asked, stopped)));
    let summary = tokio::spawn(summary::run(format!("{root}/mcp"), Arc::clone(&proxy), view));
    let start = |gateways: ReplicaListener| gateways.start(&app, proxy.sessions(), settings.listen.limits());
    let running = Arc::new(Mutex::new(gateways.map(start)));
    let leave = leave_sessions((&app, &proxy), manager, &running, &settings.listen);
    let (listening, listened) = (Arc::clone(&settings.listen), Arc::clone(&settings.listen));
    let handing_over = upgrade::hand_over(upgrade::path(config), ListenFds::clone(&sockets), leave, move || {
        listening.close_after_answers();
    });
    let at = (config.file.as_path(), format!("{root}/mcp"));
    let admin = Arc::new(Admin::new(Arc::clone(&app), Arc::clone(manager), at, (reload, reload_failure)));
    let measured = Arc::clone(&admin);
    let telemetry = TelemetryExport::start(settings.telemetry, Arc::new(move || measured.otlp_metrics()));
    let (port, admin) = listen_for_operators(config, &admin);
    let serving = tokio::spawn(listener.serve(Arc::clone(&app), settings.listen, sockets, ended));
    notify::ready();

    let is_replaced = has_to_end(&mut stop, handing_over, hangups).await?;
    match is_replaced {
        // What the service manager watches by now is the process that took the sockets.
        true => proxy.hand_over(),
        false => notify::stopping(),
    }
    tracing::info!("stopping: running calls may finish, new ones are refused");
    app.drain();
    // The process that takes over may have the address.
    if let Some(shutdown) = port {
        shutdown.send_replace(true);
    }
    [certificate, summary].iter().for_each(JoinHandle::abort);
    reloads.send_replace(true);
    shutdown.send_replace(true);
    let drained = async {
        let drain = listened.limits().drain;
        let (serving, ()) = tokio::join!(serving, replica::drain(&proxy, drain, running));
        serving.context("the listener failed")
    };
    tokio::select! {
        ended = drained => ended?,
        () = stop.next() => {}
    }
    background.abort();
    if let Some((_socket, shutdown)) = admin {
        shutdown.send_replace(true);
    }
    tokio::select! {
        () = close(&catalog, &proxy, reloading) => {}
        () = stop.next() => {}
    }
    write_store(&proxy, manager).await;
    telemetry.close().await;
    tracing::info!("stopped");
    Ok(())
}

/// Waits for what ends a gateway. True if another process has its sockets by then.
async fn has_to_end(
    stop: &mut StopSignals,
    handing_over: impl Future<Output = io::Result<()>>,
    hangups: JoinHandle<()>,
) -> anyhow::Result<bool> {
    tokio::select! {
        () = stop.next() => Ok(false),
        done = handing_over => done.map(|()| true).context("SIGQUIT cannot be waited for"),
        gone = hangups => Ok(gone.map(|()| false)?),
    }
}

/// Takes what the process before has left in the store. What cannot be read stops nothing. That a shared store is away is
/// told by those who look at it all the time.
async fn read_store(proxy: &Arc<Proxy>, keys: Option<&ApiKeys>, manager: &Arc<CredentialManager>) {
    if let Some(keys) = keys
        && let Err(why) = keys.read().await
        && !(manager.is_shared() && why.is_away())
    {
        tracing::error!("API keys open nothing until they can be read: {why}");
    }
    if let Err(why) = manager.read_calls(proxy.admission().budget()).await
        && !(manager.is_shared() && why.is_away())
    {
        tracing::error!("the calls of today cannot be read, and count anew: {why}");
    }
    take_sessions(proxy, manager).await;
}

/// Leaves what the next process counts on.
async fn write_store(proxy: &Proxy, manager: &CredentialManager) {
    if let Err(why) = manager.write_calls(proxy.admission().budget()).await {
        tracing::error!("the last calls of today are not counted: {why}");
    }
    if let Some(registry) = proxy.registry() {
        registry.replicas().withdraw().await;
    }
    manager.close().await;
}

/// Ends what it was given for when it is true, or dropped.
type ShutdownSender = watch::Sender<bool>;

fn announce(is_secure: bool, addresses: &[SocketAddr], proxy: &Proxy) {
    let scheme = if is_secure { "https" } else { "http" };
    for address in addresses {
        tracing::info!("listening on {scheme}://{address}");
    }
    for upstream in proxy.snapshot().upstreams() {
        if let Some(proxy) = upstream.forward_proxy() {
            tracing::info!(upstream = %upstream.name(), %proxy, "requests to this upstream go through a forward proxy");
        }
    }
}

/// Answers operators until what comes back is dropped. A gateway that they cannot ask serves all the same.
fn listen_for_operators(
    config: &Config,
    admin: &Arc<Admin>,
) -> (Option<ShutdownSender>, Option<(AdminSocket, ShutdownSender)>) {
    let port = config.admin.clone().map(|port| listen_for_programs(port, Arc::clone(admin)));
    (port, listen_at_socket(config, Arc::clone(admin)))
}

fn listen_at_socket(config: &Config, admin: Arc<Admin>) -> Option<(AdminSocket, ShutdownSender)> {
    // Where no file is served, nobody could say which gateway is meant.
    let path = admin::path(config).filter(|_| !config.file.as_os_str().is_empty())?;
    let (socket, listener) = AdminSocket::bind(&path)
        .inspect_err(|why| tracing::warn!("`weir status` cannot ask this gateway: {path}: {why}"))
        .ok()?;
    let (shutdown, ended) = watch::channel(false);
    tokio::spawn(listener.serve(
        admin,
        ListenSettings::new(Admin::limits()),
        ListenFds::new(Mutex::new(Fds::new())),
        ended,
    ));
    Some((socket, shutdown))
}

/// Answers programs at an address until what comes back is dropped. During an upgrade the old process has it for a while.
fn listen_for_programs(AdminConfig { listen, token }: AdminConfig, admin: Arc<Admin>) -> ShutdownSender {
    let (shutdown, ended) = watch::channel(false);
    tokio::spawn(async move {
        let mut has_told = false;
        let listener = loop {
            match Listener::new(None).and_then(|listener| listener.bind(&[listen], Fds::new())) {
                Ok(listener) => break listener,
                Err(why) if ended.has_changed().is_err() => {
                    return tracing::debug!(error = %why, "nobody asked at `admin.listen`");
                }
                Err(why) if !std::mem::replace(&mut has_told, true) => {
                    tracing::warn!(error = %why, "`admin.listen` cannot be had; Weir tries again each second");
                }
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        for address in listener.addresses() {
            tracing::info!("metrics and status are at http://{address}");
        }
        let port = Arc::new(AdminPort::new(admin, token));
        let settings = ListenSettings::new(Admin::limits());
        listener.serve(port, settings, ListenFds::new(Mutex::new(Fds::new())), ended).await;
    });
    shutdown
}

/// What answers requests, and the proxy behind it.
fn app(
    config: &Config,
    snapshot: Arc<Snapshot>,
    (callers, authorization): (Authenticator, Option<AuthorizationServer>),
    (manager, registry): (&Arc<CredentialManager>, Option<Arc<SessionRegistry>>),
    root: &str,
) -> (Arc<App>, Arc<Proxy>) {
    let limits = snapshot.limits();
    let sessions = Arc::new(Sessions::new(limits.sessions, limits.session_idle, limits.replay_buffer));
    let gateway = registry.as_ref().map(|registry| registry.replicas().me().id.as_str());
    let links = Arc::new(SignInLinks::new(root).of_gateway(gateway));
    if callers.are_local() || callers.are_proved() {
        manager.set_page(links.page(), callers.are_local());
    }
    let connect = Connect::new(config, Arc::clone(manager), Arc::clone(&links), &callers);
    // By its own public name, which is in the links to it, it is always called.
    let mut hosts = config.allowed_hosts.clone();
    hosts.extend(Url::parse(root).ok().and_then(|url| Some(url.host_str()?.to_owned())));
    let guard = OriginCheck::new(&hosts, &config.allowed_origins);
    let proxy = Proxy::new(Catalog::new(snapshot), sessions).signing_in(Arc::clone(manager), links);
    let proxy = match registry {
        Some(registry) => proxy.sharing(registry),
        None => proxy.knowing(replica::processes(config, manager)),
    };
    let proxy = Arc::new(proxy);
    (Arc::new(App::new(Arc::clone(&proxy), guard, callers, connect, authorization)), proxy)
}

pub(super) const fn listen_limits(limits: &Limits) -> ListenLimits {
    ListenLimits {
        connections: limits.connections,
        bodies: limits.body_memory,
        header_timeout: limits.header_timeout,
        body_timeout: limits.body_timeout,
        idle_timeout: limits.idle_timeout,
        drain: limits.drain,
    }
}

/// What goes on beside the calls for as long as the gateway serves.
async fn look_after(manager: Arc<CredentialManager>, proxy: Arc<Proxy>, keys: Option<Arc<ApiKeys>>) {
    let sign_ins = || {
        let proxy = Arc::clone(&proxy);
        async move { proxy.announce_sign_ins().await }
    };
    let approvals = || {
        let proxy = Arc::clone(&proxy);
        async move { proxy.announce_approvals().await }
    };
    tokio::join!(
        always("watching logins", || look_out(Arc::clone(&manager), Arc::clone(proxy.catalog()))),
        always("watching API keys", || watch_keys(keys.clone())),
        always("sharing limits", || share_limits(Arc::clone(&manager), Arc::clone(&proxy))),
        always("counting calls", || count_calls(Arc::clone(&manager), Arc::clone(&proxy))),
        always("announcing sign-ins", sign_ins),
        always("announcing approvals", approvals),
        always("ending what nobody uses", || reap(Arc::clone(&proxy))),
        replica::look_after(Arc::clone(&proxy)),
    );
}

/// Has limits hold for all gateways at a shared store together.
async fn share_limits(manager: Arc<CredentialManager>, proxy: Arc<Proxy>) {
    let Some(gateway) = sign_in_links::random() else { return };
    manager.share_limits(&gateway, || proxy.admission()).await;
}

async fn count_calls(manager: Arc<CredentialManager>, proxy: Arc<Proxy>) {
    manager.keep_calls(proxy.admission().budget()).await;
}

async fn watch_keys(keys: Option<Arc<ApiKeys>>) {
    if let Some(keys) = keys {
        keys.look_out().await;
    }
}

/// Ends what is open at the upstreams, and every process. Those that are starting may take a while to clean up.
async fn close(catalog: &Catalog, proxy: &Arc<Proxy>, reloading: Option<JoinHandle<()>>) {
    catalog.stop().await;
    // All at once, for each may take as long as its upstream is silent.
    let mut ending = JoinSet::new();
    for session in proxy.sessions().all() {
        let proxy = Arc::clone(proxy);
        ending.spawn(async move { proxy.leave(&session).await });
    }
    ending.join_all().await;
    proxy.stop().await;
    // What reloads have left.
    if let Some(reloading) = reloading {
        drop(reloading.await);
    }
    let stop = |upstream: &Arc<Upstream>| {
        let upstream = Arc::clone(upstream);
        async move { upstream.stop().await }
    };
    proxy.snapshot().upstreams().map(stop).collect::<JoinSet<()>>().join_all().await;
}

/// Has upstreams reached again that waited for a login when one comes, made here or by `weir auth login`, and those whose
/// login has gone.
async fn look_out(manager: Arc<CredentialManager>, catalog: Arc<Catalog>) {
    let mut changes = manager.changes();
    let waiting = async {
        while changes.changed().await.is_ok() {
            for upstream in catalog.snapshot().upstreams() {
                let account = manager.account(upstream.name()).filter(|account| !account.is_personal());
                let gone = match account {
                    Some(account) => {
                        account.state(&CredentialOwner::Shared).await.is_ok_and(|state| state.standing.is_wanting())
                    }
                    None => false,
                };
                if gone != upstream.status().state.wants_login() {
                    catalog.poke(upstream);
                }
            }
        }
    };
    tokio::join!(manager.look_out(), waiting);
}

/// Ctrl-C and SIGTERM. Once this is made, they do not end the process by themselves any more.
pub(super) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Resolves when the next one comes.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Has the configuration reloaded with each SIGHUP, which by default would cut off every call. Ends when the terminal is
/// gone that this was started at: then nobody is left to press Ctrl-C.
async fn hear_hangups(mut hangup: Signal, at_terminal: bool, reload: mpsc::Sender<ReloadRequest>) {
    while hangup.recv().await.is_some() {
        if at_terminal && !io::stdin().is_terminal() {
            break;
        }
        let (answer, answered) = oneshot::channel();
        match reload.try_send(ReloadRequest { is_preview: false, answer: Some(answer) }) {
            Err(mpsc::error::TrySendError::Closed(_)) => tracing::warn!("there is no file to reload"),
            // One that waits is as good as two.
            Err(mpsc::error::TrySendError::Full(_)) => {}
            Ok(()) => {
                notify::reloading();
                tokio::spawn(async {
                    drop(answered.await);
                    notify::ready();
                });
            }
        }
    }
}

/// Ends sessions whose clients are gone and shared processes that nobody uses.
async fn reap(proxy: Arc<Proxy>) {
    loop {
        tokio::time::sleep(proxy.sessions().tick()).await;
        let mut ending = JoinSet::new();
        for session in proxy.sessions().expired() {
            let proxy = Arc::clone(&proxy);
            ending.spawn(async move { proxy.end(&session).await });
        }
        ending.join_all().await;
        proxy.sessions().memory().expire();
        proxy.reap(IDLE_PROCESS).await;
        for upstream in proxy.snapshot().upstreams() {
            upstream.reap(IDLE_PROCESS).await;
        }
    }
}

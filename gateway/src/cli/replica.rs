//! The address for other gateways at the same store; of a gateway that is alone, for the process that takes over from it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::{
    config::Config,
    credential::{CredentialManager, Replica},
    proxy::Proxy,
    quota::Shares,
    replica::Replicas,
    server::{
        App, ReplicaPort,
        listen::{ListenError, ListenLimits, ListenSettings, Listener},
        process::ListenFds,
        upgrade::{self, Fds},
    },
    session::{SessionRegistry, Sessions},
    task::always,
};

/// How long until something is tried again that cannot be had yet.
const AGAIN: Duration = Duration::from_secs(1);

/// How long until an address is tried again that another process has.
const BIND_AGAIN: Duration = Duration::from_millis(20);

/// How often it is looked whether what runs has ended.
const LOOK: Duration = Duration::from_millis(50);

/// How much longer than its calls may run the process that takes over knows where this one is.
const KNOWN_LONGER: Duration = Duration::from_secs(60);

/// An address for other gateways, and what they are told.
pub(super) struct ReplicaListener {
    listen: SocketAddr,
    /// None while the process has it that this one takes over from.
    bound: Option<Listener>,
    replicas: Arc<Replicas>,
    /// None if this gateway is alone.
    registry: Option<Arc<SessionRegistry>>,
}

/// One that answers.
pub(super) struct RunningReplica {
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

/// What answers others, once it does.
pub(super) type ReplicaSlot = Arc<Mutex<Option<RunningReplica>>>;

impl ReplicaListener {
    /// Binds the address, if the configuration names one.
    ///
    /// # Errors
    ///
    /// When there is no such address.
    pub(super) fn bind(config: &Config, manager: &CredentialManager) -> anyhow::Result<Option<Self>> {
        let Some((config, store)) = config.replica.as_ref().zip(manager.replica_store()) else { return Ok(None) };
        let listen = config.listen;
        let bound = match bind(listen) {
            Ok(bound) => Some(bound),
            Err(why) if why.is_in_use() => {
                tracing::warn!("`replica.listen` cannot be had yet; Weir keeps trying: {why}");
                None
            }
            Err(why) => return Err(why).context("other gateways cannot reach this one (`replica.listen`)"),
        };
        let address = bound.as_ref().and_then(|bound| bound.addresses().first()).copied().unwrap_or(listen);
        let port = config.port.unwrap_or(address.port());
        let reached = match &config.host {
            Some(host) => format!("{host}:{port}"),
            None => SocketAddr::new(address.ip(), port).to_string(),
        };
        let replicas = Replicas::new(store, &reached).context("the system has no randomness to give")?;
        tracing::info!("other gateways reach this one at {reached}");
        let replicas = Arc::new(replicas);
        let registry = Some(Arc::new(SessionRegistry::new(Arc::clone(&replicas))));
        Ok(Some(Self { listen, bound, replicas, registry }))
    }

    /// Binds an address for the process that takes over from this one, and has it know that.
    ///
    /// # Errors
    ///
    /// When there is none to be had, or the store cannot be written.
    pub(super) async fn bind_here(replicas: &Arc<Replicas>, drain: Duration) -> anyhow::Result<(Self, Replica)> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let bound = bind(listen)?;
        let address = bound.addresses().first().context("it has no address")?.to_string();
        let reached = replicas.announce_at(&address, drain + KNOWN_LONGER).await?;
        Ok((Self { listen, bound: Some(bound), replicas: Arc::clone(replicas), registry: None }, reached))
    }

    pub(super) const fn registry(&self) -> Option<&Arc<SessionRegistry>> {
        self.registry.as_ref()
    }

    /// Answers other gateways until it is [drained](drain).
    pub(super) fn start(self, app: &Arc<App>, sessions: &Arc<Sessions>, limits: ListenLimits) -> RunningReplica {
        let ((stop, ended), app, sessions) = (watch::channel(false), Arc::clone(app), Arc::clone(sessions));
        RunningReplica { stop, serving: tokio::spawn(self.serve(app, sessions, limits, ended)) }
    }

    /// Answers until `ended` turns true and what runs by then is answered.
    async fn serve(self, app: Arc<App>, sessions: Arc<Sessions>, limits: ListenLimits, ended: watch::Receiver<bool>) {
        let had_to_wait = self.bound.is_none();
        let listener = loop {
            match self.secured().await {
                Ok(listener) => break listener,
                Err(_) if *ended.borrow() => return,
                Err(why) => tracing::debug!("other gateways cannot reach this one yet: {why:#}"),
            }
            tokio::time::sleep(AGAIN).await;
        };
        let listener = match self.bound {
            Some(bound) => bound.secured_by(listener),
            None => loop {
                match bind(self.listen) {
                    Ok(bound) => break bound.secured_by(listener),
                    Err(_) if *ended.borrow() => return,
                    // Where nobody has it for longer, this gateway is taken for one that has ended.
                    Err(_) => tokio::time::sleep(BIND_AGAIN).await,
                }
            },
        };
        self.replicas.set_listening(true);
        if let Some(registry) = self.registry.filter(|_| had_to_wait) {
            // Others may have found nobody here in between, and taken sessions over.
            registry.check_all(&sessions);
        }
        let port = Arc::new(ReplicaPort::new(app, self.replicas.me().clone()));
        // All requests come from a few addresses.
        let whole = |shares: Shares| Shares { principal: shares.total, ..shares };
        let settings = ListenSettings::new(ListenLimits {
            connections: whole(limits.connections),
            bodies: whole(limits.bodies),
            ..limits
        });
        listener.serve(port, settings, ListenFds::new(Mutex::new(Fds::new())), ended).await;
        self.replicas.set_listening(false);
    }

    /// How the address is secured.
    async fn secured(&self) -> anyhow::Result<Arc<ServerConfig>> {
        Ok(self.replicas.identity().await?.server()?)
    }
}

/// Tells other gateways of this one and its sessions, for as long as the gateway serves.
pub(super) async fn look_after(proxy: Arc<Proxy>) {
    let Some(registry) = proxy.registry().cloned() else { return };
    let sessions = Arc::clone(proxy.sessions());
    let announce = || {
        let (registry, sessions) = (Arc::clone(&registry), Arc::clone(&sessions));
        async move { registry.replicas().announce(|| async { registry.check_all(&sessions) }).await }
    };
    let write = || {
        let (registry, sessions, proxy) = (Arc::clone(&registry), Arc::clone(&sessions), Arc::clone(&proxy));
        let lost = move |session| {
            let proxy = Arc::clone(&proxy);
            async move { proxy.leave(&session).await }
        };
        async move { registry.write(&sessions, lost).await }
    };
    let share = || {
        let (registry, proxy) = (Arc::clone(&registry), Arc::clone(&proxy));
        async move {
            loop {
                match registry.replicas().store().secret("state-key").await {
                    Ok(secret) => return proxy.share_state(&secret),
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            }
        }
    };
    let copies = sessions.memory().mirror().into_iter().map(|queue| {
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        let (registry, sessions) = (Arc::clone(&registry), Arc::clone(&sessions));
        always("copying streams", move || {
            let (registry, sessions, queue) = (Arc::clone(&registry), Arc::clone(&sessions), Arc::clone(&queue));
            async move { registry.copy(&mut *queue.lock().await, &sessions).await }
        })
    });
    tokio::join!(
        always("sharing the key of states", share),
        always("telling other gateways", announce),
        always("writing sessions down", write),
        copies.collect::<JoinSet<()>>().join_all(),
    );
}

/// The process before this one and the one after it, of a gateway that is alone; none where it cannot be upgraded.
pub(super) fn processes(config: &Config, manager: &CredentialManager) -> Option<Arc<Replicas>> {
    let store = manager.process_store().filter(|_| upgrade::path(config).is_some())?;
    Some(Arc::new(Replicas::new(store, "").ok()?))
}

/// Leaves the sessions that are not busy to other gateways, as long as some are, and then answers these no more. What a call
/// waits for that runs here, such as the answer to a question, still comes in until then.
pub(super) async fn drain(proxy: &Arc<Proxy>, limit: Duration, running: ReplicaSlot) {
    let Some(RunningReplica { stop, serving }) = running.lock().take() else { return };
    let mut leaves = JoinSet::new();
    let answers_come = proxy.is_replaced()
        || match proxy.registry() {
            Some(registry) => {
                let others = tokio::time::timeout(AGAIN, registry.replicas().others()).await;
                others.is_ok_and(|others| !others.is_empty())
            }
            None => false,
        };
    let leaving = async {
        loop {
            for session in proxy.sessions().take_if(|session| session.is_shared() && !session.is_busy()) {
                let proxy = Arc::clone(proxy);
                leaves.spawn(async move { proxy.leave(&session).await });
            }
            while leaves.try_join_next().is_some() {}
            let left = proxy.sessions().list().iter().all(|session| !session.is_shared());
            let runs_copies = proxy.registry().is_some_and(|registry| registry.runs_copies());
            let is_waited_for = answers_come && proxy.is_waited_for();
            if leaves.is_empty() && left && !runs_copies && !is_waited_for {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        if let Some(registry) = proxy.registry() {
            registry.flush_copies(proxy.sessions()).await;
        }
    };
    drop(tokio::time::timeout(limit, leaving).await);
    stop.send_replace(true);
    // Its connections have a time limit of their own, and so has each session that is left.
    drop(serving.await);
    leaves.join_all().await;
    if let Some(replicas) = proxy.replicas().filter(|_| proxy.registry().is_none()) {
        replicas.withdraw().await;
    }
}

fn bind(address: SocketAddr) -> Result<Listener, ListenError> {
    Listener::new(None)?.bind(&[address], Fds::new())
}

//! Sessions go over to the process that takes over (`weir upgrade`).

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::{
    caller::Caller,
    credential::{CredentialManager, Replica, TokenStoreError},
    proxy::Proxy,
    server::{
        App,
        listen::{ListenLimits, ListenSettings},
    },
};

use super::replica::{ReplicaListener, ReplicaSlot};

/// What the store calls them, and what clients carry beside them.
const SESSIONS: &str = "sessions";
const STATE: &str = "state";

/// How long it may take to write them: the process that takes over waits for the sockets some seconds.
const LEAVE: Duration = Duration::from_secs(2);

/// Leaves the sessions for the process that takes over, before it has the sockets. Until this one ends it answers that one
/// for what waits here, by what `running` has then.
pub(super) fn leave_sessions(
    (app, proxy): (&Arc<App>, &Arc<Proxy>),
    manager: &Arc<CredentialManager>,
    running: &ReplicaSlot,
    listen: &Arc<ListenSettings>,
) -> impl Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + use<> {
    let (app, proxy, manager) = (Arc::clone(app), Arc::clone(proxy), Arc::clone(manager));
    let (running, listen) = (Arc::clone(running), Arc::clone(listen));
    move || {
        let (app, proxy, manager) = (Arc::clone(&app), Arc::clone(&proxy), Arc::clone(&manager));
        let (running, limits) = (Arc::clone(&running), listen.limits());
        Box::pin(async move {
            let reached = timeout(LEAVE, listen_to_next(&app, &proxy, &running, limits)).await.ok().flatten();
            leave(&proxy, &manager, reached.as_ref()).await;
        })
    }
}

/// Answers the process that takes over; nothing if nobody waits for anything here, or other gateways are answered already.
async fn listen_to_next(
    app: &Arc<App>,
    proxy: &Arc<Proxy>,
    running: &ReplicaSlot,
    limits: ListenLimits,
) -> Option<Replica> {
    let replicas = proxy.replicas().filter(|_| proxy.registry().is_none())?;
    if proxy.sessions().list().is_empty() && !proxy.is_waited_for() {
        return None;
    }
    match ReplicaListener::bind_here(replicas, limits.drain).await {
        Ok((listener, reached)) => {
            *running.lock() = Some(listener.start(app, proxy.sessions(), limits));
            Some(reached)
        }
        Err(why) => {
            tracing::warn!("calls that wait for their clients' answers end with this process: {why:#}");
            None
        }
    }
}

async fn leave(proxy: &Proxy, manager: &CredentialManager, reached: Option<&Replica>) {
    // Where gateways share sessions, the process that takes over finds them in the store.
    let (values, left_out) = match proxy.registry() {
        Some(_) => (Vec::new(), 0),
        None => proxy.sessions().written(reached),
    };
    if left_out > 0 {
        tracing::warn!(sessions = left_out, "sessions are too large to go over to the next process");
    }
    let kinds = [(STATE, Vec::from_iter(proxy.written_state())), (SESSIONS, values)];
    let leaving = async {
        for (kind, values) in kinds.into_iter().filter(|(_, values)| !values.is_empty()) {
            manager.leave(kind, values).await?;
        }
        Ok::<_, TokenStoreError>(())
    };
    let left = timeout(LEAVE, leaving).await;
    if let Err(why) =
        left.map_err(|_| "the store takes too long".to_owned()).and_then(|left| left.map_err(|why| why.to_string()))
    {
        tracing::warn!("sessions end with this process; their clients open others: {why}");
    }
}

/// Takes the sessions that the process before has left.
pub(super) async fn take_sessions(proxy: &Proxy, manager: &CredentialManager) {
    let state = manager.take_left(STATE).await.unwrap_or_default();
    state.iter().for_each(|value| proxy.add_written_state(value));
    match manager.take_left(SESSIONS).await {
        Ok(values) if values.is_empty() => {}
        Ok(values) => {
            let endpoint = |name: &str, caller: Option<&Arc<Caller>>| proxy.endpoint_of(name, caller);
            let sessions = proxy.sessions().add_written(&values, endpoint, |name| proxy.upstream(name));
            proxy.sessions().list().iter().for_each(|session| proxy.go_on(session));
            tracing::info!(sessions, "sessions of the process before go on");
            if let Some(registry) = proxy.registry() {
                for session in proxy.sessions().list() {
                    if let Err(why) = registry.add(&session, proxy.sessions()).await {
                        tracing::warn!("a session of the process before cannot go on at other gateways: {why}");
                    }
                }
            }
        }
        Err(why) => tracing::warn!("sessions of the process before are lost; their clients open others: {why}"),
    }
}

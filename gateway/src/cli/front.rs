//! The proxy behind a pair of pipes, for one client: `weir connect` gives it standard input and output, and commands that
//! call something are its client themselves.

use std::{io, sync::Arc, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    access::Toolset,
    caller::Caller,
    catalog::Catalog,
    credential::CredentialManager,
    proxy::Proxy,
    quota::Shares,
    server::stdio::{self, StdioLimits},
    session::{Endpoint, Sessions},
    snapshot::Snapshot,
};

/// How long what clients share is kept when nobody uses it.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// A proxy for one client, and the endpoint that the client uses.
pub(super) struct Front {
    proxy: Arc<Proxy>,
    endpoint: Endpoint,
}

impl Front {
    /// The endpoint of the first upstream of a snapshot.
    pub(super) fn of_one(snapshot: Arc<Snapshot>) -> Self {
        let first = snapshot.upstreams().next().map(|upstream| upstream.name().to_owned());
        let Self { proxy, endpoint } = Self::of_all(snapshot);
        let one = first.and_then(|name| proxy.endpoint(&name, Some(&Caller::local())));
        Self { endpoint: one.unwrap_or(endpoint), proxy }
    }

    /// The endpoint of all upstreams together.
    pub(super) fn of_all(snapshot: Arc<Snapshot>) -> Self {
        // There is one client, whose session lasts as long as it does.
        let shares = |total| Shares { total, principal: total, upstream: total };
        let sessions = Arc::new(Sessions::new(shares(2), Duration::MAX, shares(0)));
        let proxy = Arc::new(Proxy::new(Catalog::new(snapshot), sessions));
        Self { proxy, endpoint: Endpoint::Merged(Arc::clone(Toolset::all())) }
    }

    /// Serves the client until its input ends or `stop` resolves, and ends what was started for it.
    ///
    /// # Errors
    ///
    /// When nobody can read the output any more.
    pub(super) async fn serve<I, O>(
        self,
        manager: &Arc<CredentialManager>,
        limits: StdioLimits,
        pipes: (I, O),
        stop: impl Future<Output = ()>,
    ) -> io::Result<()>
    where
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin + Send + 'static,
    {
        let Self { proxy, endpoint } = self;
        if endpoint.is_merged() {
            // What several upstreams offer, or what is left of one, is answered from their lists.
            proxy.catalog().start().await;
        }
        let reaping = tokio::spawn(reap(Arc::clone(&proxy)));
        // A login that is made at a terminal is used at once.
        let looking = tokio::spawn({
            let manager = Arc::clone(manager);
            async move { manager.look_out().await }
        });
        let served = stdio::serve(Arc::clone(&proxy), endpoint, pipes, limits, stop).await;
        reaping.abort();
        looking.abort();
        proxy.stop().await;
        proxy.catalog().stop().await;
        for upstream in proxy.snapshot().upstreams() {
            upstream.stop().await;
        }
        manager.close().await;
        served
    }
}

/// Ends what waits for answers that never come.
async fn reap(proxy: Arc<Proxy>) {
    loop {
        tokio::time::sleep(IDLE / 5).await;
        proxy.reap(IDLE).await;
    }
}

//! New connections: every address of a host in turn, plain or with TLS, within one time limit.
//!
//! TLS is pingora's connector. Plain TCP is not, because that connector reads the system's root certificates when it is
//! made, which a gateway with plain upstreams need not have.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use pingora_core::{
    connectors::{ConnectorOptions, TransportConnector},
    protocols::{ALPN, Stream, l4},
    upstreams::peer::HttpPeer,
};
use pingora_rustls::{RootCertStore, load_platform_certs_incl_env_into_store};
use tokio::{
    net::TcpStream,
    sync::OnceCell,
    time::{Instant, timeout, timeout_at},
};

use super::{Error, HttpOrigin, HttpTarget};

/// Makes connections.
#[derive(Clone, Default)]
pub(super) struct Dialer {
    secure: Arc<OnceCell<TransportConnector>>,
}

impl Dialer {
    /// A connection to the first address that takes one.
    pub(super) async fn connect(&self, target: &HttpTarget) -> Result<Stream, Error> {
        let end = Instant::now() + target.timeouts().connect;
        let addresses = timeout_at(end, target.addresses()).await.map_err(|_| Error::Resolve)??;
        let mut failure = Error::Resolve;
        for (tried, &address) in addresses.iter().enumerate() {
            // An address that never answers must leave time for those after it.
            let left = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let patience = end.saturating_duration_since(Instant::now()) / left;
            let connected = if target.origin().https {
                self.secure(target.origin(), address, patience).await
            } else {
                plain(address, patience).await
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn secure(&self, origin: &HttpOrigin, address: SocketAddr, patience: Duration) -> Result<Stream, Error> {
        let connector = self.secure.get_or_try_init(connector).await?;
        let mut peer = HttpPeer::new(address, true, origin.host.clone());
        peer.options.alpn = ALPN::H1;
        let connecting = timeout(patience, connector.new_stream(&peer)).await;
        connecting.map_err(|_| Error::ConnectTimeout)?.map_err(|error| Error::securing(&error))
    }
}

async fn plain(address: SocketAddr, patience: Duration) -> Result<Stream, Error> {
    let connecting = timeout(patience, TcpStream::connect(address)).await;
    let stream = connecting.map_err(|_| Error::ConnectTimeout)?.map_err(|error| Error::connecting(&error))?;
    // A request must not wait for the acknowledgement of the one before.
    stream.set_nodelay(true).map_err(|error| Error::connecting(&error))?;
    Ok(Box::new(l4::stream::Stream::from(stream)))
}

/// Reads files, so it runs where it may block.
async fn connector() -> Result<TransportConnector, Error> {
    let make = || {
        // Pingora panics where these cannot be read; `SSL_CERT_FILE` may name anything.
        let mut roots = RootCertStore::empty();
        load_platform_certs_incl_env_into_store(&mut roots).ok()?;
        (!roots.is_empty()).then(|| TransportConnector::new(Some(ConnectorOptions::new(0))))
    };
    let made = tokio::task::spawn_blocking(make).await.ok().flatten();
    made.ok_or(Error::Tls("the system's root certificates cannot be read; set SSL_CERT_FILE to a PEM file of them"))
}

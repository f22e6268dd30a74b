//! New connections: all addresses of a host in a race, plain or with TLS on the winner, within one time limit.
//!
//! TLS is pingora's connector, which is handed the connection. It is made when first needed: it reads the system's root
//! certificates, which a gateway with plain upstreams need not have.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use pingora_core::{
    connectors::{ConnectorOptions, L4Connect, TransportConnector},
    protocols::{
        ALPN, Stream,
        l4::{self, socket::SocketAddr as PeerAddr},
    },
    upstreams::peer::HttpPeer,
};
use pingora_rustls::{RootCertStore, load_platform_certs_incl_env_into_store};
use tokio::{
    net::TcpStream,
    sync::OnceCell,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{Error, HttpTarget};

/// How long an attempt is alone before the next address is tried beside it (RFC 8305 §5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Makes connections.
#[derive(Clone, Default)]
pub(super) struct Dialer {
    secure: Arc<OnceCell<TransportConnector>>,
}

/// A connection that is there already, for a connector that would make one.
#[derive(Debug)]
struct Connected(Mutex<Option<l4::stream::Stream>>);

impl Dialer {
    /// A connection to the first address that takes one.
    pub(super) async fn connect(&self, target: &HttpTarget) -> Result<Stream, Error> {
        let connected = timeout(target.timeouts().connect, self.dial(target)).await;
        connected.unwrap_or(Err(Error::ConnectTimeout))
    }

    async fn dial(&self, target: &HttpTarget) -> Result<Stream, Error> {
        let origin = target.origin();
        let stream = l4::stream::Stream::from(race(&target.addresses().await?).await?);
        if origin.https { self.secure(&origin.host, stream).await } else { Ok(Box::new(stream)) }
    }

    async fn secure(&self, host: &str, stream: l4::stream::Stream) -> Result<Stream, Error> {
        let connector = self.secure.get_or_try_init(connector).await?;
        // The address is not used: nothing connects any more.
        let mut peer = HttpPeer::new(SocketAddr::from(([0, 0, 0, 0], 0)), true, host.to_owned());
        peer.options.alpn = ALPN::H1;
        peer.options.custom_l4 = Some(Arc::new(Connected(Mutex::new(Some(stream)))));
        connector.new_stream(&peer).await.map_err(|error| Error::securing(&error))
    }
}

#[async_trait]
impl L4Connect for Connected {
    async fn connect(&self, _: &PeerAddr) -> pingora_core::Result<l4::stream::Stream> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        stream.ok_or_else(|| pingora_core::Error::new(pingora_core::ErrorType::ConnectError))
    }
}

/// Happy Eyeballs (RFC 8305): an attempt at each address in turn, beside those before it that have not failed yet.
///
/// How many are under way at once is bounded by the number of addresses.
pub(super) async fn race(addresses: &[SocketAddr]) -> Result<TcpStream, Error> {
    let mut failure = Error::Resolve;
    let mut attempts = JoinSet::new();
    let mut rest = addresses.iter();
    loop {
        match rest.next() {
            Some(&address) => drop(attempts.spawn(TcpStream::connect(address))),
            None if attempts.is_empty() => return Err(failure),
            None => {}
        }
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended.unwrap_or_else(|error| Err(error.into())) {
                Ok(stream) => {
                    // A request must not wait for the acknowledgement of the one before.
                    stream.set_nodelay(true).map_err(|error| Error::connecting(&error))?;
                    return Ok(stream);
                }
                Err(error) => failure = Error::connecting(&error),
            },
            () = sleep(ATTEMPT_DELAY), if rest.len() > 0 => {}
        }
    }
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

//! New connections: all addresses of a host in a race, plain or with TLS on the winner, within one time limit.
//!
//! TLS is pingora's connector, which is handed the connection. It is made when first needed: it reads the system's root
//! certificates, which a gateway with plain upstreams need not have. Other gateways have no certificates: there TLS is
//! rustls with a configuration of its own.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_core::{
    connectors::{ConnectorOptions, L4Connect, TransportConnector},
    protocols::{
        ALPN, Stream,
        l4::{self, socket::SocketAddr as PeerAddr},
        raw_connect::{self, ConnectProxyError},
    },
    upstreams::peer::HttpPeer,
};
use pingora_rustls::{ClientConfig, RootCertStore, ServerName, TlsConnector, load_platform_certs_incl_env_into_store};
use tokio::{
    net::TcpStream,
    sync::OnceCell,
    task::JoinSet,
    time::{sleep, timeout},
};

use weir_flow::Origin;

use crate::telemetry::step;

use super::{Error, HttpTarget, connection_pool::Connection, multiplexed, target::HttpProxy, tunnel::Tunnel};

/// How long an attempt is alone before the next address is tried beside it (RFC 8305 §5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Makes connections.
#[derive(Clone, Default)]
pub(super) struct Dialer {
    secure: Arc<OnceCell<TransportConnector>>,
    /// What secures connections instead.
    own: Option<TlsConnector>,
}

/// A connection that is there already, for a connector that would make one.
#[derive(Debug)]
struct Connected(Mutex<Option<l4::stream::Stream>>);

impl Dialer {
    /// One whose connections this secures.
    pub(super) fn secured_by(config: Arc<ClientConfig>) -> Self {
        Self { secure: Arc::default(), own: Some(config.into()) }
    }

    /// A connection to the first address that takes one, through the target's proxy if there is one.
    pub(super) async fn connect(&self, target: &HttpTarget) -> Result<Connection, Error> {
        let connected = timeout(target.timeouts.connect, self.version(target)).await;
        match (connected.unwrap_or(Err(Error::ConnectTimeout)), target.proxy()) {
            (Err(error @ (Error::Connect(_) | Error::ConnectTimeout | Error::Resolve)), Some(proxy)) => {
                Err(proxy.unreachable(&error))
            }
            (connected, _) => connected,
        }
    }

    /// A connection of the version that the server prefers (RFC 7301), plain ones of HTTP/1.1.
    async fn version(&self, target: &HttpTarget) -> Result<Connection, Error> {
        let pool = &target.pool;
        if !target.origin.is_https() || pool.http1_required() {
            return self.dial(target, ALPN::H1).await.map(Connection::Http1);
        }
        // Until it is known that each request needs a connection of its own, the first is waited for.
        let turn = if pool.speaks_http1.load(Ordering::Relaxed) { None } else { Some(pool.dialing.lock().await) };
        if turn.is_some()
            && let Some(shared) = pool.take().await
        {
            return Ok(shared);
        }
        let stream = self.dial(target, ALPN::H2H1).await?;
        let is_http2 = stream.selected_alpn_proto() == Some(ALPN::H2);
        pool.speaks_http1.store(!is_http2, Ordering::Relaxed);
        if !is_http2 {
            return Ok(Connection::Http1(stream));
        }
        let connection = multiplexed::connect(stream).await?;
        let stream = multiplexed::open(&connection).await.ok_or(Error::Refused)?;
        pool.share(connection);
        Ok(Connection::Http2(stream))
    }

    async fn dial(&self, target: &HttpTarget, alpn: ALPN) -> Result<Stream, Error> {
        let hop = target.first_hop();
        let addresses = step::timed("resolve", target.addresses(), |found| addresses(found)).await?;
        let connected = step::timed("connect", race(&addresses), |stream| match stream.peer_addr() {
            Ok(address) => address.to_string(),
            Err(_) => "connected".to_owned(),
        });
        let stream = l4::stream::Stream::from(connected.await?);
        let stream = if hop.is_https() {
            // Proxies are asked in HTTP/1.1.
            let alpn = if target.proxy().is_some() { ALPN::H1 } else { alpn.clone() };
            let secured = self.secure(&hop.host, stream, alpn).await;
            secured.map_err(|error| target.proxy().map_or(error.clone(), |proxy| proxy.unreachable(&error)))?
        } else {
            Box::new(stream)
        };
        match target.proxy() {
            Some(proxy) if target.origin.is_https() => {
                let tunnel = tunnel(stream, &target.origin, proxy).await?;
                self.secure(&target.origin.host, tunnel.into_socket(), alpn).await
            }
            _ => Ok(stream),
        }
    }

    async fn secure(&self, host: &str, stream: l4::stream::Stream, alpn: ALPN) -> Result<Stream, Error> {
        if let Some(own) = &self.own {
            let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::Url("its host fits no name"))?;
            let secured = own.connect(name, stream).await;
            let secured = secured.map_err(|_| Error::Tls("the other end does not know the same key"))?;
            return Ok(Box::new(Tunnel(secured).into_socket()));
        }
        let connector = self.secure.get_or_try_init(connector).await?;
        let mut peer = peer(host);
        peer.options.alpn = alpn;
        peer.options.custom_l4 = Some(Arc::new(Connected(Mutex::new(Some(stream)))));
        let secured = async { connector.new_stream(&peer).await.map_err(|error| Error::securing(&error)) };
        step::timed("tls", secured, |stream| match stream.selected_alpn_proto() {
            Some(ALPN::H2) => "HTTP/2",
            _ => "HTTP/1.1",
        })
        .await
    }
}

/// A peer for what nothing connects to any more: the address is not used.
fn peer(host: &str) -> HttpPeer {
    HttpPeer::new(SocketAddr::from(([0, 0, 0, 0], 0)), true, host.to_owned())
}

/// Has a proxy connect to an origin (RFC 9110 §9.3.6).
async fn tunnel(stream: Stream, origin: &Origin, proxy: &HttpProxy) -> Result<Tunnel<Stream>, Error> {
    let authorization = proxy.authorization().map(|value| ("proxy-authorization", value.as_bytes().to_vec()));
    let headers = authorization.iter().map(|(name, value)| (name, value));
    let request = raw_connect::generate_connect_header(&origin.host, origin.port, headers);
    let request = request.map_err(|_| Error::Url("its host fits no header"))?;
    let error = match raw_connect::connect(stream, &request, &peer(&origin.host)).await {
        Ok((stream, _)) => return Ok(Tunnel(stream)),
        Err(error) => error,
    };
    let refusal =
        error.root_cause().downcast_ref::<Box<ConnectProxyError>>().map(|error| error.response.status.as_u16());
    Err(match refusal {
        Some(407) => proxy.unauthorized(),
        Some(status) => proxy.fault(format_args!("refuses to connect to {}:{} ({status})", origin.host, origin.port)),
        None => proxy.fault("breaks off before it has connected"),
    })
}

#[async_trait]
impl L4Connect for Connected {
    async fn connect(&self, _: &PeerAddr) -> pingora_core::Result<l4::stream::Stream> {
        let stream = self.0.lock().take();
        stream.ok_or_else(|| pingora_core::Error::new(pingora_core::ErrorType::ConnectError))
    }
}

/// Addresses in words.
fn addresses(found: &[SocketAddr]) -> String {
    found.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")
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

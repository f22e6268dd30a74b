//! Listening: sockets, TLS, HTTP/1.1 and HTTP/2, time limits, and a shutdown that lets running work finish.
//!
//! The accept loop is Weir's own rather than pingora's server, which brings its own runtimes, signals and exit: here the
//! port may be 0, a drain ends when the work does, and every task has an owner. A connection is pingora's from its first
//! byte: HTTP/1.1 is driven request by request ([`plain`]), HTTP/2 by pingora's own loop.

mod exchange;
mod plain;

use std::{io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use pingora_core::{
    apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp},
    listeners::tls::Acceptor,
    protocols::{ALPN, Ssl, Stream, http::ServerSession, l4::stream::Stream as TcpIo},
    server::ShutdownWatch,
};
use pingora_rustls::{ServerConfig, load_certs_and_key_files};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::config::Tls;

pub use exchange::{BodyError, Exchange};

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn handle(self: &Arc<Self>, exchange: &mut Exchange) -> impl Future<Output = ()> + Send;
}

/// How long clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To send the head of a request, and a TLS handshake before it.
    pub head_timeout: Duration,
    /// To send the next request on a connection, and the next bytes of a body.
    pub idle_timeout: Duration,
    /// To finish what runs when the gateway stops.
    pub drain: Duration,
}

/// Why nothing can be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}; is another program using the port?")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("the certificate {certificate} and the key {key} cannot be used: {why}")]
    Tls {
        /// The certificate's file.
        certificate: String,
        /// The key's file.
        key: String,
        /// What is wrong.
        why: String,
    },
}

/// Sockets that are bound.
pub struct Listener {
    sockets: Vec<TcpListener>,
    acceptor: Option<Arc<Acceptor>>,
}

impl Listener {
    /// Binds every address.
    ///
    /// # Errors
    ///
    /// When one cannot be bound, or the certificate cannot be used.
    pub async fn bind(addresses: &[SocketAddr], tls: Option<&Tls>) -> Result<Self, ListenError> {
        let acceptor = tls.map(|tls| acceptor(&tls.certificate, &tls.key)).transpose()?.map(Arc::new);
        let mut sockets = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let socket = TcpListener::bind(address).await.map_err(|source| ListenError::Bind { address, source })?;
            sockets.push(socket);
        }
        Ok(Self { sockets, acceptor })
    }

    /// The addresses that were bound, with the ports that the system chose.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }

    /// Serves until `shutdown` turns true and the work that runs then is done, or its time is over.
    pub async fn serve<H: Handler>(self, handler: Arc<H>, limits: Limits, shutdown: watch::Receiver<bool>) {
        let mut loops = JoinSet::new();
        for socket in self.sockets {
            let server = Server { handler: Arc::clone(&handler), limits, shutdown: shutdown.clone() };
            loops.spawn(accept(socket, self.acceptor.clone(), Arc::new(server)));
        }
        loops.join_all().await;
    }
}

/// What every connection needs.
struct Server<H> {
    handler: Arc<H>,
    limits: Limits,
    shutdown: ShutdownWatch,
}

async fn accept<H: Handler>(socket: TcpListener, acceptor: Option<Arc<Acceptor>>, server: Arc<Server<H>>) {
    let mut shutdown = server.shutdown.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(Arc::clone(&server).connection(stream, acceptor.clone()));
                }
                Err(why) => {
                    // Mostly too many open files: others must end before the next can come.
                    tracing::warn!(%why, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = over(&mut shutdown) => break,
        }
    }
    drop(socket);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(server.limits.drain, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), "still busy at the end of the drain; cut off");
        connections.shutdown().await;
    }
}

/// Resolves when the gateway stops, or whoever would say so is gone.
async fn over(shutdown: &mut ShutdownWatch) {
    drop(shutdown.wait_for(|over| *over).await);
}

impl<H: Handler> Server<H> {
    async fn connection(self: Arc<Self>, stream: TcpStream, acceptor: Option<Arc<Acceptor>>) {
        // An answer must not wait for the acknowledgement of the one before.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let io = TcpIo::from(stream);
        let opened = async {
            let Some(acceptor) = acceptor else {
                let mut io: Stream = Box::new(io);
                let speaks_h2 = starts_h2(&mut io).await;
                return Some((io, speaks_h2));
            };
            let io = acceptor.tls_handshake(io).await.ok()?;
            let speaks_h2 = matches!(io.selected_alpn_proto(), Some(ALPN::H2));
            Some((Box::new(io) as Stream, speaks_h2))
        };
        // Covers whoever connects and says nothing.
        let Ok(Some((io, speaks_h2))) = tokio::time::timeout(self.limits.head_timeout, opened).await else { return };
        if speaks_h2 {
            let shutdown = self.shutdown.clone();
            let _: Option<Stream> = Arc::new(Multiplexed(self)).process_new(io, &shutdown).await;
        } else {
            self.plain(io).await;
        }
    }
}

/// HTTP/2: pingora reads the streams of a connection and gives each to [`HttpServerApp::process_new_http`].
struct Multiplexed<H>(Arc<Server<H>>);

/// HTTP/2 without TLS is asked for by its preface alone.
static CLEARTEXT: std::sync::LazyLock<HttpServerOptions> = std::sync::LazyLock::new(|| {
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    options
});

#[async_trait]
impl<H: Handler> HttpServerApp for Multiplexed<H> {
    async fn process_new_http(self: &Arc<Self>, session: ServerSession, _: &ShutdownWatch) -> Option<ReusedHttpStream> {
        let mut exchange = Exchange::new(session, self.0.limits.idle_timeout);
        self.0.handler.handle(&mut exchange).await;
        exchange.finish().await;
        None
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&CLEARTEXT)
    }
}

/// Whether a connection begins with HTTP/2's preface (RFC 9113 §3.4). No HTTP/1.1 request is shorter than it.
async fn starts_h2(io: &mut Stream) -> bool {
    let mut start = [0_u8; PREFACE.len()];
    matches!(io.try_peek(&mut start).await, Ok(true)) && start == *PREFACE
}

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn acceptor(certificate: &Path, key: &Path) -> Result<Acceptor, ListenError> {
    let failed = |why: String| ListenError::Tls {
        certificate: certificate.display().to_string(),
        key: key.display().to_string(),
        why,
    };
    pingora_rustls::install_default_crypto_provider();
    let loaded = load_certs_and_key_files(&certificate.to_string_lossy(), &key.to_string_lossy());
    let (chain, key_der) = loaded
        .map_err(|why| failed(why.to_string()))?
        .ok_or_else(|| failed("there is no certificate or no key in them".into()))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key_der)
        .map_err(|why| failed(why.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Acceptor::from_server_config(Arc::new(config)))
}

#[cfg(test)]
mod tests;

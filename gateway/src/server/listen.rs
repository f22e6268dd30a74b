//! Listening: sockets, TLS, HTTP/1.1 and HTTP/2, time limits, and a shutdown that lets running work finish.
//!
//! The accept loop is Weir's own rather than pingora's server, which brings its own runtimes, signals and exit: here the
//! port may be 0, a drain ends when the work does, and every task has an owner. The loops over a connection's requests
//! ([`plain`], [`multiplexed`]) are Weir's too, for what pingora's `HttpServerApp` loop cannot do: limit the head in
//! time and size, close a connection that rests when the gateway stops, and let a client see an answer that came before
//! its body was read. The protocols themselves, from the first byte to the last, are pingora's sessions over [`wire`].

mod alarm;
mod exchange;
mod multiplexed;
mod plain;
mod tls;
mod wire;

use std::{
    collections::HashMap,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use pingora_rustls::TlsAcceptor;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{AbortHandle, Id, JoinSet},
    time::{Instant, timeout, timeout_at},
};
use weir_flow::Backoff;
use weir_mcp::answer;

use crate::{
    config::Tls,
    quota::{Quota, Reached, Shares},
    task,
    telemetry::LogThrottle,
};

pub use exchange::{BodyError, HttpExchange};

use exchange::Peer;
use wire::{ConnectionState, Wire};

/// How many connections are told at once that their address has too many; more are closed without a word.
const TURNED_AWAY: usize = 64;

/// How many connections the system queues.
const BACKLOG: u32 = 1024;

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. What is not answered when this returns is answered with 500; an answer that was begun and
    /// not ended is cut off, so that the client sees that it is not whole.
    fn handle(self: &Arc<Self>, exchange: &mut HttpExchange) -> impl Future<Output = ()> + Send;
}

/// How long clients may take, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub struct ListenLimits {
    /// How many connections may be open at once, in all and from one address; more in all wait in the system's queue.
    pub connections: Shares,
    /// How much there may be of large bodies at once, in bytes.
    pub bodies: Shares,
    /// To send the head of a request, and a TLS handshake before it.
    pub head_timeout: Duration,
    /// To send a body, beside the time that its bytes give it.
    pub body_timeout: Duration,
    /// To send the next request on a connection, the next bytes of a body, and to take the next bytes of an answer.
    pub idle_timeout: Duration,
    /// To finish what runs when the gateway stops.
    pub drain: Duration,
}

/// Why nothing can be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {}", refused(*.address, .why))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said. No `source`, which would be told a second time.
        why: io::Error,
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

/// Why an address cannot be had, and what to do about it.
fn refused(address: SocketAddr, why: &io::Error) -> String {
    let port = address.port();
    match why.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another program has port {port}; `ss -ltnp 'sport = :{port}'` names it, and `listen` chooses another port"
        ),
        io::ErrorKind::PermissionDenied => {
            format!(
                "a port below 1024 needs a right that Weir does not have; `listen` chooses another port than {port}"
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; `listen` chooses another, and `0.0.0.0` is all it has".to_owned()
        }
        _ => why.to_string(),
    }
}

/// Sockets that are bound.
pub struct Listener {
    sockets: Vec<TcpListener>,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    /// Binds every address.
    ///
    /// # Errors
    ///
    /// When one cannot be bound, or the certificate cannot be used.
    pub async fn bind(addresses: &[SocketAddr], tls: Option<&Tls>) -> Result<Self, ListenError> {
        let tls = tls.map(tls::acceptor).transpose()?;
        let bind = |&address: &SocketAddr| bind(address).map_err(|why| ListenError::Bind { address, why });
        Ok(Self { sockets: addresses.iter().map(bind).collect::<Result<_, _>>()?, tls })
    }

    /// The addresses that were bound, with the ports that the system chose.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }

    /// Serves until `shutdown` turns true (or its sender is gone) and the work that runs then is done, or its time over.
    ///
    /// At the end nothing is left: connections that rest are closed at once, those that are busy after their answer,
    /// and what is still running after the drain is dropped.
    pub async fn serve<H: Handler>(self, handler: Arc<H>, limits: ListenLimits, shutdown: watch::Receiver<bool>) {
        let connections = Quota::new("connections", limits.connections);
        let bodies = Quota::new("bodies", limits.bodies);
        let server = Arc::new(Server {
            handler,
            limits,
            connections,
            bodies,
            tls: self.tls,
            draining: Arc::default(),
            shutdown,
        });
        let mut connections = Connections::default();
        connections.accept(&server, &self.sockets).await;
        // From here on the system refuses who comes.
        drop(self.sockets);
        connections.drain(&server).await;
    }
}

/// What every connection needs.
struct Server<H> {
    handler: Arc<H>,
    limits: ListenLimits,
    connections: Arc<Quota>,
    bodies: Arc<Quota>,
    tls: Option<TlsAcceptor>,
    /// Asked at every answer, where a look at `shutdown` would take a lock.
    draining: Arc<AtomicBool>,
    shutdown: watch::Receiver<bool>,
}

/// The open connections.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    lines: HashMap<Id, (AbortHandle, Arc<ConnectionState>)>,
    /// Those whose address has too many.
    turned_away: JoinSet<()>,
    told: LogThrottle,
}

impl Connections {
    async fn accept<H: Handler>(&mut self, server: &Arc<Server<H>>, sockets: &[TcpListener]) {
        let mut shutdown = server.shutdown.clone();
        let mut stop = pin!(over(&mut shutdown));
        let mut backoff = Backoff::ACCEPT;
        let quota = &server.connections;
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                Some(ended) = self.tasks.join_next_with_id() => self.forget(ended.map(|(id, ())| id)),
                Some(_) = self.turned_away.join_next() => {}
                accepted = accept(sockets), if quota.used() < quota.shares().total => match accepted {
                    Ok((stream, peer)) => {
                        backoff.reset();
                        self.take(server, stream, Peer::new(peer));
                    }
                    Err(why) => {
                        // Mostly too many open files: others must end before the next can come.
                        if backoff.failures() == 0 {
                            tracing::warn!(%why, "cannot accept connections; is the limit of open files too low?");
                        }
                        task::back_off(&mut backoff).await;
                    }
                },
            }
        }
    }

    /// Serves a connection, unless its address has too many.
    fn take<H: Handler>(&mut self, server: &Arc<Server<H>>, stream: TcpStream, peer: Peer) {
        match server.connections.take(&peer.share, None) {
            Ok(permit) => {
                let line = Arc::new(ConnectionState::default());
                let served = connection(Arc::clone(server), stream, peer, Arc::clone(&line));
                let task = self.tasks.spawn(async move {
                    let _permit = permit;
                    served.await;
                });
                self.lines.insert(task.id(), (task, line));
            }
            Err(full) => {
                if self.told.is_due() {
                    tracing::warn!(address = %peer.address.ip(), "connections are turned away: {full}");
                }
                // Without TLS there are words for it.
                if server.tls.is_none() && self.turned_away.len() < TURNED_AWAY {
                    self.turned_away.spawn(turn_away(stream, full));
                }
            }
        }
    }

    async fn drain<H>(&mut self, server: &Server<H>) {
        server.draining.store(true, Ordering::SeqCst);
        for (task, line) in self.lines.values() {
            if line.close_if_resting() {
                task.abort();
            }
        }
        let finished = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(server.limits.drain, finished).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "still busy at the end of the drain; cut off");
            self.tasks.shutdown().await;
        }
    }

    fn forget(&mut self, ended: Result<Id, tokio::task::JoinError>) {
        let id = ended.unwrap_or_else(|error| {
            tracing::error!("a connection ended in a panic");
            error.id()
        });
        self.lines.remove(&id);
    }
}

/// Serves one connection to its end.
async fn connection<H: Handler>(server: Arc<Server<H>>, stream: TcpStream, peer: Peer, line: Arc<ConnectionState>) {
    let end = Instant::now() + server.limits.head_timeout;
    // An answer must not wait for the acknowledgement of the one before.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let opened = async {
        match &server.tls {
            Some(tls) => {
                let stream = tls.accept(stream).await.ok()?;
                let h2 = stream.get_ref().1.alpn_protocol() == Some(tls::H2);
                Some((Wire::secure(stream, Arc::clone(&line)), h2))
            }
            None => {
                let mut wire = Wire::plain(stream, Arc::clone(&line));
                let h2 = wire.speaks_h2().await.ok()?;
                Some((wire, h2))
            }
        }
    };
    // Covers whoever connects and says nothing. On the heap, as is what HTTP/1.1 does not need: most connections rest
    // most of the time, and then hold no more than they must.
    let Ok(Some((wire, h2))) = timeout_at(end, Box::pin(opened)).await else { return };
    if h2 {
        Box::pin(multiplexed::serve(server, wire, peer, end)).await;
    } else {
        plain::serve(server, wire, line, peer, end).await;
    }
}

/// What a client is told that is not served.
fn refusal(why: &Reached) -> Bytes {
    answer::error(None, answer::INTERNAL, &why.to_string(), None)
}

/// Tells a client why its connection is not served.
async fn turn_away(mut stream: TcpStream, why: Reached) {
    let body = refusal(&why);
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: {}\r\nRetry-After: 5\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    // It fits into what the system gathers for a new connection.
    if stream.write_all(&[head.as_bytes(), &body].concat()).await.is_ok() {
        plain::linger(stream).await;
    }
}

/// Resolves when the gateway stops, or whoever would say so is gone.
async fn over(shutdown: &mut watch::Receiver<bool>) {
    drop(shutdown.wait_for(|over| *over).await);
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that a restart need not wait for the connections of its predecessor to be forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(sockets: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    let ready = |context: &mut std::task::Context<'_>| {
        for socket in sockets {
            if let Poll::Ready(accepted) = socket.poll_accept(context) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    };
    poll_fn(ready).await
}

#[cfg(test)]
mod tests;

//! Listening: sockets, TLS, HTTP/1.1 and HTTP/2, time limits, and a shutdown that lets running work finish.
//!
//! Pingora accepts connections, hands its runtime to them and tells them of the shutdown: [`Listener::serve`] runs its
//! `listening::Service`. Weir's own is what comes between a connection and its requests, an [`HttpServer`], for what
//! pingora-core 0.9.1 cannot do. Each line names the place in pingora and the test that needs more:
//!
//! - `listeners/l4.rs`, `bind_tcp`: tries a port in use thirty times, a second apart, and then panics in
//!   `Service::start_service`. [`Listener::bind`] binds first and puts the sockets where pingora looks for those that a
//!   predecessor left (`an_address_in_use_is_named`).
//! - `services/listening.rs`, `run_endpoint`: a TLS handshake has sixty seconds, is counted nowhere, and its failure is
//!   an error in the log for whoever connects. Here it is part of the connection (`a_handshake_must_come_in_time`).
//! - The same spawns connections and forgets them. Here they have an owner, which ends them
//!   (`what_rests_is_closed_soon_and_what_runs_may_finish`, `what_does_not_finish_is_dropped`).
//! - The same, at the shutdown: what waits to be accepted is reset. Here [`Acceptor`] takes it
//!   (`who_has_connected_before_the_stop_is_answered`).
//! - `apps/mod.rs`, the `ServerApp` that each `HttpServerApp` is: it waits for 24 bytes to tell HTTP/2 from HTTP/1.1, and
//!   a whole request may have 18 (`bodies_come_in_any_shape`). It makes the session of the bare stream, so nothing can
//!   stand between them to limit a head or look behind a byte that came early.
//! - `protocols/http/v1/server.rs`, `read_request`: a head may have a mebibyte, and each read of it a minute
//!   (`what_is_not_a_request_is_refused`, `a_head_must_come_in_time`).
//! - The same, `read_body_or_idle`: after one byte of the next request, a client that leaves is not seen
//!   (`a_client_that_leaves_behind_a_byte_is_noticed`).
//! - The same, `reuse`: a body that nobody wants is read to its end, however long, or the connection closes at once and
//!   the system throws the answer away with it (`a_body_over_the_cap_is_refused_where_the_client_can_see_it`).
//!
//! So the loops over requests ([`plain`], [`multiplexed`]) are Weir's. The protocols themselves, from the first byte to
//! the last, are pingora's sessions over [`wire`].

mod accept;
mod alarm;
mod certificate;
mod exchange;
mod multiplexed;
mod plain;
mod tls;
mod wire;

use std::{
    collections::HashMap,
    fs::{self, Permissions},
    future::poll_fn,
    io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{IntoRawFd, RawFd},
        unix::{fs::PermissionsExt, net::UnixListener},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::http::StatusCode;
use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use pingora_core::{
    listeners::{ALPN, L4BufferSettings, ListenerConfig},
    protocols::{Stream, l4::stream::Stream as Socket},
    server::{Fds, ListenFds, ShutdownWatch},
    services::{Service as _, listening::Service},
};
use pingora_rustls::{ServerConfig, TlsAcceptor};
use tokio::{
    io::AsyncWriteExt,
    task::{AbortHandle, Id, JoinSet},
    time::{Instant, sleep_until, timeout_at},
};
use weir_mcp::answer;

use crate::{
    config::Tls,
    http::Tunnel,
    quota::{Quota, Reached, Shares},
    telemetry::{AuthRecord, LogThrottle, Refusals},
};

pub use certificate::ClientCertificate;
pub use exchange::{BodyError, HttpExchange};
pub use tls::TlsFiles;

use accept::Acceptor;
use exchange::Peer;
use wire::{ConnectionState, Wire};

/// How many connections are told at once that their address has too many; more are closed without a word.
const TURNED_AWAY: usize = 64;

/// How long a client that has just connected has to begin its first request when the gateway stops.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// How long connections that rest stay open when the gateway stops. A balancer that keeps them, or another gateway, may just
/// have sent a request; after its answer the connection ends. Where it is closed first, nobody knows whether that has run.
const LAST_REQUEST: Duration = Duration::from_millis(500);

/// How long a connection may take from pingora's accept loop to [`HttpServer`].
const ACCEPTED: Duration = Duration::from_millis(50);

/// The mode of a Unix socket: only its owner can open it.
const OWNER: u32 = 0o600;

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. What is not answered when this returns is answered with 500; an answer that was begun and
    /// not ended is cut off, so that the client sees that it is not whole.
    fn handle(self: &Arc<Self>, exchange: &mut HttpExchange) -> impl Future<Output = ()> + Send;
}

/// How long clients may take, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub struct ListenLimits {
    /// How many connections may be open at once, in all and from one address.
    pub connections: Shares,
    /// How much there may be of large bodies at once, in bytes.
    pub bodies: Shares,
    /// To send the head of a request, and a TLS handshake before it.
    pub header_timeout: Duration,
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

impl ListenError {
    /// Whether another process has the address.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Bind { why, .. } if why.kind() == io::ErrorKind::AddrInUse)
    }
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
    addresses: Vec<SocketAddr>,
    /// The path of a Unix socket, in place of addresses.
    unix: Option<String>,
    sockets: Fds,
    tls: Option<ListenTls>,
}

/// What secures connections.
enum ListenTls {
    /// A certificate, by pingora.
    Files(Arc<TlsFiles>),
    /// What is no certificate: pingora's own stream wants to parse one.
    Fixed(TlsAcceptor),
}

impl ListenTls {
    /// Takes the handshake. What the client has shown comes with it, if that is a certificate.
    async fn accept(&self, stream: Socket) -> Result<(Stream, Option<ClientCertificate>), String> {
        match self {
            Self::Files(files) => {
                let stream = files.acceptor().tls_handshake(stream).await.map_err(|why| why.to_string())?;
                let certificate = ClientCertificate::of(&stream, files.client_groups());
                Ok((Box::new(stream), certificate))
            }
            Self::Fixed(acceptor) => {
                let stream = acceptor.accept(stream).await.map_err(|why| why.to_string())?;
                Ok((Box::new(Tunnel(stream).into_socket()), None))
            }
        }
    }

    /// Whether clients are asked to show something.
    fn asks_clients(&self) -> bool {
        match self {
            Self::Files(files) => files.asks_clients(),
            Self::Fixed(_) => true,
        }
    }
}

impl Listener {
    /// Nothing yet, to be served with this certificate.
    ///
    /// # Errors
    ///
    /// When the certificate cannot be used.
    pub fn new(tls: Option<&Tls>) -> Result<Self, ListenError> {
        let tls = tls.map(TlsFiles::new).transpose()?.map(|files| ListenTls::Files(Arc::new(files)));
        Ok(Self { addresses: Vec::new(), unix: None, sockets: Fds::new(), tls })
    }

    /// The same with a configuration of TLS that never changes.
    #[must_use]
    pub fn secured_by(self, config: Arc<ServerConfig>) -> Self {
        Self { tls: Some(ListenTls::Fixed(config.into())), ..self }
    }

    /// A Unix socket that only its owner can open, in place of what is at `path`.
    ///
    /// # Errors
    ///
    /// When it cannot be made there.
    pub fn bind_unix(path: &str) -> io::Result<Self> {
        // Under another name until others cannot open it, so that a client finds the old one or this.
        let new = format!("{path}~");
        match fs::remove_file(&new) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        let socket = UnixListener::bind(&new)?;
        fs::set_permissions(&new, Permissions::from_mode(OWNER))?;
        socket.set_nonblocking(true)?;
        fs::rename(&new, path)?;
        let mut sockets = Fds::new();
        sockets.add(path.to_owned(), socket.into_raw_fd());
        Ok(Self { addresses: Vec::new(), unix: Some(path.to_owned()), sockets, tls: None })
    }

    /// Binds every address, but those whose sockets were inherited; others of these are closed.
    ///
    /// # Errors
    ///
    /// When one cannot be bound.
    pub fn bind(mut self, addresses: &[SocketAddr], mut inherited: Fds) -> Result<Self, ListenError> {
        inherited.close_unclaimed(&addresses.iter().map(SocketAddr::to_string).collect());
        for &address in addresses {
            let inherited = inherited.get(&address.to_string()).filter(|_| !self.addresses.contains(&address));
            let (bound, socket) = match inherited {
                Some(&socket) => (address, socket),
                None => bind(address).map_err(|why| ListenError::Bind { address, why })?,
            };
            self.addresses.push(bound);
            // Owned by pingora once it serves.
            self.sockets.add(bound.to_string(), socket);
        }
        Ok(self)
    }

    /// The certificate that it is served with.
    pub const fn tls(&self) -> Option<&Arc<TlsFiles>> {
        match &self.tls {
            Some(ListenTls::Files(files)) => Some(files),
            Some(ListenTls::Fixed(_)) | None => None,
        }
    }

    /// The addresses that were bound, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until `shutdown` turns true (or its sender is gone) and the work that runs then is done, or its time over.
    ///
    /// At the end nothing is left: connections that rest are closed soon, those that are busy after their answer,
    /// and what is still running after the drain is dropped.
    pub async fn serve<H: Handler>(
        self,
        handler: Arc<H>,
        settings: Arc<ListenSettings>,
        sockets: ListenFds,
        shutdown: ShutdownWatch,
    ) {
        let mut server = HttpServer::new(handler, settings, self.tls);
        server.unix = self.unix.is_some();
        let own = self.addresses.iter().filter_map(|address| self.sockets.get(&address.to_string()).copied());
        let mut service = Service::new("weir".to_owned(), Acceptor::new(server, own, shutdown.clone()));
        *sockets.lock() = self.sockets;
        if let Some(path) = self.unix {
            let config = ListenerConfig::uds(path).permissions(Permissions::from_mode(OWNER));
            service.add_listener(config.l4_buffer(L4BufferSettings::unbuffered()));
        }
        for address in self.addresses {
            let unbuffered = L4BufferSettings::unbuffered();
            service.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(unbuffered));
        }
        service.start_service(Some(sockets), shutdown, 1).await;
    }
}

/// The limits of a listener, which may change while it serves.
pub struct ListenSettings {
    limits: ArcSwap<ListenLimits>,
    connections: Arc<Quota>,
    bodies: Arc<Quota>,
    /// Whether each answer ends its connection. Asked at every answer, where a look at the shutdown would take a lock.
    closing: Arc<AtomicBool>,
}

impl ListenSettings {
    /// These limits until they are changed.
    #[must_use]
    pub fn new(limits: ListenLimits) -> Arc<Self> {
        Arc::new(Self {
            limits: ArcSwap::from_pointee(limits),
            connections: Quota::new("connections", limits.connections),
            bodies: Quota::new("body_memory", limits.bodies),
            closing: Arc::default(),
        })
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> ListenLimits {
        **self.limits.load()
    }

    /// From now on each answer over HTTP/1.1 says that it ends its connection, so that clients come to the process that
    /// takes over. Closing a connection that rests would lose a request that is on its way.
    pub fn close_after_answers(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// Puts other limits in force. What is open beyond them stays until it ends.
    pub fn resize(&self, limits: ListenLimits) {
        self.connections.resize(limits.connections);
        self.bodies.resize(limits.bodies);
        self.limits.store(Arc::new(limits));
    }
}

/// What serves connections.
struct HttpServer<H> {
    handler: Arc<H>,
    settings: Arc<ListenSettings>,
    tls: Option<ListenTls>,
    /// Whether clients come over a Unix socket.
    unix: bool,
    draining: AtomicBool,
    open: Mutex<Connections>,
    told: LogThrottle,
    /// Those of the audit log.
    refusals: Refusals,
}

/// The open connections.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    lines: HashMap<Id, (AbortHandle, Arc<ConnectionState>)>,
    /// Those that are told that there are too many.
    turned_away: JoinSet<()>,
}

impl<H: Handler> HttpServer<H> {
    /// Serves a connection, unless there are too many.
    fn take(self: &Arc<Self>, stream: Box<Socket>, address: SocketAddr, shutdown: &ShutdownWatch) {
        let peer = Peer::new(address);
        let permit = self.settings.connections.take(&peer.share, None);
        let mut open = self.open.lock();
        open.forget_ended();
        match permit {
            Ok(permit) => {
                let line = Arc::new(ConnectionState::default());
                let served = connection(Arc::clone(self), stream, peer, Arc::clone(&line), shutdown.clone());
                let task = open.tasks.spawn(async move {
                    let _permit = permit;
                    served.await;
                });
                open.lines.insert(task.id(), (task, line));
            }
            Err(full) => {
                if self.told.is_due() {
                    tracing::warn!(client_address = %peer.address.ip(), "connections are turned away: {full}");
                }
                self.note_refusal(&peer, &full.to_string());
                // Without TLS there are words for it.
                if self.tls.is_none() && open.turned_away.len() < TURNED_AWAY {
                    open.turned_away.spawn(turn_away(stream, full));
                }
            }
        }
    }

    /// Ends all connections, once no more are accepted.
    async fn end(&self) {
        let end = Instant::now() + self.limits().drain;
        self.settings.close_after_answers();
        self.draining.store(true, Ordering::SeqCst);
        sleep_until(end.min(Instant::now() + ACCEPTED)).await;
        if timeout_at(end.min(Instant::now() + LAST_REQUEST), self.all_ended()).await.is_ok() {
            return;
        }
        self.open.lock().close_resting(false);
        // A request may be on its way where a client has just connected.
        if timeout_at(end.min(Instant::now() + FIRST_REQUEST), self.all_ended()).await.is_ok() {
            return;
        }
        self.open.lock().close_resting(true);
        if timeout_at(end, self.all_ended()).await.is_err() {
            let mut open = std::mem::take(&mut *self.open.lock());
            tracing::warn!(connections = open.tasks.len(), "still busy at the end of the drain; cut off");
            open.tasks.shutdown().await;
        }
    }
}

impl<H> HttpServer<H> {
    fn new(handler: Arc<H>, settings: Arc<ListenSettings>, tls: Option<ListenTls>) -> Self {
        Self {
            handler,
            settings,
            tls,
            unix: false,
            draining: AtomicBool::default(),
            open: Mutex::default(),
            told: LogThrottle::default(),
            refusals: Refusals::new(),
        }
    }

    /// The limits in force.
    fn limits(&self) -> ListenLimits {
        self.settings.limits()
    }

    /// Has the audit log know of a connection that comes to no request.
    fn note_refusal(&self, peer: &Peer, why: &str) {
        if !self.unix
            && let Some(suppressed) = self.refusals.admit(std::time::Instant::now())
        {
            let suppressed = Some(suppressed).filter(|count| *count > 0);
            let record = AuthRecord { suppressed, ..AuthRecord::of(None, Some(peer.address.ip())) };
            record.refused_unsaid("connection refused", why);
        }
    }

    async fn all_ended(&self) {
        while poll_fn(|context| self.open.lock().tasks.poll_join_next(context)).await.is_some() {}
    }
}

impl Connections {
    /// Closes those that rest, and `also_new` those that have sent nothing yet.
    fn close_resting(&self, also_new: bool) {
        for (task, line) in self.lines.values() {
            if line.close_if_resting(also_new) {
                task.abort();
            }
        }
    }

    fn forget_ended(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let id = ended.map(|(id, ())| id).unwrap_or_else(|error| {
                tracing::error!("a connection ended in a panic");
                error.id()
            });
            self.lines.remove(&id);
        }
        while self.turned_away.try_join_next().is_some() {}
    }
}

/// Serves one connection to its end.
async fn connection<H: Handler>(
    server: Arc<HttpServer<H>>,
    stream: Box<Socket>,
    peer: Peer,
    line: Arc<ConnectionState>,
    shutdown: ShutdownWatch,
) {
    let end = Instant::now() + server.limits().header_timeout;
    let opened = async {
        let (stream, certificate): (Stream, _) = match &server.tls {
            Some(tls) => {
                let accepted = tls.accept(*stream).await;
                // Where certificates say who may connect, one that does not may be somebody who tries.
                let accepted = accepted.inspect_err(|why| {
                    if tls.asks_clients() {
                        server.note_refusal(&peer, why);
                    }
                });
                let (stream, certificate) = accepted.ok()?;
                (stream, certificate.map(Arc::new))
            }
            None => (stream, None),
        };
        let chosen = stream.selected_alpn_proto();
        let mut wire = Wire::new(stream, Arc::clone(&line));
        let h2 = match &server.tls {
            Some(_) => chosen == Some(ALPN::H2),
            None => wire.speaks_h2().await.ok()?,
        };
        Some((wire, h2, certificate))
    };
    // Covers whoever connects and says nothing. On the heap, as is what HTTP/1.1 does not need: most connections rest
    // most of the time, and then hold no more than they must.
    let Ok(Some((wire, h2, certificate))) = timeout_at(end, Box::pin(opened)).await else { return };
    let peer = Peer { certificate, ..peer };
    if h2 {
        Box::pin(multiplexed::serve(server, wire, peer, end, shutdown)).await;
    } else {
        drop(shutdown);
        plain::serve(server, wire, line, peer, end).await;
    }
}

/// What a client is told that is not served.
fn refusal(why: &Reached) -> Bytes {
    answer::error(None, answer::INTERNAL, &why.to_string(), None)
}

/// Tells a client why its connection is not served.
async fn turn_away(mut stream: Box<Socket>, why: Reached) {
    let body = refusal(&why);
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nRetry-After: 5\r\n\
         Connection: close\r\n\r\n",
        StatusCode::from_u16(why.status()).unwrap_or_default(),
        body.len()
    );
    // It fits into what the system gathers for a new connection.
    if stream.write_all(&[head.as_bytes(), &body].concat()).await.is_ok() {
        plain::linger(stream).await;
    }
}

fn bind(address: SocketAddr) -> io::Result<(SocketAddr, RawFd)> {
    // With SO_REUSEADDR, so that a restart need not wait for the connections of its predecessor to be forgotten.
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok((socket.local_addr()?, socket.into_raw_fd()))
}

#[cfg(test)]
mod tests;

//! Accepting connections, up to the last that a client has opened before the gateway stopped.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    os::fd::{BorrowedFd, RawFd},
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_core::{
    apps::ServerApp,
    protocols::{GetSocketDigest, Stream, l4::stream::Stream as Socket},
    server::ShutdownWatch,
};
use tokio::net::TcpStream;

use super::{ACCEPTED, Handler, HttpServer};

/// Hands the connections that pingora accepts to a server.
pub(super) struct Acceptor<H> {
    server: Arc<HttpServer<H>>,
    /// The sockets once more: pingora closes its own with its accept loop, and whatever still waits there.
    sockets: Mutex<Vec<TcpListener>>,
    shutdown: ShutdownWatch,
}

impl<H> Acceptor<H> {
    /// `sockets` are those that pingora has been given.
    pub(super) fn new(server: HttpServer<H>, sockets: impl Iterator<Item = RawFd>, shutdown: ShutdownWatch) -> Self {
        Self { server: Arc::new(server), sockets: Mutex::new(sockets.filter_map(again).collect()), shutdown }
    }
}

#[async_trait]
impl<H: Handler> ServerApp for Acceptor<H> {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let stream: Box<Socket> = stream.into_any().downcast().ok()?;
        let address = match self.server.unix {
            true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            false => *stream.get_socket_digest()?.peer_addr()?.as_inet()?,
        };
        self.server.take(stream, address, shutdown);
        None
    }

    /// Ends all connections, once pingora accepts no more.
    async fn cleanup(&self) {
        let sockets = std::mem::take(&mut *self.sockets.lock());
        // What waits for a process that has the sockets by now is its own.
        if !self.server.settings.closing.load(Ordering::SeqCst) {
            sockets.iter().for_each(|socket| self.take_waiting(socket));
        }
        drop(sockets);
        self.server.end().await;
    }
}

impl<H: Handler> Acceptor<H> {
    /// Takes what waits at a socket: a client whose connection is reset does not know whether its request has run.
    fn take_waiting(&self, socket: &TcpListener) {
        // However many come meanwhile.
        let end = Instant::now() + ACCEPTED;
        while Instant::now() < end {
            match waiting(socket) {
                Ok((stream, address)) => self.server.take(Box::new(stream.into()), address, &self.shutdown),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return,
                // That one is gone again; others may wait behind it.
                Err(_) => {}
            }
        }
    }
}

/// The same socket once more.
#[allow(unsafe_code, reason = "pingora has sockets as numbers, also those that another process has left")]
fn again(socket: RawFd) -> Option<TcpListener> {
    // SAFETY: pingora was given it open, and closes it with its accept loop, which has not begun.
    unsafe { BorrowedFd::borrow_raw(socket) }.try_clone_to_owned().ok().map(TcpListener::from)
}

/// A connection that waits to be accepted.
fn waiting(socket: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, address) = socket.accept()?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok((TcpStream::from_std(stream)?, address))
}

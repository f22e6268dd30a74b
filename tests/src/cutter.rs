//! A network between two ends that breaks on demand.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// What stands in for the server.
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/html\r\ncontent-length: 7\r\n\
                           connection: close\r\n\r\n<html/>";

/// How many bytes of an answer come through before it is broken.
const BEFORE: usize = 100;

/// How many bytes come at once where the network is narrow, and how long it takes to the next.
const PIECE: usize = 256;
const PIECE_TIME: Duration = Duration::from_millis(20);

/// What becomes of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They are passed on.
    None,
    /// They are accepted, and nothing is ever answered.
    Silent,
    /// Each request is answered with 503 by a load balancer that has no server.
    Unavailable,
    /// Every piece of an answer takes so long.
    Delay(Duration),
    /// Requests arrive, and their answers never do.
    Drop,
    /// The connection is reset (RST) in the middle of the first answer.
    Reset,
    /// The connection ends (FIN) in the middle of the first answer.
    Truncate,
    /// The server's side ends before the first answer, and the other stays open.
    HalfClose,
    /// Answers come in small pieces.
    Throttle,
}

/// Passes connections on to one address, until it is told to break those that are open.
pub struct Cutter {
    address: SocketAddr,
    open: Arc<Mutex<JoinSet<()>>>,
    accepting: AbortHandle,
    fault: watch::Sender<Fault>,
    next: Arc<Mutex<Option<Fault>>>,
}

impl Cutter {
    /// Starts one in front of `target`.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("there is a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let open = Arc::<Mutex<JoinSet<()>>>::default();
        let connections = Arc::clone(&open);
        let (fault, faults) = watch::channel(Fault::None);
        let next = Arc::<Mutex<Option<Fault>>>::default();
        let once = Arc::clone(&next);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let once = once.lock().expect("no connection panics").take();
                let faults = once.map_or_else(|| faults.clone(), |fault| watch::channel(fault).1);
                let pass = async move {
                    // However it ends, both ends are closed.
                    let _ = pass(client, target, &faults).await;
                };
                let mut connections = connections.lock().expect("no connection panics");
                connections.spawn(pass);
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, open, accepting: accepting.abort_handle(), fault, next }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Breaks every connection that is open, and lets new ones have this fault.
    pub fn fail(&self, fault: Fault) {
        self.fault.send_replace(fault);
        self.cut();
    }

    /// Breaks every connection that is open, and lets the next one have this fault.
    pub fn fail_once(&self, fault: Fault) {
        *self.next.lock().expect("no connection panics") = Some(fault);
        self.cut();
    }

    /// From now on answers are lost, also those of connections that are open.
    pub fn lose_answers(&self) {
        self.fault.send_replace(Fault::Drop);
    }

    /// Breaks every connection that is open.
    pub fn cut(&self) {
        self.open.lock().expect("no connection panics").abort_all();
    }
}

async fn pass(client: TcpStream, target: SocketAddr, faults: &watch::Receiver<Fault>) -> io::Result<()> {
    let fault = *faults.borrow();
    match fault {
        Fault::Silent => std::future::pending().await,
        Fault::Unavailable => {
            turn_away(client).await;
            return Ok(());
        }
        _ => {}
    }
    let (mut from_server, mut to_server) = TcpStream::connect(target).await?.into_split();
    let (mut from_client, to_client) = client.into_split();
    let requests = async {
        copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    tokio::try_join!(requests, answers(&mut from_server, to_client, faults)).map(drop)
}

/// Brings what the server says to the client, as far as the network lets it.
async fn answers(
    server: &mut OwnedReadHalf,
    mut client: OwnedWriteHalf,
    faults: &watch::Receiver<Fault>,
) -> io::Result<()> {
    let fault = *faults.borrow();
    let (mut buffer, mut passed) = ([0; 16 * 1024], 0);
    loop {
        let read = server.read(&mut buffer).await?;
        if read == 0 {
            return client.shutdown().await;
        }
        if *faults.borrow() == Fault::Drop {
            continue;
        }
        let bytes = &buffer[..read];
        match fault {
            Fault::HalfClose => {
                client.shutdown().await?;
                return std::future::pending().await;
            }
            Fault::Delay(time) => sleep(time).await,
            Fault::Reset | Fault::Truncate if passed + read > BEFORE => {
                client.write_all(&bytes[..BEFORE - passed]).await?;
                if fault == Fault::Reset {
                    client.as_ref().set_zero_linger()?;
                }
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Fault::Throttle => {
                for piece in bytes.chunks(PIECE) {
                    client.write_all(piece).await?;
                    sleep(PIECE_TIME).await;
                }
                continue;
            }
            _ => {}
        }
        client.write_all(bytes).await?;
        passed += read;
    }
}

/// Answers the request of a client once it has sent all of it, or all that comes in one piece.
async fn turn_away(mut client: TcpStream) {
    let mut request = [0; 16 * 1024];
    if client.read(&mut request).await.is_ok() {
        // A client that has gone hears nothing.
        let _ = client.write_all(UNAVAILABLE.as_bytes()).await;
        // Closed with bytes unread, the connection would be reset under the answer.
        while client.read(&mut request).await.is_ok_and(|read| read > 0) {}
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

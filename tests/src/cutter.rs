//! A network between a client and a gateway that breaks on demand.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// What stands in for the server.
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/html\r\ncontent-length: 7\r\n\
                           connection: close\r\n\r\n<html/>";

/// What becomes of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// They are passed on.
    None,
    /// They are accepted, and nothing is ever answered.
    Silent,
    /// Each request is answered with 503 by a load balancer that has no server.
    Unavailable,
}

/// Passes connections on to one address, until it is told to break those that are open.
pub struct Cutter {
    address: SocketAddr,
    open: Arc<Mutex<JoinSet<()>>>,
    accepting: AbortHandle,
    fault: watch::Sender<Fault>,
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
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let fault = *faults.borrow();
                let pass = async move {
                    match fault {
                        Fault::None => {}
                        Fault::Silent => std::future::pending().await,
                        Fault::Unavailable => return turn_away(client).await,
                    }
                    if let Ok(mut server) = TcpStream::connect(target).await {
                        // However it ends, both ends are closed.
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                };
                connections.lock().expect("no connection panics").spawn(pass);
            }
        });
        Self { address, open, accepting: accepting.abort_handle(), fault }
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

    /// Breaks every connection that is open.
    pub fn cut(&self) {
        self.open.lock().expect("no connection panics").abort_all();
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

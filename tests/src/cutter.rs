//! A network between a client and a gateway that breaks on demand.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Passes connections on to one address, until it is told to break those that are open.
pub struct Cutter {
    address: SocketAddr,
    open: Arc<Mutex<JoinSet<()>>>,
    accepting: AbortHandle,
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
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let pass = async move {
                    if let Ok(mut server) = TcpStream::connect(target).await {
                        // However it ends, both ends are closed.
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                };
                connections.lock().expect("no connection panics").spawn(pass);
            }
        });
        Self { address, open, accepting: accepting.abort_handle() }
    }

    /// The URL of `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Breaks every connection that is open.
    pub fn cut(&self) {
        self.open.lock().expect("no connection panics").abort_all();
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

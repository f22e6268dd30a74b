//! A real load balancer before two gateways, as the pages configure it: it keeps nobody anywhere.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use tempfile::TempDir;

use crate::paths;
use crate::process::Process;
use crate::wait::until;

/// HAProxy, ended on drop.
pub struct Balancer {
    address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Balancer {
    /// Starts it on this port before these gateways.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(port: u16, gateways: [SocketAddr; 2]) -> Self {
        let page = paths::tests().join("../config/haproxy.cfg");
        let page = std::fs::read_to_string(page).expect("the configuration is there");
        let page = page.replace("bind :8080", &format!("bind 127.0.0.1:{port}"));
        let page = page.replace("10.0.0.1:8080", &gateways[0].to_string());
        let page = page.replace("10.0.0.2:8080", &gateways[1].to_string());
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let file = folder.path().join("haproxy.cfg");
        std::fs::write(&file, page).expect("the configuration can be written");
        let mut command = Command::new("haproxy");
        let process = Process::start("haproxy", command.arg("-db").arg("-f").arg(&file));
        let address: SocketAddr = ([127, 0, 0, 1], port).into();
        until("the balancer serves", || TcpStream::connect(address).is_ok()).await;
        Self { address, _process: process, _folder: folder }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A URL of the gateways.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

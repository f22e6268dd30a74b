//! Real load balancers before gateways, as the pages configure them: they keep nobody anywhere.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::paths;
use crate::process::Process;
use crate::wait::until;

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerKind {
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
    /// Caddy.
    Caddy,
}

/// A balancer, ended on drop.
pub struct Balancer {
    address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Balancer {
    /// Starts HAProxy on this port before these gateways.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(port: u16, gateways: &[SocketAddr]) -> Self {
        Self::start_kind(BalancerKind::Haproxy, port, gateways).await
    }

    /// Starts one of this kind on this port before these gateways.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_kind(kind: BalancerKind, port: u16, gateways: &[SocketAddr]) -> Self {
        Self::start_as(kind, port, gateways, |page| page).await
    }

    async fn start_as(
        kind: BalancerKind,
        port: u16,
        gateways: &[SocketAddr],
        edited: impl Fn(String) -> String,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let page = paths::tests().join("../config").join(kind.file());
        let page = edited(std::fs::read_to_string(page).expect("the configuration is there"));
        let file = folder.path().join(kind.file());
        std::fs::write(&file, kind.configured(&page, port, gateways, folder.path()))
            .expect("the configuration can be written");
        let process = Process::start(kind.file(), &mut kind.command(&file, folder.path()));
        let address: SocketAddr = ([127, 0, 0, 1], port).into();
        until("the balancer serves", || TcpStream::connect(address).is_ok()).await;
        Self { address, _process: process, _folder: folder }
    }

    /// The same of HAProxy, which keeps legacy clients at the gateways of their sessions.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_keeping(port: u16, gateways: &[SocketAddr]) -> Self {
        Self::start_as(BalancerKind::Haproxy, port, gateways, |page| page.replace("  #stick", "  stick")).await
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

impl BalancerKind {
    const fn file(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy.cfg",
            Self::Nginx => "nginx.conf",
            Self::Caddy => "Caddyfile",
        }
    }

    /// The page with the addresses of a test. A third gateway has a copy of the line of the second.
    fn configured(self, page: &str, port: u16, gateways: &[SocketAddr], folder: &Path) -> String {
        let mut text = String::new();
        for line in page.lines() {
            let copies = if line.contains("10.0.0.2:8080") { &gateways[1..] } else { &gateways[..1] };
            match line.contains("10.0.0.") && !line.contains("10.0.0.1:8080 10.0.0.2:8080") {
                true => {
                    for (number, address) in copies.iter().enumerate() {
                        let line = line.replace("10.0.0.1:8080", &address.to_string());
                        let line = line.replace("10.0.0.2:8080", &address.to_string());
                        text += &line.replace("server two", &format!("server two-{number}"));
                        text.push('\n');
                    }
                }
                false => {
                    let all: Vec<_> = gateways.iter().map(SocketAddr::to_string).collect();
                    text += &line.replace("10.0.0.1:8080 10.0.0.2:8080", &all.join(" "));
                    text.push('\n');
                }
            }
        }
        let own = folder.display();
        match self {
            Self::Haproxy => text.replace("bind :8080", &format!("bind 127.0.0.1:{port}")),
            Self::Nginx => {
                let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
                let folders: String = kinds.map(|kind| format!("  {kind}_temp_path {own}/{kind};\n")).concat();
                let text = text.replace("listen 8080", &format!("listen 127.0.0.1:{port}"));
                text.replace("http {\n", &format!("http {{\n  access_log off;\n{folders}"))
            }
            // The port of its own administration would be the same for all tests.
            Self::Caddy => {
                let text = text.replace("http://:8080", &format!("http://:{port}"));
                format!("{{\n\tadmin off\n}}\n{text}")
            }
        }
    }

    fn command(self, file: &Path, folder: &Path) -> Command {
        let mut command = match self {
            Self::Haproxy => Command::new("haproxy"),
            Self::Nginx => Command::new("nginx"),
            Self::Caddy => Command::new("caddy"),
        };
        match self {
            Self::Haproxy => command.arg("-db").arg("-f").arg(file),
            Self::Nginx => {
                let more = format!("daemon off; pid {}/pid;", folder.display());
                command.arg("-p").arg(folder).args(["-e", "stderr", "-g", &more, "-c"]).arg(file)
            }
            Self::Caddy => {
                command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
                command.env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder).env("HOME", folder)
            }
        };
        command
    }
}

//! A server of Redis, which gateways share.

use crate::process::{Process, free_address};
use anyhow::{Result, anyhow, ensure};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long it may take to start.
const READY_LIMIT: Duration = Duration::from_secs(5);

/// A server that ends with its owner.
pub(crate) struct Redis {
    address: SocketAddr,
    _process: Process,
}

impl Redis {
    /// Starts this program, and waits until it answers.
    pub(crate) async fn start(program: &Path, dir: &Path) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(program);
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir);
        let redis = Self { address, _process: Process::start(&mut command)? };
        let begin = Instant::now();
        while redis.memory().await.is_err() {
            ensure!(begin.elapsed() < READY_LIMIT, "redis-server does not answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(redis)
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many bytes all that it holds takes.
    pub(crate) async fn memory(&self) -> Result<u64> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(b"INFO memory\r\nQUIT\r\n").await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await?;
        let found = said.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
        found.ok_or_else(|| anyhow!("no used_memory in {said}"))
    }
}

//! The gateway that runs: how commands find it, and ask it.

use std::{io::ErrorKind, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustix::process::Pid;
use serde_json::Value;
use tokio::{net::UnixStream, time::timeout};

use crate::{
    config::{Config, default_file, listen_address},
    http::Method,
    server::admin,
};

/// Which process serves a configuration; none if no gateway does that this user can ask. The socket is in a folder that
/// nobody else can enter, so nobody else can name a process.
pub(super) fn process_id(config: &Config) -> Option<Pid> {
    let socket = admin::path(config)?;
    super::runtime().ok()?.block_on(process_at(&socket))
}

/// The process that listens at this socket.
pub(super) async fn process_at(socket: &str) -> Option<Pid> {
    let stream = UnixStream::connect(socket).await.ok()?;
    Pid::from_raw(stream.peer_cred().ok()?.pid()?)
}

/// How long the gateway may take to answer. A reload loads policies.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest answer, in bytes.
const MAX_ANSWER: usize = 16 << 20;

/// Which gateway is meant.
#[derive(Debug, clap::Args)]
pub(super) struct RunningGateway {
    /// The configuration that the gateway serves.
    #[arg(short, long, value_name = "FILE", default_value_os_t = default_file())]
    config: PathBuf,
    /// The `--listen` that the gateway was started with, if it was.
    #[arg(short, long, value_name = "ADDRESS", value_parser = listen_address)]
    listen: Option<SocketAddr>,
}

impl RunningGateway {
    /// Where it is asked.
    pub(super) fn socket(&self) -> anyhow::Result<String> {
        let mut config = super::load(&self.config)?;
        config.listen = self.listen.map_or(config.listen, |address| vec![address]);
        admin::path(&config).context("the login store has no place, and the socket would be beside it")
    }

    /// The configuration as it was named, and the address in place of its own.
    pub(super) const fn options(&self) -> (&PathBuf, Option<SocketAddr>) {
        (&self.config, self.listen)
    }

    /// Reads the body of an answer as it comes, piece by piece.
    pub(super) async fn read(
        &self,
        socket: &str,
        path: &str,
        mut piece: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let stream = self.connect(socket).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = http::Request::builder().uri(path).header("host", "localhost").body(Empty::<Bytes>::new())?;
        let read = async move {
            let mut answer = sender.send_request(request).await?;
            let status = answer.status();
            anyhow::ensure!(status.is_success(), "it answers with {status}");
            while let Some(frame) = answer.frame().await {
                if let Ok(data) = frame?.into_data() {
                    piece(&data)?;
                }
            }
            Ok::<_, anyhow::Error>(())
        };
        let (read, _) = tokio::join!(read, connection);
        read
    }

    async fn connect(&self, socket: &str) -> anyhow::Result<UnixStream> {
        UnixStream::connect(socket).await.map_err(|why| match why.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow::anyhow!(
                "no gateway serves {} here; `weir serve` starts one. One that runs with `--listen` is found with the \
                 same `--listen`",
                self.config.display()
            ),
            _ => anyhow::Error::new(why).context(format!("the gateway cannot be asked at {socket}")),
        })
    }

    /// The answer to a request. An error that it answers with is this one's error.
    pub(super) async fn ask(&self, socket: &str, method: Method, path: &str) -> anyhow::Result<Value> {
        let stream = self.connect(socket).await?;
        let asked = async {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let request = http::Request::builder().method(method).uri(path).header("host", "localhost");
            let request = request.body(Empty::<Bytes>::new())?;
            let answered = async move {
                let answer = sender.send_request(request).await?;
                let status = answer.status();
                let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
                let body = body.map_err(|why| anyhow::anyhow!("{why}"))?.to_bytes();
                let said: Value = serde_json::from_slice(&body).unwrap_or_default();
                if !status.is_success() {
                    let why = said["error"].as_str().map_or_else(|| format!("it answers with {status}"), str::to_owned);
                    anyhow::bail!("{why}");
                }
                anyhow::ensure!(said.is_object(), "the gateway's answer cannot be read");
                Ok::<_, anyhow::Error>(said)
            };
            // What is wrong with the connection is told by the request.
            let (answered, _) = tokio::join!(answered, connection);
            answered
        };
        timeout(PATIENCE, asked).await.context("the gateway does not answer")?
    }
}

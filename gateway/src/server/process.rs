//! The process is a pingora `Server` with one service, `Gateway`: pingora makes its runtime, holds its sockets and ends
//! both. At a signal, pingora-core 0.9.1 sleeps through its whole grace period, however soon the work is done, and then
//! drops what still runs (`server/mod.rs`, `run`). So the service itself waits for signals and closes what is open, and
//! pingora stops when the service has ended. Background work is tasks of that service: a pingora background service would
//! have a runtime of its own, with threads of its own, and a panic would end it for good (`run_service`).

use std::{sync::mpsc, thread::available_parallelism, time::Duration};

use async_trait::async_trait;
pub use pingora_core::server::ListenFds;
use pingora_core::{
    server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch, ShutdownWatch, configuration::ServerConf},
    services::Service,
};
use tokio::sync::watch;

/// What the log shows by default: of pingora only what is wrong.
pub const LOG_FILTER: &str = "info,pingora_core=warn";

/// The same with what Weir and its policies do.
pub const VERBOSE_LOG_FILTER: &str = "info,weir=debug,policy=debug,pingora_core=warn";

/// How long work on other threads may take to finish when the gateway has ended.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Runs pingora's server with one service, until that ends. None if it ended in a panic.
pub fn run<F, S, T>(serve: F) -> Option<T>
where
    F: FnOnce(ListenFds) -> S + Send + Sync + 'static,
    S: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let conf = ServerConf {
        threads: available_parallelism().map_or(1, usize::from),
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(LAST_WORK.as_secs()),
        ..ServerConf::default()
    };
    let (running, stopped) = watch::channel(());
    let (result, ended) = mpsc::channel();
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.add_service(Gateway { serve: Some(serve), result, _running: running });
    server.run(RunArgs { shutdown_signal: Box::new(GatewayEnd(stopped)) });
    ended.try_recv().ok()
}

/// The one service of the server.
struct Gateway<F, T> {
    serve: Option<F>,
    result: mpsc::Sender<T>,
    /// Closed when this is dropped, also by a panic.
    _running: watch::Sender<()>,
}

#[async_trait]
impl<F, S, T> Service for Gateway<F, T>
where
    F: FnOnce(ListenFds) -> S + Send + Sync,
    S: Future<Output = T> + Send,
    T: Send,
{
    async fn start_service(&mut self, sockets: Option<ListenFds>, _: ShutdownWatch, _: usize) {
        if let (Some(serve), Some(sockets)) = (self.serve.take(), sockets) {
            drop(self.result.send(serve(sockets).await));
        }
    }

    fn name(&self) -> &str {
        "weir"
    }
}

/// Tells the server to stop when the gateway has ended.
struct GatewayEnd(watch::Receiver<()>);

#[async_trait]
impl ShutdownSignalWatch for GatewayEnd {
    async fn recv(&self) -> ShutdownSignal {
        drop(self.0.clone().changed().await);
        ShutdownSignal::GracefulTerminate
    }
}

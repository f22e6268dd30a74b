//! How one `weir serve` hands its sockets to the next, so that no connection is refused in between.
//!
//! The protocol is pingora's: the new process waits at a socket of its own, and the old one sends what it listens on.
//! Pingora makes that socket open to everybody, so it lies in a folder that only its owner can enter.

use std::{
    fs::{self, DirBuilder},
    future::pending,
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
    time::Duration,
};

pub use pingora_core::server::Fds;
use pingora_core::server::ListenFds;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;

/// How long both processes accept connections: the new one starts meanwhile.
const OVERLAP: Duration = Duration::from_secs(5);

/// The longest path of a socket that every system takes, in bytes (`sun_path`).
const MAX_PATH: usize = 103;

/// Where the sockets of this configuration are handed over: beside the logins. None where these have no place.
pub fn path(config: &Config) -> Option<String> {
    beside_logins(config, "upgrade")
}

/// The place of a socket of a gateway that serves this configuration, in a folder of its own.
pub(super) fn beside_logins(config: &Config, purpose: &str) -> Option<String> {
    let (store, address) = (config.store.path.as_ref()?, config.listen.first()?);
    Some(store.parent()?.join(format!("{purpose}-{address}/socket")).to_str()?.to_owned())
}

/// Why no sockets were taken over.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Nobody has sent any.
    #[error("no `weir serve` has handed over its sockets ({0}); send SIGQUIT to the one that runs")]
    Alone(String),
    /// The folder of the socket cannot be made or looked at.
    #[error("the folder {0} cannot be used: {1}")]
    Folder(String, io::Error),
    /// Others could send sockets of theirs.
    #[error("others can enter {0}; `chmod 700` keeps them out")]
    Open(String),
    /// Systems take no longer ones.
    #[error("the path {0} is too long for a socket; `store.path` chooses another")]
    Path(String),
}

/// Has the process that runs hand over its sockets: it tries for some seconds.
///
/// # Errors
///
/// When it is gone, or another user's.
pub fn request(process: Pid) -> io::Result<()> {
    Ok(kill_process(process, Signal::QUIT)?)
}

/// Waits some seconds for the sockets of the process that runs. Blocks.
///
/// # Errors
///
/// When nobody sends them, or the place to receive them is not safe.
pub fn receive(path: &str) -> Result<Fds, UpgradeError> {
    private_place(path)?;
    let mut sockets = Fds::new();
    sockets.get_from_sock(path).map_err(|why| UpgradeError::Alone(why.to_string()))?;
    Ok(sockets)
}

/// Waits for SIGQUIT and hands over the sockets, once `before` is done; `after` that both processes accept connections for
/// a while. Without a process that takes them Weir goes on.
///
/// # Errors
///
/// When signals cannot be waited for.
pub async fn hand_over<F: Future<Output = ()>>(
    path: Option<String>,
    sockets: ListenFds,
    before: impl Fn() -> F,
    after: impl FnOnce(),
) -> io::Result<()> {
    let Some(path) = path else { return pending().await };
    let mut quit = signal(SignalKind::quit())?;
    loop {
        quit.recv().await;
        before().await;
        let (path, sockets) = (path.clone(), ListenFds::clone(&sockets));
        let sent = tokio::task::spawn_blocking(move || sockets.lock().send_to_sock(path.as_str())).await?;
        match sent {
            Ok(_) => break,
            Err(why) => tracing::error!("SIGQUIT: no `weir serve --upgrade` takes the sockets ({why}); Weir goes on"),
        }
    }
    tracing::info!("the sockets are handed over");
    after();
    tokio::time::sleep(OVERLAP).await;
    Ok(())
}

/// Makes the folder of a socket, which only its owner can enter, or sees that it is one.
pub(super) fn private_place(path: &str) -> Result<(), UpgradeError> {
    if path.len() > MAX_PATH {
        return Err(UpgradeError::Path(path.to_owned()));
    }
    private_folder(Path::new(path).parent().unwrap_or(Path::new("/")))
}

/// Makes a folder that only its owner can enter, or sees that it is one.
fn private_folder(folder: &Path) -> Result<(), UpgradeError> {
    let name = || folder.display().to_string();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let found = made.and_then(|()| fs::symlink_metadata(folder)).map_err(|why| UpgradeError::Folder(name(), why))?;
    let own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if own { Ok(()) } else { Err(UpgradeError::Open(name())) }
}

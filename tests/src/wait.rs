//! Waiting for a condition, never for a time.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

/// How long anything may take that is expected to happen. Generous: the machine may be busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not hold within [`PATIENCE`]; the message names `what`.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, || condition().then_some(())).await;
}

/// Waits until `look` finds something.
///
/// # Panics
/// When it finds nothing within [`PATIENCE`]; the message names `what`.
pub async fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited {PATIENCE:?} in vain until {what}");
        sleep(PAUSE).await;
    }
}

/// Listens at an address. A connection may have its port for a while: it is one of those that the system gives out.
///
/// # Panics
/// When it is taken for longer than [`PATIENCE`].
pub async fn listener(address: SocketAddr) -> TcpListener {
    let end = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(why) => assert!(Instant::now() < end, "nobody can listen at {address}: {why}"),
        }
        sleep(PAUSE).await;
    }
}

/// Awaits `future`.
///
/// # Panics
/// When it takes longer than [`PATIENCE`]; the message names `what`.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited {PATIENCE:?} in vain for {what}"),
    }
}

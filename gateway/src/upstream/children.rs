//! The processes of an upstream, whoever holds them, until they are gone.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::stdio::Process;

/// A process that is told to end is gone by then, unless it hangs inside the kernel.
const LONGEST: Duration = Duration::from_secs(22);

/// What each process closes when it is gone.
#[derive(Default)]
pub(super) struct Children {
    running: Mutex<Vec<watch::Receiver<()>>>,
}

impl Children {
    /// Takes note of a process that was started.
    pub(super) fn add(&self, process: &Process) {
        let mut running = self.running.lock();
        running.retain(|done| done.has_changed().is_ok());
        running.push(process.done());
    }

    /// How many run.
    pub(super) fn count(&self) -> usize {
        let mut running = self.running.lock();
        running.retain(|done| done.has_changed().is_ok());
        running.len()
    }

    /// Resolves when all are gone, or should be.
    pub(super) async fn done(&self) {
        let running = std::mem::take(&mut *self.running.lock());
        let gone = async {
            for mut done in running {
                // Nothing is ever sent; the only end is that the process is gone.
                while done.changed().await.is_ok() {}
            }
        };
        drop(tokio::time::timeout(LONGEST, gone).await);
    }
}

//! When clients are told that lists have changed: once for a burst.
//!
//! Upstreams that start together, or that run on one machine, change one after the other within moments. A client that
//! heard of each change would fetch every list as many times.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Catalog, ListVersions, refresher::over};

/// No further change for so long ends a burst.
const QUIET: Duration = Duration::from_millis(300);

/// A burst that goes on is told of after this time.
const LONGEST: Duration = Duration::from_secs(3);

/// A series of changes that follow each other.
struct Burst {
    first: Instant,
    last: Instant,
}

impl Burst {
    const fn new(now: Instant) -> Self {
        Self { first: now, last: now }
    }

    /// When clients are told.
    fn due(&self) -> Instant {
        (self.last + QUIET).min(self.first + LONGEST)
    }
}

/// Announces the changes of a catalog until that is stopped.
pub(super) async fn announce(catalog: Arc<Catalog>) {
    let (mut changes, mut stopping) = (catalog.changes.subscribe(), catalog.stopping.subscribe());
    tokio::select! {
        () = bursts(&mut changes, |now| catalog.tell(now)) => {}
        () = over(&mut stopping) => {}
    }
}

async fn bursts(changes: &mut watch::Receiver<ListVersions>, tell: impl Fn(ListVersions)) {
    while changes.changed().await.is_ok() {
        let mut burst = Burst::new(Instant::now());
        loop {
            tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => burst.last = Instant::now(),
                    Err(_) => return,
                },
                () = sleep_until(burst.due()) => break,
            }
        }
        tell(*changes.borrow_and_update());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_told_when_it_pauses_and_at_the_latest_after_a_while() {
        let start = Instant::now();
        let mut burst = Burst::new(start);
        assert_eq!(burst.due(), start + QUIET);
        burst.last = start + QUIET / 2;
        assert_eq!(burst.due(), start + QUIET / 2 + QUIET);
        burst.last = start + LONGEST;
        assert_eq!(burst.due(), start + LONGEST);
    }

    #[tokio::test]
    async fn thirteen_changes_at_once_are_told_once() {
        let (sender, mut changes) = watch::channel(ListVersions::default());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let telling = tokio::spawn(async move { bursts(&mut changes, |now| assert!(tell.send(now).is_ok())).await });
        for _ in 0..13 {
            sender.send_modify(|changes| changes.tools += 1);
        }
        assert_eq!(told.recv().await.map(|told| told.tools), Some(13));
        drop(sender);
        assert!(telling.await.is_ok());
        assert_eq!(told.recv().await, None, "nothing more was told");
    }
}

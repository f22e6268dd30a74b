//! What Weir itself answers a server that asks: one answer at a time on each connection, and not more waiting than a
//! server that means well would ever need.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Mutex, Semaphore};

/// How many answers may wait to be sent.
const WAITING: usize = 64;

/// The longest answer, in bytes. It repeats the id of its request, which is as long as the server likes.
const LONGEST: usize = 64 * 1024;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The answers that wait on one connection. What there is no room for is dropped: the server asks more than it reads.
pub struct Replies {
    room: Arc<Semaphore>,
    sending: Mutex<()>,
    dropped: AtomicBool,
}

impl Default for Replies {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(WAITING)), sending: Mutex::default(), dropped: AtomicBool::new(false) }
    }
}

impl Replies {
    /// Has an answer of so many bytes sent by `send` when it is its turn.
    pub fn send(self: &Arc<Self>, upstream: &str, bytes: usize, send: impl Future<Output = ()> + Send + 'static) {
        // At the very end of the process there is nowhere to run it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let room = Arc::clone(&self.room).try_acquire_owned().ok().filter(|_| bytes <= LONGEST);
        let Some(room) = room else {
            if !self.dropped.swap(true, Ordering::Relaxed) {
                tracing::warn!(upstream, "asks more than it reads the answers to; what is too much is not answered");
            }
            return;
        };
        let replies = Arc::clone(self);
        runtime.spawn(async move {
            let _turn = replies.sending.lock().await;
            drop(tokio::time::timeout(PATIENCE, send).await);
            drop(room);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn answers_go_one_by_one_in_order_and_those_without_room_are_dropped() {
        let (replies, sent) = (Arc::new(Replies::default()), Arc::new(std::sync::Mutex::new(Vec::new())));
        let (running, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        for number in 0..4000 {
            let (sent, running, gate) = (Arc::clone(&sent), Arc::clone(&running), Arc::clone(&gate));
            replies.send("x", 10, async move {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                gate.acquire().await.map(tokio::sync::SemaphorePermit::forget).unwrap_or_default();
                running.fetch_sub(1, Ordering::SeqCst);
                sent.lock().map(|mut sent| sent.push(number)).unwrap_or_default();
            });
        }
        replies.send("x", LONGEST + 1, async { panic!("it is too long") });
        gate.add_permits(4000);
        let all = replies.room.acquire_many(u32::try_from(WAITING).unwrap_or_default()).await;
        assert!(all.is_ok());
        let sent = sent.lock().map(|sent| sent.clone()).unwrap_or_default();
        assert_eq!(sent, (0..WAITING).collect::<Vec<_>>());
    }
}

//! The tasks that bring what a session's upstreams say of their own accord.
//!
//! A server may ask or tell something on its own stream as soon as the first call is there, and what nobody hears then
//! is lost. So a call waits for the head of that stream, for a moment, where the stream is just being opened.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use crate::config::UpstreamName;

/// How long calls wait for the head of an upstream's own stream; some servers send it only with the first event.
const HEAD: Duration = Duration::from_millis(250);

/// The forwarders of one session, one for each upstream.
#[derive(Default)]
pub struct Forwarders {
    running: Mutex<HashMap<UpstreamName, ForwarderTask>>,
    /// How many have not heard from their upstream yet.
    opening: Arc<AtomicUsize>,
}

struct ForwarderTask {
    task: JoinHandle<()>,
    open: watch::Receiver<bool>,
}

/// Held by a forwarder while its stream is being opened.
pub struct ForwarderOpening {
    open: watch::Sender<bool>,
    opening: Arc<AtomicUsize>,
}

impl Forwarders {
    /// Runs a forwarder in place of the one that ran for this upstream. It has a moment to drop what it is given.
    pub fn run<F>(&self, upstream: &UpstreamName, forwarder: impl FnOnce(ForwarderOpening) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (open, opened) = watch::channel(false);
        self.opening.fetch_add(1, Ordering::Relaxed);
        let opening = ForwarderOpening { open, opening: Arc::clone(&self.opening) };
        let task = tokio::spawn(forwarder(opening));
        self.running.lock().insert(upstream.clone(), ForwarderTask { task, open: opened });
    }

    /// Whether a forwarder runs for this upstream.
    pub fn is_running(&self, upstream: &UpstreamName) -> bool {
        self.running.lock().get(upstream).is_some_and(|forwarder| !forwarder.task.is_finished())
    }

    /// Waits until the upstream's stream is open, or does not open soon, or is not being opened.
    pub async fn settled(&self, upstream: &UpstreamName) {
        if self.opening.load(Ordering::Relaxed) == 0 {
            return;
        }
        let open = self.running.lock().get(upstream).map(|forwarder| forwarder.open.clone());
        if let Some(mut open) = open {
            drop(tokio::time::timeout(HEAD, open.wait_for(|open| *open)).await);
        }
    }

    /// Ends the one that runs for this upstream.
    pub fn end(&self, upstream: &UpstreamName) {
        self.running.lock().remove(upstream);
    }

    /// Ends all of them.
    pub fn stop(&self) {
        self.running.lock().clear();
    }
}

impl ForwarderOpening {
    /// The output of `open`, until which calls wait: not longer than a moment.
    pub async fn during<T>(self, open: impl Future<Output = T>) -> T {
        let mut open = std::pin::pin!(open);
        match tokio::time::timeout(HEAD, &mut open).await {
            Ok(opened) => opened,
            Err(_) => {
                drop(self);
                open.await
            }
        }
    }
}

impl Drop for ForwarderOpening {
    fn drop(&mut self) {
        self.opening.fetch_sub(1, Ordering::Relaxed);
        self.open.send_replace(true);
    }
}

impl Drop for ForwarderTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_a_stream_that_is_being_opened_and_for_a_moment_only() {
        let [first, second, third] = ["a", "b", "c"].map(|name| name.parse::<UpstreamName>().unwrap());
        let forwarders = Forwarders::default();
        forwarders.settled(&first).await;
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        forwarders.run(&first, |opening| async move { drop(opening.during(told).await) });
        forwarders.run(&second, |opening| async move { opening.during(std::future::pending()).await });
        let start = tokio::time::Instant::now();
        forwarders.settled(&third).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "another upstream's stream is no concern of this one");
        drop(tell);
        forwarders.settled(&first).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        forwarders.settled(&second).await;
        assert_eq!(start.elapsed(), HEAD);
        assert!(forwarders.is_running(&second));
        forwarders.settled(&second).await;
        assert_eq!(start.elapsed(), HEAD, "the moment is over for all that follow");
        assert_eq!(forwarders.opening.load(Ordering::Relaxed), 0);
        forwarders.stop();
        assert!(!forwarders.is_running(&second));
    }
}

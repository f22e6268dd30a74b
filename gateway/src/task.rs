//! How a gateway does work: on the heap, within a limit, always, or again after a failure.

use std::{pin::Pin, time::Duration};

use tokio::{sync::watch, task::JoinSet, time::Instant};
use weir_flow::Backoff;

/// The next pause of `backoff`, with chance from the system.
pub fn pause(backoff: &mut Backoff) -> Duration {
    // Without chance all come back at once, which harms nobody but the server that failed them.
    backoff.pause(None, getrandom::u32().unwrap_or_default())
}

/// Waits for the next pause of `backoff`.
pub async fn back_off(backoff: &mut Backoff) {
    tokio::time::sleep(pause(backoff)).await;
}

/// Work on the heap. What has to wait for much has room for all of it, and [`Box::pin`] copies that room from the stack.
/// Taken before the work is made, nothing is copied but what it begins with.
#[inline(always)]
pub fn on_heap<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let room = Box::new_uninit();
    Box::into_pin(Box::write(room, make()))
}

/// Resolves with `work`; never where there is none.
pub async fn or_never<T>(work: Option<impl Future<Output = T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// Does `work` until `over` turns true; none if that comes first.
pub async fn until<T>(mut over: watch::Receiver<bool>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        output = work => Some(output),
        _ = over.wait_for(|over| *over) => None,
    }
}

/// Does `work` until this is dropped or there is no more to do. A panic in it is logged, and the work begins anew.
pub async fn always<F>(what: &str, work: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    // Dropped with this, the work ends.
    let mut working = JoinSet::new();
    let mut backoff = Backoff::CONNECT;
    loop {
        let begun = Instant::now();
        working.spawn(work());
        match working.join_next().await {
            Some(Err(why)) if why.is_panic() => tracing::error!("{what} met a fault in weir and begins anew"),
            _ => return,
        }
        backoff.handle_stay(begun.elapsed());
        back_off(&mut backoff).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_no_end() {
        let begun = Arc::new(AtomicUsize::new(0));
        let work = || {
            let begun = Arc::clone(&begun);
            async move {
                assert!(begun.fetch_add(1, Ordering::Relaxed) >= 2, "a fault");
            }
        };
        always("this", work).await;
        assert_eq!(begun.load(Ordering::Relaxed), 3);
    }
}

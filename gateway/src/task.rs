//! Work that a gateway always does.

use std::time::Duration;

use tokio::task::JoinSet;

/// How long work that met a fault rests before it begins anew.
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// Does `work` until this is dropped or there is no more to do. A panic in it is logged, and the work begins anew.
pub async fn always<F>(what: &str, work: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    // Dropped with this, the work ends.
    let mut working = JoinSet::new();
    loop {
        working.spawn(work());
        match working.join_next().await {
            Some(Err(why)) if why.is_panic() => tracing::error!("{what} met a fault in weir and begins anew"),
            _ => return,
        }
        tokio::time::sleep(AFTER_FAULT).await;
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

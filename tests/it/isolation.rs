//! Honest callers beside an upstream of every hostile kind. `make soak` does the same for ten minutes, and measures.

use std::time::Duration;

use weir_tests::hostile::FORGED;
use weir_tests::soak::Soak;
use weir_tests::wait::until;

/// Descriptors and processes that may be open a moment after the calls: connections and children that rest.
const AT_REST: (usize, usize) = (256, 64);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_honest_caller_notices_a_hostile_upstream() {
    let soak = Soak::start().await;
    let findings = soak.run(Duration::from_secs(1), Duration::from_secs(12)).await;
    assert!(findings.failures.is_empty(), "{findings}");
    assert!(findings.hostile > 0 && findings.during.len() > findings.before.len(), "{findings}");
    let log = soak.log();
    assert!(!log.contains('\u{1b}') && !log.contains('\u{202e}'), "an upstream's control characters are in the log");
    assert!(!log.contains(FORGED), "a forged answer is in the log");
    until("what the hostile calls opened is closed", || {
        let held = soak.sample();
        held.descriptors < AT_REST.0 && held.processes < AT_REST.1
    })
    .await;
}

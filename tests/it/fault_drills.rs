//! The fault drills of `make drill` in a short form.

use weir_tests::drill::{ALL, Outcome, Scale, named};

/// What takes half a minute however short it is: that long a name is believed.
const LONG: &str = "address_changes";

async fn holds(name: &str) {
    match named(name).run(Scale::SHORT).await {
        Outcome::Held(report) => eprintln!("{report}"),
        Outcome::Skipped(why) => eprintln!("NOT CHECKED: {name}: {why}"),
        Outcome::Failed(failures) => panic!("{name}: {}", failures.join("\n")),
    }
}

macro_rules! short {
    ($($name:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $name() {
            holds(stringify!($name)).await;
        })*

        #[test]
        fn every_drill_has_a_short_form() {
            let here = [$(stringify!($name)),*];
            let missing = ALL.iter().filter(|drill| !here.contains(&drill.name) && drill.name != LONG);
            assert_eq!(missing.map(|drill| drill.name).collect::<Vec<_>>(), Vec::<&str>::new());
        }
    };
}

short![
    http_killed,
    sse_killed_mid_stream,
    stdio_killed_mid_call,
    network_delays,
    network_drops,
    network_resets,
    network_truncates,
    network_half_closes,
    network_throttles,
    safe_requests_over_resets,
    accepts_and_never_answers,
    unavailable,
    certificate_changes,
    disk_full,
    clock_jumps,
    sigterm,
    upgrade,
    reloads,
    replicas_killed,
    replicas_rolled,
    store_restarts,
    store_fails_over,
    store_cut_off,
    store_slow,
    clocks_differ,
];

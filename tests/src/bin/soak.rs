//! Calls honest upstreams beside an upstream of every hostile kind and says what came of it. `make soak` runs it.
#![allow(clippy::print_stdout, reason = "this is a command")]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use weir_tests::soak::{Soak, quantile};

/// Which faults come when.
const SEED: u64 = 13;

/// By how many KiB, descriptors and processes the last quarter may be above the second.
const SLACK: [u64; 3] = [16 * 1024, 32, 4];

/// Calls honest upstreams beside hostile ones. Ends with 1 if an honest caller noticed anything, or memory has grown.
#[derive(Debug, Parser)]
struct Arguments {
    /// Upstreams and the network fail at random instead, under the load of 200 clients
    #[arg(long)]
    faults: bool,
    /// For how many seconds
    #[arg(default_value_t = 600)]
    seconds: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { faults, seconds } = Arguments::parse();
    let time = Duration::from_secs(seconds);
    if faults {
        let found = weir_tests::drill::soak(time, SEED).await;
        println!("{}", found.clone().unwrap_or_else(|failures| format!("FAILED: {}", failures.join("\n  "))));
        return if found.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let soak = Soak::start().await;
    let findings = soak.run((time / 10).max(Duration::from_secs(10)), time).await;
    println!("{findings}");
    let [early, late] = findings.held();
    let held = |sample: weir_tests::soak::Sample| [sample.memory, sample.descriptors as u64, sample.processes as u64];
    let flat = held(early).into_iter().zip(held(late)).zip(SLACK).all(|((early, late), slack)| late <= early + slack);
    let [before, during] = [&findings.before, &findings.during].map(|times| quantile(times, 0.99));
    let (failed, slow) = (!findings.failures.is_empty(), during > 2 * before);
    for (wrong, what) in [
        (failed, "honest calls failed"),
        (slow, "p99 of honest calls more than doubled"),
        (!flat, "what the gateway holds has grown"),
    ] {
        if wrong {
            println!("FAILED: {what}");
        }
    }
    if failed || slow || !flat { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

//! Fault drills under load; prints a line for each. `make drill` runs it.
//!
//! Its arguments are names of drills, all of them unless given; `--short` is as the tests have them. It ends with 1 if
//! something did not hold.
#![allow(clippy::print_stdout, reason = "this is a command")]

use std::process::ExitCode;

use weir_tests::drill::{ALL, Outcome, Scale, named};

#[tokio::main]
async fn main() -> ExitCode {
    let (flags, names): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let scale = if flags.iter().any(|flag| flag == "--short") { Scale::SHORT } else { Scale::FULL };
    let drills = if names.is_empty() { ALL.to_vec() } else { names.iter().map(|name| named(name)).collect() };
    let mut failed = false;
    for drill in drills {
        let (word, text) = match drill.run(scale).await {
            Outcome::Held(report) => ("ok", report),
            Outcome::Skipped(why) => ("SKIPPED", why),
            Outcome::Failed(failures) => {
                failed = true;
                ("FAILED", failures.join("\n  "))
            }
        };
        println!("{:<26} {word:<8} {text}", drill.name);
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

//! Fault drills under load; prints a line for each. `make drill` runs it.
#![allow(clippy::print_stdout, reason = "this is a command")]

use std::process::ExitCode;

use clap::{Parser, builder::PossibleValuesParser};
use weir_tests::drill::{ALL, Outcome, Scale, named};

/// Runs fault drills under load, and prints a line for each. Ends with 1 if something did not hold.
#[derive(Debug, Parser)]
struct Arguments {
    /// As short as the tests have them
    #[arg(long)]
    short: bool,
    /// Which drills to run [default: all]
    #[arg(value_parser = PossibleValuesParser::new(ALL.iter().map(|drill| drill.name)))]
    names: Vec<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { short, names } = Arguments::parse();
    let scale = if short { Scale::SHORT } else { Scale::FULL };
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

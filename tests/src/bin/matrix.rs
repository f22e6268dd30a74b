//! Writes the page `tests/MATRIX.md`: who was tried with whom. `make matrix` runs it.
#![allow(clippy::print_stdout, reason = "this is a command")]
#![allow(clippy::expect_used, reason = "a run that cannot go on has nothing to say")]

use std::process::ExitCode;

use clap::Parser;
use weir_tests::matrix::page::{Line, Scenarios, Suite, failures, page};
use weir_tests::matrix::{Cell, Column, columns, rows, through, through_two, without};
use weir_tests::peer::Launch;
use weir_tests::suite::{Way, client_scenarios, run, run_client};
use weir_tests::{Gateway, Peer, paths};

const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];

/// Tries every client at every server through Weir, and writes the page `tests/MATRIX.md`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Through two gateways behind a balancer: print what is lost there, and write no page
    #[arg(long)]
    two: bool,
    /// Only clients that have this in their titles: print the page instead of writing it
    client: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tokio::select! {
        () = work(arguments) => ExitCode::SUCCESS,
        // What was started is ended on the way out.
        _ = tokio::signal::ctrl_c() => ExitCode::FAILURE,
    }
}

async fn work(Arguments { two, client: only }: Arguments) {
    let is_meant = |title: &str| only.as_ref().is_none_or(|only| title.contains(only.as_str()));
    let columns = columns().await;
    let without = without(&columns).await;
    let mut lines: Vec<Line> = Vec::new();
    for row in rows().into_iter().filter(|row| is_meant(&row.title)) {
        let cells = if two { through_two(&row, &columns).await } else { through(&row, &columns).await };
        let line = (row, cells);
        eprint!("{}\n{}", line.0.title, failures(&columns, &line));
        lines.push(line);
    }
    if two {
        return report_lost(&columns, &without, &lines);
    }
    let (suites, scenarios) = if only.is_none() { (suites().await, scenarios().await) } else { Default::default() };
    let page = page(&columns, &without, &lines, &suites, &scenarios);
    if only.is_some() {
        println!("{page}");
    } else {
        std::fs::write(paths::tests().join("MATRIX.md"), page).expect("the page can be written");
    }
}

/// Says what works without a gateway and not through two.
fn report_lost(columns: &[Column], without: &[Cell], lines: &[Line]) {
    for (row, cells) in lines {
        let mut good = 0;
        for ((column, cell), without) in columns.iter().zip(cells).zip(without) {
            let Some(cell) = cell else { continue };
            match cell.lost(without) {
                lost if lost.is_empty() => good += 1,
                lost => println!("{} at {}: LOST {}: {:?}", row.title, column.key, lost.join(", "), cell.failures),
            }
        }
        println!("{}: nothing lost at {good} of {} servers", row.title, cells.iter().flatten().count());
    }
}

/// The suite in front of the fixture in everything that it can speak.
async fn suites() -> Vec<Suite> {
    let (both, legacy, modern, sse, other) = tokio::join!(
        Peer::fixture("both"),
        Peer::fixture("legacy"),
        Peer::fixture("modern"),
        Peer::fixture_sse(),
        Peer::everything(),
    );
    let sse = format!("[upstreams.fixture]\nurl = \"{}\"\n", sse.sse_url());
    let beside = other.config("other") + &both.config("fixture");
    let fixtures = [
        ("http, both eras", both.config("fixture")),
        ("the same beside another", beside),
        ("http, legacy", legacy.config("fixture")),
        ("http, modern", modern.config("fixture")),
        ("HTTP+SSE", sse),
        ("stdio, legacy", Launch::fixture("legacy").config("fixture")),
        ("stdio, modern", Launch::fixture("modern").config("fixture")),
    ];
    let mut suites = Vec::new();
    for (fixture, config) in fixtures {
        let gateway = Gateway::start(&config).await;
        gateway.healthy(&["fixture"]).await;
        for revision in REVISIONS {
            let verdict = run(&gateway.url("/mcp/fixture"), revision, None).await;
            eprintln!("{fixture} {revision}: {} passed\n{}", verdict.passed.len(), verdict.failed.join("\n"));
            suites.push(Suite { fixture, revision, verdict });
        }
    }
    suites
}

/// The suite's client scenarios, with Weir in all places where it can stand.
async fn scenarios() -> Vec<Scenarios> {
    let mut all = Vec::new();
    for way in [Way::One, Way::All, Way::Connect] {
        for revision in REVISIONS {
            let mut results = Vec::new();
            for scenario in client_scenarios(revision, false).await {
                let passed = run_client(way, &scenario, revision).await;
                if let Err(output) = &passed {
                    eprintln!("{way:?} {revision} {scenario}:\n{output}");
                }
                results.push((scenario, passed.is_ok()));
            }
            all.push(Scenarios { way, revision, results });
        }
    }
    all
}

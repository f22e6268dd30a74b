//! The matrix as a page for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Cell, Column, Row, columns::npm};
use crate::suite::{SuiteVerdict, Way};

/// A client's row: its cells in the order of the columns, none where it cannot go.
pub type Line = (Row, Vec<Option<Cell>>);

/// A run of the conformance suite as a client.
pub struct Suite {
    /// What the fixture behind the gateway speaks.
    pub fixture: &'static str,
    /// The revision that is required.
    pub revision: &'static str,
    /// What came of it.
    pub verdict: SuiteVerdict,
}

/// A run of the suite's client scenarios.
pub struct Scenarios {
    /// Where Weir stood.
    pub way: Way,
    /// The revision that is required.
    pub revision: &'static str,
    /// Each scenario, and whether it passed.
    pub results: Vec<(String, bool)>,
}

/// The whole page. Nothing in it depends on when or where it was made.
#[must_use]
pub fn page(columns: &[Column], without: &[Cell], lines: &[Line], suites: &[Suite], scenarios: &[Scenarios]) -> String {
    let mut page = String::from(
        "# Who was tried with whom\n\n\
         Written by `make matrix`, which starts every server below, puts one Weir in front of all of them and sends\n\
         every client below to each at `/mcp/<server>`. The versions are those pinned in `tests/peers`.\n\n",
    );
    page += &clients(columns, without, lines);
    page += &conformance(suites);
    page += &client_scenarios(scenarios);
    page
}

fn clients(columns: &[Column], without: &[Cell], lines: &[Line]) -> String {
    let mut text = String::from(
        "## Clients and servers\n\n\
         At each server a client calls a tool (`call`), lists all tools page by page (`pages`, where the server has\n\
         two), hears the progress of a call that runs (`notification`) and cancels a call, of which the server must\n\
         learn (`cancel`). ✓ is all that the server can do without Weir; what is missing is named. `-` is where a client\n\
         cannot go.\n\n",
    );
    let heads: Vec<String> = columns.iter().map(|column| column.key.replace('-', " ")).collect();
    let _ = writeln!(text, "| client | {} |", heads.join(" | "));
    let _ = writeln!(text, "| --- |{}", " :-: |".repeat(columns.len()));
    let direct: Vec<String> = without.iter().map(able).collect();
    let _ = writeln!(text, "| *without Weir* | {} |", direct.join(" | "));
    for (row, cells) in lines {
        let cells: Vec<String> =
            cells.iter().zip(without).map(|(cell, without)| shown(cell.as_ref(), without)).collect();
        let _ = writeln!(text, "| {} | {} |", row.title, cells.join(" | "));
    }
    text += "\nThe servers; all but the first seven are proxies in front of one small server over stdio:\n\n";
    for column in columns {
        let _ = writeln!(text, "- **{}**: {}", column.key.replace('-', " "), column.title);
    }
    text += "\n";
    text += NOTES;
    text
}

/// What a server can do without the gateway.
fn able(cell: &Cell) -> String {
    if cell.missed.is_empty() && !cell.passed.is_empty() { "✓".to_owned() } else { missing(&cell.missed) }
}

fn shown(cell: Option<&Cell>, without: &Cell) -> String {
    let Some(cell) = cell else { return "-".to_owned() };
    let lost = cell.lost(without);
    if lost.is_empty() { "✓".to_owned() } else { missing(&lost) }
}

fn missing(steps: &[&str]) -> String {
    let steps: Vec<String> = steps.iter().map(|step| format!("no {step}")).collect();
    steps.join(", ")
}

/// What explains the row without Weir. It holds for the versions that are pinned.
const NOTES: &str = "\
What servers cannot do without Weir either:

- **supergateway stateless** starts a process for each request, so nothing can be cancelled by a later one.
- **pypi proxy** passes on neither progress (over Streamable HTTP) nor cancellations.
- **mcp hub** passes on no progress, and shows the first page of a server's list only; what it cancels cannot be seen.
- **everything** has one page of tools and counts no cancelled calls: there the next call must work.

Inspectors call and list; they have no command for the rest. After a call was cancelled, supergateway (stateful) sends
the notifications of later calls in that session to the stream of the cancelled one.

";

fn conformance(suites: &[Suite]) -> String {
    let version = npm("@modelcontextprotocol/conformance");
    let mut text = format!(
        "## The conformance suite as the client\n\n\
         `{version}`, at `/mcp/<server>` in front of the fixture of the tests: required scenarios that passed, of those\n\
         that the revision has.\n\n"
    );
    let mut table: BTreeMap<&str, BTreeMap<&str, &SuiteVerdict>> = BTreeMap::new();
    let mut fixtures = Vec::new();
    for Suite { fixture, revision, verdict } in suites {
        table.entry(revision).or_default().insert(fixture, verdict);
        if !fixtures.contains(fixture) {
            fixtures.push(*fixture);
        }
    }
    let heads: Vec<&str> = fixtures.clone();
    let _ = writeln!(text, "| revision | {} |", heads.join(" | "));
    let _ = writeln!(text, "| --- |{}", " :-: |".repeat(heads.len()));
    for (revision, verdicts) in &table {
        let cells = heads.iter().map(|head| {
            verdicts.get(head).map_or("-".to_owned(), |verdict| {
                format!("{}/{}", verdict.passed.len(), verdict.passed.len() + verdict.failed.len())
            })
        });
        let _ = writeln!(text, "| {revision} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text += "\n";
    for (kind, failures) in [
        ("Required and not passed", (|verdict| &verdict.failed) as fn(&SuiteVerdict) -> &Vec<String>),
        ("Run, not required, and not passed", |verdict| &verdict.unscored_failures),
    ] {
        let mut where_: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Suite { fixture, revision, verdict } in suites {
            for failed in failures(verdict) {
                let name = failed.lines().next().unwrap_or_default();
                where_.entry(name).or_default().push(format!("{fixture} {revision}"));
            }
        }
        if where_.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{kind}:\n");
        for (name, places) in where_ {
            let _ = writeln!(text, "- {name}: {}", places.join("; "));
        }
        text += "\n";
    }
    text
}

fn client_scenarios(scenarios: &[Scenarios]) -> String {
    let mut text = String::from(
        "## The conformance suite as the server\n\n\
         Its client scenarios, those about authorization excepted, with Weir between the suite and a client that does\n\
         what each scenario asks for.\n\n\
         | revision | at | passed | not passed |\n| --- | --- | :-: | --- |\n",
    );
    for Scenarios { way, revision, results } in scenarios {
        let at = match way {
            Way::One => "`/mcp/<server>`",
            Way::All => "`/mcp`",
            Way::Connect => "`weir connect`",
        };
        let passed = results.iter().filter(|(_, passed)| *passed).count();
        let failed: Vec<&str> =
            results.iter().filter(|(_, passed)| !passed).map(|(scenario, _)| scenario.as_str()).collect();
        let _ = writeln!(text, "| {revision} | {at} | {passed}/{} | {} |", results.len(), failed.join(", "));
    }
    text
}

/// All failures of a row, for a log.
#[must_use]
pub fn failures(columns: &[Column], (row, cells): &Line) -> String {
    let mut text = String::new();
    for (column, cell) in columns.iter().zip(cells) {
        for failure in cell.iter().flat_map(|cell| &cell.failures) {
            let _ = writeln!(text, "{} at {}: {failure}", row.title, column.key);
        }
    }
    text
}

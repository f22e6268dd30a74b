//! From the rounds of each cell to one table: medians, the spread of the CPU figure, and how it compares to the floor.

use crate::crowd::Crowded;
use crate::load::Figures;
use crate::messages::{Era, Workload};
use crate::policies::PolicyFigures;
use crate::startup::AtRest;
use serde::Serialize;
use std::fmt::Write as _;

const HEADER: &str = "\
| era | call | connections | subject | calls/s | p50 µs | p99 µs | CPU µs/call | (least–most) | × floor | × without |
| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
";

const CSV_HEADER: &str =
    "era,call,connections,subject,calls_per_second,p50,p99,cpu,cpu_least,cpu_most,times_floor,times_without
";

/// All rounds of one subject under one load.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) era: Era,
    pub(crate) workload: Workload,
    pub(crate) connections: usize,
    pub(crate) subject: &'static str,
    pub(crate) rounds: Vec<Figures>,
    /// The CPU of a call over all of a start: what calls leave to be done after a round is part of it. Microseconds.
    pub(crate) starts: Vec<f64>,
    /// Why there are no more rounds.
    pub(crate) failure: Option<String>,
}

impl Cell {
    /// A cell without figures yet.
    pub(crate) fn new(era: Era, workload: Workload, connections: usize, subject: &'static str) -> Self {
        Self { era, workload, connections, subject, rounds: Vec::new(), starts: Vec::new(), failure: None }
    }

    /// What a pattern is looked for in.
    pub(crate) fn label(&self) -> String {
        let Self { era, workload, connections, subject, .. } = self;
        format!("{era} {workload} x{connections} {subject}")
    }

    /// The failure with where it happened.
    pub(crate) fn told_failure(&self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        Some(format!("{}: {failure}", self.label()))
    }
}

/// One line of the table. Times are microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    era: String,
    call: String,
    connections: usize,
    subject: &'static str,
    calls_per_second: f64,
    p50: f64,
    p99: f64,
    cpu: f64,
    cpu_least: f64,
    cpu_most: f64,
    /// The CPU of a call in each round.
    cpu_rounds: Vec<f64>,
    /// The same over all of each start, from before its first round until what calls leave to be done is done.
    cpu_starts: Vec<f64>,
    times_floor: Option<f64>,
    /// Where Weir does something besides: how that compares to the same call without it.
    times_without: Option<f64>,
    /// The same from `cpu_starts`.
    over_starts: Option<MeanRatio>,
    failed: bool,
}

/// The mean of the ratios of some starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct MeanRatio {
    mean: f64,
    /// Its standard error.
    error: f64,
    starts: usize,
}

/// Everything that one run found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) machine: String,
    /// Whether the cost of a call is in instructions instead of microseconds.
    pub(crate) counts: bool,
    pub(crate) rows: Vec<Row>,
    pub(crate) at_rest: Vec<AtRest>,
    pub(crate) crowded: Vec<Crowded>,
    pub(crate) policies: Option<PolicyFigures>,
    /// What could not be measured, and why. A run with any of these has failed.
    pub(crate) failures: Vec<String>,
}

/// Turns cells into rows; `floor` names the subject that the others are compared to, and `without` those without
/// what a subject does besides.
pub(crate) fn rows(cells: &[Cell], floor: &str, without: impl Fn(&str) -> Vec<&'static str>) -> Vec<Row> {
    let beside = |cell: &Cell, subject: &str| {
        let same = |other: &&Cell| {
            other.subject == subject
                && (other.era, other.workload, other.connections) == (cell.era, cell.workload, cell.connections)
        };
        cells.iter().find(same)
    };
    let times = |cell: &Cell, other: &Cell| {
        // Round by round: what disturbs the machine for a while disturbs both.
        let rounds = cell.rounds.iter().zip(&other.rounds);
        let ratios = rounds.filter(|(_, other)| other.cpu > 0.0).map(|(own, other)| own.cpu / other.cpu);
        middle(ratios.collect())
    };
    let row = |cell: &Cell| {
        let without = without(cell.subject).into_iter().find_map(|subject| beside(cell, subject));
        let cpu = median(cell, |figures| figures.cpu);
        let all = || cell.rounds.iter().map(|figures| figures.cpu);
        Row {
            era: cell.era.to_string(),
            call: cell.workload.to_string(),
            connections: cell.connections,
            subject: cell.subject,
            calls_per_second: median(cell, |figures| figures.rate),
            p50: median(cell, |figures| figures.p50),
            p99: median(cell, |figures| figures.p99),
            cpu,
            cpu_least: all().reduce(f64::min).unwrap_or(0.0),
            cpu_most: all().reduce(f64::max).unwrap_or(0.0),
            cpu_rounds: all().collect(),
            cpu_starts: cell.starts.clone(),
            times_floor: beside(cell, floor).and_then(|other| times(cell, other)),
            times_without: without.and_then(|other| times(cell, other)),
            over_starts: without.and_then(|other| MeanRatio::of(&cell.starts, &other.starts)),
            failed: cell.failure.is_some(),
        }
    };
    cells.iter().map(row).collect()
}

impl Report {
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        if !self.rows.is_empty() {
            let cost = if self.counts { "instructions/call" } else { "CPU µs/call" };
            text.push_str(&HEADER.replace("CPU µs/call", cost));
        }
        // Writing to a String cannot fail.
        for row in &self.rows {
            let figures = if row.failed { " failed | | | | | | ".to_owned() } else { row.figures() };
            let _ = writeln!(text, "| {} | {} | {} | {} |{figures}|", row.era, row.call, row.connections, row.subject);
        }
        for (row, ratio) in self.rows.iter().filter_map(|row| Some((row, row.over_starts?))) {
            let MeanRatio { mean, error, starts } = ratio;
            let Row { era, call, connections, subject, .. } = row;
            let _ = writeln!(
                text,
                "\n{era} {call} x{connections} {subject}: {mean:.3} ± {error:.3} times a call without it, over all of {starts} starts"
            );
        }
        for rest in &self.at_rest {
            let _ = writeln!(text, "\n{rest}");
        }
        for crowded in &self.crowded {
            let _ = writeln!(text, "\n{crowded}");
        }
        if let Some(policies) = &self.policies {
            let _ = writeln!(text, "\n{policies}");
        }
        for failure in &self.failures {
            let _ = writeln!(text, "\nFAILED: {failure}");
        }
        text
    }

    pub(crate) fn csv(&self) -> String {
        let mut text = String::from(CSV_HEADER);
        let told = |times: Option<f64>| times.map(|times| format!("{times:.3}")).unwrap_or_default();
        for row in &self.rows {
            let (times_floor, times_without) = (told(row.times_floor), told(row.times_without));
            let _ = writeln!(
                text,
                "{},{},{},\"{}\",{:.0},{:.1},{:.1},{:.2},{:.2},{:.2},{times_floor},{times_without}",
                row.era,
                row.call,
                row.connections,
                row.subject,
                row.calls_per_second,
                row.p50,
                row.p99,
                row.cpu,
                row.cpu_least,
                row.cpu_most
            );
        }
        text
    }
}

impl MeanRatio {
    /// None if there are too few starts for an error.
    fn of(own: &[f64], others: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = own.iter().zip(others).map(|(own, other)| own / other).collect();
        let starts = ratios.len();
        let mean = ratios.iter().sum::<f64>() / starts as f64;
        let squares: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        let error = (squares / starts as f64 / starts.checked_sub(1)? as f64).sqrt();
        (starts > 2 && error.is_finite()).then_some(Self { mean, error, starts })
    }
}

impl Row {
    fn figures(&self) -> String {
        let told = |times: Option<f64>| times.map(|times| format!("{times:.2}")).unwrap_or_default();
        let (times_floor, times_without) = (told(self.times_floor), told(self.times_without));
        format!(
            " {:.0} | {:.0} | {:.0} | {:.1} | {:.1}–{:.1} | {times_floor} | {times_without} ",
            self.calls_per_second, self.p50, self.p99, self.cpu, self.cpu_least, self.cpu_most
        )
    }
}

fn median(cell: &Cell, figure: impl Fn(&Figures) -> f64) -> f64 {
    middle(cell.rounds.iter().map(figure).collect()).unwrap_or(0.0)
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(subject: &'static str, cpu: &[f64]) -> Cell {
        let figures = |cpu: &f64| Figures { rate: 1000.0, p50: 10.0, p99: 20.0, cpu: *cpu, answers: 10 };
        let mut cell = Cell::new(Era::Modern, Workload::Call(128), 16, subject);
        cell.rounds = cpu.iter().map(figures).collect();
        cell
    }

    #[test]
    fn compares_round_by_round_and_keeps_the_spread() {
        let floor = cell("floor", &[60.0, 90.0, 50.0]);
        let weir = cell("weir", &[66.0, 72.0, 300.0]);
        let translating = cell("weir, translating", &[108.0, 108.0, 108.0]);
        let without = |subject: &str| if subject == "weir, translating" { vec!["none", "weir"] } else { vec![] };
        let rows = rows(&[floor, weir, translating], "floor", without);
        assert_eq!(rows[0].times_floor, Some(1.0));
        assert_eq!(rows[1].times_floor, Some(1.1));
        assert_eq!(rows[1].figures(), " 1000 | 10 | 20 | 72.0 | 66.0–300.0 | 1.10 |  ");
        assert_eq!(rows[2].figures(), " 1000 | 10 | 20 | 108.0 | 108.0–108.0 | 1.80 | 1.50 ");
    }

    #[test]
    fn a_ratio_over_starts_has_its_standard_error() {
        let ratio = MeanRatio::of(&[10.0, 22.0, 33.0], &[10.0, 20.0, 30.0]);
        let is_right = |ratio: MeanRatio| {
            let MeanRatio { mean, error, starts } = ratio;
            (mean - 3.2 / 3.0).abs() < 1e-9 && (error - 0.1 / 3.0).abs() < 1e-9 && starts == 3
        };
        assert!(ratio.is_some_and(is_right), "{ratio:?}");
        assert_eq!(MeanRatio::of(&[10.0, 22.0], &[10.0, 20.0]), None);
        assert_eq!(MeanRatio::of(&[], &[]), None);
    }

    #[test]
    fn a_failure_hides_the_figures_and_is_told() {
        let mut broken = cell("weir", &[61.0]);
        broken.failure = Some("2 of 10 progress events lost".to_owned());
        let told = broken.told_failure();
        let report = Report {
            command: String::new(),
            machine: String::new(),
            counts: false,
            failures: told.into_iter().collect(),
            rows: rows(&[cell("floor", &[60.0]), broken], "floor", |_| vec![]),
            at_rest: vec![],
            crowded: vec![],
            policies: None,
        };
        let text = report.markdown();
        assert!(text.contains("| modern | call 128 B | 16 | weir | failed |"));
        assert!(text.contains("FAILED: modern call 128 B x16 weir: 2 of 10 progress events lost"));
    }
}

//! Who is measured when: all subjects of a block stand ready, and take turns until each has had its rounds.

use crate::load::{self, Figures, Load};
use crate::messages::{Era, Workload};
use crate::process::{Family, Process};
use crate::subjects::{self, Place, Running, SUBJECTS, Subject};
use crate::table::Cell;
use crate::{Arguments, note};
use anyhow::Result;
use std::time::Duration;

/// How long after its last round a subject may work on what calls have left to be done: Weir gathers records for a quarter of
/// a second, and spans for a second.
const REST: Duration = Duration::from_millis(1500);

/// The loads that need an upstream of so many tools.
const GROUPS: &[(usize, &[Workload])] = &[(20, WITH_20_TOOLS), (500, &[Workload::List(500)])];
const WITH_20_TOOLS: &[Workload] =
    &[Workload::Call(128), Workload::Call(64 * 1024), Workload::List(20), Workload::Burst];

/// Measures everything that `arguments` ask for. `upstream` is the process behind all subjects.
pub(crate) async fn all(arguments: &Arguments, place: &Place, upstream: &Process) -> Vec<Cell> {
    let mut cells = Vec::new();
    for era in [Era::Legacy, Era::Modern] {
        for (tools, workloads) in GROUPS {
            let mut blocks = blocks(arguments, place, era, workloads);
            for _ in 0..arguments.starts {
                let entrants = start(place, &blocks, era, *tools).await;
                for block in &mut blocks {
                    take_turns(arguments, place, &entrants, upstream, block).await;
                }
            }
            cells.extend(blocks.into_iter().flatten());
        }
    }
    cells
}

/// A subject that stands ready, or why it does not.
struct Entrant {
    subject: &'static Subject,
    running: Result<Running, String>,
}

/// The cells to fill, those of one load together.
fn blocks(arguments: &Arguments, place: &Place, era: Era, workloads: &[Workload]) -> Vec<Vec<Cell>> {
    let wanted = |workload: Workload, connections: usize| {
        let present = SUBJECTS.iter().filter(|subject| place.has(subject) && subject.speaks(era));
        let cells = present.map(|subject| Cell::new(era, workload, connections, subject.name));
        cells.filter(|cell| arguments.wants(&cell.label())).collect()
    };
    let loads = workloads.iter().flat_map(|workload| {
        let connections = arguments.connections().iter();
        connections.map(|connections| (*workload, *connections))
    });
    loads.map(|(workload, connections)| wanted(workload, connections)).collect()
}

/// Starts the subjects that have a cell in one of `blocks`.
async fn start(place: &Place, blocks: &[Vec<Cell>], era: Era, tools: usize) -> Vec<Entrant> {
    let mut entrants = Vec::new();
    for subject in SUBJECTS {
        if blocks.iter().flatten().any(|cell| cell.subject == subject.name) {
            let running = subjects::start(place, subject, era, tools).await;
            let running = running.map_err(|error| format!("{error:#}"));
            entrants.push(Entrant { subject, running });
        }
    }
    entrants
}

async fn take_turns(
    arguments: &Arguments,
    place: &Place,
    entrants: &[Entrant],
    upstream: &Process,
    block: &mut [Cell],
) {
    if let Some(cell) = block.first() {
        note(&format!("{}, {}, {} connections", cell.era, cell.workload, cell.connections));
    }
    let entrant = |cell: &Cell| entrants.iter().find(|entrant| entrant.subject.name == cell.subject);
    let used = |cell: &Cell| entrant(cell)?.own_cpu();
    let before: Vec<_> = block.iter().map(|cell| (used(cell), cell.rounds.len())).collect();
    let mut order: Vec<usize> = (0..block.len()).collect();
    for _ in 0..arguments.rounds {
        // What one leaves to be done, as a write to a disk, slows down whoever comes next.
        fastrand::shuffle(&mut order);
        for at in &order {
            let cell = &mut block[*at];
            if cell.failure.is_some() {
                continue;
            }
            let Some(entrant) = entrant(cell) else { continue };
            match turn(arguments, place, (entrant, upstream), cell).await {
                Ok(figures) => cell.rounds.push(figures),
                Err(failure) => cell.failure = Some(failure),
            }
        }
    }
    tokio::time::sleep(REST).await;
    for (cell, (before, rounds)) in block.iter_mut().zip(before) {
        let answers: u64 = cell.rounds[rounds..].iter().map(|figures| figures.answers).sum();
        let used = before.zip(used(cell)).filter(|_| answers > 0 && place.instructions.is_none());
        cell.starts.extend(used.map(|(before, after)| (after - before) / answers as f64));
    }
}

impl Entrant {
    /// The CPU time that its processes have used, in microseconds; none if it has none of its own.
    fn own_cpu(&self) -> Option<f64> {
        let running = self.running.as_ref().ok()?;
        let own = running.others.iter().chain([running.process.as_ref()?]);
        own.map(|process| process.family()?.cpu()).sum::<Result<f64>>().ok()
    }
}

async fn turn(
    arguments: &Arguments,
    place: &Place,
    (entrant, upstream): (&Entrant, &Process),
    cell: &Cell,
) -> Result<Figures, String> {
    let running = entrant.running.as_ref().map_err(Clone::clone)?;
    let window = arguments.window();
    let load = Load {
        target: running.target.clone(),
        era: cell.era,
        workload: cell.workload,
        connections: cell.connections,
        warm_up: window / 4,
        window,
    };
    let process = running.process.as_ref().unwrap_or(upstream);
    let figures = async {
        let families = running.others.iter().chain([process]).map(Process::family).collect::<Result<Vec<_>>>()?;
        let cost = || match &place.instructions {
            Some(dir) => process.instructions(dir),
            None => families.iter().map(Family::cpu).sum::<Result<f64>>(),
        };
        load::measure(&load, cost).await
    };
    figures.await.map_err(|error| format!("{error:#}"))
}

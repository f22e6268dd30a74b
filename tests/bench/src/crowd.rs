//! What a crowd costs the others: connections that rest and streams that are open, beside calls that are timed.

use crate::load::{self, Connection, Load};
use crate::messages::{Era, Workload};
use crate::process::{Family, Process};
use crate::subjects::{self, Place, Running, Subject};
use anyhow::{Result, anyhow, ensure};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Connections that have made a call and rest; fewer where the limit of open files allows no more.
const CONNECTIONS: usize = 10_000;
/// What one address may have open without being refused, where that limit is low.
const OF_ONE_ADDRESS: usize = 2500;
/// Streams of notifications, each of a legacy session of its own.
const STREAMS: usize = 1000;
/// Connections that call.
const CALLERS: usize = 16;

/// The figures of one subject, each the median of its rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Crowded {
    pub(crate) subject: &'static str,
    /// Connections that rest.
    pub(crate) connections: usize,
    /// Time that 99 of 100 answers stayed under without the crowd, microseconds.
    pub(crate) alone_p99: f64,
    /// The same beside it.
    pub(crate) beside_p99: f64,
    /// CPU time of a call without the crowd, microseconds.
    pub(crate) alone_cpu: f64,
    /// The same beside it.
    pub(crate) beside_cpu: f64,
    /// What the crowd takes, bytes.
    pub(crate) bytes: u64,
}

impl fmt::Display for Crowded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, connections, alone_p99, beside_p99, alone_cpu, beside_cpu, bytes } = self;
        write!(
            f,
            "{subject}: p99 {beside_p99:.0} µs beside {connections} resting connections and {STREAMS} open streams, \
             {alone_p99:.0} µs without ({:.2} times); CPU {beside_cpu:.1} and {alone_cpu:.1} µs/call; \
             the crowd takes {:.1} MiB",
            beside_p99 / alone_p99,
            *bytes as f64 / 1_048_576.0
        )
    }
}

/// Times calls of `subject` alone, and again while a crowd is there.
pub(crate) async fn measure(place: &Place, subject: &Subject, window: Duration, rounds: u32) -> Result<Crowded> {
    let running = subjects::start(place, subject, Era::Legacy, 20).await?;
    let family = running.process.as_ref().map(Process::family).ok_or_else(|| anyhow!("there is no process"))??;
    let (alone_p99, alone_cpu) = time(&running, &family, window, rounds).await?;
    let rest = family.resident()?;
    let crowd = gather(&running).await?;
    let bytes = family.resident()?.saturating_sub(rest);
    let (beside_p99, beside_cpu) = time(&running, &family, window, rounds).await?;
    let connections = crowd.len() - STREAMS;
    let gone = crowd.iter().filter(|connection| !connection.is_open()).count();
    ensure!(gone == 0, "{gone} of the crowd did not stay");
    drop(crowd);
    Ok(Crowded { subject: subject.name, connections, alone_p99, beside_p99, alone_cpu, beside_cpu, bytes })
}

/// The medians of p99 and CPU time, microseconds.
async fn time(running: &Running, family: &Family, window: Duration, rounds: u32) -> Result<(f64, f64)> {
    let (mut p99, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let load = Load {
            target: running.target.clone(),
            era: Era::Legacy,
            workload: Workload::Call(128),
            connections: CALLERS,
            warm_up: window / 4,
            window,
        };
        let figures = load::measure(&load, || family.cpu()).await?;
        p99.push(figures.p99);
        cpu.push(figures.cpu);
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Ok((median(p99), median(cpu)))
}

/// Streams first, then connections up to what the gateway takes; room is left for those who call.
async fn gather(running: &Running) -> Result<Vec<Connection>> {
    let target = &running.target;
    let mut crowd = Vec::new();
    for _ in 0..STREAMS {
        let mut connection = Connection::open_from(1, target.address).await?;
        let session = connection.initialize(target).await?;
        connection.listen(target, session.as_deref()).await?;
        crowd.push(connection);
    }
    let mut first = Connection::open(target).await?;
    let session = first.initialize(target).await?;
    for at in 0..CONNECTIONS {
        // Any of these addresses is this machine.
        let from = u8::try_from(2 + at / OF_ONE_ADDRESS)?;
        let mut connection = Connection::open_from(from, target.address).await?;
        if connection.call(target, Era::Legacy, Workload::Call(128), session.as_deref()).await.is_err() {
            crowd.truncate(crowd.len() - 2 * CALLERS);
            break;
        }
        crowd.push(connection);
    }
    Ok(crowd)
}

//! What a subject costs before and between calls: time to the first answer, memory at rest, memory for an idle session.

use crate::load::{Client, Connection};
use crate::messages::{Era, Workload};
use crate::process::{Family, Process};
use crate::subjects::{self, Place, Running, Subject};
use anyhow::{Result, anyhow};
use serde::Serialize;
use std::fmt;

/// Starts that are timed; the median counts.
const STARTS: usize = 5;
/// Idle sessions whose memory is measured.
const SESSIONS: usize = 1000;
/// Connections that they are opened over; a session is not tied to the connection that opened it.
const CONNECTIONS: usize = 10;

/// The figures of one subject.
#[derive(Debug, Serialize)]
pub(crate) struct AtRest {
    pub(crate) subject: &'static str,
    /// Start to first answer with nothing cached, milliseconds.
    pub(crate) cold_start_ms: f64,
    /// The same with the cache that the first start filled, median, least and most.
    pub(crate) warm_start_ms: [f64; 3],
    /// Resident after the start and one call, bytes.
    pub(crate) rest_bytes: u64,
    /// Growth for each legacy session that was initialized and then left alone, bytes.
    pub(crate) session_bytes: f64,
    /// The same after one call in each of them.
    pub(crate) used_session_bytes: f64,
}

impl fmt::Display for AtRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = self.warm_start_ms;
        write!(
            f,
            "{}: start to first answer {median:.0} ms ({least:.0}–{most:.0}, cold {:.0}); {:.1} MiB at rest; \
             {:.1} KiB for each idle legacy session, {:.1} KiB once it has made a call",
            self.subject,
            self.cold_start_ms,
            self.rest_bytes as f64 / 1_048_576.0,
            self.session_bytes / 1024.0,
            self.used_session_bytes / 1024.0
        )
    }
}

/// Starts `subject` several times, for time, and fills it with sessions, for memory.
pub(crate) async fn measure(place: &Place, subject: &Subject) -> Result<AtRest> {
    let cold = subjects::start(place, subject, Era::Legacy, 20).await?.took;
    let mut warm = Vec::new();
    for _ in 1..STARTS {
        warm.push(subjects::start(place, subject, Era::Legacy, 20).await?.took);
    }
    let running = subjects::start(place, subject, Era::Legacy, 20).await?;
    warm.push(running.took);
    warm.sort();
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1000.0;

    let family = family(&running)?;
    Client::open(&running.target, Era::Legacy, Workload::Call(128)).await?.close().await?;
    let rest = family.resident()?;
    open_sessions(&running, false).await?;
    let idle = family.resident()?;
    drop(running);

    let running = subjects::start(place, subject, Era::Legacy, 20).await?;
    let family = self::family(&running)?;
    Client::open(&running.target, Era::Legacy, Workload::Call(128)).await?.close().await?;
    let before = family.resident()?;
    open_sessions(&running, true).await?;
    let used = family.resident()?;

    Ok(AtRest {
        subject: subject.name,
        cold_start_ms: millis(cold),
        warm_start_ms: [millis(warm[STARTS / 2]), millis(warm[0]), millis(warm[STARTS - 1])],
        rest_bytes: rest,
        session_bytes: idle.saturating_sub(rest) as f64 / SESSIONS as f64,
        used_session_bytes: used.saturating_sub(before) as f64 / SESSIONS as f64,
    })
}

fn family(running: &Running) -> Result<Family> {
    running.process.as_ref().map(Process::family).ok_or_else(|| anyhow!("there is no process to measure"))?
}

async fn open_sessions(running: &Running, with_call: bool) -> Result<()> {
    let target = &running.target;
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::open(target).await?;
        for _ in 0..SESSIONS / CONNECTIONS {
            let session = connection.initialize(target).await?;
            if with_call {
                connection.call(target, Era::Legacy, Workload::Call(128), session.as_deref()).await?;
            }
        }
    }
    Ok(())
}

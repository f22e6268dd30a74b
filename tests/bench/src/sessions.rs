//! What legacy sessions at rest take in the store that gateways share, and in the gateway.

use crate::load::Connection;
use crate::messages::{Era, Target};
use crate::process::{Process, free_address};
use crate::subjects::{self, Place};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many clients open sessions at once.
const CLIENTS: usize = 32;

/// How long the gateway may take to start.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Opens so many sessions; says what one takes.
pub(crate) async fn measure(place: &Place, count: usize) -> Result<String> {
    let redis = place.redis.as_ref().context("there is no redis-server")?;
    let address = free_address()?;
    let limits = format!("[limits]\nsessions = {0}\nprincipal = {{ sessions = {0} }}", count + 1);
    let era = Era::Legacy;
    let reach = format!("url = \"http://{}/{era}/20\"\n\n{limits}\n\n{}", place.upstream, place.shared()?);
    let process = Process::start(&mut subjects::weir(place, address, &reach)?)?;
    let target = Target { address, path: "/mcp".to_owned(), prefix: "bench__", token: None, other: None };
    let begin = Instant::now();
    while open(target.clone(), 1).await.is_err() {
        ensure!(begin.elapsed() < READY_LIMIT, "the gateway opens no session");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (store, resident) = (redis.memory().await?, process.family()?.resident()?);
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let share = count / CLIENTS + usize::from(client < count % CLIENTS);
        clients.spawn(open(target.clone(), share));
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / count as f64 / 1024.0;
    Ok(format!(
        "{count} idle sessions: {:.2} KiB each in the store, {:.2} KiB in the gateway; {:.0} opened each second",
        each(redis.memory().await?, store),
        each(process.family()?.resident()?, resident),
        count as f64 / begin.elapsed().as_secs_f64(),
    ))
}

async fn open(target: Target, count: usize) -> Result<()> {
    let mut connection = Connection::open(&target).await?;
    for _ in 0..count {
        ensure!(connection.initialize(&target).await?.is_some(), "there is no session");
    }
    Ok(())
}

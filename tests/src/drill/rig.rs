//! A gateway with a healthy upstream and another one that has a fault, both under load.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::Scale;
use super::load::{Load, Probe, Tally, Tolerance};
use crate::soak::quantile;
use crate::stub::Offer;
use crate::{Gateway, Stub};

/// How much more the gateway may hold afterwards: descriptors, threads, child processes, KiB of memory, tasks. Connections that
/// rest are descriptors, those of clients are tasks too, and there may be one more of both for each client.
pub(super) const SLACK: Held = [24, 4, 0, 32 * 1024, 24];

/// Calls of the healthy upstream are never too slow below this, however fast they normally are.
const FLOOR: Duration = Duration::from_millis(50);

/// How long it may take until the gateway has given back what it held.
const SETTLE: Duration = Duration::from_secs(40);

/// How a faulty upstream is reached, where a fault shall be noticed soon.
pub(super) const IMPATIENT: &str =
    "timeouts = { connect = \"1s\", initialize = \"2s\", overall = \"2s\", probe = \"1s\", probe_interval = \"1s\" }\n";

/// A gateway before a drill.
pub(super) struct Rig {
    /// The gateway; another one after an upgrade.
    pub(super) gateway: Gateway,
    /// How much there is of everything.
    pub(super) scale: Scale,
    well: Stub,
    probe: Probe,
    /// How many clients the faulty upstream has.
    clients: usize,
    /// What the calls of the faulty upstream may come to.
    tolerance: Tolerance,
}

/// What a gateway holds at one moment, as [`SLACK`] lists it.
pub(super) type Held = [u64; 5];

impl Rig {
    /// Starts a gateway with these upstreams, one of them `faulty`, and one that is well.
    pub(super) async fn start(scale: Scale, config: &str, probe: Probe) -> Self {
        Self::start_by(scale, config, probe, &[], |command| command).await
    }

    /// The same with a gateway that is started in another way.
    pub(super) async fn start_by(
        scale: Scale,
        config: &str,
        probe: Probe,
        environment: &[(&str, &str)],
        how: impl FnOnce(Command) -> Command,
    ) -> Self {
        let well = Stub::start().await;
        let gateway = Gateway::start_by(&format!("{config}\n{}", well.config("well")), environment, how).await;
        gateway.healthy(&["faulty", "well"]).await;
        Self { gateway, scale, well, probe, clients: scale.clients, tolerance: Tolerance::Errors }
    }

    /// A gateway with another configuration before that of the healthy upstream.
    #[must_use]
    pub(super) fn config(&self, config: &str) -> String {
        format!("{config}\n{}", self.well.config("well"))
    }

    /// Lets the faulty upstream have no more clients than this: each may cost a process.
    #[must_use]
    pub(super) fn few_clients(mut self, most: usize) -> Self {
        self.clients = self.clients.min(most);
        self
    }

    /// Wants that no call of the other upstream fails either.
    #[must_use]
    pub(super) const fn unnoticed(mut self) -> Self {
        self.tolerance = Tolerance::Nothing;
        self
    }

    async fn loads(&self, tolerance: Tolerance) -> (Load, Load) {
        let (scale, gateway) = (self.scale, &self.gateway);
        let mut well =
            Load::start(gateway.address(), scale, "well", Probe::Echo, scale.clients, Tolerance::Nothing).await;
        if scale.sdks {
            well = well.with_sdks(gateway, scale, "well").await;
        }
        (well, Load::start(gateway.address(), scale, "faulty", self.probe, self.clients, tolerance).await)
    }

    /// Lets `fault` happen under load, and says what came of it.
    ///
    /// # Errors
    /// With what must not be.
    pub(super) async fn drill(mut self, fault: impl AsyncFnOnce(&mut Self)) -> Result<String, Vec<String>> {
        let (well, faulty) = self.loads(Tolerance::Nothing).await;
        well.recovers().await;
        faulty.recovers().await;
        sleep(self.scale.normal).await;
        let (normal, warm) = (well.stop().await, faulty.stop().await);
        let mut failures: Vec<_> = normal.failures.iter().chain(&warm.failures).cloned().collect();
        let before = settled(&self.gateway).await;
        let (well, faulty) = self.loads(self.tolerance).await;
        fault(&mut self).await;
        let back = faulty.recovers().await;
        let (calls, told) = (well.stop().await, faulty.stop().await);
        failures.extend(calls.failures.iter().chain(&told.failures).cloned());
        failures.extend(twice(&self.well).map(|text| format!("the healthy upstream ran {text} twice")));
        if self.scale.is_timed {
            failures.extend(slowed(&normal, &calls));
        }
        let after = returns_to(&self.gateway, before, SLACK).await;
        failures.extend(grown(before, after, SLACK));
        let report = report(&normal, &calls, &told, back, before, after);
        if failures.is_empty() {
            return Ok(report);
        }
        failures.insert(0, report);
        failures.push(last_lines(&self.gateway.log()));
        Err(failures)
    }
}

/// What the gateway holds when that does not change any more.
pub(super) async fn settled(gateway: &Gateway) -> Held {
    let (end, mut last) = (Instant::now() + SETTLE, held(gateway));
    loop {
        sleep(Duration::from_millis(500)).await;
        let now = held(gateway);
        if now[..3] == last[..3] || Instant::now() > end {
            return now;
        }
        last = now;
    }
}

/// What the gateway holds once that is no more than before, or at the end of its time.
pub(super) async fn returns_to(gateway: &Gateway, before: Held, slack: Held) -> Held {
    let end = Instant::now() + SETTLE;
    loop {
        let now = held(gateway);
        if grown(before, now, slack).is_none() || Instant::now() > end {
            return now;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

fn held(gateway: &Gateway) -> Held {
    let threads = std::fs::read_dir(format!("/proc/{}/task", gateway.id())).map_or(0, Iterator::count);
    let counts = [gateway.descriptors(), threads, gateway.children().len(), gateway.tasks()].map(|count| count as u64);
    [counts[0], counts[1], counts[2], gateway.resident(), counts[3]]
}

/// How much slower the calls of the healthy upstream were than they may be: their p99 stays within twice the normal one.
fn slowed(normal: &Tally, calls: &Tally) -> Option<String> {
    let [normal, now] = [normal, calls].map(|tally| quantile(&tally.times, 0.99));
    (now > FLOOR.max(2 * normal))
        .then(|| format!("calls of the healthy upstream had a p99 of {now:?}, normally {normal:?}"))
}

/// What the gateway holds more than it may.
pub(super) fn grown(before: Held, after: Held, slack: Held) -> Option<String> {
    let is_more = before.iter().zip(after).zip(slack).any(|((before, after), slack)| after > before + slack);
    is_more.then(|| format!("descriptors, threads, children, KiB and tasks have grown from {before:?} to {after:?}"))
}

fn report(normal: &Tally, calls: &Tally, faulty: &Tally, back: Duration, before: Held, after: Held) -> String {
    let p99 = |tally: &Tally| quantile(&tally.times, 0.99).as_millis();
    let mut line = format!(
        "healthy: {} calls, {} failed, p99 {} ms (normally {} ms); faulty: {} right, {} told why, back after {:.1} s; ",
        calls.times.len(),
        calls.failures.len(),
        p99(calls),
        p99(normal),
        faulty.times.len(),
        faulty.errors,
        back.as_secs_f64(),
    );
    let mib = |held: Held| held[3] / 1024;
    let _ = write!(
        line,
        "{}→{} descriptors, {}→{} threads, {}→{} children, {}→{} tasks, {}→{} MiB",
        before[0],
        after[0],
        before[1],
        after[1],
        before[2],
        after[2],
        before[4],
        after[4],
        mib(before),
        mib(after)
    );
    line
}

/// The messages that a stub was called with more than once.
pub(super) fn twice(stub: &Stub) -> impl Iterator<Item = String> {
    let mut texts: Vec<_> = stub.asked("tools/call").iter().map(message).collect();
    texts.sort_unstable();
    let repeated: Vec<_> = texts.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone()).collect();
    repeated.into_iter()
}

/// The message that a stub was called with.
pub(super) fn message(seen: &crate::stub::Seen) -> String {
    seen.message()["params"]["arguments"]["message"].as_str().unwrap_or_default().to_owned()
}

/// A stub whose resources can be read too.
pub(super) async fn readable() -> Stub {
    let lists = json!({ "resources/list": [{ "uri": "stub://all", "name": "all" }] });
    Stub::offering(Offer { capabilities: json!({ "resources": {} }), lists, ..Offer::default() }).await
}

fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    format!("the log ends with:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"))
}

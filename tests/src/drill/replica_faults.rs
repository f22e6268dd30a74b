//! Faults of gateways that share a store, and of the store, behind a balancer that keeps nobody anywhere.
//!
//! Each client goes on with its session all the time. Each call is answered once, or its client is told that it is not; and
//! none runs twice.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use super::load::{Load, Probe, Tolerance};
use super::machine::Clock;
use super::rig::{IMPATIENT, twice};
use super::{Outcome, Scale};
use crate::balancer::Balancer;
use crate::cutter::{Cutter, Fault};
use crate::peer::free_port;
use crate::redis::{Redis, Sentinels};
use crate::soak::quantile;
use crate::terminal::ENVIRONMENT;
use crate::wait::{PATIENCE, until};
use crate::{Gateway, Stub};

type Result = std::result::Result<String, Vec<String>>;

/// How long answers of a slow store take.
const SLOW: Duration = Duration::from_millis(200);

/// What a gateway is started with.
struct Start {
    port: u16,
    config: String,
    environment: Vec<(String, String)>,
}

/// Gateways at one store, behind a balancer.
struct Replicas {
    scale: Scale,
    starts: Vec<Start>,
    gateways: Vec<Gateway>,
    balancer: Balancer,
    stub: Stub,
}

impl Start {
    async fn start(&self) -> Gateway {
        let environment: Vec<_> = ENVIRONMENT
            .into_iter()
            .chain(self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            .collect();
        let gateway = Gateway::start_at_with(self.port, &self.config, &environment).await;
        gateway.healthy(&["stub"]).await;
        gateway
    }
}

impl Replicas {
    /// Starts one for each URL of the store, with these environments.
    async fn start(scale: Scale, stores: &[String], environments: &[Vec<(String, String)>]) -> Self {
        let stub = Stub::start().await;
        let mut starts = Vec::new();
        for (number, url) in stores.iter().enumerate() {
            let store = format!("[store]\nurl = {url:?}\nkey = {{ env = \"WEIR_TESTS_KEY\" }}\n");
            let config = format!("{store}[replica]\nlisten = \"127.0.0.1:0\"\n{}{IMPATIENT}", stub.config("stub"));
            let environment = environments.get(number).cloned().unwrap_or_default();
            starts.push(Start { port: free_port(), config, environment });
        }
        let mut gateways = Vec::new();
        for start in &starts {
            gateways.push(start.start().await);
        }
        let addresses: Vec<SocketAddr> = gateways.iter().map(Gateway::address).collect();
        let balancer = Balancer::start(free_port(), &addresses).await;
        Self { scale, starts, gateways, balancer, stub }
    }

    async fn at(scale: Scale, url: &str) -> Self {
        Self::start(scale, &vec![url.to_owned(); scale.gateways], &[]).await
    }

    /// Ends one, and starts it again.
    async fn restart(&mut self, number: usize, signal: Signal) {
        self.gateways[number].signal(signal);
        self.gateways[number].end().await;
        self.gateways[number] = self.starts[number].start().await;
    }

    /// Lets `fault` happen under load.
    async fn drill(mut self, tolerance: Tolerance, fault: impl AsyncFnOnce(&mut Self)) -> Result {
        let (address, scale) = (self.balancer.address(), self.scale);
        let load = Load::start(address, scale, "stub", Probe::Echo, scale.clients, tolerance).await;
        load.recovers().await;
        sleep(scale.normal).await;
        let begin = Instant::now();
        fault(&mut self).await;
        let (during, back) = (begin.elapsed(), load.recovers().await);
        let tally = load.stop().await;
        let mut failures = tally.failures;
        failures.extend(twice(&self.stub).map(|text| format!("{text} ran twice")));
        let report = format!(
            "{} gateways, {:.0} s: {} calls right (p99 {} ms), {} told why, none twice, back after {:.1} s",
            self.gateways.len(),
            during.as_secs_f64(),
            tally.times.len(),
            quantile(&tally.times, 0.99).as_millis(),
            tally.errors,
            back.as_secs_f64(),
        );
        if failures.is_empty() {
            return Ok(report);
        }
        failures.insert(0, report);
        for gateway in &self.gateways {
            let log = gateway.log();
            let lines: Vec<_> = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
            failures.push(format!("a log ends with:\n{}", lines[lines.len().saturating_sub(10)..].join("\n")));
        }
        Err(failures)
    }
}

/// One after the other dies, and comes back.
pub(super) async fn replicas_killed(scale: Scale) -> Result {
    let redis = Redis::start().await;
    let replicas = Replicas::at(scale, &redis.url()).await;
    replicas
        .drill(Tolerance::Broken, async |replicas: &mut Replicas| {
            for kill in 0..scale.kills as usize {
                let next = Instant::now() + scale.kill_pause;
                replicas.restart(kill % scale.gateways, Signal::KILL).await;
                tokio::time::sleep_until(next).await;
            }
        })
        .await
}

/// A new version is rolled out: one after the other is told to end, and the next one only when it is back.
pub(super) async fn replicas_rolled(scale: Scale) -> Result {
    let redis = Redis::start().await;
    let replicas = Replicas::at(scale, &redis.url()).await;
    replicas
        .drill(Tolerance::Nothing, async |replicas: &mut Replicas| {
            for number in 0..scale.gateways * scale.times as usize {
                replicas.restart(number % scale.gateways, Signal::TERM).await;
                sleep(scale.outage).await;
            }
        })
        .await
}

/// The store crashes, and is back with what it had. Sessions that have begun go on at their gateways meanwhile.
pub(super) async fn store_restarts(scale: Scale) -> Result {
    let mut redis = Redis::start().await;
    let replicas = Replicas::at(scale, &redis.url()).await;
    replicas
        .drill(Tolerance::Broken, async |_| {
            for _ in 0..scale.times {
                redis.kill();
                sleep(scale.store_outage).await;
                redis.restart().await;
                sleep(scale.outage).await;
            }
        })
        .await
}

/// The master of the store dies, and its replica is the master then.
pub(super) async fn store_fails_over(scale: Scale) -> Result {
    let mut sentinels = Sentinels::start().await;
    let replicas = Replicas::at(scale, &sentinels.url()).await;
    replicas
        .drill(Tolerance::Broken, async |_| {
            let before = sentinels.master();
            sentinels.servers[0].kill();
            until("another server is the master", || sentinels.master().is_some_and(|now| Some(now) != before)).await;
            sleep(scale.outage).await;
        })
        .await
}

/// One gateway cannot reach the store, and the others can.
pub(super) async fn store_cut_off(scale: Scale) -> Result {
    let redis = Redis::start().await;
    let cutter = Cutter::start(([127, 0, 0, 1], redis.port()).into()).await;
    let mut stores = vec![redis.url(); scale.gateways];
    stores[0] = format!("redis://{}", cutter.address());
    let replicas = Replicas::start(scale, &stores, &[]).await;
    replicas
        .drill(Tolerance::Broken, async |_| {
            for fault in [Fault::Silent, Fault::Drop] {
                cutter.fail(fault);
                sleep(scale.store_outage).await;
                cutter.fail(Fault::None);
                sleep(scale.outage).await;
            }
        })
        .await
}

/// Each answer of the store takes its time, and nobody is told of anything.
pub(super) async fn store_slow(scale: Scale) -> Result {
    let redis = Redis::start().await;
    let cutter = Cutter::start(([127, 0, 0, 1], redis.port()).into()).await;
    // From the first connection on: one that breaks is another fault.
    cutter.fail(Fault::Delay(SLOW));
    let replicas = Replicas::at(scale, &format!("redis://{}", cutter.address())).await;
    replicas
        .drill(Tolerance::Nothing, async |replicas: &mut Replicas| {
            sleep(scale.store_outage).await;
            // Sessions begin too.
            let address = replicas.balancer.address();
            let begun = timeout(PATIENCE, crate::Client::try_legacy_at(address, "/mcp")).await;
            assert!(begun.is_ok_and(|client| client.is_some()), "a session begins at a slow store");
        })
        .await
}

/// The clock of one gateway is an hour ahead, and that of another an hour behind; one of the first dies.
pub(super) async fn clocks_differ(scale: Scale) -> Outcome {
    let Some(library) = Clock::library() else {
        return Outcome::Skipped("libfaketime is missing".to_owned());
    };
    let faked = |offset: &str| {
        let all = [("LD_PRELOAD", library), ("FAKETIME", offset), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    };
    let redis = Redis::start().await;
    let environments = [faked("+1h"), faked("-1h")];
    let replicas = Replicas::start(scale, &vec![redis.url(); scale.gateways], &environments).await;
    replicas
        .drill(Tolerance::Broken, async |replicas: &mut Replicas| {
            sleep(scale.store_outage).await;
            for number in 0..2 {
                replicas.restart(number, Signal::KILL).await;
                sleep(scale.outage).await;
            }
        })
        .await
        .into()
}

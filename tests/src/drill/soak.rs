//! All faults at random under the load of many clients, for long: what the gateway holds stays flat.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::load::{Load, Probe, Tolerance};
use super::rig::{IMPATIENT, SLACK, grown, returns_to, settled};
use super::{Random, Scale};
use crate::cutter::{Cutter, Fault};
use crate::gateway::Gateway;
use crate::hostile::child;
use crate::restart::RestartableServer;
use crate::soak::{Sample, median, quantile, sample};
use crate::stub::Stub;

/// How many clients each upstream has; 200 in all.
const CLIENTS: [(&str, Probe, usize); 4] =
    [("well", Probe::Echo, 100), ("faulty", Probe::Echo, 60), ("server", Probe::Sum, 20), ("process", Probe::Echo, 20)];

/// What the network may do.
const FAULTS: [Fault; 8] = [
    Fault::Silent,
    Fault::Unavailable,
    Fault::Delay(Duration::from_millis(300)),
    Fault::Drop,
    Fault::Reset,
    Fault::Truncate,
    Fault::HalfClose,
    Fault::Throttle,
];

/// How much more memory the last quarter may hold than the second, in KiB.
const GROWTH: u64 = 16 * 1024;

struct Field {
    gateway: Gateway,
    network: Cutter,
    server: RestartableServer,
    config: String,
    stub: Stub,
    random: Random,
}

impl Field {
    async fn start(seed: u64) -> (Self, Stub) {
        let (well, stub) = (Stub::start().await, Stub::start().await);
        let network = Cutter::start(stub.address()).await;
        let server = RestartableServer::everything("streamableHttp", "/mcp").await;
        let faulty = format!("[upstreams.faulty]\nurl = \"{}\"\n{IMPATIENT}", network.url("/mcp"));
        let server_config = server.config("server") + IMPATIENT;
        let config = [well.config("well"), faulty, server_config, child("process", "honest")].concat();
        let gateway = Gateway::start(&config).await;
        gateway.healthy(&["well", "faulty", "server", "process"]).await;
        (Self { gateway, network, server, config, stub, random: Random::new(seed) }, well)
    }

    async fn loads(&self, scale: Scale) -> Vec<Load> {
        let mut loads = Vec::new();
        for (upstream, probe, clients) in CLIENTS {
            let tolerance = if upstream == "well" { Tolerance::Nothing } else { Tolerance::Errors };
            loads.push(Load::start(self.gateway.address(), scale, upstream, probe, clients, tolerance).await);
        }
        loads
    }

    /// Something goes wrong, and is over again.
    async fn fault(&mut self) {
        match self.random.below(8) {
            0 => self.server.restart().await,
            1 => {
                let children = self.gateway.children();
                if let Some((id, _)) = children.first() {
                    // It may have ended by itself since.
                    let _ = kill_process(Pid::from_raw(id.cast_signed()).expect("an id is not zero"), Signal::KILL);
                }
            }
            2 => {
                let more = self.stub.config("more");
                for config in [format!("{}{more}", self.config), self.config.clone()] {
                    self.gateway.configure(&config);
                    self.gateway.signal(Signal::HUP);
                    sleep(Duration::from_millis(500)).await;
                }
            }
            _ => {
                self.network.fail(FAULTS[self.random.below(FAULTS.len())]);
                sleep(Duration::from_millis(500 + 500 * self.random.below(6) as u64)).await;
                self.network.fail(Fault::None);
            }
        }
        sleep(Duration::from_millis(250 * self.random.below(8) as u64)).await;
    }
}

/// Lets everything happen for so long; says what came of it.
///
/// # Errors
/// With what must not be.
pub async fn soak(time: Duration, seed: u64) -> Result<String, Vec<String>> {
    let scale = Scale { pace: Duration::from_secs(1), ..Scale::FULL };
    let (mut field, _well) = Field::start(seed).await;
    for load in field.loads(scale).await {
        load.recovers().await;
        load.stop().await;
    }
    let before = settled(&field.gateway).await;
    let loads = field.loads(scale).await;
    let (end, mut samples, mut faults) = (Instant::now() + time, Vec::new(), 0);
    while Instant::now() < end {
        field.fault().await;
        faults += 1;
        samples.push(sample(&field.gateway));
    }
    let (mut failures, mut right, mut told, mut times) = (Vec::new(), 0, 0, Vec::new());
    for (load, (upstream, ..)) in loads.into_iter().zip(CLIENTS) {
        load.recovers().await;
        let tally = load.stop().await;
        failures.extend(tally.failures);
        (right, told) = (right + tally.times.len(), told + tally.errors);
        if upstream == "well" {
            times = tally.times;
        }
    }
    // A connection to the gateway and one to an upstream may rest for each client.
    let slack = [2 * CLIENTS.iter().map(|(.., clients)| *clients as u64).sum::<u64>(), SLACK[1], SLACK[2], SLACK[3]];
    failures.extend(grown(before, returns_to(&field.gateway, before, slack).await, slack));
    let part = samples.len() / 4;
    if part == 0 {
        return Err(vec!["the soak was too short for a comparison".to_owned()]);
    }
    let [first, second, last] = [0, part, samples.len() - part].map(|at| median(&samples[at..at + part]));
    let shown = |Sample { memory, descriptors, processes }: Sample| {
        format!("{memory} KiB, {descriptors} descriptors, {processes} processes")
    };
    let report = format!(
        "{faults} faults, 200 clients: {right} calls right, {told} told why; healthy: {} calls, p99 {} ms\nfirst quarter: {}\n\
         second quarter: {}\nlast quarter: {}",
        times.len(),
        quantile(&times, 0.99).as_millis(),
        shown(first),
        shown(second),
        shown(last),
    );
    if last.memory > second.memory + GROWTH {
        failures.push("memory has grown".to_owned());
    }
    if failures.is_empty() {
        return Ok(report);
    }
    failures.truncate(20);
    failures.insert(0, report);
    Err(failures)
}

//! All faults at random under the load of many clients, for long: what the gateway holds stays flat.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::load::{Load, Probe, Tolerance};
use super::machine::{Clock, Disk, Hosts};
use super::rig::{IMPATIENT, SLACK, grown, returns_to, settled, twice};
use super::upstream_faults::{NamedServer, SecureServer};
use super::{Random, Scale};
use crate::cutter::{Cutter, Fault};
use crate::gateway::Gateway;
use crate::hostile::child;
use crate::restart::RestartableServer;
use crate::soak::{Sample, median, quantile, sample};
use crate::stub::Stub;

/// How many clients each upstream has; 200 in all.
const CLIENTS: [(&str, Probe, usize); 7] = [
    ("well", Probe::Echo, 90),
    ("faulty", Probe::Echo, 50),
    ("server", Probe::Sum, 15),
    ("stream", Probe::Long, 10),
    ("process", Probe::Echo, 15),
    ("secure", Probe::Echo, 10),
    ("named", Probe::Echo, 10),
];

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

/// What goes wrong beside the network, whose turn comes as often as that of all of these together.
const OTHERS: [&str; 9] = [
    "the server is killed",
    "the server of a stream is killed",
    "a process is killed",
    "reload",
    "certificate",
    "address",
    "disk",
    "clock",
    "upgrade",
];

struct Field {
    gateway: Gateway,
    network: Cutter,
    server: RestartableServer,
    stream: RestartableServer,
    secure: SecureServer,
    named: Option<NamedServer>,
    disk: Option<Disk>,
    clock: Option<Clock>,
    config: String,
    stub: Stub,
    random: Random,
    /// How often each thing went wrong.
    counts: BTreeMap<&'static str, usize>,
}

impl Field {
    async fn start(seed: u64) -> (Self, Stub) {
        let (well, stub) = (Stub::start().await, Stub::start().await);
        let network = Cutter::start(stub.address()).await;
        let server = RestartableServer::everything("streamableHttp", "/mcp").await;
        let stream = RestartableServer::everything("sse", "/sse").await;
        let (secure, named) = (SecureServer::start().await, NamedServer::start().await);
        let (disk, clock) = (Disk::new(), Clock::new());
        let faulty = format!("[upstreams.faulty]\nurl = \"{}\"\n{IMPATIENT}", network.url("/mcp"));
        let config = [
            Disk::AUDIT.to_owned(),
            well.config("well"),
            faulty,
            server.config("server") + IMPATIENT,
            stream.config("stream") + IMPATIENT,
            // A process of an upgrade has another folder, and an upstream that runs elsewhere is another one.
            child("process", "honest") + "cwd = \"/\"\n",
            secure.config("secure"),
            // Without a file of hosts it is one more that is well.
            named.as_ref().map_or_else(|| stub.config("named"), |named| named.config("named")),
        ];
        let config = config.concat();
        let how = |command| seeing(named.as_ref(), &command);
        let gateway = Gateway::start_by(&config, &borrowed(&environment(&secure, clock.as_ref())), how).await;
        gateway.healthy(&CLIENTS.map(|(upstream, ..)| upstream)).await;
        let (random, counts) = (Random::new(seed), BTreeMap::new());
        (Self { gateway, network, server, stream, secure, named, disk, clock, config, stub, random, counts }, well)
    }

    async fn loads(&self, scale: Scale) -> Vec<Load> {
        let mut loads = Vec::new();
        for (upstream, probe, clients) in CLIENTS {
            let tolerance = if upstream == "well" { Tolerance::Nothing } else { Tolerance::Errors };
            loads.push(Load::start(self.gateway.address(), scale, upstream, probe, clients, tolerance).await);
        }
        loads
    }

    /// Something goes wrong, and is over again. An upgrade begins with fresh memory, so it has its time.
    async fn fault(&mut self, may_upgrade: bool) {
        let what = OTHERS.get(self.random.below(2 * OTHERS.len())).copied().unwrap_or("network");
        let pause = Duration::from_millis(500 + 500 * self.random.below(6) as u64);
        match (what, &mut self.named, &self.disk, &self.clock) {
            ("the server is killed", ..) => self.server.restart().await,
            ("the server of a stream is killed", ..) => self.stream.restart().await,
            ("a process is killed", ..) => self.kill_process(),
            ("reload", ..) => self.reload().await,
            ("certificate", ..) => {
                self.secure.restart(false).await;
                sleep(pause).await;
                self.secure.restart(true).await;
            }
            ("address", Some(named), ..) => named.moves().await,
            ("disk", _, Some(disk), _) => {
                disk.fill(self.gateway.id(), true);
                sleep(pause).await;
                disk.fill(self.gateway.id(), false);
            }
            ("clock", .., Some(clock)) => {
                for time in ["+1h", "-1h", "+0"] {
                    clock.set(time);
                    sleep(pause / 3).await;
                }
            }
            ("upgrade", ..) if may_upgrade => self.upgrade().await,
            ("network", ..) => {
                self.network.fail(FAULTS[self.random.below(FAULTS.len())]);
                sleep(pause).await;
                self.network.fail(Fault::None);
            }
            _ => return,
        }
        *self.counts.entry(what).or_default() += 1;
        sleep(Duration::from_millis(250 * self.random.below(8) as u64)).await;
    }

    fn kill_process(&self) {
        if let Some((id, _)) = self.gateway.children().first() {
            // It may have ended by itself since.
            let _ = kill_process(Pid::from_raw(id.cast_signed()).expect("an id is not zero"), Signal::KILL);
        }
    }

    async fn reload(&self) {
        let more = self.stub.config("more");
        for config in [format!("{}{more}", self.config), self.config.clone()] {
            self.gateway.configure(&config);
            self.gateway.signal(Signal::HUP);
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Another process takes over.
    async fn upgrade(&mut self) {
        let environment = environment(&self.secure, self.clock.as_ref());
        let environment = borrowed(&environment);
        let next = self.gateway.upgrade_by(&self.config, &environment, |command| seeing(self.named.as_ref(), &command));
        self.gateway.signal(Signal::QUIT);
        let next = next.await;
        let mut former = std::mem::replace(&mut self.gateway, next);
        let status = former.end().await;
        assert_eq!(status.code(), Some(0), "the former process: {}", former.log());
    }
}

/// The command of a gateway, in surroundings that can change.
fn seeing(named: Option<&NamedServer>, command: &Command) -> Command {
    let inside = named.map(|named| named.hosts.seen_by(command));
    Disk::seen_by(inside.as_ref().unwrap_or(command))
}

fn environment(secure: &SecureServer, clock: Option<&Clock>) -> Vec<(&'static str, String)> {
    let hosts = Hosts::ENVIRONMENT.map(|(name, value)| (name, value.to_owned()));
    let clock = clock.into_iter().flat_map(Clock::environment);
    hosts.into_iter().chain([secure.roots()]).chain(clock).collect()
}

fn borrowed<'a>(environment: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    environment.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

/// Lets everything happen for so long; says what came of it.
///
/// # Errors
/// With what must not be.
pub async fn soak(time: Duration, seed: u64) -> Result<String, Vec<String>> {
    let scale = Scale { pace: Duration::from_secs(1), ..Scale::FULL };
    let (mut field, well) = Field::start(seed).await;
    for load in field.loads(scale).await {
        load.recovers().await;
        load.stop().await;
    }
    let before = settled(&field.gateway).await;
    let loads = field.loads(scale).await;
    let (begin, mut samples) = (Instant::now(), Vec::new());
    while begin.elapsed() < time {
        // The memory of one process is compared, from the second quarter on.
        field.fault(begin.elapsed() < time / 5).await;
        samples.push((begin.elapsed(), sample(&field.gateway)));
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
    let most = 2 * CLIENTS.iter().map(|(.., clients)| *clients as u64).sum::<u64>();
    let slack = [most, SLACK[1], SLACK[2], SLACK[3], most];
    failures.extend(twice(&well).map(|text| format!("the healthy upstream ran {text} twice")));
    failures.extend(grown(before, returns_to(&field.gateway, before, slack).await, slack));
    let quarter = |at: u32| {
        let part = time / 4 * at..time / 4 * (at + 1);
        samples.iter().filter(|(when, _)| part.contains(when)).map(|(_, sample)| *sample).collect::<Vec<_>>()
    };
    let quarters = [0, 1, 3].map(quarter);
    if quarters.iter().any(Vec::is_empty) {
        return Err(vec!["the soak was too short for a comparison".to_owned()]);
    }
    let [first, second, last] = quarters.map(|part| median(&part));
    let shown = |Sample { memory, descriptors, processes }: Sample| {
        format!("{memory} KiB, {descriptors} descriptors, {processes} processes")
    };
    let report = format!(
        "{} faults, 200 clients: {right} calls right, {told} told why; healthy: {} calls, p99 {} ms\n{:?}\nfirst quarter: {}\n\
         second quarter: {}\nlast quarter: {}",
        field.counts.values().sum::<usize>(),
        times.len(),
        quantile(&times, 0.99).as_millis(),
        field.counts,
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

//! Faults of the machine below the gateway, and its own comings and goings.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::load::{Load, Probe, Tolerance};
use super::machine::{Clock, Disk};
use super::rig::{IMPATIENT, Rig, message, twice};
use super::{Outcome, Random, Scale};
use crate::peer::Launch;
use crate::process::runs;
use crate::stub::Offer;
use crate::wait::until;
use crate::{Gateway, Stub};

type Result = std::result::Result<String, Vec<String>>;

/// No file can grow for a while: neither the store nor the audit log, without which calls may go on here.
pub(super) async fn disk_full(scale: Scale) -> Outcome {
    let Some(disk) = Disk::new() else {
        return Outcome::Skipped("`prlimit` (util-linux) is missing".to_owned());
    };
    let stub = Stub::start().await;
    let config = format!("{}{}", Disk::AUDIT, stub.config("faulty"));
    let rig = Rig::start_by(scale, &config, Probe::Echo, &[], |command| Disk::seen_by(&command)).await.unnoticed();
    rig.drill(async |rig: &mut Rig| {
        let id = rig.gateway.id();
        disk.fill(id, true);
        rig.gateway.logs("the audit log cannot be written").await;
        sleep(scale.outage).await;
        disk.fill(id, false);
        rig.gateway.logs("the audit log is written again").await;
    })
    .await
    .into()
}

/// The clock is set forward by an hour and back by two.
pub(super) async fn clock_jumps(scale: Scale) -> Outcome {
    let Some(clock) = Clock::new() else {
        return Outcome::Skipped("libfaketime is missing".to_owned());
    };
    let stub = Stub::start().await;
    let environment = clock.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let rig = Rig::start_by(scale, &stub.config("faulty"), Probe::Echo, &environment, |command| command).await;
    rig.unnoticed()
        .drill(async |_| {
            for time in ["+1h", "-1h", "+0"] {
                clock.set(time);
                sleep(scale.outage).await;
            }
        })
        .await
        .into()
}

/// What the gateway has begun it finishes. What it has not is not sent to anybody.
pub(super) async fn sigterm(scale: Scale) -> Result {
    let (stub, children) = (Stub::start().await, Launch::everything().config("process"));
    let mut gateway = Gateway::start(&(stub.config("stub") + &children)).await;
    gateway.healthy(&["stub", "process"]).await;
    let load = Load::start(gateway.address(), scale, "stub", Probe::Echo, scale.clients, Tolerance::End).await;
    let processes = Load::start(gateway.address(), scale, "process", Probe::Long, 2, Tolerance::End).await;
    load.recovers().await;
    processes.recovers().await;
    let children = gateway.children();
    gateway.signal(Signal::TERM);
    let status = gateway.end().await;
    let (calls, processes) = (load.stop().await, processes.stop().await);
    let mut failures: Vec<_> = calls.failures.iter().chain(&processes.failures).cloned().collect();
    let ran: Vec<_> = stub.asked("tools/call").iter().map(message).collect();
    failures.extend(calls.unanswered.iter().filter(|text| ran.contains(text)).map(|text| format!("{text} was lost")));
    failures.extend(twice(&stub).map(|text| format!("{text} ran twice")));
    if status.code() != Some(0) {
        failures.push(format!("the gateway ended with {status}"));
    }
    until("all children have ended", || !children.iter().any(|(id, _)| runs(*id))).await;
    if !failures.is_empty() {
        return Err(failures);
    }
    let (right, late) = (calls.times.len() + processes.times.len(), calls.unanswered.len());
    Ok(format!("{right} calls answered, {late} came too late and reached nobody; {} children ended", children.len()))
}

/// One process after the other takes over.
pub(super) async fn upgrade(scale: Scale) -> Result {
    let stub = Stub::start().await;
    let config = stub.config("faulty");
    let rig = Rig::start_by(scale, &config, Probe::Echo, &[], |command| command).await.unnoticed();
    rig.drill(async |rig: &mut Rig| {
        for _ in 0..scale.times {
            let config = rig.config(&config);
            let next = rig.gateway.upgrade(&config);
            rig.gateway.signal(Signal::QUIT);
            let next = next.await;
            let mut former = std::mem::replace(&mut rig.gateway, next);
            let status = former.end().await;
            assert_eq!(status.code(), Some(0), "the former process: {}", former.log());
        }
    })
    .await
}

/// Upstreams come and go, in the configuration and in truth.
pub(super) async fn reloads(scale: Scale) -> Result {
    let stub = Stub::start().await;
    let faulty = stub.config("faulty");
    let process = Launch::new(Path::new("python3"), [hostile(), "honest".to_owned()].iter().map(String::as_str));
    let rig = Rig::start(scale, &faulty, Probe::Echo).await.unnoticed();
    let mut random = Random::new(17);
    let mut other = Some(Stub::start().await);
    let address = other.as_ref().expect("it is there").address();
    rig.drill(async |rig: &mut Rig| {
        for turn in 0..scale.reloads {
            let mut config = faulty.clone();
            for place in 0..3 {
                if random.below(2) == 0 {
                    config += &format!("[upstreams.other-{place}]\nurl = \"http://{address}/mcp\"\n{IMPATIENT}");
                }
            }
            // A process is dear to start.
            if turn % 10 < 3 {
                config += &process.config("process");
            }
            if turn % 5 == 0 {
                drop(other.take());
            } else if other.is_none() && std::net::TcpListener::bind(address).is_ok() {
                other = Some(Stub::at(address, Offer::default()).await);
            }
            reload(&rig.gateway, &rig.config(&config)).await;
        }
        reload(&rig.gateway, &rig.config(&faulty)).await;
    })
    .await
}

fn hostile() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hostile/child.py");
    script.to_str().expect("the path of this repository is UTF-8").to_owned()
}

async fn reload(gateway: &Gateway, config: &str) {
    let count = || gateway.log().matches("\"the configuration was reloaded\"").count();
    let before = count();
    gateway.configure(config);
    gateway.signal(Signal::HUP);
    until("the configuration is reloaded", || count() > before).await;
    sleep(Duration::from_millis(20)).await;
}

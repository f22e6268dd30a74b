//! Fault drills: what becomes of calls while an upstream, the network or the gateway itself has a fault.
//!
//! Each drill has clients at a healthy upstream and at one that has the fault. Calls of the healthy one never fail. Calls
//! of the other are answered or told why, run no more than once, and succeed after the fault without their clients' doing.
//! Afterwards the gateway holds no more than before.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

mod gateway_faults;
mod load;
mod machine;
mod random;
mod replica_faults;
mod rig;
mod soak;
mod upstream_faults;

pub use machine::Hosts;

pub use random::Random;
pub use soak::soak;

/// How much there is of everything in a drill.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How many clients each upstream has.
    pub clients: usize,
    /// Between two calls of one client.
    pub pace: Duration,
    /// How long calls are measured before the fault.
    pub normal: Duration,
    /// How often the fault comes.
    pub times: u32,
    /// How long it stays.
    pub outage: Duration,
    /// How long 503 is answered.
    pub unavailable: Duration,
    /// How often the configuration changes.
    pub reloads: u32,
    /// How many gateways share a store.
    pub gateways: usize,
    /// How often one of them is killed.
    pub kills: u32,
    /// Between two kills.
    pub kill_pause: Duration,
    /// How long the store is away.
    pub store_outage: Duration,
    /// Whether clients on the official SDKs call too.
    pub sdks: bool,
    /// Whether calls of the healthy upstream must stay about as fast as normally.
    pub is_timed: bool,
}

impl Scale {
    /// As a test has it.
    pub const SHORT: Self = Self {
        clients: 4,
        pace: Duration::from_millis(20),
        normal: Duration::from_millis(200),
        times: 1,
        outage: Duration::from_millis(500),
        unavailable: Duration::from_millis(500),
        reloads: 10,
        gateways: 2,
        kills: 2,
        kill_pause: Duration::from_secs(1),
        store_outage: Duration::from_secs(1),
        sdks: false,
        is_timed: false,
    };
    /// As `make drill` has it.
    pub const FULL: Self = Self {
        clients: 12,
        pace: Duration::from_millis(50),
        normal: Duration::from_secs(4),
        times: 4,
        outage: Duration::from_secs(4),
        unavailable: Duration::from_secs(60),
        reloads: 100,
        gateways: 3,
        kills: 24,
        kill_pause: Duration::from_secs(5),
        store_outage: Duration::from_secs(12),
        sdks: true,
        is_timed: true,
    };
}

/// What came of a drill.
#[derive(Debug)]
pub enum Outcome {
    /// Everything held; the text has the figures.
    Held(String),
    /// This machine cannot do it; the text says why.
    Skipped(String),
    /// What did not hold.
    Failed(Vec<String>),
}

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A drill.
#[derive(Clone, Copy)]
pub struct Drill {
    /// What it is called.
    pub name: &'static str,
    start: fn(Scale) -> Running,
}

impl Drill {
    /// Runs it.
    pub async fn run(self, scale: Scale) -> Outcome {
        // What is not as it should be may also panic, in the words of the harness.
        match tokio::spawn((self.start)(scale)).await {
            Ok(outcome) => outcome,
            Err(panic) => Outcome::Failed(vec![panic.to_string()]),
        }
    }
}

impl From<Result<String, Vec<String>>> for Outcome {
    fn from(result: Result<String, Vec<String>>) -> Self {
        match result {
            Ok(report) => Self::Held(report),
            Err(failures) => Self::Failed(failures),
        }
    }
}

macro_rules! drills {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// Every drill.
        pub const ALL: &[Drill] = &[$(Drill {
            name: stringify!($name),
            start: |scale| Box::pin(async move { Outcome::from($module::$name(scale).await) }),
        }),*];
    };
}

drills![
    upstream_faults::http_killed,
    upstream_faults::sse_killed_mid_stream,
    upstream_faults::stdio_killed_mid_call,
    upstream_faults::network_delays,
    upstream_faults::network_drops,
    upstream_faults::network_resets,
    upstream_faults::network_truncates,
    upstream_faults::network_half_closes,
    upstream_faults::network_throttles,
    upstream_faults::safe_requests_over_resets,
    upstream_faults::accepts_and_never_answers,
    upstream_faults::unavailable,
    upstream_faults::certificate_changes,
    upstream_faults::address_changes,
    gateway_faults::disk_full,
    gateway_faults::clock_jumps,
    gateway_faults::sigterm,
    gateway_faults::upgrade,
    gateway_faults::reloads,
    replica_faults::replicas_killed,
    replica_faults::replicas_rolled,
    replica_faults::store_restarts,
    replica_faults::store_fails_over,
    replica_faults::store_cut_off,
    replica_faults::store_slow,
    replica_faults::clocks_differ,
];

/// The drill of this name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn named(name: &str) -> Drill {
    *ALL.iter().find(|drill| drill.name == name).unwrap_or_else(|| panic!("there is no drill called {name}"))
}

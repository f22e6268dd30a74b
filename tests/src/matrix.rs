//! Which client reaches which server through the gateway, with everything that a call can need: the call itself, a
//! list of two pages, the notifications of a call that runs, and the end of a call that is cancelled.
//!
//! Each client goes on one tour of all servers ([`mod@rows`]); the servers are in [`mod@columns`], the page for people in
//! [`mod@page`]. What a server cannot do without the gateway either is known from a tour without it.

mod columns;
pub mod page;
mod rows;

use std::net::SocketAddr;

use serde_json::{Value, json};

pub use columns::{Column, columns};
pub use rows::{Row, rows};

use crate::balancer::Balancer;
use crate::gateway::Gateway;
use crate::peer::free_port;
use crate::redis::Redis;
use crate::terminal::ENVIRONMENT;

/// What is tried at each station, in this order.
pub const STEPS: [&str; 4] = ["call", "pages", "notification", "cancel"];

/// What came of one client at one server.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// The steps that worked.
    pub passed: Vec<&'static str>,
    /// The steps that were tried and did not.
    pub missed: Vec<&'static str>,
    /// Why, in the client's words.
    pub failures: Vec<String>,
}

impl Cell {
    /// What worked without the gateway and does not with it.
    #[must_use]
    pub fn lost(&self, without: &Self) -> Vec<&'static str> {
        let lost = |step: &&&str| without.passed.contains(step) && self.missed.contains(step);
        let mut lost: Vec<&str> = STEPS.iter().filter(lost).copied().collect();
        if self.passed.is_empty() && self.missed.is_empty() {
            lost.push("connection");
        }
        lost
    }

    fn of(seen: &Value) -> Self {
        let steps = |worked: bool| STEPS.into_iter().filter(|step| seen[*step] == worked).collect();
        let failures = seen["failures"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Self { passed: steps(true), missed: steps(false), failures: failures.map(str::to_owned).collect() }
    }
}

/// Sends a client to all servers without a gateway, as each of them can be reached; one cell for each column.
pub async fn without(columns: &[Column]) -> Vec<Cell> {
    let mut cells = vec![Cell::default(); columns.len()];
    for way in ["http", "sse", "stdio"] {
        let there: Vec<usize> = (0..columns.len()).filter(|at| columns[*at].transport() == way).collect();
        let stations = there.iter().map(|at| columns[*at].station(columns[*at].direct())).collect();
        let seen = rows::script_tour(&["--sdk", "1", "--transport", way], stations).await;
        for at in there {
            cells[at] = Cell::of(&seen[columns[at].key]);
        }
    }
    cells
}

/// Sends a client to all servers through a gateway of its own; one cell for each column, none where the client cannot
/// go at all.
pub async fn through(row: &Row, columns: &[Column]) -> Vec<Option<Cell>> {
    let config: String = columns.iter().map(Column::config).collect();
    let gateway = Gateway::start(&config).await;
    healthy(&gateway, columns).await;
    tour(row, columns, gateway.address()).await
}

/// The same through two gateways at one store, behind a balancer that keeps nobody anywhere.
pub async fn through_two(row: &Row, columns: &[Column]) -> Vec<Option<Cell>> {
    let redis = Redis::start().await;
    let upstreams: String = columns.iter().map(Column::config).collect();
    let store = format!("[store]\nurl = {:?}\nkey = {{ env = \"WEIR_TESTS_KEY\" }}\n", redis.url());
    let config = format!("{store}[replica]\nlisten = \"127.0.0.1:0\"\n{upstreams}");
    let start = || Gateway::start_with(&config, &ENVIRONMENT);
    let gateways = <[Gateway; 2]>::from(tokio::join!(start(), start()));
    for gateway in &gateways {
        healthy(gateway, columns).await;
    }
    let balancer = Balancer::start(free_port(), &gateways.each_ref().map(Gateway::address)).await;
    tour(row, columns, balancer.address()).await
}

async fn healthy(gateway: &Gateway, columns: &[Column]) {
    let names: Vec<&str> = columns.iter().map(|column| column.key).collect();
    gateway.healthy(&names).await;
}

async fn tour(row: &Row, columns: &[Column], gateway: SocketAddr) -> Vec<Option<Cell>> {
    let stations = columns.iter().filter_map(|column| {
        let target = row.target(gateway, column)?;
        Some(column.station(target))
    });
    let seen = row.tour(stations.collect()).await;
    columns
        .iter()
        .map(|column| {
            seen.get(column.key).map(Cell::of).or_else(|| row.target(gateway, column).map(|_| Cell::default()))
        })
        .collect()
}

/// A command as a tour wants it.
fn command(words: &[&str]) -> Value {
    json!(words)
}

//! What is in front: HTTP, or the standard input and output of a program ([`stdio`]).
//!
//! Over HTTP, [`listen`] holds pingora; [`guard`] turns away what a browser was tricked into sending; [`post`]
//! sorts messages by era and session; [`deliver`] writes answers. Every refusal is made in [`refusal`].

mod deliver;
pub mod guard;
mod health;
pub mod listen;
mod post;
mod refusal;
pub mod stdio;

use std::sync::Arc;

use tokio::sync::watch;

use crate::{
    relay::{Answer, Relay},
    session::Endpoint,
};

use guard::Guard;
use listen::{Exchange, Handler};

/// What answers requests.
pub struct App {
    relay: Arc<Relay>,
    guard: Guard,
    /// The longest body that is read, in bytes.
    body_limit: usize,
    draining: watch::Sender<bool>,
}

impl App {
    /// An app over a relay.
    #[must_use]
    pub fn new(relay: Arc<Relay>, guard: Guard, body_limit: usize) -> Self {
        Self { relay, guard, body_limit, draining: watch::Sender::new(false) }
    }

    /// Says in `/readyz` that no new work should come, and ends the streams that would never end by themselves.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Which part of Weir a path names.
    fn endpoint(&self, path: &str) -> Option<Endpoint> {
        let rest = path.strip_prefix("/mcp")?;
        match rest.strip_prefix('/') {
            None if rest.is_empty() => Some(Endpoint::All),
            None => None,
            Some("") => Some(Endpoint::All),
            Some(name) => self.relay.catalog().position(name).map(Endpoint::One),
        }
    }

    async fn answer(self: &Arc<Self>, exchange: &mut Exchange) -> Answer {
        if let Err(refusal) = self.guard.admit(exchange.host(), exchange.header("origin")) {
            return refusal::forbidden(&refusal);
        }
        let Some(endpoint) = self.endpoint(exchange.path()) else {
            return refusal::no_such_path(exchange.path(), self.relay.catalog().upstreams());
        };
        match exchange.method() {
            "POST" => self.post(endpoint, exchange).await,
            "GET" => self.get(endpoint, exchange).await,
            "DELETE" => self.delete(endpoint, exchange).await,
            _ => refusal::method("GET, POST, DELETE"),
        }
    }
}

impl Handler for App {
    async fn handle(self: &Arc<Self>, exchange: &mut Exchange) {
        match exchange.path() {
            "/healthz" => deliver::text(exchange, 200, "ok\n").await,
            "/readyz" => {
                // The body names upstreams, which is nothing for a page that was rebound.
                if let Err(refusal) = self.guard.admit(exchange.host(), exchange.header("origin")) {
                    let refused = refusal::forbidden(&refusal);
                    return deliver::deliver(exchange, refused, self.draining.subscribe()).await;
                }
                let (status, body) = health::ready(self.relay.catalog(), *self.draining.borrow());
                deliver::json(exchange, status, body).await;
            }
            _ => {
                let answer = self.answer(exchange).await;
                deliver::deliver(exchange, answer, self.draining.subscribe()).await;
            }
        }
    }
}

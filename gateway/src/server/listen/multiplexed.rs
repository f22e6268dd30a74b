//! HTTP/2: many requests at once on a connection, each a task that ends with it.

use std::{pin::pin, sync::Arc};

use pingora_core::{
    protocols::{
        Digest,
        http::{
            ServerSession,
            v2::server::{H2Accept, HttpSession, handshake},
        },
    },
    server::ShutdownWatch,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    http::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
    task::on_heap,
};

use super::{Handler, HttpExchange, HttpServer, exchange::Peer, refusal, wire::Wire};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// How many requests that cannot be accepted end a connection.
const MAX_MALFORMED: usize = 32;

/// Serves a connection to its end. Its handshake and its first request must be here at `end`.
pub(super) async fn serve<H: Handler>(
    server: Arc<HttpServer<H>>,
    wire: Wire,
    peer: Peer,
    end: Instant,
    mut shutdown: ShutdownWatch,
) {
    let Ok(Ok(mut connection)) = timeout_at(end, handshake(Box::new(wire), None)).await else { return };
    let limits = server.limits();
    let digest = Arc::new(Digest::default());
    let mut stop = pin!(shutdown.wait_for(|over| *over));
    let mut streams = JoinSet::new();
    let mut malformed = 0;
    let mut closing = false;
    let mut deadline = end;
    loop {
        tokio::select! {
            biased;
            _ = &mut stop, if !closing => {
                connection.graceful_shutdown();
                closing = true;
                deadline = Instant::now() + limits.drain;
            }
            // This drives the whole connection.
            accepted = HttpSession::from_h2_conn(&mut connection, Arc::clone(&digest)) => match accepted {
                Ok(Some(H2Accept::Session(session))) => {
                    streams.spawn(stream(Arc::clone(&server), session, peer.clone()));
                }
                Ok(Some(H2Accept::Rejected)) if malformed < MAX_MALFORMED => malformed += 1,
                Ok(_) | Err(_) => break,
            },
            Some(_) = streams.join_next() => {
                if !closing && streams.is_empty() {
                    deadline = Instant::now() + limits.idle_timeout;
                }
            }
            () = sleep_until(deadline), if streams.is_empty() => {
                if closing {
                    return;
                }
                connection.graceful_shutdown();
                closing = true;
                deadline = Instant::now() + limits.header_timeout;
            }
        }
    }
    // Each has seen its client go by now and ends by itself.
    while streams.join_next().await.is_some() {}
}

async fn stream<H: Handler>(server: Arc<HttpServer<H>>, session: HttpSession, peer: Peer) {
    let session = ServerSession::H2(session);
    let share = Arc::clone(&peer.share);
    let shared = (Arc::clone(&server.settings.closing), Arc::clone(&server.settings.bodies));
    let mut exchange = HttpExchange::new(session, peer, server.limits().into(), shared, None);
    // Each may hold as much as a connection of HTTP/1.1 does.
    match server.settings.connections.take(&share, None) {
        Ok(_permit) => on_heap(|| server.handler.handle(&mut exchange)).await,
        Err(full) => {
            let head = [(CONTENT_TYPE, JSON), (RETRY_AFTER, HeaderValue::from_static("5"))];
            exchange.respond(full.status(), &head, refusal(&full)).await;
        }
    }
    exchange.finish().await;
}

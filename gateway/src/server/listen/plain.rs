//! HTTP/1.1: one request after the other on a connection.

use std::sync::Arc;

use pingora_core::protocols::{Stream, http::ServerSession};

use super::{Exchange, Handler, Server, over};

impl<H: Handler> Server<H> {
    /// Serves a connection to its end.
    pub(super) async fn plain(self: Arc<Self>, mut io: Stream) {
        let mut shutdown = self.shutdown.clone();
        let mut patience = self.limits.head_timeout;
        loop {
            let mut session = ServerSession::new_http1(io);
            let idle = self.limits.idle_timeout.as_secs().max(1);
            session.set_keepalive((!*shutdown.borrow()).then_some(idle));
            let read = tokio::select! {
                read = tokio::time::timeout(patience, session.read_request()) => read,
                // Nobody is waiting for an answer on a connection that rests.
                () = over(&mut shutdown) => return,
            };
            match read {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) | Err(_) => return,
                Ok(Err(_)) => {
                    // Not HTTP, or a head that is too large; there is nobody else to tell.
                    drop(session.respond_error(400).await);
                    return;
                }
            }
            let mut exchange = Exchange::new(session, self.limits.idle_timeout);
            self.handler.handle(&mut exchange).await;
            match exchange.finish().await {
                Some(next) if !*shutdown.borrow() => io = next,
                _ => return,
            }
            patience = self.limits.idle_timeout + self.limits.head_timeout;
        }
    }
}

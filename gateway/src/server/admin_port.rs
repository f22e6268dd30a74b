//! For programs that cannot open the Unix socket of operators, such as Prometheus: an address at which they can read how
//! Weir stands, and change nothing.

use std::sync::Arc;

use bytes::Bytes;
use ring::digest::{SHA256, digest};

use crate::{config::SecretSource, http};

use super::{
    admin::Admin,
    deliver,
    listen::{Handler, HttpExchange},
    origin_check::OriginCheck,
};

/// What answers programs.
pub struct AdminPort {
    admin: Arc<Admin>,
    token: Option<SecretSource>,
    /// Where there is no token, a page in a browser could ask too.
    guard: OriginCheck,
}

impl AdminPort {
    /// Answers what `admin` answers to whoever brings the token.
    #[must_use]
    pub fn new(admin: Arc<Admin>, token: Option<SecretSource>) -> Self {
        Self { admin, token, guard: OriginCheck::default() }
    }

    /// Why a request is not answered, and the status that says so.
    fn refusal(&self, exchange: &HttpExchange) -> Option<(u16, &'static str)> {
        let Some(token) = &self.token else {
            let judged = self.guard.admit(exchange.host(), exchange.header("origin"));
            return judged.err().map(|_| (403, "this Host or Origin is not served here; call Weir by its address\n"));
        };
        match token.read() {
            // Hashes of equal length, so that the time tells nothing of the token.
            Ok(token) => {
                let given = exchange.header("authorization").and_then(|given| given.strip_prefix("Bearer "));
                let hash = |text: &str| digest(&SHA256, text.trim().as_bytes());
                let is_known = given.is_some_and(|given| hash(given).as_ref() == hash(token.expose()).as_ref());
                (!is_known).then_some((401, "send the token of `admin.token` as a bearer token\n"))
            }
            Err(why) => {
                tracing::debug!(error = %why, "`admin.token` cannot be read");
                Some((503, "`admin.token` cannot be read\n"))
            }
        }
    }
}

impl Handler for AdminPort {
    async fn handle(self: &Arc<Self>, exchange: &mut HttpExchange) {
        if let Some((status, why)) = self.refusal(exchange) {
            let challenge = [(http::WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"))];
            let headers = if status == 401 { &challenge[..] } else { &[] };
            return exchange.respond(status, headers, Bytes::from_static(why.as_bytes())).await;
        }
        match (exchange.method(), exchange.path()) {
            ("GET", "/metrics" | "/status" | "/readyz") => self.admin.handle(exchange).await,
            _ => deliver::text(exchange, 404, "only GET /metrics, /status and /readyz are here\n").await,
        }
    }
}

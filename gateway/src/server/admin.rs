//! For the operator of Weir, at a Unix socket: `GET /status` and `GET /readyz` say how it stands.
//! `GET /metrics` has the counters for Prometheus. `POST /reload` puts the
//! changed configuration in force, and `GET /reload` says what that would change. `POST /refresh/NAME` has the lists of an
//! upstream fetched anew. `GET /calls` and `GET /sessions` say what goes on.
//!
//! Whoever opens the socket is the user that runs Weir: it has mode 0600, in a folder that only this user can enter.
//! So requests need no credential, and no page in a browser reaches it.

mod activity;

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use weir_flow::BreakerState;

use crate::{
    config::Config,
    credential::{CredentialManager, Standing},
    http,
    policy::CallPolicy,
    quota::Shares,
    telemetry::recent,
    upstream::Upstream,
};

use super::{
    App, deliver,
    health::{self, HealthLine},
    listen::{Handler, HttpExchange, ListenLimits, Listener},
    metrics, upgrade,
};

/// How many may follow the log at once.
const FOLLOWERS: usize = 8;

/// What the next one is told.
const FULL: &str = "so many follow the log already as may: 8";

/// What stands before the name of an upstream whose lists are to be fetched anew.
const REFRESH: &str = "/refresh/";

/// Operators are few; a request has no body.
const LIMITS: ListenLimits = ListenLimits {
    connections: Shares { total: 32, principal: 32, upstream: 32 },
    bodies: Shares { total: 0, principal: 0, upstream: 0 },
    header_timeout: Duration::from_secs(5),
    body_timeout: Duration::from_secs(5),
    idle_timeout: Duration::from_secs(30),
    drain: Duration::from_secs(1),
};

/// Where the gateway of a configuration is asked how it stands: beside the logins. None where these have no place.
#[must_use]
pub fn path(config: &Config) -> Option<String> {
    upgrade::beside_logins(config, "admin")
}

/// A socket that is removed when this is dropped, unless another process has replaced it.
pub struct AdminSocket {
    path: String,
    inode: (u64, u64),
}

impl AdminSocket {
    /// Binds it, in place of one that a process left behind.
    ///
    /// # Errors
    ///
    /// When the folder is open to others, or the socket cannot be made there.
    pub fn bind(path: &str) -> io::Result<(Self, Listener)> {
        upgrade::private_place(path).map_err(io::Error::other)?;
        let listener = Listener::bind_unix(path)?;
        Ok((Self { path: path.to_owned(), inode: inode(path)? }, listener))
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            drop(fs::remove_file(&self.path));
        }
    }
}

fn inode(path: &str) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(Path::new(path))?;
    Ok((found.dev(), found.ino()))
}

/// Asks for the configuration to be read again.
pub struct ReloadRequest {
    /// Whether only to say what would change.
    pub is_preview: bool,
    /// Who waits for what has changed, or why nothing has.
    pub answer: Option<oneshot::Sender<Result<ReloadReport, String>>>,
}

/// What a reload changes.
#[derive(Debug, Serialize)]
pub struct ReloadReport {
    /// The names of upstreams.
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
    /// Whether the access rules are others.
    pub access: bool,
    /// Whether the toolsets are.
    pub toolsets: bool,
    /// Whether other questions for policies are recorded.
    pub record: bool,
    /// Whether spans and metrics are sent otherwise.
    pub telemetry: bool,
    /// Whether limits are that come into force.
    pub limits: bool,
    /// Keys that have changed and need a restart.
    pub restart: Vec<&'static str>,
}

/// What answers operators.
pub struct Admin {
    app: Arc<App>,
    manager: Arc<CredentialManager>,
    file: String,
    url: String,
    started: Instant,
    /// The same by the wall clock.
    start_time: SystemTime,
    reload: mpsc::Sender<ReloadRequest>,
    /// How many may follow the log.
    followers: Semaphore,
    /// Why the last reload has changed nothing; none where there is no file to reload.
    reload_failure: Option<watch::Receiver<Option<String>>>,
}

/// The body of `/status`.
#[derive(Serialize)]
struct StatusReport<'a> {
    version: &'static str,
    process: u32,
    uptime_seconds: u64,
    config: &'a str,
    url: &'a str,
    state: &'static str,
    /// Why the audit log cannot be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<String>,
    /// Why the shared store cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<&'a str>,
    /// Why the last reload has changed nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    reload: Option<String>,
    upstreams: Vec<UpstreamReport<'a>>,
}

#[derive(Serialize)]
struct UpstreamReport<'a> {
    #[serde(flatten)]
    health: HealthLine<'a>,
    since_seconds: u64,
    /// What kind of failure `error` is.
    error_class: Option<&'static str>,
    /// How often in a row it could not be reached.
    failures: u32,
    retry_in_seconds: Option<u64>,
    /// Whether its calls pass: `closed`, `open` or `probing`.
    breaker: &'static str,
    /// How many retries its calls have left.
    retries_left: u32,
    /// Its policies about calls that are not run, because they trap time and again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disabled_policies: Vec<&'a str>,
    /// Why it is reached over `transport`.
    transport_reason: Option<&'static str>,
    login: Option<LoginReport>,
    processes: usize,
    /// How many calls came to what.
    calls: BTreeMap<&'static str, u64>,
    /// How often requests of these calls were sent, or were to be.
    attempts: u64,
    /// How long calls took, as upper bounds of buckets in milliseconds; none where there were none, or where the bucket has
    /// no bound.
    latency_ms: LatencyReport,
}

#[derive(Serialize)]
struct LatencyReport {
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
}

#[derive(Serialize)]
struct LoginReport {
    state: &'static str,
    expires_in_seconds: Option<u64>,
}

impl Admin {
    /// For a gateway whose configuration is `file`, which clients reach at `url`, and which reloads when it is told so.
    #[must_use]
    pub fn new(
        app: Arc<App>,
        manager: Arc<CredentialManager>,
        (file, url): (&Path, String),
        (reload, reload_failure): (mpsc::Sender<ReloadRequest>, Option<watch::Receiver<Option<String>>>),
    ) -> Self {
        Self {
            app,
            manager,
            file: file.display().to_string(),
            url,
            started: Instant::now(),
            start_time: SystemTime::now(),
            reload,
            reload_failure,
            followers: Semaphore::new(FOLLOWERS),
        }
    }

    /// What `/metrics` says, as OTLP has it.
    #[must_use]
    pub fn otlp_metrics(&self) -> Vec<serde_json::Value> {
        metrics::otlp(&self.app, self.start_time, self.started.elapsed())
    }

    /// Has the configuration read again; the answer, and its status.
    async fn reload(&self, is_preview: bool) -> (u16, Bytes) {
        let (answer, answered) = oneshot::channel();
        let request = ReloadRequest { is_preview, answer: Some(answer) };
        let report = match self.reload.send(request).await {
            Ok(()) => answered.await.unwrap_or_else(|_| Err("the gateway is stopping".to_owned())),
            Err(_) => Err("the gateway is stopping, or has no file to reload".to_owned()),
        };
        match report {
            Ok(report) => (200, serde_json::to_vec(&report).unwrap_or_default().into()),
            Err(why) => (409, json!({ "error": why }).to_string().into()),
        }
    }

    /// Has the lists of an upstream fetched anew.
    fn refresh(&self, upstream: &str) -> (u16, Bytes) {
        let catalog = self.app.proxy.catalog();
        match catalog.snapshot().upstream(upstream) {
            Some(upstream) => {
                catalog.poke(upstream);
                (200, "{}".into())
            }
            None => (404, json!({ "error": format!("there is no upstream `{upstream}`") }).to_string().into()),
        }
    }

    /// The last lines of the log, and those that come while somebody follows.
    async fn logs(&self, exchange: &mut HttpExchange, is_followed: bool) {
        let Ok(_follower) = self.followers.try_acquire() else {
            return deliver::json(exchange, 429, json!({ "error": FULL }).to_string().into()).await;
        };
        let mut lines = recent::follow();
        let mut draining = self.app.draining.subscribe();
        exchange.start(200, &[(http::CONTENT_TYPE, deliver::TEXT)], None).await;
        let mut next = Some(lines.recent.concat().into());
        while let Some(some) = next.take() {
            if !exchange.write(some).await || !is_followed {
                break;
            }
            next = tokio::select! {
                some = lines.next() => some,
                () = exchange.gone() => None,
                _ = draining.wait_for(|draining| *draining) => None,
            };
        }
        exchange.end().await;
    }

    /// How many clients there may be, and how long they may take.
    #[must_use]
    pub const fn limits() -> ListenLimits {
        LIMITS
    }

    async fn status(&self) -> Bytes {
        let snapshot = self.app.proxy.snapshot();
        let mut upstreams = Vec::with_capacity(snapshot.upstreams().len());
        for upstream in snapshot.upstreams() {
            upstreams.push(self.upstream(upstream).await);
        }
        let store = self.manager.store_standing();
        let report = StatusReport {
            version: env!("CARGO_PKG_VERSION"),
            process: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            config: &self.file,
            url: &self.url,
            state: health::state(self.app.proxy.catalog(), &store, *self.app.draining.borrow()),
            audit: crate::telemetry::audit::failure(),
            store: store.failure(),
            reload: self.reload_failure.as_ref().and_then(|failure| failure.borrow().clone()),
            upstreams,
        };
        serde_json::to_vec(&report).unwrap_or_default().into()
    }

    async fn upstream<'a>(&self, upstream: &'a Upstream) -> UpstreamReport<'a> {
        let status = upstream.status();
        let now = Instant::now();
        let guard = upstream.guard();
        UpstreamReport {
            breaker: match guard.breaker {
                BreakerState::Closed => "closed",
                BreakerState::Open => "open",
                BreakerState::Probing => "probing",
            },
            retries_left: guard.retries,
            disabled_policies: upstream
                .policies()
                .into_iter()
                .flat_map(|policies| policies.all())
                .filter(|policy| policy.is_disabled())
                .map(CallPolicy::name)
                .collect(),
            transport_reason: status.transport.map(|_| upstream.transport_reason()),
            since_seconds: now.saturating_duration_since(status.since).as_secs(),
            error_class: status.error_class,
            failures: status.failures,
            retry_in_seconds: status.retry.map(|retry| retry.saturating_duration_since(now).as_secs()),
            login: self.login(upstream.name()).await,
            processes: upstream.processes(),
            calls: upstream
                .calls
                .outcomes()
                .filter(|(_, count)| *count > 0)
                .map(|(what, count)| (what.text(), count))
                .collect(),
            attempts: upstream.calls.attempts(),
            latency_ms: latency(upstream),
            health: health::line(upstream),
        }
    }

    /// How the login of an upstream stands; none where it takes none, or the store does not tell.
    async fn login(&self, upstream: &str) -> Option<LoginReport> {
        let account = self.manager.account(upstream)?;
        let Some(subject) = account.asker(None) else {
            return Some(LoginReport { state: "of_each_caller", expires_in_seconds: None });
        };
        let found = account.state(&subject.owner).await.ok()?;
        let state = match found.standing {
            Standing::Good => "good",
            Standing::Ended => "expired",
            Standing::TooLittle => "scopes_missing",
            Standing::Missing => "missing",
            Standing::Unasked => return None,
        };
        let expires = found.login.and_then(|login| login.expires);
        let left = |end: SystemTime| end.duration_since(SystemTime::now()).unwrap_or_default().as_secs();
        Some(LoginReport { state, expires_in_seconds: expires.map(left) })
    }
}

fn latency(upstream: &Upstream) -> LatencyReport {
    let latency = upstream.calls.latency();
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| latency.quantile(share).map(|bound| bound * 1000.0));
    LatencyReport { p50, p95, p99 }
}

impl Handler for Admin {
    async fn handle(self: &Arc<Self>, exchange: &mut HttpExchange) {
        match (exchange.method(), exchange.path()) {
            ("GET", "/status") => {
                let body = self.status().await;
                deliver::json(exchange, 200, body).await;
            }
            ("GET", "/metrics") => {
                let body = metrics::text(&self.app, self.started.elapsed());
                exchange.respond(200, &[(http::CONTENT_TYPE, metrics::OPEN_METRICS)], body).await;
            }
            ("GET", "/readyz") => {
                let (status, body) = health::ready(
                    self.app.proxy.catalog(),
                    &self.manager.store_standing(),
                    *self.app.draining.borrow(),
                    true,
                );
                deliver::json(exchange, status, body).await;
            }
            ("GET", "/calls") => deliver::json(exchange, 200, activity::calls()).await,
            ("GET", "/sessions") => {
                deliver::json(exchange, 200, activity::sessions(self.app.proxy.sessions())).await;
            }
            ("GET", "/logs") => self.logs(exchange, false).await,
            ("GET", "/logs/follow") => self.logs(exchange, true).await,
            (method @ ("GET" | "POST"), "/reload") => {
                let is_preview = method == "GET";
                let (status, body) = self.reload(is_preview).await;
                deliver::json(exchange, status, body).await;
            }
            ("POST", path) if path.starts_with(REFRESH) => {
                let (status, body) = self.refresh(&path[REFRESH.len()..]);
                deliver::json(exchange, status, body).await;
            }
            _ => {
                deliver::text(
                    exchange,
                    404,
                    "only /status, /calls, /sessions, /readyz, /metrics, /logs, /refresh/NAME and /reload are here\n",
                )
                .await
            }
        }
    }
}
